"""
Durations and moments as users write them, turned into whole milliseconds. The one place where that happens.

Text and `timedelta` are welcome everywhere. What a bare number means depends on who asks: milliseconds where BullMQ
has the option (`parse_ms`), nothing where the option is ours (`parse_ms(bare="refuse")`), seconds in calls that wait
(`parse_seconds`), as in asyncio. Nothing is rounded: a duration that is no whole number of milliseconds is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Literal

from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError

__all__ = ["MAX_DURATION_MS", "parse_ms", "parse_seconds", "run_at_ms", "to_datetime"]

MAX_DURATION_MS: Final = 10_000 * 31_557_600_000
"""10,000 years of 365.25 days. Longer than any plan, so a longer duration is a slip (a unit, or an overflow)."""

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MOMENT: Final = datetime.max.replace(tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# One number, one unit. Upper case is refused since "M" is a month to some and a minute to others; compounds such as
# "1h30m" since "90m" and "1.5h" say the same. Twenty digits are past MAX_DURATION_MS in every unit.
_TEXT: Final = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?[ \t]*(ms|s|m|h|d)")

_TEXT_FORMS: Final = 'text such as "500ms", "30s", "10m", "2h" or "1d", or a timedelta'


def parse_ms(value: Any, *, option: str, bare: Literal["ms", "refuse"] = "ms") -> int:
    """
    A duration in whole milliseconds.

    Args:
        value: "500ms", "30s", "10m", "2h", "1d" ("1.5h" too; spaces around number and unit do not matter), a
            timedelta, or, with bare="ms", an int of milliseconds.
        option: Name of the option as the caller wrote it, for the error.
        bare: What a bare int means: milliseconds, or an error, since its unit would be a guess.

    Returns:
        0 <= result <= MAX_DURATION_MS.

    Raises:
        InvalidDurationError: Negative, longer than MAX_DURATION_MS, finer than a millisecond, a bool or a float, an
            unknown unit, or any other type.

    Cost: O(1); text that was seen before is a look-up, and yields the same int object again.

    >>> parse_ms("30s", option="delay")
    30000
    >>> parse_ms(250, option="delay")
    250
    """
    # Exact types first: this runs once per dispatch that has a delay.
    if type(value) is str:
        try:
            return _text_ms(value)
        except ValueError as error:
            raise _refusal(option, value, str(error), bare) from None
    if type(value) is int and bare == "ms":
        if 0 <= value <= MAX_DURATION_MS:
            return value
        raise _refusal(option, value, _outside(value), bare)
    return _slow_ms(value, option, bare)


def parse_seconds(value: Any, *, option: str) -> float | None:
    """
    How long a call may wait, in seconds as asyncio counts them.

    Args:
        value: None (no limit), an int or float of seconds, text as in `parse_ms`, or a timedelta.
        option: Name of the option as the caller wrote it, for the error.

    Returns:
        None, or seconds with 0 <= result <= 10,000 years. That is more than `threading.TIMEOUT_MAX`: whoever waits
        in a thread must wait in slices.

    Raises:
        InvalidDurationError: Negative, not finite, too long, a bool, an unknown unit, or any other type.

    Cost: O(1).

    >>> parse_seconds("1.5s", option="timeout")
    1.5
    >>> parse_seconds(2, option="timeout")
    2.0
    """
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number_seconds(value, option)
    if isinstance(value, timedelta):
        # Not through milliseconds: half a millisecond is a fine timeout, though it is no due time.
        return _number_seconds(value / timedelta(seconds=1), option, culprit=value)
    if isinstance(value, str):
        try:
            return _text_ms(str.__str__(value)) / 1_000
        except ValueError as error:
            raise _refusal(option, value, str(error), "seconds") from None
    raise _refusal(option, value, f"is {_a_type(value)}", "seconds")


def run_at_ms(value: Any, *, option: str = "run_at") -> int:
    """
    The moment of an aware datetime as milliseconds since 1970 (UTC).

    The microseconds below a millisecond are cut off, towards the past. In the hour that is repeated in autumn `fold`
    decides. A time that is skipped in spring is read as PEP 495 says: with fold=0 (the default) by the offset before
    the change, so 02:30 in Berlin means 03:30 summer time; with fold=1 by the one after it, so 01:30 winter time.

    Args:
        value: An aware datetime, in the past or in the future.
        option: Name of the option as the caller wrote it, for the error.

    Returns:
        Milliseconds; negative before 1970.

    Raises:
        InvalidOptionTypeError: Not a datetime.
        InvalidOptionError: A naive datetime, or one whose time zone cannot place it.

    Cost: O(1).

    >>> run_at_ms(datetime(2026, 1, 1, tzinfo=UTC))
    1767225600000
    """
    if not isinstance(value, datetime):
        raise InvalidOptionTypeError(
            f"{option}={_show(value)} is {_a_type(value)}; give an aware datetime, such as "
            'datetime(2026, 1, 1, 9, 30, tzinfo=ZoneInfo("Europe/Berlin")), or use delay= for a duration',
            option=option,
            value=value,
        )
    try:
        offset = value.utcoffset()
        # Not value.timestamp(): that goes through a float, which is not exact to the millisecond for far dates.
        moment_ms = (value - _EPOCH) // _MILLISECOND if offset is not None else None
    except (OverflowError, ValueError) as error:
        raise InvalidOptionError(
            f"{option}={_show(value)} cannot be placed by its time zone ({error}); give a datetime in UTC",
            option=option,
            value=value,
        ) from error
    if moment_ms is None:
        raise InvalidOptionError(
            f"{option}={_show(value)} is naive, so it names no moment; add a time zone, such as "
            "value.replace(tzinfo=UTC) for a time in UTC or value.astimezone() for a local one",
            option=option,
            value=value,
        )
    return moment_ms


def to_datetime(ms: int | None) -> datetime | None:
    """
    Milliseconds since 1970 as an aware datetime in UTC; None stays None.

    A moment that datetime cannot name (past the year 9999, or before the year 1) reads as the nearest one it can:
    such a due time is legal in a stored queue, and looking at its job must not fail.

    Cost: O(1). Exact to the millisecond.

    >>> to_datetime(1767225600000)
    datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if ms is None:
        return None
    try:
        # Not fromtimestamp(ms / 1000): a float again.
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _LAST_MOMENT if ms > 0 else datetime.min.replace(tzinfo=UTC)


