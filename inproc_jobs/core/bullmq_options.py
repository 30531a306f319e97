"""
BullMQ's option dicts, read with BullMQ's own lax rules, refused with its own words (spec sections 2.1 to 2.3).

Used where programs speak BullMQ's language: the test double, the replayer of recorded traces, snapshots. The facade has
a stricter reader and does not come here. A dict is what JavaScript would have: an absent key is `undefined`, None is
`null`, and truth is JavaScript's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from inproc_jobs.core.javascript import is_number, number, parse_int, through_lua, truthy, truthy_in_lua
from inproc_jobs.core.job import LIFO, OLD_MARKER, ParentLink, Repeat
from inproc_jobs.core.options import Backoff, Deduplication, JobOptions, Limiter, Retention, WorkerOptions
from inproc_jobs.core.trees import NewJob
from inproc_jobs.errors import InvalidOptionError, InvalidOptionTypeError

__all__ = [
    "Schedule",
    "check_debounce",
    "check_new_id",
    "job_opts",
    "merge",
    "parse_job",
    "parse_repeat",
    "parse_worker",
    "read_options",
    "stored",
]

PRIORITY_LIMIT: Final = 2_097_151
_POLICIES: Final = {
    "removeDependencyOnFailure": "rdof",
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
}
_DEBOUNCE: Final = "Debounce option has been removed. Use deduplication option instead"
_NOT_SHOWN: Final = frozenset(("repeat", "prevMillis", "timestamp", "repeatJobKey"))


class Schedule(msgspec.Struct, frozen=True):
    """A scheduler, read and checked: when, the options of its jobs, and those options as they were given."""

    repeat: Repeat
    opts: JobOptions
    template: dict[str, Any]


# --- adding -------------------------------------------------------------------------------------------------------


def check_new_id(opts: Mapping[str, Any]) -> None:
    """
    What `Queue.add`, and only it, looks at before anything else.

    Raises:
        InvalidOptionError: The id is "0" or starts with "0:".
        InvalidOptionTypeError: It is not text.
    """
    id = opts.get("jobId")
    if id is None:
        return
    if isinstance(id, (bool, int, float)) and id == 0:
        id = "0"
    if not isinstance(id, str):
        raise InvalidOptionTypeError("jobId.startsWith is not a function", option="jobId", value=id)
    if id == "0" or id.startswith("0:"):
        raise InvalidOptionError("JobId cannot be '0' or start with '0:'", option="jobId", value=id)


def merge(defaults: Mapping[str, Any] | None, opts: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of one job: the queue's defaults, then its own; only its own id counts."""
    merged = {**(defaults or {}), **(opts or {})}
    merged.pop("jobId", None)
    if opts and "jobId" in opts:
        merged["jobId"] = opts["jobId"]
    return merged


def parse_job(
    queue: str, name: str, data: bytes, opts: Mapping[str, Any], now_ms: int, *, prefix: str = "bull"
) -> NewJob:
    """
    Read the merged options of one add.

    Args:
        data: Payload as JSON text.
        prefix: Start of the qualified names of queues, as in `opts.parent.queue`.

    Raises:
        InvalidOptionError: With BullMQ's words, in BullMQ's order of checks. Nothing has changed.
    """
    parent = opts.get("parent")
    _check(name, data, opts, has_parent=truthy(parent))
    kept = stored(opts)
    delay = kept.get("delay", 0)
    id = opts.get("jobId") or ""
    flags = LIFO if truthy_in_lua(kept.get("lifo")) else 0
    timestamp = number(opts.get("timestamp"))
    unheeded = 0 if is_number(delay) else number(delay)
    return NewJob(
        queue=queue,
        name=name,
        data=data,
        opts=read_options(kept),
        id=id,
        delay=delay if is_number(delay) else 0,
        priority=kept.get("priority") or 0,
        timestamp=timestamp if truthy(timestamp) else now_ms,  # type: ignore[arg-type]  # may be a fraction
        flags=flags | (OLD_MARKER if id.startswith("0:") else 0),
        deduplication=_deduplication(kept.get("deduplication")),
        parent=_parent_link(parent, opts, prefix) if truthy(parent) else None,
        scheduler_id=opts.get("repeatJobKey"),
        unheeded_delay=unheeded if truthy(unheeded) else 0,
    )


