"""
Virtual time for tests: a loop that jumps to its next timer when nothing is ready, and a clock that reads from it.

`await asyncio.sleep(86400)` takes no time and everything that is due meanwhile runs in its order. Plain handlers run in
real threads; while one does, time stands still. The wall clock can be set apart from the monotonic one.

Not looptime: it steps through real time while a thread is busy, and it changes loops for the whole test session.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final

__all__ = ["START", "START_MS", "VirtualClock", "VirtualLoop", "virtual"]

START: Final = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
START_MS: Final = int(START.timestamp() * 1000)
STUCK_S: Final = 5.0
"""Real seconds without anything to wait for after which a test is told that it hangs."""


class VirtualClock:
    """The engine's clock: microseconds that only move when somebody moves them."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self.elapsed_us = 0
        self.wall_offset_ms = start_ms

    def now_ms(self) -> int:
        return self.wall_offset_ms + self.elapsed_us // 1000

    def monotonic(self) -> float:
        return self.elapsed_us / 1e6

    @property
    def elapsed_ms(self) -> int:
        """Monotonic milliseconds since the start."""
        return self.elapsed_us // 1000

    def step_wall(self, ms: int) -> None:
        """Somebody sets the wall clock; the monotonic one runs on. A suspended machine looks the same."""
        self.wall_offset_ms += ms

    def set_wall(self, moment: datetime) -> None:
        """Set the wall clock to a moment."""
        self.wall_offset_ms += (
            int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)) - self.now_ms()
        )

    def jump(self, ms: int) -> None:
        """Both clocks move at once, as if the loop had been blocked so long."""
        self.elapsed_us += ms * 1000


class _VirtualSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Polls for real; where it would have to wait, it moves the clock instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.is_held():
            return super().select(0.01)
        if timeout is None:
            ready = super().select(STUCK_S)
            if not ready:
                raise RuntimeError("nothing is left that could happen in this loop")
            return ready
        self.loop.jump_to_next_timer()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """
    Attributes:
        clock: What its time is read from.
        is_held: Whether time must stand still, since a thread works.
    """

    def __init__(self, clock: VirtualClock, is_held: Callable[[], bool] = lambda: False) -> None:
        selector = _VirtualSelector()
        selector.loop = self
        self.clock = clock
        self.is_held = is_held
        super().__init__(selector)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.clock.monotonic()

    def jump_to_next_timer(self) -> None:
        """Move the clock to where asyncio wants to wake up, however far that is."""
        when: float = self._scheduled[0]._when  # type: ignore[attr-defined]
        self.clock.elapsed_us = max(self.clock.elapsed_us, round(when * 1e6))


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test on virtual time; it must take the fixture `world`."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        world = fixtures["world"]
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(world.clock, world.has_busy_threads)) as runner:
            runner.run(test(**fixtures))

    return run
