"""The host comes first: no backlog, bulk or cleaning keeps the application's own tasks waiting (DESIGN 2.9)."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inproc_jobs import Engine, Registry
from inproc_jobs.runtime.runtime import SLICE_S
from tests.unit.app.real import PATIENCE_S
from tests.unit.app.virtual import VirtualClock

JOBS = 20_000
JOB_US = 10
PER_SLICE = int(SLICE_S * 1e6 / JOB_US)
"""How many jobs fit into one slice on a clock that only jobs move."""


class Heartbeat:
    """A coroutine of the host that notes how much had been done whenever it got a turn."""

    def __init__(self, done: Callable[[], int]) -> None:
        self.done = done
        self.beats: list[int] = []

    async def beat(self, until: int) -> None:
        while self.done() < until:
            self.beats.append(self.done())
            await asyncio.sleep(0)
        self.beats.append(self.done())

    @property
    def longest_gap(self) -> int:
        """The most that was done between two turns."""
        return max(after - before for before, after in zip(self.beats, self.beats[1:], strict=False))


@pytest.mark.parametrize("concurrency", [1, 50])
@pytest.mark.parametrize("form", ["async", "async that waits", "inline"])
async def test_a_heartbeat_beside_twenty_thousand_ready_jobs_is_not_starved(form: str, concurrency: int) -> None:
    """Between two of its turns no more jobs start than fit into one slice of the loop, however many runners there are."""
    clock = VirtualClock()
    registry = Registry()
    ran = [0]

    def work(payload: Any) -> None:
        ran[0] += 1
        clock.elapsed_us += JOB_US

    async def in_loop(payload: Any) -> None:
        work(payload)

    async def waits(payload: Any) -> None:
        work(payload)
        await asyncio.sleep(0)

    handle = {"async": in_loop, "async that waits": waits, "inline": work}[form]
    job = registry.define_job(  # type: ignore[call-overload]
        "job", handle=handle, executor="inline" if form == "inline" else None
    )
    engine = Engine(registry=registry, concurrency=concurrency, clock=clock, history={"completed": 0})
    for _ in range(JOBS):
        job.dispatch_sync(None)
    heartbeat = Heartbeat(lambda: ran[0])
    async with engine:
        await asyncio.wait_for(heartbeat.beat(JOBS), 60)
    assert ran[0] == JOBS
    assert heartbeat.longest_gap <= PER_SLICE + concurrency
    assert len(heartbeat.beats) >= JOBS / (PER_SLICE + concurrency)


async def test_several_queues_share_the_slice() -> None:
    """Ten queues with a backlog each hold the loop no longer than one."""
    clock = VirtualClock()
    registry = Registry()
    ran = [0]

    async def handle(payload: Any) -> None:
        ran[0] += 1
        clock.elapsed_us += JOB_US

    jobs = [registry.define_job(f"job {number}", handle=handle, queue=f"queue {number}") for number in range(10)]
    engine = Engine(registry=registry, clock=clock, history={"completed": 0})
    for _ in range(500):
        for job in jobs:
            job.dispatch_sync(None)
    heartbeat = Heartbeat(lambda: ran[0])
    async with engine:
        await asyncio.wait_for(heartbeat.beat(5000), 60)
    assert heartbeat.longest_gap <= PER_SLICE + 10


async def test_failing_jobs_share_the_slice_too(caplog: pytest.LogCaptureFixture) -> None:
    """A backlog of jobs that fail, with and without retries, is no faster way to hold the loop."""
    clock = VirtualClock()
    registry = Registry()
    ran = [0]

    async def handle(payload: Any) -> None:
        ran[0] += 1
        clock.elapsed_us += JOB_US
        raise ValueError("no such invoice")

    job = registry.define_job("job", handle=handle, attempts=2)
    engine = Engine(registry=registry, clock=clock, history={"failed": 0})
    for _ in range(1000):
        job.dispatch_sync(None)
    caplog.set_level(logging.CRITICAL, logger="inproc_jobs")
    heartbeat = Heartbeat(lambda: ran[0])
    async with engine:
        await asyncio.wait_for(heartbeat.beat(2000), 60)
    assert len(heartbeat.beats) > 2
    assert heartbeat.longest_gap <= PER_SLICE + 1


class TickingClock(VirtualClock):
    """Every look at it takes time, so that work that is sliced by time is sliced the same on every machine."""

    def monotonic(self) -> float:
        self.elapsed_us += 10
        return super().monotonic()


async def test_a_bulk_is_added_in_slices() -> None:
    """`dispatch_many` of 5,000: the host gets a turn after every slice, and receipts come in order."""
    registry = Registry()

    async def handle(payload: Any) -> None:
        pass

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry, clock=TickingClock())
    heartbeat = Heartbeat(lambda: engine.queue("default").counts()["waiting"])
    beating = asyncio.create_task(heartbeat.beat(5000))
    receipts = await job.dispatch_many([(number, None) for number in range(5000)])
    await asyncio.wait_for(beating, PATIENCE_S)
    assert [receipt.id for receipt in receipts] == [str(number) for number in range(1, 5001)]
    assert len(heartbeat.beats) > 10
    assert heartbeat.longest_gap < 1000


async def test_a_bulk_does_not_keep_other_threads_out() -> None:
    """The lock is free between two slices: another thread's dispatch gets in while the bulk goes on."""
    registry = Registry()

    async def handle(payload: Any) -> None:
        pass

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry, clock=TickingClock())
    positions: list[int] = []
    stop = threading.Event()

    def intrude() -> None:
        while not stop.is_set():
            job.dispatch_sync("intruder")
            positions.append(engine.queue("default").counts()["waiting"])
            stop.wait(0.0005)

    thread = threading.Thread(target=intrude)
    thread.start()
    await job.dispatch_many([(number, None) for number in range(20_000)])
    stop.set()
    thread.join(PATIENCE_S)
    assert any(0 < position < 20_000 for position in positions)


