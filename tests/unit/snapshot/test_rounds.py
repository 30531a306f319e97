"""Rounds of a periodic snapshot: what was there at the beginning is stored at the end, however busy the engine is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job
from inproc_jobs.core.options import JobOptions
from inproc_jobs.snapshot.keeper import Keeper
from inproc_jobs.snapshot.records import Batch
from inproc_jobs.testing.memory_store import MemorySnapshot, MemoryStore
from tests.unit.snapshot.worlds import T0, keeper_of, new_core, restored

FREE = JobOptions(attempts=1, frees_id=True)


class BusyStore(MemoryStore):
    """While it writes, something happens in the engine."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)
    writes = 0

    def apply(self, batch: Batch) -> None:
        self.writes += 1
        assert self.writes < 100, "it writes for ever"
        super().apply(batch)
        self.meanwhile()


class World:
    def __init__(self, *queues: str) -> None:
        self.store = BusyStore(MemorySnapshot())
        self.core: Core = new_core(*queues)
        self.keeper: Keeper = keeper_of(self.core, self.store, mode="periodic")
        self.keeper._acquire()
        self.keeper._intake.load(self.keeper._store)
        self.keeper._write_first()
        self.store.writes = 0

    def add(self, queue: str, *, created: int = T0) -> Job:
        answer = self.core.add(self.core.queue(queue), "n", b"1", FREE, created)
        assert isinstance(answer, Job)
        return answer

    def fetch(self, queue: str) -> Job:
        job = self.core.fetch(self.core.queue(queue), T0 + 1, "t")
        assert job is not None
        return job

    def run_one(self, queue: str) -> None:
        self.core.complete(self.core.queue(queue), self.fetch(queue).id, b"null", T0 + 1, "t")

    def stored(self, queue: str) -> set[str]:
        return set(restored(self.store).queue(queue).index)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("inproc_jobs.snapshot.capture.BATCH_JOBS", 2)


def test_round_ends_although_jobs_keep_coming(small_batches):
    """Seven jobs are stored by four writes; those that come with each write wait for the next round."""
    world = World("q")
    before = {world.add("q").id for _ in range(7)}
    world.store.meanwhile = lambda: world.add("q", created=T0 + 1)
    world.keeper.write_all()
    assert world.store.writes == 4
    assert before <= world.stored("q")
    assert world.keeper.capture.backlog() > 0
    world.store.meanwhile = lambda: None
    world.keeper.write_all()
    assert world.stored("q") == set(world.core.queue("q").index)


def test_job_that_moves_during_the_round_is_in_it(small_batches):
    """It has lost its turn by moving behind jobs that are new; as no store knows it, it must not wait once more."""
    world = World("q")
    before = [world.add("q").id for _ in range(6)]

    def happen() -> None:
        for _ in range(5):
            world.add("q", created=T0 + 1)
        if world.store.writes == 1:
            for id in before[4:]:
                world.core.change_priority(world.core.queue("q"), id, 1, T0 + 1)

    world.store.meanwhile = happen
    world.keeper.write_all()
    assert set(before) <= world.stored("q")


def test_jobs_that_came_and_went_take_no_room(small_batches):
    """Fifty jobs that ended before the write cost none; what is left, five of the history among it, needs three writes."""
    world = World("q")
    for _ in range(50):
        world.add("q")
        world.run_one("q")
    world.add("q")
    world.keeper.write_all()
    assert world.store.writes == 3
    assert world.stored("q") == set(world.core.queue("q").index)


def test_busy_queue_does_not_keep_another_from_the_store(small_batches):
    """A queue that always has more to tell than one write takes gives way to the others, also without rounds."""
    world = World("a", "b")
    world.keeper.mode = "write_through"
    world.keeper.capture.end_round()
    late = world.add("b").id
    world.store.meanwhile = lambda: [world.add("a") for _ in range(3)]
    for _ in range(5):
        world.add("a")
    for _ in range(4):
        world.keeper._write_next()
    assert late in world.stored("b")


def test_flush_is_no_round(small_batches):
    """Whoever asks for everything gets what came meanwhile, too."""
    world = World("q")
    for _ in range(3):
        world.add("q")
    answer: Future[bool] = Future()
    world.keeper._flushers.append(answer)
    world.store.meanwhile = lambda: world.add("q", created=T0 + 1) if world.store.writes < 5 else None
    world.keeper.write_all()
    assert answer.result(0) is True
    assert world.stored("q") == set(world.core.queue("q").index)


def test_interval_runs_from_start_to_start():
    """A round that took most of the interval is followed by the next one in time."""
    world = World("q")
    now = [1000.0]
    world.keeper._monotonic = lambda: now[0]
    waits: list[float] = []

    class Wake(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            now[0] += timeout or 0.0
            return False

    world.keeper._wake = Wake()
    world.keeper._wait_turn()
    now[0] += 0.75  # the writing
    world.keeper._wait_turn()
    assert waits[1] == pytest.approx(0.25)


def test_what_the_store_notices_later_is_told_once():
    """A warning that comes up while jobs of others are read reaches the operator, not once per interval."""
    world = World("q")
    now = [1000.0]
    world.keeper._monotonic = lambda: now[0]
    world.store.warnings.append("scheduler 'x' was left alone")
    for _ in range(3):
        now[0] += 2
        world.keeper.write_all()
    told = [event for event, _ in world.keeper._host.warnings]  # type: ignore[attr-defined]  # the stub
    assert told == ["scheduler 'x' was left alone"]
