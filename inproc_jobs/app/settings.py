"""The engine's own arguments, checked where they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from inproc_jobs.app.options import _show, check_name
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.options import Limiter
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError

__all__ = [
    "QueueSetting",
    "check_clock",
    "check_context_vars",
    "check_engine_number",
    "check_history",
    "read_queue_settings",
]

_DEFAULT_HISTORY: Final = {JobState.COMPLETED: 1000, JobState.FAILED: 5000}
_MAX_NUMBER: Final = 2**53
"""More slots, jobs or starts than any machine has; a larger number is a slip, and may not fit a float."""


class QueueSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What `Engine(queues=...)` says about one queue; None is the engine's default."""

    concurrency: int | None = None
    limiter: Limiter | None = None
    max_waiting: int | None = None


def check_engine_number(value: Any, option: str, *, whole: bool) -> float:
    """A number above 0; with `whole` an int, 1 or more."""
    allowed = "a whole number, 1 or more" if whole else "a number above 0"
    if type(value) not in ((int,) if whole else (int, float)):
        raise InvalidOptionTypeError(f"{option} must be {allowed}, got {_show(value)}", option=option, value=value)
    if not 0 < value <= _MAX_NUMBER:
        raise InvalidOptionError(f"{option} must be {allowed}, got {_show(value)}", option=option, value=value)
    return float(value)


def check_history(given: Mapping[str, Any]) -> dict[JobState, int]:
    """`history`: {"completed": n, "failed": n}, n >= 0; what is not given has its default."""
    if not isinstance(given, Mapping):
        raise InvalidOptionTypeError(
            f'history must be a dict such as {{"completed": 1000, "failed": 5000}}, got {_show(given)}',
            option="history",
            value=given,
        )
    history = dict(_DEFAULT_HISTORY)
    for outcome, bound in given.items():
        if outcome not in ("completed", "failed"):
            raise InvalidOptionError(
                f"history has no {outcome!r}; it takes 'completed' and 'failed'", option="history", value=outcome
            )
        if type(bound) is not int or bound < 0:
            raise InvalidOptionTypeError(
                f"history[{outcome!r}] must be a whole number, 0 or more, got {_show(bound)}",
                option=f"history.{outcome}",
                value=bound,
            )
        history[JobState(outcome)] = bound
    return history


def check_context_vars(given: Iterable[Any]) -> tuple[ContextVar[Any], ...]:
    """`context_vars`: ContextVars."""
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not all(isinstance(var, ContextVar) for var in found):
        raise InvalidOptionTypeError(
            f"context_vars must be a list of ContextVar, got {_show(given)}", option="context_vars", value=given
        )
    return found


def check_clock(clock: Any) -> None:
    """`clock`: anything with the two methods of `Clock`."""
    if not all(callable(getattr(clock, method, None)) for method in ("now_ms", "monotonic")):
        raise InvalidOptionTypeError(
            f"clock must have now_ms() and monotonic(), got {_show(clock)}", option="clock", value=clock
        )


def read_queue_settings(given: Mapping[str, Mapping[str, Any]]) -> dict[str, QueueSetting]:
    """`queues`: name -> {"concurrency", "limiter", "max_waiting"}."""
    if not isinstance(given, Mapping):
        raise InvalidOptionTypeError(
            f"queues must be a dict of name to settings, got {_show(given)}", option="queues", value=given
        )
    return {check_name(name, "queue"): _setting(name, setting) for name, setting in given.items()}


def _setting(name: str, given: Any) -> QueueSetting:
    where = f"queues[{name!r}]"
    if not isinstance(given, Mapping):
        raise InvalidOptionTypeError(
            f"{where} must be a dict of settings, got {_show(given)}", option=where, value=given
        )
    for key in given:
        if key not in ("concurrency", "limiter", "max_waiting"):
            raise InvalidOptionError(
                f"{where} has no setting {key!r}; it takes concurrency, limiter, max_waiting", option=f"{where}.{key}"
            )
    concurrency, bound = given.get("concurrency"), given.get("max_waiting")
    if concurrency is not None:
        check_engine_number(concurrency, f"{where}.concurrency", whole=True)
    if bound is not None:
        check_engine_number(bound, f"{where}.max_waiting", whole=True)
    return QueueSetting(concurrency=concurrency, limiter=_limiter(given.get("limiter"), where), max_waiting=bound)


def _limiter(given: Any, where: str) -> Limiter | None:
    if given is None:
        return None
    option = f"{where}.limiter"
    if not isinstance(given, Mapping) or set(given) != {"max", "duration"}:
        raise InvalidOptionTypeError(
            f'{option} must be {{"max": number, "duration": "1s"}}, got {_show(given)}', option=option, value=given
        )
    check_engine_number(given["max"], f"{option}.max", whole=True)
    duration_ms = parse_ms(given["duration"], option=f"{option}.duration")
    if duration_ms == 0:
        raise InvalidDurationError(f"{option}.duration must be more than 0", option=f"{option}.duration", value=0)
    return Limiter(max=given["max"], duration_ms=duration_ms)