def _check(name: str, data: bytes, opts: Mapping[str, Any], *, has_parent: bool) -> None:
    """BullMQ's `validateOptions`, in its order."""
    limit = opts.get("sizeLimit")
    if truthy(limit) and len(data) > number(limit):
        raise InvalidOptionError(f"The size of job {name} exceeds the limit {limit} bytes", option="sizeLimit")
    chosen = [policy for policy in _POLICIES if truthy(opts.get(policy))]
    if len(chosen) > 1:
        raise InvalidOptionError(f"The following options cannot be used together: {', '.join(chosen)}")
    _check_id(opts.get("jobId"))
    priority = opts.get("priority")
    if truthy(priority):
        if not is_number(priority) or math.trunc(priority) != priority:
            raise InvalidOptionError("Priority should not be float", option="priority", value=priority)
        if priority > PRIORITY_LIMIT:
            raise InvalidOptionError(
                f"Priority should be between 0 and {PRIORITY_LIMIT}", option="priority", value=priority
            )
    deduplication = opts.get("deduplication")
    if truthy(deduplication):
        if not isinstance(deduplication, Mapping) or not truthy(deduplication.get("id")):
            raise InvalidOptionError("Deduplication id must be provided", option="deduplication")
        if has_parent:
            raise InvalidOptionError("Deduplication and parent options cannot be used together")
    check_debounce(opts)
    backoff = opts.get("backoff")
    jitter = backoff.get("jitter") if isinstance(backoff, Mapping) else None
    if is_number(jitter) and not 0 <= jitter <= 1:
        raise InvalidOptionError("Jitter should be between 0 and 1", option="backoff", value=jitter)


def check_debounce(opts: Mapping[str, Any]) -> None:
    """
    Refuse the option that BullMQ 6 no longer has, even without a value.

    Raises:
        InvalidOptionError: It is there.
    """
    if "debounce" in opts:
        raise InvalidOptionError(_DEBOUNCE, option="debounce")


def _check_id(id: Any) -> None:
    if not truthy(id):
        return
    if not isinstance(id, str):
        raise InvalidOptionTypeError("this.opts.jobId.includes is not a function", option="jobId", value=id)
    if parse_int(id) == id:
        raise InvalidOptionError("Custom Id cannot be integers", option="jobId", value=id)
    if ":" in id and id.count(":") != 2:
        raise InvalidOptionError("Custom Id cannot contain :", option="jobId", value=id)


def _parent_link(parent: Any, opts: Mapping[str, Any], prefix: str) -> ParentLink:
    policy = next((short for long, short in _POLICIES.items() if truthy(opts.get(long))), "")
    fields = parent if isinstance(parent, Mapping) else {}
    id, queue = (str(fields.get(key, "undefined")) for key in ("id", "queue"))
    return ParentLink(id, queue.removeprefix(f"{prefix}:"), policy)


# --- options ------------------------------------------------------------------------------------------------------


