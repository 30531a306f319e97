"""One server for all tests of a worker process, emptied before each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inproc_jobs.snapshot.redis_store import RedisStore
from tests.redis.server import Server, why_not


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """A server that no test may end or configure."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Server() as server:
        yield server


class RedisPlace:
    """See `tests.unit.snapshot.store_contract.Place`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._stores: list[RedisStore] = []

    def open(self, *, lease_ms: int = 60_000) -> RedisStore:
        """Another store on the same data."""
        self._stores.append(RedisStore(self.server.url, lease_ms=lease_ms))
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def place(shared_server: Server) -> Iterator[RedisPlace]:
    with shared_server.client() as client:
        client.flushall()
    place = RedisPlace(shared_server)
    yield place
    place.close()


@pytest.fixture
def redis_client(shared_server: Server) -> Iterator[object]:
    with shared_server.client() as client:
        yield client


@pytest.fixture
def opened() -> Iterator[Callable[..., RedisStore]]:
    """Stores that are closed at the end."""
    stores: list[RedisStore] = []

    def opened(url_or_client: object, **more: Any) -> RedisStore:
        stores.append(RedisStore(url_or_client, **more))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()
