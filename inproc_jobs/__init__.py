"""
A job engine inside one Python process whose jobs behave as they would on BullMQ.

This module only knows where each public name lives; a name is loaded when it is first used (PEP 562). So
`import inproc_jobs` costs next to nothing, `import inproc_jobs.core` loads no asyncio, and redis is loaded by those
who ask for a snapshot in Redis.

A new public name goes into three places: `__all__` and the `TYPE_CHECKING` block, for people and type checkers, and
`_NAMES_OF`, for the interpreter. `tests/packaging/test_public_names.py` asserts that the three agree.
"""

from inproc_jobs._version import __version__

# Type checkers know this name wherever it comes from; importing typing would cost many times what this module does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from inproc_jobs.app.definition import JobDefinition, Registry, define_job
    from inproc_jobs.app.engine import Engine, RunSummary, StopReport, failed_jobs, retry_failed_job
    from inproc_jobs.app.flows import FlowNode, FlowReceipt
    from inproc_jobs.app.options import Deduplication
    from inproc_jobs.app.queue_view import QueueView
    from inproc_jobs.app.receipt import DispatchedJob
    from inproc_jobs.app.schedules import ScheduleView
    from inproc_jobs.app.views import FailedJob, JobView
    from inproc_jobs.core.states import JobState
    from inproc_jobs.errors import (
        BlockingCallError,
        EngineForkedError,
        EngineNotStartedError,
        EngineStoppedError,
        FailedJobNotFoundError,
        InprocJobsError,
        InvalidDurationError,
        InvalidHandlerError,
        InvalidJobIdError,
        InvalidOptionError,
        InvalidOptionTypeError,
        InvalidPayloadError,
        JobCommandError,
        JobFailedError,
        JobHasFailedChildrenError,
        JobIdTakenError,
        JobLockedError,
        JobLockMismatchError,
        JobLockMissingError,
        JobNotFoundError,
        JobNotInStateError,
        JobPendingChildrenError,
        JobRemovedError,
        JobSchedulerError,
        JobSignal,
        JobTimeoutError,
        LeaseHeldError,
        LeaseLostError,
        NoEngineError,
        NoHandlerError,
        ParentJobError,
        QueueBusyError,
        QueueFullError,
        QueueNotOwnedError,
        RateLimited,
        ReentrantCallError,
        ResultNotStorableError,
        RetryLater,
        SnapshotError,
        SnapshotLayoutError,
        SnapshotUnavailableError,
        UnrecoverableError,
        WouldDeadlockError,
    )
    from inproc_jobs.observe.listeners import EngineEvent
    from inproc_jobs.observe.logs import JobLogFilter
    from inproc_jobs.runtime.context import JobContext
    from inproc_jobs.snapshot.config import RedisSnapshot, SqliteSnapshot

__all__ = [
    "BlockingCallError",
    "Deduplication",
    "DispatchedJob",
    "Engine",
    "EngineEvent",
    "EngineForkedError",
    "EngineNotStartedError",
    "EngineStoppedError",
    "FailedJob",
    "FailedJobNotFoundError",
    "FlowNode",
    "FlowReceipt",
    "InprocJobsError",
    "InvalidDurationError",
    "InvalidHandlerError",
    "InvalidJobIdError",
    "InvalidOptionError",
    "InvalidOptionTypeError",
    "InvalidPayloadError",
    "JobCommandError",
    "JobContext",
    "JobDefinition",
    "JobFailedError",
    "JobHasFailedChildrenError",
    "JobIdTakenError",
    "JobLockMismatchError",
    "JobLockMissingError",
    "JobLockedError",
    "JobLogFilter",
    "JobNotFoundError",
    "JobNotInStateError",
    "JobPendingChildrenError",
    "JobRemovedError",
    "JobSchedulerError",
    "JobSignal",
    "JobState",
    "JobTimeoutError",
    "JobView",
    "LeaseHeldError",
    "LeaseLostError",
    "NoEngineError",
    "NoHandlerError",
    "ParentJobError",
    "QueueBusyError",
    "QueueFullError",
    "QueueNotOwnedError",
    "QueueView",
    "RateLimited",
    "RedisSnapshot",
    "ReentrantCallError",
    "Registry",
    "ResultNotStorableError",
    "RetryLater",
    "RunSummary",
    "ScheduleView",
    "SnapshotError",
    "SnapshotLayoutError",
    "SnapshotUnavailableError",
    "SqliteSnapshot",
    "StopReport",
    "UnrecoverableError",
    "WouldDeadlockError",
    "__version__",
    "define_job",
    "failed_jobs",
    "retry_failed_job",
]

# Module, then the public names that live there.
_NAMES_OF = {
    "inproc_jobs.app.definition": "JobDefinition Registry define_job",
    "inproc_jobs.app.engine": "Engine RunSummary StopReport failed_jobs retry_failed_job",
    "inproc_jobs.app.options": "Deduplication",
    "inproc_jobs.app.receipt": "DispatchedJob",
    "inproc_jobs.app.queue_view": "QueueView",
    "inproc_jobs.app.views": "FailedJob JobView",
    "inproc_jobs.app.flows": "FlowNode FlowReceipt",
    "inproc_jobs.app.schedules": "ScheduleView",
    "inproc_jobs.observe.listeners": "EngineEvent",
    "inproc_jobs.observe.logs": "JobLogFilter",
    "inproc_jobs.snapshot.config": "RedisSnapshot SqliteSnapshot",
    "inproc_jobs.core.states": "JobState",
    "inproc_jobs.errors": """
        BlockingCallError EngineForkedError EngineNotStartedError EngineStoppedError FailedJobNotFoundError
        InprocJobsError InvalidDurationError InvalidHandlerError InvalidJobIdError InvalidOptionError
        InvalidOptionTypeError InvalidPayloadError JobCommandError JobFailedError JobHasFailedChildrenError
        JobIdTakenError JobLockMismatchError JobLockMissingError JobLockedError JobNotFoundError JobNotInStateError
        JobPendingChildrenError JobRemovedError JobSchedulerError JobSignal JobTimeoutError NoEngineError
        NoHandlerError ParentJobError QueueBusyError QueueFullError QueueNotOwnedError RateLimited ResultNotStorableError RetryLater
        UnrecoverableError WouldDeadlockError LeaseHeldError LeaseLostError SnapshotError SnapshotLayoutError
        SnapshotUnavailableError ReentrantCallError
    """,
    "inproc_jobs.runtime.context": "JobContext",
}
_HOME_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

if not TYPE_CHECKING:  # a module-level __getattr__ would make type checkers accept every misspelled name

    def __getattr__(name: str) -> object:
        """Load a public name from the module that defines it, and keep it here."""
        try:
            home = _HOME_OF[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        from importlib import import_module

        value = globals()[name] = getattr(import_module(home), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
