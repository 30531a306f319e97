"""What BullMQ 5 and 6, and the package for Python, have left is read whole; what others add meanwhile is taken in."""

from __future__ import annotations

import time

import pytest

from inproc_jobs.snapshot.records import Batch, JobChange, JobRecord, QueueBatch, QueueState
from tests.unit.snapshot.store_contract import change, ids, job, loaded, meta_of, owner
from tests.wire.conftest import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]
bullmq = pytest.importorskip("bullmq")


def adopted(place) -> tuple[object, QueueState]:
    store = place.open()
    store.acquire(owner())
    return store, loaded(store)


def one(state: QueueState, id: str) -> JobRecord:
    return next(record for record in state.jobs if record.id == id)


@pytest.mark.parametrize("version", [6, 5])
def test_a_queue_of_bullmq_is_adopted_and_given_back(node, place, redis_client, version):
    """Every kind of job is read with all it has; after a handover BullMQ runs what is left, each job once."""
    before = round(time.time() * 1000)
    add = lambda name, data, **opts: node.call(version, "add", name, data, opts)["id"]  # noqa: E731
    done = add("ok", {"n": 1})
    failing = add("bad", {"fail": 9}, attempts=3, backoff={"type": "fixed", "delay": 100_000, "jitter": 0.5})
    final = add("bad", {"fail": 9}, keepLogs=2, removeOnFail={"count": 5, "age": 1000})
    node.start(version, name="walter")
    until(lambda: len(node.log()["ran"]) == 3 and node.call(version, "getJobCounts")["active"] == 0)
    node.stop()
    node.job(version, final, "log", "row 1")
    node.job(version, final, "updateProgress", {"at": 5})
    first = add("first", {"x": "ü"})
    second = add("second", None, lifo=True, jobId="lifo-1")
    delayed = add("delayed", [1, 2], delay=60_000, deduplication={"id": "d:1", "ttl": 50_000})
    prioritized = [add("p", {}, priority=priority) for priority in (5, 1, 5)]
    node.call(
        version,
        "upsertJobScheduler",
        "every",
        {"every": 30_000, "limit": 4},
        {"name": "tick", "data": {"s": 1}, "opts": {"attempts": 4, "priority": 3}},
    )
    node.call(
        version, "upsertJobScheduler", "cron", {"pattern": "0 0 9 * * *", "tz": "Europe/Berlin"}, {"name": "tock"}
    )
    node.flow(
        version,
        {
            "name": "sum",
            "queueName": "mail",
            "data": {},
            "opts": {"jobId": "sum-1"},
            "children": [
                {
                    "name": "part",
                    "queueName": "mail",
                    "data": {"c": 1},
                    "opts": {"jobId": "part-1", "failParentOnFailure": True},
                },
                {"name": "part", "queueName": "pdf", "data": {"c": 2}, "opts": {"jobId": "part-2"}},
            ],
        },
    )
    node.call(version, "setGlobalConcurrency", 3)

    store, state = adopted(place)
    assert state.unreadable == {}
    assert ids(state, "waiting")[0] == second
    assert [id for id in ids(state, "waiting") if id in {first, "part-1"}] == [first, "part-1"]
    assert [id for id in ids(state, "prioritized") if id in prioritized] == [
        prioritized[1],
        prioritized[0],
        prioritized[2],
    ]
    assert one(state, first).data == '{"x":"ü"}'.encode()
    assert one(state, second).data == b"null"
    assert one(state, second).opts["lifo"] is True
    record = one(state, done)
    assert (record.state, record.result, record.attempts_made, record.worker_name) == (
        "completed",
        b'{"done":"%s"}' % done.encode(),
        1,
        "walter",
    )
    assert before <= record.finished_on <= time.time() * 1000
    record = one(state, failing)
    assert (record.state, record.failed_reason, record.attempts_made, record.opts["backoff"]) == (
        "delayed",
        "told to fail 0",
        1,
        {"type": "fixed", "delay": 100_000, "jitter": 0.5},
    )
    assert len(record.stacktrace) == 1
    assert record.score >= before + 50_000
    record = one(state, final)
    assert (record.state, record.logs, record.progress, record.opts["keepLogs"], record.opts["removeOnFail"]) == (
        "failed",
        ["row 1"],
        b'{"at":5}',
        2,
        {"count": 5, "age": 1000},
    )
    record = one(state, delayed)
    assert (record.score, record.deduplication_id) == (record.timestamp + 60_000, "d:1")
    assert state.keys["d:1"].owner == delayed
    assert 0 < state.keys["d:1"].until_ms - time.time() * 1000 <= 50_000
    assert (state.schedulers["every"].repeat["every"], state.schedulers["every"].repeat["limit"]) == (30_000, 4)
    assert state.schedulers["every"].template == {"attempts": 4, "priority": 3}
    assert (state.schedulers["cron"].repeat["pattern"], state.schedulers["cron"].repeat["tz"]) == (
        "0 0 9 * * *",
        "Europe/Berlin",
    )
    tick = one(state, f"repeat:every:{state.schedulers['every'].next_ms}")
    assert (tick.name, tick.data, tick.repeat["every"], tick.repeat["priority"]) == ("tick", b'{"s":1}', 30_000, 3)
    parent = one(state, "sum-1")
    assert (parent.state, sorted(parent.pending)) == ("waiting-children", ["bull:mail:part-1", "bull:pdf:part-2"])
    assert one(state, "part-1").parent == {"id": "sum-1", "queue": "mail", "policy": "fpof"}
    assert state.meta.concurrency == 3
    assert state.meta.counter >= int(prioritized[2])

    # Write some back as they are, give the queue up, and let BullMQ go on.
    changes = [
        change(record, record.state) for record in state.jobs if record.state in {"waiting", "delayed", "prioritized"}
    ]
    store.apply(Batch(before, [QueueBatch("mail", changes, state.meta, schedulers=dict(state.schedulers))]))
    store.release(handover=True)
    node.start(version)
    node.start(version, queue="pdf", worker="pdf")
    until(lambda: {"sum-1", tick.id, *prioritized} <= {ran["id"] for ran in node.log()["ran"]})
    log = node.stop()
    assert log["errors"] == []
    ran = [ran["id"] for ran in log["ran"]]
    assert sorted(set(ran)) == sorted([second, first, "part-1", "sum-1", *prioritized, tick.id])
    assert len(ran) == len(set(ran))
    assert ran[:3] == [second, first, "part-1"]
    assert next(one["children"] for one in log["ran"] if one["id"] == "sum-1") == {
        "bull:mail:part-1": {"done": "part-1"},
        "bull:pdf:part-2": {"done": "part-2"},
    }


