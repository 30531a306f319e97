"""What a store gives back becomes jobs: everything at the start, and later what others have added to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from inproc_jobs.core.core import Core
from inproc_jobs.core.queue import Queue
from inproc_jobs.errors import LeaseLostError
from inproc_jobs.snapshot.capture import UNKNOWN, Capture
from inproc_jobs.snapshot.codec import meta_of, restore_queue
from inproc_jobs.snapshot.records import QueueState
from inproc_jobs.snapshot.store import Store

__all__ = ["Intake", "KeeperHost"]


class KeeperHost(Protocol):
    """The engine, as its keeper sees it."""

    core: Core

    @property
    def lock(self) -> Any:
        """A lock, reentrant or not."""

    def now_ms(self) -> int:
        """The wall clock; lock held."""

    def queue(self, name: str) -> Queue:
        """The queue of that name with the engine's settings; lock held."""

    def stored(self, queues: set[str]) -> None:
        """Jobs of these queues are stored and may start. Any thread, no lock."""

    def lost_lease(self, error: LeaseLostError) -> None:
        """Somebody else owns the store now: stop. Any thread, no lock."""

    def warn(self, event: str, **fields: Any) -> None:
        """Say something to the operator. Any thread, no lock."""


class Intake:
    """The way from a store into a core. Takes the lock itself, for a part of a queue at a time."""

    def __init__(self, host: KeeperHost, capture: Capture) -> None:
        self._host = host
        self._capture = capture
        self._told: set[str] = set()

    def load(self, store: Store) -> None:
        """Everything, before anything runs."""
        host = self._host
        with host.lock:
            for queue in list(host.core.queues.values()):
                self._capture.track(queue)
        for state in store.load():
            self._take_part(state)
        self._finish(host.core.queues)
        self.tell_warnings(store)
        if store.left_alone:
            host.warn(
                "queues in the store that no job of this engine uses were left to their own workers",
                store=store.description,
                count=len(store.left_alone),
                first=min(store.left_alone),
            )

    def take_polled(self, states: Iterable[QueueState]) -> None:
        """Additions of others, and queues that were taken over because of them."""
        whole: set[str] = set()
        for state in states:
            if state.whole:
                self._take_part(state)
                whole.add(state.queue)
            else:
                self._take_added(state)
        self._finish(whole)

    def tell_warnings(self, store: Store) -> None:
        """What the store has noticed, each once."""
        for warning in store.warnings:
            if warning not in self._told:
                self._told.add(warning)
                self._host.warn(warning, store=store.description)

    def _take_part(self, state: QueueState) -> None:
        """A queue as the store has it, or a part of it, before anything of it runs."""
        host, capture = self._host, self._capture
        with host.lock:
            queue = host.queue(state.queue)
            capture.track(queue)
            assert queue.touched is not None  # tracked just now
            # At the start there are none; later somebody may have dispatched into a queue that is being taken over.
            unsaved, counter = dict(queue.touched), queue.counter
            state.jobs = [record for record in state.jobs if record.id not in queue.index]
            unreadable, strange = restore_queue(host.core, state, capture.cache)
            queue.counter = max(queue.counter, counter)
            queue.touched.clear()
            queue.touched.update(unsaved)
            for source in (queue.deduplication, queue.parked, queue.schedulers):
                getattr(source, "touched", {}).clear()
            self._learn(state, unreadable)
            for id, key in state.keys.items():
                capture.learned_key(state.queue, id, key.owner)
            capture.learned_meta(state.queue, state.meta)
        self._tell_strange(state.queue, unreadable, strange)

    def _take_added(self, state: QueueState) -> None:
        """Jobs that others have put into a queue of ours."""
        host = self._host
        with host.lock:
            queue = host.queue(state.queue)
            self._capture.track(queue)
            queue.counter = max(queue.counter, state.meta.counter)
            state.meta = meta_of(queue)
            state.jobs = [record for record in state.jobs if record.id not in queue.index]
            unreadable, strange = restore_queue(host.core, state, self._capture.cache)
            self._learn(state, unreadable)
        self._tell_strange(state.queue, unreadable, strange)

    def _learn(self, state: QueueState, unreadable: Iterable[str]) -> None:
        for record in state.jobs:
            self._capture.learned(state.queue, record.id, record.state)
        for id in unreadable:
            self._capture.learned(state.queue, id, UNKNOWN)

    def _finish(self, names: Collection[str]) -> None:
        """All parts of these queues are in: they may run."""
        host = self._host
        with host.lock:
            queues = [host.core.queues[name] for name in names]
            freed = {queue.name: _ownerless(queue) for queue in queues}
            for queue in queues:
                host.core.finish_restore(queue, host.now_ms())
        for name, ids in freed.items():
            if ids:
                host.warn("deduplication ids whose jobs are gone were freed", queue=name, count=len(ids), first=ids[0])

    def _tell_strange(self, queue: str, unreadable: dict[str, str], strange: list[str]) -> None:
        if unreadable:
            id, why = next(iter(unreadable.items()))
            self._host.warn(
                "jobs cannot be read and were parked; they stay in the store as they are",
                queue=queue,
                count=len(unreadable),
                first=id,
                reason=why,
            )
        for what in strange:
            self._host.warn("left alone in the store, since it cannot be read", queue=queue, what=what)


def _ownerless(queue: Queue) -> list[str]:
    """Deduplication ids that `Core.finish_restore` frees, since the jobs that hold them are not in the store."""
    return [id for id, key in queue.deduplication.items() if key.until_ms is None and key.owner not in queue.index]
