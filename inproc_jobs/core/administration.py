"""Changes to a whole queue: pause, limits, stalled jobs, and everything that touches many jobs (spec section 10)."""

from __future__ import annotations

from itertools import islice, takewhile

from inproc_jobs.core.changing import ChangingFloor
from inproc_jobs.core.containers import FinishedSet
from inproc_jobs.core.job import ABSOLUTE_DUE, Job
from inproc_jobs.core.options import DEFAULT_WORKER, WorkerOptions
from inproc_jobs.core.queue import Metrics, Queue
from inproc_jobs.core.states import JobState, Trigger
from inproc_jobs.errors import JobNotInStateError, QueueBusyError

__all__ = ["BLOCKED_RATE", "AdministrationFloor"]

BLOCKED_RATE = 9_007_199_254_740_991
"""The count with which `rate_limit` closes a window: more than any limit."""


class AdministrationFloor(ChangingFloor):
    """What an operator does to a queue."""

    # --- pause and limits ---------------------------------------------------------------------------------------

    def pause(self, queue: Queue) -> None:
        """Start no job until `resume`; active ones go on, and what is due is still promoted."""
        queue.paused = True
        self.emit(queue, "paused")

    def resume(self, queue: Queue, now_ms: int = 0) -> None:
        """End a pause."""
        queue.paused = False
        self.emit(queue, "resumed")

    def rate_limit(self, queue: Queue, ms: float, now_ms: int) -> None:
        """Let workers that have a limiter, or a queue that has one, start nothing for so long. Source: spec 8.2."""
        queue.limiter_count, queue.limiter_until_ms = BLOCKED_RATE, now_ms + ms

    def rate_limit_ttl(self, queue: Queue, now_ms: int, limit: int | None = None) -> float:
        """
        What is left of the rate window in ms.

        Args:
            limit: Answer 0 unless so many were started; None takes the queue's own limit, and where there is none
                answers the bare window, -2 if none is open.
        """
        if not limit:
            limit = queue.max
        open_until = queue.limiter_until_ms if queue.limiter_until_ms > now_ms else 0
        if limit is None:
            return open_until - now_ms if open_until else -2
        return max(self._window_end(queue, limit, now_ms) - now_ms, 0)

    def remove_rate_limit(self, queue: Queue, now_ms: int) -> bool:
        """Close the rate window. Returns whether one was open."""
        was_open = queue.limiter_until_ms > now_ms
        queue.limiter_count, queue.limiter_until_ms = 0, 0
        return was_open

    # --- stalled jobs -------------------------------------------------------------------------------------------

    def stalled_check(self, queue: Queue, now_ms: int, worker: WorkerOptions = DEFAULT_WORKER) -> list[str]:
        """
        Put jobs back whose lock has run out since the last check, and mark those that are active now for the next.

        Nothing happens before the interval of the last check is over. A job that stalls too often is marked to be
        failed at its next turn; iterations of a living scheduler never are.

        Returns:
            Ids of the jobs that were put back.

        Cost: O(active). Source: spec section 9.4.
        """
        if queue.stalled_check_until_ms > now_ms:
            return []
        queue.stalled_check_until_ms = now_ms + worker.stalled_interval_ms
        marked, queue.stalled_ids = queue.stalled_ids, {}
        stalled = [
            id
            for id in marked
            if not self.is_locked(queue, id, now_ms) and self._recover(queue, queue.index.get(id), worker)
        ]
        queue.stalled_ids = dict.fromkeys(_set_order([job.id for job in reversed(queue.active)]))
        return stalled

    def _recover(self, queue: Queue, job: Job | None, worker: WorkerOptions) -> bool:
        """Put a stalled job next in line."""
        if job is None or job.state is not JobState.ACTIVE:
            return False
        queue.locks.pop(job.id, None)
        queue.lock_until_ms.pop(job.id, None)
        extra = job.more()
        extra.stalled_count += 1
        if extra.stalled_count > worker.max_stalled_count and extra.scheduler_id not in queue.schedulers:
            extra.deferred_failure = "job stalled more than allowable limit"
        self._move(queue, job, Trigger.STALL, JobState.WAITING, front=True)
        if self.listening:
            self.emit(queue, "waiting", jobId=job.id, prev="active")
            self.emit(queue, "stalled", jobId=job.id)
        return True

    # --- many jobs ----------------------------------------------------------------------------------------------

    def promote_jobs(self, queue: Queue, count: int = 1000, now_ms: int = 0) -> int:
        """
        Make ready what is delayed, in due order; all go to the wait list, whatever their priority, as in BullMQ.

        Args:
            count: Size of a batch: it does not bound the total. Kept for the order of events only.

        Returns:
            How many were promoted.

        Cost: O(n log n). Source: spec section 3.3.
        """
        return self._all_to_wait(queue, list(queue.delayed), Trigger.PROMOTE, "delayed")

    def retry_jobs(
        self, queue: Queue, state: str = "failed", count: int = 1000, timestamp: float | None = None, now_ms: int = 0
    ) -> int:
        """
        Run finished jobs again, oldest first; all go to the wait list, whatever their priority, as in BullMQ.

        Args:
            state: "failed" or "completed".
            count: As in `promote_jobs`.
            timestamp: Only those that finished up to then; None is now.

        Returns:
            How many will run again.

        Cost: O(n log n). Source: spec section 10.6.
        """
        finished = _finished(queue, state)
        limit = now_ms if timestamp is None else timestamp
        jobs = [job for job in finished if job.finished_on is not None and job.finished_on <= limit]
        for job in jobs:
            self._leave_history(queue, job)
        self._all_to_wait(queue, jobs, Trigger.REPROCESS, state)
        for job in jobs:
            self._clear_outcome(job, state)
            self._back_to_parent(queue, job, state)
        return len(jobs)

    def _all_to_wait(self, queue: Queue, jobs: list[Job], trigger: Trigger, state: str) -> int:
        for job in jobs:
            job.flags &= ~ABSOLUTE_DUE
            self._move(queue, job, trigger, JobState.WAITING)
            if self.listening:
                self.emit(queue, "waiting", jobId=job.id, prev=state)
        return len(jobs)

    def drain(self, queue: Queue, now_ms: int = 0, *, delayed: bool = False, limit: int | None = None) -> int:
        """
        Remove what has not started, without events: waiting and prioritized jobs, with `delayed` those too.

        The current iterations of schedulers stay.

        Args:
            limit: Remove at most so many, so that a caller can work in slices; None removes all at once.

        Returns:
            How many went.

        Cost: O(log n) per job. Source: spec section 10.2.
        """
        # BullMQ reads the list from its entry end; parents in other queues go on in the order in which children go.
        containers = (reversed(queue.wait), *((queue.delayed,) if delayed else ()), queue.prioritized)
        doomed = (job for home in containers for job in home if not self.is_current_iteration(queue, job))
        jobs = list(doomed if limit is None else islice(doomed, limit))
        for job in jobs:
            self._destroy(queue, job)
        return len(jobs)

    def clean(self, queue: Queue, grace_ms: float, limit: int, type: str = "completed", now_ms: int = 0) -> list[str]:
        """
        Remove jobs of one state that are older than a period of grace, without `removed` events.

        What "older" means depends on the state, see spec section 10.3; locked jobs and current iterations stay.

        Args:
            limit: How many at most; 0 is all.
            type: A state; "wait" stands for "waiting". An unknown word cleans nothing.

        Returns:
            The ids, in the order in which they went.

        Cost: O(n). Source: spec section 10.3.
        """
        cleaned: list[str] = []
        batch = min(10_000, limit or 10_000)
        while not limit or len(cleaned) < limit:
            ids = self._clean_batch(queue, now_ms - grace_ms, batch, "waiting" if type == "wait" else type, now_ms)
            self.emit(queue, "cleaned", count=len(ids))
            cleaned += ids
            if len(ids) < batch:
                break
        return cleaned

    def _clean_batch(self, queue: Queue, cutoff_ms: float, limit: int, type: str, now_ms: int) -> list[str]:
        ids = []
        for job in self._cleanable(queue, cutoff_ms, limit, type, now_ms):
            ids.append(job.id)
            # A parent may have gone with its last child, which stood before it; it was cleaned all the same.
            if job.state is not JobState.REMOVED:
                self._destroy(queue, job)
        return ids

    def _cleanable(self, queue: Queue, cutoff_ms: float, limit: int, type: str, now_ms: int) -> list[Job]:
        """The first `limit` candidates, less those that are too young, locked, or a scheduler's."""
        if type in {JobState.COMPLETED, JobState.FAILED}:
            old = (job for job in _finished(queue, type) if (job.finished_on or 0) <= cutoff_ms)
            return list(islice(old, limit))
        if type == JobState.WAITING_CHILDREN:
            return list(islice((job for job in queue.waiting_children if job.order <= cutoff_ms), limit))
        if type in {JobState.WAITING, JobState.ACTIVE}:
            lane = queue.wait if type == JobState.WAITING else queue.active
            # BullMQ reads the window nearest the exit end from its entry side.
            window = list(islice(lane, limit))[::-1]
        elif type in {JobState.DELAYED, JobState.PRIORITIZED}:
            home = queue.delayed if type == JobState.DELAYED else queue.prioritized
            window = list(islice((job for job in home if job.order >= 0), limit))
        else:
            return []
        return [
            job
            for job in window
            if _is_older(job, type, cutoff_ms)
            and not (type == JobState.ACTIVE and self.is_locked(queue, job.id, now_ms))
            and not self.is_current_iteration(queue, job)
        ]

    def obliterate(
        self, queue: Queue, now_ms: int = 0, *, force: bool = False, count: int = 1000, limit: int | None = None
    ) -> bool:
        """
        Remove the queue with everything in it; ids start at 1 again. Parents that wait for children, the rate window
        and deduplication keys without an owner survive, as in BullMQ.

        Args:
            force: Also remove active jobs.
            count: Jobs per round in BullMQ; without meaning here.
            limit: Remove so many jobs at most, so that a caller can work in slices; None is all at once.

        Returns:
            Whether all is done; False only with a limit.

        Raises:
            QueueBusyError: It has active jobs. It is paused now, nothing else has changed.

        Cost: O(n log n). Source: spec section 10.4.
        """
        if limit is None or not queue.paused:
            self.pause(queue)
        if queue.active and not force:
            raise QueueBusyError("Cannot obliterate queue with active jobs")
        for job in queue.active:
            queue.locks.pop(job.id, None)
            queue.lock_until_ms.pop(job.id, None)
        for state in _OBLITERATED:
            if state is JobState.COMPLETED:
                queue.schedulers.clear()
            home = queue.containers[state]
            is_list = state in {JobState.ACTIVE, JobState.WAITING}  # which BullMQ reads from the entry end
            jobs = list(islice(reversed(home) if is_list else iter(home), limit))
            for job in jobs:
                if job.state is not JobState.REMOVED:
                    self._destroy(queue, job)
            if limit is not None:
                limit -= len(jobs)
                if limit <= 0:
                    return False
        queue.counter, queue.priority_counter = 0, None
        queue.stalled_ids, queue.stalled_check_until_ms = {}, 0
        queue.paused, queue.concurrency, queue.max, queue.duration = False, None, None, None
        queue.metrics = {"completed": Metrics(), "failed": Metrics()}
        return True


