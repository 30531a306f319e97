"""
What has changed since the store was told last, cut into batches that each leave a valid state.

`stored` is what this process believes the store to have: id -> state. A job that came and went between two writes is in
neither, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job
from inproc_jobs.core.queue import FRONT, IN_PLACE, Queue, TrackedDict
from inproc_jobs.snapshot import codec
from inproc_jobs.snapshot.records import Batch, JobChange, MetaRecord, QueueBatch

__all__ = ["BATCH_JOBS", "UNKNOWN", "Capture"]

BATCH_JOBS: Final = 200
"""Jobs per batch: about 2 ms under the lock, the slice that DESIGN 2.9 allows."""
UNKNOWN: Final = "?"


class _Taken:
    """What one batch took from a queue, to give it back if the write fails."""

    __slots__ = ("keys", "meta", "parked", "placements", "queue", "schedulers")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.placements: dict[str, int] = {}
        self.keys: tuple[str, ...] = ()
        self.parked: tuple[str, ...] = ()
        self.schedulers: tuple[str, ...] = ()
        self.meta: MetaRecord | None = None


class Capture:
    """Takes batches out of a core. Every method is called with the core's lock held."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._cache = codec.OptionsCache()
        self.stored: dict[str, dict[str, str]] = {}
        self._meta: dict[str, MetaRecord] = {}
        self._taken: list[_Taken] = []

    @property
    def cache(self) -> codec.OptionsCache:
        """Options, rendered and read once."""
        return self._cache

    def track(self, queue: Queue) -> None:
        """Note changes of this queue from now on."""
        if queue.touched is None:
            queue.track()
            for job in queue.index.values():
                queue.touched[job.id] = codec.BACK  # type: ignore[index]  # `track` has just made it
        self.stored.setdefault(queue.name, {})

    def backlog(self) -> int:
        """Jobs that the store has not been told of."""
        return sum(len(queue.touched or ()) for queue in self._core.queues.values())

    # --- taking -------------------------------------------------------------------------------------------------

    def take(self, now_ms: int) -> Batch | None:
        """The next batch, None when there is nothing to tell. Cost: O(its jobs)."""
        batch = Batch(now_ms)
        self._taken = []
        room = BATCH_JOBS
        for queue in list(self._core.queues.values()):
            self.track(queue)
        for queue in list(self._core.queues.values()):
            if room > 0 and queue.touched:
                room -= self._take_jobs(queue, room)
        self._close_over_links()
        for queue in list(self._core.queues.values()):
            part = self._part_of(queue)
            if part is not None:
                batch.queues.append(part)
        return batch if batch.queues else None

    def _take_jobs(self, queue: Queue, room: int) -> int:
        """The first touched jobs, in the order of their moves."""
        taken = self._taken_of(queue)
        assert queue.touched is not None
        for id in list(_first(queue.touched, room)):
            taken.placements[id] = queue.touched.pop(id)
        return len(taken.placements)

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
        keys = self._ready_keys(queue)
        parked = _take_touched(queue.parked)
        schedulers = [
            id
            for id in _touched_of(queue.schedulers)
            if id not in queue.schedulers or self._is_told(queue, f"repeat:{id}:{queue.schedulers[id].next_ms}")
        ]
        if not (part.jobs or part.meta is not None or keys or parked or schedulers or placements):
            return None
        taken = self._taken_of(queue)
        taken.keys, taken.parked, taken.schedulers = tuple(keys), tuple(parked), tuple(schedulers)
        taken.meta = part.meta
        part.keys = {id: codec.key_record(queue, id) for id in keys}
        part.parked = {id: codec.parked_record(queue, id, self._cache) for id in parked}
        part.schedulers = {id: codec.scheduler_record(queue, id, self._cache) for id in schedulers}
        for source, ids in ((queue.deduplication, keys), (queue.schedulers, schedulers)):
            for id in ids:
                _touched_of(source).pop(id, None)
        return part

    def _changes(self, queue: Queue, placements: dict[str, int]) -> Iterator[JobChange]:
        stored = self.stored[queue.name]
        for id, placement in placements.items():
            job = queue.index.get(id)
            was = stored.get(id)
            if job is None:
                if was is not None:
                    yield JobChange(id, None, was)
                continue
            moved = placement != IN_PLACE or was != job.state.value
            yield JobChange(id, codec.record_of(job, self._cache), was, placement == FRONT, moved)

    def _ready_keys(self, queue: Queue) -> list[str]:
        """Touched deduplication keys whose owner the store knows of, or is told of in this batch."""
        return [
            id
            for id in _touched_of(queue.deduplication)
            if (key := queue.deduplication.get(id)) is None or self._is_told(queue, key.owner)
        ]

    @staticmethod
    def _is_told(queue: Queue, id: str) -> bool:
        return queue.touched is None or id not in queue.touched

    # --- after the write ----------------------------------------------------------------------------------------

    def written(self, batch: Batch) -> None:
        """The store has it."""
        for part in batch.queues:
            stored = self.stored[part.queue]
            for change in part.jobs:
                if change.record is None:
                    stored.pop(change.id, None)
                else:
                    stored[change.id] = change.record.state
            if part.meta is not None:
                self._meta[part.queue] = part.meta
        self._taken = []

    def not_written(self, batch: Batch, *, unknown: bool) -> None:
        """Take everything back, before what has changed since; `unknown`: it may be in the store all the same."""
        if unknown:
            for part in batch.queues:
                for change in part.jobs:
                    self.stored[part.queue][change.id] = UNKNOWN
                self._meta.pop(part.queue, None)
        for taken in self._taken:
            queue = taken.queue
            later = queue.touched or {}
            merged: dict[str, int] = {}
            for id, placement in taken.placements.items():
                if later.get(id, IN_PLACE) == IN_PLACE:
                    # Not moved since, so it keeps its turn.
                    merged[id] = placement
                    later.pop(id, None)
            queue.touched = {**merged, **later}
            for source, ids in (
                (queue.deduplication, taken.keys),
                (queue.parked, taken.parked),
                (queue.schedulers, taken.schedulers),
            ):
                _touched_of(source).update(dict.fromkeys(ids))
        self._taken = []

    def learned(self, queue: str, id: str, state: str) -> None:
        """The store has a job in a state, as read from it."""
        self.stored.setdefault(queue, {})[id] = state

    def learned_meta(self, queue: str, meta: MetaRecord) -> None:
        """The store has these counters and settings."""
        self._meta[queue] = meta


def _first(touched: dict[str, int], count: int) -> Iterator[str]:
    for number, id in enumerate(touched):
        if number >= count:
            return
        yield id


def _touched_of(source: dict[str, Any]) -> dict[str, None]:
    return source.touched if isinstance(source, TrackedDict) else {}


def _take_touched(source: dict[str, Any]) -> list[str]:
    touched = _touched_of(source)
    ids = list(touched)
    touched.clear()
    return ids
