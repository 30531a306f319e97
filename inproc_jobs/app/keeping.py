"""The engine and its snapshot: opening before it runs, saving while it does, closing after it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from inproc_jobs.app.answers import LoopAnswers
from inproc_jobs.app.hosting import HostedEngine
from inproc_jobs.app.lifecycle import EngineState, Kept, StopReport, all_kept, none_kept
from inproc_jobs.core.job import HELD
from inproc_jobs.errors import (
    EngineNotStartedError,
    EngineStoppedError,
    LeaseLostError,
    QueueNotOwnedError,
    SnapshotUnavailableError,
)
from inproc_jobs.runtime.runtime import Runtime
from inproc_jobs.snapshot.config import RedisSnapshot

if TYPE_CHECKING:
    from inproc_jobs.app.receipt import DispatchedJob
    from inproc_jobs.core.core import Core
    from inproc_jobs.core.queue import Queue
    from inproc_jobs.snapshot.config import Snapshot
    from inproc_jobs.snapshot.keeper import Keeper
    from inproc_jobs.snapshot.store import Store
    from inproc_jobs.snapshot.waiters import A

__all__ = ["KeptEngine"]

T = TypeVar("T")


class _Host:
    """The engine as its keeper sees it."""

    def __init__(self, engine: KeptEngine) -> None:
        self._engine = engine
        self.core: Core = engine.runtime.core

    @property
    def lock(self) -> Any:
        """The engine's; a forked child has another one."""
        return self._engine.runtime.lock

    def now_ms(self) -> int:
        """The wall clock; lock held."""
        return self._engine.runtime.now_ms()

    def queue(self, name: str) -> Queue:
        """The queue of that name, with its worker; lock held."""
        return self._engine.runtime.worker(name).queue

    def stored(self, queues: set[str]) -> None:
        """Jobs of these queues may start."""
        runtime = self._engine.runtime
        with self.lock:
            for name in queues:
                runtime.summon(runtime.worker(name))
        runtime.flush()

    def lost_lease(self, error: LeaseLostError) -> None:
        """Somebody else owns the store."""
        self._engine.stop_at_once(error)

    def warn(self, event: str, **fields: Any) -> None:
        """Say something to the operator."""
        self._engine.runtime.log.warning(event, **fields)


