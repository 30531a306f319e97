"""The real BullMQ beside our store, on one server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from inproc_jobs.snapshot.redis_store import RedisStore
from tests.npm import why_no_node
from tests.redis.conftest import place, redis_client, shared_server
from tests.redis.server import Server
from tests.wire.node_bullmq import NodeBullMQ

__all__ = ["node", "place", "redis_client", "renewing", "shared_server", "until"]


@pytest.fixture
def node(shared_server: Server, place: object) -> Iterator[NodeBullMQ]:
    """BullMQ 5 and 6 on the emptied server."""
    reason = why_no_node()
    if reason:
        pytest.skip(reason)
    with NodeBullMQ(shared_server.port) as node:
        yield node


@contextmanager
def renewing(store: RedisStore) -> Iterator[None]:
    """The owner is alive: its lease is renewed as its own thread would, however slow this machine is."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(store.lease_ms / 5_000):
            store.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    """Wait for something that other processes do."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)
