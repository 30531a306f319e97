"""The test kit on an engine that has a snapshot."""

from inproc_jobs import Registry
from inproc_jobs.testing import harness
from inproc_jobs.testing.memory_store import MemorySnapshot


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
        kept.evict_owner()
        await kit.begin_here()
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
        kept.evict_owner()
        await kit.begin_here()
        assert kit.clock.now() == began
        (schedule,) = kit.engine.queue("default").schedules()
        assert schedule.id == "s"
        await kit.advance("2h")
    assert ran == ["tick", "tick"]
