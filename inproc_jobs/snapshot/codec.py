"""
Between the core and plain records, both ways.

What is BullMQ's goes into `opts` under its public names, so that a real BullMQ reads it; what is ours (the free-id rule,
timeouts, caps) goes into `own`, which ends up in one field that BullMQ leaves alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from inproc_jobs.core.bullmq_options import read_options
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import ABSOLUTE_DUE, CUSTOM_ID, DUE_BITS, LIFO, Children, Job, ParentLink, Repeat
from inproc_jobs.core.options import Backoff, Deduplication, JobOptions, Retention
from inproc_jobs.core.queue import BACK, FRONT, IN_PLACE, Candidate, Metrics, Queue, Scheduler
from inproc_jobs.core.states import (
    ACTIVE,
    COMPLETED,
    DELAYED,
    FAILED,
    PRIORITIZED,
    WAITING,
    WAITING_CHILDREN,
    JobState,
)
from inproc_jobs.snapshot.records import (
    JobChange,
    JobRecord,
    KeyRecord,
    MetaRecord,
    ParkedRecord,
    QueueState,
    SchedulerRecord,
    SharedOptions,
)

__all__ = ["BACK", "FRONT", "IN_PLACE", "JobChange", "OptionsCache", "meta_of", "record_of", "restore_queue"]

_STARTING: Final = frozenset((WAITING, PRIORITIZED, ACTIVE))
"""States in which a job no longer has its due time as its order, and its handler may still ask for it."""
_OF_THE_JOB: Final = frozenset(("absolute", "due_ms"))
"""What `own` says of a single job, not of its options."""
_TIE_MASK: Final = (1 << DUE_BITS) - 1
_DEDUPLICATION: Final = {
    "id": "id",
    "ttl": "ttl_ms",
    "extend": "extend",
    "replace": "replace",
    "reschedule": "reschedule",
    "keepLastIfActive": "keep_last",
}


class OptionsCache:
    """
    Options as dicts, and back. Both ways share: a million jobs of one definition have one record of options.

    The key is the record's identity: hashing its content would cost more than rendering it.
    """

    def __init__(self) -> None:
        self._rendered: dict[int, tuple[JobOptions, SharedOptions, SharedOptions]] = {}
        self._read: dict[bytes, JobOptions] = {}

    def render(self, opts: JobOptions) -> tuple[SharedOptions, SharedOptions]:
        """(BullMQ's dict, ours). Callers copy before they add to either."""
        known = self._rendered.get(id(opts))
        if known is None or known[0] is not opts:
            if len(self._rendered) > 10_000:
                self._rendered.clear()
            given, own = _render(opts)
            known = self._rendered[id(opts)] = (opts, SharedOptions(given), SharedOptions(own))
        return known[1], known[2]

    def read(self, opts: Mapping[str, Any], own: Mapping[str, Any]) -> JobOptions:
        """The options of a stored job."""
        shared = {key: value for key, value in opts.items() if key not in _PER_JOB}
        key = json.dumps((shared, own), sort_keys=True).encode()
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = _read(shared, own)
        return known


_PER_JOB: Final = frozenset(
    ("jobId", "delay", "priority", "timestamp", "deduplication", "parent", "repeat", "prevMillis")
)


def _render(opts: JobOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    own: dict[str, Any] = {}
    if opts.frees_id:
        own["frees_id"] = True
    if opts.timeout_ms is not None:
        own["timeout_ms"] = opts.timeout_ms
    if opts.backoff is not None and opts.backoff.max_delay_ms is not None:
        own["max_delay_ms"] = opts.backoff.max_delay_ms
    if opts.given is not None:
        return dict(opts.given), own
    given: dict[str, Any] = {"attempts": opts.attempts}
    if opts.backoff is not None:
        given["backoff"] = _render_backoff(opts.backoff)
    # Default retention frees the id, which BullMQ can only do by removing the job (DESIGN 6).
    keep = opts.remove_on_complete
    given["removeOnComplete"] = True if keep is None and opts.frees_id else _render_retention(keep)
    given["removeOnFail"] = _render_retention(opts.remove_on_fail)
    own["kept"] = [keep is not None, opts.remove_on_fail is not None]
    flags = (
        ("lifo", opts.lifo),
        ("keepLogs", opts.keep_logs),
        ("sizeLimit", opts.size_limit),
        ("stackTraceLimit", opts.stack_trace_limit),
        ("failParentOnFailure", opts.fail_parent),
        ("continueParentOnFailure", opts.continue_parent),
        ("ignoreDependencyOnFailure", opts.ignore_dependency),
        ("removeDependencyOnFailure", opts.remove_dependency),
    )
    given |= {name: value for name, value in flags if value is not False}
    return {key: value for key, value in given.items() if value is not None}, own


def _render_backoff(backoff: Backoff) -> dict[str, Any]:
    given: dict[str, Any] = {"type": backoff.type}
    if backoff.delay_ms is not None:
        given["delay"] = backoff.delay_ms
    if backoff.jitter:
        given["jitter"] = backoff.jitter
    return given


def _render_retention(keep: Retention | None) -> Any:
    if keep is None:
        return None
    if keep.count == 0 and keep.age_s is None:
        return True
    if keep.count is None and keep.age_s is None:
        return False
    given: dict[str, Any] = {}
    if keep.count is not None:
        given["count"] = keep.count
    if keep.age_s is not None:
        given["age"] = keep.age_s
        given["limit"] = keep.limit
    return given


def _read(opts: Mapping[str, Any], own: Mapping[str, Any]) -> JobOptions:
    read = read_options({"attempts": 0, **opts})
    changes: dict[str, Any] = {}
    if "kept" in own:
        complete, fail = own["kept"]
        changes = {"given": None, "frees_id": bool(own.get("frees_id"))}
        if not complete:
            changes["remove_on_complete"] = None
        if not fail:
            changes["remove_on_fail"] = None
    elif own.get("frees_id"):
        changes["frees_id"] = True
    if "timeout_ms" in own:
        changes["timeout_ms"] = own["timeout_ms"]
    if "max_delay_ms" in own and read.backoff is not None:
        changes["backoff"] = msgspec.structs.replace(read.backoff, max_delay_ms=own["max_delay_ms"])
    return msgspec.structs.replace(read, **changes) if changes else read


# --- core -> records ----------------------------------------------------------------------------------------------


def record_of(job: Job, cache: OptionsCache) -> JobRecord:
    """A job as plain data. Under the core's lock. Cost: O(size of what it holds beside its payload)."""
    shared_opts, shared_own = cache.render(job.opts)
    opts, own = _opts_of_the_job(job), _own_of_the_job(job)
    score, tie = _score_of(job)
    record = JobRecord(
        id=job.id,
        name=job.name,
        data=job.data,
        opts={**shared_opts, **opts} if opts else shared_opts,
        own={**shared_own, **own} if own else shared_own,
        timestamp=int(job.timestamp),
        delay=job.delay,
        priority=job.priority,
        state=job.state.value,
        score=score,
        tie=tie,
        attempts_made=job.attempts_made,
        attempts_started=job.attempts_started,
        processed_on=job.processed_on,
        finished_on=job.finished_on,
        result=job.result,
    )
    if job.extra is not None:
        _add_extra(record, job)
    return record


def _opts_of_the_job(job: Job) -> dict[str, Any]:
    """What BullMQ has among the options of a job, and no other job shares."""
    opts: dict[str, Any] = {}
    if job.flags & CUSTOM_ID:
        opts["jobId"] = job.id
    if job.delay and job.state is DELAYED and not job.attempts_started:
        opts["delay"] = job.delay
    if job.priority:
        opts["priority"] = job.priority
    if job.flags & LIFO:
        opts["lifo"] = True
    return opts


def _own_of_the_job(job: Job) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if job.flags & ABSOLUTE_DUE:
        own["absolute"] = True
    if job.state in _STARTING and job.scheduled_ms != job.timestamp:
        own["due_ms"] = job.scheduled_ms
    return own


def _score_of(job: Job) -> tuple[float, int]:
    if job.state is DELAYED:
        return job.order >> DUE_BITS, job.order & _TIE_MASK
    if job.state is COMPLETED or job.state is FAILED:
        return job.finished_on or 0, 0
    return (job.order, 0) if job.state is PRIORITIZED or job.state is WAITING_CHILDREN else (0, 0)


def _add_extra(record: JobRecord, job: Job) -> None:
    extra = job.extra
    assert extra is not None  # asked by the caller
    record.failed_reason = extra.failed_reason
    record.stacktrace = list(extra.stacktrace) or None
    record.progress = extra.progress
    record.logs = list(extra.logs) or None
    record.stalled_count = extra.stalled_count
    record.deferred_failure = extra.deferred_failure
    record.deduplication_id = extra.deduplication_id
    record.scheduler_id = extra.scheduler_id
    record.worker_name = extra.worker_name
    if extra.deduplication_id is not None and "deduplication" not in record.opts:
        record.opts = {**record.opts, "deduplication": {"id": extra.deduplication_id}}
    if extra.repeat is not None:
        record.repeat = _repeat_fields(extra.repeat)
    if extra.parent is not None:
        record.parent = {"id": extra.parent.id, "queue": extra.parent.queue, "policy": extra.parent.policy}
    if extra.children is not None:
        record.pending = list(extra.children.pending)
        record.processed = dict(extra.children.processed)
        record.ignored = dict(extra.children.ignored)
        record.unsuccessful = dict(extra.children.unsuccessful)


def _repeat_fields(repeat: Repeat) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(repeat)
    return {name: value for name, value in fields.items() if value not in (None, False, 0) or name == "count"}


def key_record(queue: Queue, id: str) -> KeyRecord | None:
    """A deduplication key, None when it is gone."""
    key = queue.deduplication.get(id)
    return None if key is None else KeyRecord(key.owner, key.until_ms)


def parked_record(queue: Queue, id: str, cache: OptionsCache) -> ParkedRecord | None:
    """A parked add, None when it is gone."""
    new: Candidate | None = queue.parked.get(id)
    if new is None:
        return None
    shared_opts, shared_own = cache.render(new.opts)
    opts, own = dict(shared_opts), dict(shared_own)
    opts["deduplication"] = {
        name: getattr(new.deduplication, field)
        for name, field in _DEDUPLICATION.items()
        if getattr(new.deduplication, field)
    }
    if new.flags & CUSTOM_ID:
        opts["jobId"] = new.id
    if new.delay:
        opts["delay"] = new.delay
    if new.priority:
        opts["priority"] = new.priority
    if new.flags & LIFO:
        opts["lifo"] = True
    if new.flags & ABSOLUTE_DUE:
        own["absolute"] = True
    return ParkedRecord(
        new.id,
        bool(new.flags & CUSTOM_ID),
        new.name,
        new.data,
        opts,
        own,
        int(new.timestamp),
        new.delay,
        new.priority,
    )


def scheduler_record(queue: Queue, id: str, cache: OptionsCache) -> SchedulerRecord | None:
    """A scheduler, None when it is gone."""
    one: Scheduler | None = queue.schedulers.get(id)
    if one is None:
        return None
    opts, own = cache.render(one.opts)
    return SchedulerRecord(
        one.id,
        one.name,
        one.data,
        _repeat_fields(one.repeat),
        dict(opts),
        dict(own),
        one.next_ms,
        one.iterations,
        one.offset,
        dict(one.template) or dict(opts),
    )


def meta_of(queue: Queue) -> MetaRecord:
    """Counters and settings of a queue."""
    return MetaRecord(
        counter=queue.counter,
        priority_counter=queue.priority_counter,
        paused=queue.paused,
        concurrency=queue.concurrency,
        max=queue.max,
        duration=queue.duration,
        limiter_count=queue.limiter_count,
        limiter_until_ms=queue.limiter_until_ms,
        metrics={
            name: (one.count, one.prev_ms, one.prev_count, tuple(one.data)) for name, one in queue.metrics.items()
        },
    )


# --- records -> core ----------------------------------------------------------------------------------------------


def restore_queue(core: Core, state: QueueState, cache: OptionsCache) -> tuple[dict[str, str], list[str]]:
    """
    Put a queue together; `Core.finish_restore` completes it.

    Returns:
        id -> why, for jobs that cannot be taken in; they stay in the store as they are. And what else was left alone.
    """
    queue = core.queue(state.queue)
    unreadable = dict(state.unreadable)
    strange: list[str] = []
    _restore_meta(queue, state.meta)
    # The history is oldest first, so finished jobs come in by their end; lists keep the order that the store gave.
    for record in sorted(state.jobs, key=lambda one: one.finished_on or 0):
        try:
            core.restore_job(queue, job_of(record, cache), JobState(record.state), record.score, record.tie)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one record, the others are not to suffer
            unreadable[record.id] = f"{type(error).__name__}: {error}"
    for id, why in unreadable.items():
        core.keep_unreadable(queue, id, why)
    for id, key in state.keys.items():
        core.set_deduplication_key(queue, id, key.owner, key.until_ms)
    for id, new in state.parked.items():
        try:
            queue.parked[id] = _candidate(id, new, cache)
        except Exception as error:  # noqa: BLE001  # as above
            strange.append(f"the add parked behind deduplication id {id!r}: {error}")
    for id, one in state.schedulers.items():
        try:
            queue.schedulers[id] = _scheduler(id, one, cache)
        except Exception as error:  # noqa: BLE001  # as above
            strange.append(f"scheduler {id!r}: {error}")
    return unreadable, strange


def _scheduler(id: str, one: SchedulerRecord, cache: OptionsCache) -> Scheduler:
    repeat = msgspec.convert(one.repeat, Repeat)
    opts = cache.read(one.opts, one.own)
    return Scheduler(id, one.name, one.data, repeat, opts, one.next_ms, one.iterations, one.offset, one.template)


def _restore_meta(queue: Queue, meta: MetaRecord) -> None:
    queue.counter = meta.counter
    queue.priority_counter = meta.priority_counter
    queue.paused = meta.paused
    queue.concurrency, queue.max, queue.duration = meta.concurrency, meta.max, meta.duration
    queue.limiter_count, queue.limiter_until_ms = meta.limiter_count, meta.limiter_until_ms
    for name, (count, prev_ms, prev_count, points) in meta.metrics.items():
        metrics = queue.metrics.setdefault(name, Metrics())
        metrics.count, metrics.prev_ms, metrics.prev_count, metrics.data = count, prev_ms, prev_count, list(points)


def job_of(record: JobRecord, cache: OptionsCache) -> Job:
    """The core's record of a stored job, outside of every container."""
    flags = CUSTOM_ID if record.opts.get("jobId") else 0
    if record.own.get("absolute"):
        flags |= ABSOLUTE_DUE
    own = {name: value for name, value in record.own.items() if name not in _OF_THE_JOB}
    job = Job(
        record.id,
        record.name,
        record.data,
        cache.read(record.opts, own),
        record.timestamp,
        flags,
        record.delay,
        record.priority,
        attempts_made=record.attempts_made,
        attempts_started=record.attempts_started,
        processed_on=record.processed_on,
        finished_on=record.finished_on,
        result=record.result,
    )
    if record.finished_on is None and record.state in {"completed", "failed"}:
        job.finished_on = int(record.score)
    _restore_extra(job, record)
    if "due_ms" in record.own:
        job.more().promoted_due_ms = int(record.own["due_ms"])
    return job


def _restore_extra(job: Job, record: JobRecord) -> None:
    """The rarely used part, made only where one of its fields is set."""
    fields: dict[str, Any] = {
        name: value for name in _EXTRA_FIELDS if (value := getattr(record, name)) is not None and value not in ([], 0)
    }
    if record.repeat is not None:
        fields["repeat"] = msgspec.convert(record.repeat, Repeat)
    if record.parent is not None:
        fields["parent"] = msgspec.convert(record.parent, ParentLink)
    if record.pending is not None:
        fields["children"] = Children(
            dict.fromkeys(record.pending),
            dict(record.processed or {}),
            dict(record.ignored or {}),
            dict(record.unsuccessful or {}),
        )
    if fields:
        extra = job.more()
        for name, value in fields.items():
            setattr(extra, name, value)


_EXTRA_FIELDS: Final = (
    "failed_reason",
    "stacktrace",
    "progress",
    "logs",
    "stalled_count",
    "deferred_failure",
    "deduplication_id",
    "scheduler_id",
    "worker_name",
)


def _candidate(id: str, new: ParkedRecord, cache: OptionsCache) -> Candidate:
    given = new.opts.get("deduplication") or {}
    rule = Deduplication(
        **{field: given[name] for name, field in _DEDUPLICATION.items() if name in given and name != "id"}, id=id
    )
    flags = (CUSTOM_ID if new.own_id else 0) | (LIFO if new.opts.get("lifo") else 0)
    if new.own.get("absolute"):
        flags |= ABSOLUTE_DUE
    own = {name: value for name, value in new.own.items() if name not in _OF_THE_JOB}
    opts = cache.read({key: value for key, value in new.opts.items() if key != "lifo"}, own)
    return Candidate(rule, new.id, new.name, new.data, opts, new.timestamp, flags, new.delay, new.priority)
