"""A Redis that others use as well: which queues an engine takes over, and that it keeps its hands off the rest."""

from __future__ import annotations

import json

import pytest

from inproc_jobs import Engine, LeaseHeldError, QueueNotOwnedError, RedisSnapshot, Registry
from tests.redis.server import why_not

pytestmark = [pytest.mark.redis, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def add_foreign(client, queue: str, id: str, *, parent: tuple[str, str] | None = None, **fields: str) -> None:
    """A waiting job as a producer of BullMQ leaves it; its wire tests show that it looks like this."""
    key = f"bull:{queue}:{id}"
    hash = {"name": "work", "data": json.dumps(id), "opts": "{}", "timestamp": "1700000000000", "delay": "0"}
    if parent is not None:
        hash |= {
            "parentKey": f"bull:{parent[0]}:{parent[1]}",
            "parent": json.dumps({"id": parent[1], "queueKey": f"bull:{parent[0]}"}),
        }
    client.hset(key, mapping={**hash, "priority": "0", **fields})
    client.hset(f"bull:{queue}:meta", "opts.maxLenEvents", "10000")
    client.incr(f"bull:{queue}:id")
    client.lpush(f"bull:{queue}:wait", id)
    client.xadd(f"bull:{queue}:events", {"event": "added", "jobId": id, "name": "work"})


def add_foreign_parent(client, queue: str, id: str, *children: tuple[str, str]) -> None:
    """A parent that waits for its children."""
    add_foreign(client, queue, id)
    client.lrem(f"bull:{queue}:wait", 0, id)
    client.zadd(f"bull:{queue}:waiting-children", {id: 1})
    client.sadd(f"bull:{queue}:{id}:dependencies", *(f"bull:{where}:{child}" for where, child in children))


def contents(client, queue: str) -> dict[str, object]:
    return {key: client.dump(key) for key in client.keys(f"bull:{queue}:*")}


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def ran(registry) -> list[str]:
    """Payloads of what has run, of jobs in queue "mail"."""
    ran: list[str] = []
    registry.define_job("work", handle=ran.append, queue="mail")
    return ran


def engine_of(registry: Registry, place, **more: object) -> Engine:
    return Engine(registry=registry, snapshot=RedisSnapshot(place.server.url, every="50ms"), **more)


async def test_queues_without_jobs_of_ours_are_left_alone(place, redis_client, registry, ran, caplog):
    """Nothing of them changes; the log says so, once, and using them is refused."""
    add_foreign(redis_client, "mail", "1")
    add_foreign(redis_client, "invoices", "1")
    add_foreign(redis_client, "pictures", "1")
    before = contents(redis_client, "invoices")
    async with engine_of(registry, place) as engine:
        await engine.runtime.wait_idle()
        with pytest.raises(QueueNotOwnedError, match="queues=") as caught:
            engine.queue("invoices")
        assert caught.value.queue == "invoices"
        late = registry.define_job("late", handle=ran.append, queue="invoices")
        with pytest.raises(QueueNotOwnedError):
            await late.dispatch("no")
        with pytest.raises(QueueNotOwnedError):
            await engine.flow(registry.get("work").node("parent", children=[late.node("child")]))
        assert "invoices" not in engine.health()["queues"]
        await engine.runtime.wait_idle()
    assert ran == ["1"]
    assert contents(redis_client, "invoices") == before
    told = [record for record in caplog.records if "left to their own workers" in record.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("way", ["default queue", "named", "defined"])
async def test_ways_to_adopt(place, redis_client, registry, way):
    """What the engine is set up for is its own from the start on."""
    add_foreign(redis_client, "invoices", "1")
    more = {"default queue": {"default_queue": "invoices"}, "named": {"queues": {"invoices": {}}}, "defined": {}}[way]
    ran: list[str] = []
    registry.define_job("work", handle=ran.append, queue="invoices" if way == "defined" else None)
    async with engine_of(registry, place, **more) as engine:
        await engine.runtime.wait_idle()
    assert ran == ["1"]


async def test_what_was_ours_stays_ours(place, redis_client, registry):
    """A queue whose jobs are not defined any more is not left behind: its jobs are parked."""
    old = Registry()
    job = old.define_job("old", handle=lambda payload: None, queue="archive")
    async with engine_of(old, place) as engine:
        await job.dispatch("kept", job_id="kept", delay="1h")
    async with engine_of(registry, place) as engine:
        assert [view.id for view in engine.queue("archive").parked()] == ["kept"]
        assert engine.health()["parked_jobs"] == 1


async def test_after_a_handover_it_is_theirs(place, redis_client, registry):
    """Whoever starts next without a job for it keeps its hands off."""
    old = Registry()
    job = old.define_job("old", handle=lambda payload: None, queue="archive")
    engine = engine_of(old, place)
    await engine.astart()
    await job.dispatch("kept", delay="1h")
    await engine.handover()
    before = contents(redis_client, "archive")
    async with engine_of(registry, place) as engine:
        with pytest.raises(QueueNotOwnedError):
            engine.queue("archive")
    assert contents(redis_client, "archive") == before


async def test_flows_are_taken_whole(place, redis_client, registry, ran):
    """A parent in a queue of its own must hear of its children, so its queue comes along; so do those of its children."""
    add_foreign_parent(redis_client, "reports", "sum", ("mail", "part"), ("pages", "page"))
    add_foreign(redis_client, "mail", "part", parent=("reports", "sum"))
    add_foreign(redis_client, "pages", "page", parent=("reports", "sum"))
    add_foreign(redis_client, "others", "1")
    async with engine_of(registry, place) as engine:
        await engine.runtime.wait_idle()
        assert set(engine.health()["queues"]) == {"mail", "reports", "pages"}
    assert sorted(ran) == ["page", "part", "sum"]


@pytest.mark.slow
async def test_flow_that_comes_later_brings_its_queue(place, redis_client, registry, ran):
    """Its parent stands where this engine had nothing to do until now; what was there before comes as well."""
    add_foreign(redis_client, "reports", "old")
    async with engine_of(registry, place) as engine:
        add_foreign_parent(redis_client, "reports", "sum", ("mail", "part"))
        add_foreign(redis_client, "mail", "part", parent=("reports", "sum"))
        while len(ran) < 3:
            await engine.save_now(5)
            await engine.runtime.wait_idle()
        assert engine.queue("reports").counts()["waiting"] == 0
    assert sorted(ran) == ["old", "part", "sum"]
    assert ran.index("part") < ran.index("sum")


@pytest.mark.slow
async def test_adds_to_a_queue_that_is_still_empty(place, redis_client, registry, ran):
    """It is the engine's from its start, not from its first job: stray workers are kept off, and the job is taken in."""
    async with engine_of(registry, place) as engine:
        assert redis_client.exists("bull:mail:limiter")
        add_foreign(redis_client, "mail", "1")
        while not ran:
            await engine.save_now(5)
            await engine.runtime.wait_idle()
    assert ran == ["1"]


# --- others who are still at it -----------------------------------------------------------------------------------


def start_foreign(client, queue: str, id: str, lock_ms: int) -> None:
    """A worker of BullMQ runs a job: it is active, and locked."""
    add_foreign(client, queue, id)
    client.lmove(f"bull:{queue}:wait", f"bull:{queue}:active", "RIGHT", "LEFT")
    client.set(f"bull:{queue}:{id}:lock", "token-of-a-worker", px=lock_ms)


async def test_jobs_that_a_worker_is_at_are_not_taken(place, redis_client, registry, ran):
    """Two would run them at once. The worker's lock, and the queue, stay as they are."""
    start_foreign(redis_client, "mail", "1", 60_000)
    before = contents(redis_client, "mail")
    with pytest.raises(LeaseHeldError, match=r"job 1 of bull:mail .* BullMQ worker"):
        await engine_of(registry, place).astart()
    assert contents(redis_client, "mail") == before
    assert not redis_client.exists("bull::inproc-jobs:lease")
    start_foreign(redis_client, "others", "1", 60_000)
    redis_client.delete("bull:mail:1:lock")  # it ran out
    async with engine_of(registry, place) as engine:
        await engine.runtime.wait_idle()
    assert ran == ["1"]


async def test_worker_in_a_queue_that_flows_reach_into(place, redis_client, registry, ran):
    """It would come along with the flow, so it counts as well."""
    add_foreign_parent(redis_client, "reports", "sum", ("mail", "part"))
    add_foreign(redis_client, "mail", "part", parent=("reports", "sum"))
    start_foreign(redis_client, "reports", "7", 60_000)
    with pytest.raises(LeaseHeldError, match="job 7 of bull:reports"):
        await engine_of(registry, place).astart()
    assert redis_client.get("bull:reports:7:lock") == "token-of-a-worker"
    assert ran == []
    assert not redis_client.exists("bull::inproc-jobs:lease")


@pytest.mark.slow
async def test_workers_that_are_at_it_can_be_waited_for(place, redis_client, registry, ran):
    """As for any other owner."""
    start_foreign(redis_client, "mail", "1", 300)
    snapshot = RedisSnapshot(place.server.url, on_held="wait")
    async with Engine(registry=registry, snapshot=snapshot) as engine:
        await engine.runtime.wait_idle()
    assert ran == ["1"]


@pytest.mark.slow
async def test_commands_from_outside_are_told(place, redis_client, registry, ran, caplog):
    """An engine does not see them, so whoever gives them must know."""
    async with engine_of(registry, place) as engine:
        for _ in range(3):
            redis_client.xadd("bull:mail:events", {"event": "removed", "jobId": "1", "prev": "delayed"})
        await engine.save_now(5)
        while not any("from outside" in record.getMessage() for record in caplog.records):
            await engine.save_now(5)
        await engine.save_now(5)
    assert len([record for record in caplog.records if "from outside (removed)" in record.getMessage()]) == 1


async def test_repeatable_of_an_old_version_is_left_alone_whole(place, redis_client, registry, ran):
    """Its pending job would be the last one if it ran: it is parked, and there for whoever migrates the schedule."""
    id = "repeat:abc:1700000000000"
    add_foreign(redis_client, "mail", id, rjk="abc")
    add_foreign(redis_client, "mail", "2")
    redis_client.zadd("bull:mail:repeat", {"abc": 1_700_000_000_000})
    redis_client.hset("bull:mail:repeat:abc", mapping={"name": "work", "every": "2000"})
    async with engine_of(registry, place) as engine:
        await engine.runtime.wait_idle()
        assert engine.health()["parked_jobs"] == 1
    assert ran == ["2"]
    assert redis_client.lrange("bull:mail:wait", 0, -1) == [id]
