"""What the tests of snapshots share: cores with everything in them, and whether two of them hold the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import LeaseLostError
from inproc_jobs.snapshot import codec
from inproc_jobs.snapshot.capture import Capture
from inproc_jobs.snapshot.keeper import Keeper
from inproc_jobs.snapshot.store import Store

__all__ = ["HISTORY", "T0", "StubHost", "keeper_of", "new_core", "picture", "queue_of", "restored", "write_all"]

T0 = 1_800_000_000_000
HISTORY = {JobState.COMPLETED: 4, JobState.FAILED: 3}


def new_core(*names: str) -> Core:
    """A core with these queues, under the facade's rules."""
    core = Core()
    for name in names:
        queue_of(core, name)
    return core


def queue_of(core: Core, name: str) -> Queue:
    """The queue of that name, made with a bounded history."""
    queue = core.queue(name)
    queue.history = HISTORY
    return queue


def picture(core: Core) -> dict[str, Any]:
    """All that a snapshot must keep, as plain data. Queues in which nothing ever happened are left out."""
    cache = codec.OptionsCache()
    pictures = {name: _picture(queue, cache) for name, queue in core.queues.items()}
    empty = _picture(Core().queue("empty"), cache)
    return {name: one for name, one in pictures.items() if one != empty}


def _picture(queue: Queue, cache: codec.OptionsCache) -> dict[str, Any]:
    return {
        "meta": codec.meta_of(queue),
        "orders": {state.value: [job.id for job in home] for state, home in queue.containers.items()},
        "jobs": {id: _job_picture(job, cache) for id, job in queue.index.items() if job.state is not JobState.REMOVED},
        "keys": {id: (key.owner, key.until_ms) for id, key in queue.deduplication.items()},
        "parked": {id: codec.parked_record(queue, id, cache) for id in queue.parked},
        "schedulers": {id: codec.scheduler_record(queue, id, cache) for id in queue.schedulers},
        "history": {state.value: {job.id for job in past} for state, past in queue.past.items()},
    }


def _job_picture(job: Job, cache: codec.OptionsCache) -> dict[str, Any]:
    return {**msgspec.structs.asdict(codec.record_of(job, cache)), "opts_read": _options(job)}


def _options(job: Job) -> Any:
    """Its options themselves; lifo may be told by the job or by its options."""
    return msgspec.structs.replace(job.opts, lifo=False, given=None)


def restored(store: Store, *, finish_ms: int | None = None) -> Core:
    """A core as the next process would load it; with `finish_ms` also told that all is in."""
    core = Core()
    cache = codec.OptionsCache()
    for state in store.load():
        queue_of(core, state.queue)
        unreadable, strange = codec.restore_queue(core, state, cache)
        assert not unreadable
        assert not strange
    if finish_ms is not None:
        for queue in core.queues.values():
            core.finish_restore(queue, finish_ms)
    return core


def write_all(core: Core, capture: Capture, store: Store, now_ms: int = T0) -> int:
    """Tell the store everything; answers in how many writes."""
    writes = 0
    while (batch := capture.take(now_ms)) is not None:
        if batch.queues:
            store.apply(batch)
            writes += 1
        held, parked = capture.written(batch)
        for queue, job in held:
            core.confirm(queue, job)
        for new in parked:
            core.confirm_parked(new)
    return writes


class StubHost:
    """An engine without anything but its core."""

    def __init__(self, core: Core, now_ms: Callable[[], int]) -> None:
        self.core = core
        self.lock = threading.Lock()
        self.now_ms = now_ms
        self.warnings: list[tuple[str, dict[str, Any]]] = []
        self.released: list[set[str]] = []
        self.lost: list[LeaseLostError] = []

    def queue(self, name: str) -> Queue:
        return queue_of(self.core, name)

    def stored(self, queues: set[str]) -> None:
        assert not self.lock.locked()
        self.released.append(queues)

    def lost_lease(self, error: LeaseLostError) -> None:
        self.lost.append(error)

    def warn(self, event: str, **fields: Any) -> None:
        self.warnings.append((event, fields))


def keeper_of(core: Core, store: Store, now_ms: Callable[[], int] = lambda: T0, **more: Any) -> Keeper:
    """A keeper of that core; `keeper._host` is its stub."""
    options: dict[str, Any] = {"mode": "periodic", "every_ms": 1_000, "lease_ms": 15_000, **more}
    return Keeper(lambda: store, StubHost(core, now_ms), **options)
