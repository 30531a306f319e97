"""The engine under test: the real one, with an ear for what is dispatched and a hand on the handlers."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from inproc_jobs.app.engine import Engine, RegistryHandlers
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import CUSTOM_ID, LIFO, Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.runtime.context import CURRENT_RUN
from inproc_jobs.testing.assertions import Dispatched

if TYPE_CHECKING:
    from inproc_jobs.app.receipt import DispatchedJob
    from inproc_jobs.runtime.handlers import Handler
    from inproc_jobs.runtime.ports import Handlers
    from inproc_jobs.testing.harness import Harness

__all__ = ["StampedEvents", "TestedEngine"]


class TestedEngine(Engine):
    """An `Engine` that tells its harness of every dispatch, and asks it before every run."""

    __test__ = False  # for pytest: a class, not a test
    harness: Harness

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.harness = harness
        super().__init__(**options)
        self.runtime.max_timer_s = float("inf")

    @property
    def settles(self) -> bool:  # type: ignore[override]  # a plain attribute in production, where it never changes
        """Inline mode: an awaited dispatch returns when everything ready has run."""
        return self.harness.mode == "inline" and CURRENT_RUN.get() is None

    async def settle(self) -> None:
        """Run what is ready."""
        await self.harness.run_ready()

    def _make_handlers(self) -> Handlers:
        return _WatchedHandlers(self)

    def _add(self, plan: Any, data: bytes, opts: Any, id: str, delay_ms: float, *rest: Any) -> DispatchedJob[Any]:
        receipt = super()._add(plan, data, opts, id, delay_ms, *rest)
        created, rank, flags, rule, now_ms = rest
        self.harness.note(
            Dispatched(
                name=plan.name,
                queue=receipt.queue,
                id=receipt.id,
                duplicate=receipt.duplicate,
                at=self.harness.clock.now(),
                delay_ms=max(0, int(delay_ms) + (0 if created is None else created - now_ms)),
                priority=rank,
                lifo=bool(opts.lifo or flags & LIFO),
                attempts=opts.attempts,
                deduplication_id=None if rule is None else rule.id,
                own_id=bool(id),
                _data=data,
            )
        )
        return receipt

    def flow_receipt(self, answer: Any, plan: Any) -> DispatchedJob[Any]:
        """As in production, and noted."""
        receipt = super().flow_receipt(answer, plan)
        job = answer if isinstance(answer, Job) else answer.job
        if job is not None:
            self.harness.note(
                Dispatched(
                    name=receipt.name,
                    queue=receipt.queue,
                    id=receipt.id,
                    duplicate=receipt.duplicate,
                    at=self.harness.clock.now(),
                    delay_ms=int(job.delay),
                    priority=job.priority,
                    lifo=job.opts.lifo,
                    attempts=job.opts.attempts,
                    deduplication_id=None,
                    own_id=bool(job.flags & CUSTOM_ID),
                    _data=job.data,
                )
            )
        return receipt


class _WatchedHandlers(RegistryHandlers):
    """Handlers that let the harness raise in their place, and that run plain functions on the test's loop."""

    def __init__(self, engine: TestedEngine) -> None:
        super().__init__(engine.registry, engine.default_queue)
        self._engine = engine

    def handler(self, name: str) -> Handler | None:
        found = super().handler(name)
        if found is None:
            return None
        inline = found.mode == "inline" or (found.mode == "thread" and self._engine.harness.plain == "inline")
        return dataclasses.replace(
            found,
            fn=self._watched(name, found.fn),
            mode="inline" if inline else found.mode,
        )

    def _watched(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any | Awaitable[Any]:
            fault = self._engine.harness.before_run(name, args[0])
            if fault is not None:
                raise fault
            return fn(*args)

        return watched


class StampedEvents:
    """Puts the test's time on every event of a core."""

    def __init__(self, core: Core, note: Callable[[Queue, str, dict[str, Any]], None]) -> None:
        emit = core.emit

        def stamped(queue: Queue, event: str, /, **fields: Any) -> None:
            note(queue, event, fields)
            emit(queue, event, **fields)

        core.emit = stamped  # type: ignore[method-assign]  # one instance, under test
        core.listening = True
