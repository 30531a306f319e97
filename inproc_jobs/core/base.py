"""
The ground floor of `Core`: queues, events, and the one method that moves a job from state to state.

`Core` is built in floors, each a module and a class that only uses the floors below it:
base -> flows -> removal -> deduplication -> adding -> trees -> fetching -> retention -> finishing ->
changing -> administration -> schedulers -> reading -> driving -> restoring -> core.
"""

from __future__ import annotations

from typing import Any

from inproc_jobs.core.events import Event
from inproc_jobs.core.job import DUE_BITS, WATCHED, Job
from inproc_jobs.core.queue import BACK, FRONT, IN_PLACE, Queue
from inproc_jobs.core.states import DELAYED, ON_DUE, PRIORITIZED, REMOVED, TRANSITIONS, WAITING, JobState, Trigger
from inproc_jobs.errors import JobNotFoundError

__all__ = ["CoreBase", "IllegalTransitionError"]


class IllegalTransitionError(RuntimeError):
    """A bug of the core: it asked for a transition that the table does not have. Nothing has changed."""


class CoreBase:
    """
    State and the primitives on it.

    Attributes:
        queues: name -> record.
        listening: Whether events are wanted; while False none is built.
        events: Facts since the driver took them last.
        ended: Watched jobs that completed, failed or were removed since the driver took them last.
    """

    def __init__(self, *, prefix: str = "bull") -> None:
        self.prefix = prefix
        self.queues: dict[str, Queue] = {}
        self.listening = False
        self.events: list[Event] = []
        self.ended: list[Job] = []

    # --- queues and jobs ----------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """The queue of that name, made when first named. Cost: O(1)."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name, self.prefix)
        return queue

    def need(self, queue: Queue, id: str, command: str) -> Job:
        """
        The stored job of that id.

        Raises:
            JobNotFoundError: With BullMQ's text for the command. Nothing has changed.
        """
        job = queue.index.get(id)
        if job is None:
            raise JobNotFoundError(f"Missing key for job {id}. {command}", id=id)
        return job

    def take_events(self) -> list[Event]:
        """The events since the last call, oldest first."""
        events, self.events = self.events, []
        return events

    def take_ended(self) -> list[Job]:
        """The watched jobs that ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def emit(self, queue: Queue, event: str, /, **fields: Any) -> None:
        """Publish a fact. Callers on hot paths test `listening` first, so that nothing is built for nobody."""
        if self.listening:
            self.events.append(Event(queue.name, event, fields))

    # --- the one writer of states -------------------------------------------------------------------------------

    def _move(self, queue: Queue, job: Job, trigger: Trigger, to: JobState, front: bool = False) -> None:
        """
        Leave one container, enter another.

        Where a key of the old container changes for the new one, use the two halves: `_leave`, set the key, `_enter`.
        Written out here since every job is moved three times.
        """
        state = job.state
        if to not in TRANSITIONS[trigger].get(state, ()):
            raise IllegalTransitionError(f"job {job.id!r}: {trigger} leads from {state} nowhere near {to}")
        homes = queue.containers
        if state is not REMOVED:
            homes[state].discard(job)
        job.state = to
        homes[to].add(job, front)
        if queue.touched is not None:
            queue.touched.pop(job.id, None)
            queue.touched[job.id] = FRONT if front else BACK

    def _leave(self, queue: Queue, job: Job, trigger: Trigger, to: JobState) -> None:
        """Check the transition and take the job out of its container; it is nowhere until `_enter`."""
        state = job.state
        allowed = TRANSITIONS[trigger].get(state)
        if allowed is None or to not in allowed:
            raise IllegalTransitionError(f"job {job.id!r}: {trigger} leads from {state} nowhere near {to}")
        if state is not REMOVED:
            queue.containers[state].discard(job)

    def _enter(self, queue: Queue, job: Job, to: JobState, front: bool = False) -> None:
        """Put a job that `_leave` took out where it belongs."""
        job.state = to
        queue.containers[to].add(job, front)
        if queue.touched is not None:
            queue.touched.pop(job.id, None)
            queue.touched[job.id] = FRONT if front else BACK

    @staticmethod
    def _touch(queue: Queue, id: str) -> None:
        """Something about a job has changed that a store must know, but not its place."""
        if queue.touched is not None and id not in queue.touched:
            queue.touched[id] = IN_PLACE

    # --- placing ------------------------------------------------------------------------------------------------

    def _place_delayed(self, queue: Queue, job: Job, trigger: Trigger, due_ms: float) -> None:
        """Into the delayed set, behind those due in the same millisecond. Cost: O(log n)."""
        self._leave(queue, job, trigger, DELAYED)
        queue.sequence += 1
        # A fraction, which only programs in BullMQ's language can ask for, does not count among those of its millisecond.
        job.order = (int(due_ms) << DUE_BITS) + queue.sequence
        self._enter(queue, job, DELAYED)
        if self.listening:
            self.emit(queue, "delayed", jobId=job.id, delay=due_ms)

    def _place_ready(self, queue: Queue, job: Job, trigger: Trigger, front: bool = False) -> None:
        """Into prioritized when it has a priority, else into waiting at the entry end (`front`: at the exit end)."""
        if job.priority:
            self._place_prioritized(queue, job, trigger)
        else:
            self._move(queue, job, trigger, WAITING, front)

    def _place_prioritized(self, queue: Queue, job: Job, trigger: Trigger, counter: int | None = None) -> None:
        """Behind its equals; with an explicit counter exactly there (0: before its equals)."""
        self._leave(queue, job, trigger, PRIORITIZED)
        if counter is None:
            counter = queue.priority_counter = (queue.priority_counter or 0) + 1
        # A fraction can only come from BullMQ's `changePriority`, which looks at nothing.
        job.order = int(job.priority * 0x1_0000_0000) + (counter & 0xFFFF_FFFF)
        self._enter(queue, job, PRIORITIZED)

    def _end(self, job: Job) -> None:
        """Tell the driver that a watched job has reached its end."""
        if job.flags & WATCHED:
            self.ended.append(job)

    def promote_due(self, queue: Queue, now_ms: int) -> None:
        """
        Make ready what is due, at most 1,000 at a time, whether the queue is paused or not.

        Cost: O(1) when nothing is due. Source: spec section 3.2.
        """
        head = queue.delayed.head()
        limit = (now_ms + 1) << DUE_BITS
        budget = 1000
        while head is not None and head.order < limit and budget:
            head.delay = 0
            if head.priority or head.extra is not None:
                head.more().promoted_due_ms = head.order >> DUE_BITS
            self._place_ready(queue, head, ON_DUE)
            if self.listening:
                self.emit(queue, "waiting", jobId=head.id, prev="delayed")
            head = queue.delayed.head()
            budget -= 1
