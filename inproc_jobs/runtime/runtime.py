"""
The asyncio driver: joins the core, the clock, the workers and the loop that hosts them.

Locking: one lock guards the core. Every public operation takes it once, does its commands, and publishes what came of
them (events, ended jobs) after letting go. The loop's own state (workers, tasks, timer handles) is touched on the
loop's thread only; other threads get there through `call_on_loop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inproc_jobs.core.backoff import BUILTIN_BACKOFFS, NO_RETRY, wants_retry
from inproc_jobs.core.core import Core
from inproc_jobs.core.durations import parse_ms
from inproc_jobs.core.events import Event
from inproc_jobs.core.job import WATCHED, Job
from inproc_jobs.core.options import Limiter
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import FINISHED_STATES, REMOVED
from inproc_jobs.errors import EngineStoppedError, InprocJobsError, JobSignal, ReentrantCallError
from inproc_jobs.runtime.clock import Clock, ClockWatch
from inproc_jobs.runtime.cron import next_match
from inproc_jobs.runtime.failures import Failure
from inproc_jobs.runtime.handlers import Handler
from inproc_jobs.runtime.pacing import Pacer
from inproc_jobs.runtime.ports import Handlers, Listeners, Log
from inproc_jobs.runtime.run import Run
from inproc_jobs.runtime.threads import ThreadHost
from inproc_jobs.runtime.worker import QueueWorker

if TYPE_CHECKING:
    from inproc_jobs.runtime.processes import ProcessCall, ProcessHost, RunMeta

__all__ = ["MAX_PENDING_EVENTS", "SLICE_S", "Runtime"]

SLICE_S: Final = 0.001
"""How long jobs that never wait may hold the loop before the host's own tasks get a turn."""
MAX_TIMER_S: Final = 10.0
"""Longest single wait: both clocks are compared at least this often (cases C40, C44, C47)."""
_MAX_PROCESSES: Final = 10_000
MAX_PENDING_EVENTS: Final = 10_000
"""Events kept while no loop can deliver them; BullMQ's stream keeps as many."""


