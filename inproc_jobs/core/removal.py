"""
How jobs go (spec sections 7, 10.5 and 12.6).

Three strengths, all of them through `_drop`: retention is silent (`_forget`); `remove` tells everybody and may take
children along; the hard way of drain, clean and obliterate is silent and takes a parent along that has lost its last
child.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from inproc_jobs.core.containers import FinishedSet
from inproc_jobs.core.flows import FlowsFloor
from inproc_jobs.core.job import HELD, IN_HISTORY, PARKED, UNREADABLE, Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import FAILED, FINISHED_STATES, REMOVED, WAITING, WAITING_CHILDREN, Trigger
from inproc_jobs.errors import JobSchedulerError

__all__ = ["RemovalFloor"]


class RemovalFloor(FlowsFloor):
    """Removal, soft and hard, and the trimming of finished jobs."""

    # --- one job ------------------------------------------------------------------------------------------------

    def _drop(self, queue: Queue, job: Job) -> None:
        """
        Take a record out of its queue. Watchers of an unfinished one are told; a finished one keeps its outcome.

        Parents, deduplication keys and events are the caller's business.
        """
        if queue.index.get(job.id) is not job:
            return  # in a ring of parents and children it went while its own removal was under way
        state = job.state
        if state is not REMOVED:
            queue.containers[state].discard(job)
            self._leave_history(queue, job)
            job.state = REMOVED
        if job.flags & (HELD | PARKED | UNREADABLE):
            self._lose_marks(queue, job)
        del queue.index[job.id]
        self._touch(queue, job.id)
        if state not in FINISHED_STATES:
            self._end(job)

    def _lose_marks(self, queue: Queue, job: Job) -> None:
        """A job that a store was to confirm, or that is parked, goes."""
        if job.flags & HELD:
            queue.held -= 1
            self._forget_displaced(queue, job)
        if job.flags & PARKED:
            parked = queue.unhandled[job.name]
            del parked[job]
            if not parked:
                del queue.unhandled[job.name]
        if job.flags & UNREADABLE:
            del queue.unreadable[job.id]
        job.flags &= ~(HELD | PARKED | UNREADABLE)

    @staticmethod
    def _forget_displaced(queue: Queue, job: Job) -> None:
        """What a job has pushed out, and what that had pushed out before it was stored, does not come back any more."""
        todo = [job] if queue.displaced else []
        while todo:
            for old in queue.displaced.pop(todo.pop(), ()):
                if old.job in queue.unstored:
                    del queue.unstored[old.job]
                    todo.append(old.job)

    @staticmethod
    def _leave_history(queue: Queue, job: Job) -> None:
        """A finished job that goes on, or goes away, no longer counts for the bounded history."""
        if job.flags & IN_HISTORY:
            job.flags &= ~IN_HISTORY
            queue.past[job.state].discard(job)

    def _forget(self, queue: Queue, job: Job, now_ms: int) -> None:
        """Drop a finished job by retention: silently, but its parent, if it still waited for it, goes on."""
        if job.extra is not None and job.extra.parent is not None:
            self._detach(queue, job)
        self._drop(queue, job)

    def _destroy(self, queue: Queue, job: Job) -> None:
        """Drop a job the hard way: silently, with its deduplication key, and with parents that lose their last child."""
        self._detach(queue, job, hard=True)
        self._release_removed_key(queue, job)
        self._drop(queue, job)

    def _detach(self, queue: Queue, job: Job, *, hard: bool = False) -> bool:
        """
        Take a job out of its parent's pending children; a parent without any more goes on, ignoring its own delay
        and priority. The hard way deletes it instead if it is in the same queue, and so on upwards.

        Returns:
            Whether it was pending there.
        """
        found = self._pending_in(queue, job)
        if found is None:
            return False
        self._lose_child(queue, *found[:2], found[3], hard=hard)
        return True

    def _lose_child(self, home: Queue, queue: Queue, parent: Job, key: str, *, hard: bool = False) -> None:
        """`home` is the queue in which the hard removal began: only there are parents deleted."""
        while True:
            children = self._children(parent)
            children.pending.pop(key, None)
            self._touch(queue, parent.id)
            if children.pending or parent.state is not WAITING_CHILDREN:
                return
            if not hard or queue is not home:
                self._move(queue, parent, Trigger.CHILDREN_DONE, WAITING, front=True)
                if self.listening and not hard:
                    self.emit(queue, "waiting", jobId=parent.id, prev="waiting-children")
                return
            found = self._pending_in(queue, parent)
            self._drop(queue, parent)
            if found is None:
                return
            queue, parent, _, key = found

    def _release_removed_key(self, queue: Queue, job: Job) -> None:
        """Removal frees a deduplication key that names the job, whatever lifetime it has, and what is parked behind it."""
        id = job.extra.deduplication_id if job.extra is not None else None
        if id is None:
            return
        key = queue.deduplication.get(id)
        if key is not None and key.owner == job.id:
            del queue.deduplication[id]
            queue.parked.pop(id, None)

    # --- remove -------------------------------------------------------------------------------------------------

    def remove(self, queue: Queue, id: str, now_ms: int, *, remove_children: bool = True) -> bool:
        """
        Remove a job, with `remove_children` its children in every state and theirs too.

        Returns:
            False if it, or a pending child that would go too, is locked; True if it is gone, also if it never was.

        Raises:
            JobSchedulerError: It is the current iteration of a scheduler (-8). Nothing has changed.

        Cost: O(log n) per job. Source: spec section 10.5.
        """
        job = queue.index.get(id)
        if job is None:
            return not self.is_locked(queue, id, now_ms)
        if self.is_current_iteration(queue, job):
            raise JobSchedulerError(
                f"Job {id} belongs to a job scheduler and cannot be removed directly. removeJob", id=id, code=-8
            )
        if self._tree_locked(queue, job, now_ms, deep=remove_children):
            return False
        self._detach(queue, job)
        self._remove_tree(queue, job, now_ms, children=remove_children)
        return True

    def remove_unprocessed_children(self, queue: Queue, id: str, now_ms: int) -> None:
        """Remove the pending children of a job that are neither locked nor failed. Source: spec section 12.6."""
        job = queue.index.get(id)
        if job is not None:
            self._remove_tree(queue, job, now_ms, pending_only=True)

    def _remove_tree(
        self, queue: Queue, job: Job, now_ms: int, *, children: bool = True, pending_only: bool = False
    ) -> None:
        """
        Remove what is below a job, children before parents, then the job itself; with `pending_only` only such
        descendants as nobody works on, and not the job. A stack of its own: flows may be deeper than Python's.
        """
        stack = [(queue, job, self._removable_keys(job, pending_only=pending_only) if children else iter(()))]
        seen = {job}  # adds with a parent can tie a ring, on which BullMQ's script dies
        while stack:
            at, parent, keys = stack[-1]
            key = next(keys, None)
            if key is not None:
                child = self._take_child(at, parent, key, now_ms, pending_only=pending_only)
                if child is not None and child[1] not in seen:
                    seen.add(child[1])
                    stack.append((*child, self._removable_keys(child[1], pending_only=pending_only)))
                continue
            stack.pop()
            if stack or not pending_only:
                self._remove_one(at, parent)

    @staticmethod
    def _removable_keys(parent: Job, *, pending_only: bool) -> Iterator[str]:
        links = parent.extra.children if parent.extra is not None else None
        if links is None:
            return iter(())
        done = () if pending_only else (*links.processed, *links.ignored, *links.unsuccessful)
        return iter((*done, *links.pending))

    def _take_child(
        self, queue: Queue, parent: Job, key: str, now_ms: int, *, pending_only: bool
    ) -> tuple[Queue, Job] | None:
        """Cut a child off its parent, which goes on if it was the last one. None if the child stays or is gone."""
        found = self.find_by_key(key)
        if found is not None and pending_only:
            child_queue, child = found
            if child.state is FAILED or self.is_locked(child_queue, child.id, now_ms):
                return None
        links = parent.extra.children if parent.extra is not None else None
        if links is not None and key in links.pending:
            self._lose_child(queue, queue, parent, key)
        return found

    def _remove_one(self, queue: Queue, job: Job) -> None:
        state = job.state
        self._release_removed_key(queue, job)
        self._drop(queue, job)
        if self.listening:
            self.emit(queue, "removed", jobId=job.id, prev=_CONTAINER_NAMES.get(state, state))

    # --- locks and schedulers -----------------------------------------------------------------------------------

    @staticmethod
    def is_locked(queue: Queue, id: str, now_ms: int) -> bool:
        """Whether a worker holds the job and its lock has not run out."""
        if id not in queue.locks:
            return False
        until = queue.lock_until_ms.get(id)
        return until is None or until > now_ms

    def _tree_locked(self, queue: Queue, job: Job, now_ms: int, *, deep: bool) -> bool:
        """Whether the job is locked, or with `deep` any pending child below it."""
        todo = [(queue, job)]
        seen: set[Job] = set()
        while todo:
            at, one = todo.pop()
            if self.is_locked(at, one.id, now_ms):
                return True
            if one in seen:
                continue
            seen.add(one)
            if deep and one.extra is not None and one.extra.children is not None:
                todo += [found for key in one.extra.children.pending if (found := self.find_by_key(key)) is not None]
        return False

    @staticmethod
    def is_current_iteration(queue: Queue, job: Job) -> bool:
        """Whether the job is the iteration its scheduler made last; drain, clean and remove leave that one alone."""
        scheduler_id = job.extra.scheduler_id if job.extra is not None else None
        scheduler = queue.schedulers.get(scheduler_id) if scheduler_id is not None else None
        return scheduler is not None and job.id == f"repeat:{scheduler.id}:{scheduler.next_ms}"

    # --- trimming -----------------------------------------------------------------------------------------------

    def _trim_by_age(self, queue: Queue, finished: FinishedSet, cutoff_ms: float, limit: int, now_ms: int) -> None:
        """Forget those that finished at or before the cutoff, at most `limit`, the NEWEST of them first, as BullMQ does."""
        ordered = finished.ordered()
        old = ordered.bisect_key_right((cutoff_ms, "\U0010ffff"))  # type: ignore[arg-type]  # a float sorts among ints
        first = 0 if limit < 0 else max(old - limit, 0)
        for job in reversed(ordered[first:old]):
            self._forget(queue, job, now_ms)

    def _trim_by_count(self, queue: Queue, finished: FinishedSet, count: int, now_ms: int) -> None:
        """Forget all but the `count` newest."""
        surplus = len(finished) - count
        if surplus > 0:
            for job in reversed(list(islice(finished, surplus))):
                self._forget(queue, job, now_ms)


_CONTAINER_NAMES = {WAITING: "wait", REMOVED: "unknown"}
"""The word in a `removed` event is the name of BullMQ's container."""
