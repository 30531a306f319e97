"""A store that is away, slow, full, read-only, damaged or not ours: what is told, and that nothing is half done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from inproc_jobs import Engine, RedisSnapshot, Registry
from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotLayoutError, SnapshotUnavailableError
from inproc_jobs.snapshot.records import Batch, JobChange, KeyRecord, QueueBatch
from inproc_jobs.snapshot.redis_store import RedisStore
from inproc_jobs.snapshot.store import StoreEmptiedError
from tests.redis.fake_server import FakeServer
from tests.redis.server import Server, free_port, why_not
from tests.unit.snapshot.store_contract import NOW, batch_of, change, ids, job, loaded, meta_of, owner

pytestmark = [pytest.mark.redis, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@pytest.fixture
def server():
    """A server that a test may do anything to."""
    with Server() as server:
        yield server


def dumped(client) -> dict[str, bytes]:
    """Everything that a server holds."""
    return {key: client.dump(key) for key in client.scan_iter()}


# --- away ---------------------------------------------------------------------------------------------------------


def test_nobody_listens(opened):
    """A server that is not there has certainly written nothing."""
    store = opened(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(SnapshotUnavailableError) as caught:
        store.acquire(owner())
    assert caught.value.outcome == "not written"


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-BUSY Redis is busy running a script.\r\n",
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        b"-MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist to disk.\r\n",
        b"-NOAUTH Authentication required.\r\n",
        # How Redis 6.2 tells an error inside a script.
        b"-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a replica.\r\n",
    ],
)
def test_server_that_is_not_ready(opened, answer):
    """It is told as something that passes, nothing was written, and it is never taken for an empty store."""
    with FakeServer(answer) as fake:
        store = opened(fake.url)
        with pytest.raises(SnapshotUnavailableError) as caught:
            store.acquire(owner())
        assert caught.value.outcome == "not written"
        with pytest.raises(SnapshotUnavailableError):
            list(store.load())
        store.close()


def test_answer_that_never_comes_back(opened):
    """A connection that breaks after the call was sent leaves the outcome open."""
    with FakeServer(b"") as fake:
        store = opened(fake.url)
        with pytest.raises(SnapshotUnavailableError) as caught:
            store.acquire(owner())
        assert caught.value.outcome == "unknown"
        store.close()


@pytest.mark.slow
def test_server_that_hangs(server, opened):
    """A call ends at its timeout with an open outcome; what had arrived is not written twice when it is repeated."""
    store = opened(server.url, timeout_ms=400)
    store.acquire(owner())
    store.apply(batch_of(change(job("0"))))
    server.freeze()
    started = time.monotonic()
    with pytest.raises(SnapshotUnavailableError) as caught:
        store.apply(batch_of(change(job("1")), change(job("2"))))
    assert caught.value.outcome == "unknown"
    assert time.monotonic() - started < 5
    server.thaw()
    store.apply(batch_of(change(job("1"), "?"), change(job("2"), "?")))
    assert ids(loaded(store), "waiting") == ["0", "1", "2"]


@pytest.mark.slow
def test_server_that_was_killed_and_comes_back(opened):
    """With its data, the owner goes on, even when the lease ran out meanwhile."""
    with Server(appendonly="yes", appendfsync="always") as server:
        store = opened(server.url, lease_ms=500)
        store.acquire(owner())
        store.apply(batch_of(change(job("1"))))
        server.kill()
        with pytest.raises(SnapshotUnavailableError):
            store.apply(batch_of(change(job("2"))))
        time.sleep(0.7)
        server.start()
        store.apply(batch_of(change(job("2"), "?")))
        assert ids(loaded(store), "waiting") == ["1", "2"]
        store.renew()
        store.close()


def test_server_that_comes_back_empty(server, opened):
    """It is told apart from a lost lease: whoever has everything in memory can write it anew."""
    store = opened(server.url)
    first = store.acquire(owner())
    store.apply(batch_of(change(job("1"))))
    server.kill()
    server.start()
    with pytest.raises(StoreEmptiedError):
        store.apply(batch_of(change(job("1", "active"), "waiting")))
    with server.client() as client:
        assert client.dbsize() == 0
    assert store.acquire(owner()) > first
    store.apply(batch_of(change(job("1", "active"), "?")))
    assert ids(loaded(store), "active") == ["1"]


def test_server_that_evicts_is_told(server, opened):
    """What is evicted is lost; BullMQ warns of it as well."""
    store = opened(server.url)
    store.acquire(owner())
    assert store.warnings == []
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    for _ in range(2):
        store.release()
        store.acquire(owner())
    assert len(store.warnings) == 1
    assert "allkeys-lru" in store.warnings[0]


@pytest.mark.parametrize(("version", "refused"), [("6.0.16", True), ("5.0", True), ("6.2.0", False), ("10.1", False)])
def test_server_that_is_too_old(opened, monkeypatch, place, version, refused):
    """It says so at once, not in the middle of a script."""
    store = opened(place.server.url)
    monkeypatch.setattr(store._link, "info", lambda: {"redis_version": version})
    if refused:
        with pytest.raises(SnapshotLayoutError, match=re.escape(version)):
            store.acquire(owner())
    else:
        store.acquire(owner())


def test_user_who_may_not_ask(server, opened):
    """A server that tells nothing of itself is used all the same."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-info")
    store = opened(f"redis://app:pw@127.0.0.1:{server.port}/0")
    store.acquire(owner())
    store.apply(batch_of(change(job("1"))))


