"""
`Harness`: what the fixture `jobs` gives, and `harness()` outside of pytest.

The engine is hosted on the loop in which the test runs (or on one of the harness's own for plain tests), with virtual
time; it takes jobs only while the harness is asked to run them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from inproc_jobs.app.definition import JobDefinition, Registry
from inproc_jobs.app.hosting import RunSummary
from inproc_jobs.app.views import JobView
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.core.queue import Queue
from inproc_jobs.errors import BlockingCallError, InprocJobsError, InvalidOptionError
from inproc_jobs.testing.assertions import ANY, Dispatched, Wanted
from inproc_jobs.testing.engine import StampedEvents, TestedEngine
from inproc_jobs.testing.virtual_time import VirtualClock, VirtualTime

if TYPE_CHECKING:
    from typing import Self

__all__ = ["START", "DrainLimitError", "Harness", "Mode", "TimelineEntry", "harness"]

Mode = Literal["manual", "inline", "record"]
T = TypeVar("T")
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""When a test begins unless it says otherwise: a Monday morning, far from any change of the clock."""
DRAIN_LIMIT = 10_000
_JSON = frozenset(("returnvalue", "data"))


class DrainLimitError(InprocJobsError, AssertionError):
    """
    Draining ran more jobs than the test allows: something dispatches itself for ever.

    Attributes:
        upcoming: Descriptions of the jobs that would have come next.
    """

    def __init__(self, limit: int, upcoming: list[str]) -> None:
        listed = "".join(f"\n  {one}" for one in upcoming) or "\n  (nothing is waiting)"
        super().__init__(f"stopped after {limit} runs; next would be:{listed}")
        self.upcoming = upcoming


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event, with the moment in the test's time: `event` and `fields` are BullMQ's."""

    at: datetime
    elapsed_ms: int
    queue: str
    event: str
    job_id: str | None
    fields: dict[str, Any]

    def __str__(self) -> str:
        rest = " ".join(f"{key}={value!r}" for key, value in self.fields.items() if key != "jobId")
        return f"{self.elapsed_ms:>10} ms  {self.queue}  {self.event}  {self.job_id or ''}  {rest}".rstrip()


@dataclass(slots=True)
class _Fault:
    """An error to raise in place of a handler."""

    name: str
    error: BaseException | type[BaseException]
    times: int
    when: Callable[[Any], bool] | None = None

    def take(self) -> BaseException:
        self.times -= 1
        return self.error() if isinstance(self.error, type) else self.error


class Harness:
    """
    An engine under test.

    Args:
        registry: Whose jobs; None is that of the module-level `define_job`.
        start: The wall clock at the beginning, aware.
        mode: "manual": jobs run when the test says so. "inline": an awaited dispatch returns once all that is ready has
            run. "record": nothing runs, dispatches are only noted.
        seed: Of the draws for jitter; the same seed gives the same timeline.
        plain: Where plain functions run: "inline" (on the loop, so that everything is deterministic) or "thread".
        engine: Further arguments of `Engine`, such as `queues` or `concurrency`.

    Attributes:
        engine: The engine; newest of its registry, so dispatches of the code under test go to it.
        clock: Its clock; `clock.step_wall(ms)` sets the wall clock.
        mode: May be changed at any time.
    """

    def __init__(
        self,
        *,
        registry: Registry | None = None,
        start: datetime = START,
        mode: Mode = "manual",
        seed: int = 0,
        plain: Literal["inline", "thread"] = "inline",
        **engine: Any,
    ) -> None:
        if start.tzinfo is None:
            raise InvalidOptionError("start must be an aware datetime", option="start", value=start)
        self.clock = VirtualClock(start)
        self.time = VirtualTime(self.clock)
        self.mode: Mode = mode
        self.plain = plain
        self._options = {"registry": registry, "clock": self.clock, **engine}
        self._seed = seed
        self._dispatched: list[Dispatched] = []
        self._timeline: list[TimelineEntry] = []
        self._faults: list[_Fault] = []
        self._first_error: BaseException | None = None
        self._runs = 0
        self._limit: int | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self.engine = self._new_engine()

    def _new_engine(self) -> TestedEngine:
        engine = TestedEngine(self, **self._options)
        engine.runtime.draw = random.Random(self._seed).random  # jitter, not secrets
        StampedEvents(engine.runtime.core, self._note_event)
        return engine

    def _note_event(self, queue: Queue, event: str, fields: dict[str, Any]) -> None:
        told = {k: decode_json(v) if k in _JSON and isinstance(v, bytes) else v for k, v in fields.items()}
        elapsed = round(self.clock.monotonic() * 1000)
        self._timeline.append(TimelineEntry(self.clock.now(), elapsed, queue.name, event, told.get("jobId"), told))

    # --- called by the engine -----------------------------------------------------------------------------------

    def note(self, dispatched: Dispatched) -> None:
        """The code under test has dispatched something."""
        self._dispatched.append(dispatched)

    def before_run(self, name: str, payload: Any) -> BaseException | None:
        """A handler is about to run; answers what is to be raised instead."""
        self._runs += 1
        if self._limit is not None and self._runs >= self._limit:
            self.engine.runtime.fetching = False
            self.engine.runtime.check_idle()
        for fault in self._faults:
            if fault.times and fault.name == name and (fault.when is None or fault.when(payload)):
                return fault.take()
        return None

    # --- what was dispatched ------------------------------------------------------------------------------------

    def dispatched(
        self, job: JobDefinition[Any, Any] | str | None = None, payload: Any = ANY, **wanted: Any
    ) -> list[Dispatched]:
        """Dispatches in their order, of one job or of all; `wanted` as in `assert_dispatched`, duplicates included."""
        wanted.setdefault("duplicate", None)
        asked = Wanted(_name_of(job), payload, **wanted)
        return [one for one in self._dispatched if not asked.misses(one)]

    def assert_dispatched(
        self,
        job: JobDefinition[Any, Any] | str | None = None,
        payload: Any = ANY,
        *,
        times: int | None = 1,
        job_id: Any = ANY,
        delay: Any = ANY,
        run_at: Any = ANY,
        within: Any = "0ms",
        priority: Any = ANY,
        queue: Any = ANY,
        where: Callable[[Dispatched], bool] | None = None,
        duplicate: bool | None = False,
    ) -> Dispatched:
        """
        Assert that a job was dispatched, exactly once unless `times` says otherwise.

        Args:
            payload: A dict matches a part, at any depth; `exactly(...)` the whole; a function is asked.
            times: How often; None is at least once.
            delay, run_at: Compared with a tolerance of `within`.
            where: A predicate on the `Dispatched` record.
            duplicate: False: only dispatches that made a job; True: only those that made none; None: all.

        Returns:
            The match, the last of several.

        Raises:
            AssertionError: Lists what was dispatched, nearest first, and in what it differs.
        """
        wanted = Wanted(
            _name_of(job),
            payload,
            job_id=job_id,
            delay=delay,
            run_at=run_at,
            within=within,
            priority=priority,
            queue=queue,
            where=where,
            duplicate=duplicate,
        )
        found = [one for one in self._dispatched if not wanted.misses(one)]
        if not found or (times is not None and len(found) != times):
            raise AssertionError(wanted.explain(self._dispatched, len(found), times))
        return found[-1]

    def refute_dispatched(
        self, job: JobDefinition[Any, Any] | str | None = None, payload: Any = ANY, **wanted: Any
    ) -> None:
        """Assert that nothing of the kind was dispatched; arguments as in `assert_dispatched`."""
        asked = Wanted(_name_of(job), payload, **wanted)
        found = [one for one in self._dispatched if not asked.misses(one)]
        if found:
            raise AssertionError(asked.explain(self._dispatched, len(found), 0))

    def clear(self) -> None:
        """Forget what was dispatched and the timeline so far; jobs stay."""
        self._dispatched.clear()
        self._timeline.clear()

    def timeline(self) -> list[TimelineEntry]:
        """Every event so far, in order."""
        return list(self._timeline)

    def assert_no_leftovers(self) -> None:
        """Assert that every job has ended; schedules' next runs do not count."""
        left = self._upcoming(20)
        if left:
            raise AssertionError("jobs were left over:" + "".join(f"\n  {one}" for one in left))

    def _upcoming(self, limit: int) -> list[str]:
        """Jobs that have not ended, next first."""
        lines: list[str] = []
        with self.engine.runtime.lock:
            for queue in self.engine.runtime.core.queues.values():
                for home in (queue.active, queue.wait, queue.prioritized, queue.delayed, queue.waiting_children):
                    for job in home:
                        if job.extra is not None and job.extra.scheduler_id is not None and home is queue.delayed:
                            continue
                        due = (
                            ""
                            if job.due_ms is None
                            else f", due at {datetime.fromtimestamp(job.due_ms / 1000, UTC).isoformat()}"
                        )
                        lines.append(f"{job.name} {job.id!r} in {queue.name!r}: {job.state}{due}")
                        if len(lines) >= limit:
                            return lines
        return lines

    # --- running ------------------------------------------------------------------------------------------------

    async def run_until_idle(
        self, *, queue: str | None = None, limit: int = DRAIN_LIMIT, raise_on_failure: bool = False
    ) -> RunSummary:
        """
        Run until nothing can run any more: what jobs dispatch, retries and delays included, in virtual time.

        Args:
            queue: Only this one; the others keep their jobs.
            limit: Runs at most.
            raise_on_failure: Re-raise the exception of the first job that failed for good, once its state is stored.

        Raises:
            DrainLimitError: The limit was reached; names what would come next.
        """
        self._refuse_record()
        runtime = self._hosted()
        before = (runtime.completed, runtime.failed, runtime.retried)
        self._runs, self._limit, self._first_error = 0, limit, None
        stop_watching = self._watch_failures() if raise_on_failure else None
        try:
            with self._only(queue):
                runtime.resume_fetching()
                while runtime.fetching and not runtime.is_idle():
                    await runtime.wait_change()
                runtime.fetching = False
                await runtime.wait_no_runs()
        finally:
            runtime.fetching = False
            self._limit = None
            if stop_watching is not None:
                stop_watching()
        if self._runs >= limit and not runtime.is_idle():
            raise DrainLimitError(limit, self._upcoming(10))
        if self._first_error is not None:
            raise self._first_error
        return RunSummary(
            completed=runtime.completed - before[0],
            failed=runtime.failed - before[1],
            retried=runtime.retried - before[2],
            remaining=len(self._upcoming(1_000_000)),
        )

    async def run_ready(self) -> None:
        """Run what can run without time going on: ready jobs, and those they make ready."""
        self._refuse_record()
        runtime = self._hosted()
        self._runs, self._limit = 0, DRAIN_LIMIT
        runtime.resume_fetching()
        try:
            await self._let_run()
        finally:
            runtime.fetching = False
            self._limit = None
        if self._runs >= DRAIN_LIMIT:
            raise DrainLimitError(DRAIN_LIMIT, self._upcoming(10))

    async def advance(self, duration: Any) -> None:
        """
        Let time go on by `duration`, and run everything that is due meanwhile, in its order.

        Args:
            duration: "30s", a timedelta, or an int of ms.
        """
        self._refuse_record()
        runtime = self._hosted()
        end = self.clock.monotonic() + parse_ms(duration, option="duration") / 1000
        runtime.resume_fetching()
        try:
            await self._let_run()
            await asyncio.sleep(max(0.0, end - self.clock.monotonic()))
            self.clock.move_to(end)
            runtime.resume_fetching()
            await self._let_run()
        finally:
            runtime.fetching = False

    async def _let_run(self) -> None:
        """Turn the loop until nothing happens any more without time going on."""
        runtime = self.engine.runtime
        quiet = 0
        seen = (-1, -1)
        while quiet < 5:
            await asyncio.sleep(0)
            busy = self.time.busy
            now = (self._runs, len(self._timeline))
            quiet = quiet + 1 if now == seen and not busy else 0
            seen = now
            if busy:
                await asyncio.sleep(0)
        runtime.flush()

    async def run_next(self, queue: str | None = None) -> JobView | None:
        """
        Run one attempt of the job that is next; time does not go on for it.

        Returns:
            The job after its run, None when nothing is ready.
        """
        self._refuse_record()
        runtime = self._hosted()
        with runtime.lock:
            workers = [w for name, w in sorted(runtime.workers.items()) if queue is None or name == queue]
        for worker in workers:
            run = worker.take_one()
            if run is not None:
                await runtime.wait_no_runs()
                return JobView(run.job, worker.queue.name)
        return None

    # --- the same for plain tests -------------------------------------------------------------------------------

    def run_until_idle_sync(
        self, *, queue: str | None = None, limit: int = DRAIN_LIMIT, raise_on_failure: bool = False
    ) -> RunSummary:
        """As `run_until_idle`, in a test that is a plain function."""
        return self._run_own(self.run_until_idle(queue=queue, limit=limit, raise_on_failure=raise_on_failure))

    def advance_sync(self, duration: Any) -> None:
        """As `advance`, in a test that is a plain function."""
        self._run_own(self.advance(duration))

    def run_next_sync(self, queue: str | None = None) -> JobView | None:
        """As `run_next`, in a test that is a plain function."""
        return self._run_own(self.run_next(queue))

    def _run_own(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run on the harness's own loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coro.close()
            raise BlockingCallError("a loop runs in this test; await the call without _sync instead")
        if self._own_loop is None:
            self._own_loop = asyncio.new_event_loop()
        return self._own_loop.run_until_complete(coro)

    # --- faults -------------------------------------------------------------------------------------------------

    def fail_next(
        self, job: JobDefinition[Any, Any] | str, error: BaseException | type[BaseException], *, times: int = 1
    ) -> None:
        """Have the next runs of a job raise `error` instead of calling its handler."""
        self._faults.append(_Fault(_name_of(job) or "", error, times))

    def fail_when(
        self,
        job: JobDefinition[Any, Any] | str,
        predicate: Callable[[Any], bool],
        error: BaseException | type[BaseException],
    ) -> None:
        """Have every run of a job raise `error` whose payload the predicate says yes to."""
        self._faults.append(_Fault(_name_of(job) or "", error, -1, predicate))

    def clear_faults(self) -> None:
        """Let handlers run undisturbed again."""
        self._faults.clear()

    async def crash(self) -> None:
        """
        As if the process had been killed and started again: runs vanish in the middle, and without a snapshot all jobs.

        `jobs.engine` is a new engine afterwards.
        """
        self.crash_sync()

    def crash_sync(self) -> None:
        """As `crash`, in a test that is a plain function."""
        self.engine.vanish()
        self.time.detach()
        self.engine = self._new_engine()

    # --- hosting ------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, mode: Mode) -> Iterator[None]:
        """Another mode for the length of a block."""
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before

    def _refuse_record(self) -> None:
        if self.mode == "record":
            raise InprocJobsError("mode 'record' runs nothing; use jobs.using('manual') around the part that runs jobs")

    def _hosted(self) -> Any:
        """The engine's runtime, hosted on the running loop."""
        loop = asyncio.get_running_loop()
        runtime = self.engine.runtime
        self.engine.refuse_stopped()
        if runtime.loop is not loop:
            if runtime.loop is not None:
                runtime.unhost()
            self.time.attach(loop)
            self.engine.host_for_test(loop)
        return runtime

    @contextmanager
    def _only(self, queue: str | None) -> Iterator[None]:
        """Pause the other queues meanwhile, without an event."""
        core = self.engine.runtime.core
        paused = [q for name, q in core.queues.items() if queue is not None and name != queue and not q.paused]
        for other in paused:
            other.paused = True
        try:
            yield
        finally:
            for other in paused:
                other.paused = False

    def _watch_failures(self) -> Callable[[], None]:
        runtime = self.engine.runtime
        report = runtime.report_failure

        def reporting(
            run: Any, reason: str, stack: str | None, final: bool, error: BaseException | None = None
        ) -> None:
            if final and self._first_error is None:
                self._first_error = error
                runtime.fetching = False
            report(run, reason, stack, final, error)

        runtime.report_failure = reporting  # type: ignore[method-assign]  # one instance, under test
        return lambda: setattr(runtime, "report_failure", report)

    def close(self) -> None:
        """End the test: the engine takes nothing any more, the loop gets its own time back."""
        self.engine.vanish()
        self.time.detach()
        if self._own_loop is not None:
            _close_loop(self._own_loop)
            self._own_loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def harness(**options: Any) -> Harness:
    """A `Harness` as a context manager, for `with` and `async with`; arguments as there."""
    return Harness(**options)


def _name_of(job: JobDefinition[Any, Any] | str | None) -> str | None:
    return job.name if isinstance(job, JobDefinition) else job


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still runs on a loop of ours, and close it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
