"""
What BullMQ's `Worker` does around a processor, without its loop: one turn at a time (spec sections 6.5, 8.2 and 9).

The core has the rules about jobs; these are the rules about a worker: that it remembers until when it is limited, what
it knows of a job it has taken, in which order it tries what when the end of a job is refused, and that it makes the
next iteration of a scheduler. Programs that speak BullMQ's language run on this; our own runtime is simpler, since it
cannot lose a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from inproc_jobs.core.backoff import BUILTIN_BACKOFFS, wants_retry
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job, Repeat
from inproc_jobs.core.options import DEFAULT_WORKER, Backoff, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.schedulers import NextMatch
from inproc_jobs.errors import InprocJobsError, InvalidOptionError, JobHasFailedChildrenError

__all__ = ["Failure", "Held", "Strategy", "Turn", "TurnReport", "WorkerTurns"]

MOVED: Final = frozenset(("DelayedError", "WaitingError", "WaitingChildrenError"))
"""Names of errors that say: I have put this job elsewhere myself."""
RATE_LIMITED: Final = "bullmq:rateLimitExceeded"
_LEGACY: Final = "https://docs.bullmq.io/guide/migrations/migrate-from-v5-to-v6"

Strategy = Callable[[int, str, Job], float | None]
"""(attempts made, type, job) -> delay in ms, -1 for no retry: a worker's own backoff strategy."""


class Failure(msgspec.Struct, frozen=True):
    """
    An error as JavaScript sees it.

    Attributes:
        message: None where the thrown thing has none.
        name: Its `name`; "UnrecoverableError" means: do not retry.
        stack: Its trace, None for what has none.
    """

    message: str | None
    name: str = "Error"
    stack: str | None = None

    @property
    def unrecoverable(self) -> bool:
        """Whether it forbids a retry."""
        return self.name == "UnrecoverableError"


class Held:
    """
    A job as its worker knows it: as it was when it was delivered, however it may have changed since.

    Attributes:
        job: A copy of the record.
        token: What it was locked with.
    """

    __slots__ = ("job", "token")

    def __init__(self, job: Job, token: Any) -> None:
        self.job = frozen_copy(job)
        self.token = token


class Turn(msgspec.Struct, frozen=True):
    """What a processor did: `failure` if it threw, else `result` as JSON text."""

    result: bytes = b"null"
    failure: Failure | None = None


class TurnReport(msgspec.Struct):
    """One turn: which job, whether its processor was called, what the worker reported about it, and its errors."""

    held: Held
    processor_ran: bool = False
    emitted: list[str] = []