@pytest.mark.slow
async def test_handover_to_a_dead_server(server):
    """It says that it did not come about, also when nothing had to be stored any more."""
    registry = Registry()
    work = registry.define_job("work", handle=lambda payload: None)
    for payloads in ([], [1]):
        engine = Engine(registry=registry, snapshot=RedisSnapshot(server.url, every="20ms", timeout="300ms"))
        await engine.astart()
        for payload in payloads:
            await work.dispatch(payload, delay="1h")
        assert await engine.save_now(5)
        server.kill()
        with pytest.raises(SnapshotUnavailableError, match="not handed over"):
            await engine.handover("500ms")
        server.start()


def test_full_server(server, opened):
    """Nothing of a write that does not fit is there; it goes through when there is room again."""
    store = opened(server.url)
    store.acquire(owner())
    store.apply(batch_of(change(job("1"))))
    with server.client() as client:
        client.config_set("maxmemory", "100kb")
        before = client.dbsize()
        with pytest.raises(SnapshotUnavailableError) as caught:
            store.apply(batch_of(change(job("1", "active"), "waiting"), change(job("2"))))
        assert caught.value.outcome == "not written"
        assert client.dbsize() == before
        assert client.lrange("bull:mail:wait", 0, -1) == ["1"]
        client.config_set("maxmemory", "0")
    store.apply(batch_of(change(job("1", "active"), "waiting"), change(job("2"))))
    assert ids(loaded(store), "active") == ["1"]


def test_server_that_became_a_replica(server, opened):
    """A read-only replica takes nothing, and says so."""
    store = opened(server.url)
    store.acquire(owner())
    with server.client() as client:
        client.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(SnapshotUnavailableError) as caught:
            store.apply(batch_of(change(job("1"))))
        assert caught.value.outcome == "not written"
        client.replicaof("NO", "ONE")
    store.apply(batch_of(change(job("1"))))


def test_connections_that_are_cut(server, opened):
    """The next call makes a new one."""
    store = opened(server.url)
    store.acquire(owner())
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            store.apply(batch_of(change(job("1"))))
        except SnapshotUnavailableError:
            store.apply(batch_of(change(job("1"), "?")))
        client.script_flush()
        store.apply(batch_of(change(job("2"))))
    assert ids(loaded(store), "waiting") == ["1", "2"]


# --- damaged or not ours ------------------------------------------------------------------------------------------


def test_newer_layout_is_left_untouched(place, redis_client):
    """A store written by a later version is refused as it is."""
    redis_client.set("bull::inproc-jobs:layout", "99")
    redis_client.hset("bull:mail:1", "name", "n")
    before = dumped(redis_client)
    with pytest.raises(SnapshotLayoutError, match="99"):
        place.open().acquire(owner())
    assert dumped(redis_client) == before


