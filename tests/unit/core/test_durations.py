"""Durations and moments as users write them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.core.durations import MAX_DURATION_MS, parse_ms, parse_seconds, run_at_ms, to_datetime
from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError

BERLIN = ZoneInfo("Europe/Berlin")
UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Level(IntEnum):
    """An int of another type, as a settings module may hold it."""

    LOW = 5


class Text(str):
    """Text of another type."""

    __slots__ = ()


class UnshowableError(Exception):
    """Raised by a broken `__repr__`."""


class Unshowable:
    """A value whose `repr()` raises."""

    def __repr__(self) -> str:
        raise UnshowableError


class Nanoseconds(timedelta):
    """A timedelta that is finer than a timedelta, as pandas has it."""

    nanoseconds = 1


class BrokenZone(tzinfo):
    """A time zone that cannot place any time."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        raise OverflowError("date value out of range")

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 0),
        ("0.1s", 100),
        ("1.5h", 5_400_000),
        ("2.000ms", 2),
        (" 30s\n", 30_000),
        ("30 s", 30_000),
        ("007s", 7_000),
        (Text("30s"), 30_000),
        (timedelta(seconds=30), 30_000),
        (timedelta(milliseconds=1), 1),
        (timedelta(0), 0),
        (timedelta(days=3_653), 3_653 * 86_400_000),
        (0, 0),
        (250, 250),
        (Level.LOW, 5),
        (2**31 + 5_000, 2**31 + 5_000),
        ("60d", 60 * 86_400_000),
        ("3653d", 3_653 * 86_400_000),
        (MAX_DURATION_MS, MAX_DURATION_MS),
    ],
)
def test_a_duration_is_exact_milliseconds(value: Any, ms: int) -> None:
    """Every allowed form means what it says, for delays of years too (C37)."""
    result = parse_ms(value, option="delay")
    assert result == ms
    assert type(result) is int


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-1, "is negative"),
        ("-1s", "is not a number with a unit"),
        (timedelta(milliseconds=-1), "is negative"),
        (timedelta(microseconds=-1), "is negative"),
        (True, "is a bool"),
        (False, "is a bool"),
        (1.0, "is a float"),
        (math.nan, "is a float"),
        (math.inf, "is a float"),
        (None, "is None"),
        (b"30s", "is a bytes"),
        (date(2026, 1, 1), "is a date"),
        ("1.50000ms", "is finer than a millisecond"),
        ("0.5ms", "is finer than a millisecond"),
        ("0.0001s", "is finer than a millisecond"),
        (timedelta(microseconds=500), "is finer than a millisecond"),
        (Nanoseconds(seconds=1), "is finer than a millisecond"),
        ("", "is not a number with a unit"),
        ("s", "is not a number with a unit"),
        ("30", "is not a number with a unit"),
        ("5M", "is not a number with a unit"),
        ("5S", "is not a number with a unit"),
        ("5w", "is not a number with a unit"),
        ("5 minutes", "is not a number with a unit"),
        ("1h30m", "is not a number with a unit"),
        ("1e3s", "is not a number with a unit"),
        ("1_000ms", "is not a number with a unit"),
        ("1,5h", "is not a number with a unit"),
        (".5s", "is not a number with a unit"),
        ("1.s", "is not a number with a unit"),
        ("+1s", "is not a number with a unit"),
        ("nans", "is not a number with a unit"),
        ("infs", "is not a number with a unit"),
        ("\u0663s", "is not a number with a unit"),  # a digit to Python, not to the reader
        ("1s2", "is not a number with a unit"),
        ("1\ns", "is not a number with a unit"),
        ("9" * 5_000 + "s", "is not a number with a unit"),
        ("3700000d", "is longer than 10,000 years"),
        ("99999999999999999999d", "is longer than 10,000 years"),
        (MAX_DURATION_MS + 1, "is longer than 10,000 years"),
        (10**400, "is longer than 10,000 years"),
        (timedelta.max, "is longer than 10,000 years"),
        (Unshowable(), "is an Unshowable"),
    ],
)
def test_what_is_no_duration_is_refused(value: Any, problem: str) -> None:
    """A refusal names the option, what is wrong and the forms that are allowed, and carries the culprit."""
    with pytest.raises(InvalidDurationError) as caught:
        parse_ms(value, option="delay")
    message = str(caught.value)
    assert message.startswith("delay=")
    assert problem in message
    assert '"30s"' in message
    assert "milliseconds" in message
    assert len(message) < 400
    assert caught.value.option == "delay"
    assert caught.value.value is value


