"""What a dispatch answers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from inproc_jobs.core.durations import parse_seconds
from inproc_jobs.core.job import Job
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.core.states import FINISHED_STATES, REMOVED, JobState
from inproc_jobs.errors import JobFailedError, JobRemovedError, WouldDeadlockError
from inproc_jobs.runtime.context import CURRENT_RUN

if TYPE_CHECKING:
    from inproc_jobs.app.dispatching import DispatchingEngine

__all__ = ["DispatchedJob"]

R = TypeVar("R")


class DispatchedJob(msgspec.Struct, Generic[R], frozen=True, eq=False, gc=False):
    """
    The receipt of a dispatch: it describes the stored job, never the arguments that were ignored.

    It is bound to this run of the job, not to the id: `result` still answers after the job was removed, or after its id
    was taken by a later one.

    Attributes:
        id, name, queue: The stored job.
        duplicate: True when the id (or the deduplication id) was taken and nothing was added.
        state: Its state at the moment of the dispatch.
    """

    id: str
    name: str
    queue: str
    duplicate: bool
    state: JobState
    _job: Job | None
    _engine: DispatchingEngine

    @property
    def created(self) -> bool:
        """True when this dispatch made the job."""
        return not self.duplicate

    def __repr__(self) -> str:
        kind = "duplicate" if self.duplicate else "created"
        return f"<DispatchedJob {self.id!r} {self.name} in {self.queue!r}: {kind}, {self.state}>"

    async def result(self, timeout: float | None = None) -> R:
        """
        Wait for the end of the job.

        Args:
            timeout: Seconds, None for no limit.

        Returns:
            What the handler returned, decoded anew for each call.

        Raises:
            JobFailedError: It failed for good.
            JobRemovedError: It was removed before it ended.
            EngineStoppedError: The engine was stopped before it ended.
            TimeoutError: The time is over; the job is not touched.
            WouldDeadlockError: Called by a handler, and every slot that could run the job waits like this one.
        """
        seconds = parse_seconds(timeout, option="timeout")
        job = self._need_job()
        while (future := self._begin_waiting(job, seconds)) is not None:
            try:
                await self._engine.wait_end(future, seconds)
            finally:
                self._done_waiting(job, future)
        return self._outcome(job)

    def result_sync(self, timeout: float | None = None) -> R:
        """
        As `result`, for any thread.

        Raises:
            BlockingCallError: A loop runs in this thread, which this call would block; `await result()` instead.
        """
        seconds = parse_seconds(timeout, option="timeout")
        self._engine.refuse_in_loop("result_sync", "await dispatched.result()")
        job = self._need_job()
        while (future := self._begin_waiting(job, seconds)) is not None:
            try:
                self._engine.wait_end_sync(future, seconds)
            finally:
                self._done_waiting(job, future)
        return self._outcome(job)

    def _need_job(self) -> Job:
        if self._job is None:
            # A deduplication key may outlive its job, as on BullMQ; there is nothing left to wait for.
            raise JobRemovedError(self.id, self.name, self.queue)
        return self._job

    def _begin_waiting(self, job: Job, seconds: float | None) -> Future[Job] | None:
        """A future to wait for, or None when the job has ended."""
        if job.state in FINISHED_STATES or job.state is REMOVED:
            return None
        self._engine.refuse_stopped()
        self._engine.refuse_dead_loop()
        runtime = self._engine.runtime
        run = CURRENT_RUN.get()
        future = runtime.watch(job)
        if future is not None and run is not None and seconds is None and run.worker.runtime is runtime:
            with runtime.lock:
                run.waits_for = (*run.waits_for, job)
                possible = runtime.can_end(job)
            if not possible:
                self._done_waiting(job, future)
                raise WouldDeadlockError(
                    f"job {run.job.id!r} awaits job {self.id!r}, but every slot of queue {self.queue!r} that could run it "
                    "waits alike; raise its concurrency, use another queue, or do not await inside a handler"
                )
        return future

    def _done_waiting(self, job: Job, future: Future[Job]) -> None:
        self._engine.runtime.unwatch(job, future)
        run = CURRENT_RUN.get()
        if run is not None:
            run.waits_for = tuple(other for other in run.waits_for if other is not job)

    def _outcome(self, job: Job) -> R:
        # A record that has left keeps how it ended; one that was removed before its end has no end.
        if job.finished_on is None:
            raise JobRemovedError(self.id, self.name, self.queue)
        if job.result is not None:
            return cast(R, decode_json(job.result))
        extra = job.extra
        reason: Any = extra.failed_reason if extra is not None else None
        raise JobFailedError(
            self.id, self.name, self.queue, reason or "", tuple(extra.stacktrace) if extra is not None else ()
        )
