"""Reads queues out of BullMQ's layout: all of them at the start, and later what others have added."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from inproc_jobs.snapshot import bullmq_reading, lua
from inproc_jobs.snapshot.bullmq_names import OWN_FIELD
from inproc_jobs.snapshot.records import (
    ACTIVE,
    COMPLETED,
    DELAYED,
    FAILED,
    PRIORITIZED,
    WAITING,
    WAITING_CHILDREN,
    JobRecord,
    KeyRecord,
    MetaRecord,
    QueueState,
)
from inproc_jobs.snapshot.redis_lease import RedisLease
from inproc_jobs.snapshot.redis_link import RedisLink

__all__ = ["FoundQueue", "RedisReader", "slices"]

_READ_JOBS: Final = 200
"""Jobs per call while reading; as many are taken in at a time, under the engine's lock."""
_STATE_JOBS: Final = 200
_PLACES: Final = {
    COMPLETED: "completed",
    FAILED: "failed",
    DELAYED: "delayed",
    PRIORITIZED: "prioritized",
    ACTIVE: "active",
    WAITING: "wait",
    WAITING_CHILDREN: "waiting-children",
}
"""In the order in which BullMQ looks for a job: one that stands in two places is in the first."""
_LISTS: Final = (ACTIVE, WAITING)
_ENDED: Final = (COMPLETED, FAILED)
_OPERATIONS: Final = frozenset((b"removed", b"paused", b"resumed", b"drained", b"cleaned"))
"""Events of commands that change what there is. An engine does not see them; it says so."""
_OF_A_QUEUE: Final = frozenset((*_PLACES.values(), "meta", "id", "repeat", "paused"))
_SIDES: Final = (":logs", ":dependencies", ":processed", ":failed", ":unsuccessful")


