"""Snapshots as a program meets them: what dispatches promise, refuse, and say when the store is away."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from typing import Any

import pytest

from inproc_jobs import (
    BlockingCallError,
    Engine,
    EngineNotStartedError,
    EngineStoppedError,
    Registry,
    SnapshotUnavailableError,
    SqliteSnapshot,
)
from inproc_jobs.errors import LeaseHeldError, LeaseLostError
from inproc_jobs.testing.memory_store import MemorySnapshot


class World:
    """One job, and engines in mode write_through on one place."""

    def __init__(self, **options: Any) -> None:
        self.snapshot = MemorySnapshot(**{"mode": "write_through", "every": "1h", **options})
        self.registry = Registry()
        self.runs: list[str] = []

        async def handle(payload: Any, ctx: Any) -> Any:
            self.runs.append(ctx.id)
            return payload

        self.job = self.registry.define_job("job", handle=handle)

    def engine(self, **options: Any) -> Engine:
        return Engine(**{"registry": self.registry, "snapshot": self.snapshot, **options})

    @property
    def stored(self) -> set[str]:
        shelf = self.snapshot.shelves.get("default")
        return set() if shelf is None else set(shelf.jobs)


@pytest.fixture
def world() -> World:
    return World()


async def test_dispatch_before_the_start(world):
    """Nobody knows yet which ids are alive; the message says what to do."""
    engine = world.engine()
    with pytest.raises(EngineNotStartedError, match="start it first"):
        await world.job.on(engine).dispatch(1)


async def test_everything_awaited_is_stored(world):
    """A dispatch, a bulk, a flow, and a schedule have been written when they return."""
    async with world.engine() as engine:
        await engine.queue("default").pause()
        await world.job.dispatch(1, job_id="one")
        assert "one" in world.stored
        receipts = await world.job.dispatch_many([(n, {"job_id": f"m{n}"}) for n in range(500)])
        assert {receipt.id for receipt in receipts} <= world.stored
        await engine.flow(world.job.node(1, job_id="p", children=[world.job.node(1, job_id="c")]))
        assert {"p", "c"} <= world.stored
        await engine.schedule("s", world.job, 1, every="1h")
        assert "s" in world.snapshot.shelves["default"].state.schedulers


async def test_blocking_twins_refuse_inside_a_loop(world):
    """They would have to block it."""
    async with world.engine() as engine:
        with pytest.raises(BlockingCallError, match="await job"):
            world.job.dispatch_sync(1)
        with pytest.raises(BlockingCallError, match="dispatch_many"):
            world.job.dispatch_many_sync([(1, None)])
        with pytest.raises(BlockingCallError, match="flow"):
            engine.flow_sync(world.job.node(1))
        with pytest.raises(BlockingCallError, match=r"engine\.schedule"):
            engine.schedule_sync("tick", world.job, 1, every="1h")
        assert world.stored == set()


def test_blocking_twins_wait(world):
    """From a thread they return once it is stored."""
    with world.engine() as engine:
        engine.queue("default").pause_sync()
        world.job.dispatch_sync(1, job_id="a")
        world.job.dispatch_many_sync([(1, {"job_id": "b"}), (1, {"job_id": "c"})])
        engine.flow_sync(world.job.node(1, job_id="p", children=[world.job.node(1, job_id="k")]))
        view = engine.schedule_sync("tick", world.job, 1, every="1h")
        assert view is not None
        pending = {view.id for view in engine.queue("default").jobs() if view.id.startswith("repeat:tick:")}
        assert len(pending) == 1
        assert {"a", "b", "c", "p", "k"} | pending <= world.stored


async def test_store_that_is_away(world):
    """The dispatch raises, nothing is left of it, others go on, and the same call works when the store is back."""
    async with world.engine() as engine:
        assert await (await world.job.dispatch(1, job_id="before")).result(5) == 1
        world.snapshot.failing = "on fire"
        with pytest.raises(SnapshotUnavailableError, match="on fire") as caught:
            await world.job.dispatch(2, job_id="a")
        assert caught.value.outcome == "not written"
        assert await world.job.find("a") is None
        with pytest.raises(SnapshotUnavailableError, match="not available"):
            await world.job.dispatch(2, job_id="a")
        assert "on fire" in engine.health()["store_error"]
        world.snapshot.failing = None
        async with asyncio.timeout(10):
            while True:
                try:
                    receipt = await world.job.dispatch(2, job_id="a")
                    break
                except SnapshotUnavailableError:
                    await asyncio.sleep(0.02)
        assert receipt.created
        assert await receipt.result(5) == 2
        assert engine.health()["store_error"] is None
    assert world.runs == ["before", "a"]


async def test_periodic_goes_on_without_its_store():
    """Jobs run in memory; what was missed is written when it is back."""
    world = World(mode="periodic", every="5ms")
    async with world.engine() as engine:
        world.snapshot.failing = "on fire"
        assert await (await world.job.dispatch(1, job_id="a")).result(5) == 1
        async with asyncio.timeout(10):
            while engine.health()["store_error"] is None:
                await asyncio.sleep(0.005)
        assert engine.health()["unsaved_changes"] == 1
        world.snapshot.failing = None
        async with asyncio.timeout(10):
            while "a" not in world.stored:
                await asyncio.sleep(0.005)


async def test_cancelled_dispatch(world):
    """A caller that is cancelled while it waits (a client that has gone) takes nothing back: the job runs."""
    async with world.engine():
        task = asyncio.create_task(world.job.dispatch(1, job_id="a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            while world.runs != ["a"]:
                await asyncio.sleep(0.002)


async def test_job_starts_only_once_it_is_stored(world):
    """Its handler finds it in the store."""
    seen: list[bool] = []

    async def look(payload: Any, ctx: Any) -> None:
        seen.append(ctx.id in world.stored)

    job = world.registry.define_job("look", handle=look)
    async with world.engine(concurrency=8):
        receipts = await asyncio.gather(*(job.dispatch(None) for _ in range(200)))
        await asyncio.gather(*(receipt.result(10) for receipt in receipts))
    assert seen == [True] * 200


async def test_stop_reports_what_could_not_be_stored():
    """Whatever is only in memory counts as lost; with the store there nothing is."""
    world = World(mode="periodic")
    engine = world.engine()
    await engine.astart()
    await world.job.dispatch(1, delay="1h")
    await engine.schedule("tick", world.job, 1, cron="0 3 * * *")
    assert await engine.save_now(5)
    await world.job.dispatch(2, delay="1h")
    await engine.schedule("tock", world.job, 1, cron="0 3 * * *")
    world.snapshot.failing = "on fire"
    report = await engine.astop(0.3)
    assert report.lost == 1
    world.snapshot.failing = None
    world.snapshot.evict_owner()
    await engine.astart()
    await world.job.dispatch(1, delay="1h")
    assert (await engine.astop()).lost == 0


async def test_lost_lease_stops_the_engine(world):
    """It says why, at every dispatch; the successor's jobs are untouched, and it can be started again when that ends."""
    first, second = world.engine(), World()
    second.snapshot = world.snapshot
    await first.astart()
    await world.job.dispatch(1, job_id="a", delay="1h")
    world.snapshot.evict_owner()
    other = second.engine()
    await other.astart()
    with pytest.raises(SnapshotUnavailableError):
        await world.job.on(first).dispatch(1, job_id="b", delay="1h")
    async with asyncio.timeout(10):
        while first.health()["state"] != "stopped":
            await asyncio.sleep(0.002)
    with pytest.raises(EngineStoppedError, match="lost its snapshot"):
        await world.job.on(first).dispatch(1)
    assert world.stored == {"a"}
    with pytest.raises(LeaseHeldError):
        await first.astart()
    await other.astop()
    await first.astart()
    assert (await world.job.find("a")).state == "delayed"
    await first.astop()


