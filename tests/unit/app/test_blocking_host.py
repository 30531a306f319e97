"""The blocking hosts: `run_until_idle` for command-line tools, `run_forever` with signals for worker processes."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inproc_jobs import (
    BlockingCallError,
    Engine,
    EngineStoppedError,
    InvalidDurationError,
    JobState,
    Registry,
    RunSummary,
)
from tests.unit.app.real import PATIENCE_S, posix, program, run_program, seconds_of


def recorder(registry: Registry, ran: list[Any], **options: Any) -> Any:
    async def handle(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(payload)

    return registry.define_job("job", handle=handle, **options)


# --- run_until_idle ----------------------------------------------------------------------------------------------


def test_it_runs_what_is_there_and_sums_up() -> None:
    """Completed, failed and retried attempts of this call; `ok` only when nothing failed and nothing is left."""
    registry = Registry()
    tries: list[int] = []

    def flaky(payload: Any, ctx: Any) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    def broken(payload: Any) -> None:
        raise ValueError("never")

    ran: list[Any] = []
    job = recorder(registry, ran)
    flaky_job = registry.define_job("flaky", handle=flaky, attempts=3)
    broken_job = registry.define_job("broken", handle=broken, attempts=2)
    engine = Engine(registry=registry)
    for number in range(3):
        job.dispatch_sync(number)
    flaky_job.dispatch_sync(None)
    broken_job.dispatch_sync(None)
    summary = engine.run_until_idle()
    assert summary == RunSummary(completed=4, failed=1, retried=3)
    assert not summary.ok
    assert (ran, tries) == ([0, 1, 2], [1, 2, 3])


def test_an_engine_stays_usable() -> None:
    """Dispatch again, run again: it counts as new, not as stopped, and each summary is about its own call."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    engine = Engine(registry=registry)
    for number in range(3):
        job.dispatch_sync(number)
        job.dispatch_sync(number)
        assert engine.run_until_idle() == RunSummary(completed=2)
    assert engine.run_until_idle() == RunSummary()
    assert engine.run_until_idle().ok


def test_a_single_job_is_not_overlooked() -> None:
    """Fetched by the start, its handler not called yet: the engine is not idle."""
    registry = Registry()
    ran: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0.02)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    job.dispatch_sync("only one")
    assert engine.run_until_idle() == RunSummary(completed=1)
    assert ran == ["only one"]


def test_delays_and_retries_are_waited_for() -> None:
    """Idle means that nothing can run: what is due in a moment still can."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    tries: list[int] = []

    def flaky(payload: Any, ctx: Any) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("not yet")

    flaky_job = registry.define_job("flaky", handle=flaky, attempts=2, backoff=20)
    engine = Engine(registry=registry, concurrency=2)
    job.dispatch_sync("later", delay=30)
    job.dispatch_sync("now")
    flaky_job.dispatch_sync(None)
    assert engine.run_until_idle(PATIENCE_S) == RunSummary(completed=3, retried=1)
    assert (ran, tries) == (["now", "later"], [1, 2])


def test_paused_queues_are_not_waited_for() -> None:
    """They cannot run; the summary says that something remains."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    other = registry.define_job("other", handle=ran.append, queue="other")
    engine = Engine(registry=registry)
    engine.queue("default").pause_sync()
    job.dispatch_sync("paused")
    job.dispatch_sync("paused and delayed", delay="1h")
    other.dispatch_sync("runs")
    other.dispatch_sync("runs too")
    summary = engine.run_until_idle(PATIENCE_S)
    assert summary == RunSummary(completed=2, remaining=2)
    assert not summary.ok
    assert ran == ["runs", "runs too"]


