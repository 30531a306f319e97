"""
`Harness`: what the fixture `jobs` gives, and `harness()` outside of pytest.

The engine is hosted on the loop in which the test runs (or on one of the harness's own for plain tests), with virtual
time; it takes jobs only while the harness is asked to run them, or while a test awaits a result.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

from inproc_jobs.app.definition import DEFAULT_REGISTRY, Registry
from inproc_jobs.app.lifecycle import RunSummary
from inproc_jobs.app.views import JobView
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.job import Job
from inproc_jobs.core.queue import Queue
from inproc_jobs.errors import BlockingCallError, InprocJobsError, InvalidOptionError
from inproc_jobs.runtime.runtime import MAX_TIMER_S, Runtime
from inproc_jobs.testing.engine import StampedEvents, TestedEngine
from inproc_jobs.testing.faults import Fault, Faults
from inproc_jobs.testing.ledger import Ledger, TimelineEntry
from inproc_jobs.testing.memory_store import MemorySnapshot
from inproc_jobs.testing.virtual_time import RealIO, VirtualClock, VirtualTime

if TYPE_CHECKING:
    from typing import Self

    from inproc_jobs.app.engine import Engine

__all__ = ["START", "DrainLimitError", "Harness", "Mode", "TimelineEntry", "harness"]

Mode = Literal["manual", "inline", "record"]
T = TypeVar("T")
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""When a test begins unless it says otherwise: a Monday morning, far from any change of the clock."""
DRAIN_LIMIT: Final = 10_000
OPEN: Final[list[Harness]] = []
"""Those not closed yet, newest last; the pytest plugin makes the time of a coroutine test virtual from its first line."""
_NAMED: Final = 10


class DrainLimitError(InprocJobsError, AssertionError):
    """
    Draining ran more jobs than the test allows: something dispatches itself for ever.

    Attributes:
        upcoming: Descriptions of the jobs that would have come next.
    """

    def __init__(self, limit: int, upcoming: list[str]) -> None:
        listed = "".join(f"\n  {one}" for one in upcoming) or "\n  (nothing is waiting)"
        super().__init__(f"stopped after {limit} runs; next would be:{listed}")
        self.upcoming = upcoming


