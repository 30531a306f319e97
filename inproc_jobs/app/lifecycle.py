"""
The life of an engine: its states, what they refuse, and the one way down.

Every host stops alike (`_shut_down`): no new dispatches, drain if asked to, wait for what is active, cancel it when the
time is over, give up on what ignores that, save what a snapshot keeps, report. All of it is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from inproc_jobs.core.durations import parse_seconds
from inproc_jobs.core.states import ALIVE_STATES, JobState
from inproc_jobs.errors import (
    BlockingCallError,
    EngineForkedError,
    EngineStoppedError,
    InprocJobsError,
    InvalidOptionTypeError,
)
from inproc_jobs.runtime.context import CURRENT_RUN
from inproc_jobs.runtime.runtime import Runtime

__all__ = ["EngineState", "LivingEngine", "RunSummary", "StopReport"]

MIN_SAVE_S: Final = 1.0
"""How long a last save may take even if `shutdown_timeout` is over: jobs are worth a second."""
_MAX_NAMED: Final = 10
CANCEL_GRACE_S: Final = 0.1
"""How long a cancelled handler may clean up once `shutdown_timeout` is over."""
BLOCKED_GRACE_S: Final = 1.0
"""How long beyond its time a stop waits for a loop that does not answer, before it takes that loop for blocked."""
LOOK_EVERY_S: Final = 0.5


class EngineState(Enum):
    """NEW takes dispatches and runs nothing yet."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FORKED = "forked"


Kept = Callable[[str, str], bool]
"""Whether a snapshot has a job, by its queue and id."""


def none_kept(_queue: str, _id: str) -> bool:
    """There is no snapshot."""
    return False


def all_kept(_queue: str, _id: str) -> bool:
    """A snapshot has everything."""
    return True


class StopReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a stop went.

    Attributes:
        completed, failed: Jobs that ended while stopping.
        interrupted: Ids of active jobs that were cancelled and put back; they have not run to their end.
        abandoned: Ids of active jobs whose handler ignored the cancellation or hangs in a thread; what they still
            return is dropped.
        lost: Jobs left in memory, delayed ones included, that no snapshot keeps; an engine that is started again in
            this process still has them.
        timed_out: Whether the time was over before all was done.
    """

    completed: int = 0
    failed: int = 0
    interrupted: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    lost: int = 0
    timed_out: bool = False


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """
    What `run_until_idle` has done.

    Attributes:
        completed, failed: Jobs that ended.
        retried: Attempts that failed and were retried.
        timed_out: Whether the timeout ended it; jobs that were active then were put back.
        remaining: Jobs that have not ended: left by a timeout, or in a paused queue.
    """

    completed: int = 0
    failed: int = 0
    retried: int = 0
    timed_out: bool = False
    remaining: int = 0

    @property
    def ok(self) -> bool:
        """True when nothing failed and nothing is left."""
        return not self.failed and not self.timed_out and not self.remaining


class LivingEngine:
    """State and end of an engine; the hosts build on it."""

    def __init__(self, runtime: Runtime, shutdown_timeout_ms: int) -> None:
        self.runtime = runtime
        self.takes_dispatches = True
        self._state = EngineState.NEW
        self._shutdown_timeout_s = shutdown_timeout_ms / 1000
        self._thread: threading.Thread | None = None
        self._stop_requested: Callable[[], None] | None = None
        self._shutting_down: asyncio.Task[StopReport] | None = None
        self._draining = False
        self._handing_over = False
        self.drains_by_default = True
        self._given_up = False
        self._last_report = StopReport()
        self._host_lock = threading.Lock()
        self._hurry_event = asyncio.Event()
        ENGINES.add(self)

    @property
    def was_stopped(self) -> bool:
        """Whether it is of no use to a dispatch that may go elsewhere; one that stops right now still speaks up."""
        return self._state in {EngineState.STOPPED, EngineState.FORKED}

    # --- what a snapshot adds -----------------------------------------------------------------------------------

    async def before_hosting(self) -> None:
        """Called before the engine runs on a loop; nothing to do without a snapshot."""

    async def after_runs(self, seconds: float, *, handover: bool = False) -> Kept:
        """Called when no run is left; answers which jobs are stored somewhere."""
        return none_kept

    # --- refusals -----------------------------------------------------------------------------------------------

    def refuse_forked(self) -> None:
        """Raise in a child of the process whose engine was running at the fork."""
        if self._state is EngineState.FORKED:
            raise EngineForkedError(
                f"this process (pid {os.getpid()}) was forked while the engine ran, and has neither its threads nor its loop; "
                "make a new Engine in the child, or start engines after the fork (gunicorn: post_fork)"
            )

    def refuse_stopped(self) -> None:
        """Raise when the engine was stopped."""
        self.refuse_forked()
        if self._state is EngineState.STOPPED or self._given_up:
            raise EngineStoppedError("the engine was stopped; start it again (astart, start) before using it")

    def refuse_dead_loop(self) -> None:
        """
        Raise when the loop that hosted the engine was closed without stopping it: nobody runs its jobs any more.

        Raises:
            EngineStoppedError: The engine counts as stopped from now on.
        """
        loop = self.runtime.loop
        if loop is not None and loop.is_closed():
            self.loop_died("it was closed without stopping the engine")
            self.refuse_stopped()

    def loop_died(self, reason: str) -> None:
        """The host's loop is gone for good: say so, and let nobody wait for what nobody will do. Any thread."""
        if self._state in {EngineState.STOPPED, EngineState.FORKED}:
            return
        runtime = self.runtime
        runtime.log.error("the event loop of the engine has ended", reason=reason)
        runtime.fetching = False
        runtime.loop = None
        self._state = EngineState.STOPPED
        self.takes_dispatches = False
        self._shutting_down = None
        runtime.fail_waiters(EngineStoppedError("the engine's event loop ended before the job did"))
        runtime.listeners.close()
        self._last_report = self._report((), (), False, (runtime.completed, runtime.failed))

    def refuse_dispatch(self) -> None:
        """Raise what keeps this engine from taking a dispatch; while it drains, its own handlers may still dispatch."""
        self.refuse_stopped()
        run = CURRENT_RUN.get()
        if self._draining and run is not None and run.worker.runtime is self.runtime:
            return
        raise EngineStoppedError(
            "the engine is being stopped and takes no new jobs; dispatch after it was started again"
        )

    def refuse_in_loop(self, what: str, twin: str) -> None:
        """Raise when a blocking call is made where an event loop runs."""
        if running_loop() is not None:
            raise BlockingCallError(f"{what} would block the event loop that runs in this thread; use {twin}")

    # --- starting and stopping ----------------------------------------------------------------------------------

    def _live_loop(self) -> asyncio.AbstractEventLoop | None:
        """
        The loop that hosts the engine, None while there is none.

        A loop that was closed under the engine (a test that forgot to stop it, `asyncio.run` that ended) hosts nothing
        any more: what was active is taken up by the next start.
        """
        loop = self.runtime.loop
        if loop is not None and loop.is_closed():
            with contextlib.suppress(RuntimeError):  # somebody in that loop still waited for quiet; it cannot be told
                self.runtime.unhost()
            self._shutting_down = None
            self._draining = self._given_up = False
            self._state = EngineState.NEW
            self.takes_dispatches = True
            loop = None
        return loop

    def _begin(self) -> None:
        self.refuse_forked()
        self._live_loop()
        if self._state is EngineState.STOPPING:
            raise EngineStoppedError("the engine is being stopped; start it again once it has stopped")

    def _host(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._state is EngineState.RUNNING:
            raise InprocJobsError("the engine runs already, in another loop or thread")
        self._state = EngineState.RUNNING
        self.takes_dispatches = True
        self._hurry_event = asyncio.Event()
        self.runtime.host(loop)

    def host_for_test(self, loop: asyncio.AbstractEventLoop) -> None:
        """Host on a loop without taking jobs yet; the test kit says when."""
        self._state = EngineState.RUNNING
        self.takes_dispatches = True
        self._hurry_event = asyncio.Event()
        self.runtime.host(loop, fetching=False)

    def vanish(self) -> None:
        """As if the process had been killed: no end of any run counts any more, nobody is told, nothing is reported."""
        runtime = self.runtime
        for worker in runtime.workers.values():
            worker.drop_runs()
        if runtime.loop is not None:
            runtime.unhost()
        runtime.fetching = False
        self._state = EngineState.STOPPED
        self.takes_dispatches = False
        runtime.fail_waiters(EngineStoppedError("the engine is gone"))

    def _stop_arguments(self, timeout: Any, drain: Any) -> float:
        seconds = parse_seconds(timeout, option="timeout")
        if drain is not None and type(drain) is not bool:
            raise InvalidOptionTypeError(
                f"drain must be True, False or None, got {drain!r}", option="drain", value=drain
            )
        self.refuse_forked()
        return self._shutdown_timeout_s if seconds is None else seconds

    def _refuse_own_handler(self, what: str) -> None:
        run = CURRENT_RUN.get()
        if run is not None and run.worker.runtime is self.runtime and not run.over:
            raise BlockingCallError(
                f"{what}() was called by a handler of this engine and would wait for that handler; "
                "have the program that owns the engine stop it"
            )

    def _stop_unhosted(self) -> StopReport:
        """Nothing runs; what is in memory is lost unless it is started again."""
        if self._state is not EngineState.STOPPED:
            self._state = EngineState.STOPPED
            self.takes_dispatches = False
            self.runtime.fail_waiters(EngineStoppedError("the engine was stopped before the job ended"))
            self._last_report = self._report((), (), False, (self.runtime.completed, self.runtime.failed))
        return self._last_report

    def _give_up_loop(self) -> StopReport:
        """
        The loop does not answer: a handler blocks it, which nothing can interrupt. Report without it; should the loop
        come back, the stop that waits there does the rest, and until then the engine counts as being stopped.
        """
        self._given_up = True
        self._state = EngineState.STOPPING
        self.takes_dispatches = False
        self.runtime.fetching = False
        blocking = tuple(job.id for queue in self.runtime.core.queues.values() for job in queue.active)
        self.runtime.log.warning("the event loop is blocked, the engine was left to itself", job_ids=blocking)
        self.runtime.fail_waiters(EngineStoppedError("the engine was stopped before the job ended"))
        return self._report((), blocking, True, (self.runtime.completed, self.runtime.failed))

    async def _shut_down(self, seconds: float, drain: bool | None) -> StopReport:
        """Shut down once; everybody who asks meanwhile gets the same report. On the host's loop."""
        if self._state is EngineState.STOPPED:
            return self._last_report
        if self._shutting_down is None:
            self._state = EngineState.STOPPING
            self.takes_dispatches = False
            self._draining = self.drains_by_default if drain is None else drain
            if not self._draining:
                self.runtime.fetching = False
            self._shutting_down = asyncio.get_running_loop().create_task(self._do_shut_down(seconds))
        # Shielded: a caller that is cancelled must not leave the engine half stopped.
        return await asyncio.shield(self._shutting_down)

    async def _do_shut_down(self, seconds: float) -> StopReport:
        runtime = self.runtime
        before = (runtime.completed, runtime.failed)
        timed_out = False
        interrupted: tuple[str, ...] = ()
        abandoned: tuple[str, ...] = ()
        kept: Kept = none_kept
        end = runtime.monotonic() + seconds
        try:
            timed_out = not await self._finish_what_runs(seconds)
            interrupted, abandoned = await self._end_runs()
            kept = await self.after_runs(max(MIN_SAVE_S, end - runtime.monotonic()), handover=self._handing_over)
        finally:
            runtime.fetching = False
            self._draining = False
            runtime.fail_waiters(EngineStoppedError("the engine was stopped before the job ended"))
            runtime.flush()
            # Events of the last jobs were handed to the loop just now; let them out before it is let go.
            await asyncio.sleep(0)
            runtime.listeners.close()
            runtime.unhost()
            self._state = EngineState.STOPPED
            self._given_up = False
            self._shutting_down = None
            self._last_report = self._report(interrupted, abandoned, timed_out, before, kept)
            if self._stop_requested is not None:
                self._stop_requested()
                self._stop_requested = None
        return self._last_report

    async def _finish_what_runs(self, seconds: float) -> bool:
        """Drain if asked to, and wait for the active jobs; False when the time was over, or somebody is in a hurry."""
        runtime = self.runtime
        hurry = asyncio.get_running_loop().create_task(self._hurry_event.wait())

        async def finish() -> None:
            if self._draining:
                await runtime.wait_idle(ready_only=True)
            runtime.fetching = False
            await runtime.wait_no_runs()

        finishing = asyncio.get_running_loop().create_task(finish())
        await asyncio.wait((finishing, hurry), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        done = finishing.done()
        for task in (finishing, hurry):
            task.cancel()
        runtime.fetching = False
        return done

    async def _end_runs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Cancel what is still active; answer the ids of what was put back, and of what was given up on."""
        runtime = self.runtime
        active = [run for worker in runtime.workers.values() for run in worker.runs]
        if not active:
            return (), ()
        for worker in runtime.workers.values():
            worker.cancel_runs()
        if not await self._have_ended(CANCEL_GRACE_S):
            for worker in runtime.workers.values():
                worker.give_up_runs()
            await self._have_ended(CANCEL_GRACE_S / 2)
        for worker in runtime.workers.values():
            worker.abandon_runs()
        # Runs in threads that were given up have ended for us; they are told apart by the worker. A thread that hangs
        # since its job timed out is not among the active ones: that job has ended.
        left_behind = [run for run in active if run in run.worker.abandoned]
        given_up = tuple(run.job.id for run in left_behind)
        interrupted = tuple(run.job.id for run in active if run not in left_behind and _is_back(run.job.state))
        if given_up:
            more = f" and {len(given_up) - _MAX_NAMED} more" if len(given_up) > _MAX_NAMED else ""
            named = ", ".join(given_up[:_MAX_NAMED])
            runtime.log.warning("handlers did not end in time and were abandoned", job_ids=named + more)
        return interrupted, given_up

    async def _have_ended(self, seconds: float) -> bool:
        """Wait for the last run to end; False when that took too long."""
        try:
            async with asyncio.timeout(seconds):
                await self.runtime.wait_no_runs()
        except TimeoutError:
            return False
        return True

    def _hurry(self) -> None:
        """A second signal: do not wait any longer."""
        self._hurry_event.set()

    def _report(
        self,
        interrupted: tuple[str, ...],
        abandoned: tuple[str, ...],
        timed_out: bool,
        before: tuple[int, int],
        kept: Kept = none_kept,
    ) -> StopReport:
        lost = self.warn_of_lost(kept)
        return StopReport(
            completed=self.runtime.completed - before[0],
            failed=self.runtime.failed - before[1],
            interrupted=interrupted,
            abandoned=abandoned,
            lost=lost,
            timed_out=timed_out,
        )

    def warn_of_lost(self, kept: Kept) -> int:
        """Say how many jobs are gone with this process, and answer it."""
        left = self._left_by_state(kept)
        lost = sum(left.values())
        if lost:
            self.runtime.log.warning("engine stopped with jobs that nothing keeps", lost=lost, **left)
        return lost

    def _left_by_state(self, kept: Kept = none_kept) -> dict[str, int]:
        """
        How many jobs have not ended and are not kept, by state; states without any are left out.

        The pending run of a schedule does not count: nobody has asked for it yet but the schedule itself.
        """
        left: dict[str, int] = {}
        if kept is all_kept:
            return left
        with self.runtime.lock:
            for queue in self.runtime.core.queues.values():
                planned = self.runtime.core.planned_ids(queue)
                for state in ALIVE_STATES:
                    jobs = queue.containers[state]
                    if kept is none_kept:
                        count = len(jobs) - (len(planned) if state is JobState.DELAYED else 0)
                    else:
                        count = sum(job.id not in planned and not kept(queue.name, job.id) for job in jobs)
                    if count:
                        name = state.value.replace("-", "_")
                        left[name] = left.get(name, 0) + count
        return left

    def _count_left(self) -> int:
        return sum(self._left_by_state().values())

    # --- forks --------------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """Only the forking thread lives on: locks may be held for ever, and the runners are gone."""
        self.runtime.lock = threading.RLock()
        self._host_lock = threading.Lock()
        if self._state in (EngineState.RUNNING, EngineState.STOPPING):
            self._state = EngineState.FORKED
            self.takes_dispatches = False
            self.runtime.loop = None


ENGINES: Final[weakref.WeakSet[LivingEngine]] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(ENGINES):
        engine.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _is_back(state: JobState) -> bool:
    return state in (JobState.WAITING, JobState.PRIORITIZED)


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