_OBLITERATED = (
    JobState.ACTIVE,
    JobState.DELAYED,
    JobState.COMPLETED,
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.FAILED,
)
"""In BullMQ's order; schedulers go before the completed ones."""


def _finished(queue: Queue, state: str) -> FinishedSet:
    if state == JobState.COMPLETED:
        return queue.completed
    if state == JobState.FAILED:
        return queue.failed
    raise JobNotInStateError(f"jobs in state {state!r} are not finished; use 'completed' or 'failed'")


def _is_older(job: Job, type: str, cutoff_ms: float) -> bool:
    """Compared as decimal text, as BullMQ does: right for all moments of this century."""
    if type == JobState.PRIORITIZED:
        moment: float = job.timestamp
    elif type == JobState.DELAYED:
        moment = job.timestamp if job.processed_on is None else job.processed_on
    else:
        moments = (job.finished_on, job.processed_on, job.timestamp)
        moment = next(moment for moment in moments if moment is not None)
    return f"{moment:.14g}" <= f"{cutoff_ms:.14g}"


def _set_order(ids: list[str]) -> list[str]:
    """
    The order in which Redis (from 7.2 on) and Valkey list a set to which these were added in this order.

    As long as all are numbers they are kept sorted; from the first text on, which is the form of a list, they are not,
    nor once it has gone again.
    """
    numbers = list(takewhile(lambda one: one.isascii() and one.isdigit(), ids))
    return [*sorted(numbers, key=int), *ids[len(numbers) :]]
