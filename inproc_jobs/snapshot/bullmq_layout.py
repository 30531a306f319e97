"""
Plain records as BullMQ 5 and 6 store them in Redis, and back (spec section 14). Pure: no connection, no clock.

What is ours sits in one extra field, `inproc`, which BullMQ leaves alone: its presence says that we know this job.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from inproc_jobs.snapshot.records import (
    COMPLETED,
    DELAYED,
    FAILED,
    PRIORITIZED,
    WAITING_CHILDREN,
    JobChange,
    JobRecord,
    KeyRecord,
    MetaRecord,
    ParkedRecord,
    QueueBatch,
    QueueState,
    SchedulerRecord,
    SharedOptions,
)

__all__ = [
    "BLOCKED_MAX",
    "OWN_FIELD",
    "Command",
    "UnreadableJobError",
    "commands_of",
    "job_fields",
    "job_row",
    "meta_part",
    "meta_record",
    "parked_record",
    "queues_linked_to",
    "read_job",
    "scheduler_record",
    "scored",
]

Command: TypeAlias = list[str]
OWN_FIELD: Final = "inproc"
BLOCKED_MAX: Final = "9007199254740991"
_ARGS: Final = 2_000
"""Values in one command: Lua's `unpack` puts them on a stack of 8,000."""
_SHORT: Final = {
    "deduplication": "de",
    "keepLogs": "kl",
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
    "removeDependencyOnFailure": "rdof",
}
_LONG: Final = {short: long for long, short in _SHORT.items()} | {"debounce": "deduplication"}
_POLICY_OPTIONS: Final = {short: long for long, short in _SHORT.items() if short not in {"de", "kl"}}
_REPEAT: Final = {
    "every": "every",
    "pattern": "pattern",
    "tz": "tz",
    "limit": "limit",
    "start_ms": "startDate",
    "end_ms": "endDate",
    "offset": "offset",
}
_ELSEWHERE: Final = frozenset(("repeat", "repeatJobKey", "parent"))
_OWN_REPEAT: Final = ("catch_up", "immediately")
"""Parts of a schedule that BullMQ does not store."""
_encoder = msgspec.json.Encoder()
_check = msgspec.json.Decoder(msgspec.Raw).decode


def _encode(value: Any) -> str:
    return _encoder.encode(value).decode()


class UnreadableJobError(ValueError):
    """What is stored under a job's key is no job that can be read; the message says why."""


# --- numbers and text ---------------------------------------------------------------------------------------------


