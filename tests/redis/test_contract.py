"""The suite of all stores, on Redis."""

from __future__ import annotations

import pytest

from tests.unit.snapshot.store_contract import StoreContract

pytestmark = pytest.mark.redis


class TestRedisStore(StoreContract):
    """RedisStore keeps what every store promises."""
