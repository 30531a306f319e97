"""What a test can look at afterwards: every dispatch and every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inproc_jobs.core.json_values import decode_json
from inproc_jobs.core.queue import Queue
from inproc_jobs.errors import InvalidOptionError
from inproc_jobs.testing.assertions import ANY, Dispatched, Wanted
from inproc_jobs.testing.faults import AnyJob
from inproc_jobs.testing.virtual_time import VirtualClock

__all__ = ["Ledger", "TimelineEntry"]

_JSON = frozenset(("returnvalue", "data"))


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event, with the moment in the test's time: `event` and `fields` are BullMQ's."""

    at: datetime
    elapsed_ms: int
    queue: str
    event: str
    job_id: str | None
    fields: dict[str, Any]

    def __str__(self) -> str:
        rest = " ".join(f"{key}={value!r}" for key, value in self.fields.items() if key != "jobId")
        return f"{self.elapsed_ms:>10} ms  {self.queue}  {self.event}  {self.job_id or ''}  {rest}".rstrip()


class Ledger:
    """Notes dispatches and events, and answers for them."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._dispatched: list[Dispatched] = []
        self._timeline: list[TimelineEntry] = []
        self._forgotten = 0

    def note(self, dispatched: Dispatched) -> None:
        """The code under test has dispatched something."""
        self._dispatched.append(dispatched)

    def note_event(self, queue: Queue, event: str, fields: dict[str, Any]) -> None:
        """The core has told something."""
        told = {k: decode_json(v) if k in _JSON and isinstance(v, bytes) else v for k, v in fields.items()}
        elapsed = round(self.clock.monotonic() * 1000)
        self._timeline.append(TimelineEntry(self.clock.now(), elapsed, queue.name, event, told.get("jobId"), told))

    def mark(self) -> int:
        """This moment, for `since=`: only what is dispatched from here on counts then."""
        return self._forgotten + len(self._dispatched)

    def dispatched(
        self, job: AnyJob | None = None, payload: Any = ANY, *, since: int = 0, **wanted: Any
    ) -> list[Dispatched]:
        """Dispatches in their order, of one job or of all; `wanted` as in `assert_dispatched`, duplicates included."""
        wanted.setdefault("duplicate", None)
        asked = Wanted(job, payload, **wanted)
        return [one for one in self._since(since) if not asked.misses(one)]

    def assert_dispatched(
        self,
        job: AnyJob | None = None,
        payload: Any = ANY,
        *,
        times: int | None = 1,
        job_id: Any = ANY,
        delay: Any = ANY,
        run_at: Any = ANY,
        within: Any = "0ms",
        priority: Any = ANY,
        queue: Any = ANY,
        attempts: Any = ANY,
        deduplication: Any = ANY,
        where: Callable[[Dispatched], bool] | None = None,
        duplicate: bool | None = False,
        since: int = 0,
    ) -> Dispatched:
        """
        Assert that a job was dispatched, exactly once unless `times` says otherwise.

        Each value may be compared, be a function that is asked, or a matcher object of another library.

        Args:
            payload: A dict matches a part, at any depth; `exactly(...)` the whole; an object of the handler's payload
                type is compared by its JSON.
            times: How often; None is at least once.
            delay, run_at: Compared with a tolerance of `within`; `run_at` is when the job may run at the earliest.
            job_id: The id that the caller gave; None for a job without an own one.
            deduplication: The deduplication id.
            where: A predicate on the `Dispatched` record.
            duplicate: False: only dispatches that made a job; True: only those that made none; None: all.
            since: What `mark()` answered; dispatches before it do not count.

        Returns:
            The match, the last of several.

        Raises:
            AssertionError: Lists what was dispatched, nearest first, and in what it differs.
        """
        if times is not None and (type(times) is not int or times < 1):
            raise InvalidOptionError(
                f"times must be an int of at least 1, or None for at least once, got {times!r}; for never use refute_dispatched",
                option="times",
                value=times,
            )
        wanted = Wanted(
            job,
            payload,
            job_id=job_id,
            delay=delay,
            run_at=run_at,
            within=within,
            priority=priority,
            queue=queue,
            attempts=attempts,
            deduplication=deduplication,
            where=where,
            duplicate=duplicate,
        )
        seen = self._since(since)
        found = [one for one in seen if not wanted.misses(one)]
        if not found or (times is not None and len(found) != times):
            raise AssertionError(wanted.explain(seen, len(found), times))
        return found[-1]

    def refute_dispatched(
        self, job: AnyJob | None = None, payload: Any = ANY, *, since: int = 0, **wanted: Any
    ) -> None:
        """Assert that nothing of the kind was dispatched; arguments as in `assert_dispatched`."""
        asked = Wanted(job, payload, **wanted)
        seen = self._since(since)
        found = [one for one in seen if not asked.misses(one)]
        if found:
            raise AssertionError(asked.explain(seen, len(found), 0))

    def clear(self) -> None:
        """Forget what was dispatched and the timeline so far; jobs stay."""
        self._forgotten += len(self._dispatched)
        self._dispatched.clear()
        self._timeline.clear()

    def timeline(self) -> list[TimelineEntry]:
        """Every event so far, in order."""
        return list(self._timeline)

    def _since(self, mark: int) -> list[Dispatched]:
        return self._dispatched[max(0, mark - self._forgotten) :]
