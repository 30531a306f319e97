"""Whole trees of jobs, added in one step (spec section 12.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from inproc_jobs.core.adding import AddingFloor
from inproc_jobs.core.job import Duplicate, Job, ParentLink
from inproc_jobs.core.options import Deduplication, JobOptions
from inproc_jobs.errors import ParentJobError, QueueFullError

__all__ = ["NewJob", "TreesFloor"]


class NewJob(msgspec.Struct, kw_only=True):
    """
    The arguments of one `Core.add`, and of one node of a flow.

    Attributes:
        scheduler_id: Scheduler it says it belongs to, which only programs in BullMQ's language can say.
        unheeded_delay: A delay given as text, which BullMQ shows but does not obey.
    """

    queue: str
    name: str
    data: bytes
    opts: JobOptions
    id: str = ""
    delay: float = 0
    priority: int = 0
    timestamp: int | None = None
    flags: int = 0
    deduplication: Deduplication | None = None
    parent: ParentLink | None = None
    has_children: bool = False
    scheduler_id: str | None = None
    unheeded_delay: float = 0


class TreesFloor(AddingFloor):
    """`add_new` and `add_flow`."""

    def add_new(self, new: NewJob, now_ms: int, *, defer_release: bool = False) -> Job | Duplicate:
        """`Core.add` with its arguments as a record. Raises and costs the same."""
        answer = self.add(
            self.queue(new.queue),
            new.name,
            new.data,
            new.opts,
            now_ms,
            id=new.id,
            delay=new.delay,
            priority=new.priority,
            timestamp=new.timestamp,
            flags=new.flags,
            deduplication=new.deduplication,
            parent=new.parent,
            has_children=new.has_children,
            defer_release=defer_release,
        )
        if isinstance(answer, Job):
            if new.scheduler_id is not None:
                answer.more().scheduler_id = new.scheduler_id
            if new.unheeded_delay:
                answer.delay = new.unheeded_delay
        return answer

    def add_flow(self, jobs: Sequence[NewJob], now_ms: int) -> list[Job | Duplicate | ParentJobError]:
        """
        Add a tree, or several.

        A parent all of whose children turn out to be done already goes on, but only when everything is in; one of
        whose children belongs to another parent waits for ever, as in BullMQ.

        Args:
            jobs: Parents before their children, level by level.

        Returns:
            Per job what `Core.add` answers, or the error with which it was refused: the others are in all the same.

        Raises:
            QueueFullError: A queue has no room for its part of the tree. Nothing has changed.

        Cost: That of its adds. Source: spec section 12.2.
        """
        self._need_room_for_all(jobs)
        answers: list[Job | Duplicate | ParentJobError] = []
        parents: dict[tuple[str, str], None] = {}
        incomplete: set[tuple[str, str]] = set()
        for new in jobs:
            parent = (new.parent.queue, new.parent.id) if new.parent is not None else None
            if parent is not None:
                parents[parent] = None
            try:
                answers.append(self.add_new(new, now_ms, defer_release=True))
            except ParentJobError as error:
                answers.append(error)
                if parent is not None and error.code == _OTHER_PARENT:
                    incomplete.add(parent)
        for queue_name, id in parents:
            queue = self.queue(queue_name)
            waiting = queue.index.get(id) if (queue_name, id) not in incomplete else None
            if waiting is not None and not self._children(waiting).pending:
                self._release_if_waiting(queue, waiting, now_ms)
        return answers

    def _need_room_for_all(self, jobs: Sequence[NewJob]) -> None:
        wanted = Counter(new.queue for new in jobs if not new.has_children)
        for name, count in wanted.items():
            queue = self.queue(name)
            limit = queue.max_waiting
            if limit is not None and queue.waiting_count + queue.reserved + count > limit:
                raise QueueFullError(name, limit)


_OTHER_PARENT = -7