def _text(number: float) -> str:
    """A number as JavaScript prints it."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return str(number) if isinstance(number, int) else repr(number)


def _number(text: Any, default: float = 0) -> float:
    """A stored number, whatever its form; the default for what is none."""
    if isinstance(text, bool) or text is None:
        return default
    if isinstance(text, (int, float)):
        return text
    try:
        value = float(text)
    except (TypeError, ValueError):
        return default
    if not math.isfinite(value):
        return default
    return int(text) if str(text).lstrip("-").isdigit() else (int(value) if value.is_integer() else value)


def _int(text: Any, default: int = 0) -> int:
    if text is None:
        return default
    try:
        return int(text)
    except (TypeError, ValueError, OverflowError):
        return int(_number(text, default))


def _optional(text: Any) -> int | None:
    return None if text is None or text == "" else _int(text)


def _moment(value: Any) -> float | None:
    """A date of a schedule: ms, or the ISO text that old versions kept."""
    if isinstance(value, str) and not value.lstrip("-").replace(".", "", 1).isdigit():
        try:
            return round(datetime.fromisoformat(value).timestamp() * 1000)
        except ValueError:
            return None
    return None if value is None else _number(value)


def _json(text: str | bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableJobError(f"{what} is no JSON text: {error}") from None


def _check_json(text: str, what: str) -> None:
    """As `_json`, without building the value."""
    try:
        _check(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableJobError(f"{what} is no JSON text: {error}") from None


@functools.lru_cache(maxsize=2_000)
def _json_object(text: str, what: str) -> dict[str, Any]:
    """A small object that many jobs share; callers copy what they hand out."""
    value = _json(text, what)
    if not isinstance(value, dict):
        raise UnreadableJobError(f"{what} is no object")
    return value


def _slices(values: Sequence[Any], size: int = _ARGS) -> Iterable[Sequence[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


# --- options ------------------------------------------------------------------------------------------------------


def _short_options(opts: Mapping[str, Any]) -> dict[str, Any]:
    stored = {_SHORT.get(name, name): value for name, value in opts.items() if value is not None}
    telemetry = stored.pop("telemetry", None)
    if isinstance(telemetry, Mapping):
        if telemetry.get("metadata") is not None:
            stored["tm"] = telemetry["metadata"]
        if telemetry.get("omitContext"):
            stored["omc"] = True
    return stored


def _long_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    opts = {_LONG.get(name, name): value for name, value in stored.items() if name not in {"tm", "omc"}}
    telemetry = {long: stored[short] for short, long in (("tm", "metadata"), ("omc", "omitContext")) if short in stored}
    if telemetry:
        opts["telemetry"] = telemetry
    return opts


def _repeat_option(repeat: Mapping[str, Any], *, count: bool) -> dict[str, Any]:
    stored = {name: repeat[field] for field, name in _REPEAT.items() if repeat.get(field) is not None}
    if count:
        stored["count"] = repeat.get("count", 0)
    return stored


def _read_repeat(stored: Mapping[str, Any], opts: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `core.job.Repeat` that are set, from a schedule and the options of its jobs."""
    repeat: dict[str, Any] = {}
    for field, name in _REPEAT.items():
        value = stored.get(name)
        if value is None or value == "":
            continue
        if field in {"pattern", "tz"}:
            repeat[field] = str(value)
        else:
            repeat[field] = _moment(value) if field in {"start_ms", "end_ms"} else _number(value)
    if stored.get("count") is not None:
        repeat["count"] = _int(stored["count"])
    if priority := _int(opts.get("priority")):
        repeat["priority"] = priority
    deduplication = opts.get("deduplication")
    if isinstance(deduplication, Mapping) and deduplication.get("id"):
        repeat["deduplication_id"] = str(deduplication["id"])
    if opts.get("lifo"):
        repeat["lifo"] = True
    repeat |= {name: own[name] for name in _OWN_REPEAT if own.get(name)}
    return {name: value for name, value in repeat.items() if value is not None}


def queues_linked_to(state: QueueState, prefix: str) -> set[str]:
    """Queues in which parents and children of these jobs are, as far as they are under the same prefix."""
    names: set[str] = set()
    start = f"{prefix}:"
    for record in state.jobs:
        if record.parent is not None:
            names.add(record.parent["queue"])
        for keys in (record.pending, record.processed, record.ignored, record.unsuccessful):
            names.update(key[len(start) :].rpartition(":")[0] for key in keys or () if key.startswith(start))
    names.discard(state.queue)
    return names


def _qualified(prefix: str, queue: str) -> str:
    """A parent's queue with its prefix; one under another prefix was stored whole."""
    return queue if ":" in queue else f"{prefix}:{queue}"


# --- jobs -> Redis ------------------------------------------------------------------------------------------------


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
        own |= {name: record.repeat[name] for name in _OWN_REPEAT if record.repeat.get(name)}
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


# --- the rest of a queue -> Redis ---------------------------------------------------------------------------------


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


# --- Redis -> records ---------------------------------------------------------------------------------------------


def scored(state: str, score: float, fields: Mapping[str, str]) -> tuple[float, int]:
    """(score, tie) of a record, from the score in Redis."""
    if state == DELAYED:
        due = math.floor(score / 4096)
        beside = fields.get("inprocTie")
        # Those whose order is kept beside share the last score of their ms, so they come after all others of it.
        return due, 4096 + _int(beside) if beside is not None else int(score - due * 4096)
    return (int(score) if state in {PRIORITIZED, WAITING_CHILDREN, COMPLETED, FAILED} else 0), 0


