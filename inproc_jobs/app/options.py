"""
The facade's options: checked strictly, once, where they are given; what passes here the core can trust.

Stricter than BullMQ on purpose (DESIGN 2): whatever would walk into one of its traps is refused at dispatch. Three
layers are merged: a dispatch beats `define_job`, which beats `Engine(default_job_options=...)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, get_args

import msgspec

from inproc_jobs.core import options as core
from inproc_jobs.core.durations import parse_ms, run_at_ms
from inproc_jobs.errors import InvalidDurationError, InvalidJobIdError, InvalidOptionError, InvalidOptionTypeError

__all__ = [
    "CUSTOM_BACKOFF",
    "MAX_JOB_ID",
    "MAX_PRIORITY",
    "Deduplication",
    "DispatchOptions",
    "Duration",
    "ExecutorName",
    "Layer",
    "RareDispatchOptions",
    "check_job_id",
    "check_known_id",
    "check_name",
    "check_page",
    "check_timestamp",
    "merge",
    "read_layer",
]

Duration = str | timedelta | int
""" "30s", a timedelta, or an int of milliseconds where BullMQ has the option."""
ExecutorName = Literal["thread", "inline", "process"]
MAX_JOB_ID: Final = 512
DEFAULT_TRACES: Final = 10
"""Stack traces kept of a job that does not say: the last ones. BullMQ keeps all, however often a job is retried."""
MAX_PRIORITY: Final = 2_097_151
CUSTOM_BACKOFF: Final = "custom"
"""Stored as the backoff's type where `define_job` was given a callable."""

