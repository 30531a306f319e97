"""
Job schedulers (spec section 11): one pending iteration each; the next is made when that one starts.

The core knows intervals itself. When a cron pattern matches next is asked of a callable that the driver hands in
(`NextMatch`): cron is another library's work, and the core has no time zones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from inproc_jobs.core.administration import AdministrationFloor
from inproc_jobs.core.containers import page
from inproc_jobs.core.job import ABSOLUTE_DUE, CUSTOM_ID, LIFO, Job, Repeat
from inproc_jobs.core.options import JobOptions
from inproc_jobs.core.queue import Queue, Scheduler
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import JobSchedulerError

__all__ = ["NextMatch", "SchedulersFloor"]

NextMatch: TypeAlias = Callable[[Repeat, int], int | None]
"""(schedule, ms) -> the first match strictly after that moment, or None if there is none."""

_PENDING = frozenset((JobState.DELAYED, JobState.PRIORITIZED, JobState.WAITING))
_MAX_SLOT_SCANS = 32
_TAKEN = "Cannot create job scheduler iteration - job ID already exists. addJobScheduler"


class SchedulersFloor(AdministrationFloor):
    """Schedulers and their iterations."""

    def upsert_scheduler(
        self,
        queue: Queue,
        id: str,
        name: str,
        data: bytes,
        repeat: Repeat,
        opts: JobOptions,
        now_ms: int,
        *,
        next_match: NextMatch | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> Job | None:
        """
        Make a scheduler, or replace it together with its pending iteration.

        Args:
            repeat: When; exactly one of `every` and `pattern` is set.
            opts: Of its jobs.
            next_match: When the pattern matches; not needed for `every`.
            template: The options as given, for BullMQ's readers.

        Returns:
            The iteration that is pending now, or None if the schedule is over (limit 0, end passed, no match left).

        Raises:
            JobSchedulerError: The id of the next iteration is taken (-10), or those of the next 32 are (-11).

        Cost: O(log n), and the search for a match. Source: spec sections 11.3, 11.4 and 11.6.
        """
        repeat = msgspec.structs.replace(repeat, count=0)
        matched = self._next_by_pattern(repeat, now_ms, 0, next_match)
        if _is_over(repeat, now_ms) or (matched is None and not repeat.every):
            return None
        old = queue.schedulers.get(id)
        offset = repeat.offset if repeat.every else None
        changed = old is not None and old.repeat.every != repeat.every
        new_offset: float = offset or 0
        if repeat.every:
            previous = old.next_ms if old is not None and not changed else None
            next_ms, new_offset = next_slot(previous, repeat.every, now_ms, offset or 0, repeat.start_ms)
        else:
            next_ms = max(matched or 0, now_ms)
        self._refuse_running(queue, id, next_ms, repeat)
        replaced = old is not None and self._withdraw(queue, old)
        if replaced and old is not None:
            if repeat.every and not changed:
                next_ms = old.next_ms
            stored = _int(offset) if offset else old.offset
        else:
            stored = _int(new_offset)
        next_ms = self._free_slot(queue, id, next_ms, repeat, replaced=replaced)
        first = msgspec.structs.replace(repeat, count=1, offset=offset, immediately=False)
        queue.schedulers[id] = Scheduler(
            id,
            name,
            data,
            repeat,
            opts,
            next_ms,
            old.iterations if old is not None else 1,
            stored,
            template or {},
        )
        return self._make_iteration(queue, queue.schedulers[id], first, opts, now_ms)

    def _withdraw(self, queue: Queue, scheduler: Scheduler) -> bool:
        """
        Remove the pending iteration for an upsert that replaces it.

        In a paused queue BullMQ 6 looks for a waiting one in a list that is no longer used, and so leaves it.
        """
        job = queue.index.get(_iteration_id(scheduler))
        if job is None or job.state not in _PENDING or (job.state is JobState.WAITING and queue.paused):
            return False
        self._destroy(queue, job)
        return True

    @staticmethod
    def _refuse_running(queue: Queue, id: str, next_ms: int, repeat: Repeat) -> None:
        """
        The iteration of this moment may be running, when a pattern is to start immediately.

        BullMQ refuses that too, unless it replaces another pending iteration by the way; then it writes over the
        running job and lists it twice.
        """
        taken = queue.index.get(f"repeat:{id}:{next_ms}") if not repeat.every else None
        if taken is not None and taken.state is JobState.ACTIVE:
            raise JobSchedulerError(_TAKEN, id=id, code=-10)

    @staticmethod
    def _free_slot(queue: Queue, id: str, next_ms: int, repeat: Repeat, *, replaced: bool) -> int:
        """The moment itself, or for an interval the first of the following ones whose id is free."""
        if f"repeat:{id}:{next_ms}" not in queue.index:
            return next_ms
        if not repeat.every:
            if replaced:
                return next_ms
            raise JobSchedulerError(_TAKEN, id=id, code=-10)
        for _ in range(_MAX_SLOT_SCANS):
            next_ms = math.floor(next_ms + repeat.every)
            if f"repeat:{id}:{next_ms}" not in queue.index:
                return next_ms
        raise JobSchedulerError(
            "Cannot create job scheduler iteration - current and next time slots already have jobs. addJobScheduler",
            id=id,
            code=-11,
        )

    def schedule_next(
        self, queue: Queue, producer: Job, now_ms: int, next_match: NextMatch | None = None
    ) -> Job | None:
        """
        Make the iteration that follows the one that has just started.

        Only the scheduler's current iteration does this, and only once: a retry finds the scheduler moved on.

        Returns:
            The new job, or None: the schedule is over, was removed, or the next id is taken (event `duplicated`; then
            the scheduler is dead until the next upsert, as in BullMQ).

        Cost: O(log n), and the search for a match. Source: spec section 11.5.
        """
        extra = producer.extra
        if extra is None or extra.scheduler_id is None or extra.repeat is None:
            return None
        repeat = extra.repeat
        # What is made up for was due before the schedule ended, however late that is done.
        if _is_over(repeat, _moment_of(producer.id) if repeat.catch_up == "all" else now_ms):
            return None
        scheduler = queue.schedulers.get(extra.scheduler_id)
        matched = self._next_by_pattern(repeat, now_ms, _moment_of(producer.id), next_match)
        if scheduler is None or (matched is None and not repeat.every):
            return None
        every = scheduler.repeat.every or repeat.every
        next_ms = matched or 0
        if every:
            offset = scheduler.offset if scheduler.offset is not None else repeat.offset
            # With "all" the next moment is looked for from the last one, however long ago that was.
            now = scheduler.next_ms if repeat.catch_up == "all" else now_ms
            next_ms, _ = next_slot(scheduler.next_ms, every, now, offset or 0, scheduler.repeat.start_ms)
        if producer.id != _iteration_id(scheduler):
            return None
        if f"repeat:{scheduler.id}:{next_ms}" in queue.index:
            self.emit(queue, "duplicated", jobId=f"repeat:{scheduler.id}:{next_ms}")
            return None
        scheduler.next_ms = next_ms
        scheduler.iterations += 1
        queue.schedulers[scheduler.id] = scheduler
        following = msgspec.structs.replace(repeat, count=repeat.count + 1)
        return self._make_iteration(queue, scheduler, following, producer.opts, now_ms)

    def start_iteration(self, queue: Queue, job: Job, now_ms: int, next_match: NextMatch | None = None) -> bool:
        """
        A scheduler's job has just become active: make the next one, and decide whether this one is run at all.

        Returns:
            False when its schedule skips what was missed, and the moment after this one has passed as well; the job is
            removed then.

        Cost: As `schedule_next`. Ours; with "once" and "all" this is BullMQ's rule alone.
        """
        repeat = job.extra.repeat if job.extra is not None else None
        missed = (
            repeat is not None
            and repeat.catch_up == "skip"
            and job.attempts_started == 1  # a retry has not missed anything: its first attempt was in time
            and self._has_missed(repeat, job, now_ms, next_match)
        )
        self.schedule_next(queue, job, now_ms, next_match)
        if missed:
            queue.locks.pop(job.id, None)
            self._drop(queue, job)
            self.emit(queue, "removed", jobId=job.id, prev="active")
        return not missed

    @staticmethod
    def _has_missed(repeat: Repeat, job: Job, now_ms: int, next_match: NextMatch | None) -> bool:
        moment = _moment_of(job.id)
        if repeat.every:
            return moment + repeat.every <= now_ms
        following = next_match(repeat, moment) if next_match is not None else None
        return following is not None and following <= now_ms

    def reschedule_all(self, now_ms: int, next_match: NextMatch) -> None:
        """
        The wall clock was set back: pending iterations that were planned from the wrong time are planned anew.

        Cost: O(schedulers). Source: DESIGN 2.7; BullMQ would stay silent until the clock has caught up.
        """
        for queue in self.queues.values():
            for scheduler in list(queue.schedulers.values()):
                job = queue.index.get(_iteration_id(scheduler))
                if job is None or job.state is not JobState.DELAYED or job.extra is None or job.extra.repeat is None:
                    continue
                moment = self._moment_from(scheduler, now_ms, next_match)
                if moment is not None and moment < scheduler.next_ms:
                    repeat = job.extra.repeat
                    self._destroy(queue, job)
                    scheduler.next_ms = moment
                    queue.schedulers[scheduler.id] = scheduler
                    self._make_iteration(queue, scheduler, repeat, job.opts, now_ms)

    @staticmethod
    def _moment_from(scheduler: Scheduler, now_ms: int, next_match: NextMatch) -> int | None:
        """The first moment of a schedule after now, in the phase it has."""
        repeat = scheduler.repeat
        if not repeat.every:
            return next_match(repeat, int(max(now_ms, repeat.start_ms or 0)))
        # The start of an interval is its first moment.
        earliest = int(max(now_ms, (repeat.start_ms or 0) - 1))
        return scheduler.next_ms - math.floor((scheduler.next_ms - earliest - 1) / repeat.every) * int(repeat.every)

    @staticmethod
    def _next_by_pattern(repeat: Repeat, now_ms: int, previous_ms: int, next_match: NextMatch | None) -> int | None:
        if repeat.pattern is None or next_match is None:
            return None
        base = previous_ms if repeat.catch_up == "all" and previous_ms else max(now_ms, previous_ms)
        if repeat.immediately:
            # The pattern is looked at all the same, so that a bad one is refused.
            next_match(repeat, base)
            return now_ms
        return next_match(repeat, int(max(base, repeat.start_ms or 0)))

    def _make_iteration(self, queue: Queue, scheduler: Scheduler, repeat: Repeat, opts: JobOptions, now_ms: int) -> Job:
        id = _iteration_id(scheduler)
        taken = queue.index.get(id)
        if taken is not None:
            # BullMQ writes over a finished iteration of the same moment.
            self._forget(queue, taken, now_ms)
        queue.counter += 1
        flags = CUSTOM_ID | ABSOLUTE_DUE | (LIFO if repeat.lifo else 0)
        delay = max(scheduler.next_ms - now_ms, 0)
        job = Job(id, scheduler.name, scheduler.data, opts, now_ms, flags, delay, repeat.priority)
        extra = job.more()
        extra.scheduler_id = scheduler.id
        extra.repeat = repeat
        extra.deduplication_id = repeat.deduplication_id
        if scheduler.next_ms < now_ms:
            extra.promoted_due_ms = int(scheduler.next_ms)  # made late, it starts without a wait that would tell
        self._store(queue, job, now_ms)
        return job

    # --- the rest -----------------------------------------------------------------------------------------------

    def remove_scheduler(self, queue: Queue, id: str) -> bool:
        """
        Forget a scheduler, and its pending iteration if that is delayed; one that waits or runs goes on as a job.

        Returns:
            Whether there was one.
        """
        scheduler = queue.schedulers.pop(id, None)
        if scheduler is None:
            return False
        job = queue.index.get(_iteration_id(scheduler))
        if job is not None and job.state is JobState.DELAYED:
            self._drop(queue, job)
            self.emit(queue, "removed", jobId=job.id, prev="delayed")
        return True

    def schedulers(self, queue: Queue, start: int = 0, end: int = -1, *, ascending: bool = True) -> Sequence[Scheduler]:
        """A page of the schedulers by the moment of their latest iteration. Cost: O(n log n)."""
        ordered = sorted(queue.schedulers.values(), key=lambda one: (one.next_ms, one.id), reverse=not ascending)
        return page(ordered, start, end)


def next_slot(
    previous_ms: float | None, every: float, now_ms: int, offset: float, start_ms: float | None
) -> tuple[int, int]:
    """
    The next moment of an interval, and its shift against the grid of whole intervals since 1970.

    Missed moments are skipped, not caught up, and the phase is kept. Source: spec section 11.3.

    >>> next_slot(None, 100, 1_000_023, 0, None)
    (1000023, 23)
    >>> next_slot(1_000_023, 100, 1_000_480, 23, None)
    (1000523, 23)
    """
    if previous_ms is None:
        if start_ms is not None:
            moment: float = max(start_ms, now_ms)
        elif offset > 0:
            moment = math.floor(now_ms / every) * every + offset
            if moment <= now_ms:
                moment += every
        else:
            moment = now_ms
    else:
        moment = previous_ms + every
        if moment < now_ms:
            aligned = math.floor(now_ms / every) * every + offset
            moment = aligned + every if aligned <= now_ms else aligned
    if not offset:
        offset = moment - math.floor(moment / every) * every
    return math.floor(moment), math.floor(offset)


def _is_over(repeat: Repeat, now_ms: int) -> bool:
    """Whether the limit or the end forbids one more."""
    if repeat.limit is not None and repeat.count + 1 > repeat.limit:
        return True
    return bool(repeat.end_ms) and now_ms > (repeat.end_ms or 0)


def _iteration_id(scheduler: Scheduler) -> str:
    return f"repeat:{scheduler.id}:{scheduler.next_ms}"


def _moment_of(id: str) -> int:
    """The ms at the end of an iteration's id, 0 for another id."""
    moment = id.rpartition(":")[2]
    return int(moment) if moment.isascii() and moment.isdigit() else 0


def _int(number: float) -> int:
    return math.floor(number)
