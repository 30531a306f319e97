"""Threads that hang, loops that come and go, objects that are collected: nothing leaks, nothing is starved."""

import asyncio
import gc
import logging
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest

from inproc_jobs import Engine, JobContext, JobFailedError, Registry
from inproc_jobs.runtime import worker as worker_module
from tests.unit.app.real import PATIENCE_S, until, until_sync

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts file descriptors in /proc")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("inproc_jobs")]


def echo_job(registry: Registry) -> Any:
    async def echo(payload: Any) -> Any:
        await asyncio.sleep(0)
        return payload

    return registry.define_job("echo", handle=echo)


# --- C104: threads past their timeout ---------------------------------------------------------------------------


async def test_case_c104_hanging_threads_do_not_starve_a_quick_job() -> None:
    """
    Two slots, five jobs that hang: each is timed out, its slot is given on, health shows the threads; then a quick
    job runs while all five still hang.
    """
    registry = Registry()
    release = threading.Event()

    def hang(payload: Any) -> None:
        release.wait(PATIENCE_S)

    hanging = registry.define_job("hang", handle=hang, timeout="30ms")
    quick = registry.define_job("quick", handle=lambda payload: "quick")
    async with Engine(registry=registry, concurrency=2) as engine:
        receipts = [await hanging.dispatch(None) for _ in range(5)]
        following = await quick.dispatch(None)
        for receipt in receipts:
            with pytest.raises(JobFailedError, match="timeout of 30 ms"):
                await receipt.result(PATIENCE_S)
        assert await following.result(PATIENCE_S) == "quick"
        assert not release.is_set()
        assert engine.health()["queues"]["default"]["abandoned"] == 5
        assert engine.health()["queues"]["default"]["busy"] == 0
        release.set()
        await until(lambda: engine.health()["queues"]["default"]["abandoned"] == 0)


async def test_case_c104_beyond_the_cap_slots_stay_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacement threads are not started without end: with the cap reached a job's end waits for its thread."""
    monkeypatch.setattr(worker_module, "MAX_ABANDONED", 1)
    registry = Registry()
    release = threading.Event()
    started: list[int] = []

    def hang(payload: int, ctx: JobContext) -> None:
        started.append(payload)
        release.wait(PATIENCE_S)

    job = registry.define_job("hang", handle=hang, timeout="20ms")
    async with Engine(registry=registry) as engine:
        receipts = [await job.dispatch(number) for number in range(3)]
        with pytest.raises(JobFailedError, match="timeout"):
            await receipts[0].result(PATIENCE_S)
        await until(lambda: len(started) == 2)
        with pytest.raises(TimeoutError):
            await receipts[1].result(0.1)
        assert started == [0, 1]
        assert engine.health()["queues"]["default"]["abandoned"] == 1
        release.set()
        with pytest.raises(JobFailedError, match="timeout"):
            await receipts[1].result(PATIENCE_S)
        assert await receipts[2].result(PATIENCE_S) is None
    assert started == [0, 1, 2]


async def test_an_abandoned_thread_that_raises_is_dropped_quietly() -> None:
    """Whatever comes out of it late: no job is failed twice, nothing is printed."""
    registry = Registry()
    release = threading.Event()

    def hang(payload: Any) -> None:
        release.wait(PATIENCE_S)
        raise SystemExit(1)

    job = registry.define_job("hang", handle=hang, timeout="20ms")
    async with Engine(registry=registry) as engine:
        with pytest.raises(JobFailedError, match="timeout"):
            await (await job.dispatch(None)).result(PATIENCE_S)
        release.set()
        await until(lambda: engine.health()["queues"]["default"]["abandoned"] == 0)
        assert engine.queue("default").counts()["failed"] == 1


