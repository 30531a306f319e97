"""Plain records as BullMQ 5 and 6 store them in Redis (spec section 14). Pure: no connection, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from inproc_jobs.snapshot.bullmq_names import OWN_FIELD, OWN_REPEAT, REPEAT, SHORT
from inproc_jobs.snapshot.records import (
    COMPLETED,
    JobChange,
    JobRecord,
    KeyRecord,
    MetaRecord,
    ParkedRecord,
    QueueBatch,
    SchedulerRecord,
    SharedOptions,
)

__all__ = ["Command", "commands_of", "job_fields", "job_row", "meta_part"]

Command: TypeAlias = list[str]
_ARGS: Final = 2_000
"""Values in one command: Lua's `unpack` puts them on a stack of 8,000."""
_encoder: Final = msgspec.json.Encoder()


def _encode(value: Any) -> str:
    return _encoder.encode(value).decode()


def _text(number: float) -> str:
    """A number as JavaScript prints it."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return str(number) if isinstance(number, int) else repr(number)


def _slices(values: Sequence[Any], size: int = _ARGS) -> Iterable[Sequence[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _short_options(opts: Mapping[str, Any]) -> dict[str, Any]:
    stored = {SHORT.get(name, name): value for name, value in opts.items() if value is not None}
    telemetry = stored.pop("telemetry", None)
    if isinstance(telemetry, Mapping):
        if telemetry.get("metadata") is not None:
            stored["tm"] = telemetry["metadata"]
        if telemetry.get("omitContext"):
            stored["omc"] = True
    return stored


def _repeat_option(repeat: Mapping[str, Any], *, count: bool) -> dict[str, Any]:
    stored = {name: repeat[field] for field, name in REPEAT.items() if repeat.get(field) is not None}
    if count:
        stored["count"] = repeat.get("count", 0)
    return stored


def _qualified(prefix: str, queue: str) -> str:
    """A parent's queue with its prefix; one under another prefix was stored whole."""
    return queue if ":" in queue else f"{prefix}:{queue}"


# --- jobs -----------------------------------------------------------------------------------------------------------


def job_fields(record: JobRecord, prefix: str) -> Command:
    """The hash of a job: field, value, field, value, ..."""
    fields: Command = [
        "name",
        record.name,
        "data",
        record.data.decode(),
        "opts",
        _options_text(record, prefix),
        "timestamp",
        str(record.timestamp),
        "delay",
        _text(record.delay),
        "priority",
        str(record.priority),
        OWN_FIELD,
        _own_text(record),
    ]
    _add_runs(fields, record)
    _add_rest(fields, record)
    if record.parent is not None:
        queue = _qualified(prefix, record.parent["queue"])
        link: dict[str, Any] = {"id": record.parent["id"], "queueKey": queue}
        if record.parent.get("policy"):
            link[record.parent["policy"]] = True
        fields += ("parentKey", f"{queue}:{record.parent['id']}", "parent", _encode(link))
    return fields


def _add_runs(fields: Command, record: JobRecord) -> None:
    """What a job has once it has been started."""
    if record.attempts_made:
        fields += ("atm", str(record.attempts_made))
    if record.attempts_started:
        fields += ("ats", str(record.attempts_started))
    if record.stalled_count:
        fields += ("stc", str(record.stalled_count))
    if record.processed_on is not None:
        fields += ("processedOn", _text(record.processed_on))
    if record.finished_on is not None:
        fields += ("finishedOn", _text(record.finished_on))
    if record.result is not None or record.state == COMPLETED:
        # A completed job always has a value there: readers parse it.
        fields += ("returnvalue", "null" if record.result is None else record.result.decode())
    if record.failed_reason is not None:
        fields += ("failedReason", record.failed_reason)
    if record.stacktrace or record.failed_reason is not None:
        fields += ("stacktrace", _encode(record.stacktrace or []))


def _add_rest(fields: Command, record: JobRecord) -> None:
    """What few jobs have."""
    if record.progress is not None:
        fields += ("progress", record.progress.decode())
    if record.deferred_failure is not None:
        fields += ("defa", record.deferred_failure)
    if record.deduplication_id is not None:
        fields += ("deid", record.deduplication_id)
    if record.scheduler_id is not None:
        fields += ("rjk", record.scheduler_id)
    if record.worker_name is not None:
        fields += ("pb", record.worker_name)


