"""Jobs of these tests, in a registry of their own for each test."""

import pytest

from inproc_jobs import Registry
from inproc_jobs.testing import Harness, harness


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def kit(registry: Registry):
    """As the fixture `jobs`, on the registry of the test; made by hand, so that both doors are used."""
    with harness(registry=registry) as made:
        yield made


@pytest.fixture
def define(registry: Registry):
    """`define("name", attempts=3)`: a decorator on the registry of the test."""
    return registry.define_job


def names(kit: Harness) -> list[str]:
    """The events so far, by name and job."""
    return [f"{entry.event} {entry.job_id or ''}".strip() for entry in kit.timeline()]
