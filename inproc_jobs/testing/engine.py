"""The engine under test: the real one, with an ear for what is dispatched and a hand on the handlers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from inproc_jobs.app.engine import Engine, RegistryHandlers
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import CUSTOM_ID, LIFO, Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.runtime.context import CURRENT_RUN
from inproc_jobs.runtime.threads import OnDone, ThreadHost, ThreadRun
from inproc_jobs.testing.assertions import Dispatched

if TYPE_CHECKING:
    from inproc_jobs.app.definition import Registry
    from inproc_jobs.app.flows import FlowNode, FlowReceipt
    from inproc_jobs.app.receipt import DispatchedJob
    from inproc_jobs.app.schedules import ScheduleView
    from inproc_jobs.runtime.handlers import Handler
    from inproc_jobs.runtime.ports import Handlers
    from inproc_jobs.testing.kit import Harness
    from inproc_jobs.testing.virtual_time import VirtualTime

__all__ = ["StampedEvents", "TestedEngine"]


class TestedEngine(Engine):
    """An `Engine` that tells its harness of every dispatch, and asks it before every run."""

    __test__ = False  # for pytest: a class, not a test
    harness: Harness
    watches_adds = True

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.harness = harness
        self._saved_at_s = harness.clock.monotonic()
        super().__init__(**options)
        self.runtime.max_timer_s = float("inf")
        self.runtime.threads = WatchedThreads(harness.time, self)

    # --- inline mode: a dispatch returns when everything ready has run ------------------------------------------

    @property
    def settles(self) -> bool:  # a plain attribute in production, where it never changes
        """Whether an awaited dispatch waits for something: for the store (as in production), or for inline runs."""
        return self.hold != 0 or self._inline

    @settles.setter
    def settles(self, value: bool) -> None:
        """Set by a write_through snapshot, which `hold` tells as well."""

    @property
    def _inline(self) -> bool:
        """Inline mode, and not called by a handler: what handlers dispatch is run by whoever runs them."""
        return self.harness.mode == "inline" and CURRENT_RUN.get() is None

    async def settle(self, receipts: Iterable[DispatchedJob[Any]] = ()) -> None:
        """Have the jobs stored where there is a snapshot that asks for it; in inline mode run what is ready."""
        if self.hold:
            with self._standing_still():
                await super().settle(receipts)
        if self._inline:
            await self.harness.run_at_home(self.harness.run_ready)

    def submit_sync(self, *args: Any) -> DispatchedJob[Any]:
        """As in production; in inline mode the job has run when it returns."""
        with self._settling("dispatch_sync", "dispatch"):
            return super().submit_sync(*args)

    def submit_many_sync(self, *args: Any) -> list[DispatchedJob[Any]]:
        """As `submit_sync`."""
        with self._settling("dispatch_many_sync", "dispatch_many"):
            return super().submit_many_sync(*args)

    def flow_sync(self, root: FlowNode) -> FlowReceipt:
        """As `submit_sync`."""
        with self._settling("flow_sync", "flow"):
            return super().flow_sync(root)

    async def schedule(self, id: str, job: Any, *args: Any, **options: Any) -> ScheduleView | None:
        """As in production, and then as `settle`."""
        with self._standing_still() if self.hold else nullcontext():
            view = await super().schedule(id, job, *args, **options)
        if self._inline:
            await self.settle()
        return view

    def schedule_sync(self, *args: Any, **options: Any) -> ScheduleView | None:
        """As `submit_sync`."""
        with self._settling("schedule_sync", "schedule"):
            return super().schedule_sync(*args, **options)

    @contextmanager
    def _settling(self, what: str, twin: str) -> Iterator[None]:
        if not self._inline:
            yield
            return
        self.harness.refuse_inline_in_loop(what, twin)
        yield
        self.harness.run_blocking(self.harness.run_ready)

    async def before_hosting(self) -> None:
        """As in production."""
        with self._standing_still():
            await super().before_hosting()

    async def save_if_due(self) -> None:
        """The interval of a periodic snapshot counts in virtual time; the keeper's thread only knows the real one."""
        snapshot, now_s = self._snapshot, self.harness.clock.monotonic()
        if snapshot is None or now_s - self._saved_at_s < snapshot.every_ms / 1000:
            return
        self._saved_at_s = now_s
        with self._standing_still():
            await self.save_now(snapshot.timeout_ms / 1000)

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        """Stores work in threads of their own, in real time."""
        self.harness.time.hold()
        try:
            yield
        finally:
            self.harness.time.release()

    # --- waiting for results ------------------------------------------------------------------------------------

    async def wait_end(self, future: Future[Job], seconds: float | None) -> None:
        """As in production; outside of handlers the jobs are run meanwhile, since nobody else would."""
        if CURRENT_RUN.get() is not None:
            await super().wait_end(future, seconds)
        else:
            await self.harness.run_at_home(lambda: self.harness.wait_result(future, seconds))

    def wait_end_sync(self, future: Future[Job], seconds: float | None) -> None:
        """As `wait_end`."""
        if CURRENT_RUN.get() is None:
            self.harness.run_blocking(lambda: self.harness.wait_result(future, seconds))
            return
        self.harness.refuse_wait_on_loop()
        with self.harness.time.excused():
            super().wait_end_sync(future, seconds)

    # --- what is noted ------------------------------------------------------------------------------------------

    def _make_handlers(self, registry: Registry, default_queue: str) -> Handlers:
        return _WatchedHandlers(self.harness, registry, default_queue)

    def new_flow_id(self) -> str:
        """The same ids in every run of the test."""
        return str(uuid.UUID(int=self.harness.random.getrandbits(128), version=4))

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

    def __init__(self, harness: Harness, registry: Registry, default_queue: str) -> None:
        super().__init__(registry, default_queue)
        self._harness = harness

    def handler(self, name: str) -> Handler | None:
        found = super().handler(name)
        if found is None:
            return None
        moved = found.mode in {"thread", "process"} and self._harness.plain == "inline"
        return msgspec.structs.replace(
            found, fn=self._watched(name, found.fn, hide_loop=moved), mode="inline" if moved else found.mode
        )

    def _watched(self, name: str, fn: Callable[..., Any], *, hide_loop: bool) -> Callable[..., Any]:
        def watched(*args: Any) -> Any | Awaitable[Any]:
            fault = self._harness.before_run(name, args[0])
            if fault is not None:
                return fault.happen()
            if hide_loop:
                with _no_running_loop():
                    return fn(*args)
            return fn(*args)

        return watched


