"""Receipts describe the stored job and are bound to its run (DESIGN 2.3; cases C14, C96)."""

import asyncio
from typing import Any

import pytest

from inproc_jobs import (
    Deduplication,
    DispatchedJob,
    Engine,
    EngineStoppedError,
    InvalidPayloadError,
    JobFailedError,
    JobRemovedError,
    JobState,
)
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused


@pytest.mark.parametrize(
    ("options", "state"),
    [({}, "waiting"), ({"priority": 3}, "prioritized"), ({"delay": "1s"}, "delayed"), ({"lifo": True}, "waiting")],
)
async def test_state_of_a_new_job(world: World, engine: Engine, options: Any, state: str) -> None:
    """The receipt of a created job says where it is now."""
    job = world.noop("mail", queue="mails")
    receipt = await job.dispatch({"to": "a"}, job_id="m", **options)
    assert isinstance(receipt, DispatchedJob)
    assert (receipt.id, receipt.name, receipt.queue) == ("m", "mail", "mails")
    assert (receipt.created, receipt.duplicate, receipt.state) == (True, False, state)
    assert isinstance(receipt.state, JobState)


async def test_a_receipt_does_not_change(world: World, engine: Engine) -> None:
    """It is a record of one moment: frozen, and not updated by what happens later."""
    job = world.noop()
    receipt = await job.dispatch(None, job_id="x", delay="1h")
    await engine.queue("default").promote("x")
    assert receipt.state == "delayed"
    with pytest.raises(AttributeError):
        receipt.state = JobState.ACTIVE  # type: ignore[misc]


async def test_repr_tells_what_happened(world: World, engine: Engine) -> None:
    """A printed receipt shows id, name, queue, created or duplicate, and the state."""
    job = world.noop("mail")
    assert repr(await job.dispatch(None, job_id="x")) == "<DispatchedJob 'x' mail in 'default': created, waiting>"
    assert repr(await job.dispatch(None, job_id="x")) == "<DispatchedJob 'x' mail in 'default': duplicate, waiting>"


@virtual
async def test_result_after_removal_by_retention(world: World) -> None:
    """The run's result is there after its record is gone."""
    job = world.recorder(remove_on_complete=True, remove_on_fail=True)
    job.script = ["fine", ValueError("broken")]
    async with world.engine():
        good, bad = await job.dispatch(1, job_id="a"), await job.dispatch(2, job_id="b")
        await asyncio.sleep(1)
        assert await good.result() == "fine"
        with pytest.raises(JobFailedError, match="broken"):
            await bad.result()


@virtual
async def test_result_after_the_id_was_taken_by_a_later_job(world: World) -> None:
    """Two runs of one id have two receipts, each with its own result, in any order of asking."""
    job = world.recorder()
    job.script = ["first", "second"]
    async with world.engine():
        first = await job.dispatch(1, job_id="x")
        await asyncio.sleep(1)
        second = await job.dispatch(2, job_id="x")
        await asyncio.sleep(1)
        assert (await second.result(), await first.result()) == ("second", "first")


@virtual
async def test_result_after_the_finished_job_was_removed_by_hand(world: World) -> None:
    """Removing a finished record takes nothing from those who hold its receipt."""
    job = world.recorder()
    job.script = ["fine"]
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(1, job_id="x")
        await asyncio.sleep(1)
        await engine.queue("default").remove("x")
        assert await receipt.result() == "fine"


@virtual
async def test_a_removed_job_ends_its_waiters(world: World) -> None:
    """Whoever waits when the job is removed is told at once, and so is whoever asks later."""
    job = world.noop()
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(1, job_id="x", delay="1h")
        waiter = asyncio.create_task(receipt.result())
        await asyncio.sleep(1)
        await engine.queue("default").remove("x")
        with pytest.raises(JobRemovedError) as caught:
            await waiter
        assert (caught.value.id, caught.value.name, caught.value.queue) == ("x", "job", "default")
        with pytest.raises(JobRemovedError):
            await receipt.result()
    assert world.ms == 1000


