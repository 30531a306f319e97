"""What was dispatched, and how a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.errors import InvalidOptionError

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
        name: str | None,
        payload: Any = ANY,
        *,
        job_id: Any = ANY,
        delay: Any = ANY,
        run_at: Any = ANY,
        within: Any = "0ms",
        priority: Any = ANY,
        queue: Any = ANY,
        where: Callable[[Dispatched], bool] | None = None,
        duplicate: bool | None = False,
    ) -> None:
        self.name = name
        self.payload = payload
        self.job_id = job_id
        self.delay_ms = delay if delay is ANY else parse_ms(delay, option="delay")
        if isinstance(run_at, datetime) and run_at.tzinfo is None:
            raise InvalidOptionError("run_at must be an aware datetime", option="run_at", value=run_at)
        self.run_at = run_at
        self.within_ms = parse_ms(within, option="within")
        self.priority = priority
        self.queue = queue
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
        if self.job_id is not ANY and not _matches(self.job_id, one.id if one.own_id else None):
            reasons.append(f"job_id is {one.id!r}" if one.own_id else "it has no job_id of its own")
        if not isinstance(self.delay_ms, _Any) and abs(one.delay_ms - self.delay_ms) > self.within_ms:
            reasons.append(f"delay is {one.delay_ms} ms")
        if self.run_at is not ANY:
            off_ms = abs((one.due_at - self.run_at.astimezone(UTC)) / timedelta(milliseconds=1))
            if off_ms > self.within_ms:
                reasons.append(f"it is due at {one.due_at.isoformat()}")
        if self.priority is not ANY and not _matches(self.priority, one.priority):
            reasons.append(f"priority is {one.priority}")
        if self.queue is not ANY and one.queue != self.queue:
            reasons.append(f"queue is {one.queue!r}")
        if not reasons and self.where is not None and not self.where(one):
            reasons.append("the predicate said no")
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
        parts = {
            "payload": self.payload,
            "job_id": self.job_id,
            "delay_ms": self.delay_ms,
            "run_at": self.run_at,
            "priority": self.priority,
            "queue": self.queue,
        }
        return ", ".join(f"{key}={value!r}" for key, value in parts.items() if value is not ANY) or "anything"


def _matches(wanted: Any, given: Any) -> bool:
    if callable(wanted) and not isinstance(wanted, type):
        return bool(wanted(given))
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
