"""Putting a queue together again from what a store has kept."""

from __future__ import annotations

from collections.abc import Callable

from inproc_jobs.core.driving import DrivingFloor
from inproc_jobs.core.job import DUE_BITS, IN_HISTORY, OLD_MARKER, PARKED, UNREADABLE, Job
from inproc_jobs.core.options import DEFAULT_OPTIONS, DEFAULT_WORKER, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import COMPLETED, DELAYED, FAILED, JobState, Trigger

__all__ = ["RestoringFloor"]


class RestoringFloor(DrivingFloor):
    """
    Commands of whoever loads a snapshot, before anything else happens to the queue.

    Attributes:
        has_handler: Whether somebody has defined a name; whoever runs the jobs says so. Asked for jobs of a store only.
    """

    has_handler: Callable[[str], bool] = staticmethod(lambda name: True)

    def restore_job(self, queue: Queue, job: Job, state: JobState, score: float, tie: int = 0) -> None:
        """
        Take a record in, in the state in which it was written; the caller keeps the order of lists.

        Args:
            score: delayed: due ms; prioritized: priority << 32 | counter; waiting-children: ms it entered.
            tie: Order among delayed jobs of one millisecond.

        Raises:
            ValueError: There is a job of that id already, or the score is no number. Nothing has changed.

        Cost: O(log n). No event is emitted: nothing has happened to the job.
        """
        if job.id in queue.index:
            raise ValueError(f"job {job.id!r} is in queue {queue.name!r} already")
        # A score that is no number is refused here, before anything has changed.
        order = int(score * (1 << DUE_BITS)) + tie if state is DELAYED else int(score)
        self._leave(queue, job, Trigger.RESTORE, state)
        queue.index[job.id] = job
        if job.id.startswith("0:"):
            job.flags |= OLD_MARKER
        if not self.has_handler(job.name):
            job.flags |= PARKED
            queue.unhandled.setdefault(job.name, {})[job] = None
        if state is DELAYED:
            queue.sequence = max(queue.sequence, tie)
        if state not in {COMPLETED, FAILED}:
            job.order = order
        self._enter(queue, job, state)
        if state in {COMPLETED, FAILED} and queue.history is not None and self._frees_its_id(job):
            job.flags |= IN_HISTORY
            queue.past[state].add(job)

    @staticmethod
    def keep_unreadable(queue: Queue, id: str, why: str) -> None:
        """
        A store has a job that cannot be read: its id is taken, nothing else is known of it. Removing it here removes it
        there; until then the store keeps it as it is, for a version or a hand that can mend it.

        Cost: O(1).
        """
        if id in queue.index:
            return
        job = Job(id, "(unreadable)", b"null", DEFAULT_OPTIONS, 0, UNREADABLE)
        job.more().failed_reason = why
        queue.index[id] = job
        queue.unreadable[id] = why

    def finish_restore(self, queue: Queue, now_ms: int, worker: WorkerOptions = DEFAULT_WORKER) -> list[str]:
        """
        All records are in: what was active has stalled, keys of nobody go, the history gets its bound.

        Returns:
            Ids of the jobs that were active; one that has stalled too often is failed at its next turn.

        Cost: O(active + keys). Source: spec section 9.4, as if both checks had been made.
        """
        # The newest first: each goes in front, so the oldest ends up next.
        stalled = [job.id for job in reversed(list(queue.active)) if self._recover(queue, job, worker)]
        for id, key in list(queue.deduplication.items()):
            # Without a lifetime nobody would ever free it (case C32); with one it may outlive its job, as on BullMQ.
            ended = key.until_ms is not None and key.until_ms <= now_ms
            if ended or (key.owner not in queue.index and key.until_ms is None):
                del queue.deduplication[id]
                queue.parked.pop(id, None)
        if queue.history is not None:
            for state, bound in queue.history.items():
                self._trim_history(queue, state, bound, now_ms)
        return stalled
