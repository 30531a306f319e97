"""
A store in Redis or Valkey, in BullMQ's own layout. The only module that imports redis.

One owner holds everything under a prefix. Its lease, its fencing number and what it hides from BullMQ's workers stand
under `{prefix}::inproc-jobs:`: a queue with an empty name, which BullMQ refuses, so nothing of a queue can have such a key.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from inproc_jobs.errors import (
    InvalidOptionTypeError,
    LeaseHeldError,
    LeaseLostError,
    SnapshotLayoutError,
    SnapshotUnavailableError,
)
from inproc_jobs.snapshot import bullmq_layout as layout
from inproc_jobs.snapshot import lua
from inproc_jobs.snapshot.records import (
    ACTIVE,
    COMPLETED,
    DELAYED,
    FAILED,
    PRIORITIZED,
    WAITING,
    WAITING_CHILDREN,
    Batch,
    JobRecord,
    KeyRecord,
    MetaRecord,
    QueueState,
)
from inproc_jobs.snapshot.store import Owner, StoreEmptiedError

__all__ = ["RedisStore"]

RESERVE: Final = 100_000
"""How far `Q:id` runs ahead of our counter while we own the store."""
_READ_JOBS: Final = 200
"""Jobs per call while reading; as many are taken in at a time, under the engine's lock."""
_PART_JOBS: Final = 2_000
_STATE_JOBS: Final = 200
_LARGE: Final = 1_000
_PAYLOADS: Final = 10_000
_encode: Final = msgspec.msgpack.Encoder().encode
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
_OF_A_QUEUE: Final = frozenset((*_PLACES.values(), "meta", "id", "repeat", "paused"))
_SIDES: Final = (":logs", ":dependencies", ":processed", ":failed", ":unsuccessful")
_PASSING: Final = re.compile(
    r"\b(LOADING|BUSY|MASTERDOWN|READONLY|OOM|MISCONF|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|UNKILLABLE|NOAUTH|WRONGPASS|NOPERM"
    r"|max number of clients)\b"
)
_PASSING_ERRORS: Final = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,  # MASTERDOWN is one of these
    redis.exceptions.TryAgainError,
    redis.exceptions.NoPermissionError,
)
"""redis-py takes the word away from the messages of these."""
_KEPT_SETTINGS: Final = (
    "host",
    "port",
    "db",
    "username",
    "password",
    "path",
    "client_name",
    "credential_provider",
    "health_check_interval",
    "socket_keepalive",
    "socket_keepalive_options",
)


class _OwnerRow(msgspec.Struct):
    """What the lease says. `space` is where `pid` means something; empty: unknown."""

    host: str
    pid: int
    since_ms: int
    space: str = ""