class RedisReader:
    """
    Reads for the owner of a lease.

    Args:
        taken: Keys of jobs of strangers whose ids we have drawn as well; they stay a stranger's.

    Attributes:
        warnings: What cannot be read and was left alone.
    """

    def __init__(self, link: RedisLink, lease: RedisLease, prefix: str, taken: Collection[str]) -> None:
        self.warnings: list[str] = []
        self._link = link
        self._lease = lease
        self._prefix = prefix
        self._taken = taken
        self._old_schedulers: set[tuple[str, str]] = set()

    def _q(self, queue: str) -> str:
        return f"{self._prefix}:{queue}"

    # --- at the start -------------------------------------------------------------------------------------------

    def scan(self) -> dict[str, FoundQueue]:
        """The queues under our prefix, and which of their jobs have more than a hash."""
        found: dict[str, FoundQueue] = {}
        start = f"{self._prefix}:"
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*"
        with self._link.trouble():
            for raw in self._link.client.scan_iter(match=pattern, count=5_000):
                try:
                    queue, _, tail = raw.decode()[len(start) :].partition(":")
                except UnicodeDecodeError:
                    continue
                if queue and tail:
                    found.setdefault(queue, FoundQueue()).note(tail)
        return {queue: one for queue, one in found.items() if one.is_queue}

    def claimed(self) -> set[str]:
        """The queues that an engine has stored before."""
        start = f"{self._prefix}:"
        with self._link.trouble():
            return {raw.decode().removeprefix(start) for raw in self._link.client.smembers(f"{self._lease.base}queues")}

    def watch(self, queue: str) -> None:
        """Remember where the queue's stream of events ends."""
        with self._link.trouble():
            last = self._link.client.xrevrange(f"{self._q(queue)}:events", count=1)
        self._lease.seen.note(queue, last[0][0].decode() if last else "0-0")

    def load_queue(self, queue: str, found: FoundQueue) -> Iterator[QueueState]:
        """A queue and its jobs, some at a time."""
        q, now_ms = self._q(queue), _now_ms()
        with self._link.trouble():
            places, meta, repeats = self._read_frame(q, now_ms)
        first = QueueState(queue, meta)
        self._read_keys(q, sorted(found.keys), first, now_ms)
        self._read_parked(q, sorted(found.parked), first)
        self._read_schedulers(q, repeats, first)
        pending = first
        seen: set[str] = set()
        for state, entries in places.items():
            fresh = [entry for entry in entries if not (entry[0] in seen or entry[0].startswith("0:"))]
            seen.update(id for id, _ in fresh)
            entries.clear()
            for start in range(0, len(fresh), _READ_JOBS):
                self._read_jobs(queue, state, fresh[start : start + _READ_JOBS], pending, found)
                if len(pending.jobs) >= _STATE_JOBS:
                    yield pending
                    pending = QueueState(queue, meta)
        if pending is first or pending.jobs or pending.unreadable:
            yield pending

    def _read_frame(
        self, q: str, now_ms: int
    ) -> tuple[dict[str, list[tuple[str, float]]], MetaRecord, list[tuple[str, float]]]:
        """Everything but the jobs, at one moment: a stray worker may promote jobs while we read."""
        pipe = self._link.client.pipeline(transaction=True)
        for state, name in _PLACES.items():
            if state in _LISTS:
                pipe.lrange(f"{q}:{name}", 0, -1)
            else:
                # Not `pipe.zrange`: redis-py pairs and converts the scores in one go, and the loop waits for all of them.
                pipe.execute_command("ZRANGE", f"{q}:{name}", 0, -1, "WITHSCORES")
        pipe.hgetall(f"{q}:meta")
        pipe.hgetall(f"{self._lease.base}kept:{q}")
        pipe.get(f"{q}:id")
        pipe.get(f"{q}:pc")
        pipe.get(f"{q}:limiter")
        pipe.pttl(f"{q}:limiter")
        pipe.zrange(f"{q}:repeat", 0, -1, withscores=True)
        for name in ("completed", "failed"):
            pipe.hgetall(f"{q}:metrics:{name}")
            pipe.lrange(f"{q}:metrics:{name}:data", 0, -1)
        answers = pipe.execute()
        places: dict[str, list[tuple[str, float]]] = {}
        for state, answer in zip(_PLACES, answers, strict=False):
            # Lists have the next one, and the oldest, at the right end.
            if state in _LISTS:
                places[state] = [(raw.decode(errors="replace"), 0.0) for raw in reversed(answer)]
            else:
                pairs = zip(answer[::2], answer[1::2], strict=True)
                places[state] = [(raw.decode(errors="replace"), float(score)) for raw, score in pairs]
        rest = answers[len(_PLACES) :]
        meta = bullmq_reading.meta_record(
            _texts(rest[0]),
            _texts(rest[1]),
            _text(rest[2]),
            _text(rest[3]),
            (_text(rest[4]), rest[5]),
            {
                name: (_texts(rest[index]), [point.decode() for point in rest[index + 1]])
                for name, index in (("completed", 7), ("failed", 9))
            },
            now_ms,
        )
        return places, meta, [(raw.decode(errors="replace"), score) for raw, score in rest[6]]

    def _read_keys(self, q: str, ids: Sequence[str], state: QueueState, now_ms: int) -> None:
        for some in slices(ids):
            pipe = self._link.client.pipeline(transaction=False)
            for id in some:
                pipe.get(f"{q}:de:{id}")
                pipe.pttl(f"{q}:de:{id}")
            with self._link.trouble():
                answers = pipe.execute(raise_on_error=False)
            for id, owner, left in zip(some, answers[::2], answers[1::2], strict=True):
                if isinstance(owner, bytes) and left != -2:
                    state.keys[id] = KeyRecord(owner.decode(errors="replace"), None if left == -1 else now_ms + left)

    def _read_parked(self, q: str, ids: Sequence[str], state: QueueState) -> None:
        for id in ids:
            with self._link.trouble():
                fields = self._link.client.hgetall(f"{q}:dn:{id}")
            if fields:
                with suppress(bullmq_reading.UnreadableJobError):
                    state.parked[id] = bullmq_reading.parked_record(_texts(fields))

    def _read_schedulers(self, q: str, repeats: Sequence[tuple[str, float]], state: QueueState) -> None:
        for id, next_ms in repeats:
            with self._link.trouble():
                fields = self._link.client.hgetall(f"{q}:repeat:{id}")
            try:
                state.schedulers[id] = bullmq_reading.scheduler_record(id, next_ms, _texts(fields))
            except bullmq_reading.UnreadableJobError as error:
                self.warnings.append(f"scheduler {id!r} of {q} was left alone, and its pending job is parked: {error}")
                self._old_schedulers.add((q, id))

    def _read_jobs(
        self, queue: str, state: str, entries: Sequence[tuple[str, float]], into: QueueState, found: FoundQueue
    ) -> None:
        """Jobs of one state, in the order of `entries`; those that nobody of ours has known are marked as known now."""
        q = self._q(queue)
        rows = self._rows(q, [id for id, _ in entries])
        strangers: list[str] = []
        records: list[JobRecord] = []
        for (id, score), row in zip(entries, rows, strict=True):
            try:
                if not isinstance(row, dict):
                    raise bullmq_reading.UnreadableJobError(row or "its record is missing")
                record = bullmq_reading.read_job(id, state, score, row, self._prefix)
                if state not in _ENDED and (q, record.scheduler_id) in self._old_schedulers:
                    # Run without its schedule it would be the last one.
                    raise bullmq_reading.UnreadableJobError(
                        f"it belongs to the schedule {record.scheduler_id!r}, which was left alone"
                    )
            except bullmq_reading.UnreadableJobError as error:
                into.unreadable[id] = str(error)
                continue
            records.append(record)
            # One whose id we have drawn as well stays a stranger's, or our next write would go over it.
            if OWN_FIELD not in row and f"{q}:{id}" not in self._taken:
                strangers.append(id)
        self._read_sides(q, [record for record in records if record.id in found.sides], found)
        for record in records:
            if record.state == WAITING_CHILDREN and record.pending is None:
                record.pending, record.processed, record.ignored, record.unsuccessful = [], {}, {}, {}
        if strangers:
            self._lease.call(lua.STAMP, q, msgspec.msgpack.encode(strangers))
        into.jobs += records

    def _rows(self, q: str, ids: Sequence[str]) -> list[dict[str, str] | str | None]:
        """The hashes of jobs; None where there is none, text where it cannot be read."""
        with self._link.trouble():
            packed = self._link.evaluate(lua.READ, [], [q, msgspec.msgpack.encode(ids)])
        try:
            rows = msgspec.msgpack.decode(packed)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # One of them holds bytes that are no text; a single one is unreadable, the others are not.
            if len(ids) == 1:
                return ["it holds bytes that are no text"]
            middle = len(ids) // 2
            return self._rows(q, ids[:middle]) + self._rows(q, ids[middle:])
        return [dict(zip(row[::2], row[1::2], strict=True)) if isinstance(row, list) else (row or None) for row in rows]

    def _read_sides(self, q: str, records: Sequence[JobRecord], found: FoundQueue) -> None:
        for record in records:
            key, sides = f"{q}:{record.id}", found.sides[record.id]
            pipe = self._link.client.pipeline(transaction=False)
            pipe.lrange(f"{key}:logs", 0, -1)
            pipe.smembers(f"{key}:dependencies")
            pipe.hgetall(f"{key}:processed")
            pipe.hgetall(f"{key}:failed")
            pipe.zrange(f"{key}:unsuccessful", 0, -1, withscores=True)
            with self._link.trouble():
                logs, pending, processed, failed, unsuccessful = pipe.execute()
            record.logs = [row.decode(errors="replace") for row in logs] or None
            if sides - {":logs"} or record.state == WAITING_CHILDREN:
                record.pending = sorted(child.decode() for child in pending)
                record.processed = {child.decode(): value for child, value in processed.items()}
                record.ignored = _texts(failed)
                record.unsuccessful = {child.decode(): int(ms) for child, ms in unsuccessful}

    # --- what others have added ---------------------------------------------------------------------------------

    def poll_foreign(self) -> list[QueueState]:
        """See `Store.poll_foreign`. Told by the events that every add of BullMQ leaves; we write none."""
        seen = self._lease.seen.all()
        pipe = self._link.client.pipeline(transaction=False)
        for name, last in seen.items():
            pipe.xrange(f"{self._q(name)}:events", f"({last}", "+", count=2_000)
        with self._link.trouble():
            answers = pipe.execute() if seen else []
        states = []
        for name, entries in zip(seen, answers, strict=True):
            if entries:
                state = self._foreign_of(name, entries)
                self._lease.seen.note(name, entries[-1][0].decode())
                if state is not None:
                    states.append(state)
        return states

    def _foreign_of(self, queue: str, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> QueueState | None:
        q, now_ms = self._q(queue), _now_ms()
        ids: dict[str, None] = {}
        parked: dict[str, None] = {}
        for _, fields in entries:
            event = fields.get(b"event")
            if event == b"added" and b"jobId" in fields:
                ids[fields[b"jobId"].decode(errors="replace")] = None
            elif event == b"deduplicated" and b"deduplicationId" in fields:
                parked[fields[b"deduplicationId"].decode(errors="replace")] = None
            elif event in _OPERATIONS:
                self.warn_once(
                    f"somebody changes {q} from outside ({event.decode()}), which this engine does not see; use the engine"
                )
        if not ids and not parked:
            return None
        with self._link.trouble():
            places, meta, repeats = self._read_frame_of(q, list(ids), now_ms)
        state = QueueState(queue, meta)
        found = FoundQueue()
        for id in ids:
            found.sides[id] = {*_SIDES}
        for name, some in places.items():
            self._read_jobs(queue, name, some, state, found)
        for record in state.jobs:
            if record.state != WAITING_CHILDREN and not (record.pending or record.processed):
                record.pending = record.processed = record.ignored = record.unsuccessful = None
        keys = {record.deduplication_id for record in state.jobs if record.deduplication_id is not None}
        self._read_keys(q, sorted(keys), state, now_ms)
        self._read_parked(q, list(parked), state)
        schedulers = {record.scheduler_id for record in state.jobs if record.scheduler_id is not None}
        self._read_schedulers(q, [(id, score) for id, score in repeats if id in schedulers], state)
        return state if state.jobs or state.parked else None

    def warn_once(self, warning: str) -> None:
        """Note what the operator should know."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _read_frame_of(
        self, q: str, ids: Sequence[str], now_ms: int
    ) -> tuple[dict[str, list[tuple[str, float]]], MetaRecord, list[tuple[str, float]]]:
        """As `_read_frame`, of some ids, without those that are known."""
        pipe = self._link.client.pipeline(transaction=True)
        for id in ids:
            pipe.hexists(f"{q}:{id}", OWN_FIELD)
            for state, name in _PLACES.items():
                if state in _LISTS:
                    pipe.lpos(f"{q}:{name}", id)
                else:
                    pipe.zscore(f"{q}:{name}", id)
        pipe.hgetall(f"{q}:meta")
        pipe.hgetall(f"{self._lease.base}kept:{q}")
        pipe.get(f"{q}:id")
        pipe.get(f"{q}:pc")
        pipe.zrange(f"{q}:repeat", 0, -1, withscores=True)
        answers = pipe.execute()
        width = len(_PLACES) + 1
        places: dict[str, list[tuple[str, float]]] = {state: [] for state in _PLACES}
        for number, id in enumerate(ids):
            known, *where = answers[number * width : (number + 1) * width]
            placed = next(((name, at) for name, at in zip(_PLACES, where, strict=True) if at is not None), None)
            if not known and placed is not None:
                state, at = placed
                # Lists have the next one at the right end.
                places[state].append((id, -float(at) if state in _LISTS else float(at)))
        for some in places.values():
            some.sort(key=lambda entry: entry[1])
        rest = answers[len(ids) * width :]
        kept = _texts(rest[1])
        meta = bullmq_reading.meta_record(_texts(rest[0]), kept, _text(rest[2]), _text(rest[3]), (None, 0), {}, now_ms)
        return places, meta, [(raw.decode(errors="replace"), score) for raw, score in rest[4]]


class FoundQueue:
    """What a scan has found of one queue."""

    def __init__(self) -> None:
        self.is_queue = False
        self.keys: set[str] = set()
        self.parked: set[str] = set()
        self.sides: dict[str, set[str]] = {}

    def note(self, tail: str) -> None:
        """Tell by the rest of a key what it is."""
        if tail in _OF_A_QUEUE:
            self.is_queue = True
        elif tail.startswith("de:"):
            self.keys.add(tail[3:])
        elif tail.startswith("dn:"):
            self.parked.add(tail[3:])
        else:
            for side in _SIDES:
                if tail.endswith(side):
                    self.sides.setdefault(tail.removesuffix(side), set()).add(side)


def slices(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many at a time as one call may hold."""
    for start in range(0, len(ids), _READ_JOBS):
        yield ids[start : start + _READ_JOBS]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


def _texts(raw: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in raw.items()}


def _now_ms() -> int:
    return math.floor(time.time() * 1000)