def test_jobs_that_jobs_dispatch_are_run_too() -> None:
    """From async handlers and from plain ones in threads."""
    registry = Registry()
    ran: list[Any] = []

    async def in_loop(payload: int) -> None:
        ran.append(payload)
        if payload:
            await in_thread_job.dispatch(payload - 1)

    def in_thread(payload: int) -> None:
        ran.append(payload)
        if payload:
            in_loop_job.dispatch_sync(payload - 1)

    in_loop_job = registry.define_job("in loop", handle=in_loop)
    in_thread_job = registry.define_job("in thread", handle=in_thread)
    engine = Engine(registry=registry)
    in_loop_job.dispatch_sync(9)
    in_loop_job.dispatch_sync(0)
    assert engine.run_until_idle(PATIENCE_S) == RunSummary(completed=11)
    assert sorted(ran) == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_timeout_puts_back_what_is_active() -> None:
    """`timed_out`, nothing lost: the next call goes on, and the interrupted attempt has not counted."""
    registry = Registry()
    patient = [False]

    async def handle(payload: Any) -> str:
        if not patient[0]:
            await asyncio.sleep(3600)
        return "done"

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    receipt = job.dispatch_sync(None, job_id="one")
    job.dispatch_sync(None, job_id="two")
    summary = engine.run_until_idle("50ms")
    assert summary == RunSummary(timed_out=True, remaining=2)
    view = engine.queue("default").job("one")
    assert view is not None
    assert (view.state, view.attempts_made) == (JobState.WAITING, 0)
    patient[0] = True
    job.dispatch_sync(None)
    assert engine.run_until_idle(PATIENCE_S) == RunSummary(completed=3)
    assert receipt.result_sync() == "done"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["swallows", "hangs in a thread", "hangs in to_thread"])
def test_case_c103_a_timeout_is_kept_whatever_the_handler_does(kind: str) -> None:
    """A handler that swallows its cancellation or hangs in a thread cannot hold up the tool."""
    registry = Registry()
    release = threading.Event()

    async def swallows(payload: Any) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    async def to_thread(payload: Any) -> None:
        await asyncio.to_thread(release.wait, PATIENCE_S)

    handlers: dict[str, Callable[[Any], Any]] = {
        "swallows": swallows,
        "hangs in a thread": lambda payload: release.wait(PATIENCE_S),
        "hangs in to_thread": to_thread,
    }
    job = registry.define_job("job", handle=handlers[kind])
    engine = Engine(registry=registry)
    job.dispatch_sync(None)
    job.dispatch_sync(None)
    seconds, summary = seconds_of(lambda: engine.run_until_idle(0.1))
    release.set()
    assert seconds < 5
    assert (summary.timed_out, summary.remaining) == (True, 2)


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "soon"])
def test_a_wrong_timeout_is_refused(timeout: Any) -> None:
    """Nothing has run by then."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    engine = Engine(registry=registry)
    job.dispatch_sync(1)
    with pytest.raises(InvalidDurationError, match="timeout"):
        engine.run_until_idle(timeout)
    assert ran == []


def test_on_an_engine_that_runs_in_a_thread_it_only_waits() -> None:
    """Hosted already: `run_until_idle` from another thread waits for quiet and leaves it running."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    with Engine(registry=registry) as engine:
        for number in range(5):
            job.dispatch_sync(number)
        assert engine.run_until_idle(PATIENCE_S).remaining == 0
        assert ran == [0, 1, 2, 3, 4]
        assert "running" in repr(engine)


def test_a_handler_cannot_run_its_own_engine_until_idle() -> None:
    """It would wait for itself."""
    registry = Registry()
    engine = Engine(registry=registry)
    job = registry.define_job("job", handle=lambda payload: engine.run_until_idle())
    job.dispatch_sync(None)
    job.dispatch_sync(None)
    assert engine.run_until_idle(PATIENCE_S).failed == 2
    assert "would wait for that handler" in engine.failed_jobs_sync()[0].failed_reason