def _space() -> str:
    """Names the world in which a process id is unique: machine, boot and container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"{sys.platform}/{socket.gethostname()}/{uuid.getnode()}"


def _has_died(row: _OwnerRow) -> bool:
    """Whether the owner was a process of this very machine that is certainly gone: nobody need wait for its lease."""
    if not row.space or row.space != _space() or row.pid == os.getpid() or row.pid <= 0 or os.name != "posix":
        return False
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class RedisStore:
    """
    A store in Redis or Valkey.

    Args:
        url_or_client: "redis://...", "rediss://...", "unix://...", a `redis.Redis`, or a `redis.asyncio.Redis` (whose
            settings are used, not its connections).
        prefix: Start of all keys.
        timeout_ms: Patience with a single call.
        lease_ms: How long the store is ours without a sign of life.

    Attributes:
        limits: Queue -> (max, duration ms) of its workers: what BullMQ's workers see as the queue's limit while this
            owner lives, and after it was killed.
        wanted: Which queues to load; None loads all that are under the prefix. Others are left to their own workers.
        warnings: What the operator should know about the store, found by `acquire` and `load`.
    """

    def __init__(
        self, url_or_client: Any, *, prefix: str = "bull", timeout_ms: int = 5_000, lease_ms: int = 15_000
    ) -> None:
        self.prefix = prefix
        self.lease_ms = lease_ms
        self.limits: dict[str, tuple[int, float]] = {}
        self.warnings: list[str] = []
        self.wanted: Callable[[str], bool] | None = None
        base = f"{prefix}::inproc-jobs:"
        self._lease_key, self._fence_key, self._layout_key = f"{base}lease", f"{base}fence", f"{base}layout"
        self._kept = f"{base}kept:"
        self._token, self._fence = "", ""
        self._client, self.description = _connect(url_or_client, timeout_ms / 1000)
        # A renewal that hangs must give up while there is still a lease to save.
        self._lease_client, _ = _connect(url_or_client, min(timeout_ms, max(lease_ms // 3, 1)) / 1000)
        self._borrowed = self._client is url_or_client
        self._queues: dict[str, str] = {}
        self._queues_lock = threading.Lock()
        self._shas: dict[str, str] = {}
        self._taken: set[str] = set()
        self._payloads: dict[tuple[str, str], bytes] = {}

    # --- owning -------------------------------------------------------------------------------------------------

    def acquire(self, owner: Owner) -> int:
        """See `Store.acquire`. An owner of this machine whose process is gone is not waited for."""
        row = msgspec.json.encode(_OwnerRow(owner.host, owner.pid, owner.since_ms, _space())).decode()
        # Two owners in one process and one millisecond must differ as well.
        row = f"{row} {uuid.uuid4().hex}"
        displaced, holder = "", None
        for _ in range(2):
            word, value = self._script(
                self._client,
                lua.ACQUIRE,
                [self._lease_key, self._fence_key, self._layout_key],
                [row, str(self.lease_ms), str(lua.LAYOUT), displaced],
            )[:2]
            if word == "ok":
                with self._queues_lock:
                    self._queues.clear()
                self._taken.clear()
                self._payloads.clear()
                self._fence, self._token = value, f"{value} {row}"
                return int(value)
            if word == "layout":
                raise SnapshotLayoutError(
                    f"{self.description} holds a snapshot of layout {value}; this version knows up to {lua.LAYOUT}. "
                    "Nothing was touched; install the version that wrote it"
                )
            holder = _holder(value)
            if holder is None or not _has_died(holder):
                raise self._held(holder)
            displaced = value
        raise self._held(holder)

    def _held(self, holder: _OwnerRow | None) -> LeaseHeldError:
        if holder is None:
            return LeaseHeldError(f"another engine owns {self.description} (prefix {self.prefix!r})")
        since = datetime.fromtimestamp(holder.since_ms / 1000, UTC)
        return LeaseHeldError(
            f"{self.description} (prefix {self.prefix!r}) is owned by process {holder.pid} on {holder.host} since "
            f"{since.isoformat(timespec='seconds')}. One engine owns a snapshot: stop the other one, let this one wait "
            'with on_held="wait", or give it a prefix of its own. There is no mode that only dispatches: send work to '
            "the owner, or run the jobs on a real BullMQ",
            host=holder.host,
            pid=holder.pid,
            since=since,
        )

    def _call(self, client: Any, script: str, *arguments: Any, allowed: str = "ok") -> list[Any]:
        """Run one of the scripts that begin with the lease."""
        with self._queues_lock:
            events = {self._q(name): last for name, last in self._queues.items()}
        head = {
            "token": self._token,
            "fence": self._fence,
            "lease": str(self.lease_ms),
            "kept": self._kept,
            "seen": events,
            "reserve": RESERVE,
        }
        answer = self._script(
            client, script, [self._lease_key, self._fence_key], [msgspec.msgpack.encode(head), *arguments]
        )
        word = answer[0]
        if word in {"ok", allowed}:
            return answer
        if word == "type":
            raise SnapshotLayoutError(
                f"{self.description}: the key {answer[1]} is a {answer[2]} where BullMQ has a {answer[3]}. "
                "Nothing was touched; remove or rename that key, or use another prefix"
            )
        if word == "emptied":
            raise StoreEmptiedError(
                f"{self.description} has lost its data while this engine was its owner; it must be written anew"
            )
        if word == "worked":
            raise LeaseLostError(
                f"the lease on {self.description} ran out, and a BullMQ worker has taken over {answer[1]} since"
            )
        holder = _holder(answer[1])
        who = f"process {holder.pid} on {holder.host}" if holder is not None else "another engine"
        raise LeaseLostError(f"{self.description} is owned by {who} now; nothing was written")

    def renew(self) -> None:
        """See `Store.renew`."""
        self._call(self._lease_client, lua.RENEW, msgspec.msgpack.encode(self._with_limits(self._names())))

    def _names(self) -> list[str]:
        with self._queues_lock:
            return list(self._queues)

    def _q(self, queue: str) -> str:
        return f"{self.prefix}:{queue}"

    def _limit(self, queue: str) -> list[str] | bool:
        limit = self.limits.get(queue)
        return [f"{limit[0]:.0f}", f"{max(limit[1], 1):.0f}"] if limit else False

    def _with_limits(self, queues: Iterable[str]) -> list[Any]:
        return [[self._q(queue), self._limit(queue)] for queue in queues]

    # --- talking ------------------------------------------------------------------------------------------------

    def _script(self, client: Any, script: str, keys: list[str], arguments: list[Any]) -> list[Any]:
        with self._trouble():
            answer = self._evaluate(client, script, keys, arguments)
        return [
            item.decode(errors="replace")
            if isinstance(item, bytes)
            else [one.decode(errors="replace") if isinstance(one, bytes) else one for one in item]
            if isinstance(item, list)
            else item
            for item in answer
        ]

    def _evaluate(self, client: Any, script: str, keys: list[str], arguments: list[Any]) -> Any:
        sha = self._shas.get(script)
        if sha is not None:
            try:
                return client.evalsha(sha, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:
                pass
        self._shas[script] = _sha1(script)
        return client.eval(script, len(keys), *keys, *arguments)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Tell what may pass from what may not."""
        try:
            yield
        except redis.exceptions.AuthenticationError as error:
            raise SnapshotUnavailableError(f"{self.description} refuses the password: {error}") from error
        except redis.exceptions.BusyLoadingError as error:
            raise SnapshotUnavailableError(f"{self.description} is still loading its data: {error}") from error
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            # redis-py says so in these words, and nothing else about where a call has broken off.
            early = "connecting to" in str(error) or "name resolution" in str(error)
            outcome = "not written" if early else "unknown"
            raise SnapshotUnavailableError(f"{self.description} is not available: {error}", outcome=outcome) from error
        except redis.exceptions.ResponseError as error:
            if isinstance(error, _PASSING_ERRORS) or _PASSING.search(str(error)):
                raise SnapshotUnavailableError(f"{self.description} cannot do this now: {error}") from error
            raise SnapshotLayoutError(f"{self.description} refused: {error}") from error

    # --- writing ------------------------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """See `Store.apply`."""
        try:
            answer = self._call(self._client, lua.APPLY, *self._parts(batch), allowed="stale")
            if answer[0] == "stale":
                # Somebody has taken records away of which we wanted to write only what has changed.
                self._payloads.clear()
                answer = self._call(self._client, lua.APPLY, *self._parts(batch))
        except BaseException:
            self._payloads.clear()
            raise
        self._taken.update(answer[1])
        self._remember_payloads(batch)
        with self._queues_lock:
            for one in batch.queues:
                # From the beginning of its events: others may have been in this queue before us.
                self._queues.setdefault(one.queue, "0-0")

    def _parts(self, batch: Batch) -> list[bytes]:
        parts: list[bytes] = []
        for one in batch.queues:
            # Each is encoded at once: lists that live on until all are there make the collector look at everything.
            rows = [
                msgspec.Raw(
                    _encode(layout.job_row(change, one.queue, self.prefix, self._payloads.get((one.queue, change.id))))
                )
                for change in one.jobs
            ]
            part: dict[str, Any] = {
                "q": self._q(one.queue),
                "limit": self._limit(one.queue),
                "jobs": rows,
                "commands": layout.commands_of(one, self.prefix, batch.now_ms),
                "meta": False,
            }
            if one.meta is not None:
                part["meta"] = layout.meta_part(one.meta, one.queue, self.prefix, batch.now_ms)
            parts += _encoded(part)
        return parts

    def _remember_payloads(self, batch: Batch) -> None:
        """Large payloads that were written lately need not go over the wire at each step of their jobs."""
        for one in batch.queues:
            for change in one.jobs:
                record = change.record
                if record is None or record.finished_on is not None or len(record.data) < _LARGE:
                    self._payloads.pop((one.queue, change.id), None)
                else:
                    self._payloads[one.queue, change.id] = record.data
        while len(self._payloads) > _PAYLOADS:
            del self._payloads[next(iter(self._payloads))]

    def _watch(self, queue: str) -> None:
        """Remember where the queue's stream of events ends: what comes later was somebody else's doing."""
        with self._trouble():
            last = self._client.xrevrange(f"{self._q(queue)}:events", count=1)
        with self._queues_lock:
            self._queues[queue] = last[0][0].decode() if last else "0-0"

    # --- reading ------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[QueueState]:
        """
        See `Store.load`. A queue with many jobs comes in several states, each with its settings; the order of waiting
        and active jobs runs through all of them, and finished ones come oldest first.
        """
        found = {queue: one for queue, one in self._scan().items() if self.wanted is None or self.wanted(queue)}
        for queue in sorted(found):
            self._watch(queue)
        for queue in sorted(found):
            self._call(self._client, lua.OPEN, msgspec.msgpack.encode(self._with_limits([queue])))
            yield from self._load_queue(queue, found[queue])

    def _scan(self) -> dict[str, _Found]:
        """The queues under our prefix, and which of their jobs have more than a hash."""
        found: dict[str, _Found] = {}
        start = f"{self.prefix}:"
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*"
        with self._trouble():
            for raw in self._client.scan_iter(match=pattern, count=5_000):
                try:
                    queue, _, tail = raw.decode()[len(start) :].partition(":")
                except UnicodeDecodeError:
                    continue
                if queue and tail:
                    found.setdefault(queue, _Found()).note(tail)
        return {queue: one for queue, one in found.items() if one.is_queue}

    def _load_queue(self, queue: str, found: _Found) -> Iterator[QueueState]:
        q, now_ms = self._q(queue), _now_ms()
        with self._trouble():
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
        pipe = self._client.pipeline(transaction=True)
        for state, name in _PLACES.items():
            if state in _LISTS:
                pipe.lrange(f"{q}:{name}", 0, -1)
            else:
                # Not `pipe.zrange`: redis-py pairs and converts the scores in one go, and the loop waits for all of them.
                pipe.execute_command("ZRANGE", f"{q}:{name}", 0, -1, "WITHSCORES")
        pipe.hgetall(f"{q}:meta")
        pipe.hgetall(f"{self._kept}{q}")
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
        meta = layout.meta_record(
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
        for some in _slices(ids):
            pipe = self._client.pipeline(transaction=False)
            for id in some:
                pipe.get(f"{q}:de:{id}")
                pipe.pttl(f"{q}:de:{id}")
            with self._trouble():
                answers = pipe.execute(raise_on_error=False)
            for id, owner, left in zip(some, answers[::2], answers[1::2], strict=True):
                if isinstance(owner, bytes) and left != -2:
                    state.keys[id] = KeyRecord(owner.decode(errors="replace"), None if left == -1 else now_ms + left)

    def _read_parked(self, q: str, ids: Sequence[str], state: QueueState) -> None:
        for id in ids:
            with self._trouble():
                fields = self._client.hgetall(f"{q}:dn:{id}")
            if fields:
                with suppress(layout.UnreadableJobError):
                    state.parked[id] = layout.parked_record(_texts(fields))

    def _read_schedulers(self, q: str, repeats: Sequence[tuple[str, float]], state: QueueState) -> None:
        for id, next_ms in repeats:
            with self._trouble():
                fields = self._client.hgetall(f"{q}:repeat:{id}")
            try:
                state.schedulers[id] = layout.scheduler_record(id, next_ms, _texts(fields))
            except layout.UnreadableJobError as error:
                self.warnings.append(f"scheduler {id!r} of {q} was left alone: {error}")

    def _read_jobs(
        self, queue: str, state: str, entries: Sequence[tuple[str, float]], into: QueueState, found: _Found
    ) -> None:
        """Jobs of one state, in the order of `entries`; those that nobody of ours has known are marked as known now."""
        q = self._q(queue)
        rows = self._rows(q, [id for id, _ in entries])
        strangers: list[str] = []
        records: list[JobRecord] = []
        for (id, score), row in zip(entries, rows, strict=True):
            try:
                if not isinstance(row, dict):
                    raise layout.UnreadableJobError(row or "its record is missing")
                record = layout.read_job(id, state, score, row, self.prefix)
            except layout.UnreadableJobError as error:
                into.unreadable[id] = str(error)
                continue
            records.append(record)
            # One whose id we have drawn as well stays a stranger's, or our next write would go over it.
            if layout.OWN_FIELD not in row and f"{q}:{id}" not in self._taken:
                strangers.append(id)
        self._read_sides(q, [record for record in records if record.id in found.sides], found)
        for record in records:
            if record.state == WAITING_CHILDREN and record.pending is None:
                record.pending, record.processed, record.ignored, record.unsuccessful = [], {}, {}, {}
        if strangers:
            self._call(self._client, lua.STAMP, q, msgspec.msgpack.encode(strangers))
        into.jobs += records

    def _rows(self, q: str, ids: Sequence[str]) -> list[dict[str, str] | str | None]:
        """The hashes of jobs; None where there is none, text where it cannot be read."""
        with self._trouble():
            packed = self._evaluate(self._client, lua.READ, [], [q, msgspec.msgpack.encode(ids)])
        try:
            rows = msgspec.msgpack.decode(packed)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # One of them holds bytes that are no text; a single one is unreadable, the others are not.
            if len(ids) == 1:
                return ["it holds bytes that are no text"]
            middle = len(ids) // 2
            return self._rows(q, ids[:middle]) + self._rows(q, ids[middle:])
        return [dict(zip(row[::2], row[1::2], strict=True)) if isinstance(row, list) else (row or None) for row in rows]

    def _read_sides(self, q: str, records: Sequence[JobRecord], found: _Found) -> None:
        for record in records:
            key, sides = f"{q}:{record.id}", found.sides[record.id]
            pipe = self._client.pipeline(transaction=False)
            pipe.lrange(f"{key}:logs", 0, -1)
            pipe.smembers(f"{key}:dependencies")
            pipe.hgetall(f"{key}:processed")
            pipe.hgetall(f"{key}:failed")
            pipe.zrange(f"{key}:unsuccessful", 0, -1, withscores=True)
            with self._trouble():
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
        names = self._names()
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            with self._queues_lock:
                last = self._queues[name]
            pipe.xrange(f"{self._q(name)}:events", f"({last}", "+", count=2_000)
        with self._trouble():
            answers = pipe.execute() if names else []
        states = []
        for name, entries in zip(names, answers, strict=True):
            if entries:
                state = self._foreign_of(name, entries)
                with self._queues_lock:
                    self._queues[name] = entries[-1][0].decode()
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
        if not ids and not parked:
            return None
        with self._trouble():
            places, meta, repeats = self._read_frame_of(q, list(ids), now_ms)
        state = QueueState(queue, meta)
        found = _Found()
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

    def _read_frame_of(
        self, q: str, ids: Sequence[str], now_ms: int
    ) -> tuple[dict[str, list[tuple[str, float]]], MetaRecord, list[tuple[str, float]]]:
        """As `_read_frame`, of some ids, without those that are known."""
        pipe = self._client.pipeline(transaction=True)
        for id in ids:
            pipe.hexists(f"{q}:{id}", layout.OWN_FIELD)
            for state, name in _PLACES.items():
                if state in _LISTS:
                    pipe.lpos(f"{q}:{name}", id)
                else:
                    pipe.zscore(f"{q}:{name}", id)
        pipe.hgetall(f"{q}:meta")
        pipe.hgetall(f"{self._kept}{q}")
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
        meta = layout.meta_record(_texts(rest[0]), kept, _text(rest[2]), _text(rest[3]), (None, 0), {}, now_ms)
        return places, meta, [(raw.decode(errors="replace"), score) for raw, score in rest[4]]

    # --- leaving ------------------------------------------------------------------------------------------------

    def release(self, *, handover: bool = False) -> None:
        """See `Store.release`."""
        names = self._names()
        if handover:
            for queue in names:
                self._drop_free(queue)
        queues = msgspec.msgpack.encode([self._q(name) for name in names])
        self._call(self._client, lua.RELEASE, queues, "1" if handover else "0")
        self._token = ""

    def _drop_free(self, queue: str) -> None:
        """Completed jobs whose id is free must go: for BullMQ the id of every job that is there is taken."""
        q = self._q(queue)
        with self._trouble():
            ids = [raw.decode(errors="replace") for raw in self._client.zrange(f"{q}:completed", 0, -1)]
        for some in _slices(ids):
            pipe = self._client.pipeline(transaction=False)
            for id in some:
                pipe.hget(f"{q}:{id}", layout.OWN_FIELD)
            with self._trouble():
                marks = pipe.execute(raise_on_error=False)
            rows = [
                [id, COMPLETED, False, True, False, "0", "0", [], [], True]
                for id, mark in zip(some, marks, strict=True)
                if isinstance(mark, bytes) and _is_free(mark)
            ]
            if rows:
                part = {"q": q, "limit": self._limit(queue), "jobs": rows, "commands": [], "meta": False}
                self._call(self._client, lua.APPLY, *_encoded(part))

    def close(self) -> None:
        """See `Store.close`. A client that was handed in stays open."""
        if not self._borrowed:
            self._client.close()
            self._lease_client.close()


class _Found:
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


def _encoded(part: dict[str, Any]) -> list[bytes]:
    """A part of a batch as arguments of bounded size; what belongs to the queue comes with the last."""
    rows = part["jobs"]
    heads = [
        {**part, "jobs": rows[start : start + _PART_JOBS], "commands": [], "meta": False}
        for start in range(0, len(rows) - _PART_JOBS, _PART_JOBS)
    ]
    last = {**part, "jobs": rows[len(heads) * _PART_JOBS :]}
    return [msgspec.msgpack.encode(one) for one in (*heads, last)]


def _is_free(mark: bytes) -> bool:
    with suppress(msgspec.DecodeError):
        own = msgspec.json.decode(mark).get("own") or {}
        # `kept`: whether the job was given retention of its own, for completed and for failed.
        return bool(own.get("frees_id")) and not own.get("kept", [False])[0]
    return False


def _holder(token: str) -> _OwnerRow | None:
    """Who a lease names: "fence {json} nonce"."""
    start, end = token.find("{"), token.rfind("}")
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(token[start : end + 1], type=_OwnerRow)
    return None


def _slices(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _READ_JOBS):
        yield ids[start : start + _READ_JOBS]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


def _texts(raw: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in raw.items()}


def _now_ms() -> int:
    return math.floor(time.time() * 1000)


def _sha1(script: str) -> str:
    import hashlib

    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


# --- connections --------------------------------------------------------------------------------------------------


def _connect(url_or_client: Any, timeout_s: float) -> tuple[Any, str]:
    """A synchronous client with our patience, and how to call it in messages (without a password)."""
    ours: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        # A lost answer must be told as such, not hidden by a second try; the snapshot tries again by itself.
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        # The older protocol has the same answers in every redis-py since 5.0.
        "protocol": 2,
    }
    if isinstance(url_or_client, str):
        client = redis.Redis.from_url(url_or_client, **ours)
        return client, _describe(client.connection_pool.connection_kwargs)
    pool = getattr(url_or_client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if pool is None or settings is None:
        raise InvalidOptionTypeError(
            f"expected a URL or a redis-py client, got {type(url_or_client).__name__}", option="url_or_client"
        )
    if "Sentinel" in type(pool).__name__:
        if type(pool).__module__.startswith("redis.asyncio") or settings.get("decode_responses"):
            raise InvalidOptionTypeError(
                "a client of a Sentinel must be synchronous and made with decode_responses=False",
                option="url_or_client",
            )
        return url_or_client, f"Redis master {getattr(pool, 'service_name', '')}"
    kept = {name: settings[name] for name in _KEPT_SETTINGS if settings.get(name) is not None}
    kept |= {name: value for name, value in settings.items() if name.startswith("ssl_") and value is not None}
    return redis.Redis(connection_pool=redis.ConnectionPool(_connection_class(pool), **kept, **ours)), _describe(
        settings
    )


def _connection_class(pool: Any) -> Any:
    """The synchronous class for what a client, synchronous or not, connects by."""
    name = getattr(pool, "connection_class", redis.Connection).__name__
    if "Unix" in name:
        return redis.UnixDomainSocketConnection
    return redis.SSLConnection if "SSL" in name else redis.Connection


def _describe(settings: Mapping[str, Any]) -> str:
    number = settings.get("db") or 0
    if settings.get("path"):
        return f"Redis at {settings['path']}, database {number}"
    return f"Redis at {settings.get('host', 'localhost')}:{settings.get('port', 6379)}/{number}"
