"""Many dispatches at once: all checked first, then added in slices (DESIGN 2.3, 2.9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from inproc_jobs.errors import InprocJobsError, InvalidOptionTypeError, QueueFullError

if TYPE_CHECKING:
    from inproc_jobs.app.definition import JobDefinition
    from inproc_jobs.app.engine import Engine, Prepared
    from inproc_jobs.app.receipt import DispatchedJob

__all__ = ["Bulk"]


class Bulk:
    """The jobs of one `dispatch_many`."""

    def __init__(self, engine: Engine, job: JobDefinition[Any, Any], jobs: Iterable[Any], slice_s: float) -> None:
        self._engine = engine
        self._slice_s = slice_s
        self._prepared = [self._check(job, number, pair) for number, pair in enumerate(jobs)]

    def _check(self, job: JobDefinition[Any, Any], number: int, pair: Any) -> Prepared:
        """Check one pair; its position goes into whatever error it gives."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidOptionTypeError(
                f"jobs[{number}] must be a pair (payload, options); give None as options for none",
                option=f"jobs[{number}]",
            )
        payload, options = pair
        try:
            return self._engine.prepare_with(job, payload, options or {})
        except InprocJobsError as error:
            error.add_note(f"in jobs[{number}] of dispatch_many; nothing was added")
            raise

    def slices(self) -> Iterator[list[DispatchedJob[Any]]]:
        """Add them; each slice holds the lock for a few ms at most and yields its receipts."""
        if not self._prepared:
            return
        engine = self._engine
        runtime = engine.runtime
        queue = self._prepared[0][0].queue
        with runtime.lock:
            reserved = self._reserve()
        position = 0
        try:
            while position < len(self._prepared):
                receipts: list[DispatchedJob[Any]] = []
                with runtime.lock:
                    end = runtime.monotonic() + self._slice_s
                    while position < len(self._prepared) and (not receipts or runtime.monotonic() < end):
                        if reserved[position]:
                            queue.reserved -= 1
                            reserved[position] = False
                        receipts.append(engine.add_prepared(self._prepared[position]))
                        position += 1
                    news = runtime.has_news()
                if news:
                    runtime.flush()
                yield receipts
        finally:
            with runtime.lock:
                queue.reserved -= sum(reserved)

    def _reserve(self) -> list[bool]:
        """Check ids and room against the queue as it is now, and keep the room. Lock held."""
        queue = self._prepared[0][0].queue
        core = self._engine.runtime.core
        seen: set[str] = set()
        new: list[bool] = []
        for prepared in self._prepared:
            plan, id = prepared[0], prepared[3]
            if id:
                self._engine.check_name_of(queue, id, plan.name)
            known = queue.index.get(id) if id else None
            new.append(id not in seen and (known is None or core.id_is_free(known)))
            if id:
                seen.add(id)
        if queue.max_waiting is None:
            return [False] * len(new)
        if queue.waiting_count + queue.reserved + sum(new) > queue.max_waiting:
            raise QueueFullError(queue.name, queue.max_waiting)
        queue.reserved += sum(new)
        return new
