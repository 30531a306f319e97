"""What is back after a restart, seen from the facade: on a clock that stands still unless a test moves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from inproc_jobs import Deduplication, Engine, JobContext, JobFailedError, JobIdTakenError, JobState, Registry
from inproc_jobs.snapshot.records import JobRecord
from inproc_jobs.testing.memory_store import MemorySnapshot
from tests.unit.app.virtual import VirtualClock

HOUR_MS = 3_600_000


class World:
    """One place, one clock, and engine after engine on them."""

    def __init__(self) -> None:
        self.snapshot = MemorySnapshot(every="10s")
        self.clock = VirtualClock()
        self.runs: list[tuple[str, int]] = []
        self.contexts: list[JobContext] = []
        self.gate: asyncio.Event | None = None
        self.registry = Registry()
        self.job = self.define(self.registry)

    def define(self, registry: Registry, name: str = "job", **options: Any) -> Any:
        async def handle(payload: Any, ctx: JobContext) -> Any:
            self.runs.append((ctx.id, self.clock.now_ms()))
            self.contexts.append(ctx)
            if self.gate is not None:
                await self.gate.wait()
            if payload == "fail":
                raise RuntimeError("boom")
            return payload

        return registry.define_job(name, handle=handle, **options)

    def engine(self, **options: Any) -> Engine:
        return Engine(**{"registry": self.registry, "clock": self.clock, "snapshot": self.snapshot, **options})

    async def crash(self, engine: Engine) -> None:
        """Everything up to now was stored; then the process was gone."""
        keeper = engine._keeper
        assert keeper is not None
        assert await asyncio.to_thread(keeper.flush, 10)
        engine.vanish()
        self.snapshot.evict_owner()
        if self.gate is not None:
            self.gate.set()
            self.gate = None

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self.runs]


@pytest.fixture
def world() -> World:
    return World()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def quiet(engine: Engine) -> None:
    async with asyncio.timeout(10):
        while not engine.runtime.is_idle(ready_only=True):
            await asyncio.sleep(0.001)


# --- everything is back -------------------------------------------------------------------------------------------


async def test_everything_is_back(world):
    """Ids, due times, attempts, priorities, order, keys, schedules, flows, history, pauses, logs, progress, counters."""

    async def talk(payload: Any, ctx: JobContext) -> str:
        await ctx.log("a line")
        await ctx.progress({"done": 1})
        if ctx.attempt == 1:
            raise RuntimeError("boom")
        return "said"

    talker = world.registry.define_job("talk", handle=talk, attempts=2, backoff="1h")
    async with world.engine() as engine:
        queue = engine.queue("default")
        await talker.dispatch(1, job_id="talked")
        await world.job.dispatch("fail", job_id="broken")
        await world.job.dispatch(7, job_id="done")
        await quiet(engine)
        await queue.pause()
        numbered = [(await world.job.dispatch(None)).id for _ in range(3)]
        await world.job.dispatch(None, job_id="next", lifo=True)
        await world.job.dispatch(None, job_id="low", priority=9)
        await world.job.dispatch(None, job_id="high", priority=1)
        await world.job.dispatch(None, job_id="later", delay="2h")
        await world.job.dispatch(None, job_id="owner", deduplication=Deduplication.throttle("t", "3h"))
        await engine.flow(world.job.node(None, job_id="parent", children=[world.job.node(None, job_id="child")]))
        await engine.schedule("tick", world.job, 5, every="30m", limit=9)
        before = look(engine)
        await world.crash(engine)
    async with world.engine() as engine:
        assert look(engine) == before
        engine.runtime.core.check()
        queue = engine.queue("default")
        assert queue.is_paused()
        assert [job.id for job in queue.jobs("waiting", ascending=True)] == ["next", *numbered, "owner", "child", TICK]
        assert [job.id for job in queue.jobs("prioritized", ascending=True)] == ["high", "low"]
        assert queue.logs("talked") == ["a line"]
        assert (await world.job.dispatch(None)).id == str(int(numbered[-1]) + before["added_since"])
        assert (await world.job.dispatch(None, deduplication=Deduplication.throttle("t", "3h"))).duplicate
        world.clock.step_wall(3 * HOUR_MS)
        assert (await world.job.dispatch(None, deduplication=Deduplication.throttle("t", "3h"))).created
        failed = await engine.failed_jobs()
        assert [(job.id, job.failed_reason) for job in failed] == [("broken", "boom")]
        await engine.retry_failed_job("broken")
        await queue.resume()
        await quiet(engine)
        assert (await talker.find("talked")).result == "said"
        assert (await world.job.find("parent")).state == "completed"
        assert world.ids.index("child") < world.ids.index("parent")


TICK = ""


def look(engine: Engine) -> dict[str, Any]:
    """All that readers see, and how far the numbers have come since the last numbered job."""
    global TICK  # its id says when it is due, which the clock decides
    queue = engine.queue("default")
    jobs = {
        job.id: {name: getattr(job, name) for name in type(job).__slots__ if not name.startswith("_")}
        if hasattr(type(job), "__slots__")
        else repr(job)
        for job in queue.jobs()
    }
    TICK = next(id for id in jobs if id.startswith("repeat:tick"))
    last = max(int(id) for id in jobs if id.isdigit())
    return {
        "jobs": jobs,
        "counts": queue.counts(),
        "waiting": [job.id for job in queue.jobs("waiting", ascending=True)],
        "schedules": queue.schedules(),
        "paused": queue.is_paused(),
        "added_since": queue.record.counter - last + 1,
    }


async def test_receipt_of_a_failed_attempt_goes_on(world):
    """An attempt that was made counts: of two, one is left."""
    job = world.define(world.registry, "twice", attempts=2, backoff="1h")
    async with world.engine() as engine:
        await job.dispatch("fail", job_id="a")
        await quiet(engine)
        await world.crash(engine)
    world.clock.step_wall(HOUR_MS)
    async with world.engine() as engine:
        await until(lambda: len(world.runs) == 2)
        await quiet(engine)
        assert (await job.find("a")).state == "failed"
        assert (await job.find("a")).attempts_made == 2


async def test_scheduled_for_survives(world):
    """A delayed job that was active at the crash still knows when it was due."""
    world.gate = asyncio.Event()
    async with world.engine() as engine:
        await world.job.dispatch(None, job_id="a", delay="1h")
        world.clock.step_wall(HOUR_MS + 5)
        engine.runtime.call_on_loop(engine.runtime._on_timer)
        await until(lambda: world.runs)
        due = world.contexts[0].scheduled_for
        await world.crash(engine)
    async with world.engine() as engine:
        await until(lambda: len(world.runs) == 2)
        assert world.contexts[1].scheduled_for == due


# --- active jobs --------------------------------------------------------------------------------------------------


async def test_c118e_active_at_the_crash_and_poison(world):
    """It runs again once; after the second crash it fails as stalled, in the words of BullMQ, and nothing blocks it."""
    for crash in (1, 2):
        world.gate = asyncio.Event()
        async with world.engine() as engine:
            if crash == 1:
                await world.job.dispatch(None, job_id="poison")
            await until(lambda: len(world.runs) == crash)  # noqa: B023  # awaited here
            await world.crash(engine)
    async with world.engine() as engine:
        await quiet(engine)
        view = await world.job.find("poison")
        assert view.state == "failed"
        assert view.failed_reason == "job stalled more than allowable limit"
        assert len(world.runs) == 2
        await engine.retry_failed_job("poison")
        await quiet(engine)
        assert len(world.runs) == 3


async def test_stalled_jobs_go_first_in_their_order(world):
    """What was active runs before what waited, the first started first."""
    world.gate = asyncio.Event()
    async with world.engine(concurrency=2) as engine:
        for id in "abcd":
            await world.job.dispatch(None, job_id=id)
        await until(lambda: len(world.runs) == 2)
        await world.crash(engine)
    async with world.engine() as engine:
        await quiet(engine)
    assert world.ids == ["a", "b", "a", "b", "c", "d"]


# --- overdue ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("catch_up", "runs"), [("once", 1), ("all", 60), ("skip", 0)])
async def test_c65_five_hours_down(world, catch_up, runs):
    """Of the sixty runs that a five-minute schedule has missed: one, all with their own moments, or none."""
    world.clock.set_wall(world_start := at_five_minutes(world))
    async with world.engine() as engine:
        await engine.schedule("s", world.job, None, cron="*/5 * * * *", catch_up=catch_up)
        await world.crash(engine)
    world.clock.set_wall(world_start + timedelta(hours=5))
    async with world.engine(concurrency=1) as engine:
        await asyncio.sleep(0.05)
        await quiet(engine)
        assert len(world.runs) == runs
        moments = [ctx.scheduled_for for ctx in world.contexts]
        assert len(set(moments)) == runs
        if catch_up == "all":
            assert moments == [world_start + timedelta(minutes=5 * step) for step in range(1, 61)]
        (schedule,) = engine.queue("default").schedules()
        assert schedule.catch_up == catch_up
        assert schedule.next_at == world_start + timedelta(hours=5, minutes=5)


def at_five_minutes(world: World) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(world.clock.now_ms() // 300_000 * 300, UTC)


async def test_c66_two_hundred_overdue(world):
    """Oldest first, at most five starts per second, none lost and none put off to another time."""
    async with world.engine() as engine:
        for number in range(200):
            await world.job.dispatch(None, job_id=f"j{number:03}", delay=timedelta(minutes=200 - number))
        await world.crash(engine)
    world.clock.step_wall(4 * HOUR_MS)
    async with world.engine(concurrency=10, max_starts_per_second=5) as engine:
        for _ in range(60):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            world.clock.jump(1000)
            engine.runtime.call_on_loop(engine.runtime._on_timer)
            await asyncio.sleep(0.002)
        await until(lambda: len(world.runs) == 200)
    assert world.ids == [f"j{number:03}" for number in reversed(range(200))]
    for first, later in zip(world.runs, world.runs[5:], strict=False):
        assert later[1] - first[1] >= 1000, "more than five starts in one second"


# --- parked -------------------------------------------------------------------------------------------------------


async def test_c118a_handler_is_gone(world):
    """Its jobs keep their state, are shown, stepped over and saved again; defining the job releases them."""
    old = world.define(world.registry, "old")
    async with world.engine() as engine:
        await engine.queue("default").pause()
        await old.dispatch(1, job_id="parked")
        await old.dispatch(2, job_id="parked-later", delay="1h")
        await old.dispatch(3, job_id="parked-ranked", priority=1)
        for number in range(99):
            await world.job.dispatch(None, job_id=f"j{number}")
        await engine.queue("default").resume()
        engine.runtime.fetching = False
        await world.crash(engine)
    del world.registry._jobs["old"]
    stored = dict(world.snapshot.shelves["default"].jobs)
    world.runs.clear()
    async with world.engine() as engine:
        await quiet(engine)
        assert len(set(world.ids)) == 99
        view = engine.queue("default")
        assert {(job.id, job.state.value) for job in view.parked()} == {
            ("parked", "waiting"),
            ("parked-later", "delayed"),
            ("parked-ranked", "prioritized"),
        }
        assert engine.health()["parked_jobs"] == 3
        assert view.counts()["waiting"] == 1
        world.clock.step_wall(HOUR_MS)
        engine.runtime.call_on_loop(engine.runtime._on_timer)
        await until(lambda: view.counts()["waiting"] == 2)
        await quiet(engine)
        await world.crash(engine)
    assert world.snapshot.shelves["default"].jobs["parked"] == stored["parked"]
    world.runs.clear()
    async with world.engine() as engine:
        await quiet(engine)
        assert not world.runs
        world.define(world.registry, "old")
        await until(lambda: len(world.runs) == 3)
        assert world.ids == ["parked", "parked-later", "parked-ranked"]
        assert engine.queue("default").parked() == []
        assert engine.health()["parked_jobs"] == 0


async def test_parked_jobs_do_not_hold_up_the_end(world):
    """An engine that has nothing else to do is idle, and stops at once."""
    old = world.define(world.registry, "old")
    async with world.engine() as engine:
        await old.dispatch(1, delay="1h", job_id="later")
        await old.dispatch(1, delay=1, job_id="due")
        engine.runtime.fetching = False
        await world.crash(engine)
    del world.registry._jobs["old"]
    world.clock.step_wall(1_000)
    engine = world.engine()
    summary = await asyncio.to_thread(engine.run_until_idle, 5)
    assert not summary.timed_out
    assert summary.remaining in {0, 2}


async def test_parked_jobs_can_be_removed_and_their_ids_are_taken(world):
    """They are jobs as any other to everybody but a fetch."""
    old = world.define(world.registry, "old")
    async with world.engine() as engine:
        engine.runtime.fetching = False
        await old.dispatch(1, job_id="a")
        await world.crash(engine)
    del world.registry._jobs["old"]
    async with world.engine() as engine:
        with pytest.raises(JobIdTakenError):
            await world.job.dispatch(None, job_id="a")
        assert await engine.queue("default").remove("a")
        assert engine.queue("default").parked() == []
        assert engine.health()["parked_jobs"] == 0
        engine.runtime.core.check()


async def test_handler_missing_for_a_job_of_this_process(world):
    """What was made here and has no handler fails at once, as without a snapshot."""
    async with world.engine() as engine:
        engine.runtime.fetching = False
        receipt = await world.job.dispatch(None)
        del world.registry._jobs["job"]
        engine.forget_definition("job")
        engine.runtime.resume_fetching()
        with pytest.raises(JobFailedError, match="no handler"):
            await receipt.result(5)


async def test_c118a_unreadable_record(world):
    """It is shown with its reason, its id is taken, it stays as it is in the store, and the others run."""
    async with world.engine() as engine:
        engine.runtime.fetching = False
        for number in range(100):
            await world.job.dispatch(None, job_id=f"j{number}")
        await world.crash(engine)
    shelf = world.snapshot.shelves["default"]
    bad: JobRecord = shelf.jobs["j50"]
    bad.opts = {"attempts": {"no": "number"}, "backoff": 5, "removeOnComplete": "what"}
    bad.score = float("nan")
    kept = json.dumps(bad.opts)
    async with world.engine() as engine:
        await quiet(engine)
        assert len(world.runs) == 99
        (parked,) = engine.queue("default").parked()
        assert (parked.id, parked.name) == ("j50", "(unreadable)")
        assert parked.failed_reason
        assert engine.health()["parked_jobs"] == 1
        with pytest.raises(JobIdTakenError):
            await world.job.dispatch(None, job_id="j50")
        engine.runtime.core.check()
        await world.crash(engine)
    assert json.dumps(shelf.jobs["j50"].opts) == kept
    async with world.engine() as engine:
        assert await engine.queue("default").remove("j50")
        await world.crash(engine)
    assert "j50" not in shelf.jobs


async def test_c118m_retention_after_a_restart(world):
    """`remove_on_complete=3`: the newest three by finish, before and after; the bounded history keeps its bound."""
    job = world.define(world.registry, "few", remove_on_complete=3)
    options = {"history": {"completed": 2, "failed": 2}}
    async with world.engine(**options) as engine:
        for number in range(6):
            world.clock.step_wall(10)
            await (await job.dispatch(None, job_id=f"f{number}")).result(5)
            await (await world.job.dispatch(None, job_id=f"h{number}")).result(5)
        before = {view.id for view in engine.queue("default").jobs("completed")}
        assert "f5" in before
        assert len(before) <= 5
        await world.crash(engine)
    async with world.engine(**options) as engine:
        ids = {view.id for view in engine.queue("default").jobs("completed")}
        assert ids == before
        await (await world.job.dispatch(None, job_id="h6")).result(5)
        assert {"h4"}.isdisjoint({view.id for view in engine.queue("default").jobs("completed")})


async def test_restart_of_the_same_engine(world):
    """An engine that was stopped and started again goes on from the store, and old views of its queues follow."""
    engine = world.engine()
    async with engine:
        view = engine.queue("default")
        await world.job.dispatch(None, job_id="a", delay="1h")
    async with engine:
        assert view.counts()["delayed"] == 1
        assert (await world.job.dispatch(None, job_id="a", delay="1h")).duplicate
        assert (await world.job.dispatch(None, job_id="b", delay="1h")).state is JobState.DELAYED
        assert view.counts()["delayed"] == 2
