"""What an exception that left a handler means for its job."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from inproc_jobs.core.durations import parse_ms
from inproc_jobs.errors import (
    InprocJobsError,
    InvalidDurationError,
    InvalidHandlerError,
    JobSignal,
    NoHandlerError,
    RateLimited,
    ResultNotStorableError,
    RetryLater,
    UnrecoverableError,
)
from inproc_jobs.runtime.tracebacks import reason_of, trace_of

if TYPE_CHECKING:
    from inproc_jobs.runtime.run import Run

__all__ = ["Failure", "Interrupted", "PutBack", "RemoteHandlerError", "read_failure"]


class RemoteHandlerError(InprocJobsError):
    """
    A handler in another process raised. Its text is the message alone, as it would be in this process.

    Attributes:
        type_name: Name of the exception's class.
        message: Its text.
        traceback_text: Its traceback, formatted over there.
        signal: What the handler asked for, if it raised a `JobSignal`, rebuilt here. None for an ordinary failure.
    """

    def __init__(self, type_name: str, message: str, traceback_text: str, signal: JobSignal | None) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text
        self.signal = signal


class Failure:
    """The attempt failed; texts are made when asked for, once."""

    __slots__ = ("error", "unrecoverable")

    def __init__(self, error: BaseException, unrecoverable: bool = False) -> None:
        self.error = error
        self.unrecoverable = unrecoverable

    def reason(self) -> str:
        """What is stored as the reason."""
        return reason_of(self.error)

    def trace(self) -> str:
        """What is stored as the stack trace; that of another process is kept as it came."""
        if isinstance(self.error, RemoteHandlerError):
            return self.error.traceback_text
        return trace_of(self.error)


class PutBack:
    """The handler asked to be run again later."""

    __slots__ = ("delay_ms", "rate_limit")

    def __init__(self, delay_ms: int, rate_limit: bool) -> None:
        self.delay_ms = delay_ms
        self.rate_limit = rate_limit


class Interrupted:
    """The engine is being stopped and has cancelled the run; the attempt does not count."""

    __slots__ = ()


def read_failure(error: BaseException, run: Run) -> Failure | PutBack | Interrupted:
    """
    Tell a failure from a wish.

    An error counts as unrecoverable by class or by the name of its class, as in BullMQ, so that one raised by a module
    that was loaded twice, or by the `bullmq` package, means the same.
    """
    if isinstance(error, asyncio.CancelledError) and run.cancelled and not run.timed_out:
        return Interrupted()
    # What a handler in another process raised is judged by its signal, but stored with the trace from over there.
    meant = error.signal if isinstance(error, RemoteHandlerError) and error.signal is not None else error
    if isinstance(meant, RetryLater | RateLimited):
        try:
            return PutBack(parse_ms(meant.delay, option="delay"), isinstance(meant, RateLimited))
        except InvalidDurationError as wrong:
            wrong.__cause__ = error
            return Failure(wrong, unrecoverable=True)
    # No other attempt cures these: the work was done, or nobody is there to do it (DESIGN 4, "No handler").
    if isinstance(meant, ResultNotStorableError | NoHandlerError | InvalidHandlerError):
        return Failure(error, unrecoverable=True)
    names = {cls.__name__ for cls in type(meant).__mro__}
    return Failure(error, unrecoverable=isinstance(meant, UnrecoverableError) or "UnrecoverableError" in names)
