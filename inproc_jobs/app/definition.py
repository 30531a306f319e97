"""
`define_job` and what it gives: a name, a handler, options; and the registry that engines find them in.

A definition holds no state of an engine. It finds the engine at each call (DESIGN 4): the one whose handler is running
this code, else the one it was bound to, else the newest of its registry that was not stopped.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from inproc_jobs.app.flows import FlowNode, OnFailure
from inproc_jobs.app.lifecycle import LivingEngine
from inproc_jobs.app.options import (
    CUSTOM_BACKOFF,
    EXECUTORS,
    DispatchOptions,
    Duration,
    ExecutorName,
    Layer,
    RareDispatchOptions,
    check_name,
    read_layer,
)
from inproc_jobs.core.options import Backoff
from inproc_jobs.errors import InvalidHandlerError, InvalidOptionError, InvalidOptionTypeError, NoEngineError
from inproc_jobs.runtime.context import CURRENT_RUN, JobContext
from inproc_jobs.runtime.handlers import Handler, inspect_handler

if TYPE_CHECKING:
    from inproc_jobs.app.engine import Engine
    from inproc_jobs.app.receipt import DispatchedJob
    from inproc_jobs.app.views import JobView

__all__ = ["DEFAULT_REGISTRY", "JobDefinition", "Registry", "define_job"]

P = TypeVar("P")
R = TypeVar("R")
Retention = bool | int | Mapping[str, Any]
BackoffStrategy = Callable[[int, BaseException, Any], Any]
"""(attempts made, error, JobView) -> "2s", a timedelta, an int of ms, or None for no retry."""


class JobDefinition(Generic[P, R]):
    """
    A kind of job: made by `define_job`, dispatched from anywhere.

    Attributes:
        name: Name of the job; unique in its registry.
        queue: The queue given, None for the engine's default.
    """

    __slots__ = ("__weakref__", "_bound", "_layer", "_registry", "_strategy", "handler", "name", "queue")

    def __init__(
        self,
        registry: Registry,
        name: str,
        queue: str | None,
        handler: Handler,
        layer: Layer,
        strategy: BackoffStrategy | None,
        bound: Engine | None = None,
    ) -> None:
        self._registry = registry
        self._layer = layer
        self._strategy = strategy
        self._bound = bound
        self.name = name
        self.queue = queue
        self.handler = handler

    @property
    def layer(self) -> Layer:
        """Its own options, checked."""
        return self._layer

    @property
    def strategy(self) -> BackoffStrategy | None:
        """The callable that was given as backoff."""
        return self._strategy

    def __repr__(self) -> str:
        where = "" if self.queue is None else f" in {self.queue!r}"
        return f"<JobDefinition {self.name!r}{where}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler itself, for unit tests: no engine, no JSON, no retry."""
        return self.handler.fn(*args, **kwargs)

    def on(self, engine: Engine) -> JobDefinition[P, R]:
        """
        The same job, bound to an engine.

        Code that a handler runs stays with the engine that runs the handler, bound or not (DESIGN 4).

        Raises:
            NoEngineError: That engine serves another registry.
            InvalidOptionTypeError: It is no engine.
        """
        if not isinstance(engine, LivingEngine):
            raise InvalidOptionTypeError(
                f"job.on(engine) takes an Engine, got {type(engine).__name__}", option="engine", value=engine
            )
        if engine.registry is not self._registry:
            raise NoEngineError(
                f"job {self.name!r} belongs to another registry than this engine; give Engine(registry=...) its own"
            )
        return JobDefinition(self._registry, self.name, self.queue, self.handler, self._layer, self._strategy, engine)

    def _engine(self) -> Engine:
        run = CURRENT_RUN.get()
        if run is not None:
            engine = self._registry.engine_of(run.worker.runtime)
            if engine is not None:
                return engine
        if self._bound is not None:
            return self._bound
        engine = self._registry.current()
        return engine if engine is not None and engine.takes_dispatches else self._registry.newest(self.name)

    # --- dispatching --------------------------------------------------------------------------------------------

    async def dispatch(
        self,
        payload: P,
        *,
        job_id: str | None = None,
        delay: Duration | None = None,
        **options: Unpack[RareDispatchOptions],
    ) -> DispatchedJob[R]:
        """
        Ask for one run of this job; a no-op while a job with the same `job_id` is alive or kept.

        Args:
            payload: A JSON value, or the handler's payload type; encoded now, so later changes to it change nothing.
            job_id: Own id, any text but a number; None draws the next one.
            delay: "30s", a timedelta, or an int of ms: not before then. With `job_id` a debounce: the first dispatch
                fixes both the payload and the moment.
            run_at: An aware datetime instead of a delay.
            priority: 0 (none) to 2097151; jobs without one go first, then the lowest number.
            attempts: Runs at most, >= 1.
            backoff: Wait between attempts: a duration, or {"type", "delay", "jitter", "max_delay"}.
            lifo: Next in line instead of last.
            deduplication: Collapse by another key than the id; see `Deduplication`.
            remove_on_complete, remove_on_fail: True, False, a number, or {"count", "age", "limit"} (age in seconds).
            keep_logs: Lines kept of the job's log.
            size_limit: Bytes of the encoded payload at most.
            stack_trace_limit: Stack traces kept.
            timestamp: Moment of creation from which the delay counts, ms or an aware datetime; None is now.

        Returns:
            A receipt that describes the stored job: `created` or `duplicate`, its id and state.

        Raises:
            InvalidOptionError, InvalidPayloadError: Refused; nothing has changed.
            JobIdTakenError: A job of another name has the id.
            QueueFullError: The queue has its `max_waiting`.
            NoEngineError, EngineStoppedError, EngineNotStartedError: There is no engine to take it.

        Cost: O(1), O(log n) with a delay or a priority.
        """
        engine = self._engine()
        # Most dispatches have no other option, and Python takes its time over each default of a signature.
        if options:
            receipt = engine.submit_with(self, payload, {"job_id": job_id, "delay": delay, **options})
        else:
            receipt = engine.submit_plain(self, payload, job_id, delay)
        if engine.settles:
            await engine.settle((receipt,))
        return receipt

    def dispatch_sync(self, payload: P, **options: Unpack[DispatchOptions]) -> DispatchedJob[R]:
        """As `dispatch`, from any thread; inside a running loop too, since it does not block."""
        return self._engine().submit_sync(self, payload, options)

    async def dispatch_many(self, jobs: Iterable[tuple[P, DispatchOptions | None]]) -> list[DispatchedJob[R]]:
        """
        Dispatch many: all are checked before the first is added, and the loop gets a turn every few ms.

        Args:
            jobs: Pairs of a payload and its options (a dict, `job.options(...)`, or None).

        Returns:
            One receipt per pair, in order.

        Raises:
            As `dispatch`, for the first pair that is wrong (its index is in the message); nothing was added then.
        """
        engine = self._engine()
        receipts = await engine.submit_many(self, jobs)
        if engine.settles:
            await engine.settle(receipts)
        return receipts

    def dispatch_many_sync(self, jobs: Iterable[tuple[P, DispatchOptions | None]]) -> list[DispatchedJob[R]]:
        """As `dispatch_many`, from any thread."""
        return self._engine().submit_many_sync(self, jobs)

    @staticmethod
    def options(**options: Unpack[DispatchOptions]) -> DispatchOptions:
        """The options of one dispatch as a dict that type checkers know, for `dispatch_many`."""
        return options

    def node(
        self,
        payload: P,
        *,
        children: Iterable[FlowNode] = (),
        on_failure: OnFailure = "fail_parent",
        **options: Unpack[DispatchOptions],
    ) -> FlowNode:
        """
        This job as a part of a flow (`Engine.flow`): it runs once its children are done.

        Args:
            children: Nodes below it.
            on_failure: What its own final failure does to the job above it; see `OnFailure`.
            options: As for `dispatch`; without deduplication, and without colons in `job_id`.

        Raises:
            InvalidOptionError: An option is wrong.
        """
        return FlowNode(self, payload, options, tuple(children), on_failure)

    async def find(self, id: str) -> JobView | None:
        """The job of that id, or None when there is none or it belongs to a job of another name. Cost: O(1)."""
        return self.find_sync(id)

    def find_sync(self, id: str) -> JobView | None:
        """As `find`, from any thread."""
        return self._engine().find(self, id)


