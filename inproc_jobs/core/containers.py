"""
The ordered containers, one per state. All share three verbs: `add`, `discard`, iterate in BullMQ's ascending order.

They hold the records themselves and trust `CoreBase._move` to keep a record in exactly one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol, TypeVar

from sortedcontainers import SortedKeyList

from inproc_jobs.core.job import Job

__all__ = ["ActiveSet", "Container", "DelaySet", "FinishedSet", "Lane", "ScoredSet", "page"]

T = TypeVar("T")


def page(rows: Sequence[T], start: int, end: int) -> Sequence[T]:
    """
    The part from `start` to `end`, both included, counted from the end where negative: Redis' ranges.

    >>> page([1, 2, 3, 4], 1, -2)
    [2, 3]
    """
    size = len(rows)
    first = max(start + size, 0) if start < 0 else start
    last = end + size if end < 0 else end
    return rows[first : last + 1] if first <= last else rows[:0]


class Container(Protocol):
    """What `CoreBase._move` needs of the home of a state."""

    def add(self, job: Job, front: bool = False) -> None:
        """Take a job that is in no container."""

    def discard(self, job: Job) -> None:
        """Let go of a job that is here."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...

    def __reversed__(self) -> Iterator[Job]: ...


class Lane:
    """
    First in, first out, with a way in at the front; iteration starts with the job that is next.

    A job that leaves from the middle is only marked (O(1)) and skipped when its place comes up; once half of the
    places are marked they are swept. `list.remove` or an ordered dict would make `drain` and `clean` quadratic, or
    every job pay for links that only few need.

    Jobs that nobody can run are set aside when they come up, so that not every fetch has to step over all of them; to
    everybody else they stand at the exit end, where they were found.

    Attributes:
        size: How many.
    """

    __slots__ = ("_aside", "_gone", "_jobs", "size")

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._aside: dict[Job, None] = {}
        self._gone: set[Job] = set()
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Job]:
        return chain(self._aside, self.in_line()) if self._aside else self.in_line()

    def __reversed__(self) -> Iterator[Job]:
        gone = self._gone
        line = (job for job in reversed(self._jobs) if job not in gone) if gone else reversed(self._jobs)
        return chain(line, reversed(self._aside)) if self._aside else line

    def in_line(self) -> Iterator[Job]:
        """As iteration, without those that were set aside."""
        return (job for job in self._jobs if job not in self._gone) if self._gone else iter(self._jobs)

    def set_aside(self, flag: int) -> None:
        """Let jobs with a flag that are next in line no longer be in the way. Cost: O(1) amortized."""
        while (job := self.head()) is not None and job.flags & flag:
            self._aside[self._jobs.popleft()] = None

    def put_back(self) -> None:
        """Have all that were set aside stand in line again, before the others."""
        self._jobs.extendleft(reversed(self._aside))
        self._aside.clear()

    def add(self, job: Job, front: bool = False) -> None:
        """Append, or put in front so that it is next. Cost: O(1), O(n) when it left from the middle before."""
        self.size += 1
        if self._gone and job in self._gone:
            # The same record comes back while its marked place still stands: two places would be ambiguous.
            self._gone.remove(job)
            self._jobs.remove(job)
        if front:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)

    def head(self) -> Job | None:
        """The job that is next, or None. Cost: O(1) amortized."""
        jobs = self._jobs
        if self._gone:
            while jobs and jobs[0] in self._gone:
                self._gone.remove(jobs.popleft())
        return jobs[0] if jobs else None

    def discard(self, job: Job) -> None:
        """Let a job go. Cost: O(1) amortized."""
        jobs = self._jobs
        self.size -= 1
        if self._aside and job in self._aside:
            del self._aside[job]
        elif jobs[0] is job:
            jobs.popleft()
        elif jobs[-1] is job:
            jobs.pop()
        else:
            self._gone.add(job)
            if len(self._gone) > 64 and len(self._gone) * 2 > len(jobs):
                self._jobs = deque(self.in_line())
                self._gone.clear()