class Runtime:
    """
    What an engine runs on.

    Attributes:
        core, lock: The state machine, and the lock that guards it.
        loop: The loop that hosts the runners, None while there is none.
        fetching: Whether runners may take new jobs.
        workers: By queue name.
        wake_at_ms: When the timer fires, infinity while it is off. Guarded by the lock.
        completed, failed, retried: Attempts that ended so since the engine was made.
    """

    def __init__(
        self,
        clock: Clock,
        handlers: Handlers,
        listeners: Listeners,
        log: Log,
        *,
        concurrency: int,
        max_starts_per_second: float | None,
    ) -> None:
        self.core = Core()
        self.core.has_handler = lambda name: handlers.handler(name) is not None
        # Reentrant, so that code which interrupts a call in the middle (a signal handler, a `__del__`) is told so by
        # `refuse_reentry` instead of waiting for its own thread for ever.
        self.lock = threading.RLock()
        self.clock = clock
        self.handlers = handlers
        self.listeners = listeners
        self.log = log
        self.loop: asyncio.AbstractEventLoop | None = None
        self.loop_thread = 0
        self.fetching = False
        self.workers: dict[str, QueueWorker] = {}
        self.base_context = contextvars.Context()
        self.threads = ThreadHost("inproc_jobs")
        self.processes: ProcessHost | None = None
        self.monotonic = clock.monotonic
        self._read_clock = clock.now_ms
        self.slice_end = 0.0
        self.wake_at_ms: float = math.inf
        self.max_timer_s = MAX_TIMER_S
        self.completed = 0
        self.failed = 0
        self.retried = 0
        self._concurrency = concurrency
        self._pacer = Pacer(max_starts_per_second) if max_starts_per_second is not None else None
        # Whether a finish may start the next job in the same call; the cap on starts is asked before each one.
        self.chains = self._pacer is None
        self._watch = ClockWatch(clock)
        self._last_ms = clock.now_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._turn_scheduled = False
        self._pending_events: deque[Event] = deque(maxlen=MAX_PENDING_EVENTS)
        self._delivery_scheduled = False
        self._waiters: dict[Job, list[Future[Job]]] = {}
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._summoned_at = 0.0
        self.loop_lag_s = 0.0
        self.context_vars: tuple[ContextVar[Any], ...] = ()
        self.owner: Callable[[], object | None] = _nobody
        self.admit_queue: Callable[[str], None] = _leave_alone
        self.prepare_queue: Callable[[Queue], None] = _leave_alone
        self.draw: Callable[[], float] = random.random

    def refuse_reentry(self) -> None:
        """
        Raise when this thread is in the middle of another call already.

        Raises:
            ReentrantCallError: The core may be half way through a change.

        Cost: 40 ns.
        """
        if self.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001  # not in the stubs
            raise ReentrantCallError(
                "this call came in the middle of another call to the engine in the same thread (from a signal handler, a "
                "__del__, or a log handler); hand it to the loop (loop.call_soon) or to another thread"
            )

    # --- time ---------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The wall clock, after making up for a step back. Call with the lock held. Cost: one clock read, mostly."""
        now = self._read_clock()
        last = self._last_ms
        if now == last:
            return last  # the same object for all jobs of a millisecond: a million of them share theirs
        # The clocks are compared when the wall clock went back, and after a pause in which it may have.
        if not last < now < last + 1000:
            step = self._watch.step_back_ms()
            if step:
                self._shift(now, step)
                self.call_on_loop(self._on_timer)
        self._last_ms = now
        return now

    def _shift(self, now_ms: int, step_ms: int) -> None:
        """Make up for a step back. Lock held."""
        self.core.shift_clock(-step_ms)
        self.core.reschedule_all(now_ms, next_match)
        self.wake_at_ms = math.inf
        # Later: a log handler may ask the engine, and the lock is held here.
        self.call_on_loop(partial(self.log.warning, "wall clock was set back", by_ms=step_ms))

    def arm_for(self, worker: QueueWorker, now_ms: int) -> None:
        """A worker found nothing: wake up when there may be something. Lock held, on the loop."""
        wake = self.core.next_wake_ms(worker.queue, now_ms, worker.options)
        if wake is not None and wake < self.wake_at_ms:
            self._arm(wake, now_ms)

    def _arm(self, wake_ms: float, now_ms: int) -> None:
        """Set the one timer. Lock held, on the loop."""
        assert self.loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self.wake_at_ms = wake_ms
        self._timer = self.loop.call_later(min(max(wake_ms - now_ms, 0) / 1000, self.max_timer_s), self._on_timer)

    def _on_timer(self) -> None:
        """Something may be due: let every worker with a free slot look."""
        if self.loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self.lock:
            self.wake_at_ms = math.inf
            step = self._watch.step_back_ms()
            if step:
                self._shift(self._read_clock(), step)
        for worker in list(self.workers.values()):
            worker.pump()
        self.check_idle()

    def note_delayed(self, due_ms: float) -> None:
        """A delayed job came in that is due before the timer fires. Lock held, any thread."""
        if self.loop is not None and self.fetching:
            self.wake_at_ms = due_ms
            self.call_on_loop(self._rearm)

    def _rearm(self) -> None:
        """Set the timer to what is due first, now that this runs on the loop."""
        if self.loop is None:
            return
        with self.lock:
            now_ms = self.now_ms()
            self.wake_at_ms = math.inf
            for worker in self.workers.values():
                if worker.busy < worker.concurrency:
                    self.arm_for(worker, now_ms)

    # --- the loop -----------------------------------------------------------------------------------------------

    def host(self, loop: asyncio.AbstractEventLoop, *, fetching: bool = True) -> None:
        """Start running jobs on this loop, or with `fetching` False get ready to. Called on its thread."""
        self.base_context = contextvars.copy_context()
        self.threads.reopen()
        with self.lock:
            self.loop = loop
            self.loop_thread = threading.get_ident()
            self.fetching = fetching
            self.wake_at_ms = math.inf
            # What happened to the clock while nothing was hosted counts as well.
            step = self._watch.step_back_ms()
            if step:
                self._shift(self._read_clock(), step)
            self._last_ms = self._read_clock()
            self._turn_scheduled = self._delivery_scheduled = False
            for queue in self.core.queues.values():
                worker = self.worker(queue.name)
                worker.busy = 0
                worker.runs.clear()
                worker.summoned = False
                worker.forget_bindings()
                # Left active by a loop that was closed under the engine: nobody runs them any more.
                self.core.reset_active(queue, self._last_ms)
        for worker in list(self.workers.values()):
            worker.pump()
        if self._pending_events:
            self._schedule_delivery()

    def unhost(self) -> None:
        """Stop using the loop. Called on its thread; runs that are left must have been given up before."""
        with self.lock:
            self.fetching = False
            self.loop = None
            self.loop_thread = 0
            self.wake_at_ms = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._idle_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._idle_waiters.clear()
        self.threads.close()
        if self.processes is not None:
            self.processes.close(0)
            self.processes = None

    def call_on_loop(self, call: Callable[..., object], *args: Any) -> None:
        """Run something on the host's loop soon; dropped when there is none."""
        loop = self.loop
        if loop is None:
            return
        # A loop that was closed without stopping the engine refuses; the next start takes up what is left.
        with contextlib.suppress(RuntimeError):
            if threading.get_ident() == self.loop_thread:
                loop.call_soon(call, *args, context=self.base_context.copy())
            else:
                loop.call_soon_threadsafe(call, *args, context=self.base_context.copy())

    def begin_slice(self) -> float:
        """A runner got its turn: it opens a slice unless another did so in this turn of the loop. Answers the time."""
        now = self.monotonic()
        if now >= self.slice_end and not self._turn_scheduled:
            self.slice_end = now + SLICE_S
        return now

    async def give_way(self) -> float:
        """
        Let the host's tasks have a turn; answers the time after it.

        All runners share one slice per turn of the loop: fifty of them with a slice each would hold it fifty times as
        long. The first that has used it up asks for a new one, which starts with the next turn.
        """
        if not self._turn_scheduled:
            self._turn_scheduled = True
            assert self.loop is not None
            self.loop.call_soon(self._new_slice)
        await asyncio.sleep(0)
        return self.monotonic()

    def _new_slice(self) -> None:
        self._turn_scheduled = False
        self.slice_end = self.monotonic() + SLICE_S

    # --- workers ------------------------------------------------------------------------------------------------

    def add_worker(self, name: str, concurrency: int | None, limiter: Limiter | None) -> QueueWorker:
        """The worker of a queue with these settings; `concurrency` None takes the engine's. Lock held."""
        self.admit_queue(name)
        queue = self.core.queue(name)
        self.prepare_queue(queue)
        worker = QueueWorker(self, queue, concurrency or self._concurrency, limiter)
        self.workers[name] = worker
        return worker

    def start_over(self) -> None:
        """Empty every queue, keeping the workers; a snapshot fills them again. Lock held, nothing runs."""
        self.core.queues.clear()
        for name, worker in self.workers.items():
            worker.queue = self.core.queue(name)
            self.prepare_queue(worker.queue)

    def worker(self, name: str) -> QueueWorker:
        """The worker of a queue, made with the defaults when first named. Lock held."""
        return self.workers.get(name) or self.add_worker(name, None, None)

    def fetch(self, worker: QueueWorker, run: Run) -> Job | None:
        """The core's next job for a worker, or None with the timer armed. Lock held, on the loop."""
        now_ms = self.now_ms()
        if self._pacer is not None:
            pause_ms = self._pacer.pause_ms(now_ms)
            if pause_ms and worker.queue.ready_count + len(worker.queue.delayed):
                if now_ms + pause_ms < self.wake_at_ms:
                    self._arm(now_ms + pause_ms, now_ms)
                return None
        job = self.core.fetch(worker.queue, now_ms, run, worker.options)
        if job is None:
            self.arm_for(worker, now_ms)
        elif self._pacer is not None:
            self._pacer.count(now_ms)
        return job

    def summon(self, worker: QueueWorker) -> None:
        """A job came in: have the worker look, unless it is full or was told already. Lock held, any thread."""
        if worker.summoned or self.loop is None or worker.busy >= worker.concurrency:
            return
        worker.summoned = True
        self._summoned_at = self.monotonic()
        self.call_on_loop(worker.answer)

    def note_lag(self) -> None:
        """A summoned worker has got its turn: how long that took is how busy the host's loop is."""
        self.loop_lag_s = self.monotonic() - self._summoned_at

    def summon_all(self) -> None:
        """What was done to one queue may have made jobs of others ready (parents of flows). Lock held."""
        for worker in self.workers.values():
            if worker.queue.ready_count:
                self.summon(worker)

    def start_iteration(self, run: Run) -> bool:
        """A scheduler's job is about to run: its next one is made first. False when it is skipped."""
        with self.lock:
            now_ms = self.now_ms()
            wanted = self.core.start_iteration(run.worker.queue, run.job, now_ms, next_match)
            self.arm_for(run.worker, now_ms)
            news = self.has_news()
        if news:
            self.flush()
        return wanted

    def came_back(self, run: Run) -> None:
        """An abandoned handler has ended after all; its thread or task is free again."""
        run.worker.abandoned.pop(run, None)
        self.log.info("abandoned handler has ended, its result is dropped", job_id=run.job.id, job_name=run.job.name)

    def report_block(self, run: Run, seconds: float) -> None:
        """A handler has held the loop: the host could do nothing meanwhile."""
        self.log.warning(
            "handler blocked the event loop; make it await, or a plain function so that it runs in a thread",
            job_id=run.job.id,
            job_name=run.job.name,
            queue=run.queue_name,
            blocked_ms=round(seconds * 1000),
        )

    def forget_bindings(self, name: str) -> None:
        """The handler of a name has changed; jobs of a store that were parked for want of one can run now."""
        for worker in list(self.workers.values()):
            worker.forget_binding(name)
        if self.handlers.handler(name) is None:
            return
        with self.lock:
            for worker in self.workers.values():
                if self.core.unpark(worker.queue, name):
                    self.summon(worker)

    # --- news ---------------------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether the commands just done have something to publish. Lock held."""
        return bool(self.core.events or self.core.ended)

    def flush(self) -> None:
        """Publish what the core has to tell. Without the lock, any thread."""
        with self.lock:
            ended = self.core.take_ended()
            if self.core.events:
                self._pending_events.extend(self.core.take_events())
            waiters = [(job, waiter) for job in ended for waiter in self._waiters.pop(job, ())]
            deliver = bool(self._pending_events) and not self._delivery_scheduled and self.loop is not None
            if deliver:
                self._delivery_scheduled = True
        for job, waiter in waiters:
            # Whoever waits may lose patience in another thread at any moment.
            with contextlib.suppress(InvalidStateError):
                waiter.set_result(job)
        if deliver:
            self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        self._delivery_scheduled = True
        self.call_on_loop(self._deliver)

    def _deliver(self) -> None:
        """Hand events to the listeners, on the loop and outside the lock."""
        with self.lock:
            self._delivery_scheduled = False
            events = list(self._pending_events)
            self._pending_events.clear()
        self.listeners.deliver(events)

    # --- waiting for ends ---------------------------------------------------------------------------------------

    def watch(self, job: Job) -> Future[Job] | None:
        """A future of the end of a job, None when it has ended already. Any thread, without the lock."""
        with self.lock:
            if job.state in FINISHED_STATES or job.state is REMOVED:
                return None
            job.flags |= WATCHED
            future: Future[Job] = Future()
            self._waiters.setdefault(job, []).append(future)
            return future

    def unwatch(self, job: Job, future: Future[Job]) -> None:
        """The waiter lost its patience."""
        with self.lock:
            waiters = self._waiters.get(job)
            if waiters is not None and future in waiters:
                waiters.remove(future)
                if not waiters:
                    del self._waiters[job]
                    job.flags &= ~WATCHED

    def fail_waiters(self, error: InprocJobsError) -> None:
        """The engine stops: whoever still waits is told so."""
        with self.lock:
            waiters, self._waiters = self._waiters, {}
        for futures in waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(EngineStoppedError(str(error)))

    def can_end(self, job: Job, seen: set[Job] | None = None) -> bool:
        """
        Whether a job can still come to its end although handlers wait for each other (DESIGN 4). Lock held.

        A job that is being run can, unless its handler waits for one that cannot; one that is not can, if its queue has
        a free slot or a run that will free one. A queue that is paused counts as able: somebody may resume it.
        """
        seen = set() if seen is None else seen
        if job in seen:
            return False
        seen.add(job)
        for worker in self.workers.values():
            if worker.queue.index.get(job.id) is not job:
                continue
            for run in worker.runs:
                if run.job is job:
                    return self._can_go_on(run, seen)
            if worker.queue.paused or len(worker.runs) < worker.concurrency:
                return True
            return any(self._can_go_on(run, seen) for run in list(worker.runs))
        return True

    def _can_go_on(self, run: Run, seen: set[Job]) -> bool:
        """Whether a run waits for nothing, or for a job that can end. Of several any will do: better hang than lie."""
        return not run.waits_for or any(self.can_end(job, seen) for job in run.waits_for)

    # --- idle ---------------------------------------------------------------------------------------------------

    def is_idle(self, *, ready_only: bool = False) -> bool:
        """
        Whether nothing can run: no run, nothing ready, no delay that would end; paused queues do not count.

        Args:
            ready_only: Delays do not count either.
        """
        with self.lock:
            for name, queue in self.core.queues.items():
                worker = self.workers.get(name)
                if worker is not None and worker.runs:
                    return False
                if queue.paused:
                    continue
                if self.core.has_runnable(queue) or (not ready_only and self.core.has_pending_delays(queue)):
                    return False
        return True

    async def wait_idle(self, *, ready_only: bool = False) -> None:
        """Return once `is_idle` is true. On the loop."""
        while self.loop is not None and not self.is_idle(ready_only=ready_only):
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    async def wait_change(self) -> None:
        """Return at the next moment at which quiet may have come. On the loop."""
        assert self.loop is not None
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._idle_waiters.append(waiter)
        await waiter

    async def wait_no_runs(self) -> None:
        """Return once no attempt is going on. On the loop."""
        while self.loop is not None and any(worker.runs for worker in self.workers.values()):
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def resume_fetching(self) -> None:
        """Let the workers take jobs again. On the loop."""
        self.fetching = True
        for worker in list(self.workers.values()):
            worker.pump()

    def went_idle(self, worker: QueueWorker) -> None:
        """A runner has ended."""
        if self._idle_waiters:
            self.check_idle()

    def check_idle(self) -> None:
        """Something changed: let those that wait for quiet look again. On the loop."""
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def changed(self, name: str) -> None:
        """An operator changed a queue: its worker looks for work, and quiet may have come. Any thread, no lock."""
        with self.lock:
            self.summon(self.worker(name))
            self.summon_all()
        self.flush()
        self.call_on_loop(self._rearm)
        self.call_on_loop(self.check_idle)

    # --- failures -----------------------------------------------------------------------------------------------

    async def ask_strategy(self, run: Run, failure: Failure) -> tuple[Failure, float | None]:
        """The answer of a custom backoff; one that raises or answers nonsense fails the job for good."""
        job = run.job
        backoff = job.opts.backoff
        if backoff is None or backoff.type in BUILTIN_BACKOFFS:
            return failure, None
        if not wants_retry(job.opts, job.attempts_made, job.attempts_started, None, unrecoverable=False):
            return failure, None
        try:
            strategy = self.handlers.strategy(job.name)
            if strategy is None:
                raise LookupError(f"no backoff strategy is defined for {job.name!r}")
            answer = strategy(job.attempts_made + 1, failure.error, job)
            if isinstance(answer, Awaitable):
                answer = await answer
            return failure, NO_RETRY if answer is None else parse_ms(answer, option="backoff")
        except BaseException as error:  # noqa: BLE001  # user code; the job must end whatever comes out of it
            self.log.error("backoff strategy failed; the job is not retried", job_id=job.id, error=repr(error))
            failure.unrecoverable = True
            return failure, None

    def report_failure(
        self, run: Run, reason: str, stack: str | None, final: bool, error: BaseException | None = None
    ) -> None:
        """Count and log a failed attempt; `error` is what was raised, for whoever overrides this."""
        job = run.job
        fields = {"job_id": job.id, "job_name": job.name, "queue": run.queue_name, "attempt": run.attempt}
        if final:
            self.failed += 1
            # Raised on purpose: where it came from is no news.
            self.log.error("job failed", **fields, reason=reason, stack=None if isinstance(error, JobSignal) else stack)
        else:
            self.retried += 1
            self.log.info("attempt failed, job will be retried", **fields, reason=reason)

    # --- processes ----------------------------------------------------------------------------------------------

    def process_call(self, run: Run, handler: Handler) -> ProcessCall:
        """The call that runs a handler in another process; a thread has to make it."""
        if self.processes is None:
            # Slots bound how many are used; queues that come into being later bring slots of their own.
            from inproc_jobs.runtime.processes import ProcessHost  # takes ms to load, and most programs need none

            self.processes = ProcessHost(_MAX_PROCESSES)
        job = run.job
        links = run.children()
        meta: RunMeta = {
            "id": job.id,
            "name": job.name,
            "queue": run.queue_name,
            "attempt": run.attempt,
            "max_attempts": max(1, job.opts.attempts),
            "due_ms": run.due_ms,
            "late_by_ms": max(0, (job.processed_on or 0) - run.due_ms),
            "processed": dict(links.processed),
            "ignored": dict(links.ignored),
        }

        def on_message(kind: str, value: Any) -> None:
            {"progress": run.set_progress, "log": run.add_log, "update_payload": run.update_payload}[kind](value)

        def on_start() -> None:
            # Counted from here: starting a process and importing the handler's module is not the handler's doing.
            if job.opts.timeout_ms is not None:
                self.call_on_loop(run.worker.start_timeout, run, job.opts.timeout_ms)

        return self.processes.prepare(
            handler.module,
            handler.qualname,
            job.data,
            meta,
            wants_ctx=handler.wants_ctx,
            on_message=on_message,
            on_start=on_start,
        )


def _nobody() -> None:
    """The owner of a runtime that has none."""


def _leave_alone(_queue: object) -> None:
    """What a runtime without an owner does to a new queue."""