class Harness(Ledger, Faults):
    """
    An engine under test.

    Args:
        registry: Whose jobs; None is that of the module-level `define_job`.
        start: The wall clock at the beginning, aware.
        mode: "manual": jobs run when the test says so. "inline": a dispatch returns once all that is ready has run to
            its end. "record": nothing runs, dispatches are only noted.
        seed: Of the draws for jitter and ids; the same seed gives the same timeline.
        plain: Where plain functions run: "inline" (on the loop, so that everything is deterministic), or "thread" (or
            process, as they are defined), while which time stands still.
        real_io: "wait": time stands still while a connection is open. "ignore": open connections count for nothing.
        limit: How many runs one call may make before `DrainLimitError`.
        engine: Further arguments of `Engine`, such as `queues`, `concurrency` or `snapshot`.

    Attributes:
        engine: The engine; dispatches of the code under test go to it, even if that makes engines of its own.
        clock: Its clock: `now()`, `step_wall(...)`, `follow(...)`.
        mode: May be changed at any time.
    """

    def __init__(
        self,
        *,
        registry: Registry | None = None,
        start: datetime = START,
        mode: Mode = "manual",
        seed: int = 0,
        plain: Literal["inline", "thread"] = "inline",
        real_io: RealIO = "wait",
        limit: int = DRAIN_LIMIT,
        **engine: Any,
    ) -> None:
        if not isinstance(start, datetime) or start.tzinfo is None:
            raise InvalidOptionError(f"start must be an aware datetime, got {start!r}", option="start", value=start)
        if plain not in {"inline", "thread"}:
            raise InvalidOptionError(f"plain must be 'inline' or 'thread', got {plain!r}", option="plain", value=plain)
        Ledger.__init__(self, VirtualClock(start))
        Faults.__init__(self)
        self.clock.on_step = self._wall_was_set
        self.time = VirtualTime(self.clock, real_io)
        self.time.when_blocked = self._run_for_results
        self.time.on_stuck = self._tell_waiters
        self.time.describe = self._describe_active
        self.mode = mode
        self.plain = plain
        self.random = random.Random(seed)  # jitter, not secrets
        self._options = {"registry": registry, "clock": self.clock, **engine}
        self._registry = DEFAULT_REGISTRY if registry is None else registry
        self._first_error: BaseException | None = None
        self._runs = 0
        self.limit = self._limit = _checked_limit(limit)
        self._drivers = 0
        self._exhausted = False
        self._drained: str | None = None
        self._held_back: list[Queue] = []
        self._results: set[asyncio.Future[Any]] = set()
        self._runs_for_results = False
        self._home = threading.get_ident()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._own_lock = threading.RLock()
        self._closed = False
        self._definitions = dict(self._registry._jobs)  # noqa: SLF001  # put back at the end
        self.engine = self._new_engine()
        OPEN.append(self)
        self._serve_before = self._registry.__dict__.get("serve")
        self._registry.serve = self._serve  # type: ignore[method-assign]  # until `close`

    def _new_engine(self) -> TestedEngine:
        engine = TestedEngine(self, **self._options)
        engine.runtime.draw = self.random.random
        engine.runtime.prepare_queue = self._also_hold_back(engine.runtime.prepare_queue)
        StampedEvents(engine.runtime.core, self.note_event)
        return engine

    def _serve(self, engine: Engine) -> None:
        """The newest engine of a registry gets the dispatches; one that the program under test makes must not."""
        Registry.serve(self._registry, engine)
        if not isinstance(engine, TestedEngine):
            Registry.serve(self._registry, self.engine)

    @property
    def mode(self) -> Mode:
        """When jobs run; see the class."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise InvalidOptionError(
                f"mode must be 'manual', 'inline' or 'record', got {mode!r}", option="mode", value=mode
            )
        self._mode = mode

    @contextmanager
    def using(self, mode: Mode) -> Iterator[None]:
        """Another mode for the length of a block."""
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before

    # --- called by the engine -----------------------------------------------------------------------------------

    def before_run(self, name: str, payload: Any) -> Fault | None:
        """A handler is about to run; answers what is to happen instead."""
        self._runs += 1
        self.time.progress()
        if self._runs >= self._limit:
            self._exhausted = True
            self.engine.runtime.fetching = False
            self.engine.runtime.check_idle()
            if self._runs_for_results:
                self._tell_waiters(self._exhaustion())
        return self.take_fault(name, payload)

    # --- leftovers ----------------------------------------------------------------------------------------------

    def assert_no_leftovers(self, *, failed: bool = False) -> None:
        """
        Assert that every job has ended; schedules' next runs do not count.

        Args:
            failed: Jobs that have failed for good count as left over too.
        """
        left = self._upcoming(20)
        if failed:
            for name in self.engine.runtime.core.queues:
                left += [
                    f"{job.name} {job.id!r} in {name!r}: failed, {job.failed_reason}"
                    for job in self.engine.failed_jobs_sync(name, 0, 19)
                ]
        if left:
            raise AssertionError("jobs were left over:" + "".join(f"\n  {one}" for one in left))

    def _upcoming(self, limit: int) -> list[str]:
        """Jobs that have not ended, next first."""
        return [_describe(job, queue) for job, queue in self._unfinished()][:limit]

    def _unfinished(self) -> list[tuple[Job, Queue]]:
        found = []
        with self.engine.runtime.lock:
            for queue in self.engine.runtime.core.queues.values():
                for home in (queue.active, queue.wait, queue.prioritized, queue.delayed, queue.waiting_children):
                    found += [
                        (job, queue)
                        for job in home
                        if home is not queue.delayed or job.extra is None or job.extra.scheduler_id is None
                    ]
        return found

    # --- running ------------------------------------------------------------------------------------------------

    async def run_until_idle(
        self, *, queue: str | None = None, limit: int | None = None, raise_on_failure: bool = False
    ) -> RunSummary:
        """
        Run until nothing can run any more: what jobs dispatch, retries and delays included, in virtual time.

        Args:
            queue: Only this one; the others keep their jobs.
            limit: Runs at most; None is the harness's.
            raise_on_failure: Re-raise the exception of the first job that failed for good, once its state is stored.

        Raises:
            DrainLimitError: The limit was reached; names what would come next.
            TimeStuckError: A handler waits for something that does not come.
        """
        with self._only(queue), self._watching_failures(raise_on_failure):
            async with _Driving(self, limit) as runtime:
                before = (runtime.completed, runtime.failed, runtime.retried)
                while runtime.fetching and not runtime.is_idle():
                    await runtime.wait_change()
                runtime.fetching = False
                await runtime.wait_no_runs()
                error, self._first_error = self._first_error, None
        if error is not None:
            raise error
        return RunSummary(
            completed=runtime.completed - before[0],
            failed=runtime.failed - before[1],
            retried=runtime.retried - before[2],
            remaining=len(self._unfinished()),
        )

    async def run_ready(self) -> None:
        """Run what is ready, and what it makes ready, to the end; delayed jobs and retries are not waited for."""
        async with _Driving(self) as runtime:
            while runtime.fetching and not runtime.is_idle(ready_only=True):
                await runtime.wait_change()

    async def advance(self, duration: Any) -> None:
        """
        Let time go on by `duration`, and run everything that is due meanwhile, in its order.

        At its end a periodic snapshot is written if its interval has passed since the last time.

        Args:
            duration: "30s", a timedelta, or an int of ms.

        Raises:
            DrainLimitError: Jobs dispatched each other without an end.
        """
        end = self.clock.monotonic() + parse_ms(duration, option="duration") / 1000
        if self.mode == "record":
            await self.host_here()
            await asyncio.sleep(end - self.clock.monotonic())
            return
        async with _Driving(self) as runtime:
            await self.time.settled()
            await asyncio.sleep(max(0.0, end - self.clock.monotonic()))
            self.clock.move_to(end)
            # At the very end both the sleep and jobs may be due; those that wait for the engine's own timer run too.
            runtime._on_timer()  # noqa: SLF001
            await self.time.settled()
        await self.engine.save_if_due()

    async def advance_to(self, moment: datetime) -> None:
        """As `advance`, until the wall clock has reached an aware moment."""
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise InvalidOptionError(f"moment must be an aware datetime, got {moment!r}", option="moment", value=moment)
        ahead_ms = round(moment.timestamp() * 1000) - self.clock.now_ms()
        if ahead_ms < 0:
            raise InvalidOptionError(
                f"{moment.isoformat()} is over: it is {self.clock.now().isoformat()} in this test",
                option="moment",
                value=moment,
            )
        await self.advance(ahead_ms)

    async def run_next(self, queue: str | None = None) -> JobView | None:
        """
        Run one attempt of the job that is next; delays are not waited for.

        Args:
            queue: Of this queue; None takes the first queue by name that has something ready.

        Returns:
            The job after its run, None when nothing is ready.
        """
        self._refuse_record()
        runtime = await self.host_here()
        with runtime.lock:
            workers = [w for name, w in sorted(runtime.workers.items()) if queue is None or name == queue]
        for worker in workers:
            run = worker.take_one() if worker.busy < worker.concurrency else None
            runtime.fetching = self._drivers > 0
            if run is not None:
                while run in worker.runs:
                    await runtime.wait_change()
                return JobView(run.job, worker.queue.name)
        return None

    # --- the same for plain tests -------------------------------------------------------------------------------

    def run_until_idle_sync(
        self, *, queue: str | None = None, limit: int | None = None, raise_on_failure: bool = False
    ) -> RunSummary:
        """As `run_until_idle`, in a test that is a plain function."""
        return self._run_own(lambda: self.run_until_idle(queue=queue, limit=limit, raise_on_failure=raise_on_failure))

    def run_ready_sync(self) -> None:
        """As `run_ready`, in a test that is a plain function."""
        self._run_own(self.run_ready)

    def advance_sync(self, duration: Any) -> None:
        """As `advance`, in a test that is a plain function."""
        self._run_own(lambda: self.advance(duration))

    def advance_to_sync(self, moment: datetime) -> None:
        """As `advance_to`, in a test that is a plain function."""
        self._run_own(lambda: self.advance_to(moment))

    def run_next_sync(self, queue: str | None = None) -> JobView | None:
        """As `run_next`, in a test that is a plain function."""
        return self._run_own(lambda: self.run_next(queue))

    def _run_own(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run on the harness's own loop."""
        if _running_loop() is not None:
            raise BlockingCallError("an event loop runs in this test; await the call without _sync instead")
        with self._own_lock:
            if self._own_loop is None:
                self._own_loop = asyncio.new_event_loop()
            return self._own_loop.run_until_complete(_awaited(call))

    # --- the same for the code under test, wherever it runs -----------------------------------------------------

    async def run_at_home(self, call: Callable[[], Awaitable[T]]) -> T:
        """
        Run something of ours for code that runs on any loop.

        A loop in another thread (that of Starlette's TestClient) is not taken over: it belongs to somebody who blocks
        the test meanwhile, and time would run away while it has nothing to do.
        """
        loop = asyncio.get_running_loop()
        if threading.get_ident() == self._home or loop is self._own_loop:
            return await call()
        return await loop.run_in_executor(None, self.run_blocking, call)

    def run_blocking(self, call: Callable[[], Awaitable[T]]) -> T:
        """The same from a thread in which no loop runs: on the test's loop if that runs elsewhere, else on our own."""
        home = self.time.loop
        if home is not None and home.is_running():
            with self.time.excused():
                return asyncio.run_coroutine_threadsafe(_awaited(call), home).result()
        return self._run_own(call)

    def refuse_inline_in_loop(self, what: str, twin: str) -> None:
        """Raise where a dispatch in inline mode cannot run its job."""
        if _running_loop() is not None:
            raise BlockingCallError(
                f"{what}() in mode 'inline' has to run the job before it returns, and cannot while the event loop of this "
                f"thread runs; await {twin}() in the code under test, or take mode 'manual' and run the jobs afterwards"
            )

    def refuse_wait_on_loop(self) -> None:
        """Raise where a handler would block the loop that is to run what it waits for."""
        runtime = self.engine.runtime
        if runtime.loop is not None and runtime.loop.is_running() and runtime.loop_thread == threading.get_ident():
            raise BlockingCallError(
                "result_sync() in a plain handler would block the test's event loop, on which plain functions run in tests; "
                "use plain='thread' for this test"
            )

    # --- results ------------------------------------------------------------------------------------------------

    async def wait_result(self, future: Future[Job], seconds: float | None) -> None:
        """Wait for the end of a job; once everything else is blocked, jobs are run for it."""
        self._refuse_record("the result would never come")
        await self.host_here()
        waiter = asyncio.wrap_future(future)
        self._results.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        finally:
            self._results.discard(waiter)
            if self._runs_for_results and not self._results:
                self._runs_for_results = False
                self.stop_driving()

    def _run_for_results(self) -> bool:
        """Everything is blocked. If a test awaits results, it wants the jobs to be run."""
        if self._runs_for_results or not any(not waiter.done() for waiter in self._results):
            return False
        self._runs_for_results = True
        self.start_driving(self.engine.runtime, self.limit)
        return True

    def _tell_waiters(self, error: InprocJobsError) -> bool:
        """What is waited for does not come: raise that where somebody waits for us, in the test's own line."""
        runtime = self.engine.runtime
        waiting = [waiter for waiter in (*runtime._idle_waiters, *self._results) if not waiter.done()]  # noqa: SLF001
        runtime._idle_waiters.clear()  # noqa: SLF001
        for waiter in waiting:
            waiter.set_exception(error)
        return bool(waiting)

    def _describe_active(self) -> str:
        lines = [f"  {_describe(job, queue)}" for job, queue in self._unfinished() if job in queue.active]
        return "\n".join(["handlers that have not come back:", *lines[:_NAMED]]) if lines else ""

    # --- driving ------------------------------------------------------------------------------------------------

    def start_driving(self, runtime: Runtime, limit: int) -> None:
        """Let the workers take jobs, until the last of those who asked has had enough."""
        if self._drivers == 0:
            self._runs, self._limit, self._exhausted = 0, limit, False
        self._drivers += 1
        if not self._exhausted:
            runtime.resume_fetching()

    def stop_driving(self) -> None:
        """One of those who asked has had enough."""
        self._drivers -= 1
        if self._drivers == 0:
            self.engine.runtime.fetching = False

    def raise_if_exhausted(self, runtime: Runtime) -> None:
        """Raise when the limit ended the driving, and not that nothing was left."""
        if self._exhausted and not runtime.is_idle():
            raise self._exhaustion()

    def _exhaustion(self) -> DrainLimitError:
        return DrainLimitError(self._limit, self._upcoming(_NAMED))

    async def host_here(self) -> Runtime:
        """The engine's runtime, hosted on the running loop with virtual time."""
        engine, runtime = self.engine, self.engine.runtime
        if self._closed:
            raise InprocJobsError("this harness was closed at the end of its test; make a new one")
        engine.refuse_forked()
        loop = asyncio.get_running_loop()
        if runtime.loop is loop:
            return runtime
        if runtime.loop is not None:
            self._leave_loop(runtime)
        self.time.attach(loop)
        if self._options.get("snapshot") is not None:
            await engine.before_hosting()
        engine.host_for_test(loop)
        return runtime

    def _leave_loop(self, runtime: Runtime) -> None:
        """The test goes on in another loop; runs cannot move."""
        assert runtime.loop is not None
        active = [run.job.id for worker in runtime.workers.values() for run in worker.runs]
        if active and not runtime.loop.is_closed():
            raise InprocJobsError(
                f"jobs {active} are still running on another event loop of this test; let them end there first "
                "(jobs.run_until_idle_sync()), or write the test as one coroutine"
            )
        for worker in runtime.workers.values():
            worker.drop_runs()
        runtime.unhost()

    def attach_here(self) -> None:
        """Make the time of the running loop virtual from now on; nothing to do for tests that run nothing."""
        if self.mode == "record":
            return
        loop = _running_loop()
        if loop is None:
            raise InprocJobsError(
                "the fixture `jobs` needs asyncio, and no asyncio loop runs this test; with anyio let it use the backend "
                "'asyncio' (fixture anyio_backend)"
            )
        self.time.attach(loop)

    async def begin_here(self) -> None:
        """A coroutine test begins: time is virtual from now on, and a snapshot is read."""
        self.attach_here()
        await self._read_snapshot()

    async def _read_snapshot(self) -> None:
        if self._options.get("snapshot") is not None:
            await self.host_here()

    def refuse_record(self) -> None:
        """Raise where jobs are to be run in a mode that runs none."""
        self._refuse_record()

    def _refuse_record(self, why: str = "") -> None:
        if self.mode == "record":
            raise InprocJobsError(
                f"mode 'record' runs nothing{', so ' + why if why else ''}; "
                "put the part that runs jobs into `with jobs.using('manual'):`"
            )

    # --- one queue only -----------------------------------------------------------------------------------------

    @contextmanager
    def _only(self, queue: str | None) -> Iterator[None]:
        """Pause the other queues meanwhile, without an event; those that come into being meanwhile too."""
        if queue is None:
            yield
            return
        runtime = self.engine.runtime
        known = {*runtime.core.queues, *(job.queue for job in self._registry._jobs.values() if job.queue)}  # noqa: SLF001
        if queue not in known:
            listed = ", ".join(sorted(known)) or "(none yet)"
            raise InvalidOptionError(f"there is no queue {queue!r}; there are: {listed}", option="queue", value=queue)
        self._drained = queue
        for other in runtime.core.queues.values():
            self._hold_back(other)
        try:
            yield
        finally:
            self._drained = None
            for other in self._held_back:
                other.paused = False
            self._held_back.clear()

    def _hold_back(self, queue: Queue) -> None:
        if self._drained is not None and queue.name != self._drained and not queue.paused:
            queue.paused = True
            self._held_back.append(queue)

    def _also_hold_back(self, prepare: Callable[[Queue], None]) -> Callable[[Queue], None]:
        def prepare_and_hold_back(queue: Queue) -> None:
            prepare(queue)
            self._hold_back(queue)

        return prepare_and_hold_back

    @contextmanager
    def _watching_failures(self, wanted: bool) -> Iterator[None]:
        """Stop at the first job that fails for good, and keep what its handler raised."""
        if not wanted:
            yield
            return
        runtime = self.engine.runtime
        report = runtime.report_failure
        self._first_error = None

        def reporting(
            run: Any, reason: str, stack: str | None, final: bool, error: BaseException | None = None
        ) -> None:
            if final and self._first_error is None:
                self._first_error = error
                runtime.fetching = False
            report(run, reason, stack, final, error)

        runtime.report_failure = reporting  # type: ignore[method-assign]  # one instance, under test
        try:
            yield
        finally:
            del runtime.report_failure

    # --- what happens to the process ----------------------------------------------------------------------------

    async def crash(self) -> None:
        """
        As if the process had been killed and started again: runs vanish in the middle, and without a snapshot all jobs.

        `jobs.engine` is a new engine afterwards, which has read the snapshot: with a `MemorySnapshot` what was stored is
        back. Dispatches and the timeline so far stay known.
        """
        self._replace_engine()
        await self._read_snapshot()

    def crash_sync(self) -> None:
        """As `crash`, in a test that is a plain function."""
        self._replace_engine()
        if self._options.get("snapshot") is not None:
            self._run_own(self._read_snapshot)

    def _replace_engine(self) -> None:
        self.engine.vanish()
        snapshot = self._options.get("snapshot")
        if isinstance(snapshot, MemorySnapshot):
            # Nobody can wait for the lease of a dead process to run out: its time is not the virtual one.
            snapshot.evict_owner()
        self.engine = self._new_engine()

    def _wall_was_set(self) -> None:
        """Production compares its clocks every few seconds; here timers are exact, so have it look as late."""
        runtime = self.engine.runtime
        if runtime.loop is not None:
            runtime.call_on_loop(runtime.loop.call_later, MAX_TIMER_S, runtime._on_timer)  # noqa: SLF001

    # --- beginning and end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the test: the engine takes nothing any more, the loop gets its own time back, definitions are restored."""
        if self._closed:
            return
        self._closed = True
        OPEN.remove(self)
        self.engine.vanish()
        self.time.detach()
        if self._registry.serve == self._serve:
            del self._registry.serve
            if self._serve_before is not None:
                self._registry.serve = self._serve_before  # type: ignore[method-assign]
        for name, job in self._definitions.items():
            if self._registry.get(name) is not job:
                self._registry._add(job)  # noqa: SLF001
        if self._own_loop is not None:
            _close_loop(self._own_loop)
            self._own_loop = None

    def __enter__(self) -> Self:
        if _running_loop() is not None:
            with self._closed_on_error():
                self.attach_here()
        elif self._options.get("snapshot") is not None:
            with self._closed_on_error():
                self._run_own(self._read_snapshot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        with self._closed_on_error():
            await self.begin_here()
        return self

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """What could not be entered is not left either."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Driving:
    """`async with` whose body jobs are run; `DrainLimitError` at its end if they did not come to one."""

    def __init__(self, harness: Harness, limit: int | None = None) -> None:
        self._harness = harness
        self._limit = harness.limit if limit is None else _checked_limit(limit)

    async def __aenter__(self) -> Runtime:
        self._harness.refuse_record()
        self._runtime = await self._harness.host_here()
        self._harness.start_driving(self._runtime, self._limit)
        return self._runtime

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._harness.stop_driving()
        if error is None:
            self._harness.raise_if_exhausted(self._runtime)


def harness(**options: Any) -> Harness:
    """A `Harness` as a context manager, for `with` and `async with`; arguments as there."""
    return Harness(**options)


def _checked_limit(limit: Any) -> int:
    if type(limit) is not int or limit < 1:
        raise InvalidOptionError(f"limit must be an int of at least 1, got {limit!r}", option="limit", value=limit)
    return limit


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _describe(job: Job, queue: Queue) -> str:
    due = job.due_ms
    when = "" if due is None else f", due at {datetime.fromtimestamp(due / 1000, UTC).isoformat()}"
    return f"{job.name} {job.id!r} in {queue.name!r}: {job.state}{when}"


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still runs on a loop of ours, and close it; what swallows its cancellation is left behind."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