@contextmanager
def _no_running_loop() -> Iterator[None]:
    """
    A plain function runs in a thread in production, where no loop runs: `asyncio.run` works there, and libraries that
    refuse to block a loop (Django's) do not refuse. So it must not see the test's loop either.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001  # documented for those who extend asyncio
    asyncio._set_running_loop(None)  # noqa: SLF001  # same
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001
        if task is not None:
            asyncio.tasks._enter_task(loop, task)  # noqa: SLF001


class WatchedThreads(ThreadHost):
    """Threads for plain handlers, for which virtual time stands still."""

    def __init__(self, time: VirtualTime, engine: Engine) -> None:
        super().__init__("inproc_jobs")
        self._time = time
        self._engine = engine

    def submit(self, call: Callable[[], Any], on_done: OnDone) -> ThreadRun:
        """As above; time goes on once the loop has been told of the end."""

        def done(value: Any, error: BaseException | None) -> None:
            on_done(value, error)
            self._engine.runtime.call_on_loop(self._time.release)

        self._time.hold()
        return super().submit(call, done)

    def abandon(self, run: ThreadRun, on_return: Callable[[], None] | None = None) -> bool:
        """As above; a thread that was given up on holds nothing up."""
        abandoned = super().abandon(run, on_return)
        if abandoned:
            self._time.release()
        return abandoned


class StampedEvents:
    """Puts the test's time on every event of a core."""

    def __init__(self, core: Core, note: Callable[[Queue, str, dict[str, Any]], None]) -> None:
        emit = core.emit

        def stamped(queue: Queue, event: str, /, **fields: Any) -> None:
            note(queue, event, fields)
            emit(queue, event, **fields)

        core.emit = stamped  # type: ignore[method-assign]  # one instance, under test
        core.listening = True
