"""
The pytest plugin (entry point `pytest11`): the fixture `jobs`.

It works in plain tests, under pytest-asyncio and under anyio, with xdist and in random order: everything belongs to one
test and ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inproc_jobs.testing.harness import Harness

__all__ = ["jobs"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "jobs(**options): arguments of the `jobs` fixture's Harness; leftovers=False fails the test when jobs are left.",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """The setting that asks every test for `assert_no_leftovers`."""
    parser.addini("jobs_no_leftovers", "fail tests that leave jobs behind", type="bool", default=False)


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """
    A fresh engine on virtual time, isolated from any other test.

    Options come from the marker: `@pytest.mark.jobs(mode="inline", queues={...}, start=...)`.
    """
    # Imported here: a plugin is loaded in every run of pytest, also where no test uses it.
    from inproc_jobs.testing.harness import Harness

    options: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("jobs"))):
        options.update(marker.kwargs)
    leftovers = options.pop("leftovers", not request.config.getini("jobs_no_leftovers"))
    with Harness(**options) as harness:  # type: ignore[arg-type]  # checked by Harness and Engine
        yield harness
        if not leftovers:
            harness.assert_no_leftovers()