@lru_cache(maxsize=1_024)
def _text_ms(text: str) -> int:
    """Milliseconds of "30s"; ValueError says what is wrong, to be completed by the caller, who knows the option."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError("is not a number with a unit (ms, s, m, h or d)")
    whole, fraction, unit = match.group(1), match.group(2) or "", match.group(3)
    # In integers, so that "0.1s" is exactly 100 ms.
    scale: int = 10 ** len(fraction)
    ms, rest = divmod(int(whole + fraction) * _UNIT_MS[unit], scale)
    if rest:
        raise ValueError("is finer than a millisecond")
    if ms > MAX_DURATION_MS:
        raise ValueError(_outside(ms))
    return ms


def _slow_ms(value: Any, option: str, bare: Literal["ms", "refuse"]) -> int:
    """What is not exactly a str or an allowed int: timedeltas, subclasses, and all that is refused."""
    if isinstance(value, timedelta):
        return _timedelta_ms(value, option, bare)
    if isinstance(value, str):
        return parse_ms(str.__str__(value), option=option, bare=bare)
    if isinstance(value, int) and not isinstance(value, bool):
        if bare == "ms":
            return parse_ms(int(value), option=option)
        raise _refusal(option, value, "is a bare number, and its unit would be a guess", bare)
    raise _refusal(option, value, f"is {_a_type(value)}", bare)


def _timedelta_ms(value: timedelta, option: str, bare: str) -> int:
    ms, rest = divmod(value, _MILLISECOND)
    if value < timedelta(0) or ms > MAX_DURATION_MS:
        raise _refusal(option, value, _outside(ms), bare)
    # pandas.Timedelta is a timedelta with nanoseconds that the arithmetic above does not see.
    nanoseconds: Any = getattr(value, "nanoseconds", 0)
    if rest or nanoseconds:
        raise _refusal(option, value, "is finer than a millisecond", bare)
    return ms


def _number_seconds(value: float, option: str, culprit: Any = None) -> float:
    culprit = value if culprit is None else culprit
    if isinstance(value, float) and not isfinite(value):
        raise _refusal(option, culprit, "is not a finite number", "seconds")
    if not 0 <= value <= MAX_DURATION_MS / 1_000:
        raise _refusal(option, culprit, _outside(value), "seconds")
    return float(value)


def _outside(value: float) -> str:
    return "is negative" if value < 0 else "is longer than 10,000 years"


def _a_type(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _show(value: Any) -> str:
    """The culprit for a message: short, and safe whatever its `__repr__` does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a value that cannot show itself must not hide what is wrong with it
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refusal(option: str, value: Any, problem: str, bare: str) -> InvalidDurationError:
    numbers = {"ms": ", or a whole number of milliseconds", "seconds": ", or a number of seconds", "refuse": ""}
    return InvalidDurationError(
        f"{option}={_show(value)} {problem}; give {_TEXT_FORMS}{numbers[bare]}", option=option, value=value
    )
