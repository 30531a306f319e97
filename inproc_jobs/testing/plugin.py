"""
The pytest plugin (entry point `pytest11`): the fixture `jobs`.

It works in plain tests, under pytest-asyncio and under anyio, with xdist and in random order: everything belongs to one
test and ends with it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from inproc_jobs.testing.kit import Harness

__all__ = ["jobs"]

_PASSED: pytest.StashKey[bool] = pytest.StashKey()


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
    from inproc_jobs.testing.kit import Harness

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("jobs"))):
        if marker.args:
            raise pytest.UsageError("the marker `jobs` takes keyword arguments only, such as mode='inline'")
        options.update(marker.kwargs)
    leftovers = options.pop("leftovers", not request.config.getini("jobs_no_leftovers"))
    with Harness(**options) as harness:
        yield harness
        # A test that failed has said what is wrong.
        if not leftovers and request.node.stash.get(_PASSED, False):
            harness.assert_no_leftovers()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Make the time of a coroutine test virtual from its first line on, whichever plugin runs the loop."""
    kit = sys.modules.get("inproc_jobs.testing.kit")
    test = getattr(item, "obj", None)
    if kit is None or not kit.OPEN or not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(test):
        return (yield)
    harness: Harness = kit.OPEN[-1]

    @functools.wraps(test)
    async def on_virtual_time(*args: Any, **kwargs: Any) -> Any:
        await harness.begin_here()
        return await test(*args, **kwargs)

    item.obj = on_virtual_time
    try:
        return (yield)
    finally:
        item.obj = test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself has passed."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report
