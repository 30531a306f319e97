"""The hosts inside a loop and in a thread; which engine a dispatch goes to; what may not block a loop."""

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

from inproc_jobs import (
    BlockingCallError,
    Engine,
    EngineStoppedError,
    JobFailedError,
    NoEngineError,
    Registry,
    StopReport,
)
from tests.unit.app.real import PATIENCE_S, run_program, until, until_sync

REGISTRY = Registry()


@REGISTRY.define_job("double")
async def double(payload: int) -> int:
    await asyncio.sleep(0)
    return payload * 2


MADE_AT_IMPORT = Engine(registry=REGISTRY)


def echo_job(registry: Registry, name: str = "echo", **options: Any) -> Any:
    async def echo(payload: Any) -> Any:
        await asyncio.sleep(0)
        return payload

    return registry.define_job(name, handle=echo, **options)


# --- inside a loop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_case_c115_an_engine_made_at_import_serves_one_test_after_the_other(number: int) -> None:
    """Each test has a loop of its own; nothing in the engine is bound to the first one."""
    async with MADE_AT_IMPORT:
        receipt = await double.on(MADE_AT_IMPORT).dispatch(number)
        assert await receipt.result(PATIENCE_S) == 2 * number


def test_several_loops_one_after_another() -> None:
    """In the caller's loop, in a thread, blocking, and again: jobs left by one host are run by the next."""
    registry = Registry()
    ran: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)

    async def inside(payload: str) -> None:
        async with engine:
            await job.dispatch(payload)

    asyncio.run(inside("first loop"))
    asyncio.run(inside("second loop"))
    with engine:
        job.dispatch_sync("thread")
    with engine:
        job.dispatch_sync("second thread")
    asyncio.run(inside("third loop"))
    assert ran == ["first loop", "second loop", "thread", "second thread", "third loop"]


async def test_the_jobs_run_in_the_callers_loop() -> None:
    """`async with` means this loop and this thread for async handlers."""
    registry = Registry()

    async def where(payload: Any) -> list[int]:
        return [id(asyncio.get_running_loop()), threading.get_ident()]

    job = registry.define_job("where", handle=where)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        assert await receipt.result(PATIENCE_S) == [id(asyncio.get_running_loop()), threading.get_ident()]


async def test_dispatching_before_the_start_is_fine() -> None:
    """Without a snapshot the jobs wait, and run in order once the engine is started."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry)
    receipts = [await job.dispatch(number) for number in range(3)]
    assert [receipt.state for receipt in receipts] == ["waiting"] * 3
    async with engine:
        assert [await receipt.result(PATIENCE_S) for receipt in receipts] == [0, 1, 2]


async def test_case_c115_a_dispatch_of_a_cancelled_request_survives() -> None:
    """The web framework cancels the request's task when the client goes away; the job is not the request's."""
    registry = Registry()
    go = asyncio.Event()

    async def handle(payload: Any) -> str:
        await go.wait()
        return "done"

    job = registry.define_job("job", handle=handle)
    receipts: list[Any] = []

    async def request() -> None:
        receipts.append(await job.dispatch(None))
        await asyncio.sleep(3600)

    async with Engine(registry=registry) as engine:
        task = asyncio.create_task(request())
        await until(lambda: engine.queue("default").counts()["active"])
        task.cancel()
        await asyncio.wait((task,))
        go.set()
        assert await receipts[0].result(PATIENCE_S) == "done"


async def test_case_c115_a_cancelled_waiter_does_not_cancel_the_job() -> None:
    """Nor the other waiters."""
    registry = Registry()
    go = asyncio.Event()

    async def handle(payload: Any) -> str:
        await go.wait()
        return "done"

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        one, other = asyncio.create_task(receipt.result()), asyncio.create_task(receipt.result())
        await asyncio.sleep(0.01)
        one.cancel()
        await asyncio.wait((one,))
        go.set()
        assert await asyncio.wait_for(other, PATIENCE_S) == "done"


def test_a_loop_that_was_closed_under_the_engine() -> None:
    """A program that forgets to stop: the next start takes up what was active, in a new loop."""
    registry = Registry()
    ran: list[Any] = []
    first_loop = True

    async def handle(payload: Any) -> None:
        if first_loop:
            await asyncio.sleep(3600)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)

    async def forgets() -> None:
        await engine.astart()
        await job.dispatch("ready", job_id="two", delay=1)
        await until(lambda: engine.queue("default").counts()["active"])

    asyncio.run(forgets())
    first_loop = False

    async def goes_on() -> StopReport:
        await engine.astart()
        assert await (await job.dispatch("new")).result(PATIENCE_S) is None
        return await engine.astop()

    asyncio.run(goes_on())
    assert "new" in ran


def test_stopping_an_engine_whose_loop_was_closed() -> None:
    """It says what is left, as for any engine that nothing hosts, instead of failing on the closed loop."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry)

    async def forgets() -> None:
        await engine.astart()
        await job.dispatch(None, delay="1h")

    asyncio.run(forgets())
    assert engine.stop() == StopReport(lost=1)


