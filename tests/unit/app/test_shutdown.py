"""Stopping is graceful, bounded, idempotent and reversible, it loses nothing silently, and waiters always end."""

import asyncio
import contextlib
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from inproc_jobs import (
    BlockingCallError,
    Engine,
    EngineStoppedError,
    InvalidDurationError,
    InvalidOptionTypeError,
    JobContext,
    JobFailedError,
    JobRemovedError,
    JobState,
    Registry,
    StopReport,
)
from tests.unit.app.real import PATIENCE_S, seconds_of, until, until_sync
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World


class Gate:
    """A job whose runs wait until they are let through."""

    def __init__(self, registry: Registry, name: str = "gate", **options: Any) -> None:
        self.opened = asyncio.Event()
        self.entered: list[Any] = []
        self.left: list[Any] = []
        self.job = registry.define_job(name, handle=self.handle, **options)

    async def handle(self, payload: Any) -> Any:
        self.entered.append(payload)
        await self.opened.wait()
        self.left.append(payload)
        return payload


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# --- drain -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [None, True])
async def test_everything_ready_is_run_before_the_end(drain: bool | None) -> None:
    """Without a snapshot `drain=None` means yes: waiting and prioritized jobs run, in all queues."""
    registry = Registry()
    ran: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(payload)

    here = registry.define_job("here", handle=handle)
    there = registry.define_job("there", handle=handle, queue="there")
    engine = Engine(registry=registry)
    await engine.astart()
    for number in range(5):
        await here.dispatch(number)
        await there.dispatch(10 + number, priority=number)
    report = await engine.astop(drain=drain)
    assert sorted(ran) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert report == StopReport(completed=10)


async def test_without_drain_only_what_is_active_finishes(caplog: pytest.LogCaptureFixture) -> None:
    """`drain=False`: the active job runs to its end, the waiting ones stay and are counted as lost."""
    registry = Registry()
    gate = Gate(registry)
    engine = Engine(registry=registry)
    await engine.astart()
    for number in range(4):
        await gate.job.dispatch(number)
    await until(lambda: gate.entered)
    stopping = asyncio.create_task(engine.astop(drain=False))
    await asyncio.sleep(0)
    gate.opened.set()
    report = await stopping
    assert gate.left == [0]
    assert report == StopReport(completed=1, lost=3)
    assert engine.queue("default").counts()["waiting"] == 3


async def test_a_body_that_raised_does_not_run_the_backlog() -> None:
    """`async with`: an exception in the body wants out; active jobs finish, ready ones do not start."""
    registry = Registry()
    gate = Gate(registry)
    engine = Engine(registry=registry)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the body of the engine is the point
        async with engine:
            for number in range(3):
                await gate.job.dispatch(number)
            await until(lambda: gate.entered)
            asyncio.get_running_loop().call_later(0.01, gate.opened.set)
            raise ZeroDivisionError
    assert gate.left == [0]
    assert engine.queue("default").counts()["waiting"] == 2


def test_a_with_body_that_raised_does_not_run_the_backlog() -> None:
    """The same for `with engine:` in a thread of its own."""
    registry = Registry()
    release, entered, ran = threading.Event(), threading.Event(), []

    def handle(payload: Any) -> None:
        entered.set()
        release.wait(PATIENCE_S)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    with pytest.raises(ZeroDivisionError), engine:  # noqa: PT012  # the body of the engine is the point
        for number in range(3):
            job.dispatch_sync(number)
        assert entered.wait(PATIENCE_S)
        threading.Timer(0.02, release.set).start()
        raise ZeroDivisionError
    assert ran == [0]