@pytest.mark.parametrize(
    ("name", "kind"), [("wait", "set"), ("delayed", "list"), ("meta", "string"), ("active", "zset")]
)
def test_wrong_type_where_a_queue_has_its_keys(place, redis_client, name, kind):
    """The key and both types are named; neither reading nor writing changes anything."""
    key = f"bull:mail:{name}"
    {
        "set": lambda: redis_client.sadd(key, "x"),
        "list": lambda: redis_client.rpush(key, "x"),
        "string": lambda: redis_client.set(key, "x"),
        "zset": lambda: redis_client.zadd(key, {"x": 1}),
    }[kind]()
    store = place.open()
    store.acquire(owner())
    before = dumped(redis_client)
    with pytest.raises(SnapshotLayoutError, match=f"{key} is a {kind}"):
        list(store.load())
    with pytest.raises(SnapshotLayoutError, match=f"{key} is a {kind}"):
        store.apply(batch_of(change(job("1")), change(job("2", "delayed", NOW))))
    assert dumped(redis_client) == before


@pytest.mark.parametrize("name", ["wait", "meta", "delayed", "repeat", "completed", "id"])
async def test_refused_start_lets_go_of_the_lease(place, redis_client, name):
    """The next start says the same, not that this very process is the owner."""
    registry = Registry()
    registry.define_job("work", handle=lambda payload: None, queue="mail")
    redis_client.hset("bull:mail:meta", "opts.maxLenEvents", "10000")
    redis_client.delete(f"bull:mail:{name}")
    redis_client.set(f"bull:mail:{name}", "x")
    for _ in range(2):
        with pytest.raises(SnapshotLayoutError, match=f"bull:mail:{name}"):
            await Engine(registry=registry, snapshot=RedisSnapshot(place.server.url)).astart()
    assert not redis_client.exists("bull::inproc-jobs:lease")


def test_counter_that_is_no_number(place, redis_client):
    """It is named, as a key of a wrong type is."""
    redis_client.hset("bull:mail:meta", "opts.maxLenEvents", "10000")
    redis_client.set("bull:mail:id", "abc")
    store = place.open()
    store.acquire(owner())
    with pytest.raises(SnapshotLayoutError, match=r"bull:mail:id is a text where BullMQ has a number"):
        list(store.load())


def test_wrong_type_where_a_job_would_be(place, redis_client):
    """Nothing of the whole write is there."""
    redis_client.set("bull:mail:2", "mine")
    store = place.open()
    store.acquire(owner())
    before = sorted(redis_client.keys())
    with pytest.raises(SnapshotLayoutError, match="bull:mail:2 is a string"):
        store.apply(batch_of(change(job("1")), change(job("2"))))
    assert sorted(redis_client.keys()) == before


def test_foreign_keys_are_left_alone(place, redis_client):
    """What is under the prefix and no queue is neither read nor changed."""
    redis_client.set("bull:something", "x")
    redis_client.set(b"bull:\xff\xfe:meta", "x")
    redis_client.rpush("bull:other:thing:list", "x")
    store = place.open()
    store.acquire(owner())
    assert list(store.load()) == []
    store.apply(batch_of(change(job("1"))))
    assert ids(loaded(store), "waiting") == ["1"]
    assert redis_client.get("bull:something") == "x"


