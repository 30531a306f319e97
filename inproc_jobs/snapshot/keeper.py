"""
Keeps a store in step with a core, from two threads of its own: one writes, one renews the lease.

The host's loop never waits for the store. At most one write is in flight; what changes meanwhile collects in the core
itself (ids, not copies), so the backlog is bounded by the number of jobs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import HELD, Job
from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotUnavailableError
from inproc_jobs.snapshot.capture import Capture
from inproc_jobs.snapshot.codec import meta_of, restore_queue
from inproc_jobs.snapshot.records import Batch, QueueState
from inproc_jobs.snapshot.store import Owner, Store

__all__ = ["Keeper", "KeeperHost", "Mode", "OnHeld"]

Mode = Literal["periodic", "write_through"]
OnHeld = Literal["refuse", "wait"]
_FIRST_BACKOFF_S: Final = 0.1
_LAST_BACKOFF_S: Final = 5.0


class KeeperHost(Protocol):
    """The engine, as its keeper sees it."""

    core: Core
    lock: threading.Lock

    def now_ms(self) -> int:
        """The wall clock; lock held."""

    def stored(self, queues: set[str]) -> None:
        """Jobs of these queues are stored and may start. Any thread, no lock."""

    def lost_lease(self, error: LeaseLostError) -> None:
        """Somebody else owns the store now: stop. Any thread, no lock."""

    def warn(self, event: str, **fields: Any) -> None:
        """Say something to the operator."""


class Keeper:
    """
    One engine's snapshot.

    Args:
        mode: "periodic": what changed is written every so often. "write_through": whoever dispatches waits for it.
        every_ms: Interval of the writes.
        lease_ms: How long the store is ours without a sign of life.
        on_held: Whether to refuse or to wait when somebody else owns the store.
    """

    def __init__(
        self, store: Store, host: KeeperHost, *, mode: Mode, every_ms: int, lease_ms: int, on_held: OnHeld
    ) -> None:
        self.mode = mode
        self._store = store
        self._host = host
        self._every_s = every_ms / 1000
        self._lease_s = lease_ms / 1000
        self._on_held = on_held
        self.capture = Capture(host.core)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._giving_up = threading.Event()
        self._threads: list[threading.Thread] = []
        self._waiters: dict[Job, list[Future[None]]] = {}
        self._flushers: list[Future[bool]] = []
        self._down_since: float | None = None
        self._down_reason = ""
        self._retry_at = 0.0
        self._backoff_s = _FIRST_BACKOFF_S
        self.last_save_ms: int | None = None
        self.parked: dict[str, dict[str, str]] = {}
        self.lost = False

    # --- opening ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """
        Become the owner, load what is there, and begin to write. Blocks.

        Raises:
            LeaseHeldError: Somebody else owns the store (with `on_held="refuse"`).
            SnapshotUnavailableError, SnapshotLayoutError: It cannot be read; nothing was touched.
        """
        self._acquire()
        try:
            self._load()
        except BaseException:
            with contextlib.suppress(Exception):
                self._store.release()
            raise
        for target, name in ((self._write_loop, "writer"), (self._lease_loop, "lease")):
            thread = threading.Thread(target=target, name=f"inproc_jobs snapshot {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _acquire(self) -> None:
        owner = Owner(socket.gethostname(), os.getpid(), round(time.time() * 1000))
        while True:
            try:
                self._store.acquire(owner)
            except LeaseHeldError:
                if self._on_held == "refuse" or self._giving_up.wait(min(1.0, self._lease_s / 3)):
                    raise
            else:
                return

    def give_up_waiting(self) -> None:
        """The engine is stopped while it waits for its turn."""
        self._giving_up.set()

    def _load(self) -> None:
        host = self._host
        with host.lock:
            for queue in list(host.core.queues.values()):
                self.capture.track(queue)
        for state in self._store.load():
            self._take_in(state)
        with host.lock:
            now_ms = host.now_ms()
            for queue in list(host.core.queues.values()):
                host.core.finish_restore(queue, now_ms)

    def _take_in(self, state: QueueState) -> None:
        """One queue of the store, before anything of it runs."""
        host = self._host
        with host.lock:
            queue = host.core.queue(state.queue)
            self.capture.track(queue)
            parked = restore_queue(host.core, state, self.capture.cache)
            assert queue.touched is not None  # tracked just now
            queue.touched.clear()
            for source in (queue.deduplication, queue.parked, queue.schedulers):
                getattr(source, "touched", {}).clear()
            for record in state.jobs:
                if record.id not in parked:
                    self.capture.learned(state.queue, record.id, record.state)
            self.capture.learned_meta(state.queue, state.meta)
        if parked:
            self.parked.setdefault(state.queue, {}).update(parked)
            host.warn("jobs cannot be read and were set aside", queue=state.queue, count=len(parked))

    # --- writing ------------------------------------------------------------------------------------------------

    def wait_stored(self, job: Job) -> Future[None] | None:
        """
        A future of the moment at which a held job is stored; None when it is not held.

        It fails with `SnapshotUnavailableError` when it could not be stored; the job is gone from memory then. Lock held.
        """
        if not job.flags & HELD:
            return None
        future: Future[None] = Future()
        self._waiters.setdefault(job, []).append(future)
        self._wake.set()
        return future

    def refuse_while_down(self) -> None:
        """
        Raise at once while the store is known to be away, so that nobody waits for the next attempt.

        Raises:
            SnapshotUnavailableError: With outcome "not written".
        """
        if self._down_since is not None and time.monotonic() < self._retry_at:
            raise SnapshotUnavailableError(
                f"{self._store.description} is not available ({self._down_reason}); nothing was added, try again later"
            )

    def flush(self, timeout_s: float) -> bool:
        """Write everything that has changed until now. Blocks; False when that did not work out in time."""
        future: Future[bool] = Future()
        with self._host.lock:
            self._flushers.append(future)
        self._wake.set()
        try:
            return future.result(timeout_s)
        except TimeoutError:
            return False

    def _write_loop(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(max(0.0, self._retry_at - time.monotonic()) if self._down_since else self._every_s)
            self._wake.clear()
            if self._stop.is_set() or self.lost:
                break
            if self._down_since is not None and time.monotonic() < self._retry_at and not self._flushers:
                self._stop.wait(self._retry_at - time.monotonic())
            self._write_all()
            self._take_foreign()
        self._fail_waiters(SnapshotUnavailableError("the snapshot was closed"))

    def _write_all(self) -> None:
        """Batch after batch until nothing has changed since, or the store fails."""
        while True:
            with self._host.lock:
                flushers, self._flushers = self._flushers, []
                batch = self.capture.take(self._host.now_ms())
                if batch is None:
                    self.last_save_ms = self._host.now_ms()
                else:
                    # Not done yet: they wait for the batch after which there is nothing left.
                    self._flushers, flushers = flushers, []
            for flusher in flushers:
                flusher.set_result(True)
            if batch is None or not self._write(batch):
                return

    def _write(self, batch: Batch) -> bool:
        host = self._host
        try:
            self._store.apply(batch)
        except SnapshotUnavailableError as error:
            self._went_wrong(batch, error)
            return False
        except LeaseLostError as error:
            with host.lock:
                self.capture.not_written(batch, unknown=False)
            self._lose(error)
            return False
        if self._down_since is not None:
            host.warn("snapshot works again", after_s=round(time.monotonic() - self._down_since, 1))
        self._down_since, self._backoff_s = None, _FIRST_BACKOFF_S
        ready: list[Future[None]] = []
        with host.lock:
            self.capture.written(batch)
            queues = self._confirm(batch, ready)
        for future in ready:
            if not future.done():
                future.set_result(None)
        if queues:
            host.stored(queues)
        return True

    def _confirm(self, batch: Batch, ready: list[Future[None]]) -> set[str]:
        """Let held jobs of a batch start. Lock held."""
        queues: set[str] = set()
        if not self._waiters:
            return queues
        for part in batch.queues:
            queue = self._host.core.queue(part.queue)
            for change in part.jobs:
                job = queue.index.get(change.id)
                if job is not None and job.flags & HELD and change.record is not None:
                    self._host.core.confirm(queue, change.id)
                    ready += self._waiters.pop(job, [])
                    queues.add(part.queue)
        return queues

    def _went_wrong(self, batch: Batch, error: SnapshotUnavailableError) -> None:
        """Keep everything for the next attempt, except jobs that somebody waits for: those are not taken after all."""
        host = self._host
        first = self._down_since is None
        if first:
            self._down_since = time.monotonic()
        self._down_reason = str(error)
        self._retry_at = time.monotonic() + self._backoff_s
        host.warn(
            "snapshot cannot be written; jobs go on in memory",
            store=self._store.description,
            reason=str(error),
            retry_in_s=round(self._backoff_s, 1),
        )
        self._backoff_s = min(self._backoff_s * 2, _LAST_BACKOFF_S)
        with host.lock:
            self.capture.not_written(batch, unknown=error.outcome == "unknown")
            flushers, self._flushers = self._flushers, []
        for flusher in flushers:
            flusher.set_result(False)
        self._fail_waiters(error)

    def _fail_waiters(self, error: SnapshotUnavailableError) -> None:
        """Whoever waits for a job to be stored is told that it was not, and the job goes."""
        host = self._host
        failed: list[Future[None]] = []
        with host.lock:
            waiters, self._waiters = self._waiters, {}
            for job, futures in waiters.items():
                queue = next((q for q in host.core.queues.values() if q.index.get(job.id) is job), None)
                if queue is not None:
                    host.core.withdraw(queue, job)
                failed += futures
        for future in failed:
            if not future.done():
                future.set_exception(SnapshotUnavailableError(str(error), outcome=error.outcome))

    def _take_foreign(self) -> None:
        """Jobs that somebody else has put into the store become jobs of ours."""
        try:
            states = self._store.poll_foreign()
        except (SnapshotUnavailableError, LeaseLostError):
            return
        for state in states:
            self._take_in_foreign(state)
        if states:
            self._host.stored({state.queue for state in states})

    def _take_in_foreign(self, state: QueueState) -> None:
        host = self._host
        with host.lock:
            queue = host.core.queue(state.queue)
            self.capture.track(queue)
            queue.counter = max(queue.counter, state.meta.counter)
            state.meta = meta_of(queue)
            fresh = [record for record in state.jobs if record.id not in queue.index]
            for record in fresh:
                self.capture.learned(state.queue, record.id, record.state)
            state.jobs = fresh
            restore_queue(host.core, state, self.capture.cache)

    # --- the lease ----------------------------------------------------------------------------------------------

    def _lease_loop(self) -> None:
        while not self._stop.wait(self._lease_s / 3):
            try:
                self._store.renew()
            except LeaseLostError as error:
                self._lose(error)
                return
            except SnapshotUnavailableError:
                # The writer tells the operator; without a store nobody else can take the lease either.
                continue

    def _lose(self, error: LeaseLostError) -> None:
        if not self.lost:
            self.lost = True
            self._stop.set()
            self._wake.set()
            self._host.lost_lease(error)

    # --- closing ------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float, *, handover: bool = False) -> bool:
        """
        Write what is left, give the store up, end the threads. Blocks.

        Returns:
            Whether everything is stored.
        """
        saved = not self.lost and self.flush(timeout_s)
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout_s)
        if not self.lost:
            with contextlib.suppress(SnapshotUnavailableError, LeaseLostError):
                self._store.release(handover=handover and saved)
        self._store.close()
        return saved

    def health(self) -> dict[str, Any]:
        """Unsaved changes, the last save, and what is wrong, if anything."""
        with self._host.lock:
            backlog = self.capture.backlog()
        return {
            "unsaved_changes": backlog,
            "last_save_at": None
            if self.last_save_ms is None
            else datetime.fromtimestamp(self.last_save_ms / 1000, UTC),
            "store": self._store.description,
            "store_error": self._down_reason if self._down_since is not None else None,
            "parked_jobs": sum(len(jobs) for jobs in self.parked.values()),
        }
