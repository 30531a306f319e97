"""Many dispatches at once: all checked first, then added in slices (DESIGN 2.3, 2.9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from inproc_jobs.errors import InprocJobsError, InvalidOptionTypeError, QueueFullError

if TYPE_CHECKING:
    from inproc_jobs.app.definition import JobDefinition
    from inproc_jobs.app.dispatching import DispatchingEngine, Prepared
    from inproc_jobs.app.receipt import DispatchedJob

__all__ = ["Bulk"]


class Bulk:
    """The jobs of one `dispatch_many`."""

    def __init__(
        self, engine: DispatchingEngine, job: JobDefinition[Any, Any], jobs: Iterable[Any], slice_s: float
    ) -> None:
        if not isinstance(jobs, Iterable):
            raise InvalidOptionTypeError(
                f"jobs must be pairs (payload, options), got {type(jobs).__name__}", option="jobs", value=jobs
            )
        self._engine = engine
        self._job = job
        self._jobs = jobs
        self._slice_s = slice_s
        self._prepared: list[Prepared] = []

    def slices(self) -> Iterator[list[DispatchedJob[Any]]]:
        """
        Check all, then add all. Each slice takes a few ms at most and yields its receipts: none while it checks.

        Raises:
            InprocJobsError: The first pair that is wrong; nothing was added.
        """
        yield from self._check_all()
        if self._prepared:
            yield from self._add_all()

    # --- checking -----------------------------------------------------------------------------------------------

    def _check_all(self) -> Iterator[list[DispatchedJob[Any]]]:
        monotonic = self._engine.runtime.monotonic
        end = monotonic() + self._slice_s
        for number, pair in enumerate(self._jobs):
            self._prepared.append(self._check(number, pair))
            if monotonic() >= end:
                yield []
                end = monotonic() + self._slice_s

    def _check(self, number: int, pair: Any) -> Prepared:
        """Check one pair; its position goes into whatever error it gives."""
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Mapping | None):
            raise InvalidOptionTypeError(
                f"jobs[{number}] must be a pair (payload, options), with a dict of options or None",
                option=f"jobs[{number}]",
                value=pair,
            )
        payload, options = pair
        try:
            return self._engine.prepare_with(self._job, payload, options or {})
        except InprocJobsError as error:
            error.add_note(f"in jobs[{number}] of dispatch_many; nothing was added")
            raise

    # --- adding -------------------------------------------------------------------------------------------------

    def _add_all(self) -> Iterator[list[DispatchedJob[Any]]]:
        engine, prepared = self._engine, self._prepared
        runtime, queue = engine.runtime, prepared[0][0].queue
        with runtime.lock:
            reserved = self._reserve()
        position = 0
        try:
            while position < len(prepared):
                # Between two slices the engine may be stopped.
                if not engine.takes_dispatches:
                    engine.refuse_dispatch()
                receipts: list[DispatchedJob[Any]] = []
                with runtime.lock:
                    end = runtime.monotonic() + self._slice_s
                    while position < len(prepared) and (not receipts or runtime.monotonic() < end):
                        if reserved and reserved[position]:
                            queue.reserved -= 1
                            reserved[position] = False
                        receipts.append(engine.add_prepared(prepared[position]))
                        position += 1
                    news = runtime.has_news()
                if news:
                    runtime.flush()
                yield receipts
        finally:
            with runtime.lock:
                queue.reserved -= sum(reserved)

    def _reserve(self) -> list[bool]:
        """
        Check ids and room against the queue as it is now, and keep the room. Lock held.

        Returns:
            Which jobs have a place reserved; empty where the queue has no bound.
        """
        queue = self._prepared[0][0].queue
        for prepared in self._prepared:
            if prepared[3]:
                self._engine.check_name_of(queue, prepared[3], prepared[0].name)
        if queue.max_waiting is None:
            return []
        new = self._which_are_new()
        if queue.waiting_count + queue.reserved + sum(new) > queue.max_waiting:
            raise QueueFullError(queue.name, queue.max_waiting)
        queue.reserved += sum(new)
        return new

    def _which_are_new(self) -> list[bool]:
        """Which are going to need a place: not duplicates, not those that collapse into a job by another key."""
        runtime, queue = self._engine.runtime, self._prepared[0][0].queue
        now_ms = runtime.now_ms()
        ids: set[str] = set()
        keys: set[str] = set()
        new: list[bool] = []
        for prepared in self._prepared:
            id, rule = prepared[3], prepared[9]
            known = queue.index.get(id) if id else None
            is_new = id not in ids and (known is None or runtime.core.id_is_free(known))
            if is_new and rule is not None:
                is_new = rule.id not in keys and runtime.core.deduplication_owner(queue, rule.id, now_ms) is None
                keys.add(rule.id)
            if id:
                ids.add(id)
            new.append(is_new)
        return new
