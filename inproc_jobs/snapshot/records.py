"""
The state of an engine as plain data: what a store is told of changes, and what it gives back at the start.

Nothing here knows a store. Everything is made of text, numbers, bytes of JSON text, and containers of those: no record can
be part of a cycle, so the collector need not look at those that come by the thousand (`gc=False`). Each time that it
looks at everything, the host's loop stands still.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

__all__ = [
    "ACTIVE",
    "COMPLETED",
    "DELAYED",
    "FAILED",
    "PRIORITIZED",
    "WAITING",
    "WAITING_CHILDREN",
    "Batch",
    "JobChange",
    "JobRecord",
    "KeyRecord",
    "MetaRecord",
    "ParkedRecord",
    "QueueBatch",
    "QueueState",
    "SchedulerRecord",
    "SharedOptions",
]

WAITING: Final = "waiting"
PRIORITIZED: Final = "prioritized"
DELAYED: Final = "delayed"
ACTIVE: Final = "active"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
WAITING_CHILDREN: Final = "waiting-children"


class SharedOptions(dict[str, Any]):
    """
    Options that many records have in common: one object, never changed.

    Attributes:
        rendered: What a store makes of it, once for all of them; None until then.
    """

    __slots__ = ("rendered",)

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.rendered: str | None = None


class JobRecord(msgspec.Struct, kw_only=True, gc=False):
    """
    One job.

    Attributes:
        opts: Options as BullMQ's dict with its public names (attempts, backoff, removeOnComplete, ...), JSON values.
        own: What is ours and not BullMQ's (frees_id, timeout_ms, max_delay_ms, absolute, catch_up, ...); one extra hash
            field in BullMQ's layout. Both are `SharedOptions` where nothing in them belongs to this job alone.
        state: One of the words above.
        score: delayed: due ms (may have a fraction); prioritized: priority << 32 | counter; waiting-children: ms it
            entered; completed, failed: finished_on; else 0.
        tie: Order among delayed jobs of the same due ms.
        deduplication_id ... prev_repeat: None or empty where not set.
        result: JSON text; failed_reason: plain text; stacktrace: texts, oldest first; logs: rows, oldest first; None for none.
        parent: {"id", "queue", "policy"} ("fpof", "cpof", "idof", "rdof" or ""), None for none.
        pending: Full keys of pending children; processed: key -> JSON text; ignored: key -> reason; unsuccessful:
            key -> ms. All None for a job that never had children.
        repeat: The schedule an iteration carries (fields of `core.job.Repeat`), None for other jobs.
    """

    id: str
    name: str
    data: bytes
    opts: dict[str, Any]
    own: dict[str, Any]
    timestamp: int
    delay: float
    priority: int
    state: str
    score: float
    tie: int = 0
    attempts_made: int = 0
    attempts_started: int = 0
    processed_on: int | None = None
    finished_on: int | None = None
    result: bytes | None = None
    failed_reason: str | None = None
    stacktrace: list[str] | None = None
    progress: bytes | None = None
    logs: list[str] | None = None
    stalled_count: int = 0
    deferred_failure: str | None = None
    deduplication_id: str | None = None
    scheduler_id: str | None = None
    repeat: dict[str, Any] | None = None
    worker_name: str | None = None
    parent: dict[str, Any] | None = None
    pending: list[str] | None = None
    processed: dict[str, bytes] | None = None
    ignored: dict[str, str] | None = None
    unsuccessful: dict[str, int] | None = None


class JobChange(msgspec.Struct, gc=False):
    """
    What has become of one job since the store was told last.

    Attributes:
        id: Which.
        record: As it is now; None: it is gone.
        was: State in which the store has it; None: the store has never had it; "?": nobody knows (a write whose outcome
            is unknown), so it must be looked for everywhere.
        front: Of a waiting job that has moved: it was put in front (next to run). Changes are given in the order of the
            moves, so replaying them on the stored list gives its order.
        moved: Whether it must be taken out of its old place and put into its new one; False: only its record changed.
    """

    id: str
    record: JobRecord | None
    was: str | None
    front: bool = False
    moved: bool = True


class KeyRecord(msgspec.Struct):
    """A deduplication key: its owner, and its end in epoch ms, None for no time limit."""

    owner: str
    until_ms: float | None


class ParkedRecord(msgspec.Struct):
    """
    An add that waits for the end of the owner of its deduplication id (BullMQ's `dn`).

    Attributes:
        id: Id that the job will get; own_id: whether it was given by the caller.
        opts, own: As in `JobRecord`.
    """

    id: str
    own_id: bool
    name: str
    data: bytes
    opts: dict[str, Any]
    own: dict[str, Any]
    timestamp: int
    delay: float
    priority: int


class SchedulerRecord(msgspec.Struct):
    """
    A scheduler.

    Attributes:
        repeat: Fields of `core.job.Repeat` that are set.
        opts, own: Options of its jobs, as in `JobRecord`.
        template: Template options as BullMQ's readers show them, {} for none.
    """

    id: str
    name: str
    data: bytes
    repeat: dict[str, Any]
    opts: dict[str, Any]
    own: dict[str, Any]
    next_ms: int
    iterations: int
    offset: int | None
    template: dict[str, Any] = {}


class MetaRecord(msgspec.Struct, frozen=True):
    """
    Counters and settings of a queue.

    Attributes:
        counter: Last automatic id. Never goes back in a store.
        priority_counter: None for none.
        paused, concurrency, max, duration: BullMQ's meta.
        limiter_count, limiter_until_ms: The rate window; until 0 is none.
        metrics: ("completed" and "failed") (count, prev_ms, prev_count, points).
    """

    counter: int
    priority_counter: int | None
    paused: bool
    concurrency: int | None
    max: int | None
    duration: float | None
    limiter_count: int
    limiter_until_ms: float
    metrics: dict[str, tuple[int, int, int, tuple[int, ...]]]


class QueueBatch(msgspec.Struct):
    """
    Changes of one queue.

    Attributes:
        jobs: In the order of their latest moves.
        meta: None: unchanged.
        keys, parked, schedulers: id -> record as it is now, None: gone.
    """

    queue: str
    jobs: list[JobChange] = []
    meta: MetaRecord | None = None
    keys: dict[str, KeyRecord | None] = {}
    parked: dict[str, ParkedRecord | None] = {}
    schedulers: dict[str, SchedulerRecord | None] = {}


class Batch(msgspec.Struct):
    """One atomic write: all of it, or nothing."""

    now_ms: int
    queues: list[QueueBatch] = []


class QueueState(msgspec.Struct):
    """
    One queue as a store gives it back.

    Attributes:
        jobs: In any order, except that waiting ones come next-to-run first and active ones oldest first.
        unreadable: id -> why, for jobs that cannot be read; they are parked, and the store keeps them unchanged.
        whole: Of a state that was polled: it is a part of a queue that was taken over just now, not an addition.
    """

    queue: str
    meta: MetaRecord
    jobs: list[JobRecord] = []
    keys: dict[str, KeyRecord] = {}
    parked: dict[str, ParkedRecord] = {}
    schedulers: dict[str, SchedulerRecord] = {}
    unreadable: dict[str, str] = {}
    whole: bool = False
