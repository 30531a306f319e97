"""Cron expressions against clocks that are put forward and back (cases C53 to C59)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.core.job import Repeat
from inproc_jobs.errors import InvalidOptionError
from inproc_jobs.runtime.cron import next_match, next_match_ms

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Australia/Melbourne", "Pacific/Apia")
PATTERNS = ("30 2 * * *", "*/30 * * * *", "0 0 * * *", "15 10 * * 1-5", "*/7 */5 * * * *", "0 0 29 2 *", "45 1 * * *")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def matches(pattern: str, tz: str, after: str, count: int) -> list[str]:
    """The next matches after a moment, as UTC text."""

    def following() -> object:
        at = ms(after)
        while True:
            moment = next_match_ms(pattern, tz, at)
            assert moment is not None
            at = moment
            yield datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    return list(islice(following(), count))  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("pattern", ["30 2 * * *", "0 30 2 * * *"])
def test_c53_daily_time_inside_the_gap(pattern: str) -> None:
    """A daily time that does not exist runs when the gap is over, and at its own time from the next day on."""
    assert matches(pattern, "Europe/Berlin", "2026-03-28T02:00:00Z", 2) == [
        "2026-03-29T01:00:00Z",
        "2026-03-30T00:30:00Z",
    ]


@pytest.mark.parametrize(
    ("pattern", "tz", "after", "expected"),
    [
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00:00Z", ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    ],
)
def test_c54_daily_time_inside_the_overlap(pattern: str, tz: str, after: str, expected: list[str]) -> None:
    """A daily time in the hour that is repeated runs once."""
    assert matches(pattern, tz, after, 2) == expected


def test_c55_half_hourly_across_the_overlap() -> None:
    """What runs all the time leaves no hole in the hour that is repeated."""
    assert matches("*/30 * * * *", "Australia/Melbourne", "2024-04-06T14:59:00Z", 5) == [
        f"2024-04-06T{time}:00Z" for time in ("15:00", "15:30", "16:00", "16:30", "17:00")
    ]


@pytest.mark.parametrize(
    ("pattern", "tz", "after", "expected"),
    [
        ("0 0 * * *", "US/Pacific", "2022-03-13T12:00:00Z", "2022-03-14T07:00:00Z"),
        ("0 0 * * 1-5", "US/Central", "2021-03-12T12:00:00Z", "2021-03-15T05:00:00Z"),
    ],
)
def test_c56_a_day_of_23_hours(pattern: str, tz: str, after: str, expected: str) -> None:
    """Midnight stays midnight after a change of the clock."""
    assert matches(pattern, tz, after, 1) == [expected]


def test_c58_half_an_hour_and_a_missing_day() -> None:
    """Shifts of half an hour are no special case, and a date that a zone has skipped has no run."""
    assert matches("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T15:00:00Z", 1)[0] >= "2026-10-03T15:30:00Z"
    overlap = matches("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T10:00:00Z", 2)
    assert overlap[0] == "2026-04-04T14:45:00Z"
    assert overlap[1] == "2026-04-05T15:15:00Z"
    assert matches("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", 1) == ["2011-12-30T22:00:00Z"]


@given(st.sampled_from(PATTERNS), st.sampled_from(ZONES), st.integers(1_500_000_000_000, 1_900_000_000_000))
def test_c59_matches_are_in_the_future(pattern: str, tz: str, after_ms: int) -> None:
    """The next match is always later than the moment it was asked for, also on days of a change."""
    at = after_ms
    for _ in range(5):
        moment = next_match_ms(pattern, tz, at)
        assert moment is not None
        assert moment > at
        at = moment


def test_two_restricted_day_fields_mean_either() -> None:
    """Every other day, or Mondays: as BullMQ reads it, also where a field begins with a star."""
    days = [match[8:10] for match in matches("0 0 */2 * MON", "UTC", "2023-11-14T00:00:00Z", 5)]
    assert days == ["15", "17", "19", "20", "21"]


@pytest.mark.parametrize(
    ("alias", "same"), [("@daily", "0 0 * * *"), ("@weekdays", "0 0 * * 1-5"), ("@secondly", "* * * * * *")]
)
def test_aliases(alias: str, same: str) -> None:
    """BullMQ's aliases mean what they say."""
    assert matches(alias, "UTC", "2026-01-01T00:00:00Z", 3) == matches(same, "UTC", "2026-01-01T00:00:00Z", 3)


@pytest.mark.parametrize(
    "pattern", ["", "not a pattern", "99 * * * *", "* * * *", "* * * * * * *", "61 * * * * *", "a-b * * * * *"]
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """The error names the pattern and the form it should have."""
    with pytest.raises(InvalidOptionError, match="five fields") as caught:
        next_match_ms(pattern, None, 0)
    assert caught.value.value == pattern


def test_a_pattern_that_never_matches_ends() -> None:
    """February the 31st is refused or found to have no match, but not searched for ever."""
    try:
        assert next_match_ms("0 0 31 2 *", None, 0) is None
    except InvalidOptionError:
        pass


def test_an_unknown_zone_is_refused() -> None:
    """The error names the zone and an example of a right one."""
    with pytest.raises(InvalidOptionError, match="'Mars/Olympus' is not known"):
        next_match_ms("* * * * *", "Mars/Olympus", 0)


def test_a_schedule_ends_with_its_end() -> None:
    """A match after the end of a schedule is none."""
    repeat = Repeat(pattern="0 * * * *", end_ms=ms("2026-01-01T01:00:00Z"))
    assert next_match(repeat, ms("2026-01-01T00:00:00Z")) == ms("2026-01-01T01:00:00Z")
    assert next_match(repeat, ms("2026-01-01T01:00:00Z")) is None