@pytest.mark.parametrize("way", ["drain", "clean", "obliterate", "debounce"])
@virtual
async def test_every_way_of_removal_ends_the_waiters(world: World, way: str) -> None:
    """Drain, clean, obliterate and replacement by a debounce tell the waiters too."""
    job = world.noop()
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        receipt = await job.dispatch(1, delay="1h", deduplication=Deduplication.debounce("k", "1h"))
        waiter = asyncio.create_task(receipt.result())
        await asyncio.sleep(1)
        if way == "drain":
            await queue.drain(delayed=True)
        elif way == "clean":
            assert await queue.clean(0, state="delayed") == [receipt.id]
        elif way == "obliterate":
            await queue.obliterate()
        else:
            await job.dispatch(2, deduplication=Deduplication.debounce("k", "1h"))
        with pytest.raises(JobRemovedError):
            await asyncio.wait_for(waiter, 1)


@virtual
async def test_a_stopping_engine_ends_all_waiters(world: World) -> None:
    """A waiter always ends: the engine stops before the job could run."""
    job = world.noop()
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(1, delay="1h")
        waiter = asyncio.create_task(receipt.result())
        await asyncio.sleep(1)
    with pytest.raises(EngineStoppedError):
        await waiter
    with pytest.raises(EngineStoppedError):
        await receipt.result()


@virtual
async def test_results_stay_readable_after_the_stop(world: World) -> None:
    """A job that has ended needs no engine: its receipt answers."""
    job = world.recorder()
    job.script = [42]
    async with world.engine():
        receipt = await job.dispatch(1)
    assert await receipt.result() == 42


@virtual
async def test_the_duplicate_of_a_deduplication_key_describes_the_owner(world: World) -> None:
    """Collapsed by another key than the id: the receipt is that of the job that won."""
    job = world.recorder()
    async with world.engine():
        first = await job.dispatch(1, delay="10s", deduplication=Deduplication.until_done("k"))
        second = await job.dispatch(2, job_id="mine", priority=4, deduplication=Deduplication.until_done("k"))
        assert (second.duplicate, second.id, second.state) == (True, first.id, "delayed")
        assert await second.result() is None
    assert job.payloads == [1]


@virtual
async def test_a_key_that_outlives_its_job_gives_a_receipt_without_a_job(world: World) -> None:
    """A throttle holds after the job is gone: the receipt names it, says removed, and has nothing to wait for."""
    job = world.recorder(remove_on_complete=True)
    async with world.engine():
        first = await job.dispatch(1, deduplication=Deduplication.throttle("k", "1m"))
        await first.result()
        second = await job.dispatch(2, deduplication=Deduplication.throttle("k", "1m"))
        assert (second.duplicate, second.id, second.state) == (True, first.id, "removed")
        with pytest.raises(JobRemovedError):
            await second.result()


async def test_c96_a_refused_payload_leaves_no_trace(world: World, engine: Engine) -> None:
    """C96: encoding fails: an exception, no id, no counter, no key, no event; the next id is as if nothing had been."""
    job = world.noop()
    with refused(engine, InvalidPayloadError, "payload"):
        await job.dispatch({"x": object()}, job_id="x", deduplication=Deduplication.until_done("k"))
    assert await job.find("x") is None
    assert (await job.dispatch(None)).id == "1"


@virtual
async def test_the_receipt_is_that_of_a_job_which_ends_before_it_is_looked_at(world: World) -> None:
    """A dispatch from a thread whose job ends at once still has its result for later."""

    def handle(payload: int) -> int:
        return payload + 1

    job = world.job(handle, executor="inline")
    async with world.engine():
        receipt = await asyncio.to_thread(job.dispatch_sync, 1)
        await asyncio.sleep(1)
        assert await asyncio.to_thread(receipt.result_sync) == 2
