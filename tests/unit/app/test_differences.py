"""What the engine does otherwise than BullMQ on purpose, where no other file shows it (`docs/differences-from-bullmq.md`)."""

import asyncio
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

from inproc_jobs import Deduplication, InvalidJobIdError, JobFailedError
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused

pytestmark = pytest.mark.filterwarnings("error")


@virtual
async def test_a_failed_child_fails_its_parent_unless_told_otherwise(world: World) -> None:
    """Without a policy a failed child fails its parent; BullMQ would leave the parent waiting for ever."""
    child, parent = world.recorder("child"), world.recorder("parent")
    child.script = [ValueError("broken")]
    async with world.engine() as engine:
        flow = await engine.flow(parent.job.node({}, children=[child.job.node({})]))
        with pytest.raises(JobFailedError, match=r"child .* failed"):
            await flow.job.result()
    assert parent.runs == []


@virtual
async def test_a_failed_child_with_bullmqs_default_leaves_its_parent_waiting(world: World) -> None:
    """`on_failure="wait"` is BullMQ's default, and a retry of the child lets the parent go on."""
    child, parent = world.recorder("child"), world.recorder("parent")
    child.script = [ValueError("broken")]
    async with world.engine() as engine:
        flow = await engine.flow(parent.job.node({}, children=[child.job.node({}, on_failure="wait")]))
        await asyncio.sleep(3600)
        assert engine.queue("default").job(flow.job.id).state == "waiting-children"
        [failed] = await engine.failed_jobs()
        await failed.retry()
        await flow.job.result()
    assert len(parent.runs) == 1


@virtual
async def test_a_child_of_another_living_parent_is_refused(world: World) -> None:
    """A flow cannot take over somebody else's child; BullMQ leaves it out silently and the new parent waits for ever."""
    child, parent = world.noop("child"), world.noop("parent")
    engine = world.engine()
    await engine.flow(parent.node({}, children=[child.node({}, job_id="c")], job_id="first"))
    with refused(engine, InvalidJobIdError, "'c'", "'first'"):
        await engine.flow(parent.node({}, children=[child.node({}, job_id="c")], job_id="second"))


@virtual
async def test_a_kept_trigger_does_not_overwrite_a_job_that_has_its_id(world: World) -> None:
    """Parked by `keep_last`, then its id is taken: it gets a number; BullMQ would overwrite the job that has the id."""
    recorder = world.recorder()
    recorder.takes_s = 1
    key = Deduplication.keep_last("k")
    async with world.engine(concurrency=2):
        await recorder.dispatch("owner", deduplication=key)
        await asyncio.sleep(0.1)
        await recorder.dispatch("parked", job_id="x", deduplication=key)
        await recorder.dispatch("plain", job_id="x", delay="1h")
        await asyncio.sleep(3)
        assert recorder.payloads == ["owner", "parked"]
        view = await recorder.find("x")
        assert view is not None
        assert (view.payload, view.state) == ("plain", "delayed")


@virtual
async def test_a_handler_that_blocks_is_not_taken_for_stalled(world: World) -> None:
    """A handler that holds the loop for an hour runs once; on BullMQ its lock of 30 s would have run out."""
    runs: list[Any] = []

    async def handle(payload: Any) -> None:
        runs.append(payload)
        world.clock.jump(3_600_000)
        await asyncio.sleep(60)

    job = world.job(handle)
    async with world.engine(concurrency=2):
        receipt = await job.dispatch("long")
        await receipt.result()
        view = await job.find(receipt.id)
    assert runs == ["long"]
    assert view is not None
    assert (view.state, view.attempts_started) == ("completed", 1)


@virtual
async def test_named_context_variables_cross_to_the_job(world: World) -> None:
    """`context_vars` takes over the values of the moment of dispatch; what is not named stays with the caller."""
    named, other = ContextVar("named", default="-"), ContextVar("other", default="-")
    seen: list[tuple[str, str]] = []

    async def handle(payload: Any) -> None:
        seen.append((named.get(), other.get()))

    job = world.job(handle)
    async with world.engine(context_vars=[named]):
        named.set("a")
        other.set("a")
        await job.dispatch(1)
        named.set("b")
        await job.dispatch(2)
    assert seen == [("a", "-"), ("b", "-")]


@virtual
async def test_ids_that_the_counter_never_draws(world: World) -> None:
    """BullMQ refuses whatever reads as a number; here only what could collide with an automatic id is refused."""
    job = world.noop()
    engine = world.engine()
    for id in ("-5", "NaN", "007"):
        assert (await job.dispatch({}, job_id=id)).id == id
    with refused(engine, InvalidJobIdError, "'5'"):
        await job.dispatch({}, job_id="5")


@pytest.mark.parametrize(
    ("catch_up", "starts_s"),
    [
        # The run at 0 takes the slot until 3.5 h; those of 1, 2 and 3 h are missed.
        pytest.param("once", [0, 12_600, 14_400, 18_000], id="once"),
        pytest.param("all", [0, 12_600, 12_600, 12_600, 14_400, 18_000], id="all"),
        pytest.param("skip", [0, 14_400, 18_000], id="skip"),
    ],
)
@virtual
async def test_missed_runs_of_a_schedule(world: World, catch_up: Any, starts_s: list[int]) -> None:
    """BullMQ runs one of the moments that were missed; "all" makes up each, "skip" none."""
    starts: list[int] = []

    async def handle(payload: Any) -> None:
        starts.append(world.ms // 1000)
        if len(starts) == 1:
            await asyncio.sleep(3.5 * 3600)

    job = world.job(handle)
    async with world.engine() as engine:
        await engine.schedule("hourly", job, {}, every="1h", catch_up=catch_up)
        await asyncio.sleep(5.5 * 3600)
        await engine.queue("default").remove_schedule("hourly")
    assert starts == starts_s


@virtual
async def test_a_schedule_goes_on_when_the_clock_is_set_back(world: World) -> None:
    """The next run is planned anew after a step back; BullMQ is silent until the clock has caught up."""
    recorder = world.recorder()
    async with world.engine() as engine:
        await engine.schedule("hourly", recorder.job, {}, every="1h")
        await asyncio.sleep(60)
        world.clock.step_wall(-6 * 3_600_000)
        await asyncio.sleep(2 * 3600)
        runs = len(recorder.runs)
        await engine.queue("default").remove_schedule("hourly")
    assert runs == 3


@virtual
async def test_debounce_sets_the_delay_itself(world: World) -> None:
    """On BullMQ a debounce without a delay of the same length replaces nothing; the name here cannot be half used."""
    recorder = world.recorder()
    async with world.engine():
        for payload in "ABC":
            await recorder.dispatch(payload, deduplication=Deduplication.debounce("k", "10s"))
            await asyncio.sleep(4)
        await asyncio.sleep(60)
    assert recorder.runs == [(18_000, "C")]


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process can be set on POSIX only")
@virtual
async def test_cron_without_a_zone_is_utc(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's time zone has no part in it; BullMQ takes that of its process."""
    job = world.noop()
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        view = await world.engine().schedule("noon", job, {}, cron="0 12 * * *")
    time.tzset()
    assert view is not None
    assert view.next_at == datetime(2026, 3, 2, 12, tzinfo=UTC)
