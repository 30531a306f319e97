"""Who waits for the store to have what a dispatch has done, and what becomes of it when the store does not take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import HELD, Job
from inproc_jobs.core.queue import Candidate, Queue
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import SnapshotUnavailableError
from inproc_jobs.snapshot.capture import UNKNOWN, Capture

__all__ = ["A", "Answer", "Waiters"]


class Answer(Protocol):
    """Where whoever waits for the store is answered: a `concurrent.futures.Future`, or something lighter."""

    def set_result(self, result: None, /) -> None:
        """It is stored. Any thread, no lock."""

    def set_exception(self, error: BaseException, /) -> None:
        """It is not. Any thread, with or without the lock."""


A = TypeVar("A", bound=Answer)


class Waiters:
    """All of one engine. Every method is called with the core's lock held; answers are given by the caller, without it."""

    def __init__(self, core: Core, capture: Capture) -> None:
        self._core = core
        self._capture = capture
        self._new: dict[Job | Candidate, tuple[Queue, list[Answer]]] = {}
        """What must not be there unless it is stored."""
        self._told: list[tuple[Queue, str, str | None, Answer]] = []
        """What stays in any case: (queue, job id, deduplication id) that the store is to be told of."""

    def for_dispatch(self, queue: Queue, job: Job, new: Callable[[], A], *, duplicate: bool) -> A | None:
        """
        Wait for what a dispatch has done; None when there is nothing to wait for.

        Args:
            job: The new one, or the one that it is a duplicate of.
        """
        if self._core.is_unstored(queue, job):
            return self._wait_new(queue, job, new)
        if not duplicate:
            return None
        deduplication_id = job.extra.deduplication_id if job.extra is not None else None
        parked = queue.parked.get(deduplication_id) if deduplication_id is not None else None
        if parked is not None and parked.flags & HELD:
            return self._wait_new(queue, parked, new)
        # It may have moved the job that it collapsed into, or lengthened the life of the key.
        return self._wait_told(queue, job.id if job.state is JobState.DELAYED else "", deduplication_id, new)

    def for_schedule(self, queue: Queue, schedule: str, new: Callable[[], A]) -> A | None:
        """Wait for a schedule and its pending run; None when the store knows them."""
        one = queue.schedulers.get(schedule)
        return self._wait_told(queue, "" if one is None else f"repeat:{schedule}:{one.next_ms}", None, new)

    def _wait_new(self, queue: Queue, awaited: Job | Candidate, new: Callable[[], A]) -> A:
        answer = new()
        self._new.setdefault(awaited, (queue, []))[1].append(answer)
        return answer

    def _wait_told(self, queue: Queue, id: str, deduplication_id: str | None, new: Callable[[], A]) -> A | None:
        if not self._capture.is_pending(queue, id, deduplication_id):
            return None
        answer = new()
        self._told.append((queue, id, deduplication_id, answer))
        return answer

    def take_answered(self) -> list[Answer]:
        """Those whose wait is over."""
        ready: list[Answer] = []
        for awaited, (queue, answers) in list(self._new.items()):
            if self._is_over(queue, awaited):
                del self._new[awaited]
                ready += answers
        told, self._told = self._told, []
        for waiter in told:
            if self._capture.is_pending(*waiter[:3]):
                self._told.append(waiter)
            else:
                ready.append(waiter[3])
        return ready

    def take_refused(self, error: SnapshotUnavailableError) -> list[tuple[Answer, SnapshotUnavailableError]]:
        """All of them, with what each is to be told; what was new is gone from memory, as if it had never come."""
        new, self._new = self._new, {}
        told, self._told = self._told, []
        refused: list[tuple[Answer, bool]] = []
        for awaited, (queue, answers) in new.items():
            refused += [(answer, self._may_be_stored(queue, awaited)) for answer in answers]
        for awaited, (queue, _) in new.items():
            self._withdraw(queue, awaited)
        refused += [(answer, error.outcome == "unknown") for *_, answer in told]
        return [
            (answer, SnapshotUnavailableError(str(error), outcome="unknown" if unknown else "not written"))
            for answer, unknown in refused
        ]

    def _is_over(self, queue: Queue, awaited: Job | Candidate) -> bool:
        """Whether there is nothing left to wait for: it is stored, or what has taken its place is, or it is gone."""
        one = awaited
        while not isinstance(one, Job):
            if not one.flags & HELD:
                return True
            if one.heir is None:
                return queue.parked.get(one.deduplication.id) is not one
            one = one.heir
        return not self._core.is_unstored(queue, one)

    def _may_be_stored(self, queue: Queue, awaited: Job | Candidate) -> bool:
        if isinstance(awaited, Job):
            return self._capture.stored[queue.name].get(awaited.id) == UNKNOWN
        return True

    def _withdraw(self, queue: Queue, awaited: Job | Candidate) -> None:
        one = awaited
        while not isinstance(one, Job) and one.heir is not None:
            one = one.heir
        if isinstance(one, Job):
            self._core.withdraw(queue, one)
        else:
            self._core.withdraw_parked(queue, one)