def test_damaged_jobs_are_told_and_kept_as_they_are(place, redis_client):
    """Each with a reason; the others load, and a later write leaves the damaged ones where they are."""
    store = place.open()
    store.acquire(owner())
    store.apply(
        batch_of(*(change(job(id)) for id in ("good", "opts", "data", "noname", "parent", "gone", "bytes", "inproc")))
    )
    redis_client.hset("bull:mail:opts", "opts", '{"attempts":')
    redis_client.hset("bull:mail:data", "data", "(1, 2)")
    redis_client.hdel("bull:mail:noname", "name")
    redis_client.hset("bull:mail:parent", mapping={"parentKey": "bull:mail:p", "parent": "[1]"})
    redis_client.delete("bull:mail:gone")
    redis_client.hset("bull:mail:bytes", "data", b"\xff\xfe")
    redis_client.hset("bull:mail:inproc", "inproc", "[]")
    redis_client.delete("bull:mail:kind")
    redis_client.set("bull:mail:kind", "text")
    redis_client.lpush("bull:mail:wait", "kind")
    before = {
        id: redis_client.dump(f"bull:mail:{id}")
        for id in ("opts", "data", "noname", "parent", "bytes", "inproc", "kind")
    }
    state = loaded(store)
    assert ids(state, "waiting") == ["good"]
    assert sorted(state.unreadable) == ["bytes", "data", "gone", "inproc", "kind", "noname", "opts", "parent"]
    assert "missing" in state.unreadable["gone"]
    assert "WRONGTYPE" in state.unreadable["kind"]
    store.apply(batch_of(change(job("good", "active"), "waiting")))
    assert {id: redis_client.dump(f"bull:mail:{id}") for id in before} == before
    assert len(redis_client.lrange("bull:mail:wait", 0, -1)) == 8


def test_no_code_in_data(place, redis_client):
    """A pickle in any field is data that cannot be read, and is not run."""
    import pickle

    evil = pickle.dumps(print, protocol=0)
    store = place.open()
    store.acquire(owner())
    store.apply(batch_of(*(change(job(id)) for id in ("data", "opts", "progress", "result", "stacktrace"))))
    for id, field in (
        ("data", "data"),
        ("opts", "opts"),
        ("progress", "progress"),
        ("result", "returnvalue"),
        ("stacktrace", "stacktrace"),
    ):
        redis_client.hset(f"bull:mail:{id}", field, evil)
    state = loaded(store)
    assert sorted(state.unreadable) == ["data", "opts", "progress"]
    assert next(one for one in state.jobs if one.id == "stacktrace").stacktrace is None


def test_evicted_records(place, redis_client):
    """A server that evicts has lost what it evicted; the rest is read, and the next write puts the job back."""
    store = place.open()
    store.acquire(owner())
    store.apply(batch_of(*(change(job(id)) for id in "abc")))
    redis_client.delete("bull:mail:b", "bull:mail:id", "bull:mail:limiter")
    assert ids(loaded(store), "waiting") == ["a", "c"]
    store.apply(batch_of(change(job("b", "active"), "waiting"), meta=meta_of(9)))
    state = loaded(store)
    assert ids(state, "active") == ["b"]
    assert ids(state, "waiting") == ["a", "c"]
    assert state.meta.counter == 9


def test_large_payloads_are_sent_once(place, redis_client):
    """A job's steps do not carry its payload again; where it was taken away meanwhile, the whole record is written."""
    data = b'"' + b"x" * 300_000 + b'"'
    store = place.open()
    store.acquire(owner())
    store.apply(batch_of(change(job("1", data=data))))
    before = redis_client.info("stats")["total_net_input_bytes"]
    store.apply(batch_of(change(job("1", "active", data=data), "waiting")))
    assert redis_client.info("stats")["total_net_input_bytes"] - before < 100_000
    redis_client.delete("bull:mail:1")
    store.apply(batch_of(change(job("1", "delayed", NOW, data=data), "active")))
    store.apply(batch_of(change(job("1", "waiting", data=b'"changed"'), "delayed")))
    assert [one.data for one in loaded(store).jobs] == [b'"changed"']
    store.apply(batch_of(change(job("1", "active", data=data), "waiting")))
    assert [one.data for one in loaded(store).jobs] == [data]


def test_two_places(place, redis_client):
    """A job that stands in two places is in the one that BullMQ finds first."""
    store = place.open()
    store.acquire(owner())
    store.apply(batch_of(change(job("1", "delayed", NOW + 9_000))))
    redis_client.lpush("bull:mail:wait", "1")
    assert [(one.id, one.state) for one in loaded(store).jobs] == [("1", "delayed")]


# --- owners -------------------------------------------------------------------------------------------------------


