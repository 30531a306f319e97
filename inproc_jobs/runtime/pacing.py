"""An optional cap on starts per second, so that hundreds of overdue jobs do not start at once (case C66)."""

from __future__ import annotations

from collections import deque

__all__ = ["Pacer"]


class Pacer:
    """At most `per_second` starts in any second, over all queues of an engine."""

    __slots__ = ("_starts", "_window_ms", "per_window")

    def __init__(self, per_second: float) -> None:
        # Below one start per second the window grows instead: 0.5 is one start in two seconds.
        self.per_window = max(1, int(per_second))
        self._window_ms = 1000 * self.per_window / per_second
        self._starts: deque[int] = deque()

    def pause_ms(self, now_ms: int) -> float:
        """How long the next start has to wait; 0 for not at all. Cost: O(1) amortized."""
        starts = self._starts
        # A wall clock that was set back must not hold starts back with it.
        while starts and (starts[0] + self._window_ms <= now_ms or starts[0] > now_ms):
            starts.popleft()
        return starts[0] + self._window_ms - now_ms if len(starts) >= self.per_window else 0

    def count(self, now_ms: int) -> None:
        """A job was started."""
        self._starts.append(now_ms)