def test_list_of_a_paused_queue_of_version_5(node, place, redis_client):
    """Jobs that BullMQ 5 put aside for a pause are waiting ones; the queue stays paused."""
    waiting = [node.call(5, "add", "n", {})["id"] for _ in range(2)]
    node.call(5, "pause")
    waiting.append(node.call(5, "add", "n", {})["id"])
    assert redis_client.llen("bull:mail:paused") == 3
    store, state = adopted(place)
    assert ids(state, "waiting") == waiting
    assert state.meta.paused
    assert not redis_client.exists("bull:mail:paused")
    store.release()


async def test_jobs_of_the_python_package(shared_server, place):
    """The same of the package on PyPI, which writes options of its own taste; its worker runs what we give back."""
    queue = bullmq.Queue("mail", {"connection": shared_server.url})
    first = await queue.add("py", {"a": "ü"}, {"attempts": 2})
    later = await queue.add("py", {"a": 2}, {"delay": 300, "priority": 2})
    store, state = adopted(place)
    assert one(state, first.id).opts["attempts"] == 2
    assert one(state, first.id).data in {'{"a":"ü"}'.encode(), b'{"a":"\\u00fc"}'}
    assert one(state, later.id).priority == 2
    record = job("ours", data=b'{"a":3}')
    store.apply(Batch(0, [QueueBatch("mail", [change(record)], state.meta)]))
    ran = []

    async def process(job, token):
        ran.append((job.id, job.data))

    worker = bullmq.Worker("mail", process, {"connection": shared_server.url})
    import asyncio

    await asyncio.sleep(0.7)
    assert ran == []
    store.release(handover=True)
    await worker.close(force=True)
    worker = bullmq.Worker("mail", process, {"connection": shared_server.url})
    for _ in range(200):
        if len(ran) == 3:
            break
        await asyncio.sleep(0.05)
    await worker.close()
    await queue.close()
    assert [id for id, _ in ran] == [first.id, "ours", later.id]
    assert ran[1][1] == {"a": 3}


