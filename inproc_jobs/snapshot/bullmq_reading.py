"""
Records out of what BullMQ 5 and 6, or we, have stored in Redis (spec section 14). Pure: no connection, no clock.

Whatever stands there, the answer is a record or an `UnreadableJobError`: others write into the same keys.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from inproc_jobs.snapshot.bullmq_names import BLOCKED_MAX, OWN_FIELD, OWN_REPEAT, POLICY_OPTIONS, REPEAT, SHORT
from inproc_jobs.snapshot.records import (
    COMPLETED,
    DELAYED,
    FAILED,
    PRIORITIZED,
    WAITING_CHILDREN,
    JobRecord,
    MetaRecord,
    ParkedRecord,
    QueueState,
    SchedulerRecord,
)

__all__ = [
    "UnreadableJobError",
    "meta_record",
    "parked_record",
    "queues_linked_to",
    "read_job",
    "scheduler_record",
    "scored",
]

_LONG: Final = {short: long for long, short in SHORT.items()} | {"debounce": "deduplication"}
_ELSEWHERE: Final = frozenset(("repeat", "repeatJobKey", "parent"))
_check: Final = msgspec.json.Decoder(msgspec.Raw).decode


class UnreadableJobError(ValueError):
    """What is stored under a job's key is no job that can be read; the message says why."""


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


def _long_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    opts = {_LONG.get(name, name): value for name, value in stored.items() if name not in {"tm", "omc"}}
    telemetry = {long: stored[short] for short, long in (("tm", "metadata"), ("omc", "omitContext")) if short in stored}
    if telemetry:
        opts["telemetry"] = telemetry
    return opts


def _read_repeat(stored: Mapping[str, Any], opts: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `core.job.Repeat` that are set, from a schedule and the options of its jobs."""
    repeat: dict[str, Any] = {}
    for field, name in REPEAT.items():
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
    repeat |= {name: own[name] for name in OWN_REPEAT if own.get(name)}
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
        return msgspec.json.encode(text)
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
    policy = next((short for short in POLICY_OPTIONS if link.get(short) or stored.get(short)), "")
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
