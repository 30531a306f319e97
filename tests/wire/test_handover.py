"""What we have written is a BullMQ queue: workers of BullMQ 6 and 5 go on with it, and take nothing before."""

from __future__ import annotations

import time

import pytest

from inproc_jobs.snapshot.records import Batch, KeyRecord, QueueBatch, SchedulerRecord
from tests.unit.snapshot.store_contract import change, job, meta_of, owner
from tests.wire.conftest import renewing, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

FREE = {"frees_id": True, "kept": [False, False]}


def everything(now: int) -> Batch:
    """A queue with something of each kind."""
    tick = {"every": 700, "count": 1}
    records = [
        job("a", data=b'{"n":1,"text":"\xc3\xbc"}'),
        job("b"),
        job(
            "retried",
            opts={"attempts": 3, "jobId": "retried"},
            attempts_made=1,
            attempts_started=1,
            data=b'{"fail":2}',
            failed_reason="boom",
            stacktrace=["boom at line 1"],
        ),
        job("invoice:42", deduplication_id="done", opts={"attempts": 1, "deduplication": {"id": "done"}}),
        job("low", "prioritized", 9 << 32 | 1, priority=9),
        job("high", "prioritized", 2 << 32 | 2, priority=2),
        job("later2", "delayed", now + 1500, tie=1, delay=1500),
        job("later1", "delayed", now + 1500, tie=0, delay=1500),
        job(
            "parent",
            "waiting-children",
            now,
            pending=["bull:mail:child"],
            processed={"bull:pdf:old": b'{"pages":3}'},
            ignored={},
            unsuccessful={},
        ),
        job("child", parent={"id": "parent", "queue": "mail", "policy": ""}),
        job("free", "completed", now, own=FREE, opts={"attempts": 1, "removeOnComplete": True}),
        job("kept", "completed", now, result=b'{"x":1}'),
        job(
            "broken",
            "failed",
            now,
            own=FREE,
            opts={"attempts": 1},
            failed_reason="no such user",
            stacktrace=["Error: no such user"],
        ),
        job(f"repeat:tick:{now + 400}", "delayed", now + 400, scheduler_id="tick", repeat=tick, name="tick", delay=400),
        job("running", "active", attempts_started=1, processed_on=now),
    ]
    records.sort(key=lambda one: one.id == "later2")  # so that later1 is placed first, as its tie says
    scheduler = SchedulerRecord(
        "tick", "tick", b'{"t":1}', {"every": 700, "count": 0}, {"attempts": 1}, {}, now + 400, 1, 0, {"attempts": 1}
    )
    part = QueueBatch(
        "mail",
        [change(record) for record in records],
        meta_of(12, priority_counter=2),
        keys={"done": KeyRecord("invoice:42", None), "window": KeyRecord("kept", now + 60_000)},
        schedulers={"tick": scheduler},
    )
    return Batch(now, [part])


@pytest.mark.parametrize("version", [6, 5])
def test_handover_leaves_a_live_queue(node, place, redis_client, version):
    """Every job runs exactly once, in order, with its data, attempts, delay and family; nothing before the handover."""
    now = round(time.time() * 1000)
    store = place.open(lease_ms=5_000)  # a worker that was kept out looks again after that time
    store.acquire(owner())
    store.apply(everything(now))
    with renewing(store):
        node.start(version, worker="stray", stalledInterval=300)
        time.sleep(1)
        assert node.log("stray")["ran"] == []
        assert redis_client.lrange("bull:mail:active", 0, -1) == ["running"]
    store.release(handover=True)
    until(lambda: len({one["id"] for one in node.log("stray")["ran"]} - {"x"}) >= 14)
    log = node.stop("stray")
    assert log["errors"] == []
    ran = [one["id"] for one in log["ran"] if not one["id"].startswith("repeat:")]
    assert sorted(ran) == sorted(
        ["running", "a", "b", "retried", "retried", "invoice:42", "low", "high", "later1", "later2", "parent", "child"]
    )
    order = {id: number for number, id in reversed(list(enumerate(ran)))}
    assert sorted(["running", "a", "b", "invoice:42", "child", "high", "low"], key=order.__getitem__) == [
        "running",
        "a",
        "b",
        "invoice:42",
        "child",
        "high",
        "low",
    ]
    assert order["later1"] < order["later2"]
    by_id = {one["id"]: one for one in log["ran"]}
    assert by_id["a"]["data"] == {"n": 1, "text": "ü"}
    assert [(one["attemptsMade"], one["attemptsStarted"]) for one in log["ran"] if one["id"] == "retried"] == [
        (1, 2),
        (2, 3),
    ]
    assert by_id["later1"]["at"] >= now + 1500
    assert by_id["parent"]["children"] == {"bull:pdf:old": {"pages": 3}, "bull:mail:child": {"done": "child"}}
    ticks = [one for one in log["ran"] if one["id"].startswith("repeat:tick:")]
    assert len(ticks) >= 2
    assert {one["name"] for one in ticks} == {"tick"}
    assert ticks[1]["data"] == {"t": 1}

    # Keys, finished jobs and settings.
    assert redis_client.get("bull:mail:de:done") is None
    assert redis_client.get("bull:mail:de:window") == "kept"
    assert 50_000 < redis_client.pttl("bull:mail:de:window") <= 60_000
    assert node.job(version, "free") is None
    assert node.job(version, "kept")["returnvalue"] == {"x": 1}
    broken = node.job(version, "broken")
    assert (broken["failedReason"], broken["stacktrace"]) == ("no such user", ["Error: no such user"])
    node.job(version, "broken", "retry")
    meta = redis_client.hgetall("bull:mail:meta")
    assert "max" not in meta
    assert "duration" not in meta
    assert not redis_client.keys("bull::inproc-jobs:kept:*")
    added = node.call(version, "add", "next", {})
    assert int(added["id"]) > 12
    assert int(added["id"]) < 100