def test_a_loop_that_only_runs_now_and_then() -> None:
    """`loop.run_until_complete(engine.astart())` in a script: `stop()` in the same thread runs that loop itself."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(engine.astart())
        job.dispatch_sync(1)
        assert engine.stop() == StopReport(completed=1)
    finally:
        loop.close()


def test_case_c108_a_loop_that_is_collected_runs_nothing() -> None:
    """Closed without a stop: when the loop's tasks are collected, no job fails for it and no handler is started."""
    code, out, errors = run_program(
        """
        import asyncio, gc, logging
        from inproc_jobs import Engine, define_job
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # "Task was destroyed but it is pending!"
        ran = []

        @define_job("job")
        async def job(payload):
            ran.append(payload)
            await asyncio.get_running_loop().create_future()

        async def forgets():
            engine = Engine()
            await engine.astart()
            await job.dispatch("first")
            await job.dispatch("second")
            while not ran:
                await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(forgets())
        loop.close()
        del loop
        gc.collect()
        print(ran)
        """
    )
    assert (code, out.strip()) == (0, "['first']")
    assert "Exception ignored" not in errors
    assert "job failed" not in errors


# --- ASGI ---------------------------------------------------------------------------------------------------------


async def test_lifespan_starts_and_stops_it() -> None:
    """`Starlette(lifespan=engine.lifespan)`: the framework calls it with the app and enters what it gets."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry)
    async with engine.lifespan(object()) as state:
        assert state is None
        assert await (await job.dispatch(1)).result(PATIENCE_S) == 1
    with pytest.raises(EngineStoppedError):
        await job.dispatch(2)


def test_lifespan_under_starlette() -> None:
    """The real framework runs it, and the engine drains when the server goes down."""
    applications = pytest.importorskip("starlette.applications")
    testclient = pytest.importorskip("starlette.testclient")
    routing = pytest.importorskip("starlette.routing")
    responses = pytest.importorskip("starlette.responses")
    registry = Registry()
    ran: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(payload)

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)

    async def receive(request: Any) -> Any:
        receipt = await job.dispatch(await request.json(), job_id="delivery")
        return responses.JSONResponse({"duplicate": receipt.duplicate})

    app = applications.Starlette(routes=[routing.Route("/", receive, methods=["POST"])], lifespan=engine.lifespan)
    with testclient.TestClient(app) as client:
        assert client.post("/", json={"id": 1}).json() == {"duplicate": False}
    assert ran == [{"id": 1}]
    assert "stopped" in repr(engine)


# --- a thread of its own -----------------------------------------------------------------------------------------


def test_start_returns_once_it_runs() -> None:
    """Jobs run in another thread than the caller's, whose `_sync` twins wait for them."""
    registry = Registry()

    async def where(payload: Any) -> str:
        return threading.current_thread().name

    job = registry.define_job("where", handle=where)
    with Engine(registry=registry) as engine:
        assert "running" in repr(engine)
        assert job.dispatch_sync(None).result_sync(PATIENCE_S) == "inproc_jobs engine"


def test_with_engine_drains() -> None:
    """Leaving the body runs what is ready first."""
    registry = Registry()
    job = echo_job(registry)
    with Engine(registry=registry) as engine:
        for number in range(10):
            job.dispatch_sync(number)
    assert engine.queue("default").counts()["completed"] == 10


async def test_an_engine_in_a_thread_is_awaited_from_a_loop() -> None:
    """Hosted by its own thread, used by this loop: dispatch, result and astop all work across."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry)
    engine.start()
    receipt = await job.dispatch("value")
    assert await receipt.result(PATIENCE_S) == "value"
    assert await engine.astop() == StopReport()
    assert not [thread for thread in threading.enumerate() if thread.name == "inproc_jobs engine"]


async def test_stop_inside_a_loop_that_does_not_host_it_is_allowed() -> None:
    """Only the engine's own loop would wait for itself."""
    engine = Engine(registry=Registry())
    engine.start()
    assert engine.stop() == StopReport()