@pytest.mark.parametrize("command", ["drain", "clean"])
async def test_cleaning_up_gives_way(command: str) -> None:
    """Draining and cleaning 3,000 jobs: the host gets its turns."""
    registry = Registry()

    async def handle(payload: Any) -> None:
        pass

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    for _ in range(3000):
        job.dispatch_sync(None)
    queue = engine.queue("default")
    left = lambda: 3000 - queue.counts()["waiting"]  # noqa: E731  # named for the reader
    heartbeat = Heartbeat(left)
    beating = asyncio.create_task(heartbeat.beat(3000))
    if command == "drain":
        assert await queue.drain() == 3000
    else:
        assert len(await queue.clean(state="waiting")) == 3000
    await asyncio.wait_for(beating, PATIENCE_S)
    assert len(heartbeat.beats) >= 10
    assert heartbeat.longest_gap <= 500


async def test_case_c105_ticks_go_on_while_a_plain_handler_blocks() -> None:
    """It runs in a thread: the loop ticks eight times while it waits for exactly that."""
    registry = Registry()
    eight_ticks = threading.Event()

    def handle(payload: Any) -> bool:
        return eight_ticks.wait(PATIENCE_S)

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        for _ in range(8):
            await asyncio.sleep(0.001)
        eight_ticks.set()
        assert await receipt.result(PATIENCE_S) is True


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_jobs_start_in_order_while_the_host_works(concurrency: int) -> None:
    """Jobs are taken in order, always; slots that take theirs in one turn of the loop may begin them in another order."""
    registry = Registry()
    starts: list[int] = []
    active: list[int] = []

    async def handle(payload: int) -> None:
        starts.append(payload)
        for _ in range(payload % 3):
            await asyncio.sleep(0)

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry, concurrency=concurrency) as engine:
        engine.on("active", lambda event: active.append(int(event.job_id or 0) - 1))
        await job.dispatch_many([(number, None) for number in range(500)])
    assert active == list(range(500))
    assert max(abs(place - number) for place, number in enumerate(starts)) < concurrency
