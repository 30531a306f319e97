"""
Collapsing by a deduplication id (spec section 4).

A key has one owner. It goes in one of three ways: its owner ends (`_release_key`), its owner is removed
(`RemovalFloor._release_removed_key`), or its time is over, which is noticed when somebody looks and swept by the way.
"""

from __future__ import annotations

import heapq

from inproc_jobs.core.job import ABSOLUTE_DUE, HELD, Duplicate, Job
from inproc_jobs.core.options import Deduplication
from inproc_jobs.core.queue import Candidate, DeduplicationKey, Displaced, Queue
from inproc_jobs.core.removal import RemovalFloor
from inproc_jobs.core.states import JobState, Trigger

__all__ = ["DeduplicationFloor"]


class DeduplicationFloor(RemovalFloor):
    """Deduplication keys: taking, moving, extending and releasing them."""

    def deduplication_owner(self, queue: Queue, id: str, now_ms: int) -> str | None:
        """Id of the job that owns a deduplication id, or None. The job may be gone (spec section 4.4)."""
        key = self._live_key(queue, id, now_ms)
        return key.owner if key is not None else None

    def remove_deduplication_key(self, queue: Queue, id: str, now_ms: int, *, owner: str | None = None) -> bool:
        """
        Free a deduplication id; with `owner` only if that job owns it. What is parked behind it stays parked.

        Returns:
            Whether there was such a key.
        """
        key = self._live_key(queue, id, now_ms)
        if key is None or (owner is not None and key.owner != owner):
            return False
        del queue.deduplication[id]
        return True

    # --- deciding -----------------------------------------------------------------------------------------------

    def _deduplicate(self, queue: Queue, new: Candidate, now_ms: int) -> Duplicate | None:
        """
        Let a new add take the key, or collapse it into the owner.

        Returns:
            None if the add may go on as the key's owner, else the job it has collapsed into.

        Cost: O(log n) where the owner is delayed and moves, else O(1). Source: spec section 4.1.
        """
        wanted = new.deduplication
        key = self._live_key(queue, wanted.id, now_ms)
        if key is None:
            self._take_key(queue, wanted, new.id, now_ms)
            return None
        owner = queue.index.get(key.owner)
        if wanted.replace and owner is not None and owner.state is JobState.DELAYED:
            self._replace(queue, key, owner, new, now_ms)
            return None
        if owner is None and key.until_ms is None:
            # The key outlived its job by a defect or by hand; without a lifetime it would block for ever.
            queue.parked.pop(wanted.id, None)
            self._take_key(queue, wanted, new.id, now_ms)
            return None
        if wanted.keep_last and owner is not None and owner.state is JobState.ACTIVE:
            self._park(queue, key, new)
        elif not wanted.replace:
            self._collapse(queue, key, owner, new, now_ms)
        queue.displacing.clear()  # no job comes that could bring back what had its id
        return Duplicate(key.owner, owner)

    def _collapse(self, queue: Queue, key: DeduplicationKey, owner: Job | None, new: Candidate, now_ms: int) -> None:
        """The add is dropped; it may lengthen the key's life or move the owner."""
        wanted = new.deduplication
        if wanted.extend and wanted.ttl_ms > 0:
            self._take_key(queue, wanted, key.owner, now_ms)
        self._tell(queue, wanted.id, key.owner, new.id)
        if wanted.reschedule and owner is not None and owner.state is JobState.DELAYED:
            self._reschedule(queue, owner, new)

    def _replace(self, queue: Queue, key: DeduplicationKey, owner: Job, new: Candidate, now_ms: int) -> None:
        """The delayed owner goes, the new job takes its key; without `extend` the rest of its lifetime too."""
        wanted = new.deduplication
        if new.flags & HELD:
            self._displace(queue, Displaced(owner, owner.state, key.id, key.until_ms, queue.parked.get(key.id)))
        else:
            self._drop(queue, owner)
        self.emit(queue, "removed", jobId=owner.id, prev="delayed")
        self._tell(queue, wanted.id, new.id, owner.id)
        queue.parked.pop(wanted.id, None)
        if wanted.ttl_ms > 0 and not wanted.extend and not wanted.keep_last:
            key.owner = new.id
            queue.deduplication[key.id] = key
        else:
            self._take_key(queue, wanted, new.id, now_ms)

    def _displace(self, queue: Queue, old: Displaced) -> None:
        """As `_drop`, for a job that is about to come and that no store has yet; see `DrivingFloor.withdraw`."""
        held = old.job.flags & HELD
        before = queue.displaced.pop(old.job, None)
        self._drop(queue, old.job)
        if held:
            queue.unstored[old.job] = None
            if before is not None:
                queue.displaced[old.job] = before
        queue.displacing.append(old)

    def _reschedule(self, queue: Queue, owner: Job, new: Candidate) -> None:
        """The delayed owner gets the due time of the add."""
        owner.delay = new.delay
        owner.flags = _with_due_flag(owner.flags, new.flags)
        self._place_delayed(queue, owner, Trigger.RESCHEDULE, new.timestamp + max(new.delay, 0))

    def _park(self, queue: Queue, key: DeduplicationKey, new: Candidate) -> None:
        """Keep the add until the active owner has ended; a later one overwrites it."""
        old = queue.parked.get(new.deduplication.id)
        if old is not None:
            old.heir = new
            if new.flags & HELD:
                new.over = old.over if old.flags & HELD else old
        queue.parked[new.deduplication.id] = new
        key.until_ms = None
        queue.deduplication[key.id] = key
        self._tell(queue, new.deduplication.id, key.owner, new.id)

    def _tell(self, queue: Queue, id: str, winner: str, loser: str) -> None:
        if self.listening:
            self.emit(queue, "deduplicated", jobId=winner, deduplicationId=id, deduplicatedJobId=loser)

    # --- keys ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _live_key(queue: Queue, id: str, now_ms: int) -> DeduplicationKey | None:
        key = queue.deduplication.get(id)
        if key is not None and key.until_ms is not None and key.until_ms <= now_ms:
            del queue.deduplication[id]
            return None
        return key

    def _take_key(self, queue: Queue, wanted: Deduplication, owner: str, now_ms: int) -> None:
        """Write the key as an add with these options does."""
        limited = wanted.ttl_ms > 0 and not wanted.keep_last
        self.set_deduplication_key(queue, wanted.id, owner, now_ms + wanted.ttl_ms if limited else None)
        self._sweep_keys(queue, now_ms)

    @staticmethod
    def set_deduplication_key(queue: Queue, id: str, owner: str, until_ms: float | None) -> None:
        """Make a job the owner of a deduplication id until a moment, or (None) until it ends. Cost: O(log n)."""
        key = queue.deduplication.get(id)
        if key is None:
            key = queue.deduplication[id] = DeduplicationKey(id, owner, until_ms)
        key.owner, key.until_ms = owner, until_ms
        queue.deduplication[id] = key
        if until_ms is not None and not key.in_heap:
            queue.sequence += 1
            heapq.heappush(queue.deduplication_ends, (until_ms, queue.sequence, key))
            key.in_heap = True

    @staticmethod
    def _sweep_keys(queue: Queue, now_ms: int) -> None:
        """Drop a few keys whose time is over, so that ids used once do not pile up. Cost: O(log n)."""
        ends = queue.deduplication_ends
        for _ in range(2):
            if not ends or ends[0][0] > now_ms:
                return
            _, tie, key = heapq.heappop(ends)
            key.in_heap = False
            if key.until_ms is None or queue.deduplication.get(key.id) is not key:
                continue
            if key.until_ms <= now_ms:
                del queue.deduplication[key.id]
            else:
                heapq.heappush(ends, (key.until_ms, tie, key))
                key.in_heap = True

    def _release_key(self, queue: Queue, job: Job, id: str) -> None:
        """A final end frees a key without a lifetime that names the job; one with a lifetime outlives it."""
        key = queue.deduplication.get(id)
        if key is not None and key.until_ms is None and key.owner == job.id:
            del queue.deduplication[id]


def _with_due_flag(flags: int, source: int) -> int:
    """Those flags, but whether the due time is a date as in `source`."""
    return (flags & ~ABSOLUTE_DUE) | (source & ABSOLUTE_DUE)