_COUNTER = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_RESERVED_IDS: Final = frozenset(
    [
        "active",
        "wait",
        "waiting-children",
        "paused",
        "id",
        "delayed",
        "prioritized",
        "stalled-check",
        "completed",
        "failed",
        "stalled",
        "repeat",
        "limiter",
        "meta",
        "events",
        "pc",
        "marker",
        "de",
        "priority",
        "delay",
    ]
)
_RESERVED_PREFIXES: Final = ("0:", "de:", "dn:", "repeat:", "metrics:")
_RESERVED_SUFFIXES: Final = (":lock", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful")
_PREFIX_LETTERS: Final = "".join({prefix[0] for prefix in _RESERVED_PREFIXES})
_SUFFIX_LETTERS: Final = "".join({suffix[-1] for suffix in _RESERVED_SUFFIXES})


# --- ids and names ----------------------------------------------------------------------------------------------


def check_job_id(id: Any) -> str:
    """
    A job id that cannot collide with automatic ids or with keys of BullMQ's layout (DESIGN 2.2).

    Raises:
        InvalidJobIdError: Not text, empty, over 512 characters, like a number of the counter, or a key of the layout.
    """
    if isinstance(id, str):
        text: str = str.__str__(id)  # a member of a StrEnum is text too, and stored as such
    else:
        raise InvalidJobIdError(
            f"job_id must be text, got {_show(id)}; use an explicit text such as 'invoice:42'",
            option="job_id",
            value=id,
        )
    if not 0 < len(text) <= MAX_JOB_ID:
        raise InvalidJobIdError(
            f"job_id must have 1 to {MAX_JOB_ID} characters, got {len(text)}; leave it out for an automatic id",
            option="job_id",
            value=id,
        )
    if "0" <= text[0] <= "9" and _COUNTER.fullmatch(text):
        raise InvalidJobIdError(
            f"job_id {text!r} could collide with an automatic id; put a word before it, such as 'job:{text}'",
            option="job_id",
            value=id,
        )
    if (
        text in _RESERVED_IDS
        # The first and last letters rule out nearly every id before the slower tests.
        or (text[0] in _PREFIX_LETTERS and text.startswith(_RESERVED_PREFIXES))
        or (text[-1] in _SUFFIX_LETTERS and text.endswith(_RESERVED_SUFFIXES))
    ):
        raise InvalidJobIdError(
            f"job_id {text!r} is the name of a key in BullMQ's layout; put a word of your own before or after it",
            option="job_id",
            value=id,
        )
    if not text.isascii():
        _refuse_surrogates(text, "job_id", InvalidJobIdError)
    return text


def check_known_id(id: Any) -> str:
    """An id to look a job up by: any text, numbers of the counter included."""
    if type(id) is not str:
        raise InvalidJobIdError(f"a job id is text, got {_show(id)}; use str(id)", option="id", value=id)
    return id


def check_page(start: Any, end: Any) -> None:
    """Positions of a page, both whole numbers; negative ones count from the end."""
    for option, value in (("start", start), ("end", end)):
        if type(value) is not int or not -(2**53) <= value <= 2**53:
            raise InvalidOptionTypeError(
                f"{option} must be a whole number, -1 for the last, got {_show(value)}", option=option, value=value
            )


def check_schedule_id(id: Any) -> str:
    """Id of a schedule: any text of 1 to 512 characters; its jobs get ids of their own from it."""
    if type(id) is not str or not 0 < len(id) <= MAX_JOB_ID:
        raise InvalidJobIdError(
            f"id of a schedule must be text of 1 to {MAX_JOB_ID} characters, got {_show(id)}", option="id", value=id
        )
    _refuse_surrogates(id, "id", InvalidJobIdError)
    return id


def check_name(name: Any, what: str) -> str:
    """Name of a job, or of a queue (which must have no colon: BullMQ splits its keys there)."""
    if type(name) is not str:
        raise InvalidOptionTypeError(f"{what} must be text, got {_show(name)}", option=what, value=name)
    if not name:
        raise InvalidOptionError(f"{what} must not be empty", option=what, value=name)
    if what == "queue" and ":" in name:
        raise InvalidOptionError(
            f"queue name {name!r} must not contain a colon; use a dot or a dash", option=what, value=name
        )
    _refuse_surrogates(name, what, InvalidOptionError)
    return name


def _refuse_surrogates(text: str, option: str, error: type[InvalidOptionError]) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as broken:
        raise error(
            f"{option} {text!r} has a lone surrogate, which is not text; decode it properly first",
            option=option,
            value=text,
        ) from broken


def _show(value: Any) -> str:
    """A value and its type for a message; user objects may have a repr that raises or is endless."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # user code
        text = "an object without a repr"
    return f"{text[:80]} ({type(value).__name__})"


# --- single options ---------------------------------------------------------------------------------------------


def _whole(value: Any, option: str, low: int, high: int | None = None) -> int:
    allowed = f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"
    if type(value) is not int:
        raise InvalidOptionTypeError(f"{option} must be {allowed}, got {_show(value)}", option=option, value=value)
    if value < low or (high is not None and value > high):
        raise InvalidOptionError(f"{option} must be {allowed}, got {_show(value)}", option=option, value=value)
    return value


def _flag(value: Any, option: str) -> bool:
    if type(value) is not bool:
        raise InvalidOptionTypeError(f"{option} must be True or False, got {_show(value)}", option=option, value=value)
    return value


def _number(value: Any, option: str, low: float, high: float) -> float:
    if type(value) not in (int, float):
        raise InvalidOptionTypeError(
            f"{option} must be a number from {low} to {high}, got {_show(value)}", option=option, value=value
        )
    if not low <= value <= high:
        raise InvalidOptionError(
            f"{option} must be a number from {low} to {high}, got {_show(value)}", option=option, value=value
        )
    return float(value)


def _keys(value: Mapping[Any, Any], option: str, allowed: tuple[str, ...]) -> None:
    for key in value:
        if key not in allowed:
            raise InvalidOptionError(
                f"{option} has no {key!r}; it takes {', '.join(allowed)}", option=f"{option}.{key}", value=value[key]
            )


def read_backoff(value: Any) -> core.Backoff:
    """
    A backoff: a duration is a fixed wait; a dict has `type`, `delay`, and optionally `jitter` (0..1) and `max_delay`.

    Raises:
        InvalidOptionError: Unknown type or key, a wrong value.
    """
    if callable(value):
        raise InvalidOptionTypeError(
            "backoff cannot be a callable here: a job is data, and a callable belongs to its definition; "
            "give it to define_job(backoff=...)",
            option="backoff",
            value=value,
        )
    if not isinstance(value, Mapping):
        return core.Backoff(delay_ms=parse_ms(value, option="backoff"))
    _keys(value, "backoff", ("type", "delay", "jitter", "max_delay"))
    kind = value.get("type", "fixed")
    if type(kind) is not str or kind not in ("fixed", "exponential"):
        raise InvalidOptionError(
            f"backoff type {_show(kind)} is not known; use 'fixed', 'exponential', or give define_job a callable",
            option="backoff.type",
            value=kind,
        )
    if "delay" not in value:
        raise InvalidOptionError(
            "backoff needs a delay, such as {'type': 'fixed', 'delay': '2s'}", option="backoff.delay"
        )
    limit = value.get("max_delay")
    return core.Backoff(
        type=kind,
        delay_ms=parse_ms(value["delay"], option="backoff.delay"),
        jitter=_number(value.get("jitter", 0), "backoff.jitter", 0, 1),
        # Without a cap of ours a doubling delay leaves the range of dates, and its job would wait for ever.
        max_delay_ms=_MAX_BACKOFF_MS if limit is None else parse_ms(limit, option="backoff.max_delay", bare="refuse"),
    )


_MAX_BACKOFF_MS: Final = 365 * 86_400_000
"""Cap of a backoff that has none of its own: a year."""


def read_retention(value: Any, option: str) -> core.Retention:
    """
    Retention: True removes at once, False keeps, a number keeps so many, a dict has `count`, `age` (seconds) and `limit`.

    Raises:
        InvalidOptionError: Anything else.
    """
    if value is True:
        return core.Retention(count=0)
    if value is False:
        return core.Retention()
    if type(value) is int:
        return core.Retention(count=_whole(value, option, 0))
    if not isinstance(value, Mapping):
        raise InvalidOptionTypeError(
            f"{option} must be True, False, a number of jobs, or a dict with count, age (seconds) and limit, got {_show(value)}",
            option=option,
            value=value,
        )
    _keys(value, option, ("count", "age", "limit"))
    if value.get("count") is None and value.get("age") is None:
        what = "has neither count nor age" if value else "is an empty dict"
        raise InvalidOptionError(
            f"{option} {what}; give count or age, or False to keep all", option=option, value=value
        )
    return core.Retention(
        count=_whole(value["count"], f"{option}.count", 0) if value.get("count") is not None else None,
        age_s=_age_s(value["age"], f"{option}.age") if value.get("age") is not None else None,
        limit=_whole(value.get("limit", 1000), f"{option}.limit", 1),
    )


def _age_s(value: Any, option: str) -> float:
    """BullMQ's age is in seconds; text and timedelta say their own unit."""
    if isinstance(value, str | timedelta):
        return parse_ms(value, option=option) / 1000
    return _number(value, option, 0, 10**10)


class Deduplication(msgspec.Struct, frozen=True):
    """
    How dispatches with the same deduplication id collapse. Make one by the names below, or give BullMQ's dict.

    Attributes:
        rule: What the core applies.
        delay_ms: Delay that belongs to the mode, None where it has none of its own.
    """

    rule: core.Deduplication
    delay_ms: int | None = None

    @classmethod
    def until_done(cls, id: str) -> Deduplication:
        """One job from dispatch until its end; retries in between keep the id taken."""
        return cls(core.Deduplication(id=_deduplication_id(id)))

    @classmethod
    def throttle(cls, id: str, ttl: Duration) -> Deduplication:
        """One job per window of `ttl`, counted from the first dispatch; the window outlives the job."""
        return cls(core.Deduplication(id=_deduplication_id(id), ttl_ms=_positive(ttl, "ttl")))

    @classmethod
    def debounce(cls, id: str, wait: Duration) -> Deduplication:
        """Run once nothing came for `wait`, with the last payload: each dispatch restarts the timer."""
        wait_ms = _positive(wait, "wait")
        rule = core.Deduplication(id=_deduplication_id(id), ttl_ms=wait_ms, extend=True, replace=True)
        return cls(rule, wait_ms)

    @classmethod
    def keep_last(cls, id: str) -> Deduplication:
        """At most one active and one to follow: of what is dispatched during a run, the last runs after it."""
        return cls(core.Deduplication(id=_deduplication_id(id), keep_last=True))


def _positive(value: Any, option: str) -> int:
    ms = parse_ms(value, option=f"deduplication.{option}")
    if ms == 0:
        raise InvalidDurationError(
            f"deduplication.{option} must be more than 0", option=f"deduplication.{option}", value=value
        )
    return ms


def _deduplication_id(id: Any) -> str:
    if type(id) is not str:
        raise InvalidOptionTypeError(
            f"deduplication.id must be text, got {_show(id)}", option="deduplication.id", value=id
        )
    if not id:
        raise InvalidOptionError(
            "deduplication.id must not be empty: all such jobs would block each other",
            option="deduplication.id",
            value=id,
        )
    _refuse_surrogates(id, "deduplication.id", InvalidOptionError)
    return id


def read_deduplication(value: Any) -> Deduplication:
    """A `Deduplication`, or BullMQ's dict with `id`, `ttl`, `extend`, `replace`, `reschedule`, `keepLastIfActive`."""
    if isinstance(value, Deduplication):
        return value
    if not isinstance(value, Mapping):
        raise InvalidOptionTypeError(
            f"deduplication must be a Deduplication or a dict with an id, got {_show(value)}",
            option="deduplication",
            value=value,
        )
    _keys(value, "deduplication", ("id", "ttl", "extend", "replace", "reschedule", "keepLastIfActive"))
    rule = core.Deduplication(
        id=_deduplication_id(value.get("id", "")),
        ttl_ms=parse_ms(value["ttl"], option="deduplication.ttl") if value.get("ttl") is not None else 0,
        extend=_flag(value.get("extend", False), "deduplication.extend"),
        replace=_flag(value.get("replace", False), "deduplication.replace"),
        reschedule=_flag(value.get("reschedule", False), "deduplication.reschedule"),
        keep_last=_flag(value.get("keepLastIfActive", False), "deduplication.keepLastIfActive"),
    )
    return Deduplication(rule)


def check_timestamp(value: Any) -> int:
    """`timestamp`: ms since 1970, or an aware datetime."""
    ms = run_at_ms(value, option="timestamp") if isinstance(value, datetime) else value
    return _whole(ms, "timestamp", 1, 8_640_000_000_000_000)


# --- layers -----------------------------------------------------------------------------------------------------


class RareDispatchOptions(TypedDict, total=False):
    """What a dispatch takes besides its payload, an id and a delay; see `JobDefinition.dispatch`."""

    run_at: datetime | None
    priority: int | None
    attempts: int | None
    backoff: Any
    lifo: bool | None
    deduplication: Deduplication | Mapping[str, Any] | None
    remove_on_complete: bool | int | Mapping[str, Any] | None
    remove_on_fail: bool | int | Mapping[str, Any] | None
    keep_logs: int | None
    size_limit: int | None
    stack_trace_limit: int | None
    timestamp: int | datetime | None


class DispatchOptions(RareDispatchOptions, total=False):
    """What a dispatch takes besides its payload; see `JobDefinition.dispatch`."""

    job_id: str | None
    delay: Duration | None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one level, checked; None is not given."""

    attempts: int | None = None
    backoff: core.Backoff | None = None
    lifo: bool | None = None
    remove_on_complete: core.Retention | None = None
    remove_on_fail: core.Retention | None = None
    keep_logs: int | None = None
    size_limit: int | None = None
    stack_trace_limit: int | None = None
    timeout_ms: int | None = None
    priority: int | None = None
    delay_ms: int | None = None


def _timeout_ms(value: Any) -> int:
    ms = parse_ms(value, option="timeout", bare="refuse")
    if ms == 0:
        raise InvalidDurationError("timeout must be more than 0; leave it out for none", option="timeout", value=value)
    return ms


_READERS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "attempts": ("attempts", lambda v: _whole(v, "attempts", 1)),
    "backoff": ("backoff", read_backoff),
    "lifo": ("lifo", lambda v: _flag(v, "lifo")),
    "remove_on_complete": ("remove_on_complete", lambda v: read_retention(v, "remove_on_complete")),
    "remove_on_fail": ("remove_on_fail", lambda v: read_retention(v, "remove_on_fail")),
    "keep_logs": ("keep_logs", lambda v: _whole(v, "keep_logs", 0)),
    "size_limit": ("size_limit", lambda v: _whole(v, "size_limit", 1)),
    "stack_trace_limit": ("stack_trace_limit", lambda v: _whole(v, "stack_trace_limit", 0)),
    "timeout": ("timeout_ms", _timeout_ms),
    "priority": ("priority", lambda v: _whole(v, "priority", 0, MAX_PRIORITY)),
    "delay": ("delay_ms", lambda v: parse_ms(v, option="delay")),
}


def read_layer(given: Mapping[str, Any], where: str) -> Layer:
    """
    Check one level of options; None values count as not given.

    Raises:
        InvalidOptionError: An unknown name, or a wrong value.
    """
    if not isinstance(given, Mapping):
        raise InvalidOptionTypeError(
            f"{where} must be a dict of options, got {_show(given)}", option=where, value=given
        )
    fields: dict[str, Any] = {}
    for option, value in given.items():
        reader = _READERS.get(option)
        if reader is None:
            raise InvalidOptionError(
                f"{where} has no option {option!r}; it takes {', '.join(_READERS)}", option=str(option), value=value
            )
        if value is not None:
            fields[reader[0]] = reader[1](value)
    return Layer(**fields)


def merge(*layers: Layer) -> Layer:
    """One layer from several; the first that has a value wins."""
    fields = {
        name: next((value for layer in layers if (value := getattr(layer, name)) is not None), None)
        for name in Layer.__struct_fields__
    }
    return Layer(**fields)


def job_options(layer: Layer) -> core.JobOptions:
    """What the core stores for jobs of the facade: complete, and with the id rule of DESIGN 2.1."""
    return core.JobOptions(
        attempts=layer.attempts or 1,
        backoff=layer.backoff,
        lifo=bool(layer.lifo),
        remove_on_complete=layer.remove_on_complete,
        remove_on_fail=layer.remove_on_fail,
        keep_logs=layer.keep_logs,
        size_limit=layer.size_limit,
        stack_trace_limit=DEFAULT_TRACES if layer.stack_trace_limit is None else layer.stack_trace_limit,
        timeout_ms=layer.timeout_ms,
        frees_id=True,
    )


EXECUTORS: Final[tuple[str, ...]] = get_args(ExecutorName)
