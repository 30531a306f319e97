"""What was dispatched, and how a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inproc_jobs.app.definition import JobDefinition
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.errors import InprocJobsError, InvalidOptionError

__all__ = ["ANY", "Dispatched", "Wanted", "exactly"]


class _Any:
    """Matches whatever is there."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any()


@dataclass(frozen=True, slots=True)
class exactly:  # noqa: N801  # read inside a call: payload=exactly({...})
    """Match a value as a whole, where a dict would match a part: `payload=exactly({"id": 1})`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Dispatched:
    """
    One dispatch of the code under test, as it was stored.

    Attributes:
        name, queue: Which job, where.
        id: Of the stored job.
        duplicate: Whether the dispatch made no job since one was there.
        at: When, in the test's time.
        delay_ms: Delay asked for, 0 for none.
        due_at: When it may run at the earliest.
        priority, lifo, attempts, deduplication_id: Its options.
    """

    name: str
    queue: str
    id: str
    duplicate: bool
    at: datetime
    delay_ms: int
    priority: int
    lifo: bool
    attempts: int
    deduplication_id: str | None
    own_id: bool
    _data: bytes

    @property
    def payload(self) -> Any:
        """The payload as a JSON value, decoded anew; of a duplicate, the one that was ignored."""
        return decode_json(self._data)

    @property
    def due_at(self) -> datetime:
        """When it may run at the earliest."""
        return self.at + timedelta(milliseconds=self.delay_ms)

    def __str__(self) -> str:
        parts = [f"{self.name} in {self.queue!r}", f"payload={self.payload!r}"]
        if self.own_id:
            parts.append(f"job_id={self.id!r}")
        if self.delay_ms:
            parts.append(f"delay={self.delay_ms} ms")
        if self.priority:
            parts.append(f"priority={self.priority}")
        if self.deduplication_id is not None:
            parts.append(f"deduplication={self.deduplication_id!r}")
        if self.duplicate:
            parts.append("DUPLICATE, nothing was added")
        return ", ".join(parts)


class Wanted:
    """
    What a test asks for; each given part must match.

    A dict matches a part of a dict, at any depth; a list matches item by item; a function is asked; anything else is
    compared with ==, so that matcher objects of other libraries work.
    """

    def __init__(
        self,
        job: JobDefinition[Any, Any] | str | None,
        payload: Any = ANY,
        *,
        job_id: Any = ANY,
        delay: Any = ANY,
        run_at: Any = ANY,
        within: Any = "0ms",
        priority: Any = ANY,
        queue: Any = ANY,
        attempts: Any = ANY,
        deduplication: Any = ANY,
        where: Callable[[Dispatched], bool] | None = None,
        duplicate: bool | None = False,
    ) -> None:
        self.name = job.name if isinstance(job, JobDefinition) else job
        self.payload = _as_json(job, payload) if isinstance(job, JobDefinition) else payload
        self.delay = parse_ms(delay, option="delay") if isinstance(delay, str | int | timedelta) else delay
        if isinstance(run_at, datetime) and run_at.tzinfo is None:
            raise InvalidOptionError("run_at must be an aware datetime", option="run_at", value=run_at)
        self.run_at = run_at
        self.within_ms = parse_ms(within, option="within")
        self.plain = {
            "job_id": job_id,
            "priority": priority,
            "queue": queue,
            "attempts": attempts,
            "deduplication": deduplication,
        }
        self.where = where
        self.duplicate = duplicate

    def misses(self, one: Dispatched) -> list[str]:
        """Why a dispatch does not match, empty when it does."""
        reasons = []
        if self.name is not None and one.name != self.name:
            reasons.append(f"job is {one.name!r}")
        if self.duplicate is not None and one.duplicate is not self.duplicate:
            reasons.append("it was a duplicate" if one.duplicate else "it was no duplicate")
        reasons += _payload_misses(self.payload, one.payload)
        reasons += self._time_misses(one)
        given = {
            "job_id": one.id if one.own_id else None,
            "priority": one.priority,
            "queue": one.queue,
            "attempts": one.attempts,
            "deduplication": one.deduplication_id,
        }
        for part, wanted in self.plain.items():
            if wanted is not ANY and not _matches(wanted, given[part]):
                reasons.append(f"{part} is {given[part]!r}")
        if not reasons and self.where is not None and not self.where(one):
            reasons.append("the predicate said no")
        return reasons

    def _time_misses(self, one: Dispatched) -> list[str]:
        reasons = []
        if isinstance(self.delay, int | float):
            if abs(one.delay_ms - self.delay) > self.within_ms:
                reasons.append(f"delay is {one.delay_ms} ms")
        elif self.delay is not ANY and not _matches(self.delay, one.delay_ms):
            reasons.append(f"delay is {one.delay_ms} ms")
        if isinstance(self.run_at, datetime):
            off_ms = abs((one.due_at - self.run_at.astimezone(UTC)) / timedelta(milliseconds=1))
            if off_ms > self.within_ms:
                reasons.append(f"it is due at {one.due_at.isoformat()}")
        elif self.run_at is not ANY and not _matches(self.run_at, one.due_at):
            reasons.append(f"it is due at {one.due_at.isoformat()}")
        return reasons

    def explain(self, seen: Iterable[Dispatched], found: int, times: int | None) -> str:
        """The message of a failed assertion: what was there, nearest first."""
        what = self.name if self.name is not None else "any job"
        wanted = "at least one" if times is None else str(times)
        lines = [f"expected {wanted} dispatch(es) of {what} matching {self}, found {found}"]
        ranked = sorted(((self.misses(one), one) for one in seen), key=lambda pair: len(pair[0]))
        if not ranked:
            lines.append("nothing was dispatched")
        for reasons, one in ranked[:10]:
            lines.append(f"  {'+' if not reasons else '-'} {one}")
            lines += [f"      {reason}" for reason in reasons]
        if len(ranked) > 10:
            lines.append(f"  ... and {len(ranked) - 10} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        parts = {"payload": self.payload, "delay_ms": self.delay, "run_at": self.run_at, **self.plain}
        return ", ".join(f"{key}={value!r}" for key, value in parts.items() if value is not ANY) or "anything"


def _as_json(job: JobDefinition[Any, Any], payload: Any) -> Any:
    """A wanted object of the handler's payload type, as it would arrive; anything else stays what it is."""
    if payload is None or callable(payload) or isinstance(payload, exactly | _Any | Mapping | list | tuple | str | int):
        return payload
    try:
        return decode_json(job.handler.codec.encode(payload))
    except InprocJobsError:  # a matcher object of another library
        return payload


