"""
`Engine`: the facade. It joins core, runtime, registry and log, and checks what comes in.

Where it runs is the business of `hosting`; what a queue can be asked is in `queue_view`.
"""

from __future__ import annotations

import asyncio
import os
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from inproc_jobs.app.bulk import Bulk
from inproc_jobs.app.definition import DEFAULT_REGISTRY, JobDefinition, Registry
from inproc_jobs.app.flows import FlowNode, FlowReceipt, PlannedFlow
from inproc_jobs.app.hosting import RunSummary, StopReport
from inproc_jobs.app.keeping import KeptEngine
from inproc_jobs.app.options import (
    Deduplication,
    DispatchOptions,
    Duration,
    Layer,
    check_job_id,
    check_known_id,
    check_name,
    check_page,
    check_timestamp,
    job_options,
    merge,
    read_deduplication,
    read_layer,
)
from inproc_jobs.app.queue_view import QueueView
from inproc_jobs.app.receipt import DispatchedJob
from inproc_jobs.app.schedules import CatchUp, ScheduleView, read_schedule
from inproc_jobs.app.settings import (
    check_clock,
    check_context_vars,
    check_engine_number,
    check_history,
    read_queue_settings,
)
from inproc_jobs.app.views import FailedJob, JobView
from inproc_jobs.core import options as core_options
from inproc_jobs.core.adding import Duplicate
from inproc_jobs.core.durations import parse_ms, run_at_ms
from inproc_jobs.core.job import ABSOLUTE_DUE, CUSTOM_ID, DUE_BITS, LIFO, Job
from inproc_jobs.core.json_values import encode_json
from inproc_jobs.core.options import JobOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import DELAYED, FAILED, REMOVED
from inproc_jobs.errors import (
    FailedJobNotFoundError,
    InprocJobsError,
    InvalidOptionError,
    InvalidOptionTypeError,
    InvalidPayloadError,
    JobIdTakenError,
)
from inproc_jobs.observe.listeners import EngineEvent, EventStream, Listener, ListenerHub
from inproc_jobs.observe.logs import EngineLog
from inproc_jobs.runtime.clock import Clock, SystemClock
from inproc_jobs.runtime.cron import next_match
from inproc_jobs.runtime.handlers import Handler
from inproc_jobs.runtime.ports import Handlers, Strategy
from inproc_jobs.runtime.runtime import Runtime
from inproc_jobs.runtime.worker import QueueWorker
from inproc_jobs.snapshot.config import Snapshot

if TYPE_CHECKING:
    from typing import Self

P = TypeVar("P")
__all__ = ["Engine", "RunSummary", "StopReport", "failed_jobs", "retry_failed_job"]

BULK_SLICE_S: Final = 0.002
"""How long work over many jobs holds the lock and the loop at a time (DESIGN 2.9)."""
_NO_LAYER: Final = Layer()


Prepared = tuple[
    "_Plan",
    bytes,
    JobOptions,
    str,
    float,
    int | None,
    int | None,
    int,
    int,
    "core_options.Deduplication | None",
    "dict[str, Any] | None",
]
"""What `Engine.prepare` hands to `Engine.add_prepared`: a tuple, since this is the hottest path there is."""


class _Plan:
    """What a dispatch of one definition needs, resolved once per engine."""

    __slots__ = ("base", "delay_ms", "encode", "index", "is_plain", "name", "opts", "priority", "queue", "worker")

    def __init__(self, job: JobDefinition[Any, Any], base: Layer, worker: QueueWorker, special: bool) -> None:
        self.name = job.name
        self.base = base
        self.opts = job_options(base)
        self.priority = base.priority or 0
        self.delay_ms = base.delay_ms or 0
        self.worker = worker
        self.queue = worker.queue
        self.index = worker.queue.index
        self.encode = job.handler.codec.encode
        self.is_plain = self.opts.size_limit is None and not special


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


