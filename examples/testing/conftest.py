"""An HTTP client for the app under test, on the same event loop as the jobs."""

from collections.abc import AsyncIterator

import httpx2
import pytest
import shop

from inproc_jobs.testing import Harness


@pytest.fixture(autouse=True)
def outside_world(monkeypatch: pytest.MonkeyPatch) -> shop.MailServer:
    server = shop.MailServer()
    monkeypatch.setattr(shop, "mail", server)
    monkeypatch.setattr(shop, "reindexed", [])
    monkeypatch.setattr(shop, "reports", [])
    return server


@pytest.fixture
async def client(jobs: Harness) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=shop.create_app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as made:
        yield made
