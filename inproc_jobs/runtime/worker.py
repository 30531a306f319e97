"""
The worker of one queue: as many runners as its concurrency, each a Task that runs one job after the other.

A runner is only there while it has something to do. Handlers that never wait are all run by one of them, which gives
way to the host's loop by time slice; as soon as a job waits, the next runner is started for the next job, so jobs
start in the order of the queue and as many run at once as the concurrency allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job, JobExtra
from inproc_jobs.core.json_values import encode_json
from inproc_jobs.core.options import Limiter, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import FAILED, REMOVED
from inproc_jobs.errors import (
    JobCommandError,
    JobTimeoutError,
    NoHandlerError,
    ResultNotStorableError,
    UnrecoverableError,
)
from inproc_jobs.runtime import context as run_context
from inproc_jobs.runtime.failures import Failure, Interrupted, PutBack, read_failure
from inproc_jobs.runtime.handlers import Handler
from inproc_jobs.runtime.run import BLOCKED_S, Run, RunnerClosed, Stored, begin, call_plain, drive, start_coroutine
from inproc_jobs.runtime.tracebacks import trace_of

if TYPE_CHECKING:
    from inproc_jobs.runtime.runtime import Runtime

__all__ = ["CANCEL_GRACE_S", "MAX_ABANDONED", "QueueWorker"]

CANCEL_GRACE_S: Final = 1.0
"""How long a cancelled coroutine may clean up after its timeout before the engine goes on without it."""
MAX_ABANDONED: Final = 64
"""Threads that may hang past their timeouts while their slots are given to new runs; beyond that slots stay taken."""


class _Binding:
    """What the worker needs to run jobs of one name, resolved once."""

    __slots__ = ("context", "decode", "fn", "handler", "mode", "on_loop", "wants_ctx")

    def __init__(self, handler: Handler, context: Context) -> None:
        self.handler = handler
        self.fn = handler.fn
        self.mode = handler.mode
        self.on_loop = handler.mode in {"async", "inline"}
        self.decode = handler.codec.decode
        self.wants_ctx = handler.wants_ctx
        self.context = context


class QueueWorker:
    """
    Runs the jobs of one queue.

    Attributes:
        queue: The core's record.
        concurrency: Jobs at once.
        options: What each fetch and finish brings to the core.
        busy: Runners that hold a slot.
        runs: Attempts going on, abandoned ones excluded.
        abandoned: Attempts that were given up and whose handler has not come back.
        summoned: A pump is scheduled already.
    """

    def __init__(self, runtime: Runtime, queue: Queue, concurrency: int, limiter: Limiter | None) -> None:
        self.runtime = runtime
        self.queue = queue
        self.concurrency = concurrency
        self.options = WorkerOptions(limiter=limiter)
        self.busy = 0
        self.runs: dict[Run, None] = {}
        self.abandoned: dict[Run, None] = {}
        self.summoned = False
        self._bindings: dict[str, _Binding] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- getting work -------------------------------------------------------------------------------------------

    def forget_bindings(self) -> None:
        """The engine starts, in another context."""
        self._bindings.clear()

    def forget_binding(self, name: str) -> None:
        """The handler of a name was defined anew: runs that start from now on use it."""
        self._bindings.pop(name, None)

    def answer(self) -> None:
        """Summoned by a dispatch."""
        self.runtime.note_lag()
        self.pump()

    def pump(self) -> None:
        """Start a runner if there is a slot and a job. It summons the next one when its job waits."""
        self.summoned = False
        if self.busy < self.concurrency and self.runtime.fetching:
            run = self._fetch()
            if run is not None:
                self._start_runner(run)

    def take_one(self) -> Run | None:
        """Run one attempt of the next job and no more, whatever else may be ready; for whoever steps by hand."""
        runtime = self.runtime
        runtime.fetching = True
        try:
            run = self._fetch()
        finally:
            runtime.fetching = False
        if run is not None:
            self._start_runner(run)
        return run

    def _fetch(self) -> Run | None:
        """Take the next job, or arm the timer for when there may be one."""
        runtime = self.runtime
        if not runtime.fetching:
            return None
        run = Run(self)
        with runtime.lock:
            job = runtime.fetch(self, run)
            flush = runtime.has_news()
        if flush:
            runtime.flush()
        return None if job is None else run.took(job)

    def _start_runner(self, run: Run) -> None:
        self.busy += 1
        assert self.runtime.loop is not None  # only called on a running engine
        task = self.runtime.loop.create_task(
            self._run_jobs(run), name=f"inproc_jobs {self.queue.name}", context=self.runtime.base_context.copy()
        )
        # The loop holds tasks weakly; without this a runner could be collected while its job waits (case C108).
        self._tasks.add(task)
        task.add_done_callback(self._runner_ended)

    def _runner_ended(self, task: asyncio.Task[None]) -> None:
        """A runner must never raise; should a fault of the engine make one, its slot and its job are not lost."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self.runtime.log.error("fault of the engine in a runner", error=repr(error), stack=trace_of(error))
        with self.runtime.lock:
            for run in [run for run in self.runs if run.task is task]:
                del self.runs[run]
                self.runtime.core.recover_stalled(self.queue, run.job.id, self.runtime.now_ms(), self.options)
        self.busy -= 1
        self.pump()

    # --- running ------------------------------------------------------------------------------------------------

    async def _run_jobs(self, first: Run) -> None:  # noqa: C901  # every branch is one that a job may take
        """Run jobs until there are none, or until this task was touched by a cancellation and must be replaced."""
        runtime = self.runtime
        runs = self.runs
        bindings = self._bindings
        monotonic = runtime.monotonic
        me = asyncio.current_task()
        assert me is not None  # a runner is a task
        following: Run | None = first
        tick = runtime.begin_slice()
        while following is not None:
            run = following
            run.task = me
            value: Any = None
            error: BaseException | None = None
            try:
                if run.cancelled:
                    # Stopped before it began. Cancelling the task instead could hit it before its first step.
                    raise asyncio.CancelledError
                job = run.job
                binding = bindings.get(job.name) or self._bind(job.name)
                if job.extra is not None and self._is_not_to_run(run, job.extra):
                    del runs[run]
                    following = self._fetch()
                    continue
                if job.opts.timeout_ms is not None and binding.mode != "process":
                    self.start_timeout(run, job.opts.timeout_ms)
                context = binding.context.copy()
                if not binding.on_loop:
                    value = await self._run_elsewhere(run, binding, context)
                    tick = runtime.begin_slice()
                elif context.run(begin, run, binding.fn, binding.decode, binding.wants_ctx):
                    self._check_blocked(run, tick)
                    run.waited = True
                    self._summon_next()
                    value = await drive(run, context)
                    tick = runtime.begin_slice()
                else:
                    value = run.value
                    self._check_blocked(run, tick)
            except RunnerClosed:
                return
            except BaseException as caught:  # noqa: BLE001  # whatever a handler raises ends its own job only
                error = caught
                if not run.waited:
                    self._check_blocked(run, tick)
                else:
                    # Others had the loop meanwhile; what this one held of it is reported already.
                    tick = runtime.begin_slice()
            if run.timer is not None:
                run.timer.cancel()
            if run.over:
                # Given up earlier: the job has ended and the slot was handed on. Nothing here may touch either.
                runtime.came_back(run)
                return
            if error is None and not run.timed_out:
                following = self._succeed(run, value)
            else:
                following = await self._fail(run, error)
            del runs[run]
            # A pending cancellation would hit the next job, so a runner that has one is replaced. The flag is also set
            # without a count, by a handler that cancels its task and takes that back before it waits.
            if me.cancelling() or me._must_cancel:  # type: ignore[attr-defined]  # noqa: SLF001  # not in the stubs
                break
            # What the engine itself took, or waited for its lock, is not the next handler's doing.
            now = tick = monotonic()
            value = error = None
            if following is not None and now >= runtime.slice_end:
                try:
                    tick = await runtime.give_way()
                except asyncio.CancelledError:
                    break
        self._free_slot(following)

    def _free_slot(self, following: Run | None) -> None:
        """A runner has ended: hand its slot to the next run, or leave it free."""
        self.busy -= 1
        if following is not None:
            self._start_runner(following)
            return
        # A dispatch of another thread may have come after the runner had found nothing, and seen the slot taken.
        if self.queue.ready_count:
            self.pump()
        self.runtime.went_idle(self)

    def _check_blocked(self, run: Run, since: float) -> None:
        """Name a handler that held the loop up to its first wait."""
        held = self.runtime.monotonic() - since
        if held > BLOCKED_S:
            self.runtime.report_block(run, held)

    def _is_not_to_run(self, run: Run, extra: JobExtra) -> bool:
        """
        What has to be looked at before some jobs run: a schedule makes its next run, or skips this one.

        Raises:
            UnrecoverableError: The job was condemned while it waited (a failed child, too many stalls).
        """
        if extra.deferred_failure is not None:
            raise UnrecoverableError(extra.deferred_failure)
        return extra.scheduler_id is not None and not self.runtime.start_iteration(run)

    def _summon_next(self) -> None:
        """The running job waits: let the next one start if there is a slot."""
        if self.busy < self.concurrency and self.queue.ready_count:
            self.pump()

    async def _run_elsewhere(self, run: Run, binding: _Binding, context: Context) -> Any:
        """Run a plain handler in a thread, or by a thread in another process."""
        runtime = self.runtime
        loop = runtime.loop
        assert loop is not None
        future: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result((value, None))
            else:
                # As a value: a future refuses StopIteration, and on 3.11 its waiter would hang (case C101).
                future.set_result((None, error))

        def on_done(value: Any, error: BaseException | None) -> None:
            runtime.call_on_loop(settle, value, error)

        process = runtime.process_call(run, binding.handler) if binding.mode == "process" else None
        if process is not None:
            thread = runtime.threads.submit(lambda: Stored(process.run()), on_done)
        else:
            call = partial(context.run, call_plain, run, binding.fn, binding.decode, binding.wants_ctx)
            thread = runtime.threads.submit(call, on_done)

        def give_up(error: BaseException) -> None:
            if process is not None:
                process.kill()
            elif thread.abandon(partial(runtime.call_on_loop, runtime.came_back, run)):
                self.abandoned[run] = None
            settle(None, error)

        run.give_up = give_up
        run.waited = True
        self._summon_next()
        try:
            value, error = await future
        except GeneratorExit:
            raise RunnerClosed from None
        except asyncio.CancelledError:
            give_up(asyncio.CancelledError())
            raise
        finally:
            run.give_up = None
        if error is not None:
            raise error
        if inspect.iscoroutine(value):
            # A plain function that hands out a coroutine: it is meant to run on the loop.
            run.value = None
            return await drive(run, context) if context.run(start_coroutine, run, value) else run.value
        return await value if hasattr(value, "__await__") else value

    def _bind(self, name: str) -> _Binding:
        handler = self.runtime.handlers.handler(name)
        if handler is None:
            raise NoHandlerError(
                f"no handler for jobs named {name!r}; define it with define_job({name!r}) before its jobs are due"
            )
        context = self.runtime.base_context.copy()
        context.run(run_context.bind_queue, self.queue.name, name)
        binding = self._bindings[name] = _Binding(handler, context)
        return binding

    # --- the end of an attempt ----------------------------------------------------------------------------------

    def _succeed(self, run: Run, value: Any) -> Run | None:
        """Store the result; answer the next run."""
        runtime = self.runtime
        try:
            if value is None:
                data = b"null"
            else:
                data = value.data if type(value) is Stored else encode_json(value, "result")
        except BaseException as error:  # noqa: BLE001  # a result is user data: its methods may raise anything
            failure = ResultNotStorableError(f"the handler returned what cannot be stored: {error}")
            failure.__cause__ = error
            return self._end_failed(run, Failure(failure, unrecoverable=True), None)
        following = Run(self) if runtime.fetching and runtime.chains else None
        core = runtime.core
        with runtime.lock:
            now_ms = runtime.now_ms()
            try:
                job = core.complete(
                    self.queue,
                    run.job.id,
                    data,
                    now_ms,
                    run,
                    worker=self.options,
                    fetch_next=following is not None,
                    next_token=following,
                )
            except JobCommandError as error:
                return self._refused(run, error)
            runtime.completed += 1
            if run.job.extra is not None:
                runtime.summon_all()
            if job is None:
                runtime.arm_for(self, now_ms)
            flush = core.events or core.ended
        if flush:
            runtime.flush()
        if following is None:
            return self._fetch()
        return None if job is None else following.took(job)

    async def _fail(self, run: Run, error: BaseException | None) -> Run | None:
        """Decide what an error means, ask a custom backoff if there is one, and store it."""
        if run.timed_out:
            timeout = run.job.opts.timeout_ms
            error = JobTimeoutError(f"attempt {run.attempt} took longer than its timeout of {timeout} ms")
        assert error is not None
        outcome = read_failure(error, run)
        if isinstance(outcome, PutBack | Interrupted):
            return self._put_back(run, outcome)
        delay: float | None = None
        if not outcome.unrecoverable:
            await _absorb_cancellation()
            outcome, delay = await self.runtime.ask_strategy(run, outcome)
        return self._end_failed(run, outcome, delay)

    def _end_failed(self, run: Run, failure: Failure, strategy_delay: float | None) -> Run | None:
        """Store a failed attempt; answer the next run."""
        runtime = self.runtime
        job = run.job
        stack = None if job.opts.stack_trace_limit == 0 else failure.trace()
        reason = failure.reason()
        following = Run(self) if runtime.fetching and runtime.chains else None
        with runtime.lock:
            now_ms = runtime.now_ms()
            try:
                following_job = runtime.core.fail(
                    self.queue,
                    job.id,
                    reason,
                    stack,
                    now_ms,
                    run,
                    unrecoverable=failure.unrecoverable,
                    draw=runtime.draw(),
                    strategy_delay=strategy_delay,
                    worker=self.options,
                    fetch_next=following is not None,
                    next_token=following,
                )
            except JobCommandError as error:
                return self._refused(run, error)
            final = job.state is FAILED or (job.state is REMOVED and job.finished_on is not None)
            runtime.summon_all()
            if following_job is None:
                runtime.arm_for(self, now_ms)
            flush = runtime.has_news()
        if flush:
            runtime.flush()
        runtime.report_failure(run, reason, stack, final, failure.error)
        # All that is kept is text. One error object that is raised again and again would grow a frame each time.
        failure.error.__traceback__ = None
        if following_job is None or following is None:
            # An immediate retry fetches nothing in the same call, as in BullMQ.
            return self._fetch()
        return following.took(following_job)

    def _put_back(self, run: Run, outcome: PutBack | Interrupted) -> Run | None:
        """The attempt does not count: the handler asked for another time, or the engine interrupted it."""
        runtime = self.runtime
        with runtime.lock:
            now_ms = runtime.now_ms()
            try:
                if isinstance(outcome, Interrupted):
                    runtime.core.move_to_wait(self.queue, run.job.id, now_ms, run)
                elif outcome.rate_limit:
                    self._obey_rate_limit()
                    runtime.core.rate_limit(self.queue, outcome.delay_ms, now_ms)
                    runtime.core.move_to_wait(self.queue, run.job.id, now_ms, run)
                else:
                    runtime.core.move_to_delayed(self.queue, run.job.id, outcome.delay_ms, now_ms, run)
            except JobCommandError as error:
                return self._refused(run, error)
            flush = runtime.has_news()
        if flush:
            runtime.flush()
        return self._fetch()

    def _obey_rate_limit(self) -> None:
        """BullMQ's workers ignore `rateLimit` unless they have a limit; one that is never reached makes them look."""
        if self.options.limiter is None and self.queue.max is None:
            self.options = WorkerOptions(limiter=Limiter(max=9_007_199_254_740_991, duration_ms=1))

    def _refused(self, run: Run, error: JobCommandError) -> Run | None:
        """The core did not accept an end. Either it is the job's failure, or the job is no longer this run's."""
        runtime = self.runtime
        now_ms = runtime.now_ms()
        if self.queue.index.get(run.job.id) is run.job and self.queue.locks.get(run.job.id) is run:
            runtime.core.fail(self.queue, run.job.id, str(error), None, now_ms, run, unrecoverable=True)
        else:
            # Later: a log handler may ask the engine, and the lock is held here.
            fields = {"job_id": run.job.id, "job_name": run.job.name, "reason": str(error)}
            runtime.call_on_loop(partial(runtime.log.warning, "late result dropped", **fields))
        job = runtime.fetch(self, following := Run(self)) if runtime.fetching else None
        return None if job is None else following.took(job)

    # --- timeouts and giving up ---------------------------------------------------------------------------------

    def start_timeout(self, run: Run, timeout_ms: int) -> None:
        """The attempt has begun: end it when its time is over."""
        assert self.runtime.loop is not None
        run.timer = self.runtime.loop.call_later(timeout_ms / 1000, self._on_timeout, run)

    def _on_timeout(self, run: Run) -> None:
        """Cancel what can be cancelled; what runs in a thread is given up at once, in a process killed."""
        if run.over:
            return
        run.cancelled = run.timed_out = True
        if run.give_up is not None:
            if len(self.abandoned) < MAX_ABANDONED:
                run.give_up(JobTimeoutError("timeout"))
            return
        assert run.task is not None  # it has begun, or there were no timeout
        run.task.cancel()
        assert self.runtime.loop is not None
        run.timer = self.runtime.loop.call_later(CANCEL_GRACE_S, self._leave_behind, run)

    def _leave_behind(self, run: Run) -> None:
        """A coroutine that swallows its cancellation: end its job, hand its slot on, drop what it may still return."""
        if run.over or run not in self.runs:
            return
        run.over = True
        self.abandoned[run] = None
        del self.runs[run]
        timeout = run.job.opts.timeout_ms
        error = JobTimeoutError(f"attempt {run.attempt} took longer than its timeout of {timeout} ms and ignored it")
        self._free_slot(self._end_failed(run, Failure(error), None))

    def cancel_runs(self) -> None:
        """Ask every run to end, now: the engine is out of patience. Plain handlers can only look at `ctx.cancelled`."""
        for run in list(self.runs):
            run.cancelled = True
            if run.give_up is None and run.task is not None:
                run.task.cancel()

    def give_up_runs(self) -> None:
        """Stop waiting for threads and kill processes that have not ended after `cancel_runs`."""
        for run in list(self.runs):
            if run.give_up is not None:
                run.give_up(asyncio.CancelledError())

    def drop_runs(self) -> None:
        """Forget every run without a trace in the core: the engine has vanished."""
        for run in list(self.runs):
            run.over = run.cancelled = True
            del self.runs[run]
            if run.timer is not None:
                run.timer.cancel()
            if run.task is not None and not run.task.get_loop().is_closed():
                run.task.cancel()
        self.busy = 0

    def abandon_runs(self) -> list[Job]:
        """Give up on what has not ended after `cancel_runs`; their jobs count as stalled."""
        left = list(self.runs)
        for run in left:
            run.over = True
            self.abandoned[run] = None
            del self.runs[run]
            self.busy -= 1
            with self.runtime.lock:
                self.runtime.core.recover_stalled(self.queue, run.job.id, self.runtime.now_ms(), self.options)
        return [run.job for run in left]

    # --- what a run does to its job -----------------------------------------------------------------------------

    def change(self, run: Run, command: Callable[[Core, Queue, int], Any]) -> None:
        """Carry out a command of a running handler on its own job; one that is over or was removed has no effect."""
        runtime = self.runtime
        with runtime.lock:
            over = run.over or self.queue.locks.get(run.job.id) is not run
            if not over:
                command(runtime.core, self.queue, runtime.now_ms())
            flush = runtime.has_news()
        if over:
            runtime.log.debug("job is over; progress, log or payload dropped", job_id=run.job.id)
        if flush:
            runtime.flush()

    def encode_payload(self, name: str, value: Any) -> bytes:
        """A payload as JSON text, by the type of the handler that will get it."""
        return (self._bindings.get(name) or self._bind(name)).handler.codec.encode(value)


async def _absorb_cancellation() -> None:
    """Take a cancellation that a handler had left pending on the runner, before the runner itself has to wait."""
    me = asyncio.current_task()
    if me is not None and me._must_cancel:  # type: ignore[attr-defined]  # noqa: SLF001  # not in the stubs
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