async def test_starting_where_it_already_runs_does_nothing() -> None:
    """Neither a second loop nor a second thread."""
    registry = Registry()
    job = echo_job(registry)
    async with Engine(registry=registry) as engine:
        loop = engine.runtime.loop
        engine.start()
        await engine.astart()
        assert engine.runtime.loop is loop
        assert await (await job.dispatch(1)).result(PATIENCE_S) == 1


def test_many_threads_start_at_once() -> None:
    """One of them starts it, the others return when it runs."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry)
    threads = [threading.Thread(target=engine.start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len([thread for thread in threading.enumerate() if thread.name == "inproc_jobs engine"]) == 1
    assert job.dispatch_sync(1).result_sync(PATIENCE_S) == 1
    engine.stop()


def test_case_c112_the_interpreter_may_exit_while_jobs_run() -> None:
    """A program that never stops its engine ends: what is ready is run, exit code 0, nothing on standard error."""
    code, out, errors = run_program(
        """
        import threading, time
        from inproc_jobs import Engine, define_job

        @define_job("tick")
        def tick(payload):
            if payload:
                tick.dispatch_sync(payload - 1)
            else:
                print("last tick", flush=True)

        engine = Engine()
        engine.start()
        tick.dispatch_sync(20)
        """
    )
    assert (code, out.split("\n")[0], errors) == (0, "last tick", "")


def test_case_c112_the_main_thread_may_end_first() -> None:
    """A thread that is no daemon goes on dispatching after the main thread has ended; then the engine is stopped."""
    code, out, errors = run_program(
        """
        import threading, time
        from inproc_jobs import Engine, define_job

        @define_job("job")
        def job(payload):
            return payload

        engine = Engine()
        engine.start()

        def produce():
            main = threading.main_thread()
            main.join()
            print(sum(job.dispatch_sync(number).result_sync(10) for number in range(10)), flush=True)

        threading.Thread(target=produce).start()
        """
    )
    assert (code, out.strip(), errors) == (0, "45", "")


def test_case_c112_a_thread_that_hangs_does_not_hold_up_the_exit() -> None:
    """`shutdown_timeout` bounds the end of a program too; the report names what was left."""
    code, _, errors = run_program(
        """
        import threading
        from inproc_jobs import Engine, define_job

        started = threading.Event()

        @define_job("hang")
        def hang(payload):
            started.set()
            threading.Event().wait()

        engine = Engine(shutdown_timeout="50ms")
        engine.start()
        hang.dispatch_sync(None, job_id="hanging")
        started.wait()
        """
    )
    assert code == 0
    assert "hanging" in errors
    assert "Traceback" not in errors


# --- which engine -------------------------------------------------------------------------------------------------


async def test_two_engines_in_one_process_do_not_notice_each_other() -> None:
    """Same ids, same names, same queue: two registries, two jobs, two results; stopping one leaves the other."""
    one_registry, other_registry = Registry(), Registry()

    async def handle_one(payload: Any) -> str:
        return f"one {payload}"

    async def handle_other(payload: Any) -> str:
        return f"other {payload}"

    job_one = one_registry.define_job("job", handle=handle_one)
    job_other = other_registry.define_job("job", handle=handle_other)
    async with Engine(registry=one_registry) as one:
        async with Engine(registry=other_registry) as other:
            first = await job_one.dispatch(1, job_id="same")
            second = await job_other.dispatch(2, job_id="same")
            assert (first.created, second.created) == (True, True)
            assert await first.result(PATIENCE_S) == "one 1"
            assert await second.result(PATIENCE_S) == "other 2"
            await one.queue("default").pause()
            assert not other.queue("default").is_paused()
            await one.queue("default").resume()
        assert await (await job_one.dispatch(3)).result(PATIENCE_S) == "one 3"
    assert (one.queue("default").counts()["completed"], other.queue("default").counts()["completed"]) == (2, 1)


async def test_two_engines_of_one_registry() -> None:
    """A dispatch goes to the newest that was not stopped, or to the one that is named with `on`."""
    registry = Registry()
    job = echo_job(registry)
    older, newer = Engine(registry=registry), Engine(registry=registry)
    async with older, newer:
        await job.dispatch("newest")
        await job.on(older).dispatch("bound")
    assert older.queue("default").counts()["completed"] == 1
    assert newer.queue("default").counts()["completed"] == 1
    await newer.astop()
    await older.astart()
    assert await (await job.dispatch("only one left")).result(PATIENCE_S) == "only one left"
    await older.astop()


def test_no_engine_says_what_to_do() -> None:
    """NoEngineError: make one and keep it, or name one."""
    job = echo_job(Registry())
    with pytest.raises(NoEngineError, match=r"Engine\(\.\.\.\) and keep it, or use job\.on\(engine\)"):
        job.dispatch_sync(None)


def test_an_engine_nobody_keeps_is_no_engine() -> None:
    """It is held weakly."""
    registry = Registry()
    job = echo_job(registry)
    Engine(registry=registry)
    gc.collect()
    with pytest.raises(NoEngineError):
        job.dispatch_sync(None)


def test_binding_to_an_engine_of_another_registry_is_refused() -> None:
    """That engine could not find the handler."""
    with pytest.raises(NoEngineError, match="another registry"):
        echo_job(Registry()).on(Engine(registry=Registry()))


HANDLERS_THAT_DISPATCH = ["async", "async in a task", "async in to_thread", "thread", "thread in a thread", "inline"]


@pytest.mark.parametrize("kind", HANDLERS_THAT_DISPATCH)
async def test_a_handler_dispatches_to_its_own_engine(kind: str) -> None:
    """Rule 1 beats a newer engine and a binding alike, in the handler's tasks and in its threads too."""
    registry = Registry()
    child = echo_job(registry, "child")
    engine = Engine(registry=registry, concurrency=2)
    newer = Engine(registry=registry)
    bound = child.on(newer)

    async def in_loop(payload: Any) -> None:
        if kind == "async in a task":
            await asyncio.create_task(bound.dispatch(1))
        elif kind == "async in to_thread":
            await asyncio.to_thread(bound.dispatch_sync, 1)
        else:
            await bound.dispatch(1)
        await child.dispatch(2)

    def plain(payload: Any) -> None:
        if kind == "thread in a thread":
            import contextvars

            thread = threading.Thread(target=contextvars.copy_context().run, args=(bound.dispatch_sync, 1))
            thread.start()
            thread.join()
        else:
            bound.dispatch_sync(1)
        child.dispatch_sync(2)

    executor = "inline" if kind == "inline" else None
    parent = registry.define_job(  # type: ignore[call-overload]
        "parent", handle=in_loop if kind.startswith("async") else plain, executor=executor
    )
    async with engine, newer:
        await (await parent.on(engine).dispatch(None)).result(PATIENCE_S)
        await until(lambda: engine.queue("default").counts()["completed"] == 3)
    assert newer.queue("default").counts()["completed"] == 0