@virtual
async def test_delays_are_not_waited_for_and_retries_neither(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Draining ends with what is ready; what is due later is lost without a snapshot, retries included."""
    later = world.recorder("later")
    flaky = world.recorder("flaky", attempts=3, backoff="1h")
    flaky.script = [ValueError("first")]
    engine = world.engine()
    await engine.astart()
    await later.dispatch(None, delay="1d")
    await flaky.dispatch(None)
    report = await engine.astop()
    assert (later.runs, flaky.payloads) == ([], [None])
    assert report.lost == 2
    assert world.ms < 1000


async def test_drain_follows_jobs_that_jobs_dispatch() -> None:
    """While draining the engine takes dispatches from its own handlers, async and plain, and from nobody else."""
    registry = Registry()
    ran: list[Any] = []
    engine = Engine(registry=registry)
    started = asyncio.Event()

    async def handle(payload: int) -> None:
        ran.append(payload)
        started.set()
        await asyncio.sleep(0.005)
        if payload:
            await job.dispatch(payload - 1)

    def plain(payload: int) -> None:
        ran.append(payload)
        job.dispatch_sync(0)

    job = registry.define_job("job", handle=handle)
    in_thread = registry.define_job("plain", handle=plain, queue="plain")
    await engine.astart()
    await job.dispatch(3)
    await in_thread.dispatch(100)
    await started.wait()
    stopping = asyncio.create_task(engine.astop())
    await asyncio.sleep(0)
    with pytest.raises(EngineStoppedError, match="being stopped"):
        await job.on(engine).dispatch(50)
    report = await stopping
    assert sorted(ran) == [0, 0, 1, 2, 3, 100]
    assert report.lost == 0


async def test_an_engine_that_is_being_stopped_is_still_the_newest() -> None:
    """A dispatch is told that the engine stops, and reads still answer; it is not told that there is no engine."""
    registry = Registry()
    gate = Gate(registry)
    engine = Engine(registry=registry)
    await engine.astart()
    await gate.job.dispatch(None, job_id="one")
    await until(lambda: gate.entered)
    stopping = asyncio.create_task(engine.astop())
    await asyncio.sleep(0)
    try:
        view = await gate.job.find("one")
        assert view is not None
        with pytest.raises(EngineStoppedError, match="being stopped"):
            await gate.job.dispatch(None)
    finally:
        gate.opened.set()
        await stopping


@pytest.mark.parametrize("drain", [None, False])
def test_a_job_that_was_dispatched_before_the_start_is_not_overlooked(drain: bool | None) -> None:
    """Started, and stopped in the same turn of the loop: the job was fetched, so it runs before the engine counts as stopped."""
    registry = Registry()
    ran: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0.02)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)

    async def main() -> StopReport:
        await job.dispatch(None)
        await engine.astart()
        return await engine.astop(drain=drain)

    engine = Engine(registry=registry)
    report = asyncio.run(main())
    assert (ran, report) == ([None], StopReport(completed=1))


async def test_without_drain_even_own_handlers_may_not_dispatch() -> None:
    """Nothing would run it: the handler hears so instead of losing the work."""
    registry = Registry()
    engine = Engine(registry=registry)
    entered, go = asyncio.Event(), asyncio.Event()

    async def handle(payload: Any) -> None:
        entered.set()
        await go.wait()
        await job.dispatch(None)

    job = registry.define_job("job", handle=handle)
    await engine.astart()
    await job.dispatch(None, job_id="one")
    await entered.wait()
    stopping = asyncio.create_task(engine.astop(drain=False))
    await asyncio.sleep(0)
    go.set()
    report = await stopping
    assert report == StopReport(failed=1)
    assert "being stopped" in engine.queue("default").jobs("failed")[0].failed_reason


async def test_paused_queues_do_not_hold_up_a_drain() -> None:
    """A paused queue cannot run, so draining does not wait for it; its jobs are lost and counted."""
    registry = Registry()

    async def handle(payload: Any) -> None:
        pass

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    await engine.astart()
    await engine.queue("default").pause()
    await job.dispatch(None)
    assert (await engine.astop()).lost == 1


# --- the report and its one warning -----------------------------------------------------------------------------


@virtual
async def test_lost_jobs_are_named_in_exactly_one_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """`StopReport.lost` counts every state, and one warning has the numbers of each."""
    gate, other = world.noop("gate"), world.noop("other", queue="other")
    engine = world.engine()
    await engine.astart()
    await engine.queue("default").pause()
    await engine.queue("other").pause()
    for _ in range(3):
        await gate.dispatch(None)
    await gate.dispatch(None, priority=5)
    await other.dispatch(None, delay="1h")
    await gate.dispatch(None, delay="1h")
    caplog.clear()
    report = await engine.astop()
    assert report.lost == 6
    (warning,) = warnings_of(caplog)
    assert "lost=6" in warning
    assert "waiting=3" in warning
    assert "prioritized=1" in warning
    assert "delayed=2" in warning
    await engine.astop()
    assert len(warnings_of(caplog)) == 1


async def test_a_clean_stop_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Finished jobs are not lost, and an engine that is stopped in order logs no line at all."""
    caplog.set_level(logging.INFO)
    registry = Registry()

    async def handle(payload: Any) -> None:
        pass

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry) as engine:
        await job.dispatch(None, remove_on_complete=False)
    assert [record for record in caplog.records if record.name == "inproc_jobs"] == []
    assert await engine.astop() == StopReport(completed=1)


