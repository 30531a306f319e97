"""The port behind which stores live: one owner at a time, atomic writes that carry the owner's fencing number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from inproc_jobs.errors import LeaseLostError
from inproc_jobs.snapshot.records import Batch, QueueState

__all__ = ["Owner", "Store", "StoreEmptiedError"]


class StoreEmptiedError(LeaseLostError):
    """
    The store came back without its data (restarted without persistence, flushed): lease and jobs are gone, and nobody
    else has it. Whoever can, acquires it again and writes everything; to anybody else the lease is lost.
    """


class Owner(msgspec.Struct, frozen=True):
    """Who holds a store: host, process id, and since when (epoch ms)."""

    host: str
    pid: int
    since_ms: int


class Store(Protocol):
    """
    Where a snapshot is kept. Every method blocks and is called from the snapshot's own threads, never from a loop.

    Errors: `SnapshotUnavailableError` for what may pass (away, loading, read-only, full, slow); the caller retries.
    `LeaseLostError` when somebody else has the store now; the caller stops. `SnapshotLayoutError` for data of a newer
    layout or of a kind that is not ours; nothing is touched.
    """

    description: str
    """For messages: "Redis at localhost:6379/0", "SQLite file jobs.db"; no password in it."""
    warnings: list[str]
    """What the operator should know about the store, found while it was acquired and loaded."""
    limits: dict[str, tuple[int, float]]
    """Queue -> (max, duration ms) of its workers, for a store that shows them to others."""

    wanted: frozenset[str] | None
    """Queues that the engine has jobs for; None: all. In a place that others use as well, theirs are left to them."""
    left_alone: frozenset[str]
    """Queues of others that were found by `load` and are not wanted."""

    def acquire(self, owner: Owner) -> int:
        """
        Become the owner.

        Returns:
            The fencing number, higher than any before.

        Raises:
            LeaseHeldError: Somebody else is; names host, pid and since when.
        """

    def renew(self) -> None:
        """
        Stay the owner for another lease. On a connection of its own, so that a slow write does not lose the lease.

        A lease that ran out unclaimed (the store was away, the machine slept) is simply taken again: the fencing number
        tells whether somebody else was the owner meanwhile. The same holds in `apply`.

        Raises:
            LeaseLostError: Too late.
        """

    def load(self) -> Iterator[QueueState]:
        """
        Everything there is, queue by queue. A store that is not ready raises; it never looks empty.

        A queue with many jobs may come in several parts, one after the other, each with the same meta; keys, parked adds
        and schedulers come with the first. The order of waiting and active jobs runs through all parts.

        "Everything" is what an engine has stored before, what is wanted, and where the flows of those reach.
        """

    def apply(self, batch: Batch) -> None:
        """
        Write a batch, all or nothing, if the fencing number is still ours.

        Raises:
            SnapshotUnavailableError: With `outcome` "not written" or "unknown".
            LeaseLostError: Fenced off; nothing was written.
        """

    def poll_foreign(self) -> list[QueueState]:
        """
        Jobs that somebody else has added since the last call; empty where nobody else can. Where they belong to flows that
        reach into a queue that was left alone, that queue comes as well, as a whole.

        Cost: O(1) per queue when nothing was added.
        """

    def release(self, *, handover: bool = False) -> None:
        """Give the store up: others may have it at once. `handover`: leave it as a live BullMQ queue, where it is one."""

    def close(self) -> None:
        """Let go of connections and files. Idempotent."""