async def test_a_handler_of_one_registry_dispatches_to_another() -> None:
    """Its own engine does not serve that job, so the newest that does gets it."""
    one, other = Registry(), Registry()
    child = echo_job(other, "child")

    async def handle(payload: Any) -> Any:
        return await (await child.dispatch("across")).result(PATIENCE_S)

    parent = one.define_job("parent", handle=handle)
    async with Engine(registry=one), Engine(registry=other):
        assert await (await parent.dispatch(None)).result(PATIENCE_S) == "across"


def test_the_newest_engine_is_visible_from_every_thread() -> None:
    """A request handler's thread needs no hint."""
    registry = Registry()
    job = echo_job(registry)
    with Engine(registry=registry):
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(job.dispatch_sync(1).result_sync(PATIENCE_S)))
        thread.start()
        thread.join(PATIENCE_S)
        assert results == [1]


# --- sync and async -----------------------------------------------------------------------------------------------


async def test_dispatch_sync_and_find_sync_work_inside_a_loop() -> None:
    """They do not block, so they may be called where a loop runs."""
    registry = Registry()
    job = echo_job(registry)
    async with Engine(registry=registry):
        receipt = job.dispatch_sync(7, job_id="seven")
        assert await receipt.result(PATIENCE_S) == 7
        view = job.find_sync("seven")
        assert view is not None
        assert view.result == 7
        assert [one.created for one in job.dispatch_many_sync([(1, None), (2, {"delay": "1s"})])] == [True, True]