@pytest.mark.parametrize("value", [0, 5, Level.LOW])
def test_our_own_options_refuse_a_bare_number(value: Any) -> None:
    """Where BullMQ has no such option, the unit of a bare number would be a guess."""
    with pytest.raises(InvalidDurationError, match=r"timeout=.*unit would be a guess") as caught:
        parse_ms(value, option="timeout", bare="refuse")
    assert "milliseconds" not in str(caught.value)


def test_our_own_options_take_text_and_timedelta() -> None:
    """`bare="refuse"` refuses bare numbers, nothing else."""
    assert parse_ms("30s", option="timeout", bare="refuse") == 30_000
    assert parse_ms(Text("30s"), option="timeout", bare="refuse") == 30_000
    assert parse_ms(timedelta(seconds=30), option="timeout", bare="refuse") == 30_000


def test_repeated_text_yields_the_same_int() -> None:
    """A million jobs with the same delay share one int object."""
    assert parse_ms("86399s", option="delay") is parse_ms("86399s", option="max_delay", bare="refuse")


@given(number=st.integers(0, 3_000), unit=st.sampled_from(sorted(UNIT_MS)))
def test_text_is_number_times_unit(number: int, unit: str) -> None:
    """The unit is the only thing that scales a number."""
    assert parse_ms(f"{number}{unit}", option="delay") == number * UNIT_MS[unit]


@given(ms=st.integers(0, MAX_DURATION_MS))
def test_every_whole_millisecond_can_be_written_as_a_fraction(ms: int) -> None:
    """Text is read in integers: no millisecond is lost to a float, at any size."""
    assert parse_ms(f"{ms // 1_000}.{ms % 1_000:03}s", option="delay") == ms
    assert parse_ms(timedelta(milliseconds=ms), option="delay") == ms


@given(value=st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.timedeltas(), st.none(), st.booleans()))
def test_no_value_ends_in_another_error(value: Any) -> None:
    """Whatever is given, the outcome is a duration or the typed error."""
    try:
        ms = parse_ms(value, option="delay")
    except InvalidDurationError:
        return
    assert 0 <= ms <= MAX_DURATION_MS


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (2, 2.0),
        (0.25, 0.25),
        (Level.LOW, 5.0),
        ("30s", 30.0),
        (Text("30s"), 30.0),
        ("500ms", 0.5),
        (timedelta(minutes=1), 60.0),
        (timedelta(microseconds=500), 0.0005),
    ],
)
def test_a_bare_number_is_seconds_where_a_call_waits(value: Any, seconds: float | None) -> None:
    """`result(timeout=2)` waits two seconds, as `asyncio.wait_for` would."""
    result = parse_seconds(value, option="timeout")
    assert result == seconds
    assert type(result) is type(seconds)


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -0.001, True, False, math.nan, math.inf, -math.inf, 10**400, 1e300),
        *("5", "-5s", "x", b"5s", [], timedelta(seconds=-1), timedelta.max),
    ],
)
def test_what_no_call_can_wait_for_is_refused(value: Any) -> None:
    """A wait is finite and not negative; the refusal says that seconds are allowed."""
    with pytest.raises(InvalidDurationError, match=r"^timeout=.*or a number of seconds$") as caught:
        parse_seconds(value, option="timeout")
    assert caught.value.value is value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_wait_that_is_no_number_is_called_that(value: float) -> None:
    """NaN is neither negative nor too long; no limit is None."""
    with pytest.raises(InvalidDurationError, match="is not a finite number"):
        parse_seconds(value, option="timeout")


@pytest.mark.parametrize(
    ("moment", "utc"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=14))), datetime(2025, 12, 31, 10, tzinfo=UTC)),
        (datetime(2026, 7, 1, 12, tzinfo=BERLIN), datetime(2026, 7, 1, 10, tzinfo=UTC)),
        (datetime(2039, 9, 8, 0, 0, 0, 1_000, tzinfo=UTC), datetime(2039, 9, 8, 0, 0, 0, 1_000, tzinfo=UTC)),
    ],
)
def test_run_at_is_the_moment_of_the_datetime(moment: datetime, utc: datetime) -> None:
    """The same moment, whatever time zone names it, exact to the millisecond (C38)."""
    assert to_datetime(run_at_ms(moment)) == utc