def _matches(wanted: Any, given: Any) -> bool:
    if callable(wanted) and not isinstance(wanted, type):
        return bool(wanted(given))
    if isinstance(given, bool) and isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return False  # 1 == True in Python, not in JSON
    if isinstance(wanted, bool) and not isinstance(given, bool):
        return False
    return bool(wanted == given)


def _payload_misses(wanted: Any, given: Any, path: str = "payload") -> list[str]:
    """The places in which a payload differs from what is wanted of it."""
    if wanted is ANY:
        return []
    if isinstance(wanted, exactly):
        return [] if wanted.value == given else [f"{path} is {given!r}"]
    if isinstance(wanted, Mapping) and isinstance(given, Mapping):
        misses = []
        for key, value in wanted.items():
            if key not in given:
                misses.append(f"{path} has no {key!r}")
            else:
                misses += _payload_misses(value, given[key], f"{path}.{key}")
        return misses
    if isinstance(wanted, list | tuple) and isinstance(given, list):
        if len(wanted) != len(given):
            return [f"{path} has {len(given)} items"]
        return [
            miss
            for number, value in enumerate(wanted)
            for miss in _payload_misses(value, given[number], f"{path}[{number}]")
        ]
    return [] if _matches(wanted, given) else [f"{path} is {given!r}"]
