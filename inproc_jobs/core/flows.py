"""
Parents and children (spec section 12): who waits for whom, and what the end of a child does to its parent.

A parent's record holds its side of the links (`Children`), a child's record the way up (`ParentLink`). Both name the
other by id, never by reference: a record that is gone is simply not found.
"""

from __future__ import annotations

from inproc_jobs.core.base import CoreBase
from inproc_jobs.core.job import Children, Duplicate, Job, ParentLink
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import JobState, Trigger
from inproc_jobs.errors import JobHasFailedChildrenError, JobPendingChildrenError, ParentJobError

__all__ = ["FlowsFloor"]


class FlowsFloor(CoreBase):
    """Links between parents and children."""

    @staticmethod
    def child_key(queue: Queue, id: str) -> str:
        """Full key of a job, as parents know it: `prefix:queue:id`."""
        return f"{queue.key}:{id}"

    def find_by_key(self, key: str) -> tuple[Queue, Job] | None:
        """The job of a full key, or None. The last colon splits, as everywhere in BullMQ's flow code."""
        queue_key, _, id = key.rpartition(":")
        queue = self.queues.get(queue_key.removeprefix(f"{self.prefix}:"))
        job = queue.index.get(id) if queue is not None else None
        return (queue, job) if queue is not None and job is not None else None

    def parent_of(self, job: Job) -> tuple[Queue, Job] | None:
        """The stored parent of a job, or None."""
        link = job.extra.parent if job.extra is not None else None
        if link is None:
            return None
        queue = self.queues.get(link.queue)
        parent = queue.index.get(link.id) if queue is not None else None
        return (queue, parent) if queue is not None and parent is not None else None

    def _parent_key(self, link: ParentLink) -> str:
        return f"{self.prefix}:{link.queue}:{link.id}"

    def _need_parent(self, link: ParentLink) -> Job:
        """
        The stored job that a new one names as its parent.

        Raises:
            ParentJobError: It does not exist (-5). Nothing has changed.
        """
        queue = self.queues.get(link.queue)
        parent = queue.index.get(link.id) if queue is not None else None
        if parent is None:
            raise ParentJobError(f"Missing key for parent job {self._parent_key(link)}. addJob", id=link.id, code=-5)
        return parent

    @staticmethod
    def _children(parent: Job) -> Children:
        """A parent's side of the links, made when first needed."""
        extra = parent.more()
        if extra.children is None:
            extra.children = Children()
        return extra.children

    # --- linking ------------------------------------------------------------------------------------------------

    def _attach(self, job: Job, queue: Queue, link: ParentLink) -> None:
        """A new job becomes a pending child, whatever state its parent is in."""
        job.more().parent = link
        self._children(self._need_parent(link)).pending[self.child_key(queue, job.id)] = None
        self._touch(self.queues[link.queue], link.id)

    def _duplicate(
        self, queue: Queue, existing: Job, link: ParentLink | None, now_ms: int, *, defer_release: bool = False
    ) -> Duplicate:
        """
        An add whose id is taken: nothing about the job changes but, perhaps, its parent (spec section 2.4).

        Raises:
            ParentJobError: It has another living parent (-7). Nothing has changed but the counter.
        """
        queue.counter += 1
        if link is not None:
            self._adopt(queue, existing, link, now_ms, defer_release=defer_release)
        if self.listening:
            self.emit(queue, "duplicated", jobId=existing.id)
        return Duplicate(existing.id, existing)

    def count_duplicate(self, queue: Queue, living: Job) -> None:
        """What `add` does when `living` has the id and no parent is given, for a caller that knows it. Cost: O(1)."""
        queue.counter += 1
        if self.listening:
            self.emit(queue, "duplicated", jobId=living.id)

    def _adopt(self, queue: Queue, job: Job, link: ParentLink, now_ms: int, *, defer_release: bool) -> None:
        """Attach a job that exists, unless another living parent has it."""
        old = job.extra.parent if job.extra is not None else None
        if old is not None and (old.queue, old.id) != (link.queue, link.id) and self.parent_of(job) is not None:
            raise ParentJobError(
                f"The parent job {self._parent_key(link)} cannot be replaced. addJob", id=job.id, code=-7
            )
        parent = self._need_parent(link)
        key = self.child_key(queue, job.id)
        if job.state is JobState.COMPLETED:
            children = self._children(parent)
            children.processed[key] = job.result or b"null"
            if not defer_release and not children.pending:
                self._release_if_waiting(self.queues[link.queue], parent, now_ms)
        else:
            self._children(parent).pending[key] = None
        job.more().parent = link
        self._touch(queue, job.id)
        self._touch(self.queues[link.queue], link.id)

    def _place_waiting_children(self, queue: Queue, job: Job) -> None:
        """A new parent waits; its `order` is its own timestamp, as in BullMQ."""
        self._leave(queue, job, Trigger.ADD, JobState.WAITING_CHILDREN)
        job.order = int(job.timestamp)
        self._enter(queue, job, JobState.WAITING_CHILDREN)
        if self.listening:
            self.emit(queue, "waiting-children", jobId=job.id)

    # --- releasing ----------------------------------------------------------------------------------------------

    def _release_if_waiting(self, queue: Queue, parent: Job, now_ms: int) -> None:
        """Let a parent go on if it waits for children; a parent elsewhere stays where it is."""
        if parent.state is JobState.WAITING_CHILDREN:
            self._release_parent(queue, parent, now_ms)

    def _release_parent(self, queue: Queue, parent: Job, now_ms: int) -> None:
        """Delayed if it has a delay (which starts now), else prioritized, else next in line."""
        if parent.delay > 0:
            self._place_delayed(queue, parent, Trigger.CHILDREN_DONE, now_ms + parent.delay)
            return
        self._place_ready(queue, parent, Trigger.CHILDREN_DONE, front=True)
        if self.listening:
            self.emit(queue, "waiting", jobId=parent.id, prev="waiting-children")

    def _check_children(self, job: Job, command: str = "moveToFinished") -> None:
        """
        Refuse to complete a parent too early.

        Raises:
            JobPendingChildrenError: Children are pending (-4).
            JobHasFailedChildrenError: One that matters has failed (-9).
        """
        children = job.extra.children if job.extra is not None else None
        if children is None:
            return
        if children.pending:
            raise JobPendingChildrenError(f"Job {job.id} has pending dependencies. {command}", id=job.id)
        self._check_unsuccessful(job, command)

    @staticmethod
    def _check_unsuccessful(job: Job, command: str) -> None:
        """Refuse to go on with a parent of which a child has failed for good."""
        children = job.extra.children if job.extra is not None else None
        if children is not None and children.unsuccessful:
            raise JobHasFailedChildrenError(
                f"Cannot complete job {job.id} because it has at least one failed child. {command}", id=job.id
            )

    # --- the end of a child -------------------------------------------------------------------------------------

    def _pending_in(self, queue: Queue, job: Job) -> tuple[Queue, Job, Children, str] | None:
        """A child's parent, if the child is pending there: queue, parent, its links, and the child's key."""
        found = self.parent_of(job)
        if found is None:
            return None
        extra = found[1].extra
        key = self.child_key(queue, job.id)
        if extra is None or extra.children is None or key not in extra.children.pending:
            return None
        return (*found, extra.children, key)

    def _child_completed(self, queue: Queue, job: Job, now_ms: int) -> None:
        """The parent gets the result and, if it was the last one it waited for, goes on."""
        found = self._pending_in(queue, job)
        if found is None:
            return
        parent_queue, parent, children, key = found
        del children.pending[key]
        children.processed[key] = job.result or b"null"
        self._touch(parent_queue, parent.id)
        if not children.pending:
            self._release_if_waiting(parent_queue, parent, now_ms)

    def _child_failed(self, queue: Queue, job: Job, reason: str, now_ms: int) -> None:
        """What a final failure does to the parent is the child's option; without one it stays pending."""
        policy = job.extra.parent.policy if job.extra is not None and job.extra.parent is not None else ""
        found = self._pending_in(queue, job) if policy else None
        if found is None:
            return
        parent_queue, parent, children, key = found
        del children.pending[key]
        self._touch(parent_queue, parent.id)
        if policy == "fpof":
            children.unsuccessful[key] = now_ms
            self._doom(parent_queue, parent, f"child {key} failed", now_ms)
            return
        if policy in {"cpof", "idof"}:
            children.ignored[key] = reason
        if policy == "cpof" or not children.pending:
            self._release_if_waiting(parent_queue, parent, now_ms)

    def _doom(self, queue: Queue, parent: Job, reason: str, now_ms: int) -> None:
        """Mark a parent so that a worker fails it unseen, and bring it there if it waits."""
        if parent.state is JobState.FAILED:
            return
        parent.more().deferred_failure = reason
        self._touch(queue, parent.id)
        if parent.state is JobState.DELAYED:
            parent.delay = 0
        if parent.state in {JobState.DELAYED, JobState.WAITING_CHILDREN}:
            self._release_parent(queue, parent, now_ms)
