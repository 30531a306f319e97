"""
Frozen records of choices: what a job, a worker or a retention rule was told to do.

These are shared: a definition resolves its options once, and every job of it points at the same record. They are
checked where they are made (facade: `inproc_jobs.app.options`; BullMQ's own, laxer rules: `core.bullmq_options`),
so the core trusts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = [
    "DEFAULT_OPTIONS",
    "DEFAULT_WORKER",
    "Backoff",
    "Deduplication",
    "JobOptions",
    "Limiter",
    "Retention",
    "WorkerOptions",
]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """
    How long a failed job waits.

    Attributes:
        type: "fixed", "exponential", or the name of a custom strategy (its result is handed to `Core.fail`).
        delay_ms: Base of the built-in types; None counts as BullMQ's undefined.
        jitter: Share of the delay that may be taken off, 0..1.
        max_delay_ms: Cap of the result. Ours, not BullMQ's; None is no cap.
    """

    type: str = "fixed"
    delay_ms: float | None = 0
    jitter: float = 0.0
    max_delay_ms: int | None = None


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """
    Which finished jobs stay, applied at each finish (BullMQ: `removeOnComplete`, `removeOnFail`).

    Attributes:
        count: How many of that outcome stay; 0 deletes only this job; None keeps all.
        age_s: SECONDS, as in BullMQ; older ones go at the next finish; None is no limit.
        limit: How many the age rule deletes per finish.
    """

    count: int | None = None
    age_s: float | None = None
    limit: int = 1000


class Deduplication(msgspec.Struct, frozen=True, kw_only=True):
    """
    Collapsing by a deduplication id (spec section 4).

    Attributes:
        id: Key shared by the jobs that collapse.
        ttl_ms: Life of the key; 0 is until the job has ended.
        extend: A duplicate restarts the life of the key.
        replace: A duplicate replaces a job that is still delayed.
        reschedule: A duplicate moves a delayed job to its own due time.
        keep_last: A duplicate of an active job is kept and runs once after it (`keepLastIfActive`).
    """

    id: str
    ttl_ms: float = 0
    extend: bool = False
    replace: bool = False
    reschedule: bool = False
    keep_last: bool = False


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    What every job of a definition shares.

    Attributes:
        attempts: Runs at most; 0 and 1 are one run.
        backoff: Wait between attempts; None retries at once.
        lifo: A new or retried job goes to the exit end.
        remove_on_complete, remove_on_fail: None is "not set": the worker's option decides, and where that is not
            set either the job is kept; with `frees_id` its id is free and the queue's history bounds it.
        keep_logs: Rows kept per job; None or 0 keeps all.
        size_limit: Bytes of JSON data at most; 0 or None is no limit.
        stack_trace_limit: Traces kept; 0 keeps none, None all.
        fail_parent, continue_parent, ignore_dependency, remove_dependency: What a final failure does to the parent.
        frees_id: A finished job without retention gives its id back (DESIGN 2.1). Ours, stored on the job.
        timeout_ms: Longest attempt, enforced by the runtime. Ours.
        given: The options as BullMQ's dict, for jobs that were added at that level; else None.
    """

    attempts: int = 0
    backoff: Backoff | None = None
    lifo: bool = False
    remove_on_complete: Retention | None = None
    remove_on_fail: Retention | None = None
    keep_logs: int | None = None
    size_limit: int | None = None
    stack_trace_limit: int | None = None
    fail_parent: bool = False
    continue_parent: bool = False
    ignore_dependency: bool = False
    remove_dependency: bool = False
    frees_id: bool = False
    timeout_ms: int | None = None
    given: Mapping[str, Any] | None = None


class Limiter(msgspec.Struct, frozen=True, kw_only=True):
    """At most `max` starts per `duration_ms`, in a window that opens with the first start."""

    max: int
    duration_ms: float


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a worker brings to each fetch and finish (spec section 9.1).

    Attributes:
        name: Stored on the jobs it takes; None stores nothing.
        limiter: Rate limit of this worker; the queue's global one has precedence for `max`.
        lock_ms: Life of a job's lock; None never runs out (a worker inside this process cannot vanish alone).
        stalled_interval_ms: Time between two checks for stalled jobs.
        max_stalled_count: Stalls a job survives.
        max_started_attempts: Starts after which a job is failed unseen; None is no bound.
        remove_on_complete, remove_on_fail: Used where the job has none.
        metrics_points: Minutes of metrics kept; 0 collects none.
    """

    name: str | None = None
    limiter: Limiter | None = None
    lock_ms: int | None = None
    stalled_interval_ms: float = 30_000
    max_stalled_count: int = 1
    max_started_attempts: int | None = None
    remove_on_complete: Retention | None = None
    remove_on_fail: Retention | None = None
    metrics_points: int = 0


DEFAULT_OPTIONS: Final = JobOptions()
DEFAULT_WORKER: Final = WorkerOptions()
