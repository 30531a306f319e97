"""What the runtime needs from the rooms above it, as protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from inproc_jobs.core.events import Event
from inproc_jobs.core.job import Job
from inproc_jobs.runtime.handlers import Handler

__all__ = ["Handlers", "Listeners", "Log", "Strategy"]

Strategy = Callable[[int, BaseException, Job], "float | Awaitable[float | None] | None"]
"""A custom backoff: (attempts made, error, job) -> ms until the next attempt, None for no retry."""


class Handlers(Protocol):
    """Where the runtime finds what runs a job of a name."""

    def handler(self, name: str) -> Handler | None:
        """The handler of that name, None if it has none (any more)."""

    def strategy(self, name: str) -> Strategy | None:
        """The custom backoff of that name, None if it has none."""


class Listeners(Protocol):
    """Who wants the events of the core."""

    def deliver(self, events: Sequence[Event]) -> None:
        """Called on the engine's loop, outside its lock, in order. Must not raise."""

    def close(self) -> None:
        """The engine has stopped: after what was delivered there is nothing more."""


class Log(Protocol):
    """Where the engine says what its operator should know; `event` is a fixed text, the rest are fields."""

    def debug(self, event: str, **fields: Any) -> None:
        """For those who look for a fault of the engine itself."""

    def info(self, event: str, **fields: Any) -> None:
        """Worth knowing, nothing to do."""

    def warning(self, event: str, **fields: Any) -> None:
        """Somebody should look."""

    def error(self, event: str, **fields: Any) -> None:
        """Work was not done."""
