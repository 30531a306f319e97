"""
`Engine`: the facade. It joins core, runtime, registry and log, and checks what comes in.

Where it runs is the business of `hosting`; what a queue can be asked is in `queue_view`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from inproc_jobs.app.definition import DEFAULT_REGISTRY, JobDefinition, Registry
from inproc_jobs.app.dispatching import DispatchingEngine
from inproc_jobs.app.lifecycle import RunSummary, StopReport
from inproc_jobs.app.options import (
    Duration,
    check_known_id,
    check_name,
    check_page,
    read_layer,
)
from inproc_jobs.app.queue_view import QueueView
from inproc_jobs.app.schedules import CatchUp, ScheduleView, read_schedule
from inproc_jobs.app.settings import (
    check_clock,
    check_context_vars,
    check_engine_number,
    check_history,
    read_queue_settings,
)
from inproc_jobs.app.views import FailedJob, JobView
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import FAILED
from inproc_jobs.errors import (
    FailedJobNotFoundError,
    InvalidOptionTypeError,
)
from inproc_jobs.observe.listeners import EngineEvent, EventStream, Listener, ListenerHub
from inproc_jobs.observe.logs import EngineLog
from inproc_jobs.runtime.clock import Clock, SystemClock
from inproc_jobs.runtime.cron import next_match
from inproc_jobs.runtime.handlers import Handler
from inproc_jobs.runtime.ports import Handlers, Strategy
from inproc_jobs.runtime.runtime import Runtime
from inproc_jobs.snapshot.config import Snapshot

if TYPE_CHECKING:
    from typing import Self

P = TypeVar("P")
__all__ = ["Engine", "RunSummary", "StopReport", "failed_jobs", "retry_failed_job"]


class RegistryHandlers:
    """The runtime's way to the registry."""

    def __init__(self, registry: Registry, default_queue: str) -> None:
        self._registry = registry
        self._default_queue = default_queue

    def handler(self, name: str) -> Handler | None:
        job = self._registry.get(name)
        return None if job is None else job.handler

    def strategy(self, name: str) -> Strategy | None:
        job = self._registry.get(name)
        given = None if job is None else job.strategy
        if given is None:
            return None
        queue = self._default_queue if job is None else job.queue or self._default_queue
        return lambda attempts_made, error, record: given(attempts_made, error, JobView(record, queue))


