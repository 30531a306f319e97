"""
What has changed since the store was told last, cut into batches that each leave a valid state.

`stored` is what this process believes the store to have: id -> state. A job that came and went between two writes is in
neither, and costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import HELD, UNREADABLE, Job
from inproc_jobs.core.queue import BACK, FRONT, IN_PLACE, Candidate, Queue, TrackedDict
from inproc_jobs.snapshot import codec
from inproc_jobs.snapshot.records import Batch, JobChange, MetaRecord, QueueBatch

__all__ = ["BATCH_GONE", "BATCH_JOBS", "UNKNOWN", "Capture"]

BATCH_JOBS: Final = 200
"""Jobs per batch: about 2 ms under the lock, the slice that DESIGN 2.9 allows."""
BATCH_GONE: Final = 4_000
"""Jobs per batch that came and went since the last one: they only have to be forgotten."""
BATCH_PARTS: Final = 200
"""Keys, parked adds and schedulers per batch, each, beside those that belong to its jobs."""
UNKNOWN: Final = "?"


class StoredStates:
    """
    id -> state, as the store has it.

    Many small dicts, by the hash of the id: one dict that outgrows its table moves all of it in one go, which with a
    million jobs holds Python's own lock for 40 ms, and the host's loop with it.
    """

    __slots__ = ("_dicts",)

    def __init__(self) -> None:
        self._dicts: tuple[dict[str, str], ...] = tuple({} for _ in range(64))

    def __contains__(self, id: str) -> bool:
        return id in self._dicts[hash(id) & 63]

    def __setitem__(self, id: str, state: str) -> None:
        self._dicts[hash(id) & 63][id] = state

    def get(self, id: str) -> str | None:
        """None: the store does not have it."""
        return self._dicts[hash(id) & 63].get(id)

    def discard(self, id: str) -> None:
        """The store does not have it any more."""
        self._dicts[hash(id) & 63].pop(id, None)

    def clear(self) -> None:
        """The store has nothing."""
        for one in self._dicts:
            one.clear()


class _Taken:
    """What one batch took from a queue, to give it back if the write fails."""

    __slots__ = ("held", "keys", "meta", "parked", "parked_adds", "placements", "queue", "schedulers")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.placements: dict[str, int] = {}
        self.keys: tuple[str, ...] = ()
        self.parked: tuple[str, ...] = ()
        self.schedulers: tuple[str, ...] = ()
        self.meta: MetaRecord | None = None
        # The records themselves: by the time the store has answered, others may have their ids.
        self.held: list[Job] = []
        self.parked_adds: list[Candidate] = []


class Capture:
    """Takes batches out of a core. Every method is called with the core's lock held."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._cache = codec.OptionsCache()
        self.stored: defaultdict[str, StoredStates] = defaultdict(StoredStates)
        self._meta: dict[str, MetaRecord] = {}
        self._owners: dict[str, dict[str, str]] = {}
        self._taken: list[_Taken] = []
        self._again: list[_Taken] = []
        """What the last write was to tell, and could not. Not merged into the backlog, which may be a million jobs."""
        self._first_queue = 0
        self._has_more_parts = False
        self._round_ms = 0
        self._left: dict[str, int] | None = None

    @property
    def cache(self) -> codec.OptionsCache:
        """Options, rendered and read once."""
        return self._cache

    def track(self, queue: Queue) -> None:
        """Note changes of this queue from now on."""
        if queue.touched is None:
            queue.track()
            queue.touched = _all_of(queue)
        self._owners.setdefault(queue.name, {})

    def backlog(self) -> int:
        """Jobs that the store has not been told of."""
        # Those of the write that is under way as well: nobody has said yet that they are stored.
        told = sum(len(taken.placements) for taken in (*self._taken, *self._again))
        return told + sum(len(queue.touched or ()) for queue in self._core.queues.values())

    def forget_gone(self, queue: Queue, ids: Iterable[str]) -> None:
        """Of these ids forget the ones of jobs that came and went: there is nothing to tell. Cost: O(the ids)."""
        stored, touched = self.stored[queue.name], queue.touched
        for id in ids:
            if touched is not None and id not in queue.index and id not in stored:
                touched.pop(id, None)

    # --- rounds -------------------------------------------------------------------------------------------------

    def begin_round(self, now_ms: int) -> None:
        """Tell what has changed until now; what changes from now on waits for the next round."""
        self._round_ms = now_ms
        self._left = {queue.name: len(queue.touched or ()) for queue in self._core.queues.values()}

    def end_round(self) -> None:
        """Tell everything, as far as it goes."""
        self._left = None

    def is_round_over(self) -> bool:
        """
        Whether the store will have all that there was at the beginning once it has the batch that was taken last.

        A job that has moved since has left its turn to the later moves. If the store does not know it at all, and it is
        older than the round, then it is not to wait for another one.
        """
        if self._left is None or self._has_more_parts:
            return False
        if not any(self._left.values()):
            self._left = {queue.name: self._overdue(queue) for queue in self._core.queues.values()}
        return not any(self._left.values())

    def _overdue(self, queue: Queue) -> int:
        """How many touched jobs there are up to the last one that is not to wait. Cost: bounded."""
        stored, last = self.stored[queue.name], 0
        for number, id in enumerate(queue.touched or (), 1):
            job = queue.index.get(id)
            if number > BATCH_GONE or (job is not None and job.timestamp <= self._round_ms and id not in stored):
                last = number
            if number > BATCH_GONE:
                break
        return last

    def _room_in(self, queue: Queue) -> int:
        return len(queue.touched or ()) if self._left is None else self._left.get(queue.name, 0)

    def is_pending(self, queue: Queue, id: str, deduplication_id: str | None) -> bool:
        """Whether the store has yet to be told of a job, or of what hangs on its deduplication id. Cost: O(1)."""
        taken = next((one for one in (*self._taken, *self._again) if one.queue is queue), None)
        if id in (queue.touched or ()) or (taken is not None and id in taken.placements):
            return True
        if deduplication_id is None:
            return False
        return any(deduplication_id in _touched_of(source) for source in (queue.deduplication, queue.parked)) or (
            taken is not None and (deduplication_id in taken.keys or deduplication_id in taken.parked)
        )

    # --- taking -------------------------------------------------------------------------------------------------

    def take(self, now_ms: int) -> Batch | None:
        """
        The next batch, None when there is nothing left to tell. Cost: O(its jobs).

        A batch without queues says that all jobs it looked at came and went: nothing to write, but ask again.
        """
        batch = Batch(now_ms)
        self._taken = []
        self._has_more_parts = False
        queues = list(self._core.queues.values())
        for queue in queues:
            self.track(queue)
        room = BATCH_JOBS - self._take_again()
        for queue in self._in_turn(queues):
            if room > 0 and queue.touched and self._room_in(queue) > 0:
                room -= self._take_jobs(queue, room)
        self._close_over_links()
        for queue in queues:
            part = self._part_of(queue)
            if part is not None:
                batch.queues.append(part)
        return batch if batch.queues or self._taken else None

    def _take_again(self) -> int:
        """What a failed write has left comes first; answers how many. What has moved since has left its turn to that."""
        again, self._again = self._again, []
        count = 0
        for one in again:
            touched = one.queue.touched
            assert touched is not None
            placements = self._taken_of(one.queue).placements
            for id, placement in one.placements.items():
                if touched.get(id, IN_PLACE) == IN_PLACE:
                    touched.pop(id, None)
                    placements[id] = placement
                    count += 1
        return count

    def _in_turn(self, queues: list[Queue]) -> list[Queue]:
        """Another one goes first each time: a queue that is always busy must not keep the others from the store."""
        if len(queues) < 2:
            return queues
        self._first_queue = (self._first_queue + 1) % len(queues)
        return queues[self._first_queue :] + queues[: self._first_queue]

    def _take_jobs(self, queue: Queue, room: int) -> int:
        """The first touched jobs, in the order of their moves; answers how many. Those that came and went are none."""
        taken = self._taken_of(queue)
        touched, index, stored = queue.touched, queue.index, self.stored[queue.name]
        assert touched is not None
        gone: list[str] = []
        ids: list[str] = []
        left = self._room_in(queue)
        for id in touched:
            if len(ids) == room or len(gone) == BATCH_GONE or len(ids) + len(gone) == left:
                break
            (ids if id in index or id in stored else gone).append(id)
        for id in gone:
            del touched[id]
        for id in ids:
            taken.placements[id] = touched.pop(id)
        if self._left is not None:
            self._left[queue.name] = left - len(ids) - len(gone) if touched else 0
        return len(ids)

    def _taken_of(self, queue: Queue) -> _Taken:
        for taken in self._taken:
            if taken.queue is queue:
                return taken
        self._taken.append(_Taken(queue))
        return self._taken[-1]

    def _close_over_links(self) -> None:
        """A parent and a child that both have changed go in one write, with all that moved before them."""
        todo = [(taken.queue, id) for taken in self._taken for id in taken.placements]
        while todo:
            queue, id = todo.pop()
            job = queue.index.get(id)
            if job is None or job.extra is None:
                continue
            for other_queue, other in self._linked(job):
                if other_queue.touched and other.id in other_queue.touched:
                    todo += [(other_queue, taken) for taken in self._take_up_to(other_queue, other.id)]

    def _linked(self, job: Job) -> Iterator[tuple[Queue, Job]]:
        found = self._core.parent_of(job)
        if found is not None:
            yield found
        children = job.extra.children if job.extra is not None else None
        if children is not None:
            for key in (*children.pending, *children.processed, *children.ignored, *children.unsuccessful):
                child = self._core.find_by_key(key)
                if child is not None:
                    yield child

    def _take_up_to(self, queue: Queue, id: str) -> list[str]:
        """All that moved before a job, and the job: leaving any out would change the order of the stored list."""
        taken = self._taken_of(queue)
        assert queue.touched is not None
        ids: list[str] = []
        for one in queue.touched:
            ids.append(one)
            if one == id:
                break
        for one in ids:
            taken.placements[one] = queue.touched.pop(one)
        return ids

    def _part_of(self, queue: Queue) -> QueueBatch | None:
        """What one queue contributes, None for nothing."""
        taken = next((one for one in self._taken if one.queue is queue), None)
        placements = taken.placements if taken is not None else {}
        part = QueueBatch(queue.name, jobs=list(self._changes(queue, placements)))
        meta = codec.meta_of(queue)
        if self._meta.get(queue.name) != meta:
            part.meta = meta
        near_keys, near_schedulers = self._near(queue, placements)
        self._has_more_parts |= any(
            len(_touched_of(source)) > BATCH_PARTS for source in (queue.deduplication, queue.parked, queue.schedulers)
        )
        keys = [id for id in _some(queue.deduplication, near_keys) if self._is_key_ready(queue, id)]
        parked = [id for id in _some(queue.parked, near_keys) if self._is_parked_ready(queue, id)]
        schedulers = [id for id in _some(queue.schedulers, near_schedulers) if self._is_scheduler_ready(queue, id)]
        if not (part.jobs or part.meta is not None or keys or parked or schedulers):
            return None
        taken = self._taken_of(queue)
        taken.keys, taken.parked, taken.schedulers = tuple(keys), tuple(parked), tuple(schedulers)
        taken.meta = part.meta
        taken.held = [job for id in placements if (job := queue.index.get(id)) is not None and job.flags & HELD]
        taken.parked_adds = [new for id in parked if (new := queue.parked.get(id)) is not None and new.flags & HELD]
        part.keys = {id: codec.key_record(queue, id) for id in keys}
        part.parked = {id: codec.parked_record(queue, id, self._cache) for id in parked}
        part.schedulers = {id: codec.scheduler_record(queue, id, self._cache) for id in schedulers}
        for source, ids in ((queue.deduplication, keys), (queue.parked, parked), (queue.schedulers, schedulers)):
            for id in ids:
                _touched_of(source).pop(id, None)
        return part

    @staticmethod
    def _near(queue: Queue, placements: dict[str, int]) -> tuple[dict[str, None], dict[str, None]]:
        """Deduplication ids and schedulers that the jobs of a batch name."""
        keys: dict[str, None] = {}
        schedulers: dict[str, None] = {}
        for id in placements:
            job = queue.index.get(id)
            if job is not None and job.extra is not None:
                if job.extra.deduplication_id is not None:
                    keys[job.extra.deduplication_id] = None
                if job.extra.scheduler_id is not None:
                    schedulers[job.extra.scheduler_id] = None
        return keys, schedulers

    def _changes(self, queue: Queue, placements: dict[str, int]) -> Iterator[JobChange]:
        stored = self.stored[queue.name]
        for id, placement in placements.items():
            job = queue.index.get(id)
            was = stored.get(id)
            if job is None or job.flags & UNREADABLE:
                if was is not None and job is None:
                    yield JobChange(id, None, was)
                continue
            moved = placement != IN_PLACE or was != job.state.value
            yield JobChange(id, codec.record_of(job, self._cache), was, placement == FRONT, moved)

    def _is_key_ready(self, queue: Queue, id: str) -> bool:
        """Whether the store knows its owner, or is told of it in this batch, and likewise what became of the former one."""
        key = queue.deduplication.get(id)
        former = self._owners[queue.name].get(id)
        return (key is None or self._is_told(queue, key.owner)) and (former is None or self._is_told(queue, former))

    def _is_parked_ready(self, queue: Queue, id: str) -> bool:
        """A parked add that is gone has become a job: it goes when the store is told of that one, not before."""
        if id in queue.parked:
            return True
        key = queue.deduplication.get(id)
        return not queue.touched if key is None else self._is_told(queue, key.owner)

    def _is_scheduler_ready(self, queue: Queue, id: str) -> bool:
        """Its pending iteration goes with it."""
        one = queue.schedulers.get(id)
        return one is None or self._is_told(queue, f"repeat:{id}:{one.next_ms}")

    @staticmethod
    def _is_told(queue: Queue, id: str) -> bool:
        return queue.touched is None or id not in queue.touched

    # --- after the write ----------------------------------------------------------------------------------------

    def written(self, batch: Batch) -> tuple[list[tuple[Queue, Job]], list[Candidate]]:
        """The store has it. Answers the jobs and the parked adds of the batch that had to wait for that."""
        for part in batch.queues:
            stored = self.stored[part.queue]
            for change in part.jobs:
                if change.record is None:
                    stored.discard(change.id)
                else:
                    stored[change.id] = change.record.state
            if part.meta is not None:
                self._meta[part.queue] = part.meta
            owners = self._owners[part.queue]
            for id, key in part.keys.items():
                if key is None:
                    owners.pop(id, None)
                else:
                    owners[id] = key.owner
        taken, self._taken = self._taken, []
        held = [(one.queue, job) for one in taken for job in one.held]
        return held, [new for one in taken for new in one.parked_adds]

    def not_written(self, batch: Batch, *, unknown: bool) -> None:
        """Take everything back, before what has changed since; `unknown`: it may be in the store all the same."""
        if unknown:
            for part in batch.queues:
                for change in part.jobs:
                    if change.moved:  # one that has not moved stands where it stood either way
                        self.stored[part.queue][change.id] = UNKNOWN
                self._meta.pop(part.queue, None)
        self.give_back()

    def give_back(self) -> None:
        """Take back what was taken, to be told again before what has changed since. Cost: O(the batch)."""
        self._again += self._taken
        for taken in self._taken:
            queue = taken.queue
            for source, ids in (
                (queue.deduplication, taken.keys),
                (queue.parked, taken.parked),
                (queue.schedulers, taken.schedulers),
            ):
                _touched_of(source).update(dict.fromkeys(ids))
        self._taken = []

    def learned(self, queue: str, id: str, state: str) -> None:
        """The store has a job in a state, as read from it."""
        self.stored[queue][id] = state

    def learned_meta(self, queue: str, meta: MetaRecord) -> None:
        """The store has these counters and settings."""
        self._meta[queue] = meta

    def learned_key(self, queue: str, id: str, owner: str) -> None:
        """The store has a deduplication key with this owner."""
        self._owners.setdefault(queue, {})[id] = owner

    def forget_store(self) -> None:
        """The store has lost everything: all there is must be told anew, in the order in which it stands."""
        self._taken, self._again = [], []
        self._meta.clear()
        for queue in self._core.queues.values():
            self.track(queue)
            self.stored[queue.name].clear()
            self._owners[queue.name].clear()
            queue.touched = _all_of(queue)
            for source in (queue.deduplication, queue.parked, queue.schedulers):
                _touched_of(source).update(dict.fromkeys(source))


def _first(touched: dict[str, Any], count: int) -> Iterator[str]:
    for number, id in enumerate(touched):
        if number >= count:
            return
        yield id


def _all_of(queue: Queue) -> dict[str, int]:
    """Every job, as if each had come in the order in which they stand."""
    return {job.id: BACK for home in queue.containers.values() for job in home}


def _touched_of(source: dict[str, Any]) -> dict[str, None]:
    return source.touched if isinstance(source, TrackedDict) else {}


def _some(source: dict[str, Any], near: dict[str, None]) -> list[str]:
    """Touched ids: the first ones, and those that are near the jobs of a batch."""
    touched = _touched_of(source)
    if len(touched) <= BATCH_PARTS:
        return list(touched)
    return list(dict.fromkeys((*_first(touched, BATCH_PARTS), *(id for id in near if id in touched))))
