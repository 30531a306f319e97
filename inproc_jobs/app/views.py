"""What readers see of a job: a copy of its record at one moment."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from inproc_jobs.core.durations import to_datetime
from inproc_jobs.core.job import Job
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.core.states import JobState

if TYPE_CHECKING:
    from inproc_jobs.app.engine import Engine

__all__ = ["FailedJob", "JobView"]


class JobView:
    """
    A job at the moment it was read. Later changes do not show; `payload`, `result` and `progress` are decoded anew at
    every access, so changing them changes nothing.

    Attributes:
        id, name, queue: Which job.
        state: Its state then.
        attempts_made: Attempts that have ended.
        attempts_started: Attempts that have begun.
        failed_reason: Message of the last failed attempt, None if none failed; stays after a later success.
        stacktrace: Stack traces of failed attempts, oldest first.
        created_at, processed_at, finished_at: UTC datetimes; None if not (yet).
        due_at: When a delayed job is due, else None.
        delay_ms: Current delay; 0 once it is over.
        priority: 0 is none.
    """

    __slots__ = (
        "_data",
        "_progress",
        "_result",
        "attempts_made",
        "attempts_started",
        "created_at",
        "delay_ms",
        "due_at",
        "failed_reason",
        "finished_at",
        "id",
        "name",
        "priority",
        "processed_at",
        "queue",
        "stacktrace",
        "state",
    )

    def __init__(self, job: Job, queue: str) -> None:
        extra = job.extra
        self.id: str = job.id
        self.name: str = job.name
        self.queue: str = queue
        self.state: JobState = job.state
        self.attempts_made: int = job.attempts_made
        self.attempts_started: int = job.attempts_started
        self.failed_reason: str | None = extra.failed_reason if extra is not None else None
        self.stacktrace: tuple[str, ...] = tuple(extra.stacktrace) if extra is not None else ()
        self.created_at: datetime = _moment(job.timestamp)
        self.processed_at: datetime | None = to_datetime(job.processed_on)
        self.finished_at: datetime | None = to_datetime(job.finished_on)
        self.due_at: datetime | None = to_datetime(job.due_ms)
        self.delay_ms: int = int(job.delay)
        self.priority: int = job.priority
        self._data = job.data
        self._result = job.result
        self._progress = extra.progress if extra is not None else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.name} in {self.queue!r}: {self.state}>"

    @property
    def payload(self) -> Any:
        """The payload as a JSON value, whatever the handler's type."""
        return decode_json(self._data)

    @property
    def result(self) -> Any:
        """What the handler returned, None before the end."""
        return None if self._result is None else decode_json(self._result)

    @property
    def progress(self) -> Any:
        """What the handler reported last, 0 if nothing (as on BullMQ)."""
        return 0 if self._progress is None else decode_json(self._progress)


def _moment(ms: int) -> datetime:
    moment = to_datetime(ms)
    assert moment is not None  # a job always has a creation time
    return moment


class FailedJob(JobView):
    """A job that has failed for good, and can be retried."""

    __slots__ = ("_engine",)

    def __init__(self, job: Job, queue: str, engine: Engine) -> None:
        super().__init__(job, queue)
        self._engine = engine

    async def retry(self) -> None:
        """
        Run it again: one more attempt, whatever `attempts` says, as on BullMQ.

        Raises:
            FailedJobNotFoundError: It is not among the failed jobs any more.
        """
        await self._engine.retry_failed_job(self.id, self.queue)

    def retry_sync(self) -> None:
        """As `retry`, from any thread."""
        self._engine.retry_failed_job_sync(self.id, self.queue)
