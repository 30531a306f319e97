"""Calls that come in the middle of another one, and loops that end under an engine: typed errors, nothing hangs."""

import asyncio
import signal
import sys
import threading
import time
from collections import Counter

import pytest

from inproc_jobs import (
    Engine,
    EngineEvent,
    EngineStoppedError,
    InprocJobsError,
    JobFailedError,
    ReentrantCallError,
    Registry,
)
from tests.unit.app.real import until_sync


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this platform")
@pytest.mark.slow
def test_a_dispatch_from_a_signal_handler_in_the_middle_of_another() -> None:
    """It is refused, or taken, but it never waits for its own thread; no index is left out of step."""
    registry = Registry()
    engine = Engine(registry=registry)

    @registry.define_job("n")
    async def job(payload: object) -> None:
        """Nothing."""

    refused = 0

    def on_signal(*_: object) -> None:
        nonlocal refused
        try:
            job.dispatch_sync("from the signal handler", delay="1h")
        except ReentrantCallError:
            refused += 1
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    before = signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        end = time.monotonic() + 30
        while not refused and time.monotonic() < end:
            job.dispatch_sync(1, delay="1h")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert refused
    engine.runtime.core.check()


def test_a_listener_that_exits_does_not_end_the_engine() -> None:
    """What a listener raises is logged and does not concern the job, SystemExit included."""
    registry = Registry()
    engine = Engine(registry=registry)

    @registry.define_job("n")
    async def job(payload: int) -> int:
        return payload

    def exits(event: EngineEvent) -> None:
        sys.exit(1)

    async def exits_later(event: EngineEvent) -> None:
        sys.exit(1)

    engine.on("completed", exits)
    engine.on("completed", exits_later)
    with engine:
        assert [job.dispatch_sync(number).result_sync(5) for number in range(3)] == [0, 1, 2]


def test_a_loop_that_ends_under_a_thread_hosted_engine() -> None:
    """Waiters end, the state says so, and the engine can be started again."""
    registry = Registry()
    engine = Engine(registry=registry)

    @registry.define_job("stops")
    async def stops(payload: object) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    @registry.define_job("n")
    async def job(payload: int) -> int:
        return payload

    engine.start()
    receipt = stops.dispatch_sync(None)
    # The loop's end cancels the handler: either that or the end of the engine is told first.
    with pytest.raises((EngineStoppedError, JobFailedError)):
        receipt.result_sync(10)
    until_sync(lambda: engine.health()["state"] == "stopped")
    with pytest.raises(EngineStoppedError):
        job.dispatch_sync(1)
    registry.define_job("stops", handle=job.handler.fn)
    with engine:
        assert job.dispatch_sync(1).result_sync(5) == 1


def test_a_loop_that_is_closed_without_stopping_the_engine() -> None:
    """A waiter and a dispatch are told so; the id of the refused dispatch is not taken."""
    registry = Registry()
    engine = Engine(registry=registry)

    @registry.define_job("n")
    async def job(payload: int) -> int:
        return payload

    async def forgets_to_stop() -> object:
        await engine.astart()
        return await job.dispatch(1, delay="1h")

    receipt = asyncio.run(forgets_to_stop())
    with pytest.raises(EngineStoppedError):
        receipt.result_sync(10)  # type: ignore[attr-defined]  # a receipt
    with pytest.raises(EngineStoppedError):
        job.dispatch_sync(1, job_id="x")
    assert "x" not in engine.queue("default").record.index


async def test_event_streams_end_with_the_engine() -> None:
    """After the last event, when the engine has stopped."""
    registry = Registry()
    engine = Engine(registry=registry)

    @registry.define_job("n")
    async def job(payload: int) -> int:
        return payload

    seen: list[str | None] = []

    async def read() -> None:
        seen.extend([event.job_id async for event in engine.events("completed")])

    async with engine:
        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        await (await job.dispatch(1)).result()
    await asyncio.wait_for(reader, 10)
    assert seen == ["1"]


def test_starts_and_stops_from_several_threads() -> None:
    """Whoever comes at a bad moment gets a typed error."""
    engine = Engine(registry=Registry())
    errors: Counter[str] = Counter()

    def race() -> None:
        for _ in range(50):
            try:
                engine.start()
                engine.stop(timeout=1)
            except InprocJobsError:
                continue
            except BaseException as error:  # counted
                errors[f"{type(error).__name__}: {error}"] += 1

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    engine.stop()