class Engine(DispatchingEngine):
    """
    A job engine in this process.

    Args:
        concurrency: Jobs at once per queue, for queues that do not say.
        queues: Name -> {"concurrency", "limiter": {"max", "duration"}, "max_waiting"}; others come into being with
            the defaults when first used.
        default_queue: Queue of the jobs that name none.
        default_job_options: As the options of `define_job`, for what neither it nor the dispatch says.
        history: How many finished jobs whose id is free stay readable, per queue: {"completed": 1000, "failed": 5000}.
        snapshot: `RedisSnapshot(...)` or `SqliteSnapshot(...)`; None keeps jobs in memory only.
        shutdown_timeout: How long stopping may take, unless it is told otherwise.
        max_starts_per_second: Cap on starts over all queues; None is no cap.
        context_vars: Context variables whose values a job takes over from its dispatch.
        registry: Whose jobs it runs; None is that of the module-level `define_job`.
        clock: Where the time comes from; None is the system's.

    Use it inside a loop (`async with engine`, `lifespan=engine.lifespan`), in a thread of its own (`start`, `stop`,
    `with engine`), or blocking (`run_until_idle`, `run_forever`). Making one starts nothing and binds it to no loop.
    """

    def __init__(
        self,
        *,
        concurrency: int = 1,
        queues: Mapping[str, Mapping[str, Any]] | None = None,
        default_queue: str = "default",
        default_job_options: Mapping[str, Any] | None = None,
        history: Mapping[str, int] | None = None,
        snapshot: Snapshot | None = None,
        shutdown_timeout: Any = "30s",
        max_starts_per_second: float | None = None,
        context_vars: Iterable[ContextVar[Any]] = (),
        registry: Registry | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_engine_number(concurrency, "concurrency", whole=True)
        if max_starts_per_second is not None:
            check_engine_number(max_starts_per_second, "max_starts_per_second", whole=False)
        if snapshot is not None and not isinstance(snapshot, Snapshot):
            raise InvalidOptionTypeError(
                f"snapshot must be a RedisSnapshot or a SqliteSnapshot, got {snapshot!r}",
                option="snapshot",
                value=snapshot,
            )
        settings = read_queue_settings({} if queues is None else queues)
        if clock is not None:
            check_clock(clock)
        if registry is not None and not isinstance(registry, Registry):
            raise InvalidOptionTypeError(
                f"registry must be a Registry(), got {type(registry).__name__}", option="registry", value=registry
            )
        registry = DEFAULT_REGISTRY if registry is None else registry
        check_name(default_queue, "queue")
        defaults = read_layer({} if default_job_options is None else default_job_options, "default_job_options")
        self._history = check_history({}) if history is None else check_history(history)
        captured = check_context_vars(context_vars)
        self._hub = ListenerHub()
        self._log = EngineLog()
        runtime = Runtime(
            clock or SystemClock(),
            self._make_handlers(registry, default_queue),
            self._hub,
            self._log,
            concurrency=concurrency,
            max_starts_per_second=max_starts_per_second,
        )
        super().__init__(
            runtime,
            parse_ms(shutdown_timeout, option="shutdown_timeout", bare="refuse"),
            snapshot,
            registry=registry,
            default_queue=default_queue,
            defaults=defaults,
            context_vars=captured,
        )
        runtime.owner = weakref.ref(self)
        runtime.admit_queue = self.admit_queue
        runtime.prepare_queue = self._prepare_queue
        runtime.context_vars = captured
        self._max_waiting = {name: setting.max_waiting for name, setting in settings.items()}
        for name, setting in settings.items():
            runtime.add_worker(name, setting.concurrency, setting.limiter)
        registry.serve(self)

    def _make_handlers(self, registry: Registry, default_queue: str) -> Handlers:
        """The runtime's way to the handlers."""
        return RegistryHandlers(registry, default_queue)

    def _prepare_queue(self, queue: Queue) -> None:
        """A queue came into being: give it the facade's rules, as data."""
        queue.history = self._history
        queue.max_waiting = self._max_waiting.get(queue.name)
        if self._keeper is not None:
            # At once: to begin with thousands of jobs in it takes as long as there are many.
            self._keeper.capture.track(queue)

    def __repr__(self) -> str:
        return f"<Engine {self._state.value}, queues {', '.join(self.runtime.core.queues) or '(none yet)'}>"

    # --- schedules -----------------------------------------------------------------------------------------------

    async def schedule(
        self,
        id: str,
        job: JobDefinition[P, Any],
        payload: P,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        immediately: bool = False,
        catch_up: CatchUp = "once",
    ) -> ScheduleView | None:
        """
        Run a job again and again; scheduling the same id anew replaces the schedule and its pending run.

        At most one run of a schedule is pending; the next one is planned when one starts, so a slow run delays nothing
        but what would overlap it.

        Args:
            id: Of the schedule, any text; unique in the job's queue.
            every: Interval; the first run is due at once, or at `start`.
            cron: Five fields, or six with leading seconds, or an alias such as "@daily".
            tz: Time zone of `cron`, None is UTC. A time that a change of the clock skips runs when the gap is over, one
                that it repeats runs once.
            limit: Runs at most.
            start, end: Aware datetimes; no run before the one, and none is planned once the other is over. An interval
                plans without a look at `end`, so its last run may come up to one interval later, as on BullMQ.
            immediately: The first run of a `cron` is due at once.
            catch_up: Of moments that passed while nothing could run: "once" runs one late, "all" each, "skip" none.

        Returns:
            The schedule, None if nothing is left to run.

        Raises:
            InvalidOptionError, InvalidPayloadError: Refused; nothing has changed.
            JobSchedulerError: Jobs of the schedule take the ids of its next runs.
            SnapshotUnavailableError: A write_through snapshot could not store it; it runs in memory all the same.
        """
        view = self._schedule(
            id,
            job,
            payload,
            every=every,
            cron=cron,
            tz=tz,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
            catch_up=catch_up,
        )
        if self.hold:
            await self.settle_schedule(job.queue or self.default_queue, id)
        return view

    def schedule_sync(
        self,
        id: str,
        job: JobDefinition[P, Any],
        payload: P,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        immediately: bool = False,
        catch_up: CatchUp = "once",
    ) -> ScheduleView | None:
        """
        As `schedule`, from any thread.

        Raises:
            BlockingCallError: A loop runs in this thread, and the call would have to wait for the store.
        """
        if self.hold:
            self.refuse_in_loop("schedule_sync with a write_through snapshot", "await engine.schedule()")
        view = self._schedule(
            id,
            job,
            payload,
            every=every,
            cron=cron,
            tz=tz,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
            catch_up=catch_up,
        )
        if self.hold:
            self.settle_schedule_sync(job.queue or self.default_queue, id)
        return view

    def _schedule(self, id: str, job: JobDefinition[P, Any], payload: P, **options: Any) -> ScheduleView | None:
        """As `schedule`, without waiting for a store."""
        if not self.takes_dispatches:
            self.refuse_dispatch()
        plan = self._plans.get(job) or self._plan(job)
        data = plan.encode(payload)
        repeat = read_schedule(
            id,
            **options,
            now_ms=self.runtime.clock.now_ms(),
            priority=plan.priority,
            lifo=plan.opts.lifo,
        )
        with self.runtime.lock:
            record = self.runtime.core.upsert_scheduler(
                plan.queue, id, plan.name, data, repeat, plan.opts, self.runtime.now_ms(), next_match=next_match
            )
            view = None if record is None else ScheduleView.of(plan.queue.schedulers[id], plan.queue.name)
        self.runtime.changed(plan.queue.name)
        return view

    # --- reading ------------------------------------------------------------------------------------------------

    def find(self, job: JobDefinition[Any, Any], id: str) -> JobView | None:
        """See `JobDefinition.find`."""
        check_known_id(id)
        self.refuse_forked()
        self.refuse_unread()
        plan = self._plans.get(job) or self._plan(job)
        with self.runtime.lock:
            record = plan.queue.index.get(id)
            return JobView(record, plan.queue.name) if record is not None and record.name == job.name else None

    def queue(self, name: str) -> QueueView:
        """
        A view of a queue: counts, lists, pausing, and changes to single jobs.

        Raises:
            InvalidOptionError: Not a name of a queue.
        """
        check_name(name, "queue")
        with self.runtime.lock:
            worker = self.runtime.worker(name)
        return QueueView(self, worker)

    async def failed_jobs(self, queue: str = "default", start: int = 0, end: int = 49) -> list[FailedJob]:
        """Jobs that have failed for good, newest first; `start` and `end` are positions, both included."""
        return self.failed_jobs_sync(queue, start, end)

    def failed_jobs_sync(self, queue: str = "default", start: int = 0, end: int = 49) -> list[FailedJob]:
        """As `failed_jobs`, from any thread."""
        check_page(start, end)
        self.refuse_unread()
        view = self.queue(queue)
        with self.runtime.lock:
            return [
                FailedJob(job, queue, self)
                for job in self.runtime.core.jobs(view.record, ("failed",), start, end, False)
            ]

    async def retry_failed_job(self, id: str, queue: str = "default") -> None:
        """
        Run a failed job again: one more attempt, whatever its `attempts` says, as on BullMQ.

        Raises:
            FailedJobNotFoundError: There is no failed job with that id.
        """
        self.retry_failed_job_sync(id, queue)

    def retry_failed_job_sync(self, id: str, queue: str = "default") -> None:
        """As `retry_failed_job`, from any thread."""
        check_known_id(id)
        self.refuse_stopped()
        self.refuse_unread()
        view = self.queue(queue)
        with self.runtime.lock:
            record = view.record.index.get(id)
            if record is None or record.state is not FAILED:
                what = "there is no job with this id" if record is None else f"it is {record.state}"
                raise FailedJobNotFoundError(f"no failed job {id!r} in queue {queue!r}: {what}", id=id)
            self.runtime.core.retry(view.record, id, self.runtime.now_ms())
        self.runtime.changed(queue)

    # --- events and health --------------------------------------------------------------------------------------

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """
        Call a listener for every event of a name ("*": of any), with BullMQ's names and fields.

        Listeners run on the engine's loop, outside its lock, in the order of the events; async ones are started as
        tasks. What one raises is logged and does not concern the job.

        Returns:
            A function that unsubscribes.

        Raises:
            InvalidOptionError: There is no such event.
        """
        stop = self._hub.add(event, listener)
        self._listen()

        def unsubscribe() -> None:
            stop()
            self._listen()

        return unsubscribe

    def events(self, *names: str, maxsize: int = 1000) -> AsyncIterator[EngineEvent]:
        """
        The events from now on, as an async iterator: from this call, not from the first step of the loop.

        Args:
            names: Which; none means all.
            maxsize: How many may wait to be read; beyond it the oldest are dropped, and `EngineEvent.missed` of the
                next one says how many.
        """
        stream = self._hub.stream(names, maxsize)
        self._listen()
        return self._read(stream)

    async def _read(self, stream: EventStream) -> AsyncIterator[EngineEvent]:
        try:
            while (event := await stream.get()) is not None:
                yield event
        finally:
            stream.close()
            self._listen()

    def _listen(self) -> None:
        """Have the core build events only while somebody wants them."""
        with self.runtime.lock:
            self.runtime.core.listening = bool(self._hub)

    def health(self) -> dict[str, Any]:
        """How the engine is: state, loop lag, and per queue its slots, counts and the age of the oldest waiting job."""
        runtime = self.runtime
        with runtime.lock:
            now_ms = runtime.clock.now_ms()
            queues = {}
            for name, queue in runtime.core.queues.items():
                worker = runtime.worker(name)
                oldest = runtime.core.oldest_waiting_ms(queue)
                queues[name] = {
                    "slots": worker.concurrency,
                    "busy": worker.busy,
                    "abandoned": len(worker.abandoned),
                    "paused": queue.paused,
                    "counts": runtime.core.counts(queue),
                    "oldest_waiting_age_ms": None if oldest is None else max(0, now_ms - oldest),
                }
        return {
            "state": self._state.value,
            "loop_lag_ms": round(runtime.loop_lag_s * 1000, 3),
            "pid": os.getpid(),
            **self.snapshot_health(),
            "queues": queues,
        }

    # --- hosting inside a loop ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A body that raised wants out, not to run all that is ready first.
        await self.astop(drain=False if error is not None else None)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """For Starlette and FastAPI: `FastAPI(lifespan=engine.lifespan)`."""
        async with self:
            yield


async def failed_jobs(queue: str = "default", start: int = 0, end: int = 49) -> list[FailedJob]:
    """As `Engine.failed_jobs`, on the handler's own engine, else the newest of the default registry."""
    return await DEFAULT_REGISTRY.engine_for("failed_jobs").failed_jobs(queue, start, end)


async def retry_failed_job(id: str, queue: str = "default") -> None:
    """As `Engine.retry_failed_job`, on the handler's own engine, else the newest of the default registry."""
    await DEFAULT_REGISTRY.engine_for("retry_failed_job").retry_failed_job(id, queue)
