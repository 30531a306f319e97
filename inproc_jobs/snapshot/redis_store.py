"""
A store in Redis or Valkey, in BullMQ's own layout. One owner holds everything under a prefix.

`RedisLink` is the connection, `RedisLease` says who owns the prefix, `RedisReader` reads; what is written is put together here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from inproc_jobs.errors import LeaseHeldError, SnapshotLayoutError
from inproc_jobs.snapshot import bullmq_writing, lua
from inproc_jobs.snapshot.bullmq_names import OWN_FIELD
from inproc_jobs.snapshot.bullmq_reading import queues_linked_to
from inproc_jobs.snapshot.records import COMPLETED, Batch, QueueState
from inproc_jobs.snapshot.redis_lease import RedisLease
from inproc_jobs.snapshot.redis_link import RedisLink
from inproc_jobs.snapshot.redis_reader import FoundQueue, RedisReader, slices
from inproc_jobs.snapshot.store import Owner

__all__ = ["RedisStore"]

_OLDEST: Final = [6, 2]
_KEEPS_ALL: Final = "noeviction"
_PART_JOBS: Final = 2_000
_LARGE: Final = 1_000
_PAYLOADS: Final = 10_000
_encode: Final = msgspec.msgpack.Encoder().encode


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
        wanted, left_alone: See `Store`. An engine has stored a queue before if its name is in a set beside the lease.
        warnings: What the operator should know about the store, found by `load` and `poll_foreign`.
    """

    def __init__(
        self, url_or_client: Any, *, prefix: str = "bull", timeout_ms: int = 5_000, lease_ms: int = 15_000
    ) -> None:
        self.prefix = prefix
        self.lease_ms = lease_ms
        self.limits: dict[str, tuple[int, float]] = {}
        self.wanted: frozenset[str] | None = None
        self.left_alone: frozenset[str] = frozenset()
        self._link = RedisLink(url_or_client, timeout_ms / 1000)
        # A renewal that hangs must give up while there is still a lease to save.
        self._renewing = RedisLink(url_or_client, min(timeout_ms, max(lease_ms // 3, 1)) / 1000)
        self.description = self._link.description
        self._lease = RedisLease(self._link, self._renewing, prefix, lease_ms)
        self._taken: set[str] = set()
        self._reader = RedisReader(self._link, self._lease, prefix, self._taken)
        self.warnings = self._reader.warnings
        self._payloads: dict[tuple[str, str], bytes] = {}

    def acquire(self, owner: Owner) -> int:
        """See `Store.acquire`. An owner of this machine whose process is gone is not waited for."""
        self._look_at_server()
        self._refuse_living_workers((self.wanted or frozenset()) | self._reader.claimed())
        number = self._lease.acquire(owner)
        self._taken.clear()
        self._payloads.clear()
        return number

    def _refuse_living_workers(self, queues: Iterable[str]) -> None:
        """What BullMQ has left is taken over, not what its workers are at: their jobs would run twice at once."""
        names = [self._q(queue) for queue in sorted(queues)]
        found = self._link.script(lua.WORKED_ON, [], [msgspec.msgpack.encode(names)])
        if found:
            q, id, left_ms = found
            raise LeaseHeldError(
                f"job {id} of {q} in {self.description} is being run by a BullMQ worker, whose lock has {left_ms} ms to go. "
                'Stop the workers of this queue first, or wait for them with on_held="wait"; a worker that has died lets '
                "go when its lock runs out"
            )

    def _look_at_server(self) -> None:
        info = self._link.info()
        version = str(info.get("redis_version", ""))
        numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
        if numbers and numbers < _OLDEST:
            raise SnapshotLayoutError(
                f"{self.description} is a server of version {version}, which lacks commands that are needed; use Redis 6.2 "
                "or newer, or Valkey. Nothing was touched"
            )
        policy = info.get("maxmemory_policy", _KEEPS_ALL)
        if policy != _KEEPS_ALL:
            self._reader.warn_once(
                f"maxmemory-policy is {policy}, so the server may evict jobs; set it to {_KEEPS_ALL}"
            )

    def renew(self) -> None:
        """See `Store.renew`."""
        self._lease.renew(self._with_limits(self._lease.seen.all()))

    def _q(self, queue: str) -> str:
        return f"{self.prefix}:{queue}"

    def _limit(self, queue: str) -> list[str] | bool:
        limit = self.limits.get(queue)
        return [f"{limit[0]:.0f}", f"{max(limit[1], 1):.0f}"] if limit else False

    def _with_limits(self, queues: Iterable[str]) -> list[Any]:
        return [[self._q(queue), self._limit(queue)] for queue in queues]

    # --- reading ------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[QueueState]:
        """
        See `Store.load`. A queue with many jobs comes in several states, each with its settings; the order of waiting
        and active jobs runs through all of them, and finished ones come oldest first.
        """
        found = self._reader.scan()
        ours = set(found) if self.wanted is None else self.wanted | (self._reader.claimed() & found.keys())
        self.left_alone = frozenset(found)
        # Wanted ones as well that are not there yet: what others add to them must not go to stray workers.
        yield from self._take_over(found, ours)

    def _take_over(self, found: Mapping[str, FoundQueue], queues: Iterable[str]) -> Iterator[QueueState]:
        """Queues, and those that their flows reach into: what becomes of a child, its parent must be told."""
        todo: list[str] = []

        def take(more: Iterable[str]) -> None:
            for queue in sorted(more):
                self._reader.watch(queue)
                todo.append(queue)
            self.left_alone = self.left_alone.difference(todo)

        take(queues)
        for queue in todo:  # it grows meanwhile
            self._lease.call(lua.OPEN, msgspec.msgpack.encode(self._with_limits([queue])))
            for state in self._reader.load_queue(queue, found.get(queue) or FoundQueue()):
                more = self.left_alone & queues_linked_to(state, self.prefix)
                if more:
                    self._refuse_living_workers(more)
                    take(more)
                yield state

    def poll_foreign(self) -> list[QueueState]:
        """See `Store.poll_foreign`. Told by the events that every add of BullMQ leaves; we write none."""
        states = self._reader.poll_foreign()
        reached = {queue for state in states for queue in queues_linked_to(state, self.prefix)}
        reached -= self._lease.seen.all().keys()
        if not reached:
            return states
        found = self._reader.scan()
        whole = list(self._take_over(found, found.keys() & reached))
        for state in whole:
            state.whole = True
        return [*whole, *states]

    # --- writing ------------------------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """See `Store.apply`."""
        try:
            answer = self._lease.call(lua.APPLY, *self._parts(batch), allowed="stale")
            if answer[0] == "stale":
                # Somebody has taken records away of which we wanted to write only what has changed.
                self._payloads.clear()
                answer = self._lease.call(lua.APPLY, *self._parts(batch))
        except BaseException:
            self._payloads.clear()
            raise
        self._taken.update(answer[1])
        self._remember_payloads(batch)
        self._lease.seen.add(one.queue for one in batch.queues)

    def _parts(self, batch: Batch) -> list[bytes]:
        parts: list[bytes] = []
        for one in batch.queues:
            # Each is encoded at once: lists that live on until all are there make the collector look at everything.
            rows = [
                msgspec.Raw(
                    _encode(
                        bullmq_writing.job_row(
                            change, one.queue, self.prefix, self._payloads.get((one.queue, change.id))
                        )
                    )
                )
                for change in one.jobs
            ]
            part: dict[str, Any] = {
                "q": self._q(one.queue),
                "limit": self._limit(one.queue),
                "jobs": rows,
                "commands": bullmq_writing.commands_of(one, self.prefix, batch.now_ms),
                "meta": False,
            }
            if one.meta is not None:
                part["meta"] = bullmq_writing.meta_part(one.meta, one.queue, self.prefix, batch.now_ms)
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

    # --- leaving ------------------------------------------------------------------------------------------------

    def release(self, *, handover: bool = False) -> None:
        """See `Store.release`."""
        names = list(self._lease.seen.all())
        if handover:
            for queue in names:
                self._drop_free(queue)
        try:
            self._release(names, handover=handover)
        except SnapshotLayoutError:
            # A queue of which something is of a wrong kind stays as it is; the lease is no less free.
            self._release([], handover=False)
            raise

    def _release(self, names: Sequence[str], *, handover: bool) -> None:
        queues = msgspec.msgpack.encode([self._q(name) for name in names])
        self._lease.call(lua.RELEASE, queues, "1" if handover else "0")
        self._lease.forget()

    def _drop_free(self, queue: str) -> None:
        """Completed jobs whose id is free must go: for BullMQ the id of every job that is there is taken."""
        q = self._q(queue)
        with self._link.trouble():
            ids = [raw.decode(errors="replace") for raw in self._link.client.zrange(f"{q}:completed", 0, -1)]
        for some in slices(ids):
            pipe = self._link.client.pipeline(transaction=False)
            for id in some:
                pipe.hget(f"{q}:{id}", OWN_FIELD)
            with self._link.trouble():
                marks = pipe.execute(raise_on_error=False)
            rows = [
                [id, COMPLETED, False, True, False, "0", "0", [], [], True]
                for id, mark in zip(some, marks, strict=True)
                if isinstance(mark, bytes) and _is_free(mark)
            ]
            if rows:
                part = {"q": q, "limit": self._limit(queue), "jobs": rows, "commands": [], "meta": False}
                self._lease.call(lua.APPLY, *_encoded(part))

    def close(self) -> None:
        """See `Store.close`. A client that was handed in stays open."""
        self._link.close()
        self._renewing.close()


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
