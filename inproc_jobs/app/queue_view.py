"""One queue as its operator sees it: reads answer from memory at once, changes are async with a `_sync` twin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from inproc_jobs.app.options import MAX_PRIORITY, Duration, _flag, _show, _whole, check_known_id, check_page
from inproc_jobs.app.schedules import ScheduleView
from inproc_jobs.app.views import JobView
from inproc_jobs.core.core import Core
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import FINISHED_STATES, STATES, JobState
from inproc_jobs.errors import InvalidOptionError, JobLockedError, JobNotFoundError

if TYPE_CHECKING:
    from inproc_jobs.app.engine import Engine
    from inproc_jobs.runtime.worker import QueueWorker

__all__ = ["QueueView"]

T = TypeVar("T")
_SLICE: Final = 200
"""Jobs per slice of a long command; a slice takes about 1 ms (DESIGN 2.9)."""
_STATE_WORDS: Final = {**{state.value: state for state in STATES}, "wait": JobState.WAITING}


class QueueView:
    """
    A queue of an engine.

    Attributes:
        name: Its name.
    """

    __slots__ = ("_engine", "_worker", "name")

    def __init__(self, engine: Engine, worker: QueueWorker) -> None:
        self._engine = engine
        self._worker = worker
        self.name: str = worker.queue.name

    @property
    def record(self) -> Queue:
        """The core's record; another one after a restart on a snapshot."""
        return self._worker.queue

    def __repr__(self) -> str:
        return f"<QueueView {self.name!r} {self.counts()}>"

    # --- reads --------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Jobs by state, all seven states. Cost: O(1)."""
        with self._engine.runtime.lock:
            return self._engine.runtime.core.counts(self.record)

    def jobs(
        self, states: str | Iterable[str] = (), start: int = 0, end: int = -1, ascending: bool = False
    ) -> list[JobView]:
        """
        Jobs in some states (none: all), page by page.

        Args:
            states: One state or several.
            start, end: Positions, both included, per state, as on BullMQ; -1 is the last.
            ascending: Waiting jobs: next one first; others: lowest due time, priority or finish first.

        Raises:
            InvalidOptionError: There is no such state.

        Cost: O(end).
        """
        words = self._states(
            (states,) if isinstance(states, str) or not isinstance(states, Iterable) else tuple(states)
        )
        check_page(start, end)
        runtime = self._engine.runtime
        with runtime.lock:
            found = runtime.core.jobs(self.record, words, start, end, ascending)
        views: list[JobView] = []
        # Picking a hundred thousand takes a few ms, showing them most of a second: the lock is let go in between.
        for first in range(0, len(found), _SLICE):
            with runtime.lock:
                views += [JobView(job, self.name) for job in found[first : first + _SLICE]]
        return views

    @staticmethod
    def _states(words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if not isinstance(word, str) or word not in _STATE_WORDS:
                raise InvalidOptionError(
                    f"there is no state {_show(word)}; use {', '.join(state.value for state in STATES)}",
                    option="states",
                    value=word,
                )
        return tuple(_STATE_WORDS[word].value for word in words)

    def job(self, id: str) -> JobView | None:
        """The job of that id, whatever its name; None if there is none. Cost: O(1)."""
        check_known_id(id)
        with self._engine.runtime.lock:
            record = self.record.index.get(id)
            return None if record is None else JobView(record, self.name)

    def logs(self, id: str, start: int = 0, end: int = -1) -> list[str]:
        """Lines that the job has logged, oldest first; empty when there is no such job."""
        check_known_id(id)
        check_page(start, end)
        with self._engine.runtime.lock:
            rows, _ = self._engine.runtime.core.logs(self.record, id, start, end)
            return list(rows)

    def is_paused(self) -> bool:
        """Whether no job is started."""
        return self.record.paused

    def parked(self) -> list[JobView]:
        """
        Jobs from a snapshot that are not run: nobody has defined their name in this process, or nobody can read them
        (those have the name "(unreadable)", the reason in `failed_reason`, and no state). Empty without a snapshot.

        Defining the name releases the former; removing an unreadable one removes it from the store. Cost: O(parked).
        """
        with self._engine.runtime.lock:
            return [JobView(job, self.name) for job in self._engine.runtime.core.parked_jobs(self.record)]

    def schedules(self) -> list[ScheduleView]:
        """The schedules of this queue, by the moment of their pending run."""
        with self._engine.runtime.lock:
            return [ScheduleView.of(one, self.name) for one in self._engine.runtime.core.schedulers(self.record)]

    # --- changes ------------------------------------------------------------------------------------------------

    def _change(self, command: Callable[[Core, Queue, int], T]) -> T:
        """Carry out a command and let the engine look at what came of it."""
        self._engine.refuse_stopped()
        self._engine.refuse_unread()
        runtime = self._engine.runtime
        runtime.refuse_reentry()
        with runtime.lock:
            answer = command(runtime.core, self.record, runtime.now_ms())
        runtime.changed(self.name)
        return answer

    async def pause(self) -> None:
        """Start no more jobs of this queue; those that are active go on, delayed ones still become ready."""
        self.pause_sync()

    def pause_sync(self) -> None:
        """As `pause`, from any thread."""
        self._change(lambda core, queue, now_ms: core.pause(queue))

    async def resume(self) -> None:
        """Start jobs again."""
        self.resume_sync()

    def resume_sync(self) -> None:
        """As `resume`, from any thread."""
        self._change(lambda core, queue, now_ms: core.resume(queue, now_ms))

    async def remove(self, id: str) -> bool:
        """
        Remove a job that is not being run.

        Returns:
            False when there is no such job.

        Raises:
            JobLockedError: It is active.
        """
        return self.remove_sync(id)

    def remove_sync(self, id: str) -> bool:
        """As `remove`, from any thread."""
        check_known_id(id)

        def command(core: Core, queue: Queue, now_ms: int) -> bool:
            if id not in queue.index:
                return False
            if not core.remove(queue, id, now_ms):
                raise JobLockedError(f"job {id!r} is active and cannot be removed; wait for its end", id=id)
            return True

        return self._change(command)

    async def promote(self, id: str) -> None:
        """
        Run a delayed job now, in its turn.

        Raises:
            JobNotInStateError: It is not delayed.
        """
        self.promote_sync(id)

    def promote_sync(self, id: str) -> None:
        """As `promote`, from any thread."""
        check_known_id(id)
        self._change(lambda core, queue, now_ms: core.promote(queue, id, now_ms))

    async def retry(self, id: str) -> None:
        """
        Run a failed or completed job again.

        Raises:
            JobNotFoundError: There is no such job.
            JobNotInStateError: It has not ended.
        """
        self.retry_sync(id)

    def retry_sync(self, id: str) -> None:
        """As `retry`, from any thread."""
        check_known_id(id)

        def command(core: Core, queue: Queue, now_ms: int) -> None:
            record = queue.index.get(id)
            completed = record is not None and record.state is JobState.COMPLETED
            core.retry(queue, id, now_ms, state="completed" if completed else "failed")

        self._change(command)

    async def change_delay(self, id: str, delay: Duration) -> None:
        """
        Make a delayed job due `delay` from now.

        Raises:
            JobNotFoundError, JobNotInStateError: There is no such delayed job.
        """
        self.change_delay_sync(id, delay)

    def change_delay_sync(self, id: str, delay: Duration) -> None:
        """As `change_delay`, from any thread."""
        check_known_id(id)
        delay_ms = parse_ms(delay, option="delay")
        self._change(lambda core, queue, now_ms: core.change_delay(queue, id, delay_ms, now_ms))

    async def change_priority(self, id: str, priority: int, *, lifo: bool = False) -> None:
        """
        Give a job another priority; 0 puts it among the waiting ones. `lifo`: before its equals.

        Raises:
            JobNotFoundError: There is no such job.
        """
        self.change_priority_sync(id, priority, lifo=lifo)

    def change_priority_sync(self, id: str, priority: int, *, lifo: bool = False) -> None:
        """As `change_priority`, from any thread."""
        check_known_id(id)
        _whole(priority, "priority", 0, MAX_PRIORITY)
        _flag(lifo, "lifo")
        self._change(lambda core, queue, now_ms: core.change_priority(queue, id, priority, now_ms, lifo=lifo))

    async def update_payload(self, id: str, payload: Any) -> None:
        """
        Replace the payload of a job; an attempt that is going on has the old one.

        Raises:
            JobNotFoundError: There is no such job.
            InvalidPayloadError: Not JSON, or not of the handler's type.
        """
        self.update_payload_sync(id, payload)

    def update_payload_sync(self, id: str, payload: Any) -> None:
        """As `update_payload`, from any thread."""
        check_known_id(id)
        record = self.record.index.get(id)
        if record is None:
            raise JobNotFoundError(f"there is no job {id!r} in queue {self.name!r}", id=id)
        data = self._engine.encode_for(record.name, payload)
        self._change(lambda core, queue, now_ms: core.update_data(queue, id, data))

    async def remove_schedule(self, id: str) -> bool:
        """End a schedule: its delayed run goes, one that is waiting or active goes on. False if there is none."""
        return self.remove_schedule_sync(id)

    def remove_schedule_sync(self, id: str) -> bool:
        """As `remove_schedule`, from any thread."""
        return self._change(lambda core, queue, now_ms: core.remove_scheduler(queue, id))

    async def drain(self, *, delayed: bool = False) -> int:
        """Remove all jobs that are waiting or prioritized, and delayed ones if asked to. Returns how many."""
        total = 0
        for count in self._drain(delayed):
            total += count
            await asyncio.sleep(0)
        return total

    def drain_sync(self, *, delayed: bool = False) -> int:
        """As `drain`, from any thread."""
        return sum(self._drain(delayed))

    def _drain(self, delayed: bool) -> Iterator[int]:
        _flag(delayed, "delayed")
        while True:
            count = self._change(lambda core, queue, now_ms: core.drain(queue, now_ms, delayed=delayed, limit=_SLICE))
            yield count
            if count < _SLICE:
                return

    async def clean(self, grace: Duration = 0, *, limit: int = 0, state: str = "completed") -> list[str]:
        """
        Remove jobs of one state that are older than `grace`.

        Args:
            grace: "1h", a timedelta, or an int of ms.
            limit: How many at most; 0 is all. As on BullMQ it also bounds how many waiting, prioritized or delayed
                jobs are looked at.
            state: Which; what "older" means there is BullMQ's rule.

        Returns:
            Ids of what went.
        """
        ids: list[str] = []
        for some in self._clean(grace, limit, state):
            ids += some
            await asyncio.sleep(0)
        return ids

    def clean_sync(self, grace: Duration = 0, *, limit: int = 0, state: str = "completed") -> list[str]:
        """As `clean`, from any thread."""
        return [id for some in self._clean(grace, limit, state) for id in some]

    def _clean(self, grace: Duration, limit: int, state: str) -> Iterator[list[str]]:
        grace_ms = parse_ms(grace, option="grace")
        _whole(limit, "limit", 0)
        word = self._states((state,))[0]
        home = self.record.containers[JobState(word)]
        left, window = limit, _SLICE
        while True:
            size = min(window, left) if limit else window
            ids = self._change(lambda core, queue, now_ms: core.clean(queue, grace_ms, size, word, now_ms))  # noqa: B023  # called at once
            yield ids
            if len(ids) < size:
                if word in FINISHED_STATES or size == left or size >= len(home) + len(ids):
                    return
                # Jobs that are too young stay at the front, and old ones may stand behind them.
                window *= 2
            left -= len(ids)
            if limit and left <= 0:
                return

    async def obliterate(self, *, force: bool = False) -> None:
        """
        Remove the queue with all its jobs; `force` also while jobs are active (their results are then dropped).

        Raises:
            QueueBusyError: Jobs are active; the queue is paused now, as on BullMQ.
        """
        done = self._obliterate_some(force)
        while not done:
            await asyncio.sleep(0)
            done = self._obliterate_some(force)

    def obliterate_sync(self, *, force: bool = False) -> None:
        """As `obliterate`, from any thread."""
        while not self._obliterate_some(force):
            pass

    def _obliterate_some(self, force: Any) -> bool:
        _flag(force, "force")
        return self._change(lambda core, queue, now_ms: core.obliterate(queue, now_ms, force=force, limit=_SLICE))