class DefineOptions(TypedDict, total=False):
    """What `define_job` takes besides name and handler."""

    queue: str | None
    attempts: int | None
    backoff: Any
    remove_on_complete: Retention | None
    remove_on_fail: Retention | None
    timeout: Duration | None
    executor: ExecutorName | None
    keep_logs: int | None
    size_limit: int | None
    stack_trace_limit: int | None


class Decorator(Protocol):
    """`define_job(name, ...)` without a handler: keeps payload and result types."""

    @overload
    def __call__(self, fn: Callable[[P], Awaitable[R]], /) -> JobDefinition[P, R]: ...
    @overload
    def __call__(self, fn: Callable[[P, JobContext], Awaitable[R]], /) -> JobDefinition[P, R]: ...
    @overload
    def __call__(self, fn: Callable[[P], R], /) -> JobDefinition[P, R]: ...
    @overload
    def __call__(self, fn: Callable[[P, JobContext], R], /) -> JobDefinition[P, R]: ...


class Registry:
    """
    Jobs by name. Each engine serves one registry; the module-level `define_job` uses a default one.

    Attributes:
        current: Called, it answers the engine that was made last, None if that is gone.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, JobDefinition[Any, Any]] = {}
        self._engines: list[weakref.ref[Engine]] = []
        self.current: Callable[[], Engine | None] = _no_engine
        self._lock = threading.Lock()

    @overload
    def define_job(self, name: str, *, handle: None = None, **options: Unpack[DefineOptions]) -> Decorator: ...
    @overload
    def define_job(
        self, name: str, *, handle: Callable[[P], Awaitable[R]], **options: Unpack[DefineOptions]
    ) -> JobDefinition[P, R]: ...
    @overload
    def define_job(
        self, name: str, *, handle: Callable[[P, JobContext], Awaitable[R]], **options: Unpack[DefineOptions]
    ) -> JobDefinition[P, R]: ...
    @overload
    def define_job(
        self, name: str, *, handle: Callable[[P], R], **options: Unpack[DefineOptions]
    ) -> JobDefinition[P, R]: ...
    @overload
    def define_job(
        self, name: str, *, handle: Callable[[P, JobContext], R], **options: Unpack[DefineOptions]
    ) -> JobDefinition[P, R]: ...

    def define_job(
        self,
        name: str,
        *,
        queue: str | None = None,
        attempts: int | None = None,
        backoff: Any = None,
        remove_on_complete: Retention | None = None,
        remove_on_fail: Retention | None = None,
        timeout: Duration | None = None,
        executor: ExecutorName | None = None,
        keep_logs: int | None = None,
        size_limit: int | None = None,
        stack_trace_limit: int | None = None,
        handle: Callable[..., Any] | None = None,
    ) -> Any:
        """
        Name a kind of job and give it a handler: as a decorator, or directly with `handle=`.

        Args:
            name: Any text; defining it again replaces the handler.
            queue: Its queue, None for the engine's `default_queue`.
            attempts: Runs at most, >= 1; None takes `default_job_options`, else 1.
            backoff: Wait between attempts: a duration; {"type": "fixed" | "exponential", "delay", "jitter" (0..1),
                "max_delay"}; or a callable (attempts_made, error, job) -> duration, or None for no retry.
            remove_on_complete, remove_on_fail: Not set: the id is free after the end, and the engine's `history` bounds
                what stays readable. True: gone at once. False: kept, and the id stays taken. A number, or
                {"count", "age", "limit"} with the age in seconds: BullMQ's rule.
            timeout: Longest attempt ("30s" or a timedelta); then it fails, and may be retried.
            executor: For plain functions: "thread" (the default), "inline" (on the loop), "process" (spawned).
            keep_logs: Lines kept of each job's log; None keeps all.
            size_limit: Bytes of an encoded payload at most.
            stack_trace_limit: Stack traces kept per job, the last ones; None keeps 10, 0 none.
            handle: The handler: `(payload)` or `(payload, ctx)`; async or plain.

        Returns:
            A `JobDefinition`, or the decorator that makes one.

        Raises:
            InvalidOptionError: An option is wrong.
            InvalidHandlerError: The handler cannot be used.
        """
        check_name(name, "name")
        if queue is not None:
            check_name(queue, "queue")
        if executor is not None and executor not in EXECUTORS:
            raise InvalidOptionError(
                f"executor {executor!r} is not known; use one of {', '.join(EXECUTORS)}",
                option="executor",
                value=executor,
            )
        strategy = cast("BackoffStrategy", backoff) if callable(backoff) else None
        layer = read_layer(
            {
                "attempts": attempts,
                "backoff": None if strategy is not None else backoff,
                "remove_on_complete": remove_on_complete,
                "remove_on_fail": remove_on_fail,
                "timeout": timeout,
                "keep_logs": keep_logs,
                "size_limit": size_limit,
                "stack_trace_limit": stack_trace_limit,
            },
            "define_job",
        )
        if strategy is not None:
            layer = msgspec.structs.replace(layer, backoff=Backoff(type=CUSTOM_BACKOFF))

        def define(fn: Callable[..., Any]) -> JobDefinition[Any, Any]:
            if isinstance(fn, JobDefinition):
                fn = fn.handler.fn
            handler = inspect_handler(fn, job_name=name, executor=executor)
            return self._add(JobDefinition(self, name, queue, handler, layer, strategy))

        if handle is None:
            return define
        if not callable(handle):
            raise InvalidHandlerError(f"handle of job {name!r} must be callable, got {type(handle).__name__}")
        return define(handle)

    def _add(self, job: JobDefinition[Any, Any]) -> JobDefinition[Any, Any]:
        with self._lock:
            self._jobs[job.name] = job
            engines = [engine for ref in self._engines if (engine := ref()) is not None]
        for engine in engines:
            engine.forget_definition(job.name)
        return job

    def get(self, name: str) -> JobDefinition[Any, Any] | None:
        """The current definition of a name."""
        return self._jobs.get(name)

    def names(self) -> Sequence[str]:
        """The defined names, in order of definition."""
        return tuple(self._jobs)

    # --- engines ------------------------------------------------------------------------------------------------

    def serve(self, engine: Engine) -> None:
        """An engine was made for this registry; it is held weakly."""
        with self._lock:
            self._engines = [ref for ref in self._engines if ref() is not None]
            self.current = weakref.ref(engine)
            self._engines.append(self.current)

    def newest(self, name: str) -> Engine:
        """The newest engine that was not stopped. Cost: O(1) unless newer ones were stopped."""
        stopped: Engine | None = None
        for ref in reversed(self._engines):
            engine = ref()
            if engine is not None:
                if not engine.was_stopped:
                    return engine
                stopped = stopped or engine
        if stopped is not None:
            stopped.refuse_stopped()
        raise NoEngineError(
            f"no engine for job {name!r}: make one with Engine(...) and keep it, or use job.on(engine); "
            "an engine serves the registry it was made with"
        )

    def engine_for(self, name: str) -> Engine:
        """The engine whose handler is running this code, else the newest that was not stopped (DESIGN 4)."""
        run = CURRENT_RUN.get()
        engine = None if run is None else self.engine_of(run.worker.runtime)
        return self.newest(name) if engine is None else engine

    def engine_of(self, runtime: Any) -> Engine | None:
        """The engine of this registry that runs on that runtime."""
        engine = cast("Engine | None", runtime.owner())
        return engine if engine is not None and engine.registry is self else None


def _no_engine() -> None:
    """What a registry answers before an engine was made for it."""


DEFAULT_REGISTRY: Final = Registry()
"""Where the module-level `define_job` puts its jobs, and what an `Engine()` serves."""

define_job = DEFAULT_REGISTRY.define_job