class WorkerTurns:
    """
    One worker of one queue.

    Attributes:
        limited_until_ms: Until when it does not ask, since it was told that the queue is rate limited.
        errors: Messages of what it reports through its `error` event; whoever listens takes them.
    """

    def __init__(
        self,
        core: Core,
        queue: Queue,
        options: WorkerOptions = DEFAULT_WORKER,
        *,
        strategy: Strategy | None = None,
        next_match: NextMatch | None = None,
    ) -> None:
        self.core = core
        self.queue = queue
        self.options = options
        self.strategy = strategy
        self.next_match = next_match
        self.limited_until_ms: float = 0
        self.errors: list[str] = []

    # --- getting a job ------------------------------------------------------------------------------------------

    def next(self, now_ms: int, token: Any) -> Held | None:
        """Ask for work once; not at all while the queue is known to be rate limited."""
        if self.limited_until_ms > now_ms:
            return None
        job = self.core.fetch(self.queue, now_ms, token, self.options)
        return self.deliver(job, now_ms, token, self.options)

    def deliver(self, job: Job | None, now_ms: int, token: Any, asked_with: WorkerOptions | None) -> Held | None:
        """
        Take the answer to a request for work: remember what it said about limits, make a scheduler's next iteration.

        Args:
            job: What the core has started, if anything.
            asked_with: Options with which it was asked; None where the answer says nothing about limits.
        """
        self.limited_until_ms = 0
        if job is None:
            if asked_with is not None:
                self.limited_until_ms = self.core.limited_until_ms(self.queue, now_ms, asked_with)
            return None
        held = Held(job, token)
        return held if self._schedule_next(job, now_ms) else None

    def _schedule_next(self, job: Job, now_ms: int) -> bool:
        """False if that failed: then the job is not processed, and stays active until it stalls."""
        scheduler_id = job.extra.scheduler_id if job.extra is not None else None
        if scheduler_id is None:
            return True
        if has_legacy_shape(scheduler_id) and scheduler_id not in self.queue.schedulers:
            self.errors.append(f"Failed to add repeatable job for next iteration: {legacy_error(scheduler_id)}")
            return True
        try:
            self._check_repeat(job.extra.repeat if job.extra is not None else None)
            self.core.schedule_next(self.queue, job, now_ms, self.next_match)
        except (InprocJobsError, ValueError) as error:
            self.errors += [str(error), f"Failed to add repeatable job for next iteration: {error}"]
            return False
        return True

    @staticmethod
    def _check_repeat(repeat: Repeat | None) -> None:
        if repeat is None:
            raise InvalidOptionError("Cannot destructure property 'every' of 'repeatOpts' as it is undefined.")

    # --- ending a job -------------------------------------------------------------------------------------------

    def complete(
        self, held: Held, result: bytes, now_ms: int, token: Any, *, taker: WorkerTurns | None = None
    ) -> Held | None:
        """
        Complete a job.

        Args:
            taker: Worker that takes the next job in the same call; None takes none. The call is made with the options
                of this worker all the same, as BullMQ's job objects belong to the worker that delivered them.

        Raises:
            JobCommandError: What `Core.complete` raises.
        """
        following = self.core.complete(
            self.queue, held.job.id, result, now_ms, token, worker=self.options, fetch_next=taker is not None
        )
        held.job.attempts_made += 1
        return taker.deliver(following, now_ms, token, self.options) if taker is not None else None

    def fail(
        self,
        held: Held,
        failure: Failure,
        now_ms: int,
        token: Any,
        *,
        taker: WorkerTurns | None = None,
        draw: float = 0.0,
    ) -> Held | None:
        """
        Fail an attempt; whether it is retried is up to what the job was when it was delivered.

        Raises:
            InvalidOptionError: Its backoff is of a type that nobody knows. The job stays active.
            JobCommandError: What `Core.fail` raises.
        """
        job = held.job
        strategy_delay = self._strategy_delay(job, failure)
        known = frozen_copy(job)
        if failure.stack is not None:
            # The worker's copy keeps the trace even if the queue refuses the failure.
            job.more().stacktrace.append(failure.stack)
        following = self.core.fail(
            self.queue,
            job.id,
            failure.message,
            failure.stack,
            now_ms,
            token,
            unrecoverable=failure.unrecoverable,
            draw=draw,
            strategy_delay=strategy_delay,
            held=known,
            worker=self.options,
            fetch_next=taker is not None,
        )
        delay = self.core.retry_delay(known, self.options, failure.unrecoverable, draw, strategy_delay)
        job.attempts_made += 1
        if taker is None or delay == 0:
            return None
        # Only a final failure answers with what it knows of limits; a retry with a delay answers a job or nothing.
        return taker.deliver(following, now_ms, token, self.options if delay is None else None)

    def _strategy_delay(self, job: Job, failure: Failure) -> float | None:
        """Ask the worker's own strategy where the job is going to be retried by one."""
        backoff = job.opts.backoff
        if backoff is None or not wants_retry(
            job.opts,
            job.attempts_made,
            job.attempts_started,
            self.options.max_started_attempts,
            failure.unrecoverable,
        ):
            return None
        if backoff.type in BUILTIN_BACKOFFS:
            return None
        if self.strategy is None:
            raise unknown_strategy(backoff)
        return self.strategy(job.attempts_made + 1, backoff.type, job)

    # --- a whole turn -------------------------------------------------------------------------------------------

    def work(self, now_ms: int, token: Any, process: Callable[[Held], Turn], *, draw: float = 0.0) -> TurnReport | None:
        """Take a job, run it, and end it as BullMQ's worker does, without taking another."""
        held = self.next(now_ms, token)
        if held is None:
            return None
        report = TurnReport(held)
        reason = self._reason_to_refuse(held.job)
        if reason is not None:
            unseen = Failure(reason, "UnrecoverableError", reason)
            if not self._try(lambda: self._handle_failed(report, unseen, now_ms, draw)):
                self._try(lambda: self._handle_failed(report, unseen, now_ms, draw))
            return report
        report.processor_ran = True
        turn = process(held)
        failure = turn.failure
        if failure is None:
            try:
                self.complete(held, turn.result, now_ms, held.token)
            except InprocJobsError as error:
                self.errors.append(str(error))
                failure = as_failure(error)
            else:
                report.emitted.append("completed")
                return report
        thrown = failure
        self._try(lambda: self._handle_failed(report, thrown, now_ms, draw))
        return report

    def _reason_to_refuse(self, job: Job) -> str | None:
        if job.extra is not None and job.extra.deferred_failure:
            return job.extra.deferred_failure
        limit = self.options.max_started_attempts
        return "job started more than allowable limit" if limit and limit < job.attempts_started else None

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except (InprocJobsError, LookupError) as error:
            self.errors.append(str(error))
            return False
        return True

    def _handle_failed(self, report: TurnReport, failure: Failure, now_ms: int, draw: float) -> None:
        held = report.held
        if failure.message == RATE_LIMITED:
            left = self.core.move_to_wait(self.queue, held.job.id, now_ms, held.token)
            self.limited_until_ms = now_ms + left if left > 0 else 0
        elif failure.name not in MOVED:
            self.fail(held, failure, now_ms, held.token, draw=draw)
            report.emitted.append("failed")


