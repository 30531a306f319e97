"""What a driver asks of the core besides BullMQ's own commands."""

from __future__ import annotations

from inproc_jobs.core.job import HELD, Job
from inproc_jobs.core.options import DEFAULT_WORKER, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.reading import ReadingFloor
from inproc_jobs.core.states import JobState

__all__ = ["DrivingFloor"]


class DrivingFloor(ReadingFloor):
    """Questions and commands of a driver that lives in the same process as its jobs."""

    def id_is_free(self, job: Job) -> bool:
        """Whether a dispatch with this job's id would replace it (DESIGN 2.1). Cost: O(1)."""
        return self._frees_its_id(job)

    @staticmethod
    def confirm(queue: Queue, id: str) -> None:
        """A store has this job: it may start. Cost: O(1)."""
        job = queue.index.get(id)
        if job is not None and job.flags & HELD:
            job.flags &= ~HELD
            queue.held -= 1

    def withdraw(self, queue: Queue, job: Job) -> bool:
        """
        A store could not take a job that was held for it: it goes as if it had never come, with its keys.

        Returns:
            False when it is not held any more, or gone.
        """
        if queue.index.get(job.id) is not job or not job.flags & HELD:
            return False
        self._destroy(queue, job)
        return True

    def recover_stalled(self, queue: Queue, id: str, now_ms: int, worker: WorkerOptions = DEFAULT_WORKER) -> bool:
        """
        Treat an active job as stalled at once: its driver knows that nobody will end it.

        Returns:
            False when it is not active any more.

        Cost: O(1). Source: spec section 9.4, without the two checks that BullMQ needs to notice.
        """
        return self._recover(queue, queue.index.get(id), worker)

    @staticmethod
    def has_pending_delays(queue: Queue) -> bool:
        """
        Whether a delayed job will run by itself; the next iterations of schedulers do not count (they never end).

        Cost: O(1), plus one step per delayed iteration that is due before any other job.
        """
        return any(job.extra is None or job.extra.scheduler_id is None for job in queue.delayed)

    def count_planned(self, queue: Queue) -> int:
        """How many delayed jobs are the pending iterations of schedules. Cost: O(schedulers)."""
        pending = (queue.index.get(f"repeat:{one.id}:{one.next_ms}") for one in queue.schedulers.values())
        return sum(job is not None and job.state is JobState.DELAYED for job in pending)

    @staticmethod
    def oldest_waiting_ms(queue: Queue) -> int | None:
        """When the job that is next in line was made, or the first prioritized one; None when none is ready. O(1)."""
        heads = [job.timestamp for job in (queue.wait.head(), queue.prioritized.head()) if job is not None]
        return min(heads) if heads else None

    def reset_active(self, queue: Queue, now_ms: int) -> None:
        """Put all active jobs back in their old order: the loop that ran them is gone. No attempt is counted."""
        for job in reversed(list(queue.active)):
            if job.state is JobState.ACTIVE:
                self.move_to_wait(queue, job.id, now_ms)
