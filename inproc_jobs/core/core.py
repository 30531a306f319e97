"""The public class of this room: all floors together, the check of their invariants, and a step of the clock."""

from __future__ import annotations

import heapq

from inproc_jobs.core.job import ABSOLUTE_DUE, DUE_BITS, IN_HISTORY
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.restoring import RestoringFloor
from inproc_jobs.core.states import JobState

__all__ = ["Core"]


class Core(RestoringFloor):
    """
    The whole truth about jobs, for any number of queues.

    Commands come in with the moment at which they happen (`now_ms`); facts go out as `events` and `ended`. There is no
    clock, no I/O, no thread, no lock and no randomness in here: whoever calls from several threads brings the lock.
    """

    def shift_clock(self, delta_ms: int) -> None:
        """
        The wall clock has stepped by `delta_ms` (negative: back) although no such time has passed.

        What was made from a duration moves along: delays and backoffs, lifetimes of deduplication keys, rate windows,
        locks. What was given as a date stays: `run_at`, schedules. Cost: O(delayed + keys with a lifetime).
        """
        for queue in self.queues.values():
            self._shift_delayed(queue, delta_ms)
            for id, key in queue.deduplication.items():
                if key.until_ms is not None:
                    key.until_ms += delta_ms
                    queue.deduplication[id] = key  # the same again: a store must hear of it
            queue.deduplication_ends = [(end + delta_ms, tie, key) for end, tie, key in queue.deduplication_ends]
            heapq.heapify(queue.deduplication_ends)
            if queue.limiter_until_ms:
                queue.limiter_until_ms += delta_ms
            for id in queue.lock_until_ms:
                queue.lock_until_ms[id] += delta_ms
            if queue.stalled_check_until_ms:
                queue.stalled_check_until_ms += delta_ms

    def _shift_delayed(self, queue: Queue, delta_ms: int) -> None:
        step = delta_ms << DUE_BITS
        moved = [job for job in queue.delayed if not job.flags & ABSOLUTE_DUE]
        for job in moved:
            job.order += step
        if queue.touched is not None:
            for job in moved:
                self._touch(queue, job.id)
        queue.delayed.resort()

    # --- invariants ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """
        Look for contradictions: every job in exactly the container of its state, every index in step with it.

        Raises:
            AssertionError: Names the contradiction. A bug of this room.

        Cost: O(everything); for tests.
        """
        for queue in self.queues.values():
            self._check_homes(queue)
            self._check_order(queue)
            self._check_keys(queue)

    @staticmethod
    def _check_homes(queue: Queue) -> None:
        seen: set[str] = set()
        for state, home in queue.containers.items():
            jobs = list(home)
            assert len(jobs) == len(home), f"{queue.name}: {state} holds {len(jobs)} jobs and says {len(home)}"
            for job in jobs:
                assert job.state is state, f"{queue.name}: {job.id} is {job.state} and stands in {state}"
                assert job.id not in seen, f"{queue.name}: {job.id} stands in two places"
                assert queue.index.get(job.id) is job, f"{queue.name}: {job.id} stands in {state} without being stored"
                seen.add(job.id)
        for id, job in queue.index.items():
            assert id == job.id, f"{queue.name}: {job.id} is stored as {id}"
            assert id in seen or job.state is JobState.REMOVED, f"{queue.name}: {id} is {job.state} and stands nowhere"

    @staticmethod
    def _check_order(queue: Queue) -> None:
        for home in (queue.delayed, queue.prioritized, queue.waiting_children):
            orders = [job.order for job in home]
            assert orders == sorted(orders), f"{queue.name}: out of order: {orders}"
        for finished in (queue.completed, queue.failed):
            ends = [(job.finished_on or 0, job.id) for job in finished]
            assert ends == sorted(ends), f"{queue.name}: finished out of order: {ends}"
        for job in queue.delayed:
            assert job.due_ms is not None

    @staticmethod
    def _check_keys(queue: Queue) -> None:
        for state, past in queue.past.items():
            listed = {id(job) for job in past}
            flagged = {id(job) for job in queue.containers[state] if job.flags & IN_HISTORY}
            assert listed == flagged, f"{queue.name}: the history of {state} is out of step"
            assert queue.history is None or len(listed) <= queue.history[state], f"{queue.name}: history over its bound"
        for job_id in queue.locks:
            job = queue.index.get(job_id)
            assert job_id in queue.lock_until_ms or (job is not None and job.state is JobState.ACTIVE), (
                f"{queue.name}: {job_id} is locked for ever without being active"
            )
        for dedup_id, key in queue.deduplication.items():
            assert key.id == dedup_id, f"{queue.name}: key {dedup_id} says it is {key.id}"
            assert key.until_ms is None or key.in_heap, f"{queue.name}: key {dedup_id} would never be swept"