def frozen_copy(job: Job) -> Job:
    """A job record that does not change when the stored one does."""
    extra = job.extra
    copied = msgspec.structs.replace(extra, stacktrace=list(extra.stacktrace)) if extra is not None else None
    return msgspec.structs.replace(job, extra=copied)


def as_failure(error: InprocJobsError) -> Failure:
    """An error of the core as the failure of a job."""
    name = "UnrecoverableError" if isinstance(error, JobHasFailedChildrenError) else "Error"
    return Failure(str(error), name, str(error))


def unknown_strategy(backoff: Backoff) -> InvalidOptionError:
    """The error of a backoff type without a strategy, in BullMQ's words."""
    return InvalidOptionError(
        f"Unknown backoff strategy {backoff.type}.\n      If a custom backoff strategy is used, specify it when the "
        "queue is created.",
        option="backoff",
        value=backoff.type,
    )


def legacy_error(key: str) -> str:
    """What BullMQ 6 says about a repeatable job of old versions."""
    return (
        f'Legacy repeatable job metadata is not supported in BullMQ v6 (key: "{key}"). Migrate legacy repeatable jobs '
        f"to Job Schedulers before upgrading. See {_LEGACY}"
    )


def has_legacy_shape(key: str) -> bool:
    """
    Whether a scheduler's id looks like the key of a repeatable job of BullMQ 5: `name:id:end:tz:cron-or-interval`.

    >>> has_legacy_shape("a:b::UTC:* * * * *"), has_legacy_shape("a:b:c:d:e")
    (True, False)
    """
    parts = key.split(":", 4)
    if len(parts) < 5 or not parts[4]:
        return False
    if parts[2] and not (parts[2].isascii() and parts[2].isdigit()):
        return False
    return " " in parts[4] or (parts[4].isascii() and parts[4].isdigit())