def _options_text(record: JobRecord, prefix: str) -> str:
    shared = record.opts
    if not isinstance(shared, SharedOptions) or record.parent is not None or record.scheduler_id is not None:
        return _encode(_options_of(record, prefix))
    if shared.rendered is None:
        shared.rendered = _encode(_options_of(record, prefix))
    return shared.rendered


def _own_text(record: JobRecord) -> str:
    shared = record.own
    if not isinstance(shared, SharedOptions) or record.repeat is not None:
        return _encode(_own_of(record))
    if shared.rendered is None:
        shared.rendered = _encode(_own_of(record))
    return shared.rendered


def _options_of(record: JobRecord, prefix: str) -> dict[str, Any]:
    opts = _short_options(record.opts)
    if record.parent is not None:
        opts["parent"] = {"id": record.parent["id"], "queue": _qualified(prefix, record.parent["queue"])}
        if record.parent.get("policy"):
            opts[record.parent["policy"]] = True
    if record.scheduler_id is not None and record.repeat is not None:
        # What a worker reads to make the next iteration; without it the job is never processed.
        moment = record.id.rpartition(":")[2]
        opts |= {
            "jobId": record.id,
            "repeatJobKey": record.scheduler_id,
            "timestamp": record.timestamp,
            "repeat": _repeat_option(record.repeat, count=True),
        }
        opts.setdefault("delay", record.delay)
        if record.repeat.get("pattern") and moment.isdigit():
            opts["prevMillis"] = int(moment)
        # These come anew with every iteration, whatever has become of this one.
        opts.pop("priority", None)
        if record.repeat.get("priority"):
            opts["priority"] = record.repeat["priority"]
        if record.repeat.get("lifo"):
            opts["lifo"] = True
        if record.repeat.get("deduplication_id"):
            opts.setdefault("de", {"id": record.repeat["deduplication_id"]})
    return opts


def _own_of(record: JobRecord) -> dict[str, Any]:
    own: dict[str, Any] = {"own": record.own} if record.own else {}
    if record.repeat is not None:
        own |= {name: record.repeat[name] for name in OWN_REPEAT if record.repeat.get(name)}
    return own


def _side_commands(record: JobRecord, key: str, *, is_new: bool) -> list[Command]:
    commands: list[Command] = []
    if record.logs or not is_new:
        commands.append(["DEL", f"{key}:logs"])
    commands += [["RPUSH", f"{key}:logs", *rows] for rows in _slices(record.logs or ())]
    if record.pending is not None:
        commands += _family_commands(record, key)
    elif not is_new:
        commands.append(["DEL", *(f"{key}:{name}" for name in ("dependencies", "processed", "failed", "unsuccessful"))])
    return commands


def _family_commands(record: JobRecord, key: str) -> list[Command]:
    commands: list[Command] = [
        ["DEL", *(f"{key}:{name}" for name in ("dependencies", "processed", "failed", "unsuccessful"))]
    ]
    commands += [["SADD", f"{key}:dependencies", *keys] for keys in _slices(record.pending or [])]
    hashes: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("processed", {child: value.decode() for child, value in (record.processed or {}).items()}),
        ("failed", record.ignored or {}),
    )
    for name, mapping in hashes:
        flat: Command = [part for pair in mapping.items() for part in pair]
        commands += [["HSET", f"{key}:{name}", *pairs] for pairs in _slices(flat)]
    scores: Command = [part for child, ms in (record.unsuccessful or {}).items() for part in (_text(ms), child)]
    commands += [["ZADD", f"{key}:unsuccessful", *pairs] for pairs in _slices(scores)]
    return commands


def job_row(change: JobChange, queue: str, prefix: str, payload: bytes | None = None) -> list[Any]:
    """
    A change as the script takes it (`lua.APPLY`).

    Args:
        payload: What is stored; it is left out where it is still the same.
    """
    record = change.record
    was: str | bool = change.was or False
    if record is None:
        return [change.id, was, False, True, False, "0", "0", [], [], True]
    is_new = change.was is None
    is_whole = payload is None or payload != record.data
    fields = job_fields(record, prefix)
    if not is_whole:
        at = fields.index("data", 2)
        del fields[at : at + 2]
    return [
        change.id,
        was,
        record.state,
        change.moved,
        change.front,
        _text(record.score) if record.score else "0",
        str(record.tie),
        fields,
        _side_commands(record, f"{prefix}:{queue}:{change.id}", is_new=is_new),
        is_whole,
    ]