@pytest.mark.parametrize("version", [6, 5])
def test_foreign_jobs_are_taken_in_and_never_overwritten(node, place, redis_client, version):
    """A producer that knows nothing of us adds; its jobs are reported once, and no id of theirs is written over."""
    store = place.open()
    store.acquire(owner())
    store.apply(Batch(0, [QueueBatch("mail", [change(job("1"))], meta_of(1))]))
    assert store.poll_foreign() == []
    auto = node.call(version, "add", "auto", {"n": 1}, {})["id"]
    node.call(
        version,
        "add",
        "late",
        {"n": 2},
        {"delay": 60_000, "jobId": "late-1", "deduplication": {"id": "x", "ttl": 9_000}},
    )
    node.call(version, "add", "p", {"n": 3}, {"priority": 3, "jobId": "prio-1"})
    node.call(version, "add", "same", {"n": 4}, {"jobId": "both-1"})
    node.call(version, "add", "dup", {}, {"jobId": "both-1"})
    assert int(auto) > 1_000, "ids of others come from beyond ours"
    # Before we have looked, somebody dispatches an id of ours that they have taken.
    store.apply(Batch(0, [QueueBatch("mail", [change(job("both-1", data=b'"ours"')), change(job("2"))], meta_of(2))]))
    assert redis_client.hget("bull:mail:both-1", "data") == '{"n":4}'
    assert redis_client.lrange("bull:mail:wait", 0, -1).count("both-1") == 1
    [state] = store.poll_foreign()
    assert sorted(record.id for record in state.jobs) == sorted([auto, "late-1", "prio-1", "both-1"])
    assert one(state, "late-1").state == "delayed"
    assert one(state, "prio-1").priority == 3
    assert state.keys["x"].owner == "late-1"
    assert state.meta.counter >= int(auto)
    assert store.poll_foreign() == []
    store.apply(Batch(0, [QueueBatch("mail", [change(job("both-1", "active"), "waiting")])]))
    assert redis_client.hget("bull:mail:both-1", "data") == '{"n":4}'
    assert "both-1" in redis_client.lrange("bull:mail:wait", 0, -1)
    # What was taken in is ours from now on, and an id of ours never goes back.
    store.apply(Batch(0, [QueueBatch("mail", [JobChange("prio-1", None, "prioritized")], state.meta)]))
    assert not redis_client.exists("bull:mail:prio-1")
    assert int(node.call(version, "add", "auto", {}, {})["id"]) > int(auto)
    store.release()


def test_ids_of_an_adopted_queue_do_not_meet(node, place):
    """From the moment of adoption a foreign producer's ids are beyond those that we may draw before our first write."""
    assert node.call(6, "add", "before", {})["id"] == "1"
    store, state = adopted(place)
    assert state.meta.counter == 1
    assert int(node.call(6, "add", "meanwhile", {})["id"]) > 1_000
    store.release()
    # Without a foreign id the reserve is given back.
    again = node.call(6, "add", "after", {})["id"]
    store, state = adopted(place)
    assert state.meta.counter == int(again)
    store.release()
    assert int(node.call(6, "add", "later", {})["id"]) == int(again) + 1


def test_deleting_an_unknown_write_spares_a_foreign_job(node, place, redis_client):
    """A deletion of what may have been written does not hit a job that somebody else added under that id."""
    store = place.open()
    store.acquire(owner())
    store.apply(Batch(0, [QueueBatch("mail", [change(job("1"))], meta_of(1))]))
    node.call(6, "add", "theirs", {}, {"jobId": "x-1"})
    store.apply(Batch(0, [QueueBatch("mail", [JobChange("x-1", None, "?")])]))
    assert redis_client.hget("bull:mail:x-1", "name") == "theirs"
    assert "x-1" in redis_client.lrange("bull:mail:wait", 0, -1)


def test_jobs_of_a_queue_that_we_had_not_written_yet(node, place):
    """What came into a queue before our first write to it is taken in as well."""
    store = place.open()
    store.acquire(owner())
    assert list(store.load()) == []
    theirs = node.call(6, "add", "theirs", {}, {"jobId": "theirs-1"})["id"]
    store.apply(Batch(0, [QueueBatch("mail", [change(job("7"))], meta_of(7))]))
    [state] = store.poll_foreign()
    assert [record.id for record in state.jobs] == [theirs]
    assert store.poll_foreign() == []


def test_foreign_scheduler_and_flow_are_taken_in(node, place):
    """An upsert of a scheduler and a flow of a foreign producer come with all that belongs to them."""
    store = place.open()
    store.acquire(owner())
    store.apply(Batch(0, [QueueBatch("mail", [], meta_of(1))]))
    node.call(6, "upsertJobScheduler", "s", {"every": 60_000, "offset": 10}, {"name": "tick"})
    node.flow(
        6,
        {
            "name": "sum",
            "queueName": "mail",
            "opts": {"jobId": "sum-1"},
            "children": [{"name": "part", "queueName": "mail", "opts": {"jobId": "part-1"}}],
        },
    )
    [state] = store.poll_foreign()
    assert state.schedulers["s"].repeat["every"] == 60_000
    assert one(state, f"repeat:s:{state.schedulers['s'].next_ms}").scheduler_id == "s"
    assert one(state, "sum-1").pending == ["bull:mail:part-1"]
    assert one(state, "part-1").pending is None
