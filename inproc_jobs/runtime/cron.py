"""
Cron expressions, evaluated by cronsim: five fields, or six with leading seconds.

Everything about time zones and daylight saving is here, nothing of it in the core, which takes the next moment from a
callable (`core.schedulers.NextMatch`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from inproc_jobs.errors import InvalidOptionError

if TYPE_CHECKING:
    from inproc_jobs.core.job import Repeat

__all__ = ["next_match", "next_match_ms"]

_SECONDS = re.compile(r"(?:(?P<all>\*)|(?P<first>\d{1,2})(?:-(?P<last>\d{1,2}))?)(?:/(?P<step>\d{1,2}))?", re.ASCII)
_EVERY_NTH = re.compile(r"(?<![^,])\*/")
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@minutely": "* * * * *",
    "@secondly": "* * * * * *",
    "@weekdays": "0 0 * * 1-5",
    "@weekends": "0 0 * * 0,6",
}


def next_match(repeat: Repeat, after_ms: int) -> int | None:
    """The first match of a schedule's pattern strictly after a moment: a `core.schedulers.NextMatch`."""
    moment = next_match_ms(repeat.pattern or "", repeat.tz, after_ms)
    return None if moment is not None and repeat.end_ms and moment > repeat.end_ms else moment


def next_match_ms(pattern: str, tz: str | None, after_ms: int) -> int | None:
    """
    The first match of a cron expression strictly after a moment.

    Args:
        pattern: "minute hour day month weekday", with a field for seconds before them, or an alias such as "@daily".
        tz: Name of a time zone; None is UTC.

    Returns:
        Epoch ms, or None where nothing matches for 50 years.

    Raises:
        InvalidOptionError: The expression or the zone is not understood.

    >>> next_match_ms("0 9 * * *", "America/New_York", 1_700_000_000_123)
    1700056800000
    >>> next_match_ms("0 0 */2 * MON", None, 1_700_000_000_123) == next_match_ms("0 0 15 * *", None, 1_700_000_000_123)
    True
    """
    zone = _zone(tz)
    fields = _ALIASES.get(pattern.strip().lower(), pattern).replace("?", "*").split()
    if len(fields) in {5, 6}:
        # cronsim, like Debian's cron, takes a day field that begins with a star for one that leaves the choice to the
        # other; for BullMQ two restricted ones mean "either".
        fields[-3] = _EVERY_NTH.sub("1-31/", fields[-3])
        fields[-1] = _EVERY_NTH.sub("0-6/", fields[-1])
    # Six fields are five and a list of seconds: cronsim takes its care for days on which the clock is changed only
    # where it is told five.
    seconds = _seconds_of(fields[0], pattern) if len(fields) == 6 else (0,)
    minutes = _matches(" ".join(fields[1:] if len(fields) == 6 else fields), pattern, zone, after_ms - 60_000)
    for minute_ms in minutes:
        for second in seconds:
            moment = minute_ms + second * 1000
            # In the hour that a clock repeats, cronsim may name the first pass again.
            if moment > after_ms:
                return moment
    return None


def _matches(text: str, pattern: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    """Matches of five fields after a moment, in epoch ms."""
    from cronsim import CronSim, CronSimError  # only programs with schedules need it

    try:
        matches = CronSim(text, datetime.fromtimestamp(after_ms / 1000, zone))
    except CronSimError as error:
        raise _refusal(pattern, str(error)) from error
    for match in matches:
        # A time that a clock has skipped is made up for when the gap is over; not so a whole day that a zone has
        # skipped, since on the day after it the same time comes anyway.
        if match.hour in matches.hours or not _follows_a_missing_day(match):
            yield round(match.timestamp() * 1000)


def _follows_a_missing_day(match: datetime) -> bool:
    """
    Whether the local date jumped over a day right before a moment.

    >>> from zoneinfo import ZoneInfo
    >>> _follows_a_missing_day(datetime(2011, 12, 31, tzinfo=ZoneInfo("Pacific/Apia")))
    True
    """
    before = datetime.fromtimestamp(match.timestamp() - 1, match.tzinfo)
    return (match.date() - before.date()).days > 1


def _refusal(pattern: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"cron pattern {pattern!r} is not understood: {reason}; write five fields, or six with leading seconds",
        option="pattern",
        value=pattern,
    )


def _seconds_of(field: str, pattern: str) -> tuple[int, ...]:
    """
    The seconds that a field names, ascending.

    >>> _seconds_of("5,50-55/2", "")
    (5, 50, 52, 54)
    """
    seconds: set[int] = set()
    for part in field.split(","):
        match = _SECONDS.fullmatch(part)
        if match is None:
            raise _refusal(pattern, "Bad second")
        first, last, step = match["first"], match["last"], match["step"]
        low = 0 if match["all"] else int(first)
        high = 59 if match["all"] or (step and not last) else int(last or first)
        if not low <= high <= 59 or step == "0":
            raise _refusal(pattern, "Bad second")
        seconds.update(range(low, high + 1, int(step or 1)))
    return tuple(sorted(seconds))


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # loaded by those who have schedules in a zone

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidOptionError(
            f"time zone {name!r} is not known on this machine; use a name such as 'Europe/Berlin'",
            option="tz",
            value=name,
        ) from error
