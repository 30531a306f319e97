"""
Keeps a store in step with a core, from two threads of its own: one writes, one renews the lease.

The host's loop never waits for the store. At most one write is in flight; what changes meanwhile collects in the core
itself (ids, not copies), so the backlog is bounded by the number of jobs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from datetime import UTC, datetime
from typing import Any, Final

from inproc_jobs.core.job import Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotError, SnapshotUnavailableError
from inproc_jobs.snapshot.capture import BATCH_GONE, UNKNOWN, Capture
from inproc_jobs.snapshot.config import Mode, OnHeld
from inproc_jobs.snapshot.intake import Intake, KeeperHost
from inproc_jobs.snapshot.records import Batch
from inproc_jobs.snapshot.store import Owner, Store, StoreEmptiedError
from inproc_jobs.snapshot.waiters import A, Answer, Waiters

__all__ = ["Keeper"]

FIRST_BACKOFF_S: Final = 0.1
LAST_BACKOFF_S: Final = 5.0
LAST_TRIES_S: Final = 3.0
"""How long a closing snapshot tries to save what is left in a store that is away, if it has that much time."""
_RELEASE_S: Final = 1.0


class Keeper:
    """
    One engine's snapshot.

    Args:
        open_store: Makes the store; called in `open`, since a client's library takes a while to load.
        mode: "periodic": what changed is written every so often. "write_through": whoever dispatches waits for it.
        every_ms: Interval of the writes.
        lease_ms: How long the store is ours without a sign of life.
        patience_ms: How long to wait at the start for a store that is not ready.
        on_held: Whether to refuse or to wait when somebody else owns the store.
        monotonic: A clock, for tests.

    Attributes:
        last_save_ms: When the store had everything, or took something, for the last time.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        host: KeeperHost,
        *,
        mode: Mode,
        every_ms: int,
        lease_ms: int,
        patience_ms: int = 0,
        on_held: OnHeld = "refuse",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode = mode
        self.capture = Capture(host.core)
        self.last_save_ms: int | None = None
        self._open_store = open_store
        self._host = host
        self._every_s = every_ms / 1000
        self._lease_s = lease_ms / 1000
        self._patience_s = patience_ms / 1000
        self._on_held = on_held
        self._monotonic = monotonic
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._giving_up = threading.Event()
        self._emptied = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._writer_is_done = False
        self._is_opening = False
        self._lost_by: LeaseLostError | None = None
        self._left_alone = False
        self._threads: list[threading.Thread] = []
        self._intake = Intake(host, self.capture)
        self._waiters = Waiters(host.core, self.capture)
        self._flushers: list[Future[bool]] = []
        self._down_since: float | None = None
        self._down_reason = ""
        self._retry_at = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._next_write = 0.0
        self._next_poll = 0.0
        self._poll_trouble = ""

    @functools.cached_property
    def _store(self) -> Store:
        """Made at its first use, which is in `open` and its thread."""
        return self._open_store()

    # --- opening ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """
        Become the owner, load what is there, write what the restart has changed, and begin to write. Blocks.

        Raises:
            LeaseHeldError: Somebody else owns the store (with `on_held="refuse"`).
            SnapshotUnavailableError, SnapshotLayoutError: It cannot be used.
        """
        self._acquire()
        # From now on: reading a million jobs takes longer than a lease.
        self._is_opening = True
        lease = _thread(self._lease_loop, "lease")
        try:
            self._intake.load(self._store)
            # Before anything runs: whoever crashes over and over must at least count its crashes.
            self._write_first()
            with self._ending:
                if self._lost_by is not None:
                    raise self._lost_by
                if not self._giving_up.is_set():
                    self._is_opening = False
                    self._threads += (_thread(self._write_loop, "writer"), lease)
                    return
        except BaseException:
            self._abandon(lease)
            raise
        self._abandon(lease)

    def _abandon(self, lease: threading.Thread) -> None:
        """It was not opened after all."""
        self._stop.set()
        lease.join()
        self._let_go()

    def _acquire(self) -> None:
        owner = Owner(socket.gethostname(), os.getpid(), round(time.time() * 1000))
        patience_end = self._monotonic() + self._patience_s
        pause = FIRST_BACKOFF_S
        while True:
            try:
                self._store.acquire(owner)
            except LeaseHeldError as error:
                self._note_trouble(error)
                if self._on_held == "refuse" or self._giving_up.wait(min(1.0, self._lease_s / 3)):
                    self._store.close()
                    raise
                patience_end = self._monotonic() + self._patience_s
            except SnapshotUnavailableError as error:
                self._note_trouble(error)
                if self._monotonic() + pause > patience_end or self._giving_up.wait(pause):
                    self._store.close()
                    raise
                pause = min(pause * 2, 1.0)
            except BaseException:
                self._store.close()
                raise
            else:
                self._down_since = None
                return

    def _note_trouble(self, error: SnapshotError) -> None:
        """`health` tells it."""
        if self._down_since is None:
            self._down_since = self._monotonic()
        self._down_reason = str(error)

    def give_up(self) -> None:
        """Whoever wanted to open this does not want it any more. Any thread, at any moment."""
        self._giving_up.set()
        with self._ending:
            running = bool(self._threads)
        if running:
            self.close(0)

    @property
    def gave_up(self) -> bool:
        """Whether `give_up` was called."""
        return self._giving_up.is_set()

    def _let_go(self) -> None:
        with contextlib.suppress(Exception):
            self._store.release()
        with contextlib.suppress(Exception):
            self._store.close()

    def is_left_alone(self, queue: str) -> bool:
        """Whether a queue in the store belongs to others. Any thread."""
        return queue in self._store.left_alone

    def _write_first(self) -> None:
        while True:
            with self._host.lock:
                batch = self.capture.take(self._host.now_ms())
            if batch is None:
                return
            if batch.queues:
                self._store.apply(batch)
            with self._host.lock:
                self.capture.written(batch)
                self.last_save_ms = self._host.now_ms()

    # --- waiting for the store ----------------------------------------------------------------------------------

    def wait_stored(self, queue: Queue, job: Job, new: Callable[[], A], *, duplicate: bool) -> A | None:
        """
        A `new` answer to what a dispatch has done, given once the store has it; None when it has, or was told nothing.

        It is a `SnapshotUnavailableError` when that could not be stored. What was new is gone from memory then.
        Lock held.
        """
        self.capture.track(queue)  # it may have come into being with this very job
        return self._awaited(self._waiters.for_dispatch(queue, job, new, duplicate=duplicate))

    def wait_told(self, queue: Queue, schedule: str, new: Callable[[], A]) -> A | None:
        """As `wait_stored`, for a schedule with its pending run; failure takes nothing back. Lock held."""
        self.capture.track(queue)
        return self._awaited(self._waiters.for_schedule(queue, schedule, new))

    def _awaited(self, answer: A | None) -> A | None:
        if answer is not None:
            if self._ended:
                answer.set_exception(self._closed())
            self._wake.set()
        return answer

    def refuse_while_down(self) -> None:
        """
        Raise at once while the store is known to be away, so that nobody waits for the next attempt.

        Raises:
            SnapshotUnavailableError: With outcome "not written".
        """
        if self._down_since is not None and self._monotonic() < self._retry_at:
            raise SnapshotUnavailableError(
                f"{self._store.description} is not available ({self._down_reason}); nothing was added, try again later"
            )

    def flush(self, timeout_s: float) -> bool:
        """Write everything that has changed until now. Blocks; False when that did not work out in time."""
        future: Future[bool] = Future()
        with self._host.lock:
            if self._ended:
                return False
            self._flushers.append(future)
        self._wake.set()
        try:
            return future.result(timeout_s)
        except TimeoutError:
            return False

    # --- writing ------------------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        while True:
            self._wait_turn()
            if self._stop.is_set():
                break
            self.write_all()
        with self._host.lock:
            self._ended = True
            flushers, self._flushers = self._flushers, []
        for flusher in flushers:
            flusher.set_result(False)
        self._refuse_waiters(self._closed())
        with self._ending:
            self._writer_is_done = True
        if self._left_alone:
            # Whoever closed this could not wait for the last write.
            self._let_go()

    def _closed(self) -> SnapshotUnavailableError:
        what = "another engine owns the store now" if self.lost else "the snapshot was closed"
        return SnapshotUnavailableError(f"{what}; the job was not stored")

    def _wait_turn(self) -> None:
        """Until the next write is due: at the interval, when somebody waits, or after the pause that follows trouble."""
        if self._down_since is None:
            # From start to start: whatever the writing takes, nothing is older than the interval when it begins.
            self._wake.wait(min(max(self._next_write - self._monotonic(), 0), self._every_s))
            self._wake.clear()
            self._next_write = self._monotonic() + self._every_s
            return
        while not self._stop.is_set() and not self._flushers:
            left = self._retry_at - self._monotonic()
            if left <= 0:
                break
            self._wake.wait(left)
            self._wake.clear()

    def write_all(self) -> None:
        """
        Batch after batch until the store has had all that there was at the beginning, or fails. The writer's thread, and
        tests.

        What changes meanwhile waits for the next round, unless somebody waits for it: a busy engine would be writing all
        the time, and mostly of jobs that are gone by the end of the interval.
        """
        try:
            if self._emptied.is_set():
                self._write_anew()
            if self.mode == "periodic":
                with self._host.lock:
                    self.capture.begin_round(self._host.now_ms())
            while not self.lost and self._write_next():
                pass
            self._take_foreign()
        except Exception as error:  # noqa: BLE001  # a fault of ours, or of a store: the writer must outlive it
            with self._host.lock:
                self.capture.give_back()
            self._went_wrong(SnapshotUnavailableError(f"{type(error).__name__}: {error}", outcome="unknown"))

    def _write_next(self) -> bool:
        """Write one batch; False when there is none, or when that failed."""
        host = self._host
        with host.lock:
            if self._flushers:
                self.capture.end_round()
            batch = self.capture.take(host.now_ms())
            is_last = self.capture.is_round_over()
            flushers: list[Future[bool]] = []
            ready: list[Answer] = []
            if batch is None:
                flushers, self._flushers = self._flushers, []
                ready = self._waiters.take_answered()
                if self._down_since is None:
                    self.last_save_ms = host.now_ms()
        if batch is not None:
            return self._write(batch) and not is_last
        for flusher in flushers:
            flusher.set_result(True)
        _resolve(ready)
        return False

    def _write(self, batch: Batch) -> bool:
        host = self._host
        if batch.queues:
            try:
                self._store.apply(batch)
            except StoreEmptiedError:
                with host.lock:
                    self.capture.give_back()
                return self._write_anew()
            except LeaseLostError as error:
                with host.lock:
                    self.capture.not_written(batch, unknown=False)
                self._lose(error)
                return False
            except Exception as error:  # noqa: BLE001  # a fault of a store is no reason to lose what it was to take
                foreseen = isinstance(error, SnapshotError)
                outcome = getattr(error, "outcome", "not written" if foreseen else "unknown")
                with host.lock:
                    self.capture.not_written(batch, unknown=outcome == "unknown")
                reason = str(error) if foreseen else f"{type(error).__name__}: {error}"
                self._went_wrong(SnapshotUnavailableError(reason, outcome=outcome))
                return False
            self._works_again()
        with host.lock:
            held, parked = self.capture.written(batch)
            for queue, job in held:
                host.core.confirm(queue, job)
            for new in parked:
                host.core.confirm_parked(new)
            ready = self._waiters.take_answered()
            self.last_save_ms = host.now_ms()
        _resolve(ready)
        if held:
            host.stored({queue.name for queue, _ in held})
        return True

    def _works_again(self) -> None:
        if self._down_since is not None:
            down_s = round(self._monotonic() - self._down_since, 1)
            self._down_since, self._backoff_s, self._retry_at = None, FIRST_BACKOFF_S, 0.0
            self._host.warn("snapshot works again", store=self._store.description, after_s=down_s)

    def _write_anew(self) -> bool:
        """The store has lost everything, lease included, and nobody else has it: become its owner again."""
        self._emptied.clear()
        try:
            self._store.acquire(Owner(socket.gethostname(), os.getpid(), round(time.time() * 1000)))
        except LeaseHeldError as error:
            self._lose(LeaseLostError(str(error)))
            return False
        except SnapshotError as error:
            self._emptied.set()
            self._went_wrong(SnapshotUnavailableError(str(error)))
            return False
        with self._host.lock:
            self.capture.forget_store()
        self._host.warn("the store has lost its data; everything is written anew", store=self._store.description)
        return True

    def _went_wrong(self, error: SnapshotUnavailableError) -> None:
        """Everything is kept for the next attempt, except jobs that somebody waits for: those are not taken after all."""
        self._note_trouble(error)
        if self._monotonic() >= self._retry_at:
            # Not so an attempt that somebody asked for in between, as a stop does many times: it is no step.
            self._retry_at = self._monotonic() + self._backoff_s
            self._host.warn(
                "snapshot cannot be written; jobs go on in memory",
                store=self._store.description,
                reason=str(error),
                retry_in_s=round(self._backoff_s, 1),
            )
            self._backoff_s = min(self._backoff_s * 2, LAST_BACKOFF_S)
        with self._host.lock:
            flushers, self._flushers = self._flushers, []
        for flusher in flushers:
            flusher.set_result(False)
        self._refuse_waiters(error)
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Jobs that come and go while the store is away must not add up."""
        with self._host.lock:
            touched = [(queue, list(queue.touched or ())) for queue in self._host.core.queues.values()]
        for queue, ids in touched:
            for start in range(0, len(ids), BATCH_GONE):
                with self._host.lock:
                    self.capture.forget_gone(queue, ids[start : start + BATCH_GONE])

    def _refuse_waiters(self, error: SnapshotUnavailableError) -> None:
        """Whoever waits is told that it was not stored, and what was new goes, as if it had never come."""
        core = self._host.core
        with self._host.lock:
            refused = self._waiters.take_refused(error)
            news = bool(core.events or core.ended)
        for answer, reason in refused:
            with contextlib.suppress(InvalidStateError):
                answer.set_exception(reason)
        if news:
            self._host.stored(set())

    # --- what others have added ---------------------------------------------------------------------------------

    def _take_foreign(self) -> None:
        """Jobs that somebody else has put into the store become jobs of ours; looked for once per interval."""
        now = self._monotonic()
        if now < self._next_poll or self._down_since is not None or self.lost:
            return
        self._next_poll = now + self._every_s
        try:
            states = self._store.poll_foreign()
        except StoreEmptiedError:
            self._emptied.set()
            self._wake.set()
            return
        except LeaseLostError as error:
            self._lose(error)
            return
        except SnapshotUnavailableError:
            return  # the next write tells it
        except SnapshotError as error:
            if str(error) != self._poll_trouble:
                self._poll_trouble = str(error)
                self._host.warn("jobs of others cannot be read", store=self._store.description, reason=str(error))
            return
        self._intake.tell_warnings(self._store)
        self._intake.take_polled(states)
        if states:
            self._host.stored({state.queue for state in states})

    # --- the lease ----------------------------------------------------------------------------------------------

    def _lease_loop(self) -> None:
        trouble = ""
        while not self._stop.wait(self._lease_s / 3):
            try:
                self._store.renew()
            except StoreEmptiedError:
                self._emptied.set()
                self._wake.set()
            except LeaseLostError as error:
                self._lose(error)
                return
            except SnapshotUnavailableError:
                # The writer tells the operator; without a store nobody else can take the lease either.
                continue
            except Exception as error:  # noqa: BLE001  # the lease must not end with this thread
                if str(error) != trouble:
                    trouble = str(error)
                    self._host.warn("the lease could not be renewed", store=self._store.description, reason=trouble)

    def _lose(self, error: LeaseLostError) -> None:
        with self._ending:
            if self._lost_by is not None:
                return
            self._lost_by = error
            is_opening = self._is_opening
        self._stop.set()
        self._wake.set()
        if not is_opening:
            self._host.lost_lease(error)

    @property
    def lost(self) -> bool:
        """Whether the lease was lost; nothing is written any more."""
        return self._lost_by is not None

    # --- closing ------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float, *, handover: bool = False) -> bool:
        """
        Write what is left, give the store up, end the threads. Blocks, but not for longer than it may.

        Returns:
            Whether everything is stored, and with `handover` also handed over.
        """
        end = self._monotonic() + timeout_s
        saved = self._save_rest(end)
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(end - self._monotonic(), 0.05))
        with self._ending:
            if self._threads and not self._writer_is_done:
                # It hangs in the store, and gives it up once it comes back.
                self._left_alone = True
                return False
        # A store that is away takes no release either, and would only be waited for; the lease runs out by itself.
        if not self.lost and (saved or not self.trouble):
            try:
                self._store.release(handover=handover and saved)
            except SnapshotError as error:
                self._host.warn("the store was not released", store=self._store.description, reason=str(error))
                saved = saved and not handover
        self._store.close()
        return saved

    def vanish(self) -> None:
        """As if the process had been killed: the threads end, nothing more is written, and the lease is not released."""
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(LAST_TRIES_S)
        with contextlib.suppress(Exception):
            self._store.close()

    def _save_rest(self, end: float) -> bool:
        """A store that is away at this very moment gets a few tries more: it may be restarting as we are."""
        last_try = min(end, self._monotonic() + LAST_TRIES_S)
        while not self.lost and not self._ended:
            if self.flush(max(end - self._monotonic(), 0.05)):
                return True
            if self._monotonic() + FIRST_BACKOFF_S >= last_try:
                return False
            self._stop.wait(FIRST_BACKOFF_S)
        return False

    @property
    def trouble(self) -> str:
        """Why the store cannot be used; empty when it can, or could when it was used last."""
        return self._down_reason if self._down_since is not None else ""

    def has_stored(self, queue: str, id: str) -> bool:
        """Whether the store certainly has a job, in whatever state. Lock held."""
        return self.capture.stored[queue].get(id) not in (None, UNKNOWN)

    def health(self) -> dict[str, Any]:
        """Unsaved changes, the last save, and what is wrong, if anything."""
        host = self._host
        with host.lock:
            backlog = self.capture.backlog()
            parked = sum(len(host.core.parked_jobs(queue)) for queue in host.core.queues.values())
        return {
            "unsaved_changes": backlog,
            "last_save_at": None
            if self.last_save_ms is None
            else datetime.fromtimestamp(self.last_save_ms / 1000, UTC),
            # While it is being made in another thread nobody may make it once more.
            "store": self._store.description if "_store" in self.__dict__ else None,
            "store_error": self.trouble or None,
            "parked_jobs": parked,
        }


def _resolve(futures: list[Answer]) -> None:
    for future in futures:
        # Whoever waits may lose patience in another thread at any moment.
        with contextlib.suppress(InvalidStateError):
            future.set_result(None)


def _thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"inproc_jobs snapshot {name}", daemon=True)
    thread.start()
    return thread
