"""
Where an engine runs: inside the caller's loop, in a thread of its own, or blocking.

How it stops is the same for all three, see `lifecycle`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from inproc_jobs.app.lifecycle import (
    BLOCKED_GRACE_S,
    CANCEL_GRACE_S,
    ENGINES,
    LOOK_EVERY_S,
    EngineState,
    LivingEngine,
    RunSummary,
    StopReport,
    none_kept,
    running_loop,
)
from inproc_jobs.app.progress import Progress
from inproc_jobs.core.durations import parse_seconds
from inproc_jobs.errors import (
    BlockingCallError,
)

if TYPE_CHECKING:
    from typing import Self

__all__ = ["HostedEngine"]


class HostedEngine(LivingEngine):
    """The three hosts."""

    # --- inside the caller's loop -------------------------------------------------------------------------------

    async def astart(self) -> None:
        """
        Run in the caller's loop. Starting an engine that runs already does nothing.

        Raises:
            EngineForkedError: The process was forked while it ran.
            EngineStoppedError: It is being stopped right now.
        """
        self._begin()
        if self._state is EngineState.RUNNING:
            return
        await self.before_hosting()
        self._host(asyncio.get_running_loop())

    async def astop(self, timeout: Any = None, *, drain: bool | None = None) -> StopReport:
        """
        Stop: no new dispatches, active jobs finish; with `drain` all that is ready runs too.

        Args:
            timeout: Seconds ("30s" and timedelta work too); None is `shutdown_timeout`.
            drain: None is yes without a snapshot. Delayed jobs are not waited for.

        Returns:
            What was done and what is left. Stopping twice returns the same report.

        Raises:
            BlockingCallError: Called by one of the engine's own handlers, which would wait for itself.
        """
        seconds = self._stop_arguments(timeout, drain)
        self._refuse_own_handler("astop")
        loop = self._live_loop()
        if loop is None:
            return self._stop_unhosted()
        if loop is asyncio.get_running_loop():
            return await self._shut_down(seconds, drain)
        return await asyncio.to_thread(self.stop, timeout, drain=drain)

    # --- a thread of its own ------------------------------------------------------------------------------------

    def start(self) -> None:
        """
        Run in a thread of its own (Flask, Django, scripts). Returns once it runs; starting it again does nothing.

        Raises:
            EngineForkedError: The process was forked while it ran.
            EngineStoppedError: It is being stopped right now.
        """
        with self._host_lock:
            self._begin()
            if self._state is EngineState.RUNNING:
                return
            ready = threading.Event()
            failure: list[BaseException] = []

            def run() -> None:
                try:
                    with _runner() as runner:
                        runner.run(self._serve(ready.set))
                except BaseException as error:  # noqa: BLE001  # told to whoever waits for the start, or to all who wait
                    if ready.is_set():
                        # What a task of the host, or of a handler, raises may end the loop: SystemExit, loop.stop().
                        self.loop_died(f"{type(error).__name__}: {error}")
                    failure.append(error)
                    ready.set()

            # A daemon: a program that forgets to stop the engine must still be able to end; `atexit` stops it. In the
            # caller's context, which is the engine's at start whichever way it is hosted (DESIGN 2.10).
            thread = threading.Thread(
                target=contextvars.copy_context().run, args=(run,), name="inproc_jobs engine", daemon=True
            )
            thread.start()
            self._thread = thread
            ready.wait()
            if failure:
                self._thread = None
                raise failure[0]

    async def _serve(self, ready: Callable[[], None]) -> None:
        """Host until somebody has shut the engine down."""
        await self.before_hosting()
        self._host(asyncio.get_running_loop())
        stopped = asyncio.Event()
        self._stop_requested = stopped.set
        ready()
        await stopped.wait()

    def stop(self, timeout: Any = None, *, drain: bool | None = None) -> StopReport:
        """
        As `astop`, from any thread but that of the loop that hosts the engine.

        Raises:
            BlockingCallError: Called where it would wait for itself; `await engine.astop()` instead.
        """
        seconds = self._stop_arguments(timeout, drain)
        self._refuse_own_handler("stop")
        loop = self._live_loop()
        if loop is None:
            return self._stop_unhosted()
        if loop is running_loop():
            raise BlockingCallError("stop() would wait for the loop it is called in; use await engine.astop()")
        if not loop.is_running() and self.runtime.loop_thread == threading.get_ident():
            # Hosted by `loop.run_until_complete(engine.astart())`: nobody but us would run that loop meanwhile.
            return loop.run_until_complete(self._shut_down(seconds, drain))
        report = self._shut_down_from_outside(loop, seconds, drain)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self._given_up:
            thread.join()
            self._thread = None
        return report

    def _shut_down_from_outside(
        self, loop: asyncio.AbstractEventLoop, seconds: float, drain: bool | None
    ) -> StopReport:
        """Have the loop shut the engine down and wait for it, but no longer than it may take."""
        shutting_down = self._shut_down(seconds, drain)
        try:
            done = asyncio.run_coroutine_threadsafe(shutting_down, loop)
        except RuntimeError:  # closed in this moment, after another thread has stopped the engine
            shutting_down.close()
            return self._last_report
        end = time.monotonic() + seconds + BLOCKED_GRACE_S
        while True:
            try:
                return done.result(LOOK_EVERY_S)
            except concurrent.futures.CancelledError:
                return self._last_report
            except TimeoutError:
                if self._state is EngineState.STOPPED:  # by another thread; this call came too late for the loop
                    if loop.is_closed():
                        shutting_down.close()
                    return self._last_report
                if time.monotonic() > end:
                    return self._give_up_loop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=False if error is not None else None)

    # --- blocking -----------------------------------------------------------------------------------------------

    def run_until_idle(self, timeout: Any = None, *, progress: bool = False) -> RunSummary:
        """
        Run jobs until nothing can run any more; delays and retries are waited for, paused queues are not.

        Ctrl-C cancels what is active, puts it back, and raises KeyboardInterrupt. The engine stays usable.

        Args:
            timeout: Seconds at most; None is no limit.
            progress: Show a progress bar on standard error (plain lines where that is no terminal).

        Raises:
            BlockingCallError: A loop runs in this thread.
            EngineStoppedError: The engine was stopped.
        """
        seconds = parse_seconds(timeout, option="timeout")
        self.refuse_in_loop("run_until_idle", "await inside `async with engine`")
        self._refuse_own_handler("run_until_idle")
        self.refuse_stopped()
        before = (self.runtime.completed, self.runtime.failed, self.runtime.retried)
        show = Progress(self.runtime) if progress else None
        loop = self._live_loop()
        if loop is not None:
            timed_out = asyncio.run_coroutine_threadsafe(self._wait_idle(seconds, show), loop).result()
        else:
            with _runner() as runner:
                timed_out = runner.run(self._run_until_idle(seconds, show))
        return RunSummary(
            completed=self.runtime.completed - before[0],
            failed=self.runtime.failed - before[1],
            retried=self.runtime.retried - before[2],
            timed_out=timed_out,
            remaining=self._count_left(),
        )

    async def _run_until_idle(self, seconds: float | None, show: Progress | None) -> bool:
        """Host for a while, without ever counting as stopped."""
        await self.before_hosting()
        self._host(asyncio.get_running_loop())
        try:
            return await self._wait_idle(seconds, show)
        finally:
            self.runtime.fetching = False
            await self._end_runs()
            self.runtime.flush()
            kept = await self.after_runs(self._shutdown_timeout_s)
            if kept is not none_kept:
                # What could not be stored is gone: the next start reads the snapshot.
                self.warn_of_lost(kept)
            self.runtime.unhost()
            self._state = EngineState.NEW
            self.takes_dispatches = self.drains_by_default

    async def _wait_idle(self, seconds: float | None, show: Progress | None) -> bool:
        """True when the time was over first."""
        with show if show is not None else contextlib.nullcontext():
            try:
                async with asyncio.timeout(seconds):
                    await self.runtime.wait_idle()
            except TimeoutError:
                return True
            return False

    def run_forever(self) -> StopReport:
        """
        Run jobs until Ctrl-C or SIGTERM: the first stops gracefully, a second at once. While a handler blocks the loop,
        one more after a second or so interrupts that handler. Signal handlers are those of the time before once it
        returns; the exit code is the caller's.

        Raises:
            BlockingCallError: A loop runs in this thread.
        """
        self.refuse_in_loop("run_forever", "`async with engine` and a wait of your own")
        self._begin()
        if self._state is EngineState.RUNNING:
            raise BlockingCallError("the engine runs already; stop it before run_forever()")
        with _runner() as runner:
            return runner.run(self._run_forever())

    async def _run_forever(self) -> StopReport:
        loop = asyncio.get_running_loop()
        signalled = asyncio.Event()
        hurry = asyncio.Event()

        def on_signal() -> None:
            if signalled.is_set():
                hurry.set()
            signalled.set()

        with _signals(loop, on_signal):
            await self.before_hosting()
            self._host(loop)
            self._stop_requested = signalled.set
            await signalled.wait()
            if self._state is EngineState.STOPPED:
                return self._last_report
            stopping = loop.create_task(self._shut_down(self._shutdown_timeout_s, None))
            hurrying = loop.create_task(hurry.wait())
            await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                self._hurry()
            hurrying.cancel()
            return await stopping


@contextlib.contextmanager
def _runner() -> Iterator[asyncio.Runner]:
    """
    As `with asyncio.Runner()`, but nothing that a handler left behind can hold up its end.

    A Runner waits without a limit for tasks that swallow their cancellation and for threads of `asyncio.to_thread`
    (case C103). It also takes away the event loop that its thread had set before, unless it is given a factory.
    """
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    try:
        yield runner
    finally:
        try:
            stubborn = loop.run_until_complete(_wind_down(set()))
            while asyncio.all_tasks(loop) - stubborn:  # of threads that called `stop` in this very moment
                stubborn |= loop.run_until_complete(_wind_down(stubborn))
        finally:
            loop.close()  # lets go of the default executor without waiting for its threads


async def _wind_down(known: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel what is left on this loop and let it clean up, for a moment; answers what did not, and was not `known`."""
    left = asyncio.all_tasks() - {asyncio.current_task()} - known
    stubborn: set[asyncio.Task[Any]] = set()
    for task in left:
        task.cancel()
    if left:
        _, stubborn = await asyncio.wait(left, timeout=CANCEL_GRACE_S)
        for task in stubborn:
            # It was reported as abandoned; asyncio need not report it again when it is collected.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_GRACE_S):
            await asyncio.get_running_loop().shutdown_asyncgens()
    return stubborn


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Iterator[None]:
    """
    SIGINT and SIGTERM call a function of ours on the loop meanwhile; outside the main thread nothing is touched.

    Not `loop.add_signal_handler`: it does not exist on Windows, and a handler that blocks the loop would make the
    process deaf to every signal but SIGKILL. Whoever sends one more after the loop did not notice the last one for a
    while means that handler: KeyboardInterrupt is raised there, and ends its job.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    unnoticed_since: float | None = None

    def notice() -> None:
        nonlocal unnoticed_since
        unnoticed_since = None
        call()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal unnoticed_since
        if unnoticed_since is not None and time.monotonic() - unnoticed_since > BLOCKED_GRACE_S:
            raise KeyboardInterrupt
        if unnoticed_since is None:
            unnoticed_since = time.monotonic()
        loop.call_soon_threadsafe(notice)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was set by something that is not Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _at_exit() -> None:
    """Stop engines that run in a thread of their own, as leaving `with engine:` would."""
    for engine in list(ENGINES):
        if isinstance(engine, HostedEngine) and engine._thread is not None and engine._state is EngineState.RUNNING:  # noqa: SLF001  # same module
            with contextlib.suppress(Exception):
                engine.stop()


atexit.register(_at_exit)