async def test_an_engine_that_never_ran_reports_what_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    """Dispatches before the start are counted as lost when nothing was ever started."""
    registry = Registry()

    async def handle(payload: Any) -> None:
        pass

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    await job.dispatch(None)
    assert engine.stop() == StopReport(lost=1)
    assert len(warnings_of(caplog)) == 1


# --- bounded -----------------------------------------------------------------------------------------------------


def swallower(registry: Registry, **options: Any) -> Any:
    """A job that catches every cancellation, for ever."""

    async def swallow(payload: Any) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    return registry.define_job("swallow", handle=swallow, **options)


@pytest.mark.slow
async def test_case_c103_swallowed_cancellation_cannot_hold_up_astop(caplog: pytest.LogCaptureFixture) -> None:
    """Within its time and a moment: the handler is abandoned and named, in the report and in the log."""
    registry = Registry()
    job = swallower(registry)
    engine = Engine(registry=registry)
    await engine.astart()
    receipt = await job.dispatch(None, job_id="stubborn")
    await until(lambda: engine.queue("default").counts()["active"])
    start = asyncio.get_running_loop().time()
    report = await engine.astop(0.2)
    assert asyncio.get_running_loop().time() - start < 2
    assert report.timed_out
    assert report.abandoned == ("stubborn",)
    assert report.interrupted == ()
    assert any("abandoned" in warning and "stubborn" in warning for warning in warnings_of(caplog))
    with pytest.raises(EngineStoppedError):
        await receipt.result()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.get_coro().close()  # type: ignore[union-attr]  # nothing else ends it
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.slow
def test_case_c103_swallowed_cancellation_cannot_hold_up_stop() -> None:
    """In a thread of its own too: the loop that hosted it is left behind, and the thread ends."""
    registry = Registry()
    job = swallower(registry)
    engine = Engine(registry=registry)
    engine.start()
    job.dispatch_sync(None, job_id="stubborn")
    until_sync(lambda: engine.queue("default").counts()["active"])
    seconds, report = seconds_of(lambda: engine.stop("200ms"))
    assert seconds < 3
    assert report.abandoned == ("stubborn",)
    assert not [thread for thread in threading.enumerate() if thread.name == "inproc_jobs engine"]


@pytest.mark.slow
def test_a_handler_that_hangs_in_a_thread_cannot_hold_up_stop() -> None:
    """Nothing can interrupt a thread: it is abandoned and named, and its late result is dropped."""
    registry = Registry()
    release, came_back = threading.Event(), threading.Event()

    def hang(payload: Any, ctx: JobContext) -> str:
        release.wait(PATIENCE_S)
        assert ctx.cancelled
        ctx.progress("late")
        came_back.set()
        return "late"

    job = registry.define_job("hang", handle=hang)
    engine = Engine(registry=registry)
    engine.start()
    job.dispatch_sync(None, job_id="hanging")
    until_sync(lambda: engine.queue("default").counts()["active"])
    seconds, report = seconds_of(lambda: engine.stop(timedelta(milliseconds=100)))
    assert seconds < 3
    assert (report.abandoned, report.timed_out) == (("hanging",), True)
    release.set()
    assert came_back.wait(PATIENCE_S)
    view = engine.queue("default").job("hanging")
    assert view is not None
    assert (view.state is not JobState.COMPLETED, view.progress) == (True, 0)


async def test_only_active_jobs_are_called_abandoned() -> None:
    """A thread that still hangs since its job timed out is no news: that job has ended, as failed."""
    registry = Registry()
    release = threading.Event()
    hang = registry.define_job("hang", handle=lambda payload: release.wait(PATIENCE_S), timeout="20ms")
    gate = Gate(registry)
    engine = Engine(registry=registry)
    await engine.astart()
    with pytest.raises(JobFailedError, match="timeout"):
        await (await hang.dispatch(None, job_id="timed out")).result(PATIENCE_S)
    await gate.job.dispatch(None, job_id="still active")
    await until(lambda: gate.entered)
    report = await engine.astop(0)
    release.set()
    assert (report.abandoned, report.interrupted) == ((), ("still active",))