@pytest.mark.parametrize(("fold", "hour"), [(0, 0), (1, 1)])
def test_fold_tells_the_repeated_hour_apart(fold: int, hour: int) -> None:
    """C51: 02:30 happens twice on 25 October 2026 in Berlin, at 00:30Z and at 01:30Z."""
    moment = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=BERLIN)
    assert to_datetime(run_at_ms(moment)) == datetime(2026, 10, 25, hour, 30, tzinfo=UTC)


@pytest.mark.parametrize(("fold", "hour"), [(0, 1), (1, 0)])
def test_a_time_in_the_gap_is_read_as_pep_495_says(fold: int, hour: int) -> None:
    """C51: 02:30 does not happen on 29 March 2026 in Berlin; by default it is 01:30Z, half an hour after the change."""
    moment = datetime(2026, 3, 29, 2, 30, fold=fold, tzinfo=BERLIN)
    assert to_datetime(run_at_ms(moment)) == datetime(2026, 3, 29, hour, 30, tzinfo=UTC)


@pytest.mark.parametrize(("year", "ms"), [(1970, 1), (1969, -31_536_000_000 + 1)])
def test_run_at_cuts_off_what_is_finer_than_a_millisecond(year: int, ms: int) -> None:
    """Towards the past, before 1970 as well."""
    assert run_at_ms(datetime(year, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC)) == ms


def test_run_at_refuses_a_naive_datetime() -> None:
    """A naive datetime names no moment; the refusal says how to add a time zone."""
    naive = datetime(2026, 1, 1)
    with pytest.raises(InvalidOptionError, match=r"run_at=.* is naive.*tzinfo=UTC.*astimezone") as caught:
        run_at_ms(naive)
    assert (caught.value.option, caught.value.value) == ("run_at", naive)


@pytest.mark.parametrize("value", [None, 0, 1767225600000, "2026-01-01T00:00:00Z", date(2026, 1, 1), timedelta(1)])
def test_run_at_refuses_what_is_no_datetime(value: Any) -> None:
    """Not even a number or ISO text: whether it is seconds, milliseconds or local time would be a guess."""
    with pytest.raises(InvalidOptionTypeError, match=r"^start=.*aware datetime") as caught:
        run_at_ms(value, option="start")
    assert caught.value.option == "start"


def test_run_at_refuses_what_its_time_zone_cannot_place() -> None:
    """An OverflowError of a time zone becomes a typed error."""
    with pytest.raises(InvalidOptionError, match=r"cannot be placed"):
        run_at_ms(datetime(2026, 1, 1, tzinfo=BrokenZone()))


@pytest.mark.parametrize("hours", [-23, 0, 23])
@pytest.mark.parametrize("edge", [datetime.min, datetime.max])
def test_run_at_takes_the_first_and_the_last_datetime(edge: datetime, hours: int) -> None:
    """The edges of the calendar are moments as well, although they have no name in UTC."""
    moment = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    exact = (edge - datetime(1970, 1, 1)) // timedelta(milliseconds=1) - hours * 3_600_000
    assert run_at_ms(moment) == exact


@given(ms=st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_milliseconds_and_datetimes_are_the_same_moments(ms: int) -> None:
    """`to_datetime` and `run_at_ms` are inverse, exactly, over all years that datetime knows."""
    moment = to_datetime(ms)
    assert moment is not None
    assert moment.tzinfo is UTC
    assert run_at_ms(moment) == ms


@pytest.mark.parametrize(
    ("ms", "nearest"),
    [
        (253_402_300_800_000, datetime.max),
        (MAX_DURATION_MS, datetime.max),
        (10**30, datetime.max),
        (-62_135_596_800_001, datetime.min),
    ],
)
def test_a_moment_past_the_calendar_reads_as_its_edge(ms: int, nearest: datetime) -> None:
    """A job due after the year 9999 can still be looked at."""
    assert to_datetime(ms) == nearest.replace(tzinfo=UTC)


def test_no_moment_stays_no_moment() -> None:
    """A job that has not finished has no `finished_at`."""
    assert to_datetime(None) is None
