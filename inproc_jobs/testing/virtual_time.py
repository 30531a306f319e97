"""
Virtual time for a running event loop: where it would wait for a timer, the clock jumps there instead.

It is attached to a loop that exists already (that of pytest-asyncio or anyio), since the code under test has its own
objects on that loop. Everything that reads `loop.time()` is virtual then: `asyncio.sleep`, `wait_for`, `timeout`,
`call_later`. The libraries for virtual loops were not taken: looptime and async-solipsism want to make the loop
themselves, and let time go on in steps, or fail, while a thread works.

Time stands still while a thread works for the loop, or a socket is open that may still bring something: what they do is
real, and a jump would make it look slow.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal

from inproc_jobs.core.durations import parse_ms
from inproc_jobs.errors import InprocJobsError, InvalidOptionError

__all__ = ["MAX_JUMPS", "STUCK_S", "RealIO", "TimeStuckError", "VirtualClock", "VirtualTime"]

RealIO = Literal["wait", "ignore"]
STUCK_S: Final = 10.0
"""Real seconds that a thread or a socket may keep time from moving before the test is told what it waits for."""
LONELY_S: Final = 0.2
"""The same where no thread and no socket is left that could bring anything."""
MAX_JUMPS: Final = 100_000
"""Jumps in a row without a job that runs: something ticks for ever, and what the test waits for does not come."""


_CURES: Final = {
    "open": "; if it may stay open, ask for real_io='ignore'",
    "thread": "; if it is to run beside the test, make it a daemon",
}
RESOLUTION_S: Final = 1e-6


class TimeStuckError(InprocJobsError):
    """Time cannot go on: something is awaited that does not come."""


class VirtualClock:
    """
    The clock of an engine under test: moves only when somebody moves it.

    Kept in whole microseconds: floats would lose the milliseconds of delays of years.
    """

    __slots__ = ("_elapsed_us", "_followers", "_wall_us", "on_step")

    def __init__(self, start: datetime) -> None:
        self._elapsed_us = 0
        self._wall_us = round(start.timestamp() * 1_000_000)
        self._followers: list[Callable[[datetime], object]] = []
        self.on_step: Callable[[], object] = lambda: None

    def now_ms(self) -> int:
        """Wall-clock time, ms since 1970."""
        return (self._wall_us + self._elapsed_us) // 1000

    def now(self) -> datetime:
        """Wall-clock time, UTC."""
        return datetime.fromtimestamp((self._wall_us + self._elapsed_us) / 1_000_000, UTC)

    def monotonic(self) -> float:
        """Seconds since the test began."""
        return self._elapsed_us / 1_000_000

    def move_to(self, seconds: float) -> None:
        """Go on until `monotonic` has reached `seconds`; never back."""
        elapsed_us = max(self._elapsed_us, round(seconds * 1_000_000))
        if elapsed_us != self._elapsed_us:
            self._elapsed_us = elapsed_us
            self._tell()

    def nudge(self) -> None:
        """Go on by the least there is."""
        self._elapsed_us += 1

    def step_wall(self, by: Any) -> None:
        """
        Somebody sets the wall clock; no time passes.

        Args:
            by: An int of ms, negative for back, or a duration such as "1h" (forward).
        """
        self._wall_us += (by if type(by) is int else round(parse_ms(by, option="by"))) * 1000
        self._tell()
        self.on_step()

    def follow(self, follower: Callable[[datetime], object]) -> None:
        """
        Call a function with the new time, now and whenever it changes.

        For code under test that reads `datetime.now()`: `jobs.clock.follow(frozen.move_to)` with freezegun or
        time-machine makes it see the test's time.
        """
        self._followers.append(follower)
        follower(self.now())

    def _tell(self) -> None:
        for follower in self._followers:
            follower(self.now())


class VirtualTime:
    """
    Virtual time on one loop at a time.

    Attributes:
        clock: What the loop's time is read from.
        patience_s: See `STUCK_S`.
        when_blocked: Asked when the loop has nothing to do for now; True when it has found something.
        on_stuck: Told when time cannot go on; True when it has passed the error to somebody who waits.
        describe: What is going on, for the message.
    """

    def __init__(self, clock: VirtualClock, real_io: RealIO = "wait") -> None:
        if real_io not in {"wait", "ignore"}:
            raise InvalidOptionError(
                f"real_io must be 'wait' or 'ignore', got {real_io!r}", option="real_io", value=real_io
            )
        self.clock = clock
        self.patience_s = STUCK_S
        self.when_blocked: Callable[[], bool] = lambda: False
        self.on_stuck: Callable[[TimeStuckError], bool] = lambda _: False
        self.describe: Callable[[], str] = lambda: ""
        self._real_io = real_io
        self._loop: asyncio.BaseEventLoop | None = None
        self._undo: list[Callable[[], None]] = []
        self._origin = 0
        self._working = 0
        self._excused: set[threading.Thread] = set()
        self._known_threads: set[threading.Thread] = set()
        self._settled: list[asyncio.Future[None]] = []
        self._waited_s = 0.0
        self._jumps = 0

    @property
    def loop(self) -> asyncio.BaseEventLoop | None:
        """The loop it is attached to."""
        return self._loop

    # --- attaching ----------------------------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        Make a loop's time virtual; attaching twice does nothing.

        Raises:
            InprocJobsError: Not one of asyncio's own loops: others (uvloop) read the time where nobody can reach it.
        """
        if loop is self._loop:
            return
        self.detach()
        selector = getattr(loop, "_selector", None)
        if not isinstance(loop, asyncio.BaseEventLoop) or selector is None:
            raise InprocJobsError(
                f"virtual time needs one of asyncio's own event loops, and this test runs on {type(loop).__module__}."
                f"{type(loop).__name__}; let tests run on the default loop (asyncio.DefaultEventLoopPolicy), or write the "
                "test as a plain function with the *_sync calls"
            )
        if "time" in vars(loop):
            raise InprocJobsError(
                "the time of this event loop is virtual already: two harnesses cannot share a loop; use one, or close the other"
            )
        self._loop = loop
        self._known_threads = set(threading.enumerate())
        # The clock goes on from the loop's own time, so that timers which are set already keep their distance; in whole
        # seconds, so that rounding does not depend on when the test was run.
        self._origin = math.ceil(loop.time() - self.clock.monotonic())
        self._patch(loop, "time", lambda: self._origin + self.clock.monotonic())
        # A timer fires when it is less than this ahead: the microseconds of the clock hit it exactly.
        resolution = getattr(loop, "_clock_resolution", 1e-9)
        setattr(loop, "_clock_resolution", RESOLUTION_S)  # noqa: B010  # asyncio's own, but not in its types
        self._undo.append(lambda: setattr(loop, "_clock_resolution", resolution))
        self._patch(selector, "select", self._virtual_select(selector))
        self._patch(loop, "run_in_executor", self._counting(loop.run_in_executor))

    def detach(self) -> None:
        """Give the loop its own time back."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._loop = None
        self._working = 0

    def _patch(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)
        self._undo.append(lambda: delattr(target, name))

    # --- what is real -------------------------------------------------------------------------------------------

    def _counting(self, run_in_executor: Callable[..., asyncio.Future[Any]]) -> Callable[..., asyncio.Future[Any]]:
        """`run_in_executor` that keeps time still until the thread has answered."""

        def run(executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            future = run_in_executor(executor, func, *args)
            self.hold()
            future.add_done_callback(lambda _: self.release())
            return future

        return run

    def hold(self) -> None:
        """Something real has begun: time stands still until `release`."""
        self._working += 1

    def release(self) -> None:
        """Something real has ended."""
        self._working = max(0, self._working - 1)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """This thread waits for the loop, so the loop need not wait for it."""
        me = threading.current_thread()
        self._excused.add(me)
        try:
            yield
        finally:
            self._excused.discard(me)

    def _real_work(self, selector: Any) -> str:
        """What may still happen outside of this loop, "" for nothing."""
        working = self._working - sum(not _is_seen(thread) for thread in self._excused)
        if working > 0:
            return f"{working} call(s) in threads or processes"
        for thread in threading.enumerate():
            if thread not in self._excused and self._is_working(thread):
                return f"the thread {thread.name!r}"
        return "" if self._real_io == "ignore" else self._open_channel(selector)

    def _is_working(self, thread: threading.Thread) -> bool:
        """Whether a thread that nobody has counted works for this loop."""
        idle = getattr(thread, "idle_workers", None)
        if idle is not None:  # anyio's, and so those of FastAPI's plain endpoints
            return getattr(thread, "loop", None) is self._loop and thread not in idle
        if thread in self._known_threads or thread is threading.current_thread():
            return False
        if thread.daemon:  # servers and the like, which never end; but asyncio waits for a process with one
            return "waitpid-" in thread.name
        return _is_seen(thread)

    def _open_channel(self, selector: Any) -> str:
        loop = self._loop
        if not hasattr(selector, "get_map"):  # Windows: operations in flight, one of which is the loop's own
            own = getattr(loop, "_self_reading_future", None)
            pending = [entry[0] for entry in getattr(selector, "_cache", {}).values() if entry[0] is not own]
            return "an operation on a socket or pipe" if pending else ""
        own_socket = getattr(loop, "_ssock", None)
        for key in selector.get_map().values():
            if (own_socket is None or key.fd != own_socket.fileno()) and not _is_listening(key.fd):
                return f"an open connection or pipe (fd {key.fd})"
        return ""

    # --- the jump -----------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Return once nothing more happens without time going on."""
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._settled.append(waiter)
        await waiter

    def progress(self) -> None:
        """A job has run: it is no idle ticking that makes time go on."""
        self._jumps = 0

    def _virtual_select(self, selector: Any) -> Callable[[float | None], Sequence[Any]]:
        select = selector.select

        def virtual(timeout: float | None = None) -> Sequence[Any]:
            if timeout is not None and timeout <= 0:
                self._waited_s = 0.0
                if not getattr(self._loop, "_ready", True):
                    self._jump()  # a timer that is due but for a rounding
                return select(0)  # type: ignore[no-any-return]
            # Asked before the look at the sockets: a thread that ends in between has left its news there by then.
            waiting_for = self._real_work(selector)
            ready: Sequence[Any] = select(0)
            if ready:
                self._waited_s = 0.0
                return ready
            if self.when_blocked():
                return ready
            if waiting_for:
                return self._wait_really(select, waiting_for)
            if self._tell_settled():
                return ready
            if timeout is None:
                return self._wait_really(select, "")
            self._waited_s = 0.0
            self._jump()
            return ready

        return virtual

    def _tell_settled(self) -> bool:
        """Everything is blocked: whoever waited for that goes on."""
        waiters, self._settled = self._settled, []
        waiting = [waiter for waiter in waiters if not waiter.done()]
        for waiter in waiting:
            waiter.set_result(None)
        return bool(waiting)

    def _jump(self) -> None:
        """To the next timer of the loop. The loop's own `timeout` is capped at a day, so the timer itself is asked."""
        self._jumps += 1
        if self._jumps > MAX_JUMPS:
            self._jumps = 0
            self._complain(
                f"the clock has jumped {MAX_JUMPS} times, to {self.clock.now():%Y-%m-%d %H:%M}, and no job has run: "
                "something ticks for ever, and what the test waits for does not come"
            )
            return
        scheduled = getattr(self._loop, "_scheduled", None)
        if scheduled:
            when = scheduled[0].when()
            self.clock.move_to(when - self._origin)
            # In floats of centuries a microsecond may make no difference; the timer has to be passed nevertheless.
            while self._origin + self.clock.monotonic() + RESOLUTION_S <= when:
                self.clock.nudge()

    def _wait_really(self, select: Callable[[float | None], Sequence[Any]], waiting_for: str) -> Sequence[Any]:
        """Give the real world a moment; complain when it takes too long. Not measured by a clock: it may be frozen."""
        step_s = min(0.02, 0.001 + self._waited_s / 10)
        ready = select(step_s)
        if ready:
            self._waited_s = 0.0
            return ready
        self._waited_s += step_s
        patience_s = self.patience_s if waiting_for or _others() else min(LONELY_S, self.patience_s)
        if self._waited_s > patience_s:
            self._waited_s = 0.0
            if waiting_for:
                cure = _CURES.get(waiting_for.split()[1], "")
                self._complain(f"for {patience_s:g} real seconds the loop has waited for {waiting_for}{cure}")
            else:
                self._complain("the test waits for something that nobody is going to do: there is no timer, no thread")
        return ready

    def _complain(self, what: str) -> None:
        told = self.describe()
        error = TimeStuckError(f"virtual time stands still: {what}" + (f"\n{told}" if told else ""))
        waiters, self._settled = self._settled, []
        waiting = [waiter for waiter in waiters if not waiter.done()]
        for waiter in waiting:
            waiter.set_exception(error)
        if not self.on_stuck(error) and not waiting:
            raise error


def _is_listening(fd: int) -> bool:
    """A socket that only waits for others to connect is no reason to wait for it."""
    try:
        with socket.socket(fileno=fd) as sock:
            try:
                return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            finally:
                sock.detach()
    except OSError:
        return False


def _is_seen(thread: threading.Thread) -> bool:
    """Whether `_is_working` finds this thread by itself; those of pools are counted call by call."""
    if hasattr(thread, "idle_workers"):
        return True
    target = getattr(thread, "_target", None)
    of_a_pool = getattr(target, "__module__", "").startswith("concurrent.futures") or type(
        thread
    ).__module__.startswith("concurrent.futures")
    return not (of_a_pool or thread.daemon or _is_pytest_timeout(thread))


def _is_pytest_timeout(thread: threading.Thread) -> bool:
    return thread.name.startswith("pytest_timeout")


def _others() -> bool:
    """Whether there are threads that could still wake the loop."""
    quiet = (threading.current_thread(), threading.main_thread())
    return any(thread not in quiet and not _is_pytest_timeout(thread) for thread in threading.enumerate())
