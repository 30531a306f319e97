"""The record of one queue: its containers, its id index, its settings and counters. Only `Core` writes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from inproc_jobs.core.containers import ActiveSet, Container, DelaySet, FinishedSet, Lane, ScoredSet
from inproc_jobs.core.job import Job, Repeat
from inproc_jobs.core.options import Deduplication, JobOptions
from inproc_jobs.core.states import JobState

__all__ = [
    "BACK",
    "FRONT",
    "IN_PLACE",
    "Candidate",
    "DeduplicationKey",
    "Displaced",
    "Metrics",
    "Queue",
    "Scheduler",
    "TrackedDict",
]

IN_PLACE: Final = 0
BACK: Final = 1
FRONT: Final = 2
"""How a touched job got to its place: not moved, put behind, put in front. See `Queue.touched`."""

K = TypeVar("K")
V = TypeVar("V")


class TrackedDict(dict[K, V]):
    """A dict that notes which keys were written or deleted, for a store; values that change inside are set again."""

    def __init__(self, given: Mapping[K, V]) -> None:
        super().__init__(given)
        # What was there before the tracking began is news to a store as well.
        self.touched: dict[K, None] = dict.fromkeys(given)

    def __setitem__(self, key: K, value: V) -> None:
        self.touched[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self.touched[key] = None
        super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        """As `dict.pop`."""
        if key in self:
            self.touched[key] = None
        return super().pop(key, *default)

    def clear(self) -> None:
        """As `dict.clear`."""
        self.touched.update(dict.fromkeys(self))
        super().clear()


class DeduplicationKey:
    """
    Who owns a deduplication id, and until when (None: no time limit).

    Attributes:
        in_heap: Whether `Queue.deduplication_ends` has its one entry for this key.
    """

    __slots__ = ("id", "in_heap", "owner", "until_ms")

    def __init__(self, id: str, owner: str, until_ms: float | None) -> None:
        self.id = id
        self.owner = owner
        self.until_ms = until_ms
        self.in_heap = False


class Candidate(msgspec.Struct, eq=False):
    """
    An add with a deduplication id: what it takes to make its job now, or later when it was parked.

    Attributes:
        over: Of one that is parked and in no store yet: the stored one whose place it took.
        heir: What has taken its own place: a later add, or the job that was made of it.
    """

    deduplication: Deduplication
    id: str
    name: str
    data: bytes
    opts: JobOptions
    timestamp: int
    flags: int
    delay: float
    priority: int
    over: Candidate | None = None
    heir: Candidate | Job | None = None


class Displaced(msgspec.Struct):
    """
    What a job that is in no store yet has pushed out, to be brought back should the store not take that job.

    Attributes:
        job: The record, as it was: its order and its end still tell where it stood.
        state: Where it stood.
        key_id, key_until_ms: The deduplication key that it owned; None for none.
        parked: The add that waited for its end.
    """

    job: Job
    state: JobState
    key_id: str | None = None
    key_until_ms: float | None = None
    parked: Candidate | None = None


class Scheduler(msgspec.Struct):
    """
    A job scheduler (spec section 11.2).

    Attributes:
        id, name: Of the scheduler; of its jobs.
        data: Payload of its jobs as JSON text.
        repeat: When, as of the latest upsert.
        opts: Of its jobs.
        next_ms: Moment of the iteration that is pending, or was made last.
        iterations: How many were made, the first upsert counted as one.
        offset: Shift against the grid, as stored; None if never.
        template: The options as given, for BullMQ's readers; empty for none.
    """

    id: str
    name: str
    data: bytes
    repeat: Repeat
    opts: JobOptions
    next_ms: int
    iterations: int = 1
    offset: int | None = None
    template: Mapping[str, Any] = {}


class Metrics:
    """Finishes per minute, newest first, as BullMQ collects them (spec section 10.9)."""

    __slots__ = ("count", "data", "prev_count", "prev_ms")

    def __init__(self) -> None:
        self.count = 0
        self.prev_ms = 0
        self.prev_count = 0
        self.data: list[int] = []


class Queue:
    """
    One queue.

    Attributes:
        name, key: Its name; `prefix:name`, the start of its keys in BullMQ's layout.
        index: id -> record, for every stored job.
        wait ... waiting_children: The home of each state; `containers` has the same by state.
        counter: Last automatic id; grows at every add, duplicates included (spec 2.1).
        priority_counter: Order among equal priorities; None once both ready containers were found empty.
        sequence: Order among jobs due in the same millisecond.
        paused, concurrency, max, duration: BullMQ's meta; None is not set.
        limiter_count, limiter_until_ms: The rate window; `until` 0 is no window.
        locks: id of an active job -> token; lock_until_ms: id -> end, only for locks that run out.
        stalled_ids, stalled_check_until_ms: What the last stalled check marked, and when the next may run.
        deduplication: deduplication id -> owner; parked: deduplication id -> the add that waits for its owner's end.
        deduplication_ends: Heap of (end, tie breaker, key), one for each key with a time limit, to drop ended ones.
        schedulers: scheduler id -> record.
        metrics: "completed" and "failed".
        history: How many finished jobs with a free id stay, by state; None where the rule is BullMQ's alone.
        past: Those jobs, oldest first, by state.
        max_waiting: Bound of waiting, prioritized and delayed jobs together; None is none.
        reserved: Places that a bulk add has been promised and not yet used.
        held: How many jobs are stored nowhere yet and must not start before they are (flag HELD).
        displaced: Job that is held -> what it has pushed out; displacing: the same, until the add that does it has made
            its job; unstored: jobs that were pushed out before a store had them.
        unhandled: Name of a job -> jobs of a store that are parked since nobody has defined that name (flag PARKED).
        unreadable: id -> why, of jobs that a store has and nobody can read (flag UNREADABLE).
        touched: id -> how it got to its place, for every job that a store must be told of, in the order of the latest
            moves; replaying those on what is stored gives the order of the waiting list. None while nothing is tracked.
    """

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.key = f"{prefix}:{name}"
        self.index: dict[str, Job] = {}
        self.wait = Lane()
        self.prioritized = ScoredSet()
        self.delayed = DelaySet()
        self.active = ActiveSet()
        self.completed = FinishedSet()
        self.failed = FinishedSet()
        self.waiting_children = ScoredSet()
        self.containers: dict[JobState, Container] = {
            JobState.WAITING: self.wait,
            JobState.PRIORITIZED: self.prioritized,
            JobState.DELAYED: self.delayed,
            JobState.ACTIVE: self.active,
            JobState.COMPLETED: self.completed,
            JobState.FAILED: self.failed,
            JobState.WAITING_CHILDREN: self.waiting_children,
        }
        self.counter = 0
        self.priority_counter: int | None = None
        self.sequence = 0
        self.paused = False
        self.concurrency: int | None = None
        self.max: int | None = None
        self.duration: float | None = None
        self.limiter_count = 0
        self.limiter_until_ms: float = 0
        self.locks: dict[str, Any] = {}
        self.lock_until_ms: dict[str, float] = {}
        self.stalled_ids: dict[str, None] = {}
        self.stalled_check_until_ms: float = 0
        self.deduplication: dict[str, DeduplicationKey] = {}
        self.deduplication_ends: list[tuple[float, int, DeduplicationKey]] = []
        self.parked: dict[str, Candidate] = {}
        self.schedulers: dict[str, Scheduler] = {}
        self.metrics = {"completed": Metrics(), "failed": Metrics()}
        self.history: dict[JobState, int] | None = None
        self.past: dict[JobState, Lane] = {JobState.COMPLETED: Lane(), JobState.FAILED: Lane()}
        self.max_waiting: int | None = None
        self.reserved = 0
        self.held = 0
        self.displaced: dict[Job, list[Displaced]] = {}
        self.displacing: list[Displaced] = []
        self.unstored: dict[Job, None] = {}
        self.unhandled: dict[str, dict[Job, None]] = {}
        self.unreadable: dict[str, str] = {}
        self.touched: dict[str, int] | None = None

    def track(self) -> None:
        """Note from now on what a store must be told."""
        if self.touched is None:
            self.touched = {}
            self.deduplication = TrackedDict(self.deduplication)
            self.parked = TrackedDict(self.parked)
            self.schedulers = TrackedDict(self.schedulers)

    @property
    def ready_count(self) -> int:
        """Jobs that a fetch could take now."""
        return self.wait.size + len(self.prioritized)

    @property
    def waiting_count(self) -> int:
        """Jobs that have not started: waiting, prioritized and delayed."""
        return len(self.wait) + len(self.prioritized) + len(self.delayed)
