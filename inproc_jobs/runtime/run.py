"""
One attempt of one job, and how its coroutine is driven.

A run has a context of its own, but not a Task of its own: a Task per job costs as much as all the rest of a short
job. The runner (a Task that runs one job after the other) steps the coroutine inside the run's context; when it
suspends, the runner yields whatever the coroutine yielded and so waits on its behalf. `asyncio.current_task()` is
therefore the runner: `asyncio.timeout`, task groups and cancellation work as usual, but the task's identity is not
one per job.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from inproc_jobs.core.job import Children, Job
from inproc_jobs.core.json_values import encode_json
from inproc_jobs.runtime.context import JobContext, bind_run

if TYPE_CHECKING:
    import asyncio

    from inproc_jobs.runtime.worker import QueueWorker

__all__ = ["BLOCKED_S", "Run", "RunnerClosed", "Stored", "begin", "call_plain", "drive", "start_coroutine"]


_Coroutine = types.CoroutineType
BLOCKED_S: Final = 0.1
"""A handler that holds the loop this long without waiting is named in the log."""


class RunnerClosed(BaseException):  # no error: the loop goes away
    """A runner was closed in the middle of a run. Not a GeneratorExit, which handlers may raise themselves."""


class Stored:
    """A result that is JSON text already: it comes from another process."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Run:
    """
    One attempt. It is also the token that locks the job in the core, so nobody else can end it.

    Attributes:
        worker, job: Whose, and what; `job` is set once the fetch has found one.
        attempt: 1 for the first.
        due_ms: When it was due.
        task: The runner that executes it, None until it does.
        cancelled: It should end (`JobContext.cancelled`).
        timed_out: Why: its timeout is over.
        over: The engine has ended it already; whatever the handler still does is dropped.
        waits_for: The jobs whose results the handler awaits without a timeout.
        give_up: Ends the waiting of the runner where the handler itself cannot be ended (threads, processes).
    """

    # Defaults sit on the class: one is made per attempt, and most of these are never set.
    job: Job
    coro: Coroutine[Any, Any, Any]
    attempt: int
    due_ms: int
    task: asyncio.Task[None] | None = None
    cancelled = False
    timed_out = False
    over = False
    waited = False
    timer: asyncio.TimerHandle | None = None
    waits_for: tuple[Job, ...] = ()
    give_up: Callable[[BaseException], None] | None = None
    value: Any = None
    yielded: Any = None

    def __init__(self, worker: QueueWorker) -> None:
        self.worker = worker

    def took(self, job: Job) -> Run:
        """The fetch has found this job for the run."""
        self.job = job
        # From here on the run counts, also while its runner has not had its first turn yet.
        self.worker.runs[self] = None
        self.attempt = job.attempts_made + 1
        self.due_ms = job.timestamp if job.extra is None and not job.order else job.scheduled_ms
        return self

    @property
    def queue_name(self) -> str:
        """Name of the queue."""
        return self.worker.queue.name

    # --- what the handler says through its context --------------------------------------------------------------

    def set_progress(self, value: Any) -> None:
        """Store and publish progress, unless the run is over."""
        data = encode_json(value, "progress")
        self.worker.change(self, lambda core, queue, now_ms: core.update_progress(queue, self.job.id, data))

    def add_log(self, line: str) -> None:
        """Append to the job's log, unless the run is over."""
        row, keep = str(line), self.job.opts.keep_logs
        self.worker.change(self, lambda core, queue, now_ms: core.add_log(queue, self.job.id, row, keep))

    def children(self) -> Children:
        """The job's side of a flow's links."""
        runtime = self.worker.runtime
        with runtime.lock:
            return runtime.core.children_of(self.worker.queue, self.job.id)

    def update_payload(self, value: Any) -> None:
        """Replace the stored payload, unless the run is over."""
        data = self.worker.encode_payload(self.job.name, value)
        self.worker.change(self, lambda core, queue, now_ms: core.update_data(queue, self.job.id, data))


def begin(run: Run, fn: Callable[..., Any], decode: Callable[[bytes], Any], wants_ctx: bool) -> bool:
    """
    Call the handler inside the run's context and, if that gives a coroutine, run it up to its first wait.

    Returns:
        True when it waits (`drive` goes on), False when it is done and `run.value` has the result.
    """
    bind_run(run)
    payload = decode(run.job.data)
    value = fn(payload, JobContext(run)) if wants_ctx else fn(payload)
    if type(value) is not _Coroutine:
        if not isawaitable(value):
            run.value = value
            return False
        value = _await(value)
    # As in `start_coroutine`: a call less for every job.
    try:
        run.yielded = value.send(None)
    except StopIteration as stop:
        run.value = stop.value
        return False
    run.coro = value
    return True


def start_coroutine(run: Run, coro: Coroutine[Any, Any, Any]) -> bool:
    """Step a coroutine for the first time; see `begin` for the answer."""
    try:
        run.yielded = coro.send(None)
    except StopIteration as stop:
        run.value = stop.value
        return False
    run.coro = coro
    return True


async def _await(value: Awaitable[Any]) -> Any:
    return await value


@types.coroutine
def drive(run: Run, context: Context) -> Generator[Any, Any, Any]:
    """
    Wait on behalf of a coroutine that `begin` has started, stepping it inside its context until it is done.

    Raises:
        RunnerClosed: The runner is being closed, with its loop: nothing may be done for the job any more.
    """
    coro, yielded = run.coro, run.yielded
    runtime = run.worker.runtime
    monotonic = runtime.monotonic
    while True:
        step: Callable[..., Any] = coro.send
        given: Any = None
        try:
            given = yield yielded
        except GeneratorExit:
            coro.close()
            raise RunnerClosed from None
        except BaseException as error:  # noqa: BLE001  # passed on, cancellation above all
            step, given = coro.throw, error
        before = monotonic()
        try:
            yielded = context.run(step, given)
        except StopIteration as stop:
            return stop.value
        finally:
            held = monotonic() - before
            if held > BLOCKED_S:
                runtime.report_block(run, held)


def call_plain(run: Run, fn: Callable[..., Any], decode: Callable[[bytes], Any], wants_ctx: bool) -> Any:
    """Call a plain handler, in a thread, inside the run's context."""
    bind_run(run)
    payload = decode(run.job.data)
    return fn(payload, JobContext(run)) if wants_ctx else fn(payload)
