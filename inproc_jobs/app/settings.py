"""The engine's own arguments, checked where they are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inproc_jobs.app.options import check_name
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.options import Limiter
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError

__all__ = ["QueueSetting", "check_engine_number", "check_history", "read_queue_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSetting:
    """What `Engine(queues=...)` says about one queue; None is the engine's default."""

    concurrency: int | None = None
    limiter: Limiter | None = None
    max_waiting: int | None = None


def check_engine_number(value: Any, option: str, *, whole: bool) -> float:
    """A number above 0; with `whole` an int, 1 or more."""
    allowed = "a whole number, 1 or more" if whole else "a number above 0"
    if type(value) not in ((int,) if whole else (int, float)):
        raise InvalidOptionTypeError(f"{option} must be {allowed}, got {value!r}", option=option, value=value)
    if not (value > 0 and math.isfinite(value)):
        raise InvalidOptionError(f"{option} must be {allowed}, got {value!r}", option=option, value=value)
    return float(value)


def check_history(given: Mapping[str, Any]) -> dict[JobState, int]:
    """`history`: {"completed": n, "failed": n}, n >= 0."""
    history: dict[JobState, int] = {}
    for outcome, bound in given.items():
        if outcome not in ("completed", "failed"):
            raise InvalidOptionError(
                f"history has no {outcome!r}; it takes 'completed' and 'failed'", option="history", value=outcome
            )
        if type(bound) is not int or bound < 0:
            raise InvalidOptionTypeError(
                f"history[{outcome!r}] must be a whole number, 0 or more, got {bound!r}", option=f"history.{outcome}", value=bound
            )
        history[JobState(outcome)] = bound
    return history


def read_queue_settings(given: Mapping[str, Mapping[str, Any]]) -> dict[str, QueueSetting]:
    """`queues`: name -> {"concurrency", "limiter", "max_waiting"}."""
    if not isinstance(given, Mapping):
        raise InvalidOptionTypeError(
            f"queues must be a dict of name to settings, got {type(given).__name__}", option="queues", value=given
        )
    return {check_name(name, "queue"): _setting(name, setting) for name, setting in given.items()}


def _setting(name: str, given: Any) -> QueueSetting:
    where = f"queues[{name!r}]"
    if not isinstance(given, Mapping):
        raise InvalidOptionTypeError(f"{where} must be a dict of settings, got {given!r}", option=where, value=given)
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
            f'{option} must be {{"max": number, "duration": "1s"}}, got {given!r}', option=option, value=given
        )
    check_engine_number(given["max"], f"{option}.max", whole=True)
    duration_ms = parse_ms(given["duration"], option=f"{option}.duration")
    if duration_ms == 0:
        raise InvalidDurationError(f"{option}.duration must be more than 0", option=f"{option}.duration", value=0)
    return Limiter(max=given["max"], duration_ms=duration_ms)
