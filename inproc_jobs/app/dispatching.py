"""
How dispatches come in: checked in full, encoded, added under the lock, answered with a receipt.

The usual dispatch, with at most an id and a delay, is written out in `submit_plain`: it is the hottest path there is.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from inproc_jobs.app.bulk import Bulk
from inproc_jobs.app.definition import JobDefinition, Registry
from inproc_jobs.app.flows import FlowNode, FlowReceipt, PlannedFlow
from inproc_jobs.app.keeping import KeptEngine
from inproc_jobs.app.options import (
    Deduplication,
    DispatchOptions,
    Layer,
    RareDispatchOptions,
    check_job_id,
    check_timestamp,
    job_options,
    merge,
    read_deduplication,
    read_layer,
)
from inproc_jobs.app.receipt import DispatchedJob
from inproc_jobs.core import options as core_options
from inproc_jobs.core.adding import Duplicate
from inproc_jobs.core.durations import parse_ms, run_at_ms
from inproc_jobs.core.job import ABSOLUTE_DUE, CUSTOM_ID, DUE_BITS, LIFO, Job
from inproc_jobs.core.json_values import encode_json
from inproc_jobs.core.options import JobOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import DELAYED, REMOVED
from inproc_jobs.errors import (
    InprocJobsError,
    InvalidOptionError,
    InvalidOptionTypeError,
    InvalidPayloadError,
    JobIdTakenError,
)
from inproc_jobs.runtime.runtime import Runtime
from inproc_jobs.runtime.worker import QueueWorker
from inproc_jobs.snapshot.config import Snapshot

P = TypeVar("P")
__all__ = ["DispatchingEngine", "Plan", "Prepared"]

BULK_SLICE_S: Final = 0.002
"""How long work over many jobs holds the lock and the loop at a time (DESIGN 2.9)."""
_NO_LAYER: Final = Layer()

Prepared = tuple[
    "Plan",
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


class Plan:
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


class DispatchingEngine(KeptEngine):
    """An engine that takes dispatches, alone, in bulk, and as flows."""

    watches_adds = False
    """Whether `_add` is overridden, so that every dispatch has to go through it."""

    def __init__(
        self,
        runtime: Runtime,
        shutdown_timeout_ms: int,
        snapshot: Snapshot | None,
        *,
        registry: Registry,
        default_queue: str,
        defaults: Layer,
        context_vars: tuple[ContextVar[Any], ...],
    ) -> None:
        super().__init__(runtime, shutdown_timeout_ms, snapshot)
        self.registry = registry
        self.default_queue = default_queue
        self._defaults = defaults
        self._context_vars = context_vars
        self._plans: dict[JobDefinition[Any, Any], Plan] = {}
        self._warned: set[str] = set()

    def queues_of_jobs(self) -> Iterable[str]:
        """See `KeptEngine.queues_of_jobs`."""
        jobs = map(self.registry.get, self.registry.names())
        return {job.queue or self.default_queue for job in jobs if job is not None}

    def start_over(self) -> None:
        """As before; plans name queues that are gone then."""
        super().start_over()
        self._plans.clear()

    # --- dispatching --------------------------------------------------------------------------------------------

    def _plan(self, job: JobDefinition[Any, Any]) -> Plan:
        plan = self._plans.get(job)
        if plan is None:
            base = merge(job.layer, self._defaults)
            with self.runtime.lock:
                worker = self.runtime.worker(job.queue or self.default_queue)
            plan = self._plans[job] = Plan(
                job, base, worker, bool(self._context_vars or self.hold or self.watches_adds)
            )
            self._warn_idle_backoff(job.name, plan.opts)
        return plan

    def _warn_idle_backoff(self, name: str, opts: JobOptions) -> None:
        """A backoff without attempts does nothing, and many believe otherwise (case C69)."""
        if opts.backoff is not None and opts.attempts <= 1 and name not in self._warned:
            self._warned.add(name)
            self.runtime.log.warning("backoff has no effect without attempts; set attempts to 2 or more", job_name=name)

    def submit_plain(
        self, job: JobDefinition[Any, Any], payload: Any, job_id: str | None, delay: Any
    ) -> DispatchedJob[Any]:
        """`submit` for a dispatch with at most an id and a delay."""
        plan = self._plans.get(job)
        if plan is None or not plan.is_plain or not self.takes_dispatches:
            return self.submit(job, payload, job_id, delay, None, None, None, None, None, None)
        name, queue = plan.name, plan.queue
        known = None
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
        runtime.refuse_reentry()
        if not plan.worker.summoned:
            self.refuse_dead_loop()
        with runtime.lock:
            living = core.living(queue, id) if id else None
            if living is not None:
                if living.name != name:
                    raise JobIdTakenError(id, living.name, living.state)
                core.count_duplicate(queue, living)
                receipt: DispatchedJob[Any] = DispatchedJob(id, name, queue.name, True, living.state, living, self)
            else:
                answer = core.add(
                    queue, name, data, plan.opts, runtime.now_ms(), id=id, delay=delay_ms, priority=plan.priority
                )
                receipt = self._answer(plan, answer)
            news = core.events or core.ended
        if news:
            runtime.flush()
        return receipt

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
        return self._submit_any(
            self.prepare(job, payload, job_id, delay, run_at, priority, lifo, deduplication, timestamp, layer)
        )

    def _submit_any(self, prepared: Prepared) -> DispatchedJob[Any]:
        """A dispatch with any options."""
        runtime = self.runtime
        runtime.refuse_reentry()
        self.refuse_dead_loop()
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
        plan: Plan,
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
        queue, name = plan.queue, plan.name
        if id:
            self.check_name_of(queue, id, name)
        answer = self.runtime.core.add(
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
        return self._answer(plan, answer)

    def _answer(self, plan: Plan, answer: Job | Duplicate) -> DispatchedJob[Any]:
        """Have a new job run, and write the receipt. Lock held."""
        if type(answer) is not Job:
            return self._duplicate_receipt(cast(Duplicate, answer), plan.name, plan.queue.name)
        state = answer.state
        if state is DELAYED:
            due_ms = answer.order >> DUE_BITS
            if due_ms < self.runtime.wake_at_ms:
                self.runtime.note_delayed(due_ms)
        else:
            worker = plan.worker
            if not worker.summoned and worker.busy < worker.concurrency:
                self.runtime.summon(worker)
        return DispatchedJob(answer.id, plan.name, plan.queue.name, False, state, answer, self)

    def check_name_of(self, queue: Queue, id: str, name: str) -> None:
        """Refuse an id that a job of another name has. Lock held."""
        known = self.runtime.core.living(queue, id)
        if known is not None and known.name != name:
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
        """As `submit_many`, from any thread, and as `submit_sync` with a store that has to be waited for."""
        if self.hold:
            self.refuse_in_loop("dispatch_many_sync with a write_through snapshot", "await job.dispatch_many()")
        receipts = [receipt for some in self._bulk(job, jobs) for receipt in some]
        if self.hold:
            self.settle_sync(receipts)
        return receipts

    def _bulk(
        self, job: JobDefinition[Any, Any], jobs: Iterable[tuple[Any, DispatchOptions | None]]
    ) -> Iterator[list[DispatchedJob[Any]]]:
        """Slices of receipts. Everything is read and checked before the first add."""
        return Bulk(self, job, jobs, BULK_SLICE_S).slices()

    # --- flows ------------------------------------------------------------------------------------

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

    def flow_receipt(self, answer: Job | Duplicate | InprocJobsError, plan: Plan) -> DispatchedJob[Any]:
        """The receipt of one job of a flow. Lock held."""
        if isinstance(answer, InprocJobsError):
            raise answer
        if isinstance(answer, Job):
            return DispatchedJob(answer.id, plan.name, plan.queue.name, False, answer.state, answer, self)
        return self._duplicate_receipt(answer, plan.name, plan.queue.name)

    def encode_for(self, name: str, payload: Any) -> bytes:
        """A payload as JSON text, by the type of the handler of that name if there is one."""
        job = self.registry.get(name)
        return encode_json(payload) if job is None else job.handler.codec.encode(payload)

    async def wait_end(self, future: Future[Job], seconds: float | None) -> None:
        """Wait for the end of a job, for a receipt's `result`."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise TimeoutError(f"the job has not ended within {seconds} s; it goes on") from error

    def wait_end_sync(self, future: Future[Job], seconds: float | None) -> None:
        """As `wait_end`, blocking."""
        try:
            # Longer waits overflow the platform's clock, and are as good as endless.
            future.result(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        except TimeoutError as error:
            raise TimeoutError(f"the job has not ended within {seconds} s; it goes on") from error

    def forget_definition(self, name: str) -> None:
        """A name was defined anew: runs that start from now on use the new handler."""
        self.runtime.forget_bindings(name)


def _check_size(data: bytes, limit: int, name: str) -> None:
    if len(data) > limit:
        raise InvalidPayloadError(
            f"payload of {name!r} has {len(data)} bytes, over its size_limit of {limit}; store it elsewhere and send a key",
            path="payload",
        )


_DISPATCH_OPTIONS: Final = ("job_id", "delay", *RareDispatchOptions.__annotations__)
_OWN_OPTIONS: Final = ("job_id", "delay", "run_at", "priority", "lifo", "deduplication", "timestamp")


def _split_options(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of `submit` after the payload, from a dict of dispatch options."""
    shared: dict[str, Any] = {}
    for option, value in options.items():
        if option not in _DISPATCH_OPTIONS:
            raise InvalidOptionTypeError(
                f"dispatch has no option {option!r}; it takes {', '.join(_DISPATCH_OPTIONS)}",
                option=option,
                value=value,
            )
        if option not in _OWN_OPTIONS and value is not None:
            shared[option] = value
    layer = read_layer(shared, "dispatch") if shared else None
    return (*(options.get(option) for option in _OWN_OPTIONS), layer)