@pytest.mark.slow
def test_a_thread_of_asyncio_to_thread_cannot_hold_up_stop() -> None:
    """A Runner would wait for the default executor's threads, without a limit on 3.11."""
    registry = Registry()
    release = threading.Event()

    async def handle(payload: Any) -> None:
        await asyncio.to_thread(release.wait, PATIENCE_S)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    engine.start()
    job.dispatch_sync(None, job_id="one")
    until_sync(lambda: engine.queue("default").counts()["active"])
    seconds, report = seconds_of(lambda: engine.stop(0.1))
    release.set()
    assert seconds < 3
    assert report.interrupted == ("one",)


@pytest.mark.slow
def test_a_handler_that_blocks_the_loop_cannot_hold_up_stop(caplog: pytest.LogCaptureFixture) -> None:
    """The loop does not answer, so the report is made without it; the engine may start again once it does."""
    registry = Registry()
    release = threading.Event()

    def block(payload: Any) -> None:
        release.wait(PATIENCE_S)

    job = registry.define_job("block", handle=block, executor="inline")
    engine = Engine(registry=registry)
    engine.start()
    receipt = job.dispatch_sync(None, job_id="blocking")
    until_sync(lambda: engine.queue("default").counts()["active"])
    seconds, report = seconds_of(lambda: engine.stop(0.1))
    assert seconds < 5
    assert (report.abandoned, report.timed_out) == (("blocking",), True)
    with pytest.raises(EngineStoppedError):
        receipt.result_sync()
    release.set()
    until_sync(lambda: "stopped" in repr(engine))
    engine.start()
    assert job.dispatch_sync(None).result_sync(PATIENCE_S) is None
    engine.stop()


async def test_what_time_was_too_short_for_is_put_back() -> None:
    """A cancelled handler that ends is interrupted: its job waits again, its attempt does not count."""
    registry = Registry()
    cleaned: list[str] = []

    async def handle(payload: Any, ctx: JobContext) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cleaned.append(f"{ctx.id} {ctx.cancelled}")
            raise

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry, concurrency=2)
    await engine.astart()
    for number in range(3):
        await job.dispatch(None, job_id=f"job {number}")
    await until(lambda: engine.queue("default").counts()["active"] == 2)
    report = await engine.astop(0)
    assert cleaned == ["job 0 True", "job 1 True"]
    assert sorted(report.interrupted) == ["job 0", "job 1"]
    assert (report.abandoned, report.timed_out, report.lost, report.failed) == ((), True, 3, 0)
    view = engine.queue("default").job("job 0")
    assert view is not None
    assert (view.state, view.attempts_made) == (JobState.WAITING, 0)


async def test_shutdown_timeout_is_the_default() -> None:
    """`Engine(shutdown_timeout=...)` holds where `stop` is not told otherwise, `async with` included."""
    registry = Registry()
    gate = Gate(registry)
    engine = Engine(registry=registry, shutdown_timeout="1ms")
    async with engine:
        await gate.job.dispatch(None, job_id="one")
        await until(lambda: gate.entered)
    report = await engine.astop()
    assert (report.interrupted, report.timed_out) == (("one",), True)


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "soon", "1.5ms"])
async def test_a_wrong_timeout_is_refused_and_stops_nothing(timeout: Any) -> None:
    """Bad arguments change nothing: the engine still runs."""
    registry = Registry()

    async def handle(payload: Any) -> str:
        return "ran"

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry) as engine:
        with pytest.raises(InvalidDurationError, match="timeout"):
            await engine.astop(timeout)
        with pytest.raises(InvalidDurationError, match="timeout"):
            engine.stop(timeout)
        assert await (await job.dispatch(None)).result(PATIENCE_S) == "ran"


@pytest.mark.parametrize("drain", [0, 1, "yes"])
async def test_a_wrong_drain_is_refused(drain: Any) -> None:
    """Only True, False and None; the message says so."""
    async with Engine(registry=Registry()) as engine:
        with pytest.raises(InvalidOptionTypeError, match="drain must be True, False or None"):
            await engine.astop(drain=drain)
        assert "running" in repr(engine)


# --- idempotent, restartable ------------------------------------------------------------------------------------