async def test_plain_handlers_run_in_as_many_threads_as_there_are_slots() -> None:
    """Concurrency 3: three at once, not four, and threads are used again."""
    registry = Registry()
    at_once, most = [0], [0]
    lock = threading.Lock()
    names: set[str] = set()

    def handle(payload: Any) -> None:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            names.add(threading.current_thread().name)
        threading.Event().wait(0.002)
        with lock:
            at_once[0] -= 1

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry, concurrency=3):
        await job.dispatch_many([(number, None) for number in range(30)])
    assert most[0] == 3
    assert len(names) <= 6


# --- C108: garbage ----------------------------------------------------------------------------------------------


async def test_case_c108_a_handler_that_only_itself_refers_to_survives_collection() -> None:
    """It awaits a bare future that nothing else holds; the loop's own reference to the task is a weak one."""
    registry = Registry()
    futures: list[weakref.ref[asyncio.Future[str]]] = []

    async def handle(payload: Any) -> str:
        future = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        return await future

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        await until(lambda: futures)
        for _ in range(5):
            gc.collect()
            await asyncio.sleep(0)
        future = futures[0]()
        assert future is not None
        future.set_result("survived")
        assert await receipt.result(PATIENCE_S) == "survived"


async def test_case_c108_the_same_for_what_a_handler_hands_out() -> None:
    """A plain function that returns an awaitable."""
    registry = Registry()
    futures: list[weakref.ref[asyncio.Future[str]]] = []

    def handle(payload: Any) -> Any:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        return future

    job = registry.define_job("job", handle=handle, executor="inline")
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        await until(lambda: futures)
        for _ in range(5):
            gc.collect()
            await asyncio.sleep(0)
        future = futures[0]()
        assert future is not None
        future.set_result("survived")
        assert await receipt.result(PATIENCE_S) == "survived"


async def test_payloads_and_errors_are_let_go_of() -> None:
    """Once a job has ended, neither its payload object nor its exception's frames are kept alive by the engine."""
    registry = Registry()

    class Heavy:
        pass

    alive: list[weakref.ref[Heavy]] = []

    async def handle(payload: Any) -> None:
        heavy = Heavy()
        alive.append(weakref.ref(heavy))
        await asyncio.sleep(0)
        if payload == "fails":
            raise ValueError("with frames")

    def plain(payload: Any) -> None:
        heavy = Heavy()
        alive.append(weakref.ref(heavy))
        if payload == "fails":
            raise ValueError("with frames")

    jobs = [
        registry.define_job("async", handle=handle),
        registry.define_job("thread", handle=plain),
        registry.define_job("inline", handle=plain, executor="inline"),
    ]
    logging.getLogger("inproc_jobs").disabled = True  # a captured log record would keep what it names
    try:
        async with Engine(registry=registry):
            for job in jobs:
                for payload in ("works", "fails"):
                    await asyncio.wait((asyncio.ensure_future((await job.dispatch(payload)).result(PATIENCE_S)),))
            await asyncio.sleep(0.01)
            gc.collect()
            assert [heavy() for heavy in alive] == [None] * 6
    finally:
        logging.getLogger("inproc_jobs").disabled = False


# --- C115: five hundred lives ------------------------------------------------------------------------------------


@needs_proc
async def test_case_c115_five_hundred_lives_in_one_loop_leak_nothing() -> None:
    """Start, a job, stop, 500 times: the same tasks, threads and file descriptors as before."""
    registry = Registry()
    job = echo_job(registry)
    plain = registry.define_job("plain", handle=lambda payload: payload)
    engine = Engine(registry=registry, history={"completed": 10})

    async def live(number: int) -> None:
        async with engine:
            assert await (await job.dispatch(number)).result(PATIENCE_S) == number
            if number % 50 == 0:
                assert await (await plain.dispatch(number)).result(PATIENCE_S) == number

    await live(0)
    tasks, files = len(asyncio.all_tasks()), open_files()
    for number in range(500):
        await live(number)
    await until(lambda: not our_threads(), "threads to end")
    assert (len(asyncio.all_tasks()), open_files()) == (tasks, files)
    assert engine.runtime._idle_waiters == []
    assert engine.runtime._waiters == {}