def read_job(id: str, state: str, score: float, fields: Mapping[str, str], prefix: str) -> JobRecord:
    """
    A stored job, without its logs and children.

    Raises:
        UnreadableJobError: It is damaged.
    """
    if "name" not in fields:
        raise UnreadableJobError("it has no name")
    data = fields.get("data", "{}")
    _check_json(data, "its data")
    stored = _json_object(fields.get("opts") or "{}", "its field opts")
    mark = _json_object(fields.get(OWN_FIELD) or "{}", f"its field {OWN_FIELD}")
    own = mark.get("own", {})
    if not isinstance(own, dict):
        raise UnreadableJobError(f"its field {OWN_FIELD} is no object")
    opts = _long_options(stored)
    placed, tie = scored(state, score, fields)
    scheduler_id = fields.get("rjk")
    repeat = None
    if scheduler_id is not None and isinstance(opts.get("repeat"), dict):
        repeat = {"count": 0, **_read_repeat(opts["repeat"], opts, mark)}
    finished = _optional(fields.get("finishedOn"))
    return JobRecord(
        id=id,
        name=fields["name"],
        data=data.encode(),
        opts={name: value for name, value in opts.items() if name not in _ELSEWHERE},
        own=dict(own),
        timestamp=_int(fields.get("timestamp")),
        delay=_number(fields.get("delay")),
        priority=_int(fields.get("priority")),
        state=state,
        score=placed,
        tie=tie,
        attempts_made=_int(fields.get("attemptsMade", fields.get("atm"))),
        attempts_started=_int(fields.get("ats")),
        processed_on=_optional(fields.get("processedOn")),
        finished_on=int(placed) if finished is None and state in {COMPLETED, FAILED} else finished,
        result=_result(fields, state),
        failed_reason=fields.get("failedReason"),
        stacktrace=_traces(fields.get("stacktrace")) or None,
        progress=_progress(fields.get("progress")),
        stalled_count=_int(fields.get("stc")),
        deferred_failure=fields.get("defa"),
        deduplication_id=fields.get("deid"),
        scheduler_id=scheduler_id,
        repeat=repeat,
        worker_name=fields.get("pb"),
        parent=_read_parent(fields, stored, prefix),
    )


def _result(fields: Mapping[str, str], state: str) -> bytes | None:
    text = fields.get("returnvalue")
    if text is None:
        return b"null" if state == COMPLETED else None
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        # BullMQ's reader takes such a value as text too.
        return _encode(text).encode()
    return text.encode()


def _traces(text: str | None) -> list[str]:
    with contextlib.suppress(msgspec.DecodeError):
        traces = msgspec.json.decode(text) if text else []
        if isinstance(traces, list):
            return [str(trace) for trace in traces if trace is not None]
    return []


def _progress(text: str | None) -> bytes | None:
    if not text:
        return None
    _json(text, "its progress")
    return text.encode()


def _read_parent(fields: Mapping[str, str], stored: Mapping[str, Any], prefix: str) -> dict[str, Any] | None:
    key = fields.get("parentKey")
    if not key:
        return None
    link = _json(fields["parent"], "its field parent") if fields.get("parent") else {}
    if not isinstance(link, dict):
        raise UnreadableJobError("its field parent is no object")
    queue = str(link.get("queueKey") or key.rpartition(":")[0])
    id = str(link.get("id") or key.removeprefix(f"{queue}:"))
    policy = next((short for short in _POLICY_OPTIONS if link.get(short) or stored.get(short)), "")
    return {"id": id, "queue": queue.removeprefix(f"{prefix}:"), "policy": policy}


