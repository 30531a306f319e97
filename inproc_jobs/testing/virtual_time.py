"""
Virtual time for a running event loop: where it would wait for a timer, the clock jumps there instead.

It is attached to a loop that exists already (that of pytest-asyncio or anyio), since the code under test has its own
objects on that loop; a loop of another class, as other libraries offer it, would come too late. Everything that reads
`loop.time()` is virtual then: `asyncio.sleep`, `wait_for`, `timeout`, `call_later`.

Time stands still while a thread works for the loop, or a socket is open that may still bring something: what they do is
real, and a jump would make it look slow.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from inproc_jobs.errors import InprocJobsError

__all__ = ["STUCK_S", "TimeStuckError", "VirtualClock", "VirtualTime"]

STUCK_S: Final = 10.0
"""Real seconds that a thread or a socket may keep time from moving before the test is told what it waits for."""

# Bound at import, so that a library that freezes the `time` module cannot freeze this one (case C116).
_real_monotonic = time.monotonic
_select = selectors.DefaultSelector


class TimeStuckError(InprocJobsError):
    """Time cannot go on: something real is awaited and does not come."""


class VirtualClock:
    """
    The clock of an engine under test: moves only when somebody moves it.

    Kept in whole microseconds: floats would lose the milliseconds of delays of years.
    """

    __slots__ = ("_elapsed_us", "_wall_us")

    def __init__(self, start: datetime) -> None:
        self._elapsed_us = 0
        self._wall_us = round(start.timestamp() * 1_000_000)

    def now_ms(self) -> int:
        """Wall-clock time, ms since 1970."""
        return (self._wall_us + self._elapsed_us) // 1000

    def now(self) -> datetime:
        """Wall-clock time, UTC."""
        return datetime.fromtimestamp((self._wall_us + self._elapsed_us) / 1_000_000, UTC)

    def monotonic(self) -> float:
        """Seconds since the test began."""
        return self._elapsed_us / 1_000_000

    def move(self, ms: float) -> None:
        """Both clocks go on."""
        self._elapsed_us += max(0, round(ms * 1000))

    def move_to(self, seconds: float) -> None:
        """Go on until `monotonic` has reached `seconds`; never back."""
        self._elapsed_us = max(self._elapsed_us, round(seconds * 1_000_000))

    def step_wall(self, ms: int) -> None:
        """Somebody sets the wall clock by so much; no time passes."""
        self._wall_us += ms * 1000


class VirtualTime:
    """
    Virtual time on one loop at a time.

    Attributes:
        clock: What the loop's time is read from.
        jumps: How often the clock has jumped.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.jumps = 0
        self._loop: asyncio.BaseEventLoop | None = None
        self._undo: list[Callable[[], None]] = []
        self._working = 0
        self._stuck_since: float | None = None

    @property
    def loop(self) -> asyncio.BaseEventLoop | None:
        """The loop it is attached to."""
        return self._loop

    @property
    def busy(self) -> bool:
        """Whether a thread works for the loop."""
        return self._working > 0

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
                f"virtual time needs one of asyncio's own loops, got {type(loop).__name__}; use the default event loop policy "
                "in tests, or the `jobs` fixture's *_sync calls from a plain test"
            )
        self._loop = loop
        # The clock goes on from the loop's own time, so that timers which are set already keep their distance.
        self._origin = loop.time() - self.clock.monotonic()
        self._patch(loop, "time", lambda: self._origin + self.clock.monotonic())
        self._patch(selector, "select", self._virtual_select(selector))
        self._patch(loop, "run_in_executor", self._counting(loop.run_in_executor))

    def detach(self) -> None:
        """Give the loop its own time back."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._loop = None

    def _patch(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)
        self._undo.append(lambda: delattr(target, name))

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
        self._working -= 1

    def _virtual_select(self, selector: Any) -> Callable[[float | None], Sequence[Any]]:
        select = selector.select

        def virtual(timeout: float | None = None) -> Sequence[Any]:
            ready: Sequence[Any] = select(0)
            if ready or (timeout is not None and timeout <= 0):
                self._stuck_since = None
                return ready
            waiting_for = self._real_work(selector)
            if waiting_for or timeout is None:
                return self._wait_really(select, waiting_for)
            self._stuck_since = None
            self.jumps += 1
            self._jump()
            return ready

        return virtual

    def _jump(self) -> None:
        """To the next timer of the loop. Its own `timeout` is capped at a day, so the timer itself is asked."""
        loop = self._loop
        assert loop is not None
        scheduled = getattr(loop, "_scheduled", [])
        if scheduled:
            # A hair later, or rounding to microseconds could leave the timer just ahead for ever.
            self.clock.move_to(scheduled[0].when() - self._origin + 1e-6)

    def _real_work(self, selector: Any) -> str:
        """What may still happen outside of this loop, "" for nothing."""
        if self._working:
            return f"{self._working} call(s) in threads"
        own = getattr(self._loop, "_ssock", None)
        for key in selector.get_map().values():
            if key.fileobj is not own and (own is None or key.fd != own.fileno()) and not _is_listening(key.fd):
                return f"an open connection or pipe (fd {key.fd})"
        return ""

    def _wait_really(self, select: Callable[[float | None], Sequence[Any]], waiting_for: str) -> Sequence[Any]:
        """Give the real world a moment; complain when it takes too long."""
        ready = select(0.02)
        now = _real_monotonic()
        if ready:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > STUCK_S:
            self._stuck_since = None
            what = waiting_for or "something that nobody is going to do: no timer, no thread and no connection is left"
            raise TimeStuckError(f"virtual time stands still: the loop waits for {what}")
        return ready


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
