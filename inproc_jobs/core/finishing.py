"""How an active job leaves (spec sections 6 and 7)."""

from __future__ import annotations

import math
from typing import Any

from inproc_jobs.core.backoff import BUILTIN_BACKOFFS, NO_RETRY, next_delay_ms, wants_retry
from inproc_jobs.core.fetching import ANY_TOKEN
from inproc_jobs.core.job import ABSOLUTE_DUE, LIFO, WATCHED, Job
from inproc_jobs.core.options import DEFAULT_WORKER, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.retention import RetentionFloor
from inproc_jobs.core.states import (
    ACTIVE,
    COMPLETED,
    FAILED,
    ON_COMPLETE,
    ON_FAIL,
    ON_PUT_BACK,
    ON_RETRY,
    WAITING,
)
from inproc_jobs.errors import (
    JobLockMismatchError,
    JobLockMissingError,
    JobNotInStateError,
)

__all__ = ["ANY_TOKEN", "FinishingFloor"]


class FinishingFloor(RetentionFloor):
    """`complete`, `fail`, and the ways back."""

    def complete(
        self,
        queue: Queue,
        id: str,
        result: bytes,
        now_ms: int,
        token: Any = ANY_TOKEN,
        *,
        worker: WorkerOptions = DEFAULT_WORKER,
        fetch_next: bool = False,
        next_token: Any = None,
    ) -> Job | None:
        """
        The handler has returned.

        Args:
            result: What it returned, as JSON text.
            fetch_next: Also start the next job, as a running worker does; it is locked with `next_token`, or with
                `token` where none is given.

        Returns:
            The next job with `fetch_next`, else None.

        Raises:
            JobNotFoundError, JobLockMissingError, JobLockMismatchError, JobNotInStateError, JobPendingChildrenError,
            JobHasFailedChildrenError: Refused.

        Cost: O(1), plus what retention removes. Source: spec section 6.7.
        """
        job = queue.index.get(id) or self.need(queue, id, "moveToFinished")
        extra = job.extra
        if extra is not None and extra.children is not None:
            self._check_children(job)
        if queue.locks.get(id) is token and not queue.lock_until_ms and not queue.stalled_ids:
            del queue.locks[id]  # `_release_lock` where nothing can be wrong
        else:
            self._release_lock(queue, job, token, "moveToFinished", now_ms)
        if job.state is not ACTIVE:
            self._need_active(job, "moveToFinished")
        job.finished_on = now_ms
        job.result = result
        self._move(queue, job, ON_COMPLETE, COMPLETED)
        if extra is not None:
            self._after_final(queue, job, now_ms, failed=False)
        job.attempts_made += 1
        self._retain(queue, job, now_ms, worker.remove_on_complete)
        if self.listening:
            self.emit(queue, "completed", jobId=id, returnvalue=result, prev="active")
        if job.flags & WATCHED:
            self._end(job)
        if next_token is None:
            next_token = token
        if fetch_next and not self.listening and not worker.metrics_points:
            return self.fetch(queue, now_ms, next_token, worker)
        return self._after_finish(queue, job, now_ms, worker, fetch_next, next_token)

    def fail(
        self,
        queue: Queue,
        id: str,
        reason: str | None,
        stack: str | None,
        now_ms: int,
        token: Any = ANY_TOKEN,
        *,
        unrecoverable: bool = False,
        draw: float = 0.0,
        strategy_delay: float | None = None,
        held: Job | None = None,
        worker: WorkerOptions = DEFAULT_WORKER,
        fetch_next: bool = False,
        next_token: Any = None,
    ) -> Job | None:
        """
        The handler has raised: retry, or fail for good.

        Args:
            reason: Message of the error; None is stored as the text "null", as BullMQ does for odd throws.
            stack: Its stack trace, None if it has none.
            unrecoverable: No retry, whatever attempts are left.
            draw: Uniform number in [0, 1) for the jitter.
            strategy_delay: What a custom backoff strategy answered; used when the backoff's type is not built in.
            held: The record as its worker knows it, where that may be stale; else the stored one.

        Returns:
            The next job with `fetch_next` (an immediate retry fetches none, as in BullMQ), else None.

        Raises:
            JobNotFoundError, JobLockMissingError, JobLockMismatchError, JobNotInStateError: Refused.

        Cost: as `complete`. Source: spec sections 6.2 to 6.4.
        """
        known = held if held is not None else queue.index.get(id)
        delay = None if known is None else self.retry_delay(known, worker, unrecoverable, draw, strategy_delay)
        if delay is None:
            return self._fail_finally(queue, id, reason, stack, now_ms, token, known, worker, fetch_next, next_token)
        if not delay:
            self._retry_now(queue, id, reason, stack, now_ms, token, known)
            return None
        return self._retry_later(queue, id, delay, reason, stack, now_ms, token, known, worker, fetch_next, next_token)

    @staticmethod
    def retry_delay(
        job: Job, worker: WorkerOptions, unrecoverable: bool, draw: float, strategy_delay: float | None
    ) -> float | None:
        """
        What a failure of this job leads to.

        Returns:
            None for no retry, 0 for a retry at once, else ms until the next attempt (negative: due at once, but by way
            of the delayed set). Cost: O(1). Source: spec section 6.2.
        """
        if not wants_retry(
            job.opts, job.attempts_made, job.attempts_started, worker.max_started_attempts, unrecoverable
        ):
            return None
        backoff = job.opts.backoff
        if backoff is None:
            return 0
        if backoff.type in BUILTIN_BACKOFFS:
            delay = next_delay_ms(backoff, job.attempts_made + 1, draw)
        else:
            delay = 0 if strategy_delay is None else strategy_delay
            if backoff.max_delay_ms is not None:
                delay = min(delay, backoff.max_delay_ms)
        if delay == NO_RETRY:
            return None
        return 0 if math.isnan(delay) else delay  # BullMQ retries at once where its arithmetic gives NaN

    def _fail_finally(
        self,
        queue: Queue,
        id: str,
        reason: str | None,
        stack: str | None,
        now_ms: int,
        token: Any,
        held: Job | None,
        worker: WorkerOptions,
        fetch_next: bool,
        next_token: Any,
    ) -> Job | None:
        job = self._take_failed(queue, id, "moveToFinished", reason, stack, now_ms, token, held)
        self._leave(queue, job, ON_FAIL, FAILED)
        job.finished_on = now_ms
        self._enter(queue, job, FAILED)
        self._after_final(queue, job, now_ms, failed=True)
        job.attempts_made += 1
        job.more().deferred_failure = None
        self._retain(queue, job, now_ms, worker.remove_on_fail)
        if self.listening:
            text = "null" if reason is None else reason
            self.emit(queue, "failed", jobId=id, failedReason=text, prev="active")
            if job.attempts_made >= job.opts.attempts:
                self.emit(queue, "retries-exhausted", jobId=id, attemptsMade=job.attempts_made)
        self._end(job)
        return self._after_finish(queue, job, now_ms, worker, fetch_next, token if next_token is None else next_token)

    def _take_failed(
        self,
        queue: Queue,
        id: str,
        script: str,
        reason: str | None,
        stack: str | None,
        now_ms: int,
        token: Any,
        held: Job | None,
    ) -> Job:
        """The job of a failed attempt, unlocked and with the failure noted, which stays if it proves not active."""
        job = self.need(queue, id, script)
        self._release_lock(queue, job, token, script, now_ms)
        self._record_failure(job, reason, stack, held)
        self._need_active(job, script)
        return job

    def _retry_now(
        self, queue: Queue, id: str, reason: str | None, stack: str | None, now_ms: int, token: Any, held: Job | None
    ) -> None:
        """Back to the end of the line at once; what is due by now goes before it."""
        self.promote_due(queue, now_ms)
        job = self._take_failed(queue, id, "retryJob", reason, stack, now_ms, token, held)
        job.attempts_made += 1
        self._place_ready(queue, job, ON_RETRY, job.opts.lifo or job.flags & LIFO != 0)
        if self.listening:
            self.emit(queue, "waiting", jobId=id, prev="active")

    def _retry_later(
        self,
        queue: Queue,
        id: str,
        delay: float,
        reason: str | None,
        stack: str | None,
        now_ms: int,
        token: Any,
        held: Job | None,
        worker: WorkerOptions,
        fetch_next: bool,
        next_token: Any,
    ) -> Job | None:
        """Into the delayed set; a running worker takes its next job in the same call."""
        job = self._take_failed(queue, id, "moveToDelayed", reason, stack, now_ms, token, held)
        job.attempts_made += 1
        job.delay = delay
        job.flags &= ~ABSOLUTE_DUE
        self._place_delayed(queue, job, ON_RETRY, now_ms + max(delay, 0))
        if not fetch_next:
            return None
        return self.fetch(queue, now_ms, token if next_token is None else next_token, worker)

    def move_to_delayed(self, queue: Queue, id: str, delay_ms: float, now_ms: int, token: Any = ANY_TOKEN) -> None:
        """
        Put an active job back until `now_ms + delay_ms`; no attempt is counted.

        Raises:
            JobNotFoundError, JobLockMissingError, JobLockMismatchError, JobNotInStateError: Nothing has changed but a
            released lock, as in BullMQ.

        Cost: O(log n). Source: spec sections 3.3 and 1.2 row 14.
        """
        job = self.need(queue, id, "moveToDelayed")
        self._release_lock(queue, job, token, "moveToDelayed", now_ms)
        self._need_active(job, "moveToDelayed")
        job.delay = max(delay_ms, 0)
        job.flags &= ~ABSOLUTE_DUE
        self._place_delayed(queue, job, ON_PUT_BACK, now_ms + max(delay_ms, 0))

    def move_to_wait(self, queue: Queue, id: str, now_ms: int, token: Any = ANY_TOKEN) -> float:
        """
        Put an active job back so that it is next (with a priority: before its equals); no attempt is counted.

        Returns:
            What is left of the rate window in ms, 0 if there is none.

        Raises:
            JobNotFoundError, JobLockMissingError, JobLockMismatchError: Nothing has changed.

        Cost: O(1), O(log n) with a priority. Source: spec section 1.2 row 15.
        """
        job = self.need(queue, id, "moveJobFromActiveToWait")
        self._release_lock(queue, job, token, "moveJobFromActiveToWait", now_ms)
        if job.state is ACTIVE:
            if job.priority > 0:  # a negative one counts as none here, as in BullMQ
                self._place_prioritized(queue, job, ON_PUT_BACK, counter=0)
            else:
                self._move(queue, job, ON_PUT_BACK, WAITING, front=True)
            self.emit(queue, "waiting", jobId=id, prev="active")
        return max(queue.limiter_until_ms - now_ms, 0)

    # --- the parts of a finish ----------------------------------------------------------------------------------

    def _release_lock(self, queue: Queue, job: Job, token: Any, command: str, now_ms: int) -> None:
        """Check and drop the lock."""
        id = job.id
        if token == ANY_TOKEN:
            # BullMQ leaves the lock until it runs out; one that never does goes with the job's activity.
            if id not in queue.lock_until_ms:
                queue.locks.pop(id, None)
            return
        held = queue.locks.get(id)
        if queue.lock_until_ms:
            until = queue.lock_until_ms.get(id)
            if until is not None and until <= now_ms:
                held = None
        if held is None:
            raise JobLockMissingError(f"Missing lock for job {id}. {command}", id=id)
        if held != token:
            raise JobLockMismatchError(f"Lock mismatch for job {id}. Cmd {command} from active", id=id)
        del queue.locks[id]
        if queue.lock_until_ms:
            queue.lock_until_ms.pop(id, None)
        if queue.stalled_ids:
            queue.stalled_ids.pop(id, None)

    @staticmethod
    def _need_active(job: Job, command: str) -> None:
        if job.state is not ACTIVE:
            raise JobNotInStateError(f"Job {job.id} is not in the active state. {command}", id=job.id)

    @staticmethod
    def _record_failure(job: Job, reason: str | None, stack: str | None, held: Job | None) -> None:
        """Store the reason and the trace; the traces grow from those that the worker knew."""
        extra = job.more()
        extra.failed_reason = "null" if reason is None else reason
        known = extra if held is None else held.extra
        traces = [] if known is None else list(known.stacktrace)
        if stack is not None:
            traces.append(stack)
            limit = job.opts.stack_trace_limit
            if limit is not None:
                traces = traces[-limit:] if limit else []
        extra.stacktrace = traces

    def _after_final(self, queue: Queue, job: Job, now_ms: int, *, failed: bool) -> None:
        """What hangs on the end of a job: its deduplication key, the add parked behind it, its parent."""
        extra = job.extra
        if extra is None:
            return
        if extra.deduplication_id is not None:
            self._release_key(queue, job, extra.deduplication_id)
            self._enqueue_parked(queue, extra.deduplication_id, now_ms)
        if extra.parent is not None:
            if failed:
                self._child_failed(queue, job, extra.failed_reason or "", now_ms)
            else:
                self._child_completed(queue, job, now_ms)

    def _after_finish(
        self, queue: Queue, job: Job, now_ms: int, worker: WorkerOptions, fetch_next: bool, token: Any
    ) -> Job | None:
        """Count it, start the next one if asked to, and say when there is nothing left."""
        if worker.metrics_points:
            outcome = "completed" if job.result is not None else "failed"
            self._collect_metrics(queue.metrics[outcome], now_ms, worker.metrics_points)
        if fetch_next:
            following = self.fetch(queue, now_ms, token, worker)
            if following is not None or not self.listening or self._has_reason_to_wait(queue, now_ms, worker):
                return following
        if self.listening and not (queue.wait or queue.active or queue.prioritized):
            self.emit(queue, "drained")
        return None

    def _has_reason_to_wait(self, queue: Queue, now_ms: int, worker: WorkerOptions) -> bool:
        """Whether a fetch that found no job had more to say than "nothing there": then the queue is not drained."""
        return bool(queue.delayed) or self.is_held_back(queue) or bool(self.limited_until_ms(queue, now_ms, worker))
