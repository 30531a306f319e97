"""A snapshot in memory, for tests: the real port, faults on demand, and nothing to install."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TypeVar

from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotUnavailableError
from inproc_jobs.snapshot.config import Mode, OnHeld, Snapshot
from inproc_jobs.snapshot.records import Batch, JobRecord, MetaRecord, QueueBatch, QueueState
from inproc_jobs.snapshot.store import Owner

__all__ = ["MemorySnapshot", "MemoryStore"]

T = TypeVar("T")
_NO_META = MetaRecord(0, None, False, None, None, None, 0, 0, {})


class _Shelf:
    """What the store holds of one queue; `lanes` keeps waiting and active ids, next to run first."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.waiting: list[str] = []
        self.state = QueueState("", _NO_META)


class MemorySnapshot(Snapshot):
    """
    A snapshot that lives as long as this object: give the same one to the engine before and after a crash.

    Attributes:
        failing: While set, every write and read raises this as `SnapshotUnavailableError`.
        unknown: While set as well, writes arrive although they raise: their outcome is unknown.
        writes: How many batches were stored.
    """

    def __init__(self, *, mode: Mode = "periodic", every: str = "1s", on_held: OnHeld = "refuse") -> None:
        super().__init__(mode, every, "5s", "15s", on_held)
        self.failing: str | None = None
        self.unknown = False
        self.writes = 0
        self.shelves: dict[str, _Shelf] = {}
        self.fence = 0
        self.owner: Owner | None = None

    def open_store(self) -> MemoryStore:
        """A store on what is here."""
        return MemoryStore(self)

    def evict_owner(self) -> None:
        """As if the lease of the owner had run out: its process is gone, or was away for too long."""
        self.owner = None


class MemoryStore:
    """The port on a `MemorySnapshot`."""

    description = "memory"

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self.warnings: list[str] = []
        self.limits: dict[str, tuple[int, float]] = {}
        self.wanted: frozenset[str] | None = None
        self.left_alone: frozenset[str] = frozenset()
        self._snapshot = snapshot
        self._fence = 0

    def _check(self) -> None:
        if self._snapshot.failing is not None:
            raise SnapshotUnavailableError(self._snapshot.failing)
        if self._fence != self._snapshot.fence:
            raise LeaseLostError("another engine has taken the store over")

    def acquire(self, owner: Owner) -> int:
        """See `Store.acquire`."""
        held = self._snapshot.owner
        if self._snapshot.failing is not None:
            raise SnapshotUnavailableError(self._snapshot.failing)
        if held is not None:
            since = datetime.fromtimestamp(held.since_ms / 1000, UTC)
            raise LeaseHeldError(
                f"the store is owned by process {held.pid} on {held.host} since {since.isoformat()}",
                host=held.host,
                pid=held.pid,
                since=since,
            )
        self._snapshot.owner = owner
        self._snapshot.fence += 1
        self._fence = self._snapshot.fence
        return self._fence

    def renew(self) -> None:
        """See `Store.renew`."""
        self._check()

    def load(self) -> Iterator[QueueState]:
        """See `Store.load`."""
        self._check()
        for name, shelf in self._snapshot.shelves.items():
            ordered = [shelf.jobs[id] for id in shelf.waiting]
            ordered += [job for id, job in shelf.jobs.items() if job.state != "waiting"]
            state = copy.deepcopy(shelf.state)
            state.queue, state.jobs = name, copy.deepcopy(ordered)
            yield state

    def apply(self, batch: Batch) -> None:
        """See `Store.apply`."""
        if self._snapshot.failing is not None and self._snapshot.unknown:
            self._store(batch)
            raise SnapshotUnavailableError(self._snapshot.failing, outcome="unknown")
        self._check()
        self._store(batch)

    def _store(self, batch: Batch) -> None:
        self._snapshot.writes += 1
        for part in copy.deepcopy(batch.queues):
            self._store_queue(self._snapshot.shelves.setdefault(part.queue, _Shelf()), part)

    @staticmethod
    def _store_queue(shelf: _Shelf, part: QueueBatch) -> None:
        for change in part.jobs:
            if change.moved or change.record is None:
                if change.id in shelf.waiting:
                    shelf.waiting.remove(change.id)
                old = shelf.jobs.pop(change.id, None)
                assert old is None or change.was in ("?", old.state), f"{change.id} was {change.was}, store: {old}"
            if change.record is None:
                continue
            shelf.jobs[change.id] = change.record
            if change.moved and change.record.state == "waiting":
                shelf.waiting.insert(0 if change.front else len(shelf.waiting), change.id)
        if part.meta is not None:
            shelf.state.meta = part.meta
        _update(shelf.state.keys, part.keys)
        _update(shelf.state.parked, part.parked)
        _update(shelf.state.schedulers, part.schedulers)

    def poll_foreign(self) -> list[QueueState]:
        """Nobody else can reach this store."""
        return []

    def release(self, *, handover: bool = False) -> None:
        """See `Store.release`."""
        if self._fence == self._snapshot.fence:
            self._snapshot.owner = None

    def close(self) -> None:
        """Nothing to close."""


def _update(kept: dict[str, T], changes: dict[str, T | None]) -> None:
    for id, record in changes.items():
        if record is None:
            kept.pop(id, None)
        else:
            kept[id] = record
