"""How a worker gets its next job (spec section 8.1)."""

from __future__ import annotations

from typing import Any, Final

from inproc_jobs.core.job import DUE_BITS, HELD, OLD_MARKER, PARKED, Job
from inproc_jobs.core.options import DEFAULT_WORKER, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import ACTIVE, ON_FETCH, REMOVED
from inproc_jobs.core.trees import TreesFloor

__all__ = ["ANY_TOKEN", "FetchingFloor"]

ANY_TOKEN: Final = "0"
"""The token that skips the lock check and locks nothing, as in BullMQ."""


class FetchingFloor(TreesFloor):
    """`fetch`, the limits that hold it back, and when to try again."""

    def fetch(self, queue: Queue, now_ms: int, token: Any, worker: WorkerOptions = DEFAULT_WORKER) -> Job | None:
        """
        Make ready what is due, then start the next job if pause and limits allow one.

        Args:
            token: Locks the job; whoever ends it must show the same.

        Returns:
            The job, now active, or None.

        Cost: O(1) per promoted or waiting job, O(log n) for a prioritized one. Source: spec section 8.1.
        """
        if queue.delayed.size:
            self.promote_due(queue, now_ms)
        limit = None if queue.max is None and worker.limiter is None else _limit_of(queue, worker)
        if limit is not None and self._window_end(queue, limit, now_ms):
            return None
        if queue.paused or (queue.concurrency is not None and len(queue.active) >= queue.concurrency):
            return None
        job = queue.wait.head()
        if job is not None and job.flags & OLD_MARKER:
            job = self._skip_marker(queue)
        if job is None:
            job = queue.prioritized.head()
            if job is None:
                queue.priority_counter = None
                return None
        if queue.held or queue.unhandled:
            job = self._first_free(queue)
            if job is None:
                return None
        if limit is not None and (job.extra is None or job.extra.deferred_failure is None):
            self._count_start(queue, worker, now_ms)
        return self._activate(queue, job, now_ms, token, worker)

    @staticmethod
    def _first_free(queue: Queue) -> Job | None:
        """
        The next job that no store has to confirm first, and that somebody can run.

        Cost: O(held), and O(parked) among those with a priority.
        """
        if queue.unhandled:
            queue.wait.set_aside(PARKED)
        lanes = (queue.wait.in_line(), queue.prioritized)
        return next((job for lane in lanes for job in lane if not job.flags & (HELD | PARKED)), None)

    @staticmethod
    def has_runnable(queue: Queue) -> bool:
        """Whether a job is ready that somebody can run, now or once it is stored. Cost: O(1), O(parked) if there are."""
        if not queue.unhandled:
            return queue.ready_count > 0
        return any(not job.flags & PARKED for lane in (queue.wait, queue.prioritized) for job in lane)

    def _activate(self, queue: Queue, job: Job, now_ms: int, token: Any, worker: WorkerOptions) -> Job:
        """Take a ready job and lock it."""
        self._move(queue, job, ON_FETCH, ACTIVE)
        if token != ANY_TOKEN:
            queue.locks[job.id] = token
            if worker.lock_ms is not None:
                queue.lock_until_ms[job.id] = now_ms + worker.lock_ms
        if self.listening:
            self.emit(queue, "active", jobId=job.id, prev="waiting")
        job.processed_on = now_ms
        job.attempts_started += 1
        if worker.name is not None:
            job.more().worker_name = worker.name
        return job

    def _skip_marker(self, queue: Queue) -> Job | None:
        """
        Throw away the job at the head, whose id looks like a marker of old versions, and look at the next.

        Its record stays, in no state, as in BullMQ: its id is taken until it is removed.
        """
        self._unlist_marker(queue)
        return queue.wait.head()

    @staticmethod
    def _unlist_marker(queue: Queue) -> None:
        marker = queue.wait.head()
        if marker is not None and marker.flags & OLD_MARKER:
            queue.wait.discard(marker)
            marker.state = REMOVED

    # --- limits -------------------------------------------------------------------------------------------------

    @staticmethod
    def is_held_back(queue: Queue) -> bool:
        """Whether the queue is paused, or has as many active jobs as its own concurrency allows."""
        return queue.paused or (queue.concurrency is not None and len(queue.active) >= queue.concurrency)

    def limited_until_ms(self, queue: Queue, now_ms: int, worker: WorkerOptions = DEFAULT_WORKER) -> float:
        """End of the rate window if it is used up for this worker, else 0. Cost: O(1)."""
        limit = _limit_of(queue, worker)
        return self._window_end(queue, limit, now_ms) if limit is not None else 0

    @staticmethod
    def _window_end(queue: Queue, limit: int, now_ms: int) -> float:
        """End of the rate window when it is used up, else 0. A window that is over is cleared."""
        if queue.limiter_until_ms and queue.limiter_until_ms <= now_ms:
            queue.limiter_count, queue.limiter_until_ms = 0, 0
        return queue.limiter_until_ms if queue.limiter_until_ms and queue.limiter_count >= limit else 0

    def _count_start(self, queue: Queue, worker: WorkerOptions, now_ms: int) -> None:
        """Count one start in the window; the first one opens it. The worker's duration beats the queue's."""
        queue.limiter_count += 1
        if queue.limiter_count == 1:
            duration = worker.limiter.duration_ms if worker.limiter else queue.duration
            queue.limiter_until_ms = now_ms + (duration or 0)

    def next_wake_ms(self, queue: Queue, now_ms: int, worker: WorkerOptions = DEFAULT_WORKER) -> float | None:
        """
        When a fetch that just answered None is worth repeating although nothing else happens.

        Returns:
            Epoch ms (the next due time, or the end of the rate window if jobs are ready), or None for never.

        Cost: O(1).
        """
        head = queue.delayed.head()
        wake: float | None = head.order >> DUE_BITS if head is not None else None
        if queue.ready_count and not queue.paused:
            until = self.limited_until_ms(queue, now_ms, worker)
            if until and (wake is None or until < wake):
                wake = until
        return wake


def _limit_of(queue: Queue, worker: WorkerOptions) -> int | None:
    """Starts per window: the queue's own limit beats the worker's; None is no limit."""
    if queue.max is not None:
        return queue.max
    return worker.limiter.max if worker.limiter is not None else None
