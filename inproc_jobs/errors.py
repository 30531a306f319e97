"""
Every error of the package, and the signals a handler raises to steer its own job.

Errors share the root `InprocJobsError`, end in Error, carry the culprit as attributes and inherit the built-in
that callers would catch (`LookupError`, `ValueError`, ...). Signals are a family of their own (`JobSignal`): they
are not failures of the engine, and `except InprocJobsError` must not swallow them inside a handler.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BlockingCallError",
    "EngineForkedError",
    "EngineNotStartedError",
    "EngineStoppedError",
    "FailedJobNotFoundError",
    "InprocJobsError",
    "InvalidDurationError",
    "InvalidHandlerError",
    "InvalidJobIdError",
    "InvalidOptionError",
    "InvalidOptionTypeError",
    "InvalidPayloadError",
    "JobCommandError",
    "JobFailedError",
    "JobHasFailedChildrenError",
    "JobIdTakenError",
    "JobLockMismatchError",
    "JobLockMissingError",
    "JobLockedError",
    "JobNotFoundError",
    "JobNotInStateError",
    "JobPendingChildrenError",
    "JobRemovedError",
    "JobSchedulerError",
    "JobSignal",
    "JobTimeoutError",
    "LeaseHeldError",
    "LeaseLostError",
    "NoEngineError",
    "NoHandlerError",
    "ParentJobError",
    "QueueBusyError",
    "QueueFullError",
    "QueueNotOwnedError",
    "RateLimited",
    "ReentrantCallError",
    "ResultNotStorableError",
    "RetryLater",
    "SnapshotError",
    "SnapshotLayoutError",
    "SnapshotUnavailableError",
    "UnrecoverableError",
    "WouldDeadlockError",
]


class InprocJobsError(Exception):
    """Root of all errors of this package."""


# --- what was asked for is wrong; nothing has changed -----------------------------------------------------------


class InvalidOptionError(InprocJobsError, ValueError):
    """
    An option has a value that is not allowed. Nothing has changed.

    Attributes:
        option: Name of the option as the caller wrote it.
        value: The refused value.
    """

    def __init__(self, message: str, *, option: str = "", value: Any = None) -> None:
        super().__init__(message)
        self.option = option
        self.value = value


class InvalidOptionTypeError(InvalidOptionError, TypeError):
    """An option has a value of the wrong type, such as `True` where a whole number is meant."""


class InvalidDurationError(InvalidOptionTypeError):
    """A duration is neither text such as "30s" nor a timedelta, is negative, or is finer than a millisecond."""


class InvalidJobIdError(InvalidOptionTypeError):
    """A job id is not text, too long, looks like an automatic id, or names a key of the layout."""


class InvalidHandlerError(InprocJobsError, TypeError):
    """The callable given to `define_job` cannot be used as a handler."""


class InvalidPayloadError(InprocJobsError, TypeError, ValueError):
    """
    A payload, result or progress value is not JSON. Nothing has changed.

    Attributes:
        path: Where the culprit is, such as `payload.items[3].price`.
        value: The culprit.
    """

    def __init__(self, message: str, *, path: str = "", value: Any = None) -> None:
        super().__init__(message)
        self.path = path
        self.value = value


class JobIdTakenError(InprocJobsError, ValueError):
    """
    A job of another name has this id and is alive or kept, so the dispatch would be swallowed.

    Attributes:
        id: The id asked for.
        name: Name of the job that has it.
        state: State of that job.
    """

    def __init__(self, id: str, name: str, state: str) -> None:
        super().__init__(
            f"job id {id!r} is taken by a job named {name!r} (state {state!s}); "
            "put the job name into the id, or use another queue"
        )
        self.id = id
        self.name = name
        self.state = state


class QueueFullError(InprocJobsError):
    """
    The queue holds `max_waiting` jobs already. Nothing was added.

    Attributes:
        queue: Name of the queue.
        max_waiting: The bound.
    """

    def __init__(self, queue: str, max_waiting: int) -> None:
        super().__init__(
            f"queue {queue!r} is full: max_waiting={max_waiting} jobs wait already; "
            "try again later, or raise max_waiting in Engine(queues=...)"
        )
        self.queue = queue
        self.max_waiting = max_waiting


# --- which engine, and in which condition -----------------------------------------------------------------------


class NoEngineError(InprocJobsError, LookupError):
    """No engine serves the registry of this job."""


class EngineStoppedError(InprocJobsError, RuntimeError):
    """The engine was stopped; it takes no dispatch, and answers no waiter, until it is started again."""


class EngineNotStartedError(InprocJobsError, RuntimeError):
    """The engine has a snapshot and was not started: until the store is read nobody knows which ids are alive."""


class EngineForkedError(InprocJobsError, RuntimeError):
    """The process was forked after the engine was made; the child has no runner and must make its own engine."""


class BlockingCallError(InprocJobsError, RuntimeError):
    """The call would block a running event loop; the message names the async twin."""


class ReentrantCallError(InprocJobsError, RuntimeError):
    """
    The call came in the middle of another one of the same thread: from a signal handler, a `__del__`, or a log handler
    that the garbage collector has set off. Nothing has changed; hand the work to the loop or to another thread.
    """


class WouldDeadlockError(InprocJobsError, RuntimeError):
    """A handler awaits a result that can never come, since every slot that could run it waits alike."""


class NoHandlerError(InprocJobsError, LookupError):
    """A job reached its turn and its name has no handler."""


# --- snapshots ---------------------------------------------------------------------------------------------------


class SnapshotError(InprocJobsError):
    """Root of what can go wrong with a snapshot."""


class SnapshotUnavailableError(SnapshotError, ConnectionError):
    """
    The store cannot be used right now: away, loading, read-only, full, or too slow.

    Attributes:
        outcome: "not written", or "unknown" when the write may still have arrived; dispatch again with the same
            `job_id` in both cases.
    """

    def __init__(self, message: str, *, outcome: str = "not written") -> None:
        super().__init__(message)
        self.outcome = outcome


class LeaseHeldError(SnapshotError, RuntimeError):
    """
    Another engine owns the store.

    Attributes:
        host, pid, since: Who, and since when (an aware datetime, None if unknown).
    """

    def __init__(self, message: str, *, host: str = "", pid: int = 0, since: Any = None) -> None:
        super().__init__(message)
        self.host = host
        self.pid = pid
        self.since = since


class LeaseLostError(SnapshotError, RuntimeError):
    """This engine was the owner of its store and is no longer: it stops, and has written nothing since."""


class QueueNotOwnedError(SnapshotError, RuntimeError):
    """
    The queue was in the store when the engine started, and belongs to others: the engine has not taken it over.

    Attributes:
        queue: Its name.
    """

    def __init__(self, message: str, *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


class SnapshotLayoutError(SnapshotError):
    """What the store holds is of a newer layout, or of a kind that is not ours. Nothing was touched."""


# --- the fate of one job ----------------------------------------------------------------------------------------


class JobFailedError(InprocJobsError):
    """
    The job that was waited for has failed for good.

    Attributes:
        id, name, queue: Which job.
        reason: Message of the last error, as stored.
        stacktrace: Stored stack traces, oldest first.
    """

    def __init__(self, id: str, name: str, queue: str, reason: str, stacktrace: tuple[str, ...] = ()) -> None:
        super().__init__(f"job {id!r} ({name}) in queue {queue!r} failed: {reason}")
        self.id = id
        self.name = name
        self.queue = queue
        self.reason = reason
        self.stacktrace = stacktrace


class JobRemovedError(InprocJobsError, LookupError):
    """The job that was waited for was removed before it could end."""

    def __init__(self, id: str, name: str, queue: str) -> None:
        super().__init__(f"job {id!r} ({name}) in queue {queue!r} was removed before it ended")
        self.id = id
        self.name = name
        self.queue = queue


class JobTimeoutError(InprocJobsError, TimeoutError):
    """One attempt took longer than the job's `timeout`. Counts as a failure of that attempt."""