class Engine(KeptEngine):
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
        self.registry = DEFAULT_REGISTRY if registry is None else registry
        self.default_queue = check_name(default_queue, "queue")
        self._defaults = read_layer({} if default_job_options is None else default_job_options, "default_job_options")
        self._history = check_history({}) if history is None else check_history(history)
        self._context_vars = check_context_vars(context_vars)
        self._hub = ListenerHub()
        self._log = EngineLog()
        self._plans: dict[JobDefinition[Any, Any], _Plan] = {}
        self._warned: set[str] = set()
        runtime = Runtime(
            clock or SystemClock(),
            self._make_handlers(),
            self._hub,
            self._log,
            concurrency=concurrency,
            max_starts_per_second=max_starts_per_second,
        )
        super().__init__(runtime, parse_ms(shutdown_timeout, option="shutdown_timeout", bare="refuse"), snapshot)
        runtime.owner = weakref.ref(self)
        runtime.prepare_queue = self._prepare_queue
        runtime.context_vars = self._context_vars
        self._max_waiting = {name: setting.max_waiting for name, setting in settings.items()}
        for name, setting in settings.items():
            runtime.add_worker(name, setting.concurrency, setting.limiter)
        self.registry.serve(self)

    def _make_handlers(self) -> Handlers:
        """The runtime's way to the handlers."""
        return RegistryHandlers(self.registry, self.default_queue)

    def _prepare_queue(self, queue: Queue) -> None:
        """A queue came into being: give it the facade's rules, as data."""
        queue.history = self._history
        queue.max_waiting = self._max_waiting.get(queue.name)

    def __repr__(self) -> str:
        return f"<Engine {self._state.value}, queues {', '.join(self.runtime.core.queues) or '(none yet)'}>"

    # --- dispatching --------------------------------------------------------------------------------------------

    def _plan(self, job: JobDefinition[Any, Any]) -> _Plan:
        plan = self._plans.get(job)
        if plan is None:
            base = merge(job.layer, self._defaults)
            with self.runtime.lock:
                worker = self.runtime.worker(job.queue or self.default_queue)
            plan = self._plans[job] = _Plan(job, base, worker, bool(self._context_vars or self.hold))
            self._warn_idle_backoff(job.name, plan.opts)
        return plan

    def _warn_idle_backoff(self, name: str, opts: JobOptions) -> None:
        """A backoff without attempts does nothing, and many believe otherwise (case C69)."""
        if opts.backoff is not None and opts.attempts <= 1 and name not in self._warned:
            self._warned.add(name)
            self._log.warning("backoff has no effect without attempts; set attempts to 2 or more", job_name=name)

    def submit(
        self,
        job: JobDefinition[Any, Any],
        payload: Any,
        job_id: str | None,
        delay: Any,
        run_at: datetime | None,
        priority: int | None,
        lifo: bool | None,
        deduplication: Deduplication | Mapping[str, Any] | None,
        timestamp: int | datetime | None,
        layer: Layer | None,
    ) -> DispatchedJob[Any]:
        """One dispatch, checked in full before anything changes. See `JobDefinition.dispatch`."""
        plan = self._plans.get(job)
        if (
            plan is None
            or not self.takes_dispatches
            or not plan.is_plain
            or run_at is not None
            or priority is not None
            or lifo is not None
            or deduplication is not None
            or timestamp is not None
            or layer is not None
        ):
            return self._submit_any(
                self.prepare(job, payload, job_id, delay, run_at, priority, lifo, deduplication, timestamp, layer)
            )
        # The usual dispatch, with at most an id and a delay, written out: it is the hottest path there is.
        if job_id is None:
            id = ""
        else:
            known = plan.index.get(job_id) if type(job_id) is str else None
            # An own id that is there was checked when it came.
            id = job_id if known is not None and known.flags & CUSTOM_ID else check_job_id(job_id)
        delay_ms = plan.delay_ms if delay is None else parse_ms(delay, option="delay")
        data = plan.encode(payload)
        runtime = self.runtime
        core = runtime.core
        with runtime.lock:
            receipt = self._add(plan, data, plan.opts, id, delay_ms, None, plan.priority, 0, None, runtime.now_ms())
            news = core.events or core.ended
        if news:
            runtime.flush()
        return receipt

    def _submit_any(self, prepared: Prepared) -> DispatchedJob[Any]:
        """A dispatch with any options."""
        runtime = self.runtime
        with runtime.lock:
            receipt = self.add_prepared(prepared)
            news = runtime.has_news()
        if news:
            runtime.flush()
        return receipt

    def prepare(
        self,
        job: JobDefinition[Any, Any],
        payload: Any,
        job_id: str | None,
        delay: Any,
        run_at: datetime | None,
        priority: int | None,
        lifo: bool | None,
        deduplication: Deduplication | Mapping[str, Any] | None,
        timestamp: int | datetime | None,
        layer: Layer | None,
    ) -> Prepared:
        """Check a dispatch in full and encode it; nothing changes."""
        if not self.takes_dispatches:
            self.refuse_dispatch()
        if self.hold:
            self.before_held_dispatch()
        plan = self._plans.get(job) or self._plan(job)
        opts = plan.opts
        if layer is not None:
            opts = job_options(merge(layer, plan.base))
            self._warn_idle_backoff(job.name, opts)
        rank, flags = plan.priority, 0
        if priority is not None or lifo is not None:
            given = read_layer({"priority": priority, "lifo": lifo}, "dispatch")
            rank = rank if given.priority is None else given.priority
            flags = LIFO if given.lifo else 0
            if given.lifo is False and opts.lifo:
                opts = job_options(merge(given, layer or _NO_LAYER, plan.base))
        delay_ms = plan.delay_ms if delay is None else parse_ms(delay, option="delay")
        rule = None
        if deduplication is not None:
            mode = read_deduplication(deduplication)
            rule = mode.rule
            if mode.delay_ms is not None and delay is None and run_at is None:
                delay_ms = mode.delay_ms
        due = None
        if run_at is not None:
            if delay is not None:
                raise InvalidOptionError("give delay or run_at, not both", option="run_at", value=run_at)
            due = run_at_ms(run_at)
            flags |= ABSOLUTE_DUE
        id = "" if job_id is None else check_job_id(job_id)
        created = None if timestamp is None else check_timestamp(timestamp)
        data = plan.encode(payload)
        if opts.size_limit is not None:
            _check_size(data, opts.size_limit, job.name)
        captured = self._capture() if self._context_vars else None
        return plan, data, opts, id, delay_ms, due, created, rank, flags, rule, captured

    def add_prepared(self, prepared: Prepared) -> DispatchedJob[Any]:
        """Add what `prepare` has checked, and have it run. Lock held."""
        plan, data, opts, id, delay_ms, due, created, rank, flags, rule, captured = prepared
        now_ms = self.runtime.now_ms()
        if due is not None:
            delay_ms = due - (now_ms if created is None else created)
        receipt = self._add(plan, data, opts, id, delay_ms, created, rank, flags, rule, now_ms)
        if captured and not receipt.duplicate and receipt._job is not None:  # noqa: SLF001  # the facade's own record
            receipt._job.more().context = captured  # noqa: SLF001
        return receipt

    def _add(
        self,
        plan: _Plan,
        data: bytes,
        opts: JobOptions,
        id: str,
        delay_ms: float,
        created: int | None,
        rank: int,
        flags: int,
        rule: core_options.Deduplication | None,
        now_ms: int,
    ) -> DispatchedJob[Any]:
        """Add a checked job, have it run, and write the receipt. Lock held."""
        runtime, queue, name = self.runtime, plan.queue, plan.name
        if id:
            known = plan.index.get(id)
            if known is not None and known.name != name:
                self.check_name_of(queue, id, name)
        answer = runtime.core.add(
            queue,
            name,
            data,
            opts,
            now_ms,
            id=id,
            delay=delay_ms,
            priority=rank,
            timestamp=created,
            flags=flags | self.hold,
            deduplication=rule,
        )
        if type(answer) is not Job:
            return self._duplicate_receipt(cast(Duplicate, answer), name, queue.name)
        state = answer.state
        if state is DELAYED:
            due_ms = answer.order >> DUE_BITS
            if due_ms < runtime.wake_at_ms:
                runtime.note_delayed(due_ms)
        else:
            worker = plan.worker
            if not worker.summoned and worker.busy < worker.concurrency:
                runtime.summon(worker)
        return DispatchedJob(answer.id, name, queue.name, False, state, answer, self)

    def check_name_of(self, queue: Queue, id: str, name: str) -> None:
        """Refuse an id that a job of another name has. Lock held."""
        known = queue.index.get(id)
        if known is not None and known.name != name and not self.runtime.core.id_is_free(known):
            raise JobIdTakenError(id, known.name, known.state)

    def _duplicate_receipt(self, answer: Duplicate, name: str, queue: str) -> DispatchedJob[Any]:
        """Describe the job that won; one that is gone (its deduplication key outlived it) is told as removed."""
        known = answer.job
        if known is None:
            return DispatchedJob(answer.id, name, queue, True, REMOVED, None, self)
        return DispatchedJob(known.id, known.name, queue, True, known.state, known, self)

    def _capture(self) -> dict[str, Any] | None:
        """Values of the context variables that jobs take over; those that are not set stay unset."""
        context = copy_context()
        return {var.name: context[var] for var in self._context_vars if var in context} or None

    def submit_sync(self, job: JobDefinition[Any, Any], payload: Any, options: Mapping[str, Any]) -> DispatchedJob[Any]:
        """
        One dispatch from a thread.

        Raises:
            BlockingCallError: A loop runs in this thread, and the dispatch would have to wait for the store.
        """
        if not self.hold:
            return self.submit_with(job, payload, options)
        self.refuse_in_loop("dispatch_sync with a write_through snapshot", "await job.dispatch()")
        receipt = self.submit_with(job, payload, options)
        self.settle_sync((receipt,))
        return receipt

    def submit_with(self, job: JobDefinition[Any, Any], payload: Any, options: Mapping[str, Any]) -> DispatchedJob[Any]:
        """One dispatch with its options as a dict."""
        return self.submit(job, payload, *_split_options(options))

    def prepare_with(self, job: JobDefinition[Any, Any], payload: Any, options: Mapping[str, Any]) -> Prepared:
        """As `prepare`, with the options as a dict."""
        return self.prepare(job, payload, *_split_options(options))

    async def submit_many(
        self, job: JobDefinition[Any, Any], jobs: Iterable[tuple[Any, DispatchOptions | None]]
    ) -> list[DispatchedJob[Any]]:
        """Check all, then add all in slices that give way to the loop."""
        receipts: list[DispatchedJob[Any]] = []
        for some in self._bulk(job, jobs):
            receipts += some
            await asyncio.sleep(0)
        return receipts

    def submit_many_sync(
        self, job: JobDefinition[Any, Any], jobs: Iterable[tuple[Any, DispatchOptions | None]]
    ) -> list[DispatchedJob[Any]]:
        """As `submit_many`, from any thread."""
        return [receipt for some in self._bulk(job, jobs) for receipt in some]

    def _bulk(
        self, job: JobDefinition[Any, Any], jobs: Iterable[tuple[Any, DispatchOptions | None]]
    ) -> Iterator[list[DispatchedJob[Any]]]:
        """Slices of receipts. Everything is read and checked before the first add."""
        return Bulk(self, job, jobs, BULK_SLICE_S).slices()

    # --- flows and schedules ------------------------------------------------------------------------------------

    async def flow(self, root: FlowNode) -> FlowReceipt:
        """
        Add a tree of jobs in one step; a parent runs once its children are done (`ctx.children_values()`).

        Args:
            root: `job.node(payload, children=[other.node(...), ...])`; the queues may differ.

        Raises:
            InvalidOptionError, InvalidPayloadError: A node is wrong; nothing was added.
            JobIdTakenError, QueueFullError: As for a dispatch; nothing was added.
        """
        receipt = self._add_flow(root)
        if self.settles:
            await self.settle(receipt)
        return receipt

    def flow_sync(self, root: FlowNode) -> FlowReceipt:
        """As `flow`, from any thread."""
        if self.hold:
            self.refuse_in_loop("flow_sync with a write_through snapshot", "await engine.flow()")
        receipt = self._add_flow(root)
        if self.hold:
            self.settle_sync(receipt)
        return receipt

    def _add_flow(self, root: FlowNode) -> FlowReceipt:
        planned = PlannedFlow(self, root, self.new_flow_id)
        with self.runtime.lock:
            receipt = planned.add()
        self.runtime.flush()
        return receipt

    def new_flow_id(self) -> str:
        """An id for a job of a flow that names none, as BullMQ draws them."""
        return str(uuid.uuid4())

    def flow_receipt(self, answer: Job | Duplicate | InprocJobsError, plan: _Plan) -> DispatchedJob[Any]:
        """The receipt of one job of a flow. Lock held."""
        if isinstance(answer, InprocJobsError):
            raise answer
        if isinstance(answer, Job):
            return DispatchedJob(answer.id, plan.name, plan.queue.name, False, answer.state, answer, self)
        return self._duplicate_receipt(answer, plan.name, plan.queue.name)

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
            tz: Time zone of `cron`, None is UTC. A time that a change of the clock skips runs at the shifted time, one
                that it repeats runs once.
            limit: Runs at most.
            start, end: Aware datetimes; no run before the one, or after the other.
            immediately: The first run of a `cron` is due at once.
            catch_up: Of moments that passed while nothing could run: "once" runs one late, "all" each, "skip" none.

        Returns:
            The schedule, None if nothing is left to run.

        Raises:
            InvalidOptionError, InvalidPayloadError: Refused; nothing has changed.
            JobSchedulerError: Jobs of the schedule take the ids of its next runs.
        """
        return self.schedule_sync(
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
        """As `schedule`, from any thread."""
        if not self.takes_dispatches:
            self.refuse_dispatch()
        plan = self._plans.get(job) or self._plan(job)
        data = plan.encode(payload)
        repeat = read_schedule(
            id,
            every=every,
            cron=cron,
            tz=tz,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
            catch_up=catch_up,
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

    def encode_for(self, name: str, payload: Any) -> bytes:
        """A payload as JSON text, by the type of the handler of that name if there is one."""
        job = self.registry.get(name)
        return encode_json(payload) if job is None else job.handler.codec.encode(payload)

    async def wait_end(self, future: Future[Job], seconds: float | None) -> None:
        """Wait for the end of a job, for a receipt's `result`."""
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(future)

    def wait_end_sync(self, future: Future[Job], seconds: float | None) -> None:
        """As `wait_end`, blocking."""
        future.result(seconds)

    def forget_definition(self, name: str) -> None:
        """A name was defined anew: runs that start from now on use the new handler."""
        self.runtime.forget_bindings(name)

    # --- reading ------------------------------------------------------------------------------------------------

    def find(self, job: JobDefinition[Any, Any], id: str) -> JobView | None:
        """See `JobDefinition.find`."""
        check_known_id(id)
        self.refuse_forked()
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
            while True:
                yield await stream.get()
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


