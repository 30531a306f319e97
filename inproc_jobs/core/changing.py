"""Changes to one job: retry, promote, new delay, priority or payload, progress and logs (spec sections 3.3, 5.4, 10.8)."""

from __future__ import annotations

from typing import Any

from inproc_jobs.core.fetching import ANY_TOKEN
from inproc_jobs.core.finishing import FinishingFloor
from inproc_jobs.core.job import ABSOLUTE_DUE, LIFO, Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import JobState, Trigger
from inproc_jobs.errors import JobNotInStateError, ParentJobError

__all__ = ["ChangingFloor"]


class ChangingFloor(FinishingFloor):
    """What may be done to a stored job from outside, and by its handler while it runs."""

    # --- where it is --------------------------------------------------------------------------------------------

    def retry(
        self,
        queue: Queue,
        id: str,
        now_ms: int,
        *,
        state: str = "failed",
        reset_attempts_made: bool = False,
        reset_attempts_started: bool = False,
    ) -> None:
        """
        Run a finished job again: behind those that wait, with lifo before them, with a priority among its equals.

        Args:
            state: "failed" or "completed"; where the job must be.

        Raises:
            JobNotFoundError: There is no such job (-1).
            JobNotInStateError: It is elsewhere (-3). Nothing has changed.

        Cost: O(log n). Source: spec section 6.6.
        """
        job = self.need(queue, id, "reprocessJob")
        if job.state != state or job.state not in {JobState.COMPLETED, JobState.FAILED}:
            raise JobNotInStateError(f"Job {id} is not in the {state} state. reprocessJob", id=id)
        self._leave_history(queue, job)
        self._place_ready(queue, job, Trigger.REPROCESS, job.opts.lifo or job.flags & LIFO != 0)
        self._clear_outcome(job, state)
        if reset_attempts_made:
            job.attempts_made = 0
        if reset_attempts_started:
            job.attempts_started = 0
        self._back_to_parent(queue, job, state)
        if self.listening:
            self.emit(queue, "waiting", jobId=id, prev=state)

    @staticmethod
    def _clear_outcome(job: Job, state: str) -> None:
        """Take back how a job ended. Only after it has left its finished set, which sorts by `finished_on`."""
        job.finished_on = job.processed_on = None
        if state == JobState.COMPLETED:
            job.result = None
        elif job.extra is not None:
            job.extra.failed_reason = None

    def _back_to_parent(self, queue: Queue, job: Job, state: str) -> None:
        """A child that runs again is pending again where its outcome was noted; the parent itself does not move."""
        found = self.parent_of(job)
        extra = found[1].extra if found is not None else None
        if extra is None or extra.children is None:
            return
        key, links = self.child_key(queue, job.id), extra.children
        noted: tuple[dict[str, Any], ...] = (
            (links.unsuccessful, links.ignored) if state == JobState.FAILED else (links.processed,)
        )
        for outcomes in noted:
            if key in outcomes:
                del outcomes[key]
                links.pending[key] = None
                self._touch(found[0], found[1].id)  # type: ignore[index]  # it has `extra`, so it was found
                return

    def promote(self, queue: Queue, id: str, now_ms: int) -> None:
        """
        Make a delayed job ready now.

        Raises:
            JobNotInStateError: It is not delayed, or does not exist (-3). Nothing has changed.

        Cost: O(log n). Source: spec section 3.3.
        """
        job = queue.index.get(id)
        if job is None or job.state is not JobState.DELAYED:
            raise JobNotInStateError(f"Job {id} is not in the delayed state. promote", id=id)
        self._place_ready(queue, job, Trigger.PROMOTE)
        if self.listening:
            self.emit(queue, "waiting", jobId=id, prev="delayed")
        job.delay = 0

    def change_delay(self, queue: Queue, id: str, delay_ms: float, now_ms: int) -> None:
        """
        Give a delayed job a new due time, counted from now; 0 or less is due now, at the next fetch.

        Raises:
            JobNotFoundError: There is no such job (-1).
            JobNotInStateError: It is not delayed (-3). Nothing has changed.

        Cost: O(log n). Source: spec section 3.3.
        """
        job = self.need(queue, id, "changeDelay")
        if job.state is not JobState.DELAYED:
            raise JobNotInStateError(f"Job {id} is not in the delayed state. changeDelay", id=id)
        job.delay = delay_ms
        job.flags &= ~ABSOLUTE_DUE
        self._place_delayed(queue, job, Trigger.RESCHEDULE, now_ms + max(delay_ms, 0))

    def change_priority(self, queue: Queue, id: str, priority: int, now_ms: int, *, lifo: bool = False) -> None:
        """
        Give a job another priority. A ready one moves behind its new equals, with lifo before them.

        Raises:
            JobNotFoundError: There is no such job (-1).

        Cost: O(log n). Source: spec section 5.4.
        """
        job = self.need(queue, id, "changePriority")
        job.priority = priority
        self._touch(queue, id)
        if job.state not in {JobState.WAITING, JobState.PRIORITIZED}:
            return
        if priority:
            self._place_prioritized(queue, job, Trigger.PRIORITY, counter=0 if lifo else None)
        else:
            self._move(queue, job, Trigger.PRIORITY, JobState.WAITING, lifo)

    def move_to_waiting_children(
        self, queue: Queue, id: str, now_ms: int, token: Any = ANY_TOKEN, *, child: str | None = None
    ) -> bool:
        """
        Let an active parent wait for its pending children, or for one of them.

        Args:
            child: Full key of the one to wait for, None for all.

        Returns:
            False if there is nothing to wait for; then nothing has changed, and the lock was not looked at.

        Raises:
            JobNotFoundError, JobHasFailedChildrenError, JobLockMissingError, JobLockMismatchError, JobNotInStateError:
            Refused.

        Cost: O(log n). Source: spec section 12.5.
        """
        command = "moveToWaitingChildren"
        job = self.need(queue, id, command)
        self._check_unsuccessful(job, command)
        pending = job.extra.children.pending if job.extra is not None and job.extra.children is not None else {}
        if not pending or (child is not None and child not in pending):
            return False
        self._release_lock(queue, job, token, command, now_ms)
        self._need_active(job, command)
        self._leave(queue, job, Trigger.WAIT_FOR_CHILDREN, JobState.WAITING_CHILDREN)
        job.order = now_ms
        self._enter(queue, job, JobState.WAITING_CHILDREN)
        if self.listening:
            self.emit(queue, "waiting-children", jobId=id, prev="active")
        return True

    def remove_child_dependency(self, queue: Queue, id: str) -> bool:
        """
        Cut a pending child off its parent, which goes on if it was the last one.

        Returns:
            Whether it was pending there.

        Raises:
            JobNotFoundError: There is no such job (-1).
            ParentJobError: Its parent does not exist, or it has none (-5).

        Cost: O(1). Source: spec section 12.6.
        """
        command = "removeChildDependency"
        job = self.need(queue, id, command)
        if self.parent_of(job) is None:
            link = job.extra.parent if job.extra is not None else None
            name = self._parent_key(link) if link is not None else "undefined"
            raise ParentJobError(f"Missing key for parent job {name}. {command}", id=id, code=-5)
        if not self._detach(queue, job):
            return False
        job.more().parent = None
        self._touch(queue, id)
        return True

    # --- what it says -------------------------------------------------------------------------------------------

    def update_data(self, queue: Queue, id: str, data: bytes) -> None:
        """
        Replace the payload, in any state.

        Raises:
            JobNotFoundError: There is no such job (-1).
        """
        self.need(queue, id, "updateData").data = data
        self._touch(queue, id)

    def update_progress(self, queue: Queue, id: str, progress: bytes) -> None:
        """
        Store how far a job is, as JSON text.

        Raises:
            JobNotFoundError: There is no such job (-1).
        """
        self.need(queue, id, "updateProgress").more().progress = progress
        self._touch(queue, id)
        if self.listening:
            self.emit(queue, "progress", jobId=id, data=progress)

    def add_log(self, queue: Queue, id: str, row: str, keep: int | None = None) -> int:
        """
        Append a row to a job's log, and with `keep` keep the newest so many.

        Returns:
            How many rows there are now.

        Raises:
            JobNotFoundError: There is no such job (-1).

        Cost: O(1), O(rows) when it trims. Source: spec section 10.8.
        """
        logs = self.need(queue, id, "addLog").more().logs
        logs.append(row)
        if keep:
            del logs[:-keep]
        self._touch(queue, id)
        return len(logs)

    def clear_logs(self, queue: Queue, id: str, keep: int = 0) -> None:
        """Drop a job's log but for the newest `keep` rows; a missing job is nothing to complain about."""
        job = queue.index.get(id)
        if job is not None and job.extra is not None:
            job.extra.logs = job.extra.logs[-keep:] if keep else []
            self._touch(queue, id)

    # --- locks --------------------------------------------------------------------------------------------------

    def extend_lock(self, queue: Queue, id: str, token: Any, duration_ms: float, now_ms: int) -> bool:
        """
        Lengthen the life of a lock, counted from now.

        Returns:
            False if the lock has run out or is somebody else's.

        Cost: O(1). Source: spec section 9.3.
        """
        if not self.is_locked(queue, id, now_ms) or queue.locks[id] != token:
            return False
        queue.lock_until_ms[id] = now_ms + duration_ms
        queue.stalled_ids.pop(id, None)
        return True
