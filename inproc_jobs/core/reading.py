"""Questions to a queue: counts, pages of jobs, logs, children, metrics (spec sections 10.7 to 10.9 and 12.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from inproc_jobs.core.containers import Lane, page
from inproc_jobs.core.job import DUE_BITS, OLD_MARKER, Children, Job
from inproc_jobs.core.queue import Metrics, Queue
from inproc_jobs.core.schedulers import SchedulersFloor
from inproc_jobs.core.states import STATES, JobState

__all__ = ["FlowView", "ReadingFloor"]

_NO_CHILDREN = Children()
_ALL_TYPES = tuple(str(state) for state in STATES)


class FlowView(msgspec.Struct):
    """A node of a tree as it was found; `children` is None where there are none, or where the depth ends."""

    queue: str
    job: Job
    children: list[FlowView] | None = None


class ReadingFloor(SchedulersFloor):
    """What may be asked without changing anything, but for the old markers that BullMQ's readers throw away too."""

    def job(self, queue: Queue, id: str) -> Job | None:
        """The stored job of that id, or None. Cost: O(1)."""
        return queue.index.get(id)

    def state_of(self, queue: Queue, id: str) -> str:
        """The state of a job, "unknown" where there is none. Cost: O(1)."""
        job = queue.index.get(id)
        return "unknown" if job is None or job.state is JobState.REMOVED else str(job.state)

    # --- counts -------------------------------------------------------------------------------------------------

    def counts(self, queue: Queue, *types: str) -> dict[str, int]:
        """
        How many jobs are in each state.

        Args:
            types: Words to count; none is all seven. "wait" stands for "waiting"; an unknown word counts 0.

        Cost: O(1) per word. Source: spec section 10.7.
        """
        return {type: self._count(queue, type) for type in types or _ALL_TYPES}

    def _count(self, queue: Queue, type: str) -> int:
        home = _home(queue, type)
        if home is None:
            return 0
        if home is queue.wait and self._drop_marker(queue):
            return 0
        return len(home)

    def _drop_marker(self, queue: Queue) -> bool:
        """Throw away an old marker at the exit end, as BullMQ's readers do; a lone one stays, but True says: nothing."""
        head = queue.wait.head()
        if head is None or not head.flags & OLD_MARKER:
            return False
        if len(queue.wait) == 1:
            return True
        self._unlist_marker(queue)
        return False

    def delayed_count(self, queue: Queue, before_ms: int | None = None) -> int:
        """How many are delayed; with `before_ms` those due before that moment. Cost: O(log n)."""
        if before_ms is None:
            return len(queue.delayed)
        return queue.delayed.count_before(before_ms << DUE_BITS)

    def counts_per_priority(self, queue: Queue, priorities: Iterable[int]) -> dict[int, int]:
        """How many are ready per priority; 0 are the waiting ones. Cost: O(log n) each."""
        return {
            priority: queue.prioritized.count_between(priority << 32, (priority + 1) << 32)
            if priority
            else len(queue.wait)
            for priority in priorities
        }

    # --- pages --------------------------------------------------------------------------------------------------

    def jobs(
        self, queue: Queue, types: Sequence[str] = (), start: int = 0, end: int = -1, ascending: bool = False
    ) -> list[Job]:
        """
        Jobs of some states, one page per state, in the order of the words.

        Args:
            types: As in `counts`.
            start, end: Both included, per state; negative ones count from the end, as in Redis.
            ascending: Next to run, lowest score or oldest first; else the other way round.

        Cost: O(end) per state where both are positive, else O(n). Source: spec section 10.7.
        """
        found: dict[str, Job] = {}
        for type in dict.fromkeys("waiting" if type == "wait" else type for type in types or sorted(_ALL_TYPES)):
            home = _home(queue, type)
            if home is None:
                continue
            nothing = home is queue.wait and self._drop_marker(queue) and ascending and start >= 0 and end >= 0
            if not nothing:
                found.update((job.id, job) for job in _page_of(home, start, end, ascending=ascending))
        return [job for job in found.values() if queue.index.get(job.id) is job]

    # --- logs, metrics, children --------------------------------------------------------------------------------

    def logs(
        self, queue: Queue, id: str, start: int = 0, end: int = -1, ascending: bool = True
    ) -> tuple[Sequence[str], int]:
        """A page of a job's log, and how many rows it has; descending counts from the newest. Source: spec 10.8."""
        job = queue.index.get(id)
        rows = job.extra.logs if job is not None and job.extra is not None else []
        if ascending:
            return page(rows, start, end), len(rows)
        return page(rows, -(end + 1), -(start + 1))[::-1], len(rows)

    def metrics(self, queue: Queue, type: str, start: int = 0, end: int = -1) -> tuple[Metrics, Sequence[int], int]:
        """The collected counts of "completed" or "failed": the record, a page of minutes, number of minutes."""
        metrics = queue.metrics.get(type) or Metrics()
        return metrics, page(metrics.data, start, end), len(metrics.data)

    def children_of(self, queue: Queue, id: str) -> Children:
        """A parent's side of its links; empty for a job without children, or none at all."""
        job = queue.index.get(id)
        links = job.extra.children if job is not None and job.extra is not None else None
        return links if links is not None else _NO_CHILDREN

    def flow(self, queue: Queue, id: str, depth: int = 10, max_children: int = 20) -> FlowView | None:
        """
        A job with the jobs below it, in whatever state they are.

        Args:
            depth: Levels, the job itself included.
            max_children: Bounds the fatally failed children of a node only, as in BullMQ.

        Returns:
            None if there is no such job.

        Cost: O(nodes). Source: spec section 12.5.
        """
        job = queue.index.get(id)
        if job is None:
            return None
        view = FlowView(queue.name, job)
        links = self.children_of(queue, id)
        failed = sorted(links.unsuccessful, key=lambda key: (links.unsuccessful[key], key))[:max_children]
        keys = (*links.processed, *links.pending, *failed, *links.ignored)
        if keys and depth != 1:
            found = (self.find_by_key(key) for key in keys)
            nodes = (self.flow(one[0], one[1].id, depth - 1, max_children) for one in found if one is not None)
            view.children = [node for node in nodes if node is not None]
        return view


def _home(queue: Queue, type: str) -> Any:
    """The container of a state's word, or None."""
    try:
        return queue.containers.get(JobState("waiting" if type == "wait" else type))
    except ValueError:
        return None


def _page_of(home: Any, start: int, end: int, *, ascending: bool) -> Iterable[Job]:
    """One page of a container, without listing all of it where the bounds are positive."""
    if start >= 0 and end >= 0:
        ordered: Iterator[Job] = iter(home) if ascending else reversed(home)
        return islice(ordered, start, max(end + 1, start))
    jobs = list(home) if ascending else list(reversed(home))
    if ascending and isinstance(home, Lane):
        return _list_page(jobs, start, end)
    return page(jobs, start, end)


def _list_page(jobs: list[Job], start: int, end: int) -> Sequence[Job]:
    """
    BullMQ reads a list that is asked for in ascending order from its other end, and turns the bounds round for that.

    Only -1 means what it means elsewhere; other negative bounds come out of that arithmetic as they do there.
    """
    low = 0 if end == -1 else -(end + 1)
    high = 0 if start == -1 else -(start + 1)
    return page(jobs[::-1], low, high)[::-1]