# --- the rest of a queue --------------------------------------------------------------------------------------------


def commands_of(batch: QueueBatch, prefix: str, now_ms: int) -> list[Command]:
    """Deduplication keys, parked adds and schedulers."""
    q = f"{prefix}:{batch.queue}"
    commands: list[Command] = []
    for id, key in batch.keys.items():
        commands.append(_key_command(f"{q}:de:{id}", key, now_ms))
    for id, parked in batch.parked.items():
        commands.append(["DEL", f"{q}:dn:{id}"])
        if parked is not None:
            commands.append(["HSET", f"{q}:dn:{id}", *_parked_fields(parked)])
    for id, scheduler in batch.schedulers.items():
        commands.append(["DEL", f"{q}:repeat:{id}"])
        if scheduler is None:
            commands.append(["ZREM", f"{q}:repeat", id])
        else:
            commands.append(["ZADD", f"{q}:repeat", _text(scheduler.next_ms), id])
            commands.append(["HSET", f"{q}:repeat:{id}", *_scheduler_fields(scheduler)])
    return commands


def _key_command(key: str, record: KeyRecord | None, now_ms: int) -> Command:
    if record is None:
        return ["DEL", key]
    if record.until_ms is None:
        return ["SET", key, record.owner]
    left = math.ceil(record.until_ms - now_ms)
    return ["SET", key, record.owner, "PX", str(left)] if left > 0 else ["DEL", key]


def _parked_fields(parked: ParkedRecord) -> Command:
    own = {"own": parked.own, "own_id": parked.own_id, "timestamp": parked.timestamp}
    return [
        "name",
        parked.name,
        "data",
        parked.data.decode(),
        "opts",
        _encode(_short_options(parked.opts)),
        "jid",
        parked.id,
        OWN_FIELD,
        _encode(own),
    ]


def _scheduler_fields(scheduler: SchedulerRecord) -> Command:
    repeat = scheduler.repeat
    fields: Command = ["name", scheduler.name, "ic", str(scheduler.iterations)]
    for name, value in _repeat_option({**repeat, "offset": scheduler.offset}, count=False).items():
        fields += (name, value if isinstance(value, str) else _text(value))
    if scheduler.template:
        fields += ("opts", _encode(_short_options(scheduler.template)))
    if scheduler.data != b"{}":
        fields += ("data", scheduler.data.decode())
    own: dict[str, Any] = {"own": scheduler.own, "opts": scheduler.opts, "repeat": repeat}
    return [*fields, OWN_FIELD, _encode(own)]


def meta_part(meta: MetaRecord, queue: str, prefix: str, now_ms: int) -> dict[str, Any]:
    """Counters and settings as the script takes them: what may be shown at once, and what is kept for the handover."""
    q = f"{prefix}:{queue}"
    commands: list[Command] = [
        ["HSET", f"{q}:meta", "paused", "1"] if meta.paused else ["HDEL", f"{q}:meta", "paused"],
        ["HDEL", f"{q}:meta", "concurrency"]
        if meta.concurrency is None
        else ["HSET", f"{q}:meta", "concurrency", str(meta.concurrency)],
        ["DEL", f"{q}:pc"] if meta.priority_counter is None else ["SET", f"{q}:pc", str(meta.priority_counter)],
    ]
    for name, (count, prev_ms, prev_count, points) in meta.metrics.items():
        key = f"{q}:metrics:{name}"
        if not count:
            continue
        commands.append(["HSET", key, "count", str(count), "prevTS", _text(prev_ms), "prevCount", str(prev_count)])
        commands.append(["DEL", f"{key}:data"])
        commands += [["RPUSH", f"{key}:data", *slice_] for slice_ in _slices([str(point) for point in points])]
    kept: Command = []
    if meta.max is not None:
        kept += ("max", _text(meta.max))
    if meta.duration is not None:
        kept += ("duration", _text(meta.duration))
    if meta.limiter_until_ms > now_ms:
        kept += ("count", str(meta.limiter_count), "until", _text(math.ceil(meta.limiter_until_ms)))
    return {"commands": commands, "kept": kept, "counter": str(meta.counter)}