class ResultNotStorableError(InprocJobsError):
    """The handler did its work but returned what is not JSON; the job fails without a retry."""


# --- refused commands, with BullMQ's numbers ---------------------------------------------------------------------


class JobCommandError(InprocJobsError):
    """
    A command on a job was refused; the text and the number are BullMQ's.

    Attributes:
        code: BullMQ's number of the error, 0 where BullMQ has none.
        id: The job, "" where the command was about a queue.
    """

    code: ClassVar[int] = 0

    def __init__(self, message: str, *, id: str = "") -> None:
        super().__init__(message)
        self.id = id


class JobNotFoundError(JobCommandError, LookupError):
    """The job does not exist, or no longer."""

    code = -1


class FailedJobNotFoundError(JobNotFoundError):
    """There is no failed job with this id."""


class JobLockMissingError(JobCommandError):
    """The job is not locked any more: its lock ran out, or somebody else ended it."""

    code = -2


class JobNotInStateError(JobCommandError):
    """The command needs the job in another state."""

    code = -3


class JobPendingChildrenError(JobCommandError):
    """The parent cannot complete: children are pending."""

    code = -4


class ParentJobError(JobCommandError):
    """
    The parent named in the options is missing, or the job belongs to another parent.

    Attributes:
        code: -5 (missing) or -7 (cannot be replaced), per instance.
    """

    code = -5

    def __init__(self, message: str, *, id: str = "", code: int = -5) -> None:
        super().__init__(message, id=id)
        self.code = code  # type: ignore[misc]  # one class, two of BullMQ's numbers


class JobLockMismatchError(JobCommandError):
    """The job is locked by somebody else."""

    code = -6


class JobHasFailedChildrenError(JobCommandError):
    """The parent cannot complete: a child has failed."""

    code = -9


class JobSchedulerError(JobCommandError):
    """
    The job belongs to a scheduler, or the scheduler cannot place its next job.

    Attributes:
        code: -8, -10 or -11, per instance.
    """

    code = -8

    def __init__(self, message: str, *, id: str = "", code: int = -8) -> None:
        super().__init__(message, id=id)
        self.code = code  # type: ignore[misc]  # one class, three of BullMQ's numbers


class JobLockedError(JobCommandError):
    """The job is being worked on and cannot be removed."""


class QueueBusyError(JobCommandError):
    """The queue has active jobs, so it cannot be obliterated."""


# --- what a handler raises to steer ------------------------------------------------------------------------------


class JobSignal(Exception):  # noqa: N818  # not an error: control flow chosen by the handler
    """Root of what a handler raises on purpose."""


class UnrecoverableError(JobSignal):
    """Fail for good at once, whatever attempts are left."""


class RetryLater(JobSignal):
    """
    Run this job again after a delay, without using up an attempt (BullMQ: `moveToDelayed` and `DelayedError`).

    Args:
        delay: "30s", a timedelta, or an int of milliseconds.
    """

    def __init__(self, delay: Any, message: str = "") -> None:
        super().__init__(message or f"retry later: {delay!r}")
        self.delay = delay


class RateLimited(JobSignal):
    """
    Put this job back and start no job of its queue until the delay is over; no attempt is used up.

    Args:
        delay: "30s", a timedelta, or an int of milliseconds.
    """

    def __init__(self, delay: Any, message: str = "") -> None:
        super().__init__(message or f"rate limited: {delay!r}")
        self.delay = delay