@needs_proc
@pytest.mark.slow
def test_case_c115_five_hundred_lives_in_threads_of_their_own_leak_nothing() -> None:
    """The loop of each life is closed, its thread has ended when `stop` returns."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry, history={"completed": 10})

    def live(number: int) -> None:
        with engine:
            assert job.dispatch_sync(number).result_sync(PATIENCE_S) == number

    live(0)
    files, threads = open_files(), threading.active_count()
    for number in range(500):
        live(number)
        assert "inproc_jobs engine" not in our_threads()
    until_sync(lambda: not our_threads(), "threads to end")
    assert (open_files(), threading.active_count()) == (files, threads)


@needs_proc
def test_case_c115_many_loops_leak_nothing() -> None:
    """`asyncio.run` and `run_until_idle` by turns, as a test suite does; no warnings of unclosed things."""
    registry = Registry()
    job = echo_job(registry)
    engine = Engine(registry=registry, history={"completed": 10})

    async def live() -> None:
        async with engine:
            await job.dispatch(1)

    def turn() -> None:
        asyncio.run(live())
        engine.start()
        engine.stop()

    turn()
    files = open_files()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(50):
            turn()
        gc.collect()
    assert open_files() <= files


def test_case_c115_engines_are_collected() -> None:
    """Five hundred engines, used and dropped: the registry, the fork hook and the exit hook hold none of them."""
    registry = Registry()
    job = echo_job(registry)
    alive: list[weakref.ref[Engine]] = []
    for number in range(500):
        engine = Engine(registry=registry)
        job.dispatch_sync(number)
        if number % 25 == 0:
            engine.run_until_idle()
            with_thread = Engine(registry=registry)
            with with_thread:
                job.dispatch_sync(number).result_sync(PATIENCE_S)
            alive.append(weakref.ref(with_thread))
            del with_thread
        alive.append(weakref.ref(engine))
    del engine
    gc.collect()
    assert sum(engine() is not None for engine in alive) == 0


async def test_runners_are_there_only_while_there_is_work() -> None:
    """Fifty slots, a burst, then quiet: no task of ours is left waiting for nothing."""
    registry = Registry()
    job = echo_job(registry)
    async with Engine(registry=registry, concurrency=50):
        before = len(asyncio.all_tasks())
        receipts = await job.dispatch_many([(number, None) for number in range(200)])
        for receipt in receipts:
            await receipt.result(PATIENCE_S)
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == before


async def test_dispatching_from_threads_wakes_the_loop() -> None:
    """The loop sleeps in its selector; a dispatch from a thread must not wait for the next timer."""
    registry = Registry()
    job = echo_job(registry)
    async with Engine(registry=registry):
        await asyncio.sleep(0.02)
        results = await asyncio.gather(
            *(
                asyncio.to_thread(lambda number=number: job.dispatch_sync(number).result_sync(PATIENCE_S))
                for number in range(8)
            )
        )
    assert results == list(range(8))


async def test_an_earlier_delay_from_a_thread_moves_the_timer() -> None:
    """The timer was set for an hour; a thread dispatches something that is due at once after."""
    registry = Registry()
    job = echo_job(registry)
    async with Engine(registry=registry) as engine:
        await job.dispatch("in an hour", delay="1h")
        receipt = await asyncio.to_thread(job.dispatch_sync, "soon", delay=5)
        assert await receipt.result(PATIENCE_S) == "soon"
        await engine.queue("default").drain(delayed=True)


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_under_uvloop() -> None:
    """Another loop implementation, if it is installed."""
    uvloop = pytest.importorskip("uvloop")
    registry = Registry()
    job = echo_job(registry)

    async def main() -> Any:
        async with Engine(registry=registry):
            return await (await job.dispatch("value", delay=1)).result(PATIENCE_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "value"
