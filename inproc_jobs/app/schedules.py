"""Recurring jobs at the facade: what `Engine.schedule` takes, and what readers see of a schedule."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec

from inproc_jobs.app.options import check_schedule_id
from inproc_jobs.core.durations import parse_ms, run_at_ms, to_datetime
from inproc_jobs.core.job import Repeat
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.core.queue import Scheduler
from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError
from inproc_jobs.runtime.cron import next_match_ms

__all__ = ["CatchUp", "ScheduleView", "read_schedule"]

CatchUp = Literal["once", "all", "skip"]
_CATCH_UPS: Final[tuple[str, ...]] = get_args(CatchUp)


class ScheduleView(msgspec.Struct, frozen=True):
    """
    A schedule at the moment it was read.

    Attributes:
        id, name, queue: The schedule; the job it dispatches; where.
        next_at: When the pending run is due, UTC.
        runs: How many runs were made, the pending one included.
        every_ms, cron, tz: When it runs: an interval, or a cron expression in a time zone.
        limit, start_at, end_at: Its bounds; None is none.
        catch_up: What happens to runs that were missed.
    """

    id: str
    name: str
    queue: str
    next_at: datetime | None
    runs: int
    every_ms: int | None
    cron: str | None
    tz: str | None
    limit: int | None
    start_at: datetime | None
    end_at: datetime | None
    catch_up: str
    _data: bytes

    @property
    def payload(self) -> Any:
        """The payload of each run, decoded anew."""
        return decode_json(self._data)

    @classmethod
    def of(cls, scheduler: Scheduler, queue: str) -> ScheduleView:
        """The view of a record of the core."""
        repeat = scheduler.repeat
        return cls(
            scheduler.id,
            scheduler.name,
            queue,
            to_datetime(scheduler.next_ms),
            scheduler.iterations,
            None if repeat.every is None else int(repeat.every),
            repeat.pattern,
            repeat.tz,
            None if repeat.limit is None else int(repeat.limit),
            None if repeat.start_ms is None else to_datetime(int(repeat.start_ms)),
            None if repeat.end_ms is None else to_datetime(int(repeat.end_ms)),
            repeat.catch_up,
            scheduler.data,
        )


def read_schedule(
    id: Any,
    *,
    every: Any,
    cron: Any,
    tz: Any,
    limit: Any,
    start: Any,
    end: Any,
    immediately: Any,
    catch_up: Any,
    now_ms: int,
    priority: int,
    lifo: bool,
) -> Repeat:
    """
    Check the arguments of `Engine.schedule`.

    Raises:
        InvalidOptionError: Neither or both of `every` and `cron`, a pattern or zone that is not understood, bounds that
            leave no run, or a wrong type.
    """
    check_schedule_id(id)
    if (every is None) == (cron is None):
        raise InvalidOptionError("give exactly one of every and cron", option="every" if cron is None else "cron")
    if catch_up not in _CATCH_UPS:
        raise InvalidOptionError(
            f"catch_up {catch_up!r} is not known; use one of {', '.join(_CATCH_UPS)}", option="catch_up", value=catch_up
        )
    if type(immediately) is not bool:
        raise InvalidOptionTypeError("immediately must be True or False", option="immediately", value=immediately)
    if immediately and start is not None:
        raise InvalidOptionError("give immediately or start, not both", option="immediately")
    start_ms = None if start is None else run_at_ms(start, option="start")
    end_ms = None if end is None else run_at_ms(end, option="end")
    if end_ms is not None and end_ms <= max(now_ms, start_ms or 0):
        raise InvalidOptionError("end must be later than start and than now", option="end", value=end)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidOptionTypeError(
            f"limit must be a whole number, 1 or more, got {limit!r}", option="limit", value=limit
        )
    every_ms = _interval(every) if every is not None else None
    if every_ms is not None and tz is not None:
        raise InvalidOptionError("tz belongs to cron; an interval has no time zone", option="tz", value=tz)
    if cron is not None:
        _check_pattern(cron, tz, now_ms)
    return Repeat(
        every=every_ms,
        pattern=cron,
        tz=tz,
        limit=limit,
        start_ms=start_ms,
        end_ms=end_ms,
        immediately=immediately and cron is not None,
        priority=priority,
        lifo=lifo,
        catch_up=catch_up,
    )


def _interval(every: Any) -> int:
    every_ms = parse_ms(every, option="every")
    if every_ms == 0:
        raise InvalidDurationError("every must be more than 0", option="every", value=every)
    return every_ms


def _check_pattern(cron: Any, tz: Any, now_ms: int) -> None:
    if type(cron) is not str:
        raise InvalidOptionTypeError(
            f"cron must be text such as '0 9 * * 1-5', got {cron!r}", option="cron", value=cron
        )
    if tz is not None and type(tz) is not str:
        raise InvalidOptionTypeError(f"tz must be a name such as 'Europe/Berlin', got {tz!r}", option="tz", value=tz)
    if next_match_ms(cron, tz, now_ms) is None:
        raise InvalidOptionError(f"cron pattern {cron!r} never matches", option="cron", value=cron)
