"""
Cron expressions, evaluated by cronsim: five fields, or six with leading seconds.

Everything about time zones and daylight saving is here, nothing of it in the core, which takes the next moment from a
callable (`core.schedulers.NextMatch`).
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from inproc_jobs.errors import InvalidOptionError

if TYPE_CHECKING:
    from inproc_jobs.core.job import Repeat

__all__ = ["next_match", "next_match_ms"]

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
    """
    from cronsim import CronSim, CronSimError  # only programs with schedules need it

    zone = _zone(tz)
    after = datetime.fromtimestamp(after_ms / 1000, zone)
    text = _ALIASES.get(pattern.strip().lower(), pattern).replace("?", "*")
    fields = text.split()
    if len(fields) == 6 and fields[0] == "0":
        # Told as five fields it gets cronsim's care for days on which the clock is changed.
        text = " ".join(fields[1:])
    try:
        matches = CronSim(text, after)
    except CronSimError as error:
        raise InvalidOptionError(
            f"cron pattern {pattern!r} is not understood: {error}; write five fields, or six with leading seconds",
            option="pattern",
            value=pattern,
        ) from error
    for match in matches:
        moment = round(match.timestamp() * 1000)
        # In the hour that a clock repeats, cronsim may name the first pass again.
        if moment > after_ms:
            return moment
    return None


def _zone(name: str | None) -> tzinfo:
    try:
        return UTC if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidOptionError(
            f"time zone {name!r} is not known on this machine; use a name such as 'Europe/Berlin'",
            option="tz",
            value=name,
        ) from error