class KeptEngine(HostedEngine):
    """
    An engine that may have a snapshot.

    Attributes:
        settles: Whether an awaited dispatch returns only after `settle`.
        hold: The flag that a new job gets so that it does not start before it is stored; 0 for none.
    """

    settles: bool = False

    def __init__(self, runtime: Runtime, shutdown_timeout_ms: int, snapshot: Snapshot | None) -> None:
        super().__init__(runtime, shutdown_timeout_ms)
        self._snapshot = snapshot
        self._keeper: Keeper | None = None
        self._opening: Keeper | None = None
        self._answers: LoopAnswers | None = None
        self.drains_by_default = snapshot is None
        self.hold = 0
        self._stop_error: LeaseLostError | None = None
        self._is_saved = False
        self._stopping_task: asyncio.Task[Any] | None = None
        if snapshot is not None:
            runtime.core.prefix = snapshot.prefix
            # Until the store is read nobody knows which ids are alive.
            self.takes_dispatches = False
            if snapshot.mode == "write_through":
                self.settles = True
                self.hold = HELD

    # --- opening and closing ------------------------------------------------------------------------------------

    async def before_hosting(self) -> None:
        """Open the snapshot, without blocking the loop."""
        if self._snapshot is None:
            return
        if self._opening is not None:
            raise EngineStoppedError("the engine is being started already, in another task or thread")
        self.start_over()
        self._stop_error = None
        from inproc_jobs.snapshot.keeper import Keeper  # loaded by those who have a snapshot

        keeper = self._opening = Keeper(
            functools.partial(_opened, self._snapshot, self._limits(), self._used_queues()),
            _Host(self),
            mode=self._snapshot.mode,
            every_ms=self._snapshot.every_ms,
            lease_ms=self._snapshot.lease_ms,
            patience_ms=self._snapshot.timeout_ms,
            on_held=self._snapshot.on_held,
        )
        try:
            await _in_thread(keeper.open)
        except asyncio.CancelledError:
            # The thread goes on by itself: it must neither become the owner nor stay it.
            _start_thread(keeper.give_up)
            raise
        finally:
            self._opening = None
        if keeper.gave_up:
            await _in_thread(keeper.give_up)
            raise EngineStoppedError("the engine was stopped while it waited for its snapshot")
        self._keeper = keeper

    def _used_queues(self) -> frozenset[str]:
        """Queues that were set up, and those of defined jobs."""
        return frozenset((*self.runtime.workers, *self.queues_of_jobs()))

    def queues_of_jobs(self) -> Iterable[str]:
        """The queues of all jobs that this engine serves."""
        raise NotImplementedError

    def admit_queue(self, name: str) -> None:
        """
        Look whether a queue may come into being.

        Raises:
            QueueNotOwnedError: It is in the store already, and belongs to others.
        """
        if self._keeper is not None and self._keeper.is_left_alone(name):
            raise QueueNotOwnedError(
                f"queue {name!r} was there when the engine started, and it is not the engine's: no job was defined for it. "
                f"Define a job with queue={name!r}, or name it in Engine(queues=...), before the start, and the engine "
                "takes it over from its BullMQ workers; or give the snapshot a prefix of its own",
                queue=name,
            )

    def _limits(self) -> dict[str, tuple[int, float]]:
        """Rate limits of the workers by queue, for a store that shows them to workers of a real BullMQ."""
        limiters = {name: worker.options.limiter for name, worker in self.runtime.workers.items()}
        return {name: (one.max, one.duration_ms) for name, one in limiters.items() if one is not None}

    def _stop_unhosted(self) -> StopReport:
        """As before; a start that waits for its turn is told."""
        opening = self._opening
        if opening is not None:
            opening.give_up()
        return super()._stop_unhosted()

    def start_over(self) -> None:
        """What is in memory is of an earlier life; the store knows better."""
        with self.runtime.lock:
            self.runtime.start_over()

    async def after_runs(self, seconds: float, *, handover: bool = False) -> Kept:
        """Save what is left and close the snapshot; answers which jobs it has."""
        keeper = self._keeper
        if keeper is None:
            return none_kept
        try:
            self._is_saved = await _in_thread(lambda: keeper.close(seconds, handover=handover))
        finally:
            self._keeper = self._answers = None
        return all_kept if self._is_saved else keeper.has_stored

    def vanish(self) -> None:
        """As `HostedEngine.vanish`; what was not written yet is not written any more."""
        super().vanish()
        keeper, self._keeper, self._answers = self._keeper, None, None
        if keeper is not None:
            keeper.vanish()

    async def save_now(self, seconds: float) -> bool:
        """Write what has changed until now; False when that did not work out in time, or without a snapshot."""
        keeper = self._keeper
        return keeper is not None and await _in_thread(lambda: keeper.flush(seconds))

    async def handover(self, timeout: Any = None) -> None:
        """
        Stop, and leave the jobs as a live BullMQ queue: workers of a real BullMQ may take over at once.

        Raises:
            SnapshotUnavailableError: There is no snapshot in Redis, or not everything could be stored.
        """
        if not isinstance(self._snapshot, RedisSnapshot):
            raise SnapshotUnavailableError("there is nothing to hand over: the engine has no snapshot in Redis")
        keeper = self._keeper
        if keeper is None:
            raise SnapshotUnavailableError("there is nothing to hand over: the engine does not run")
        self._handing_over = True
        self._is_saved = False
        try:
            report = await self.astop(timeout, drain=False)
        finally:
            self._handing_over = False
        if not self._is_saved:
            reason = (keeper.trouble or "the store did not answer in time").rstrip(".")
            lost = f"; {report.lost} of them could not be stored" if report.lost else ""
            raise SnapshotUnavailableError(
                f"the jobs were not handed over: {reason}{lost}. Those in the store are free once the lease has run out"
            )

    def stop_at_once(self, error: LeaseLostError) -> None:
        """The lease is lost: nothing of ours may be written any more, so nothing may run any more. Any thread."""
        runtime = self.runtime
        runtime.log.error("lease of the snapshot was lost; the engine stops", reason=str(error))
        runtime.fetching = False
        self.takes_dispatches = False
        self._stop_error = error
        runtime.call_on_loop(self._begin_stop)

    def _begin_stop(self) -> None:
        loop = self.runtime.loop
        if loop is not None and self._state is EngineState.RUNNING:
            self._stopping_task = loop.create_task(self._shut_down(0.0, False))

    def refuse_stopped(self) -> None:
        """As before; after a lost lease with its reason."""
        if self._stop_error is not None and self._state is EngineState.STOPPED:
            raise EngineStoppedError(
                f"the engine was stopped since it lost its snapshot: {self._stop_error}"
            ) from self._stop_error
        super().refuse_stopped()

    # --- dispatching --------------------------------------------------------------------------------------------

    def refuse_dispatch(self) -> None:
        """As without a snapshot; before the start with one there is a better word."""
        self.refuse_unread()
        super().refuse_dispatch()

    def refuse_unread(self) -> None:
        """
        Raise while what is in memory means nothing, as the store was not read.

        Raises:
            EngineNotStartedError: The engine has a snapshot and does not run.
        """
        if self._snapshot is not None and self._state is EngineState.NEW:
            raise EngineNotStartedError(
                "the engine has a snapshot and was not started: until the store is read nobody knows which ids are alive; "
                "start it first (async with engine, engine.start())"
            )

    def after_fork_in_child(self) -> None:
        """As before; the snapshot stays with the parent."""
        super().after_fork_in_child()
        self._keeper = self._opening = self._answers = None

    def before_held_dispatch(self) -> None:
        """
        In mode write_through, refuse at once while the store is known to be away.

        Raises:
            SnapshotUnavailableError: Nothing was added.
        """
        if self._keeper is not None:
            self._keeper.refuse_while_down()

    async def settle(self, receipts: Iterable[DispatchedJob[Any]]) -> None:
        """
        Return once the jobs of these receipts are stored.

        Raises:
            SnapshotUnavailableError: One could not be; it is not in memory either.
        """
        for answer in self._wait_stored(receipts, self._loop_answers().new):
            await answer.arrival
            if answer.error is not None:
                raise answer.error

    def settle_sync(self, receipts: Iterable[DispatchedJob[Any]]) -> None:
        """As `settle`, blocking."""
        for future in self._wait_stored(receipts, Future[None]):
            future.result()

    def _wait_stored(self, receipts: Iterable[DispatchedJob[Any]], new: Callable[[], A]) -> list[A]:
        keeper = self._keeper
        if keeper is None:
            raise SnapshotUnavailableError("the snapshot was closed before the job was stored", outcome="unknown")
        answers: list[A | None] = []
        with self.runtime.lock:
            for receipt in receipts:
                job = receipt._job  # noqa: SLF001  # the facade's own record
                if job is not None:
                    queue = self.runtime.core.queue(receipt.queue)
                    answers.append(keeper.wait_stored(queue, job, new, duplicate=receipt.duplicate))
        return [answer for answer in answers if answer is not None]

    def _loop_answers(self) -> LoopAnswers:
        """The way to this loop; the latest one is kept, as there is hardly ever another."""
        answers, loop = self._answers, asyncio.get_running_loop()
        if answers is None or answers.loop is not loop:
            answers = self._answers = LoopAnswers(loop)
        return answers

    async def settle_schedule(self, queue: str, id: str) -> None:
        """
        Return once a schedule and its pending run are stored.

        Raises:
            SnapshotUnavailableError: They could not be; they are in memory all the same, and written later.
        """
        answer = self._wait_told(queue, id, self._loop_answers().new)
        if answer is not None:
            await answer.arrival
            if answer.error is not None:
                raise answer.error

    def settle_schedule_sync(self, queue: str, id: str) -> None:
        """As `settle_schedule`, blocking."""
        future = self._wait_told(queue, id, Future[None])
        if future is not None:
            future.result()

    def _wait_told(self, queue: str, id: str, new: Callable[[], A]) -> A | None:
        keeper = self._keeper
        if keeper is None:
            return None
        with self.runtime.lock:
            return keeper.wait_told(self.runtime.core.queue(queue), id, new)

    def snapshot_health(self) -> dict[str, Any]:
        """How the snapshot is; Nones without one."""
        keeper = self._keeper or self._opening
        if keeper is not None:
            return keeper.health()
        error = None if self._stop_error is None else str(self._stop_error)
        return {"unsaved_changes": None, "last_save_at": None, "store": None, "store_error": error, "parked_jobs": 0}


def _opened(snapshot: Snapshot, limits: dict[str, tuple[int, float]], wanted: frozenset[str]) -> Store:
    """The store, made in the thread that opens it: loading the library of a client would hold up the loop."""
    store = snapshot.open_store()
    store.limits.update(limits)
    store.wanted = wanted
    return store


async def _in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread of its own: the loop's default executor may be full of the host's work."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # handed to whoever awaits
            with contextlib.suppress(Exception):
                future.set_exception(error)
        else:
            with contextlib.suppress(Exception):
                future.set_result(result)

    _start_thread(run)
    return await asyncio.wrap_future(future)


def _start_thread(call: Callable[[], object]) -> None:
    threading.Thread(target=call, name="inproc_jobs snapshot call", daemon=True).start()
