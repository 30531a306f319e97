"""The ways in which a server is reached: encrypted, behind a Sentinel, as a part of a Cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel

from inproc_jobs import Engine, RedisSnapshot, Registry
from inproc_jobs.errors import InvalidOptionTypeError, SnapshotLayoutError, SnapshotUnavailableError
from tests.redis.fake_server import FakeServer
from tests.redis.server import SentinelServer, Server, free_port, why_not
from tests.redis.tls import TlsProxy
from tests.unit.snapshot.store_contract import batch_of, change, ids, job, loaded, owner

pytestmark = [pytest.mark.redis, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def eventually(holds: Callable[[], object]) -> None:
    """Wait for something that a server does by itself."""
    give_up = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.02)


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path) -> Iterator[TlsProxy]:
    """A server behind TLS."""
    with Server() as server, TlsProxy(server.port, tmp_path) as proxy:
        yield proxy


@pytest.mark.parametrize("kind", ["url", "client", "asyncio client"])
async def test_restart_over_tls(tls, kind):
    """Every way to say it ends up encrypted, and jobs come back through it."""
    ways = {"url": str, "client": redis.Redis.from_url, "asyncio client": redis.asyncio.Redis.from_url}
    ran = []
    registry = Registry()
    work = registry.define_job("work", handle=ran.append)

    def engine() -> Engine:
        return Engine(registry=registry, snapshot=RedisSnapshot(ways[kind](tls.url), mode="write_through"))

    async with engine() as first:
        await first.queue("default").pause()
        await work.dispatch("encrypted")
    async with engine() as second:
        await second.queue("default").resume()
        await second.runtime.wait_idle()
    assert ran == ["encrypted"]


def test_certificate_of_a_stranger_is_refused(tls, tmp_path_factory, opened):
    """A server that cannot prove who it is gets nothing."""
    with Server() as server, TlsProxy(server.port, tmp_path_factory.mktemp("other")) as other:
        store = opened(f"rediss://localhost:{other.port}/0?ssl_ca_certs={tls.ca_path}")
        with pytest.raises(SnapshotUnavailableError, match=r"(?i)certificate"):
            store.acquire(owner())


def test_plain_client_of_an_encrypted_server(tls, opened):
    """It says that the server cannot be talked to, and does not hang."""
    store = opened(f"redis://localhost:{tls.port}/0", timeout_ms=500)
    with pytest.raises(SnapshotUnavailableError):
        store.acquire(owner())


# --- Sentinel -----------------------------------------------------------------------------------------------------


class Watched:
    """A master, its replica, and a Sentinel that watches both."""

    def __init__(self, master: Server, replica: Server, sentinel: Server) -> None:
        self.master = master
        self.replica = replica
        self._sentinel = sentinel
        with sentinel.client() as client:
            client.sentinel_monitor("jobs", "127.0.0.1", master.port, 1)
            client.sentinel_set("jobs", "down-after-milliseconds", 300)
            client.sentinel_set("jobs", "failover-timeout", 1_000)
            eventually(lambda: client.sentinel_master("jobs")["num-slaves"] == 1)

    def master_client(self) -> redis.Redis:
        """What an application would hand in."""
        return Sentinel([("127.0.0.1", self._sentinel.port)], socket_timeout=1).master_for("jobs", socket_timeout=1)

    def is_replica_in_charge(self) -> bool:
        with self._sentinel.client() as client:
            return client.sentinel_master("jobs")["port"] == self.replica.port


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Server() as master, Server(replicaof=f"127.0.0.1 {master.port}") as replica, SentinelServer() as sentinel:
        with replica.client() as client:
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
        yield Watched(master, replica, sentinel)


@pytest.mark.slow
async def test_jobs_go_to_the_new_master(watched):
    """The master dies; the jobs go on in memory, and the one that Sentinel names next gets all of them."""
    registry = Registry()
    work = registry.define_job("work", handle=lambda payload: None)
    snapshot = RedisSnapshot(watched.master_client(), every="100ms")
    async with Engine(registry=registry, snapshot=snapshot, shutdown_timeout="20s") as engine:
        await work.dispatch("before", job_id="before", delay="1h")
        with watched.replica.client() as client:
            await asyncio.to_thread(eventually, lambda: client.zrange("bull:default:delayed", 0, -1) == ["before"])
        watched.master.kill()
        await work.dispatch("after", job_id="after", delay="1h")
        await asyncio.to_thread(eventually, watched.is_replica_in_charge)
        await asyncio.to_thread(eventually, lambda: engine.health()["store_error"] is None)
    with watched.replica.client() as client:
        assert set(client.zrange("bull:default:delayed", 0, -1)) == {"before", "after"}


# --- Cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Server]:
    """A Cluster of one node."""
    # Its bus would be at port + 10,000, which need not be a port.
    with Server(**{"cluster-enabled": "yes", "cluster-port": str(free_port())}) as node:
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
            eventually(lambda: client.cluster("info")["cluster_state"] == "ok")
        yield node


def test_prefix_with_a_hash_tag_keeps_a_cluster_in_one_slot(cluster, opened):
    """As on BullMQ, braces around the prefix put all keys of all queues into one slot."""
    store = opened(cluster.url, prefix="{jobs}")
    store.acquire(owner())
    list(store.load())
    store.apply(batch_of(change(job("1")), queue="a"))
    store.apply(batch_of(change(job("2")), queue="b"))
    store.release()
    again = opened(cluster.url, prefix="{jobs}")
    again.acquire(owner())
    assert ids(loaded(again, "a"), "waiting") == ["1"]
    assert ids(loaded(again, "b"), "waiting") == ["2"]


def test_prefix_without_a_hash_tag_is_refused(cluster, opened):
    """Its keys would be spread over slots; the message says what to write instead."""
    store = opened(cluster.url)
    with pytest.raises(SnapshotLayoutError, match=r"\{bull\}"):
        store.acquire(owner())


def test_node_that_is_not_in_charge(opened):
    """It may be again after the next failover, so the jobs go on in memory; the message says who is."""
    with FakeServer(b"-MOVED 3999 10.0.0.7:6381\r\n") as fake:
        store = opened(fake.url, prefix="{jobs}")
        with pytest.raises(SnapshotUnavailableError, match=r"10\.0\.0\.7:6381"):
            store.acquire(owner())


def test_client_of_a_cluster_is_refused(cluster, opened):
    """It has no connection of its own that a write could be sent through as one."""
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.port)
    with pytest.raises(InvalidOptionTypeError, match="node"):
        opened(client)
    client.close()
