"""What a running handler sees of its job, and how code below it finds out which run it belongs to."""

from __future__ import annotations

from collections.abc import Generator
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

from inproc_jobs.core.durations import to_datetime
from inproc_jobs.core.json_values import decode_json

if TYPE_CHECKING:
    from inproc_jobs.runtime.run import Run

__all__ = ["CURRENT_RUN", "JobContext", "bind_queue", "bind_run"]

CURRENT_RUN: ContextVar[Run | None] = ContextVar("inproc_jobs_run", default=None)
"""The run whose handler is executing this code, in its threads too."""

# structlog merges every context variable whose name has this prefix into a line (`merge_contextvars`). Setting our
# own variables of such names costs a fraction of `bind_contextvars`, which would be the dearest part of a short run.
_LOG_JOB_ID: ContextVar[Any] = ContextVar("structlog_job_id")
_LOG_JOB_NAME: ContextVar[Any] = ContextVar("structlog_job_name")
_LOG_QUEUE: ContextVar[Any] = ContextVar("structlog_queue")
_LOG_ATTEMPT: ContextVar[Any] = ContextVar("structlog_attempt")


def bind_queue(queue: str, name: str) -> None:
    """Set what all runs of one job name in one queue share; done once, in the context that their own are copied from."""
    _LOG_QUEUE.set(queue)
    _LOG_JOB_NAME.set(name)
    _LOG_ATTEMPT.set(1)


def bind_run(run: Run) -> None:
    """Set what is this run's own, inside its context."""
    CURRENT_RUN.set(run)
    _LOG_JOB_ID.set(run.job.id)
    if run.attempt != 1:
        _LOG_ATTEMPT.set(run.attempt)
    extra = run.job.extra
    if extra is not None and extra.context is not None:
        # What `Engine(context_vars=...)` had captured at dispatch; after a restore there is nothing to set.
        for var in run.worker.runtime.context_vars:
            if var.name in extra.context:
                var.set(extra.context[var.name])


class _Done:
    """An awaitable that is done already, so that `ctx.log(...)` works with and without `await`."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield  # makes this a generator


_DONE = _Done()


class JobContext:
    """
    The second argument of a handler: its job, this attempt, and what the handler can tell about it.

    Attributes:
        id, name, queue: Which job.
        attempt: Number of this attempt, 1 for the first (BullMQ: attemptsMade + 1).
        max_attempts: How many there may be.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"JobContext(id={self.id!r}, name={self.name!r}, queue={self.queue!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """Id of the job."""
        return self._run.job.id

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._run.job.name

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self._run.queue_name

    @property
    def attempt(self) -> int:
        """Number of this attempt, 1 for the first."""
        return self._run.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there may be, at least 1."""
        return max(1, self._run.job.opts.attempts)

    @property
    def scheduled_for(self) -> datetime:
        """When this attempt was due, UTC: the due time of a delay or retry, else the moment of dispatch."""
        due = to_datetime(self._run.due_ms)
        assert due is not None  # a run always has a due time
        return due

    @property
    def late_by_ms(self) -> int:
        """How long after `scheduled_for` the attempt started, ms, never below 0."""
        return max(0, (self._run.job.processed_on or 0) - self._run.due_ms)

    @property
    def cancelled(self) -> bool:
        """
        Whether this run should end: its timeout is over, or the engine is being stopped and out of patience.

        Plain functions cannot be interrupted, so long ones look here now and then.
        """
        return self._run.cancelled

    def progress(self, value: Any) -> _Done:
        """
        Store and publish progress: any JSON value. May be awaited, need not be.

        Raises:
            InvalidPayloadError: Not JSON; nothing has changed.

        Cost: O(size of value).
        """
        self._run.set_progress(value)
        return _DONE

    def log(self, line: str) -> _Done:
        """Append a line to the job's own log (`QueueView.logs`), trimmed to `keep_logs`. May be awaited, need not be."""
        self._run.add_log(line)
        return _DONE

    def children_values(self) -> dict[str, Any]:
        """Results of this job's children in a flow that have completed, by their full keys `bull:queue:id`."""
        return {key: decode_json(data) for key, data in self._run.children().processed.items()}

    def ignored_failures(self) -> dict[str, str]:
        """Reasons of this job's children in a flow whose failure was ignored, by their full keys."""
        return dict(self._run.children().ignored)

    def update_payload(self, value: Any) -> _Done:
        """
        Replace the payload that later attempts and readers see. May be awaited, need not be.

        Raises:
            InvalidPayloadError: Not JSON, or not of the handler's payload type; nothing has changed.
        """
        self._run.update_payload(value)
        return _DONE
