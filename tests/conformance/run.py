"""One scenario on the core, in virtual time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from inproc_jobs.core.bullmq_options import parse_worker
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job
from inproc_jobs.core.options import DEFAULT_OPTIONS, DEFAULT_WORKER
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.turns import Failure, Held, Strategy, WorkerTurns
from inproc_jobs.errors import InprocJobsError
from inproc_jobs.runtime.cron import next_match
from tests.conformance.views import PREFIX, error_view, event_view, final_view, job_view

DEFAULT_T0 = 1_700_000_000_123
Step = Mapping[str, Any]

UNORDERED = frozenset(("remove", "jobRemove", "removeUnprocessedChildren"))
"""Operations that may emit several `removed` events of one queue in no defined order."""


class Run:
    """
    The objects behind the steps of one scenario, and what the steps have told so far.

    Attributes:
        held: (queue, id) -> the job as it was delivered last.
        deliverers: (queue, id) -> name of the worker that delivered it.
    """

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self.scenario = scenario
        self.now = scenario.get("t0", DEFAULT_T0)
        self.core = Core(prefix=PREFIX)
        self.core.listening = True
        self.queue_names = list(scenario.get("queues", ["main"]))
        for name in self.queue_names:
            self.core.queue(name)
        self.workers: dict[tuple[str, str], WorkerTurns] = {}
        self.held: dict[tuple[str, str], Held] = {}
        self.deliverers: dict[tuple[str, str], str] = {}
        self.tokens = itertools.count(1)
        self.step = -1
        self.events: dict[str, list[dict[str, Any]]] = {name: [] for name in self.queue_names}
        self.worker_errors: list[dict[str, Any]] = []

    # --- the whole ----------------------------------------------------------------------------------------------

    def trace(self) -> dict[str, Any]:
        """Run all steps and answer a trace."""
        results = [self._run_step(index, step) for index, step in enumerate(self.scenario["steps"])]
        trace = {"name": self.scenario["name"], "area": self.scenario["area"], "results": results}
        if self.worker_errors:
            trace["workerErrors"] = self.worker_errors
        trace["events"] = self.events
        trace["final"] = {name: final_view(self.core, self.core.queue(name)) for name in self.queue_names}
        return trace

    def _run_step(self, index: int, step: Step) -> Any:
        from tests.conformance.ops import OPS  # the operations are written in terms of this class

        self.step = index
        failed = False
        try:
            result = OPS[step["op"]](self, step)
        except (InprocJobsError, LookupError, TypeError) as error:
            failed, result = True, error_view(error)
        self._collect(step, failed=failed)
        self.core.check()
        return result

    def _collect(self, step: Step, *, failed: bool) -> None:
        for worker in self.workers.values():
            for message in worker.errors:
                self.worker_errors.append({"step": self.step, "message": " ".join(message.split())})
            worker.errors.clear()
        fresh: dict[str, list[dict[str, Any]]] = {}
        for event in self.core.take_events():
            fresh.setdefault(event.queue, []).append(event_view(self.step, event))
        self.core.take_ended()
        if step["op"] == "obliterate" and not failed:
            fresh.pop(self.queue_name(step), None)
        for name, events in fresh.items():
            if step["op"] in UNORDERED and sum(event["event"] == "removed" for event in events) > 1:
                events.sort(key=lambda event: (event["event"], event.get("jobId", "")))
            self.events.setdefault(name, []).extend(events)

    # --- objects ------------------------------------------------------------------------------------------------

    def queue_name(self, step: Step) -> str:
        return step.get("q", self.queue_names[0])

    def queue(self, step: Step) -> Queue:
        return self.core.queue(self.queue_name(step))

    def token(self, step: Step) -> str:
        return step["token"] if "token" in step else f"token-{next(self.tokens)}"

    def worker(self, step: Step) -> WorkerTurns:
        key = (self.queue_name(step), step.get("worker", "w"))
        if key not in self.workers:
            options = dict(self.scenario.get("workers", {}).get(key[1], {}))
            table = options.pop("backoffTable", None)
            self.workers[key] = WorkerTurns(
                self.core,
                self.queue(step),
                parse_worker(options),
                strategy=_strategy(table) if table is not None else None,
                next_match=next_match,
            )
        return self.workers[key]

    def ender(self, step: Step) -> WorkerTurns:
        """Who ends a job: the worker that delivered it, or for a stored one the queue, which has no worker's options."""
        deliverer = self.deliverers.get((self.queue_name(step), step["id"]))
        if deliverer is None:
            return WorkerTurns(self.core, self.queue(step), DEFAULT_WORKER, next_match=next_match)
        return self.workers[self.queue_name(step), deliverer]

    def hold(self, step: Step, held: Held) -> Any:
        """Remember a delivered job, and show it."""
        key = self.queue_name(step), held.job.id
        self.held[key] = held
        self.deliverers[key] = step.get("worker", "w")
        return job_view(self.core, held.job)

    def held_or_stored(self, step: Step) -> Held:
        """The job that was delivered, or else the stored one, or else a bare handle."""
        held = self.held.get((self.queue_name(step), step["id"]))
        return held if held is not None else Held(self.stored(step), "none")

    def stored(self, step: Step) -> Job:
        job = self.core.job(self.queue(step), step["id"])
        return job if job is not None else Job(step["id"], "detached", b"{}", DEFAULT_OPTIONS, self.now)

    def default_opts(self) -> Mapping[str, Any]:
        return self.scenario.get("queueOpts", {}).get("defaultJobOptions") or {}


def _strategy(table: Mapping[str, list[float]]) -> Strategy:
    """A custom backoff strategy by table: the delay per failed attempt, the last one for all later."""

    def delay(attempts_made: int, type: str, job: Job) -> float:
        row = table[type]
        return row[min(attempts_made, len(row)) - 1]

    return delay


def failure_of(step: Step, message: str) -> Failure:
    """What a processor would throw."""
    name = "UnrecoverableError" if step.get("unrecoverable") else step.get("errorName") or "Error"
    return Failure(message, name, f"{name}: {message}\n    at processor")


def rounded_up(ms: float) -> float:
    """Times that were measured in real time are told in steps of 100."""
    return math.ceil(ms / 100) * 100 if ms > 0 else ms