def test_progress_is_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is always there and has the numbers; standard output is the tool's own."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    engine = Engine(registry=registry)
    for number in range(3):
        job.dispatch_sync(number)
    engine.run_until_idle(progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == "jobs: 3/3 done, 0 failed, 0 retried"


@posix
def test_case_c100_ctrl_c_ends_a_tool() -> None:
    """A real SIGINT: KeyboardInterrupt comes out of `run_until_idle`, what was active is put back, no hang."""
    tool = program(
        """
        import asyncio
        from inproc_jobs import Engine, define_job

        @define_job("slow")
        async def slow(payload):
            print("ready", flush=True)
            await asyncio.sleep(3600)

        engine = Engine()
        slow.dispatch_sync(None, job_id="one")
        slow.dispatch_sync(None, job_id="two")
        try:
            engine.run_until_idle()
        except KeyboardInterrupt:
            view = engine.queue("default").job("one")
            print("interrupted", view.state, view.attempts_made, flush=True)
            raise SystemExit(130)
        """
    )
    tool.expect("ready")
    tool.send(signal.SIGINT)
    code, out, errors = tool.end()
    assert (code, out.strip()) == (130, "interrupted waiting 0")
    assert "Traceback" not in errors


@posix
@pytest.mark.parametrize("form", ["async", "inline", "thread"])
def test_case_c100_a_real_sigint_still_stops_an_app_whose_handlers_raise_such(form: str) -> None:
    """Jobs that raised KeyboardInterrupt and SystemExit have failed; the signal that means the app ends the app."""
    executor = "" if form == "async" else f", executor={form!r}"
    app = program(
        f"""
        import asyncio
        from inproc_jobs import Engine, JobFailedError, define_job

        @define_job("bad"{executor})
        {"async " if form == "async" else ""}def bad(payload):
            raise (KeyboardInterrupt() if payload == "interrupt" else SystemExit(3))

        @define_job("slow")
        async def slow(payload):
            print("ready", flush=True)
            await asyncio.sleep(3600)

        async def main():
            async with Engine(shutdown_timeout="50ms"):
                for payload in ("interrupt", "exit"):
                    try:
                        await (await bad.dispatch(payload)).result()
                    except JobFailedError as error:
                        print(error.reason, flush=True)
                await (await slow.dispatch(None)).result()

        asyncio.run(main())
        """
    )
    app.expect("KeyboardInterrupt")
    app.expect("SystemExit: 3")
    app.expect("ready")
    app.send(signal.SIGINT)
    code, _, errors = app.end()
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


@posix
def test_case_c100_ctrl_c_stops_a_program_whose_engine_has_a_thread() -> None:
    """SIGINT reaches the main thread as always; `with engine` lets go without running the backlog."""
    app = program(
        """
        import threading, time
        from inproc_jobs import Engine, define_job

        @define_job("job")
        def job(payload):
            print("ready", flush=True)
            time.sleep(0.05)

        engine = Engine()
        try:
            with engine:
                for number in range(1000):
                    job.dispatch_sync(number)
                while True:  # not one wait: CPython may miss a signal that comes just before it
                    time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted", engine.queue("default").counts()["waiting"] > 500, flush=True)
        """
    )
    app.expect("ready")
    app.send(signal.SIGINT)
    code, out, _ = app.end()
    assert code == 0
    assert out.strip().splitlines()[-1] == "interrupted True"


# --- run_forever --------------------------------------------------------------------------------------------------

WORKER = """
import asyncio, signal, sys, threading
from inproc_jobs import Engine, define_job

go = threading.Event()

@define_job("job")
async def job(payload):
    print("ready", flush=True)
    await asyncio.sleep({sleep})
    print("finished", flush=True)

engine = Engine(shutdown_timeout={timeout!r})
job.dispatch_sync(None, job_id="one")
job.dispatch_sync(None, job_id="two")
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
report = engine.run_forever()
assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
print(report, flush=True)
sys.exit(5)
"""


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_gracefully(number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM: what is ready is drained, the report comes back, the exit code is the caller's."""
    worker = program(WORKER.format(sleep=0.1, timeout="20s"))
    worker.expect("ready")
    worker.send(number)
    code, out, _ = worker.end()
    assert code == 5
    assert out.count("finished") == 2
    assert "completed=2" in out
    assert "timed_out=False" in out


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_stops_at_once(number: signal.Signals) -> None:
    """No waiting for a job of an hour: it is interrupted, put back, and named in the report."""
    worker = program(WORKER.format(sleep=3600, timeout="1h"))
    worker.expect("ready")
    worker.send(number)
    threading.Event().wait(0.2)
    worker.send(number)
    code, out, errors = worker.end()
    assert code == 5, errors
    assert "interrupted=('one',)" in out
    assert "timed_out=True" in out
    assert "lost=2" in out


@posix
def test_a_graceful_stop_is_bounded() -> None:
    """One signal and `shutdown_timeout` are enough."""
    worker = program(WORKER.format(sleep=3600, timeout="100ms"))
    worker.expect("ready")
    worker.send(signal.SIGTERM)
    code, out, _ = worker.end()
    assert code == 5
    assert "interrupted=('one',)" in out


@posix
@pytest.mark.slow
def test_a_worker_that_a_handler_blocks_hears_signals() -> None:
    """Repeated signals interrupt the handler that holds the loop; its job has failed, and the worker stops in order."""
    worker = program(
        """
        import sys, threading
        from inproc_jobs import Engine, define_job

        @define_job("block", executor="inline")
        def block(payload):
            print("ready", flush=True)
            while True:
                threading.Event().wait(0.01)

        engine = Engine()
        receipt = block.dispatch_sync(None)
        print(engine.run_forever(), flush=True)
        print(engine.queue("default").job(receipt.id).failed_reason, flush=True)
        sys.exit(5)
        """
    )
    worker.expect("ready")
    for _ in range(2):  # impatient, but not for long yet: still the first signal
        worker.send(signal.SIGINT)
    threading.Event().wait(1.5)
    worker.send(signal.SIGTERM)
    code, out, errors = worker.end()
    assert code == 5, errors
    assert "KeyboardInterrupt" in out
    assert "timed_out=False" in out


@posix
def test_a_handler_that_swallows_cannot_hold_up_a_worker() -> None:
    """Abandoned, named, and the process ends."""
    worker = program(
        """
        import asyncio, sys
        from inproc_jobs import Engine, define_job

        @define_job("swallow")
        async def swallow(payload):
            print("ready", flush=True)
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

        engine = Engine(shutdown_timeout="50ms")
        swallow.dispatch_sync(None, job_id="stubborn")
        print(engine.run_forever(), flush=True)
        sys.exit(5)
        """
    )
    worker.expect("ready")
    worker.send(signal.SIGTERM)
    code, out, errors = worker.end()
    assert code == 5
    assert "abandoned=('stubborn',)" in out
    assert "Traceback" not in errors
    assert "never" not in errors


def test_stop_from_another_thread_ends_run_forever() -> None:
    """Both get the report."""
    code, out, errors = run_program(
        """
        import threading
        from inproc_jobs import Engine, define_job

        @define_job("job")
        def job(payload):
            threading.Thread(target=lambda: reports.append(engine.stop())).start()

        reports = []
        engine = Engine()
        job.dispatch_sync(None)
        reports.append(engine.run_forever())
        while len(reports) < 2:
            pass
        print(reports[0] == reports[1], reports[0].lost)
        """
    )
    assert (code, out.strip(), errors) == (0, "True 0", "")


def test_run_forever_outside_the_main_thread_touches_no_signals() -> None:
    """Only the main thread may have signal handlers; the engine runs all the same."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    engine = Engine(registry=registry)
    before = signal.getsignal(signal.SIGINT)
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(engine.run_forever()))
    thread.start()
    job.dispatch_sync(1).result_sync(PATIENCE_S)
    assert signal.getsignal(signal.SIGINT) is before
    report = engine.stop()
    thread.join(PATIENCE_S)
    assert (ran, reports) == ([1], [report])


def test_run_forever_of_a_running_engine_is_refused() -> None:
    """One host at a time."""
    with (
        Engine(registry=Registry()) as engine,
        pytest.raises(BlockingCallError, match="runs already"),
    ):
        engine.run_forever()


def test_run_until_idle_after_a_stop_is_refused_until_a_start() -> None:
    """As every other use of a stopped engine."""
    registry = Registry()
    ran: list[Any] = []
    job = recorder(registry, ran)
    with Engine(registry=registry) as engine:
        pass
    with pytest.raises(EngineStoppedError):
        engine.run_until_idle()
    with pytest.raises(EngineStoppedError):
        job.dispatch_sync(1)