def parked_record(fields: Mapping[str, str]) -> ParkedRecord:
    """
    An add that waits for the owner of its deduplication id.

    Raises:
        UnreadableJobError: It is damaged.
    """
    id = fields.get("jid", "")
    stored = _json(fields.get("opts") or "{}", "its field opts")
    mark = _json(fields.get(OWN_FIELD) or "{}", f"its field {OWN_FIELD}")
    if not isinstance(stored, dict) or not isinstance(mark, dict) or "name" not in fields:
        raise UnreadableJobError("a parked add is incomplete")
    data = fields.get("data", "{}").encode()
    _json(data, "its data")
    opts = _long_options(stored)
    return ParkedRecord(
        id,
        bool(mark.get("own_id", not id.isdigit())),
        fields["name"],
        data,
        opts,
        mark.get("own", {}),
        _int(mark.get("timestamp", opts.get("timestamp"))),
        _number(opts.get("delay")),
        _int(opts.get("priority")),
    )


def scheduler_record(id: str, next_ms: float, fields: Mapping[str, str]) -> SchedulerRecord:
    """
    A scheduler.

    Raises:
        UnreadableJobError: It is damaged, or of a version before schedulers (it has no count of iterations).
    """
    if "ic" not in fields:
        raise UnreadableJobError("it is a repeatable job of an old BullMQ; migrate it to a job scheduler first")
    stored = _json(fields.get("opts") or "{}", "its field opts")
    mark = _json(fields.get(OWN_FIELD) or "{}", f"its field {OWN_FIELD}")
    if not isinstance(stored, dict) or not isinstance(mark, dict):
        raise UnreadableJobError("its field opts is no object")
    data = (fields.get("data") or "{}").encode()
    _json(data, "its data")
    template = _long_options(stored)
    repeat = _read_repeat(fields, template, {})
    repeat.pop("offset", None)
    # Ours says more, as long as nobody else has written the schedule anew (which drops our field).
    repeat = {**repeat, **mark["repeat"]} if isinstance(mark.get("repeat"), dict) else repeat
    return SchedulerRecord(
        id,
        fields.get("name", id),
        data,
        repeat,
        mark.get("opts", template),
        mark.get("own", {}),
        int(next_ms),
        _int(fields["ic"], 1),
        _optional(fields.get("offset")),
        template,
    )


def meta_record(
    meta: Mapping[str, str],
    kept: Mapping[str, str],
    counter: str | None,
    priority_counter: str | None,
    limiter: tuple[str | None, int],
    metrics: Mapping[str, tuple[Mapping[str, str], Sequence[str]]],
    now_ms: int,
) -> MetaRecord:
    """Counters and settings of a queue, looking behind what its blocked limiter shows."""
    limit = kept if kept.get("shown") is not None and kept["shown"] == meta.get("max") else meta
    maximum, duration = limit.get("max"), limit.get("duration")
    if maximum is not None and _int(maximum) >= int(BLOCKED_MAX):
        # Left behind by an owner that died.
        maximum = duration = None
    count, left = limiter
    until: float = now_ms + left
    if count == BLOCKED_MAX or count is None or left <= 0:
        count, until = kept.get("count", "0"), _number(kept.get("until"))
    stored = _int(counter)
    if kept.get("counter") is not None and kept.get("ahead") == counter:
        stored = _int(kept["counter"])
    return MetaRecord(
        counter=stored,
        priority_counter=_optional(priority_counter),
        paused="paused" in meta,
        concurrency=_optional(meta.get("concurrency")),
        max=_optional(maximum),
        duration=None if duration is None else _number(duration),
        limiter_count=_int(count),
        limiter_until_ms=until if until > now_ms else 0,
        metrics={
            name: (
                _int(fields.get("count")),
                _int(fields.get("prevTS")),
                _int(fields.get("prevCount")),
                tuple(_int(point) for point in points),
            )
            for name, (fields, points) in metrics.items()
        },
    )