def _check_size(data: bytes, limit: int, name: str) -> None:
    if len(data) > limit:
        raise InvalidPayloadError(
            f"payload of {name!r} has {len(data)} bytes, over its size_limit of {limit}; store it elsewhere and send a key",
            path="payload",
        )


_DISPATCH_OPTIONS: Final = tuple(DispatchOptions.__annotations__)
_OWN_OPTIONS: Final = ("job_id", "delay", "run_at", "priority", "lifo", "deduplication", "timestamp")


def _split_options(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of `submit` after the payload, from a dict of dispatch options."""
    shared: dict[str, Any] = {}
    for option, value in options.items():
        if option not in _DISPATCH_OPTIONS:
            raise InvalidOptionError(
                f"dispatch has no option {option!r}; it takes {', '.join(_DISPATCH_OPTIONS)}",
                option=option,
                value=value,
            )
        if option not in _OWN_OPTIONS and value is not None:
            shared[option] = value
    layer = read_layer(shared, "dispatch") if shared else None
    return (*(options.get(option) for option in _OWN_OPTIONS), layer)


async def failed_jobs(queue: str = "default", start: int = 0, end: int = 49) -> list[FailedJob]:
    """As `Engine.failed_jobs`, on the handler's own engine, else the newest of the default registry."""
    return await DEFAULT_REGISTRY.engine_for("failed_jobs").failed_jobs(queue, start, end)


async def retry_failed_job(id: str, queue: str = "default") -> None:
    """As `Engine.retry_failed_job`, on the handler's own engine, else the newest of the default registry."""
    await DEFAULT_REGISTRY.engine_for("retry_failed_job").retry_failed_job(id, queue)
