"""What a driver asks of the core besides BullMQ's own commands."""

from __future__ import annotations

from inproc_jobs.core.job import HELD, IN_HISTORY, PARKED, Job
from inproc_jobs.core.options import DEFAULT_WORKER, WorkerOptions
from inproc_jobs.core.queue import Candidate, Displaced, Queue
from inproc_jobs.core.reading import ReadingFloor
from inproc_jobs.core.states import ALIVE_STATES, FINISHED_STATES, JobState, Trigger

__all__ = ["DrivingFloor"]


class DrivingFloor(ReadingFloor):
    """Questions and commands of a driver that lives in the same process as its jobs."""

    def id_is_free(self, job: Job) -> bool:
        """Whether a dispatch with this job's id would replace it (DESIGN 2.1). Cost: O(1)."""
        return self._frees_its_id(job)

    def living(self, queue: Queue, id: str) -> Job | None:
        """The job that makes an add with this id a duplicate, None for none. Cost: O(1)."""
        job = queue.index.get(id)
        if job is not None and job.state in FINISHED_STATES and self._frees_its_id(job):
            return None
        return job

    # --- jobs that a store must have first ----------------------------------------------------------------------

    def confirm(self, queue: Queue, job: Job) -> None:
        """A store has this job: it may start, and what it has pushed out is gone for good. Cost: O(1)."""
        if job.flags & HELD:
            job.flags &= ~HELD
            queue.held -= 1
        queue.unstored.pop(job, None)
        self._forget_displaced(queue, job)

    @staticmethod
    def is_unstored(queue: Queue, job: Job) -> bool:
        """Whether a job waits for its store, or was pushed out while it did, by one that waits. Cost: O(1)."""
        return job.flags & HELD != 0 or job in queue.unstored

    def withdraw(self, queue: Queue, job: Job) -> bool:
        """
        A store could not take a job that was held for it: it goes as if it had never come, with its keys, and what it
        has pushed out (the job that it replaced, the finished one whose id it took) comes back.

        Returns:
            False when it is not held any more, or gone.
        """
        if queue.index.get(job.id) is not job or not job.flags & HELD:
            return False
        todo = queue.displaced.pop(job, [])
        self._destroy(queue, job)
        while todo:
            old = todo.pop()
            if old.job in queue.unstored:
                del queue.unstored[old.job]
                todo += queue.displaced.pop(old.job, ())
            else:
                self._bring_back(queue, old)
        return True

    def _bring_back(self, queue: Queue, old: Displaced) -> None:
        """Undo a displacement, unless somebody has taken the id meanwhile."""
        job = old.job
        if job.id in queue.index:
            return
        queue.index[job.id] = job
        self._leave(queue, job, Trigger.RESTORE, old.state)
        self._enter(queue, job, old.state)
        if old.state in FINISHED_STATES and queue.history is not None and self._frees_its_id(job):
            job.flags |= IN_HISTORY
            queue.past[old.state].add(job)
        if old.key_id is not None and old.key_id not in queue.deduplication:
            self.set_deduplication_key(queue, old.key_id, job.id, old.key_until_ms)
            if old.parked is not None:
                queue.parked[old.key_id] = old.parked

    @staticmethod
    def confirm_parked(new: Candidate) -> None:
        """A store has this parked add. Cost: O(1)."""
        new.flags &= ~HELD
        new.over = None

    def withdraw_parked(self, queue: Queue, new: Candidate) -> bool:
        """
        A store could not take a parked add: the one whose place it took comes back.

        Returns:
            False when it is not parked any more.
        """
        id = new.deduplication.id
        if queue.parked.get(id) is not new:
            return False
        if new.over is None:
            del queue.parked[id]
        else:
            queue.parked[id] = new.over
        return True

    # --- jobs of a store that nobody can run --------------------------------------------------------------------

    @staticmethod
    def unpark(queue: Queue, name: str) -> int:
        """A name was defined: its jobs are run in their turn. Returns how many. Cost: O(parked)."""
        jobs = queue.unhandled.pop(name, {})
        for job in jobs:
            job.flags &= ~PARKED
        if jobs:
            queue.wait.put_back()
        return len(jobs)

    @staticmethod
    def parked_jobs(queue: Queue) -> list[Job]:
        """Jobs of a store that cannot be run: their handler is missing, or nobody can read them. Cost: O(them)."""
        waiting = [job for jobs in queue.unhandled.values() for job in jobs if job.state in ALIVE_STATES]
        return waiting + [queue.index[id] for id in queue.unreadable]

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
        Whether a delayed job will run by itself; the next iterations of schedulers do not count (they never end), nor
        do jobs whose handler is missing.

        Cost: O(1), plus one step per such job that is due before any other.
        """
        return any(
            (job.extra is None or job.extra.scheduler_id is None) and not job.flags & PARKED for job in queue.delayed
        )

    def planned_ids(self, queue: Queue) -> set[str]:
        """Ids of the delayed jobs that are the pending iterations of schedules. Cost: O(schedulers)."""
        pending = (queue.index.get(f"repeat:{one.id}:{one.next_ms}") for one in queue.schedulers.values())
        return {job.id for job in pending if job is not None and job.state is JobState.DELAYED}

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