async def test_case_c112_stop_twice_start_again() -> None:
    """Stop, stop, start, run a job, several times over; the second stop gives the same report."""
    registry = Registry()

    async def handle(payload: Any) -> Any:
        return payload

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    for number in range(3):
        await engine.astart()
        await engine.astart()
        assert await (await job.dispatch(number)).result(PATIENCE_S) == number
        report = await engine.astop()
        assert await engine.astop() is report
        assert report == StopReport()


def test_case_c112_the_same_in_a_thread_with_plain_handlers() -> None:
    """No "cannot schedule new futures after shutdown": threads are there again after a restart."""
    registry = Registry()
    job = registry.define_job("job", handle=lambda payload: threading.current_thread().name)
    engine = Engine(registry=registry)
    for _ in range(3):
        engine.start()
        engine.start()
        assert job.dispatch_sync(None).result_sync(PATIENCE_S).startswith("inproc_jobs-")
        assert engine.stop() == engine.stop() == StopReport()


async def test_what_was_lost_runs_after_a_restart() -> None:
    """An engine started again in this process still has the jobs it counted as lost."""
    registry = Registry()
    ran: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    await engine.astart()
    await engine.queue("default").pause()
    for number in range(2):
        await job.dispatch(number)
    assert (await engine.astop()).lost == 2
    await engine.astart()
    await engine.queue("default").resume()
    await job.dispatch(2)
    assert await engine.astop() == StopReport(completed=3)
    assert ran == [0, 1, 2]


async def test_everybody_who_stops_at_once_gets_one_report() -> None:
    """Concurrent `astop` calls share one shutdown, and one that is cancelled does not leave it half done."""
    registry = Registry()
    gate = Gate(registry)
    engine = Engine(registry=registry)
    await engine.astart()
    await gate.job.dispatch(None)
    await until(lambda: gate.entered)
    stops = [asyncio.create_task(engine.astop()) for _ in range(5)]
    await asyncio.sleep(0)
    stops[0].cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    reports = await asyncio.gather(*stops, return_exceptions=True)
    assert isinstance(reports[0], asyncio.CancelledError)
    assert reports[1:] == [StopReport(completed=1)] * 4
    assert "stopped" in repr(engine)