@pytest.mark.parametrize("version", [6, 5])
def test_worker_takes_over_when_the_owner_has_died(node, place, redis_client, version):
    """Within a lease of the death, without anybody's help; the job that was active runs once more, as a stalled one."""
    now = round(time.time() * 1000)
    store = place.open(lease_ms=4_000)
    store.acquire(owner())
    store.apply(everything(now))
    with renewing(store):
        node.start(version, worker="stray", stalledInterval=300)
        time.sleep(2)
        assert node.log("stray")["ran"] == []
    until(lambda: {"running", "parent", "later2"} <= {one["id"] for one in node.log("stray")["ran"]})
    log = node.stop("stray")
    assert log["errors"] == []
    ran = [one["id"] for one in log["ran"] if not one["id"].startswith("repeat:")]
    assert len(ran) == len(set(ran)) + 1  # the one that fails once more is retried
    assert redis_client.hget("bull:mail:running", "stc") == "1"


def test_a_stray_worker_that_promotes_does_not_disturb(node, place, redis_client):
    """Due jobs that a stray worker moved to the waiting list are where we say after the next write."""
    now = round(time.time() * 1000)
    store = place.open()
    store.acquire(owner())
    store.apply(Batch(now, [QueueBatch("mail", [change(job("d", "delayed", now + 100))], meta_of(1))]))
    node.start(6)
    until(lambda: redis_client.lrange("bull:mail:wait", 0, -1) == ["d"])
    store.apply(Batch(now, [QueueBatch("mail", [change(job("d", "active"), "delayed")])]))
    assert redis_client.lrange("bull:mail:wait", 0, -1) == []
    assert redis_client.lrange("bull:mail:active", 0, -1) == ["d"]
    time.sleep(0.5)
    assert node.stop()["ran"] == []


def test_the_limit_that_was_there_comes_back(node, place, redis_client):
    """A global rate limit set by BullMQ holds again after the handover, and a worker's own limiter counts again."""
    node.call(6, "setGlobalRateLimit", 7, 5000)
    node.call(6, "add", "n", {})
    store = place.open()
    store.acquire(owner())
    state = next(iter(store.load()))
    assert (state.meta.max, state.meta.duration) == (7, 5000)
    store.release(handover=True)
    assert node.call(6, "getGlobalRateLimit") == {"max": 7, "duration": 5000}
    assert redis_client.get("bull:mail:limiter") is None


def test_limit_of_our_workers_is_shown_meanwhile(place, redis_client):
    """A crash leaves the limit of our own workers in force; the handover takes it away."""
    store = place.open()
    store.limits["mail"] = (3, 2000)
    store.acquire(owner())
    store.apply(Batch(0, [QueueBatch("mail", [change(job("1"))], meta_of(1))]))
    assert redis_client.hmget("bull:mail:meta", "max", "duration") == ["3", "2000"]
    assert next(iter(store.load())).meta.max is None
    store.release(handover=True)
    assert redis_client.hmget("bull:mail:meta", "max", "duration") == [None, None]
