"""`engine.health()`: a plain dict that says how the engine is, at any time, from any thread."""

import asyncio
import json
import os
import threading
from typing import Any

import pytest

from inproc_jobs import Engine, Registry
from tests.unit.app.real import PATIENCE_S, until
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World


def test_a_new_engine() -> None:
    """Before anything has happened: JSON, no queues but those that were configured."""
    engine = Engine(registry=Registry(), queues={"emails": {"concurrency": 5}})
    health = engine.health()
    assert json.loads(json.dumps(health)) == health
    assert health["state"] == "new"
    assert health["pid"] == os.getpid()
    assert health["loop_lag_ms"] == 0
    assert (health["unsaved_changes"], health["last_save_at"], health["parked_jobs"]) == (None, None, 0)
    assert set(health["queues"]) == {"emails"}
    emails = health["queues"]["emails"]
    assert (emails["slots"], emails["busy"], emails["abandoned"], emails["paused"]) == (5, 0, 0, False)
    assert emails["oldest_waiting_age_ms"] is None
    assert sum(emails["counts"].values()) == 0


async def test_the_states_of_a_life() -> None:
    """new, running, stopping, stopped, and running again."""
    registry = Registry()
    go = asyncio.Event()

    async def handle(payload: Any) -> None:
        await go.wait()

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    assert engine.health()["state"] == "new"
    await engine.astart()
    assert engine.health()["state"] == "running"
    await job.dispatch(None)
    await until(lambda: engine.queue("default").counts()["active"])
    stopping = asyncio.create_task(engine.astop())
    await asyncio.sleep(0)
    assert engine.health()["state"] == "stopping"
    go.set()
    await stopping
    assert engine.health()["state"] == "stopped"
    async with engine:
        assert engine.health()["state"] == "running"


@virtual
async def test_slots_counts_and_the_age_of_the_oldest_waiting_job(world: World) -> None:
    """What an operator alarms on: slots in use, jobs per state, and how long the first in line has waited."""
    recorder = world.recorder()
    recorder.takes_s = 100
    async with world.engine(concurrency=2) as engine:
        for _ in range(3):
            await recorder.dispatch(None)
        await recorder.dispatch(None, delay="1d")
        await asyncio.sleep(10)
        await recorder.dispatch(None)
        await asyncio.sleep(20)
        queue = engine.health()["queues"]["default"]
        assert (queue["slots"], queue["busy"]) == (2, 2)
        assert (queue["counts"]["active"], queue["counts"]["waiting"], queue["counts"]["delayed"]) == (2, 2, 1)
        assert queue["oldest_waiting_age_ms"] == 30_000
        await engine.queue("default").pause()
        assert engine.health()["queues"]["default"]["paused"] is True
        await engine.queue("default").obliterate(force=True)


@virtual
async def test_the_lag_of_the_loop(world: World) -> None:
    """How long a job that came in had to wait for the loop's attention."""
    recorder = world.recorder()
    async with world.engine() as engine:
        await recorder.dispatch(None)
        world.clock.jump(70)  # the host's code holds the loop before it gives the engine a turn
        await asyncio.sleep(0)
        assert engine.health()["loop_lag_ms"] == 70
        await asyncio.sleep(1)
        await (await recorder.dispatch(None)).result()
        assert engine.health()["loop_lag_ms"] < 1


def test_from_any_thread_while_jobs_run() -> None:
    """It takes the lock for a moment only; nobody waits for a handler."""
    registry = Registry()
    release, started = threading.Event(), threading.Event()

    def handle(payload: Any) -> None:
        started.set()
        release.wait(PATIENCE_S)

    job = registry.define_job("job", handle=handle)
    with Engine(registry=registry) as engine:
        job.dispatch_sync(None)
        assert started.wait(PATIENCE_S)
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(engine.health())) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [answer["queues"]["default"]["busy"] for answer in answers] == [1] * 5
        release.set()


@pytest.mark.parametrize("stopped", [False, True])
async def test_reading_it_changes_nothing(stopped: bool) -> None:
    """It makes no queue and wakes nothing, also once the engine has stopped."""
    engine = Engine(registry=Registry())
    if stopped:
        await engine.astop()
    before = repr(engine)
    engine.health()
    assert (repr(engine), engine.health()["queues"]) == (before, {})