def test_many_threads_stop_at_once() -> None:
    """`stop` from several threads: nobody hangs, everybody gets a report, again and again."""
    engine = Engine(registry=Registry())
    for _ in range(20):
        engine.start()
        reports: list[StopReport] = []
        threads = [threading.Thread(target=lambda to: to.append(engine.stop()), args=(reports,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert reports == [StopReport()] * 4


async def test_starting_while_it_stops_is_refused() -> None:
    """Half up and half down would be neither; the error says what to wait for."""
    registry = Registry()
    gate = Gate(registry)
    engine = Engine(registry=registry)
    await engine.astart()
    await gate.job.dispatch(None)
    await until(lambda: gate.entered)
    stopping = asyncio.create_task(engine.astop())
    await asyncio.sleep(0)
    with pytest.raises(EngineStoppedError, match="being stopped"):
        await engine.astart()
    with pytest.raises(EngineStoppedError, match="being stopped"):
        engine.start()
    gate.opened.set()
    await stopping


async def test_a_handler_cannot_stop_its_own_engine() -> None:
    """It would wait for itself; the error says who should stop it."""
    registry = Registry()
    engine = Engine(registry=registry)

    async def in_loop(payload: Any) -> None:
        await engine.astop()

    def in_thread(payload: Any) -> None:
        engine.stop()

    async def stop_in_loop(payload: Any) -> None:
        engine.stop()

    async with engine:
        for number, handle in enumerate((in_loop, in_thread, stop_in_loop)):
            job = registry.define_job(f"job {number}", handle=handle)
            with pytest.raises(JobFailedError, match="would wait for that handler"):
                await (await job.dispatch(None)).result(PATIENCE_S)
        assert "running" in repr(engine)


async def test_a_handler_may_stop_another_engine() -> None:
    """Only its own would be a wait for itself."""
    registry = Registry()
    other = Engine(registry=Registry())
    engine = Engine(registry=registry)

    async def handle(payload: Any) -> bool:
        return await other.astop() == StopReport()

    job = registry.define_job("job", handle=handle)
    async with engine, other:
        assert await (await job.dispatch(None)).result(PATIENCE_S) is True


async def test_stop_in_the_loop_that_hosts_the_engine_is_refused() -> None:
    """It would block the loop it waits for; the error names the async twin."""
    async with Engine(registry=Registry()) as engine:
        with pytest.raises(BlockingCallError, match=r"await engine\.astop\(\)"):
            engine.stop()


# --- dispatching to what stops or has stopped --------------------------------------------------------------------


async def test_a_stopped_engine_refuses_until_it_is_started_again() -> None:
    """Dispatch, changes and retries raise EngineStoppedError, whose message tells the cure; reads still answer."""
    registry = Registry()

    async def handle(payload: Any) -> str:
        return "ran"

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    async with engine:
        await job.dispatch(None, job_id="one")
    bound = job.on(engine)
    for attempt in (
        lambda: bound.dispatch_sync(None),
        lambda: job.dispatch_sync(None),
        lambda: engine.queue("default").pause_sync(),
        lambda: engine.retry_failed_job_sync("one"),
        engine.run_until_idle,
    ):
        with pytest.raises((EngineStoppedError, BlockingCallError), match=r"start it again|block"):
            attempt()
    view = await bound.find("one")
    assert view is not None
    assert view.result == "ran"
    await engine.astart()
    assert await (await job.dispatch(None)).result(PATIENCE_S) == "ran"
    await engine.astop()


def test_a_stopped_engine_refuses_run_until_idle() -> None:
    """Blocking runs ask for a start as well."""
    engine = Engine(registry=Registry())
    engine.stop()
    with pytest.raises(EngineStoppedError, match="start it again"):
        engine.run_until_idle()


# --- waiters always end -------------------------------------------------------------------------------------------


async def waiting_for(end: str) -> Any:
    """The outcome of `result()` for a waiter that was there before the end."""
    registry = Registry()
    go = asyncio.Event()

    async def handle(payload: Any) -> Any:
        await go.wait()
        if payload == "failed":
            raise ValueError("no")
        return payload

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    await engine.astart()
    delay = "1h" if end in ("removed", "stopped", "drained") else None
    receipt = await job.dispatch(end, delay=delay, job_id="one")
    waiters = [asyncio.create_task(receipt.result()) for _ in range(3)]
    in_thread = asyncio.create_task(asyncio.to_thread(receipt.result_sync))
    await asyncio.sleep(0.01)
    go.set()
    if end == "removed":
        await engine.queue("default").remove("one")
    elif end == "drained":
        await engine.queue("default").drain(delayed=True)
    elif end == "stopped":
        await engine.astop()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiters, in_thread, return_exceptions=True), PATIENCE_S)
    await engine.astop()
    return outcomes


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("failed", JobFailedError),
        ("removed", JobRemovedError),
        ("drained", JobRemovedError),
        ("stopped", EngineStoppedError),
    ],
)
async def test_waiters_end_with_the_job(end: str, error: type[Exception]) -> None:
    """Whoever awaits `result()`, in a loop or a thread, is told how it ended: failed, removed, engine stopped."""
    outcomes = await waiting_for(end)
    assert [type(outcome) for outcome in outcomes] == [error] * 4


async def test_waiters_get_the_result() -> None:
    """Completed: every waiter has the value, decoded for itself."""
    assert await waiting_for("completed") == ["completed"] * 4


async def test_waiting_for_a_job_of_a_stopped_engine_raises_at_once() -> None:
    """Nobody will run it; one that had ended before still answers."""
    registry = Registry()

    async def handle(payload: Any) -> str:
        return "done"

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    await engine.astart()
    ended = await job.dispatch(None)
    assert await ended.result(PATIENCE_S) == "done"
    later = await job.dispatch(None, delay="1h")
    await engine.astop()
    assert await ended.result() == "done"
    with pytest.raises(EngineStoppedError):
        await later.result()


async def test_a_waiter_without_patience_does_not_touch_the_job() -> None:
    """TimeoutError, and the job goes on; waiting again gives its result."""
    registry = Registry()
    gate = Gate(registry)
    async with Engine(registry=registry) as engine:
        receipt = await gate.job.dispatch("value")
        with pytest.raises(TimeoutError):
            await receipt.result(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(receipt.result_sync, 0.001)
        gate.opened.set()
        assert await receipt.result(PATIENCE_S) == "value"
    assert engine.runtime._waiters == {}
