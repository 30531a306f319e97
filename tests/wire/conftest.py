"""The real BullMQ beside our store, on one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.redis.conftest import place, redis_client, shared_server
from tests.redis.server import Server
from tests.wire.node_bullmq import NodeBullMQ, why_no_node

__all__ = ["node", "place", "redis_client", "shared_server", "until"]


@pytest.fixture
def node(shared_server: Server, place: object) -> Iterator[NodeBullMQ]:
    """BullMQ 5 and 6 on the emptied server."""
    reason = why_no_node()
    if reason:
        pytest.skip(reason)
    with NodeBullMQ(shared_server.port) as node:
        yield node


def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    """Wait for something that other processes do."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)
