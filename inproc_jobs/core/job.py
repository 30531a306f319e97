"""
The record of one job.

Shape: a million of these may be alive, so the record holds atoms and shared, frozen options only, and the garbage
collector does not track it (`gc=False`): a full collection with a million delayed jobs would otherwise stop the
host for 200-300 ms. What few jobs need (errors, logs, parents, ...) sits in `JobExtra`, made on first use. Neither
may ever point at something that points back (a waiter, an engine, a traceback): such a cycle would leak.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from inproc_jobs.core.options import JobOptions
from inproc_jobs.core.states import JobState

__all__ = [
    "ABSOLUTE_DUE",
    "CUSTOM_ID",
    "DUE_BITS",
    "HELD",
    "IN_HISTORY",
    "LIFO",
    "OLD_MARKER",
    "PARKED",
    "UNREADABLE",
    "WATCHED",
    "Children",
    "Duplicate",
    "Job",
    "JobExtra",
    "ParentLink",
    "Repeat",
]

CUSTOM_ID: Final = 1
"""Flag: the id was given, not drawn from the counter."""
ABSOLUTE_DUE: Final = 2
"""Flag: the due time was given as a date, so a step of the wall clock does not move it (DESIGN 2.7)."""
WATCHED: Final = 4
"""Flag: somebody waits for the end; the core then reports it in `Core.ended`."""
LIFO: Final = 8
"""Flag: this job was added with lifo, beside what its shared options say."""
IN_HISTORY: Final = 16
"""Flag: finished, its id is free, and it stands in its queue's bounded history (`Queue.past`)."""
OLD_MARKER: Final = 32
"""Flag: its id starts with "0:", which BullMQ's fetch takes for a marker of its old versions and throws away."""
HELD: Final = 64
"""Flag: it must not start before a store has it (mode `write_through`)."""
PARKED: Final = 128
"""Flag: it came from a store and nobody has defined its name: fetches step over it (DESIGN 4, "No handler")."""
UNREADABLE: Final = 256
"""Flag: a store has a job of this id that cannot be read; it stands in no state, and only keeps its id taken."""
_LOWEST_DUE_MS: Final = 1 << 13
DUE_BITS: Final = 40
"""A delayed job's `order` is `due_ms << DUE_BITS | seq`: one int that never ties. 40 bits of seq last 10^12 delays."""


class ParentLink(msgspec.Struct, frozen=True):
    """
    Where a flow child reports to.

    Attributes:
        id, queue: The parent.
        policy: "fpof", "cpof", "idof" or "rdof" (what the child's final failure does), or "" for none.
    """

    id: str
    queue: str
    policy: str = ""


class Children(msgspec.Struct):
    """
    A parent's view of its children; keys are full child keys `prefix:queue:id`.

    Attributes:
        pending: Not done yet, in order of attaching; values unused.
        processed: Result JSON of those that completed.
        ignored: Reason of those whose failure was ignored.
        unsuccessful: Time (ms) of fatal failures.
    """

    pending: dict[str, None] = msgspec.field(default_factory=dict)
    processed: dict[str, bytes] = msgspec.field(default_factory=dict)
    ignored: dict[str, str] = msgspec.field(default_factory=dict)
    unsuccessful: dict[str, int] = msgspec.field(default_factory=dict)


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a scheduler's iteration knows of its schedule, so that it can produce the next one (spec section 11).

    Attributes:
        every: Interval in ms, or None.
        pattern: Cron expression, or None.
        tz: Time zone of the pattern.
        limit: Iterations per upsert.
        start_ms, end_ms: First and last moment.
        offset: Shift against the grid of `every`.
        immediately: The first iteration of a pattern is due at once.
        count: Which iteration this is; 0 before the first.
        priority, deduplication_id: What each iteration gets anew; a changed priority does not carry over.
        lifo: Each iteration that is due at once goes to the exit end.
        catch_up: What becomes of moments that passed while nothing could run: "once" runs one of them late, as BullMQ
            does; "all" runs each; "skip" runs none. Ours, stored on the job.
    """

    every: float | None = None
    pattern: str | None = None
    tz: str | None = None
    limit: float | None = None
    start_ms: float | None = None
    end_ms: float | None = None
    offset: float | None = None
    immediately: bool = False
    count: int = 0
    priority: int = 0
    deduplication_id: str | None = None
    lifo: bool = False
    catch_up: str = "once"


class JobExtra(msgspec.Struct):
    """What few jobs need. None and empty mean: never set."""

    failed_reason: str | None = None
    stacktrace: list[str] = []
    progress: bytes | None = None
    logs: list[str] = []
    stalled_count: int = 0
    deferred_failure: str | None = None
    deduplication_id: str | None = None
    scheduler_id: str | None = None
    repeat: Repeat | None = None
    worker_name: str | None = None
    parent: ParentLink | None = None
    children: Children | None = None
    context: dict[str, Any] | None = None
    promoted_due_ms: int | None = None


class Job(msgspec.Struct, gc=False, eq=False):
    """
    One job. Only `Core` writes to it.

    Attributes:
        id, name: Text. The id is unique in its queue.
        data: Payload as JSON text.
        opts: Shared, frozen.
        timestamp: Creation, ms.
        state: See `JobState`; REMOVED before it is added and after it has left.
        order: Key inside its container: delayed `due_ms << DUE_BITS | seq`, prioritized `priority << 32 | counter`,
            waiting-children the ms it entered; meaningless elsewhere.
        delay: Current delay in ms; 0 once promoted (BullMQ's field `delay`).
        priority: 0 is none.
        attempts_made, attempts_started: Attempts that ended; attempts that began.
        processed_on, finished_on: ms of the latest start, of the end; None if not (yet).
        result: Result as JSON text once completed.
        flags: Bits, see the constants of this module.
        extra: Rarely used parts, None until one is set.
    """

    id: str
    name: str
    data: bytes
    opts: JobOptions
    timestamp: int
    flags: int = 0
    delay: float = 0
    priority: int = 0
    state: JobState = JobState.REMOVED
    order: int = 0
    attempts_made: int = 0
    attempts_started: int = 0
    processed_on: int | None = None
    finished_on: int | None = None
    result: bytes | None = None
    extra: JobExtra | None = None

    def more(self) -> JobExtra:
        """The extra part, made when first needed."""
        if self.extra is None:
            self.extra = JobExtra()
        return self.extra

    @property
    def due_ms(self) -> int | None:
        """When a delayed job is due; None in any other state."""
        return self.order >> DUE_BITS if self.state is JobState.DELAYED else None

    @property
    def scheduled_ms(self) -> int:
        """
        When the current or latest attempt was due: the due time of a delay or retry, else the creation.

        A promoted job without a priority still has its due time in `order`; one with a priority has it in `extra`.
        """
        if self.extra is not None and self.extra.promoted_due_ms is not None:
            return self.extra.promoted_due_ms
        # Of a job that had a priority, or waited for children, the order says something else, and is small.
        due_ms = self.order >> DUE_BITS
        return due_ms if due_ms > _LOWEST_DUE_MS and not self.priority else self.timestamp


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """
    The answer to an add that made no job.

    Attributes:
        id: Id of the job that won.
        job: Its record, None where a deduplication key outlived its job.
    """

    id: str
    job: Job | None