def test_stop_while_it_waits_for_its_turn(world):
    """A start that waits for the owner's end is ended by a stop, and does not become the owner later."""
    owner = world.engine()
    owner.start()
    waiting = Engine(registry=world.registry, snapshot=world.snapshot)
    world.snapshot.on_held = "wait"
    errors: list[BaseException] = []

    def start() -> None:
        try:
            waiting.start()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    while waiting._opening is None:
        pass
    waiting.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(errors[0], LeaseHeldError)
    owner.stop()
    assert world.snapshot.owner is None


async def test_handover_needs_redis(tmp_path, world):
    """There is nothing else that a BullMQ could take over."""
    async with Engine(registry=world.registry, snapshot=SqliteSnapshot(tmp_path / "jobs.db")) as engine:
        with pytest.raises(SnapshotUnavailableError, match="no snapshot in Redis"):
            await engine.handover()


async def test_nothing_is_asked_or_done_before_the_store_was_read(world):
    """It would be answered from an empty memory, or be forgotten at the start."""
    engine = world.engine()
    queue = engine.queue("default")
    with pytest.raises(EngineNotStartedError):
        await queue.pause()
    with pytest.raises(EngineNotStartedError):
        await queue.remove("x")
    with pytest.raises(EngineNotStartedError):
        await world.job.on(engine).find("x")
    with pytest.raises(EngineNotStartedError):
        await engine.failed_jobs()
    with pytest.raises(EngineNotStartedError):
        await engine.retry_failed_job("x")
    async with engine:
        await queue.pause()
        assert queue.is_paused()


async def test_health_tells_why_a_start_waits_and_why_an_engine_was_stopped(world):
    """Of a store that is held, and of a lease that was lost."""
    first = world.engine()
    await first.astart()
    second = World()
    second.snapshot = world.snapshot
    world.snapshot.on_held = "wait"
    waiting = second.engine()
    start = asyncio.create_task(waiting.astart())
    async with asyncio.timeout(10):
        while waiting.health()["store_error"] is None:
            await asyncio.sleep(0.01)
        assert "owned" in waiting.health()["store_error"]
        world.snapshot.evict_owner()
        await start
        assert waiting.health()["store_error"] is None
        with contextlib.suppress(LeaseLostError, SnapshotUnavailableError, EngineStoppedError):
            await world.job.on(first).dispatch(1, delay="1h")
        while first.health()["state"] != "stopped":
            await asyncio.sleep(0.01)
    assert first.health()["store_error"]
    await waiting.astop()


@pytest.mark.skipif(sys.platform == "win32", reason="forks of POSIX")
def test_health_answers_in_a_forked_child(tmp_path):
    """Whoever held the engine's lock at the fork does not exist there, and would never let it go."""
    code = """
import os, signal, sys, threading
from inproc_jobs import Engine, SqliteSnapshot

engine = Engine(snapshot=SqliteSnapshot(sys.argv[1]))
engine.start()
held, free = threading.Event(), threading.Event()

def hold():
    with engine.runtime.lock:
        held.set()
        free.wait()

threading.Thread(target=hold).start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    os._exit(0 if engine.health()["state"] == "forked" else 1)
free.set()
_, status = os.waitpid(pid, 0)
engine.stop()
sys.exit(status)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "jobs.db")], check=True, timeout=60)