class ActiveSet:
    """The jobs being run, by start; iteration starts with the one that was started first."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __reversed__(self) -> Iterator[Job]:
        return reversed(self._jobs.values())

    def add(self, job: Job, front: bool = False) -> None:
        """Append."""
        self._jobs[job.id] = job

    def discard(self, job: Job) -> None:
        """Let a job go."""
        del self._jobs[job.id]


class DelaySet:
    """
    Jobs by due time, and among equals by the order in which they got here. Cost: O(log n) each.

    Attributes:
        size: How many; kept here because every fetch asks, and `len` of a sorted list is two calls in Python.
    """

    __slots__ = ("_jobs", "size")

    def __init__(self) -> None:
        self._jobs: SortedKeyList[Job, int] = SortedKeyList(key=attrgetter("order"))
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __reversed__(self) -> Iterator[Job]:
        return reversed(self._jobs)

    def add(self, job: Job, front: bool = False) -> None:
        """Take a job whose `order` is set."""
        self._jobs.add(job)
        self.size += 1

    def discard(self, job: Job) -> None:
        """Let a job go; its `order` must not have changed since it was added."""
        self._jobs.remove(job)
        self.size -= 1

    def head(self) -> Job | None:
        """The job that is due first, or None. Cost: O(1)."""
        return self._jobs[0] if self.size else None

    def count_before(self, order: int) -> int:
        """How many have an `order` below the given one."""
        return self._jobs.bisect_key_left(order)

    def resort(self) -> None:
        """The `order` of many has changed. Cost: O(n) where they moved alike, as then few runs are merged."""
        self._jobs = SortedKeyList(list(self._jobs), key=attrgetter("order"))


class ScoredSet:
    """Jobs by `order`, and among equals by the bytes of their ids, as in a Redis sorted set. Cost: O(log n) each."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        # Text compares by code point, which is the order of its UTF-8 bytes.
        self._jobs: SortedKeyList[Job, tuple[int, str]] = SortedKeyList(key=attrgetter("order", "id"))

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __reversed__(self) -> Iterator[Job]:
        return reversed(self._jobs)

    def add(self, job: Job, front: bool = False) -> None:
        """Take a job whose `order` is set."""
        self._jobs.add(job)

    def discard(self, job: Job) -> None:
        """Let a job go; its `order` must not have changed since it was added."""
        self._jobs.remove(job)

    def head(self) -> Job | None:
        """The lowest one, or None. Cost: O(1)."""
        return self._jobs[0] if self._jobs else None

    def count_between(self, low: int, high: int) -> int:
        """How many have low <= order < high."""
        return self._jobs.bisect_key_left((high, "")) - self._jobs.bisect_key_left((low, ""))


class FinishedSet:
    """
    Finished jobs by (finished_on, id).

    Every run ends here, but hardly anybody looks: new ones go to a plain queue in O(1) and are merged into the sorted
    list when an order is asked for. With the default history the oldest leaves by the front of that queue again, so
    that the sorted list stays empty.
    """

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: deque[Job] = deque()
        self._sorted: SortedKeyList[Job, tuple[int, str]] = SortedKeyList(key=attrgetter("finished_on", "id"))

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.ordered())

    def __reversed__(self) -> Iterator[Job]:
        return reversed(self.ordered())

    def ordered(self) -> SortedKeyList[Job, tuple[int, str]]:
        """All of them, oldest first, indexable. Cost: O(k log n) for the k that came since the last look."""
        if self._recent:
            self._sorted.update(self._recent)
            self._recent.clear()
        return self._sorted

    def add(self, job: Job, front: bool = False) -> None:
        """Take a job whose `finished_on` is set. Cost: O(1)."""
        self._recent.append(job)

    def discard(self, job: Job) -> None:
        """Let a job go; its `finished_on` must not have changed since. Cost: O(1) for the oldest, else O(log n)."""
        if self._recent and self._recent[0] is job:
            self._recent.popleft()
        elif self._sorted and self._sorted[0] is job:
            # What was merged for a reader goes by the front again; merging more here would keep it alive for ever.
            del self._sorted[0]
        else:
            self.ordered().remove(job)
