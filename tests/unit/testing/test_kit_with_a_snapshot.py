"""The test kit on an engine that has a snapshot."""

import threading

import pytest

from inproc_jobs import Registry
from inproc_jobs.errors import SnapshotUnavailableError
from inproc_jobs.testing import MemorySnapshot, harness


async def test_a_crash_brings_back_what_was_stored():
    """Dispatches are taken once the snapshot was read, and a stored job is there after the crash and runs."""
    registry, ran = Registry(), []
    job = registry.define_job("job", handle=ran.append)
    kept = MemorySnapshot(mode="write_through")
    async with harness(registry=registry, snapshot=kept) as kit:
        began = kit.clock.now()
        await job.dispatch("stored", job_id="x", delay="1h")
        assert kit.clock.now() == began
        await kit.crash()
        view = await job.find("x")
        assert view is not None
        assert view.state == "delayed"
        await kit.advance("1h")
    assert ran == ["stored"]


async def test_an_awaited_schedule_is_stored():
    """With write_through a schedule survives the crash that follows the call; no time passes while the store works."""
    registry, ran = Registry(), []
    job = registry.define_job("job", handle=ran.append)
    kept = MemorySnapshot(mode="write_through")
    async with harness(registry=registry, snapshot=kept) as kit:
        began = kit.clock.now()
        await kit.engine.schedule("s", job, "tick", cron="0 * * * *")
        await kit.crash()
        assert kit.clock.now() == began
        (schedule,) = kit.engine.queue("default").schedules()
        assert schedule.id == "s"
        await kit.advance("2h")
    assert ran == ["tick", "tick"]


def test_a_plain_function_crashes_too():
    """Dispatches are taken from the first line on, and `crash_sync` brings back what was stored."""
    registry, ran = Registry(), []
    job = registry.define_job("job", handle=ran.append)
    with harness(registry=registry, snapshot=MemorySnapshot(mode="write_through")) as kit:
        job.dispatch_sync("stored", job_id="x", delay="1h")
        kit.run_ready_sync()
        kit.crash_sync()
        kit.advance_sync("1h")
    assert ran == ["stored"]


async def test_what_a_periodic_snapshot_had_not_stored_is_gone():
    """A crash loses what was dispatched since the last write, as in production."""
    registry, ran = Registry(), []
    job = registry.define_job("job", handle=ran.append)
    async with harness(registry=registry, snapshot=MemorySnapshot(every="10s")) as kit:
        await job.dispatch("stored", job_id="x", delay="1h")
        await kit.advance("15s")
        await job.dispatch("not yet", job_id="y", delay="1h")
        await kit.crash()
        assert await job.find("y") is None
        await kit.advance("1h")
    assert ran == ["stored"]


async def test_a_store_that_fails_refuses():
    """A dispatch that no store took is refused with the store's own error, and taken once the store works again."""
    registry, ran = Registry(), []
    job = registry.define_job("job", handle=ran.append)
    kept = MemorySnapshot(mode="write_through")
    async with harness(registry=registry, snapshot=kept) as kit:
        kept.failing = "disk full"
        with pytest.raises(SnapshotUnavailableError, match="disk full"):
            await job.dispatch("a", job_id="x")
        kept.failing = None
        await kit.advance("5s")
        await job.dispatch("b", job_id="x")
        await kit.run_until_idle()
    assert ran == ["b"]


async def test_no_thread_is_left_behind():
    """Neither a crash nor the end of a test leaves the threads of a snapshot running."""
    registry = Registry()
    before = set(threading.enumerate())
    async with harness(registry=registry, snapshot=MemorySnapshot()) as kit:
        assert set(threading.enumerate()) - before
        await kit.crash()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not left & {"inproc_jobs snapshot writer", "inproc_jobs snapshot lease"}