def test_owner_that_is_certainly_dead_is_not_waited_for(place):
    """A process of this machine that was killed leaves a lease; its successor need not wait for it to run out."""
    script = (
        "import os, sys\n"
        "from inproc_jobs.snapshot.redis_store import RedisStore\n"
        "from inproc_jobs.snapshot.store import Owner\n"
        "RedisStore(sys.argv[1], lease_ms=600_000).acquire(Owner('here', os.getpid(), 1))\n"
        "print('mine', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, place.server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mine\n"
        store = place.open()
        with pytest.raises(LeaseHeldError) as caught:
            store.acquire(owner())
        assert (caught.value.host, caught.value.pid) == ("here", process.pid)
        process.kill()
        process.wait()
    store.acquire(owner())


def test_owner_of_elsewhere_is_waited_for(place, redis_client):
    """A process id of another machine says nothing here."""
    first = place.open()
    first.acquire(owner(pid=2**22 + 1))
    token = redis_client.get("bull::inproc-jobs:lease")
    redis_client.set("bull::inproc-jobs:lease", token.replace('"space":"', '"space":"elsewhere'), px=60_000)
    with pytest.raises(LeaseHeldError):
        place.open().acquire(owner())


def test_two_engines_of_one_process(place):
    """They are two owners, whatever they say of themselves."""
    first, second = place.open(), place.open()
    first.acquire(owner())
    with pytest.raises(LeaseHeldError):
        second.acquire(owner())
    with pytest.raises(LeaseLostError):
        second.apply(batch_of(change(job("1"))))


@pytest.mark.slow
def test_worker_that_came_while_the_lease_was_out(place, redis_client):
    """A lease is not taken up again once a BullMQ worker has started something."""
    store = place.open(lease_ms=300)
    store.acquire(owner())
    store.apply(batch_of(change(job("1"))))
    time.sleep(0.5)
    redis_client.xadd("bull:mail:events", {"event": "active", "jobId": "1", "prev": "waiting"})
    with pytest.raises(LeaseLostError, match="BullMQ worker"):
        store.apply(batch_of(change(job("1", "active"), "waiting")))
    assert redis_client.lrange("bull:mail:wait", 0, -1) == ["1"]


def test_prefixes_do_not_see_each_other(place, redis_client):
    """Two owners under two prefixes, one of which is a pattern that would match the other."""
    url = place.server.url
    stores = [RedisStore(url, prefix=prefix) for prefix in ("app", "a*", "app:x")]
    for number, store in enumerate(stores):
        store.acquire(owner())
        store.apply(batch_of(change(job(str(number)))))
    for number, store in enumerate(stores):
        assert ids(loaded(store), "waiting") == [str(number)]
        assert [state.queue for state in store.load()] == ["mail"]
        store.release()
        store.close()


def test_locks_and_limit_live_as_long_as_the_lease(place, redis_client):
    """They are renewed together, and go when a job ends."""
    store = place.open(lease_ms=60_000)
    store.acquire(owner())
    store.apply(batch_of(change(job("1", "active"))))
    for key in ("bull:mail:1:lock", "bull:mail:limiter", "bull::inproc-jobs:lease"):
        redis_client.pexpire(key, 5_000)
    store.renew()
    for key in ("bull:mail:1:lock", "bull:mail:limiter", "bull::inproc-jobs:lease"):
        assert redis_client.pttl(key) > 50_000
    store.apply(batch_of(change(job("1", "completed"), "active")))
    assert not redis_client.exists("bull:mail:1:lock")
    assert not redis_client.exists("bull:mail:stalled")


def test_release_without_handover_keeps_active_jobs_active(place, redis_client):
    """They are stalled ones to whoever comes next, without a lock that would delay that."""
    store = place.open()
    store.acquire(owner())
    store.apply(batch_of(change(job("1", "active")), keys={"d": KeyRecord("1", None)}))
    store.release()
    assert redis_client.lrange("bull:mail:active", 0, -1) == ["1"]
    assert redis_client.smembers("bull:mail:stalled") == {"1"}
    assert not redis_client.exists("bull:mail:1:lock", "bull:mail:limiter", "bull::inproc-jobs:lease")


def test_rate_window_holds_again_after_a_release(place, redis_client):
    """What is left of a window is BullMQ's to respect."""
    store = place.open()
    store.acquire(owner())
    now = round(time.time() * 1000)
    meta = meta_of(1, max=5, duration=60_000, limiter_count=4, limiter_until_ms=now + 30_000)
    store.apply(Batch(now, [QueueBatch("mail", [JobChange("x", None, "?")], meta)]))
    assert redis_client.get("bull:mail:limiter") == "9007199254740991"
    store.release(handover=True)
    assert redis_client.get("bull:mail:limiter") == "4"
    assert 20_000 < redis_client.pttl("bull:mail:limiter") <= 30_000
    assert redis_client.hget("bull:mail:meta", "max") == "5"


# --- connections --------------------------------------------------------------------------------------------------


def test_clients_that_are_handed_in(server, opened):
    """A synchronous client, one that decodes, one of asyncio: their settings count, none is closed by us."""
    import redis.asyncio

    clients = [
        server.client(db=3),
        server.client(db=3, decode_responses=False),
        redis.asyncio.Redis(host="127.0.0.1", port=server.port, db=3, decode_responses=True),
        redis.asyncio.Redis.from_url(f"redis://127.0.0.1:{server.port}/3"),
    ]
    for number, client in enumerate(clients):
        store = opened(client)
        assert store.description == f"Redis at 127.0.0.1:{server.port}/3"
        store.acquire(owner())
        store.apply(batch_of(change(job(str(number)))))
        assert len(loaded(store).jobs) == number + 1
        store.release()
        store.close()
    with server.client(db=0) as client:
        assert client.dbsize() == 0
    assert clients[0].ping()
    for client in clients[:2]:
        client.close()


def test_password_is_used_and_never_told(opened):
    """Neither a description nor an error has it."""
    with Server() as server:
        with server.client() as client:
            client.config_set("requirepass", "s3cret")
        store = opened(f"redis://:s3cret@127.0.0.1:{server.port}/0")
        store.acquire(owner())
        assert "s3cret" not in store.description
        wrong = opened(f"redis://:wrong1@127.0.0.1:{server.port}/0")
        with pytest.raises(SnapshotUnavailableError) as caught:
            wrong.acquire(owner())
        assert "wrong1" not in str(caught.value)
        store.close()
        wrong.close()


def test_unix_socket(opened):
    """A server on a socket file, as on one machine."""
    with Server() as server:
        path = server.folder / "s"
        server.kill()
        server.settings |= {"unixsocket": str(path)}
        server.start()
        store = opened(f"unix://{path}?db=2")
        assert store.description == f"Redis at {path}, database 2"
        store.acquire(owner())
        store.apply(batch_of(change(job("1"))))
        store.close()


def test_tls_of_a_url_and_of_a_client(opened):
    """Encrypted stays encrypted, with the same certificates, whichever way it was said."""
    import redis
    import redis.asyncio

    url = "rediss://:pw@redis.example:6380/1?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required"
    for given in (url, redis.Redis.from_url(url), redis.asyncio.Redis.from_url(url)):
        store = opened(given)
        for client in (store._link.client, store._renewing.client):
            pool = client.connection_pool
            assert issubclass(pool.connection_class, redis.SSLConnection)
            settings = pool.connection_kwargs
            assert (settings["host"], settings["port"], settings["db"]) == ("redis.example", 6380, 1)
            assert (settings["ssl_ca_certs"], settings["password"]) == ("/ca.pem", "pw")
            assert settings["socket_timeout"] == 5
        assert store.description == "Redis at redis.example:6380/1"


def test_what_is_no_client(opened):
    """It is refused where it is given."""
    with pytest.raises(TypeError, match="int"):
        RedisStore(5)


def test_importing_the_package_does_not_load_redis():
    """Only those who ask for a snapshot in Redis pay for it."""
    script = (
        "import sys, inproc_jobs\n"
        "from inproc_jobs import Engine\n"
        "import inproc_jobs.snapshot.records, inproc_jobs.snapshot.bullmq_writing\n"
        "assert 'redis' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": "."})
