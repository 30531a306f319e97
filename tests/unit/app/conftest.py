"""Fixtures of the facade's tests."""

from collections.abc import Iterator

import pytest

from inproc_jobs import Engine
from inproc_jobs.runtime import runtime as runtime_module
from tests.unit.app.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A registry, a virtual clock, and engines that live as long as the test."""
    world = World()
    yield world
    for engine in world.engines:
        engine.runtime.threads.close()


@pytest.fixture
def engine(world: World) -> Engine:
    """An engine with the defaults."""
    return world.engine()


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait instead of millions of ten-second slices, so that years pass in one step."""
    monkeypatch.setattr(runtime_module, "MAX_TIMER_S", 1e12)