def stored(opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    The options as they can be read back: `attempts` always there, a number as backoff turned into a policy, nulls gone,
    empty lists turned into objects, numbers cut to 14 digits (they pass through msgpack and Lua's JSON).
    """
    kept: dict[str, Any] = {"attempts": 0, **opts}
    backoff = kept.pop("backoff", None)
    if is_number(backoff) and math.isfinite(backoff):
        kept["backoff"] = {"type": "fixed", "delay": backoff}
    elif truthy(backoff):
        kept["backoff"] = backoff
    result: dict[str, Any] = through_lua(kept)
    result.setdefault("attempts", 0)
    return result


def job_opts(given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Options as a job handle shows them, without what belongs to schedulers and the moment of creation."""
    return {key: value for key, value in {**given, **more}.items() if key not in _NOT_SHOWN}


def read_options(kept: dict[str, Any]) -> JobOptions:
    """The options record of options as they are stored."""
    return JobOptions(
        attempts=number(kept.get("attempts", 0)),  # type: ignore[arg-type]  # a fraction is compared like any number
        backoff=_backoff(kept.get("backoff")),
        lifo=truthy(kept.get("lifo")),
        remove_on_complete=_retention(kept.get("removeOnComplete")),
        remove_on_fail=_retention(kept.get("removeOnFail")),
        keep_logs=_whole(kept.get("keepLogs")),
        size_limit=_whole(kept.get("sizeLimit")),
        stack_trace_limit=_whole(kept.get("stackTraceLimit")),
        fail_parent=truthy(kept.get("failParentOnFailure")),
        continue_parent=truthy(kept.get("continueParentOnFailure")),
        ignore_dependency=truthy(kept.get("ignoreDependencyOnFailure")),
        remove_dependency=truthy(kept.get("removeDependencyOnFailure")),
        given=kept,
    )


def _whole(value: Any) -> int | None:
    """A number, or a text that is one, without its fraction."""
    found = number(value) if isinstance(value, str) else value
    return int(found) if is_number(found) and math.isfinite(found) else None


def _backoff(value: Any) -> Backoff | None:
    if not truthy(value):
        return None
    if not isinstance(value, Mapping):
        return Backoff(type="undefined")
    delay, jitter = value.get("delay"), value.get("jitter", 0)
    return Backoff(
        type=str(value.get("type", "undefined")),
        delay_ms=None if delay is None else number(delay),
        jitter=jitter if is_number(jitter) else 0,
    )


def _retention(value: Any) -> Retention | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        count, age, limit = value.get("count"), value.get("age"), value.get("limit")
        return Retention(
            count=_bound(count),
            age_s=number(age) if age is not None else None,
            limit=int(limit) if is_number(limit) else 1000,
        )
    if is_number(value):
        return Retention(count=_bound(value))
    return Retention(count=0 if truthy(value) else None)


def _bound(count: Any) -> int | None:
    """A count of 0 or more; a negative one keeps all."""
    return int(count) if is_number(count) and count >= 0 else None


def _deduplication(value: Any) -> Deduplication | None:
    if not isinstance(value, Mapping) or not truthy(value.get("id")):
        return None
    ttl = value.get("ttl")
    return Deduplication(
        id=str(value["id"]),
        ttl_ms=ttl if is_number(ttl) else 0,
        extend=truthy_in_lua(value.get("extend")),
        replace=truthy_in_lua(value.get("replace")),
        reschedule=truthy_in_lua(value.get("reschedule")),
        keep_last=truthy_in_lua(value.get("keepLastIfActive")),
    )


def parse_worker(opts: Mapping[str, Any]) -> WorkerOptions:
    """Read a worker's options."""
    limiter, metrics = opts.get("limiter"), opts.get("metrics") or {}
    return WorkerOptions(
        name=opts.get("name"),
        limiter=Limiter(max=limiter["max"], duration_ms=limiter["duration"]) if limiter else None,
        lock_ms=opts.get("lockDuration", 30_000),
        stalled_interval_ms=opts.get("stalledInterval", 30_000),
        max_stalled_count=opts.get("maxStalledCount", 1),
        max_started_attempts=opts.get("maxStartedAttempts"),
        remove_on_complete=_retention(opts.get("removeOnComplete")),
        remove_on_fail=_retention(opts.get("removeOnFail")),
        metrics_points=metrics.get("maxDataPoints") or 0,
    )


# --- schedulers ---------------------------------------------------------------------------------------------------


def parse_repeat(repeat: Mapping[str, Any], opts: Mapping[str, Any], now_ms: int) -> Schedule:
    """
    Read the arguments of `upsertJobScheduler`, of which `opts` are merged with the queue's defaults.

    Raises:
        InvalidOptionError: With BullMQ's words, in BullMQ's order of checks. Nothing has changed.
    """
    every, pattern, end = repeat.get("every"), repeat.get("pattern"), repeat.get("endDate")
    if truthy(end) and number(end) < now_ms:
        raise InvalidOptionError("End date must be greater than current timestamp", option="endDate", value=end)
    if truthy(pattern) and truthy(every):
        raise InvalidOptionError("Both .pattern and .every options are defined for this repeatable job")
    if not truthy(pattern) and not truthy(every):
        raise InvalidOptionError("Either .pattern or .every options must be defined for this repeatable job")
    if truthy(repeat.get("immediately")) and truthy(repeat.get("startDate")):
        raise InvalidOptionError("Both .immediately and .startDate options are defined for this repeatable job")
    check_debounce(opts)
    # The first iteration goes in as it was given; what is added to every job is added when it is read.
    template = through_lua(opts)
    kept = {key: value for key, value in template.items() if key != "jobId"}
    deduplication = kept.get("deduplication")
    plan = Repeat(
        every=number(every) if truthy(every) else None,
        pattern=pattern if truthy(pattern) else None,
        tz=repeat.get("tz"),
        # JavaScript compares null as 0, so a null forbids the first iteration.
        limit=repeat["limit"] or 0 if "limit" in repeat else None,
        start_ms=repeat.get("startDate"),
        end_ms=end,
        offset=repeat.get("offset"),
        immediately=truthy(repeat.get("immediately")),
        priority=kept.get("priority") or 0,
        deduplication_id=str(deduplication["id"])
        if isinstance(deduplication, dict) and "id" in deduplication
        else None,
        lifo=truthy_in_lua(kept.get("lifo")),
    )
    return Schedule(plan, read_options(stored(kept)), template)