async def test_what_would_block_the_loop_is_refused_by_its_twins_name() -> None:
    """result_sync, stop, run_until_idle, run_forever: BlockingCallError says what to await instead, nothing changes."""
    registry = Registry()
    job = echo_job(registry)
    async with Engine(registry=registry) as engine:
        receipt = await job.dispatch(1)
        with pytest.raises(BlockingCallError, match=r"await dispatched\.result\(\)"):
            receipt.result_sync()
        with pytest.raises(BlockingCallError, match=r"await engine\.astop\(\)"):
            engine.stop()
        with pytest.raises(BlockingCallError, match="async with engine"):
            engine.run_until_idle()
        with pytest.raises(BlockingCallError, match="async with engine"):
            engine.run_forever()
        assert await receipt.result(PATIENCE_S) == 1


async def test_blocking_calls_of_an_engine_that_is_not_started_are_refused_in_a_loop() -> None:
    """The loop would be blocked whoever hosts the engine."""
    engine = Engine(registry=Registry())
    with pytest.raises(BlockingCallError):
        engine.run_until_idle()
    with pytest.raises(BlockingCallError):
        engine.run_forever()


def test_the_twins_do_the_same_from_a_thread() -> None:
    """dispatch, dispatch_many, find, failed_jobs, retry_failed_job and FailedJob.retry, each as `_sync`."""
    registry = Registry()
    fail = threading.Event()
    fail.set()

    async def handle(payload: Any) -> Any:
        if fail.is_set():
            raise ValueError("not yet")
        return payload

    job = registry.define_job("job", handle=handle)
    with Engine(registry=registry) as engine:
        for receipt in job.dispatch_many_sync([(1, {"job_id": "one"}), (2, {"job_id": "two"})]):
            with pytest.raises(JobFailedError, match="not yet"):
                receipt.result_sync(PATIENCE_S)
        assert [failed.id for failed in engine.failed_jobs_sync()] == ["two", "one"]
        fail.clear()
        engine.retry_failed_job_sync("one")
        engine.failed_jobs_sync()[0].retry_sync()
        until_sync(lambda: engine.queue("default").counts()["completed"] == 2)
        assert job.find_sync("two").result == 2  # type: ignore[union-attr]


def test_fifty_threads_dispatch_one_id() -> None:
    """Exactly one job, one run, forty-nine duplicates, all with the same answer."""
    registry = Registry()
    runs: list[Any] = []
    go = threading.Event()

    def handle(payload: Any) -> str:
        go.wait(PATIENCE_S)
        runs.append(payload)
        return "one run"

    job = registry.define_job("job", handle=handle)
    with Engine(registry=registry):
        barrier = threading.Barrier(50)
        receipts: list[Any] = []

        def dispatch(number: int) -> None:
            barrier.wait(PATIENCE_S)
            receipts.append(job.dispatch_sync(number, job_id="same"))

        threads = [threading.Thread(target=dispatch, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(receipt.duplicate for receipt in receipts) == [False] + [True] * 49
        go.set()
        assert {receipt.result_sync(PATIENCE_S) for receipt in receipts} == {"one run"}
    assert len(runs) == 1


def test_nothing_is_done_behind_the_hosts_back() -> None:
    """No loop or policy is set, no signal handler left, no collector frozen, structlog not configured (DESIGN 2.9)."""
    code, out, errors = run_program(
        """
        import asyncio, gc, signal, sys
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.isenabled(), gc.get_threshold())
        policy = asyncio.get_event_loop_policy()

        from inproc_jobs import Engine, define_job

        @define_job("job")
        async def job(payload):
            await asyncio.sleep(0)

        @define_job("plain")
        def plain(payload):
            pass

        engine = Engine()
        job.dispatch_sync(1)
        plain.dispatch_sync(1)
        engine.run_until_idle()
        with engine:
            job.dispatch_sync(2)
        after = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.isenabled(), gc.get_threshold())
        assert before == after, after
        assert gc.get_freeze_count() == 0
        assert asyncio.get_event_loop_policy() is policy
        assert asyncio.get_event_loop() is loop
        assert "structlog" not in sys.modules
        loop.close()
        print("untouched")
        """
    )
    assert (code, out.strip(), errors) == (0, "untouched", "")


def test_the_pid_of_the_host() -> None:
    """`health()` says in which process the engine runs."""
    assert Engine(registry=Registry()).health()["pid"] == os.getpid()
