"""
The port through which time comes in, and the system's clock behind it.

Two clocks, because each lies in its own way: the wall clock is stepped by people and NTP, the monotonic one stands
still while a Linux machine sleeps. Due times are wall-clock milliseconds; waiting is monotonic; `ClockWatch` compares.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ClockWatch", "SystemClock"]


class Clock(Protocol):
    """Where the engine reads the time. Both must be cheap and safe from any thread."""

    def now_ms(self) -> int:
        """Wall-clock time, ms since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class SystemClock:
    """The clocks of the operating system."""

    __slots__ = ()

    @staticmethod
    def now_ms() -> int:
        """Wall-clock time, ms since 1970."""
        return time.time_ns() // 1_000_000

    # The function itself, since every job reads it; and the real one, where a test library has frozen the module's.
    monotonic = staticmethod(time.monotonic)


class ClockWatch:
    """
    Notices that the wall clock was set back.

    A step forward looks the same as a suspended machine, so it counts as elapsed time: what became due runs. A step
    back would make every delay longer by the step, so it is reported once, for the core to move what was made from a
    duration (DESIGN 2.7).
    """

    __slots__ = ("_ahead_ms", "_clock")

    TOLERANCE_MS = 500
    """Below this NTP slews and rounding are at work, not a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._difference()

    def _difference(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000

    def step_back_ms(self) -> int:
        """
        How far the wall clock was set back since the last call, as a positive number; 0 for no step.

        Cost: two clock reads.
        """
        ahead = self._difference()
        lost = self._ahead_ms - ahead
        if lost < self.TOLERANCE_MS:
            # Forward steps and slews are taken over silently, so that a later step back is seen in full.
            self._ahead_ms = max(self._ahead_ms, ahead)
            return 0
        self._ahead_ms = ahead
        return round(lost)
