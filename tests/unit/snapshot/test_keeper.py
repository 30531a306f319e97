"""The keeper: when it writes, who waits for it, what it says about trouble, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import HELD, Job
from inproc_jobs.core.options import Deduplication, JobOptions
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotLayoutError, SnapshotUnavailableError
from inproc_jobs.snapshot.keeper import Keeper
from inproc_jobs.snapshot.records import Batch, QueueState
from inproc_jobs.snapshot.store import Owner, StoreEmptiedError
from inproc_jobs.testing.memory_store import MemorySnapshot, MemoryStore
from tests.unit.snapshot.store_contract import job as job_record
from tests.unit.snapshot.store_contract import meta_of
from tests.unit.snapshot.worlds import T0, StubHost, keeper_of, new_core, picture, restored

FREE = JobOptions(attempts=1, frees_id=True)
PATIENCE_S = 10.0


class ScriptedStore(MemoryStore):
    """
    A memory store that does what a test says.

    Attributes:
        script: What the next calls of `apply` raise; None lets one through. "after": the batch is stored first.
        gate: While set, calls of `apply` wait for it.
    """

    def __init__(self, snapshot: MemorySnapshot) -> None:
        super().__init__(snapshot)
        self.script: list[BaseException | None] = []
        self.gate: threading.Event | None = None
        self.calls = 0
        self.closed = 0
        self.foreign: list[QueueState] = []
        self.polls = 0
        self.renewals: list[BaseException] = []

    def apply(self, batch: Batch) -> None:
        self.calls += 1
        if self.gate is not None:
            self.gate.wait(PATIENCE_S)
        error = self.script.pop(0) if self.script else None
        if error is not None:
            if getattr(error, "outcome", "") == "unknown":
                self._store(batch)
            raise error
        super().apply(batch)

    def renew(self) -> None:
        if self.renewals:
            raise self.renewals.pop(0)
        super().renew()

    def poll_foreign(self) -> list[QueueState]:
        self.polls += 1
        states, self.foreign = self.foreign, []
        return states

    def close(self) -> None:
        self.closed += 1


class Clock:
    """Seconds that move by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A core, its keeper without threads, and a scripted store."""

    def __init__(self, **options: Any) -> None:
        self.snapshot = MemorySnapshot()
        self.store = ScriptedStore(self.snapshot)
        self.core: Core = new_core("q")
        self.queue = self.core.queue("q")
        self.clock = Clock()
        self.keeper: Keeper = keeper_of(
            self.core, self.store, monotonic=self.clock, **{"mode": "write_through", **options}
        )
        self.host: StubHost = self.keeper._host  # type: ignore[assignment]
        self.keeper._acquire()
        self.keeper._intake.load(self.keeper._store)
        self.keeper._write_first()
        self.store.calls = 0

    def add(self, id: str = "", *, held: bool = True, **more: Any) -> Job:
        answer = self.core.add(
            self.queue, "n", more.pop("data", b"1"), FREE, T0, id=id, flags=HELD if held else 0, **more
        )
        assert isinstance(answer, Job)
        return answer

    def wait(self, job: Job, *, duplicate: bool = False) -> Future[None]:
        future = self.keeper.wait_stored(self.queue, job, Future, duplicate=duplicate)
        assert future is not None
        return future

    def stored(self) -> Core:
        return restored(self.store)

    def ids(self) -> set[str]:
        return set(self.stored().queue("q").index)


@pytest.fixture
def world() -> World:
    return World()


def unavailable(outcome: str = "not written") -> SnapshotUnavailableError:
    return SnapshotUnavailableError("the store is on fire", outcome=outcome)


# --- write_through ------------------------------------------------------------------------------------------------


def test_job_waits_for_its_write_and_then_starts(world):
    """It cannot be fetched before, its waiter is told after, and the engine hears which queue has news."""
    future = world.wait(world.add("a"))
    assert world.core.fetch(world.queue, T0, "t") is None
    assert not future.done()
    world.keeper.write_all()
    assert future.result(0) is None
    assert world.host.released == [{"q"}]
    assert world.core.fetch(world.queue, T0, "t").id == "a"


def test_many_jobs_share_one_write(world):
    """A hundred dispatches that wait at the same time cost one write."""
    futures = [world.wait(world.add()) for _ in range(100)]
    world.keeper.write_all()
    assert all(future.done() for future in futures)
    assert world.store.calls == 1


def test_whoever_asks_late_is_not_kept_waiting(world):
    """A job that was stored before its dispatcher asked is no reason to wait, and may start."""
    job = world.add("a")
    world.keeper.write_all()
    assert world.keeper.wait_stored(world.queue, job, Future, duplicate=False) is None
    assert world.core.fetch(world.queue, T0, "t") is job


def test_duplicate_waits_for_the_same_write(world):
    """A dispatch that finds a job which is not stored yet is answered when it is, with its error if it is not."""
    job = world.add("a")
    first, second = world.wait(job), world.wait(job, duplicate=True)
    world.keeper.write_all()
    assert first.done()
    assert second.done()
    assert world.keeper.wait_stored(world.queue, job, Future, duplicate=True) is None


def test_failed_write_takes_the_job_back(world):
    """It raises what the store said, the job is gone from memory, and its id is free."""
    job = world.add("a")
    futures = [world.wait(job), world.wait(job, duplicate=True)]
    world.store.script = [unavailable()]
    world.keeper.write_all()
    for future in futures:
        error = future.exception(0)
        assert isinstance(error, SnapshotUnavailableError)
        assert error.outcome == "not written"
        assert "on fire" in str(error)
    assert "a" not in world.queue.index
    assert job.state is JobState.REMOVED
    world.core.check()
    assert world.ids() == set()
    world.clock.now += 1
    world.keeper.write_all()
    assert world.ids() == set()


def test_unknown_outcome_is_undone_first(world):
    """A job that may be stored although its write failed is deleted by the first write that works."""
    future = world.wait(world.add("a"))
    world.add("later", held=False)
    world.store.script = [unavailable("unknown")]
    world.keeper.write_all()
    assert future.exception(0).outcome == "unknown"
    assert world.ids() == {"a", "later"}
    world.clock.now += 1
    batch = world.keeper.capture.take(T0)
    assert (batch.queues[0].jobs[0].id, batch.queues[0].jobs[0].record) == ("a", None)
    world.keeper.capture.give_back()
    world.keeper.write_all()
    assert world.ids() == {"later"}


def test_jobs_that_were_not_in_the_failed_write_are_told_so(world, monkeypatch):
    """Their outcome is certain: they were not written, whatever became of the others."""
    monkeypatch.setattr("inproc_jobs.snapshot.capture.BATCH_JOBS", 1)
    first, second = world.wait(world.add("a")), world.wait(world.add("b"))
    world.store.script = [unavailable("unknown")]
    world.keeper.write_all()
    assert (first.exception(0).outcome, second.exception(0).outcome) == ("unknown", "not written")


def test_same_id_again_while_the_write_is_under_way(world):
    """The answer of a write is about the record that was in it, not about another that has its id by now."""
    old = world.add("a", data=b'"old"')
    first = world.wait(old)
    batch = world.keeper.capture.take(T0)
    world.core.remove(world.queue, "a", T0)
    new = world.add("a", data=b'"new"')
    second = world.wait(new)
    world.keeper._write(batch)
    assert first.done()
    assert not second.done()
    assert world.core.fetch(world.queue, T0, "t") is None
    world.keeper.write_all()
    assert second.done()
    assert world.stored().queue("q").index["a"].data == b'"new"'


def test_job_removed_while_it_waits(world):
    """Whoever waits for a job that somebody removes is not kept for ever."""
    future = world.wait(world.add("a"))
    world.core.remove(world.queue, "a", T0)
    world.keeper.write_all()
    assert future.done()


def test_waiter_that_lost_its_patience(world):
    """A cancelled wait ends nothing: the job is stored and runs, and the writer lives."""
    future = world.wait(world.add("a"))
    future.cancel()
    world.keeper.write_all()
    assert world.ids() == {"a"}
    world.keeper.write_all()


def test_refused_while_the_store_is_known_to_be_away(world):
    """New dispatches are refused at once until the next attempt is due, with nothing added."""
    world.keeper.refuse_while_down()
    world.wait(world.add("a"))
    world.store.script = [unavailable()]
    world.keeper.write_all()
    with pytest.raises(SnapshotUnavailableError, match="nothing was added"):
        world.keeper.refuse_while_down()
    world.clock.now += 0.2
    world.keeper.refuse_while_down()


# --- what was pushed out comes back -------------------------------------------------------------------------------

DEBOUNCE = Deduplication(id="d", ttl_ms=500, replace=True, extend=True)


def test_replaced_job_comes_back(world):
    """A debounce whose write fails must not lose the stored job that it replaced, nor its key, nor its moment."""
    first = world.add("a", delay=500, deduplication=DEBOUNCE)
    world.keeper.write_all()
    before = picture(world.core)
    future = world.wait(world.add("b", delay=700, deduplication=DEBOUNCE))
    assert first.state is JobState.REMOVED
    world.store.script = [unavailable()]
    world.keeper.write_all()
    assert future.exception(0).outcome == "not written"
    after = picture(world.core)
    assert after["q"].pop("meta").counter > before["q"].pop("meta").counter
    assert after == before
    world.clock.now += 1
    world.keeper.write_all()
    assert picture(world.stored()) == picture(world.core)


def test_chain_of_replacements(world):
    """Of three in a row that were all not stored, the one that was stored before them comes back."""
    world.add("a", delay=500, deduplication=DEBOUNCE)
    world.keeper.write_all()
    futures = [world.wait(world.add(id, delay=500, deduplication=DEBOUNCE)) for id in "bcd"]
    world.store.script = [unavailable("unknown")]
    world.keeper.write_all()
    assert all(isinstance(future.exception(0), SnapshotUnavailableError) for future in futures)
    assert set(world.queue.index) == {"a"}
    assert world.queue.deduplication["d"].owner == "a"
    world.core.check()
    world.clock.now += 1
    world.keeper.write_all()
    assert world.ids() == {"a"}
    assert not world.queue.unstored
    assert not world.queue.displaced


def test_chain_of_replacements_that_is_stored(world):
    """Whoever was replaced before it was stored is answered by the write of the one that replaced it."""
    futures = [world.wait(world.add(id, delay=500, deduplication=DEBOUNCE)) for id in "abc"]
    world.keeper.write_all()
    assert [future.result(0) for future in futures] == [None] * 3
    assert world.ids() == {"c"}
    assert not world.queue.unstored
    assert not world.queue.displaced


def test_replaced_while_its_own_write_was_under_way(world):
    """What the store has taken meanwhile is what comes back."""
    world.add("a", delay=500, deduplication=DEBOUNCE)
    world.keeper.write_all()
    second = world.wait(world.add("b", delay=500, deduplication=DEBOUNCE))
    batch = world.keeper.capture.take(T0)
    third = world.wait(world.add("c", delay=500, deduplication=DEBOUNCE))
    world.keeper._write(batch)
    assert second.done()
    assert not third.done()
    world.store.script = [unavailable()]
    world.keeper.write_all()
    assert third.exception(0) is not None
    assert set(world.queue.index) == {"b"}
    world.clock.now += 1
    world.keeper.write_all()
    assert world.ids() == {"b"}


def test_finished_record_comes_back(world):
    """A dispatch that could not be stored leaves the finished job whose id it would have taken."""
    world.add("a")
    world.keeper.write_all()
    world.core.fetch(world.queue, T0, "t")
    world.core.complete(world.queue, "a", b'"result"', T0, "t")
    world.keeper.write_all()
    before = picture(world.core)
    world.wait(world.add("a"))
    world.store.script = [unavailable("unknown")]
    world.keeper.write_all()
    after = picture(world.core)
    assert after["q"].pop("meta").counter > before["q"].pop("meta").counter
    assert after == before
    world.core.check()
    world.clock.now += 1
    world.keeper.write_all()
    assert world.stored().queue("q").index["a"].result == b'"result"'


KEEP_LAST = Deduplication(id="d", keep_last=True)


def keep_last(world: World) -> Job:
    """An active owner."""
    world.add("a", deduplication=KEEP_LAST)
    world.keeper.write_all()
    owner = world.core.fetch(world.queue, T0, "t")
    assert owner is not None
    world.keeper.write_all()
    return owner


def park(world: World, data: bytes) -> None:
    world.core.add(world.queue, "n", data, FREE, T0, flags=HELD, deduplication=KEEP_LAST)


def test_parked_add_is_waited_for(world):
    """An add that waits for the end of an active one is acknowledged when it is stored."""
    owner = keep_last(world)
    park(world, b"2")
    future = world.wait(owner, duplicate=True)
    world.keeper.write_all()
    assert future.done()
    assert world.stored().queue("q").parked["d"].data == b"2"
    assert world.keeper.wait_stored(world.queue, owner, Future, duplicate=True) is None


def test_parked_add_that_could_not_be_stored(world):
    """It goes, and the one whose place it took comes back."""
    owner = keep_last(world)
    park(world, b"2")
    world.keeper.write_all()
    park(world, b"3")
    park(world, b"4")
    future = world.wait(owner, duplicate=True)
    world.store.script = [unavailable()]
    world.keeper.write_all()
    assert future.exception(0) is not None
    assert world.queue.parked["d"].data == b"2"
    world.clock.now += 1
    world.keeper.write_all()
    assert world.stored().queue("q").parked["d"].data == b"2"


@pytest.mark.parametrize("works", [True, False])
def test_parked_add_whose_turn_comes_before_it_is_stored(world, works):
    """It becomes a job that waits for the store as any other, and so does its dispatcher."""
    owner = keep_last(world)
    park(world, b"2")
    future = world.wait(owner, duplicate=True)
    world.core.complete(world.queue, "a", b"null", T0, "t")
    assert world.core.fetch(world.queue, T0, "u") is None
    assert world.queue.held == 1
    world.store.script = [] if works else [unavailable()]
    world.keeper.write_all()
    assert world.queue.held == 0
    if works:
        assert future.result(0) is None
        assert world.core.fetch(world.queue, T0, "u").data == b"2"
    else:
        assert future.exception(0) is not None
        assert world.core.fetch(world.queue, T0, "u") is None


def test_duplicate_that_moves_the_owner_is_waited_for(world):
    """A dispatch that lengthens a key, or moves the job that it collapses into, returns when that is stored."""
    rule = Deduplication(id="d", ttl_ms=500, extend=True, reschedule=True)
    owner = world.add("a", delay=500, deduplication=rule)
    world.keeper.write_all()
    world.core.add(world.queue, "n", b"2", FREE, T0 + 100, delay=500, flags=HELD, deduplication=rule)
    future = world.wait(owner, duplicate=True)
    world.keeper.write_all()
    assert future.done()
    assert world.stored().queue("q").index["a"].due_ms == T0 + 600
    assert world.stored().queue("q").deduplication["d"].until_ms == T0 + 600


def test_flow_that_could_not_be_stored_is_gone_whole(world):
    """Parent and children go together, in every queue."""
    from inproc_jobs.core.job import ParentLink
    from inproc_jobs.core.trees import NewJob

    link = ParentLink("p", "q", "fpof")
    jobs = world.core.add_flow(
        [
            NewJob(queue="q", name="n", data=b"0", opts=FREE, id="p", flags=HELD, has_children=True),
            NewJob(queue="q", name="n", data=b"0", opts=FREE, id="k", flags=HELD, parent=link),
            NewJob(queue="r", name="n", data=b"0", opts=FREE, id="l", flags=HELD, parent=link),
        ],
        T0,
    )
    other = world.core.queue("r")
    for one, queue in zip(jobs, (world.queue, world.queue, other), strict=True):
        world.keeper.wait_stored(queue, one, Future, duplicate=False)
    world.store.script = [unavailable()]
    world.keeper.write_all()
    assert not world.queue.index
    assert not other.index
    world.core.check()


# --- trouble ------------------------------------------------------------------------------------------------------


def test_one_line_per_step_and_one_for_the_end():
    """However many jobs come and go meanwhile: a line per attempt, attempts further and further apart, and the end."""
    world = World(mode="periodic")
    pauses = []
    for step in range(8):
        world.store.script = [unavailable()]
        world.add(held=False)
        world.keeper.write_all()
        assert len(world.host.warnings) == step + 1
        pauses.append(round(world.keeper._retry_at - world.clock.now, 3))
        world.clock.now = world.keeper._retry_at
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert world.keeper.health()["store_error"] == "the store is on fire"
    assert world.keeper.health()["unsaved_changes"] == 8
    world.keeper.write_all()
    assert world.host.warnings[-1][0] == "snapshot works again"
    assert len(world.host.warnings) == 9
    health = world.keeper.health()
    assert (health["store_error"], health["unsaved_changes"]) == (None, 0)
    assert len(world.ids()) == 8


def test_attempts_between_the_steps_say_nothing():
    """A stop tries many times in a row: that is no reason for as many lines. Trouble that comes anew is told at once."""
    world = World(mode="periodic")
    world.add(held=False)
    for _ in range(5):
        world.store.script = [unavailable()]
        world.keeper.write_all()
        world.clock.now += 0.01
    assert [event for event, _ in world.host.warnings] == ["snapshot cannot be written; jobs go on in memory"]
    world.keeper.write_all()
    world.add(held=False)
    world.store.script = [unavailable()]
    world.keeper.write_all()
    assert [event for event, _ in world.host.warnings[1:]] == [
        "snapshot works again",
        "snapshot cannot be written; jobs go on in memory",
    ]


def test_backlog_is_bounded_by_the_number_of_jobs():
    """A store that is away for long costs nothing but the ids of what is there: a thousand jobs that ended leave none."""
    world = World(mode="periodic")
    world.queue.history = {JobState.COMPLETED: 1, JobState.FAILED: 1}
    world.store.script = [unavailable()]
    for number in range(1_000):
        world.add(held=False)
        job = world.core.fetch(world.queue, T0 + number, "t")
        world.core.complete(world.queue, job.id, b"null", T0 + number, "t")
        if number % 100 == 0:
            world.store.script = [unavailable()]
            world.keeper.write_all()
            world.clock.now += 10
    world.store.script = []
    world.keeper.write_all()
    assert len(world.ids()) == 1
    assert world.keeper.capture.backlog() == 0


def test_jobs_that_come_and_go_while_the_store_is_away_do_not_add_up():
    """However many there were between two attempts, and wherever they stand among those that stay."""
    world = World(mode="periodic")
    for number in range(10_000):
        job = world.add(held=False)
        if number % 5_000:
            world.core.remove(world.queue, job.id, T0)
    world.store.script = [unavailable()]
    world.keeper.write_all()
    assert world.keeper.capture.backlog() == 2
    world.keeper.write_all()
    assert world.ids() == {"1", "5001"}


def test_short_lived_jobs_cost_nothing():
    """Ten thousand jobs that were born and gone between two writes are one write of a counter."""
    world = World(mode="periodic")
    for _ in range(10_000):
        world.add(held=False)
    world.core.drain(world.queue, T0)
    world.keeper.write_all()
    assert world.store.calls == 1
    assert world.ids() == set()


@pytest.mark.parametrize("error", [SnapshotLayoutError("wrong type at a key"), RuntimeError("a fault"), OSError(5)])
def test_writer_outlives_whatever_a_store_raises(world, error):
    """Everything is kept and tried again; who waits is told."""
    future = world.wait(world.add("a"))
    world.add("b", held=False)
    world.store.script = [error]
    world.keeper.write_all()
    assert isinstance(future.exception(0), SnapshotUnavailableError)
    world.clock.now += 1
    world.keeper.write_all()
    assert world.ids() == {"b"}


def test_fault_of_the_capture_is_told(world, monkeypatch):
    """Even a record that cannot be rendered does not end the writer."""
    future = world.wait(world.add("a"))
    monkeypatch.setattr("inproc_jobs.snapshot.codec.record_of", lambda *_: 1 / 0)
    world.keeper.write_all()
    assert isinstance(future.exception(0), SnapshotUnavailableError)
    assert "ZeroDivisionError" in world.host.warnings[0][1]["reason"]
    monkeypatch.undo()
    world.add("b", held=False)
    world.clock.now += 1
    world.keeper.write_all()
    assert world.ids() == {"b"}


def test_store_that_comes_back_empty(world):
    """Everything there is, is written anew, under a lease of our own."""
    for id in "abc":
        world.add(id, held=False)
    world.add("x", held=False, delay=50, deduplication=DEBOUNCE)
    world.keeper.write_all()
    world.snapshot.shelves.clear()
    world.snapshot.owner = None
    world.store.script = [StoreEmptiedError("gone")]
    future = world.wait(world.add("d"))
    world.keeper.write_all()
    assert future.result(0) is None
    assert picture(world.stored()) == picture(world.core)
    assert world.snapshot.owner is not None
    assert not world.host.lost


def test_store_that_comes_back_empty_while_nothing_changes(world):
    """The renewal of the lease notices."""
    world.add("a", held=False)
    world.keeper.write_all()
    world.snapshot.shelves.clear()
    world.snapshot.owner = None
    world.keeper._emptied.set()
    world.keeper.write_all()
    assert world.ids() == {"a"}


def test_store_that_came_back_empty_and_has_another_owner(world):
    """Then the lease is lost as ever."""
    world.snapshot.shelves.clear()
    world.store.script = [StoreEmptiedError("gone")]
    world.add("a", held=False)
    world.keeper.write_all()
    assert world.keeper.lost
    assert len(world.host.lost) == 1


def test_lost_lease(world):
    """The engine is told once, nothing is written any more, and who waits hears of it."""
    world.add("a", held=False)
    world.snapshot.fence += 1
    world.keeper.write_all()
    world.keeper.write_all()
    assert world.keeper.lost
    assert len(world.host.lost) == 1
    assert isinstance(world.host.lost[0], LeaseLostError)
    assert world.snapshot.shelves.get("q") is None or not world.snapshot.shelves["q"].jobs


# --- foreign jobs -------------------------------------------------------------------------------------------------


def test_foreign_jobs_are_taken_in():
    """They run in their turn, their numbers are not given out again, and ours of the same id is left alone."""
    world = World(mode="periodic")
    world.add("mine", held=False, data=b'"mine"')
    world.keeper.write_all()
    world.clock.now += 1
    state = QueueState("q", meta_of(40), jobs=[job_record("41"), job_record("mine", data=b'"theirs"')])
    world.store.foreign = [state]
    world.snapshot.shelves["q"].jobs["41"] = job_record("41")
    world.snapshot.shelves["q"].waiting.append("41")
    world.keeper.write_all()
    assert list(world.queue.index) == ["mine", "41"]
    assert world.queue.index["mine"].data == b'"mine"'
    assert world.queue.counter == 40
    assert world.host.released[-1] == {"q"}
    world.keeper.write_all()
    assert picture(world.stored()) == picture(world.core)


def test_queue_that_is_taken_over_while_somebody_dispatches_into_it():
    """What the store has not been told of yet is not forgotten; the rest comes as it is, settings included."""
    world = World(mode="periodic")
    world.clock.now += 1
    theirs = meta_of(7, paused=True)
    shelf = world.snapshot.shelves["q"]
    shelf.state.meta = theirs
    for id in ("6", "7"):
        shelf.jobs[id] = job_record(id)
        shelf.waiting.append(id)
    for _ in range(8):
        world.add(held=False)
    world.core.remove(world.queue, "6", T0)
    world.core.remove(world.queue, "7", T0)
    world.store.foreign = [QueueState("q", theirs, jobs=[job_record(id)], whole=True) for id in ("6", "7")]
    world.keeper._take_foreign()
    world.core.check()
    assert world.queue.paused
    assert world.queue.counter == 8
    world.keeper.write_all()
    assert set(world.stored().queues["q"].index) == set(world.queue.index) == {str(id) for id in range(1, 9)}


def test_foreign_jobs_are_looked_for_once_per_interval():
    """Not at every write."""
    world = World(mode="write_through", every_ms=1_000)
    for _ in range(20):
        world.wait(world.add())
        world.keeper.write_all()
        world.clock.now += 0.1
    assert world.store.polls in {2, 3}


# --- opening ------------------------------------------------------------------------------------------------------


def test_restart_is_written_before_anything_runs():
    """The count of crashes is in the store before the job that caused them can do it again."""
    world = World()
    world.add("poison", held=False)
    world.core.fetch(world.queue, T0, "t")
    world.keeper.write_all()
    world.snapshot.evict_owner()
    keeper = keeper_of(new_core(), world.snapshot.open_store())
    keeper.open()
    try:
        shelf = world.snapshot.shelves["q"]
        assert shelf.waiting == ["poison"]
        assert shelf.jobs["poison"].stalled_count == 1
    finally:
        keeper.close(5)


def test_store_that_is_loading_is_waited_for():
    """At the start a store that is not ready gets its time; it is never taken for an empty one."""
    snapshot = MemorySnapshot()
    snapshot.failing = "LOADING"
    keeper = keeper_of(new_core("q"), snapshot.open_store(), patience_ms=int(PATIENCE_S * 1000))
    timer = threading.Timer(0.2, lambda: setattr(snapshot, "failing", None))
    timer.start()
    keeper.open()
    timer.join()
    keeper.close(5)


def test_store_that_stays_away_is_refused():
    """After its time the start fails with what the store said."""
    snapshot = MemorySnapshot()
    snapshot.failing = "LOADING"
    keeper = keeper_of(new_core("q"), snapshot.open_store(), patience_ms=50)
    with pytest.raises(SnapshotUnavailableError, match="LOADING"):
        keeper.open()
    assert snapshot.owner is None


def test_load_that_fails_gives_the_store_up(world):
    """A store that cannot be read is free for somebody who can."""
    world.snapshot.evict_owner()
    store = ScriptedStore(world.snapshot)

    def load() -> Iterator[QueueState]:
        raise SnapshotLayoutError("newer")
        yield

    store.load = load  # type: ignore[method-assign]
    with pytest.raises(SnapshotLayoutError):
        keeper_of(new_core("q"), store).open()
    assert world.snapshot.owner is None
    assert store.closed == 1


def test_held_store_is_refused_or_waited_for():
    """As asked for."""
    snapshot = MemorySnapshot()
    first = keeper_of(new_core("q"), snapshot.open_store())
    first.open()
    with pytest.raises(LeaseHeldError):
        keeper_of(new_core("q"), snapshot.open_store()).open()
    second = keeper_of(new_core("q"), snapshot.open_store(), on_held="wait", lease_ms=60)
    opening = threading.Thread(target=second.open)
    opening.start()
    first.close(5)
    opening.join(PATIENCE_S)
    assert not opening.is_alive()
    assert snapshot.owner is not None
    second.close(5)


def test_giving_up_while_it_waits():
    """Whoever is stopped while it waits for its turn does not become the owner later."""
    snapshot = MemorySnapshot()
    first = keeper_of(new_core("q"), snapshot.open_store())
    first.open()
    second = keeper_of(new_core("q"), snapshot.open_store(), on_held="wait", lease_ms=60_000)
    errors: list[BaseException] = []
    opening = threading.Thread(target=lambda: errors.append(_error_of(second.open)))
    opening.start()
    second.give_up()
    opening.join(PATIENCE_S)
    assert isinstance(errors[0], LeaseHeldError)
    first.close(5)
    assert snapshot.owner is None


def _error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
        call()
    return caught.value


class SlowStore(ScriptedStore):
    """Reading it takes until the lease was renewed, or could not be."""

    renewed = threading.Event()

    def load(self) -> Iterator[QueueState]:
        assert self.renewed.wait(PATIENCE_S)
        yield from super().load()

    def renew(self) -> None:
        try:
            super().renew()
        finally:
            self.renewed.set()


def test_lease_is_renewed_while_the_store_is_read():
    """A million jobs take longer than a lease, and somebody may be waiting for it."""
    store = SlowStore(MemorySnapshot())
    store.renewed = threading.Event()
    keeper = keeper_of(new_core("q"), store, lease_ms=30)
    keeper.open()
    keeper.close(5)
    _join(keeper)


def test_lease_that_is_lost_while_the_store_is_read():
    """The opening fails with the reason; there is no engine yet that would have to be stopped."""
    store = SlowStore(MemorySnapshot())
    store.renewed = threading.Event()
    store.renewals = [LeaseLostError("theirs")]
    keeper = keeper_of(new_core("q"), store, lease_ms=30)
    with pytest.raises(LeaseLostError, match="theirs"):
        keeper.open()
    assert keeper._host.lost == []  # type: ignore[attr-defined]  # the stub
    assert store.closed == 1
    assert keeper._threads == []


def test_giving_up_after_it_was_opened():
    """Too late to stop the opening, it is closed again."""
    snapshot = MemorySnapshot()
    keeper = keeper_of(new_core("q"), snapshot.open_store())
    keeper.open()
    keeper.give_up()
    _join(keeper)
    assert snapshot.owner is None


def _join(keeper: Keeper) -> None:
    for thread in keeper._threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# --- with its threads ---------------------------------------------------------------------------------------------


@pytest.fixture
def running() -> Iterator[Callable[..., tuple[Keeper, ScriptedStore, StubHost]]]:
    keepers: list[Keeper] = []

    def run(**options: Any) -> tuple[Keeper, ScriptedStore, StubHost]:
        snapshot = MemorySnapshot()
        store = ScriptedStore(snapshot)
        keeper = keeper_of(new_core("q"), store, **options)
        keeper.open()
        keepers.append(keeper)
        return keeper, store, keeper._host  # type: ignore[return-value]

    yield run
    for keeper in keepers:
        keeper.close(5)
        _join(keeper)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def add(host: StubHost, id: str = "", *, held: bool = False) -> Job:
    with host.lock:
        job = host.core.add(host.core.queue("q"), "n", b"1", FREE, T0, id=id, flags=HELD if held else 0)
    assert isinstance(job, Job)
    return job


def test_periodic_writes_by_itself(running):
    """Within its interval, without anybody asking."""
    keeper, store, host = running(every_ms=20)
    add(host, "a")
    until(lambda: store._snapshot.shelves["q"].jobs)
    assert keeper.last_save_ms is not None


def test_write_through_does_not_wait_for_the_interval(running):
    """Who waits is served at once."""
    keeper, _, host = running(every_ms=60_000, mode="write_through")
    job = add(host, "a", held=True)
    with host.lock:
        future = keeper.wait_stored(host.core.queue("q"), job, Future, duplicate=False)
    assert future is not None
    future.result(PATIENCE_S)


def test_flush(running):
    """Everything up to now is stored when it returns True; a store that is away makes it False."""
    keeper, store, host = running(every_ms=60_000)
    add(host, "a")
    assert keeper.flush(PATIENCE_S)
    assert set(store._snapshot.shelves["q"].jobs) == {"a"}
    add(host, "b")
    store.script = [unavailable()]
    assert not keeper.flush(PATIENCE_S)


def test_one_write_in_flight_and_the_host_goes_on(running):
    """A store that hangs holds up neither the lock nor a second write; all that came meanwhile goes in the next one."""
    keeper, store, host = running(every_ms=1)
    before = store.calls
    store.gate = threading.Event()
    add(host, "a")
    until(lambda: store.calls > before)
    calls = store.calls
    for _ in range(100):
        add(host)
    time.sleep(0.05)
    assert store.calls == calls
    assert keeper.health()["unsaved_changes"] == 101  # what is under way is not stored yet
    store.gate.set()
    store.gate = None
    until(lambda: len(store._snapshot.shelves["q"].jobs) == 101)
    assert store.calls <= calls + 2


def test_close_writes_the_rest(running):
    """What is there when it is closed is stored, and the store is free."""
    keeper, store, host = running(every_ms=60_000)
    add(host, "a")
    assert keeper.close(PATIENCE_S)
    assert set(store._snapshot.shelves["q"].jobs) == {"a"}
    assert store._snapshot.owner is None
    assert not keeper.flush(1)


def test_close_gives_a_store_that_restarts_a_few_tries(running):
    """Servers are often restarted together with their clients."""
    keeper, store, host = running(every_ms=60_000)
    add(host, "a")
    store.script = [unavailable(), unavailable()]
    assert keeper.close(PATIENCE_S)
    assert set(store._snapshot.shelves["q"].jobs) == {"a"}


def test_close_is_bounded_while_the_store_hangs(running):
    """It comes back in time and says that not all is stored; the store is given up once it answers, not before."""
    keeper, store, host = running(every_ms=60_000)
    store.gate = threading.Event()
    add(host, "a")
    started = time.monotonic()
    assert not keeper.close(0.3)
    assert time.monotonic() - started < 3
    assert store._snapshot.owner is not None
    store.gate.set()
    _join(keeper)
    assert store._snapshot.owner is None
    assert set(store._snapshot.shelves["q"].jobs) == {"a"}


def test_close_does_not_ask_a_dead_store_to_let_go():
    """It would be waited for once more, and the lease runs out by itself."""
    world = World(mode="periodic")
    world.store.script = [unavailable()]
    world.add(held=False)
    world.keeper.write_all()
    world.keeper._ended = True  # its writer is gone
    assert not world.keeper.close(0)
    assert world.snapshot.owner is not None


def test_waiters_do_not_outlive_the_keeper(running):
    """A dispatch that waits when everything ends is told; nobody hangs."""
    keeper, store, host = running(every_ms=60_000, mode="write_through")
    store.gate = threading.Event()
    job = add(host, "a", held=True)
    with host.lock:
        future = keeper.wait_stored(host.core.queue("q"), job, Future, duplicate=False)
    until(lambda: store.calls > 1)
    store.script = [unavailable("unknown")]
    closing = threading.Thread(target=keeper.close, args=(0.1,))
    closing.start()
    closing.join(PATIENCE_S)
    store.gate.set()
    assert isinstance(future.exception(PATIENCE_S), SnapshotUnavailableError)
    _join(keeper)
    late = add(host, "b", held=True)
    with host.lock:
        future = keeper.wait_stored(host.core.queue("q"), late, Future, duplicate=False)
    assert isinstance(future.exception(PATIENCE_S), SnapshotUnavailableError)


def test_lease_that_cannot_be_renewed(running):
    """A store that is away is no lost lease, nor is a fault; one that somebody else has is."""
    keeper, store, host = running(lease_ms=30)
    store.renewals = [unavailable(), RuntimeError("a fault"), RuntimeError("a fault"), LeaseLostError("theirs")]
    until(lambda: host.lost)
    assert keeper.lost
    assert [event for event, _ in host.warnings] == ["the lease could not be renewed"]
    _join(keeper)


def test_paused_owner_that_wakes_up_cannot_overwrite(running):
    """C118d: the successor's data is intact, the former owner's write is refused in the same step, and it stops."""
    former, store, host = running(every_ms=60_000)
    add(host, "a")
    assert former.flush(PATIENCE_S)
    snapshot = store._snapshot
    snapshot.evict_owner()
    successor = snapshot.open_store()
    successor.acquire(Owner("two", 2, T0))
    add(host, "b")
    with host.lock:
        host.core.remove(host.core.queue("q"), "a", T0)
    assert not former.flush(PATIENCE_S)
    assert former.lost
    assert len(host.lost) == 1
    assert set(snapshot.shelves["q"].jobs) == {"a"}
    assert not former.close(1)
    assert snapshot.owner == Owner("two", 2, T0)


# --- order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["not written", "unknown"])
def test_failed_write_moves_nobody(outcome):
    """A job of which only its payload had changed keeps its place, whatever became of the write that said so."""
    world = World(mode="periodic")
    for id in "abc":
        world.add(id, held=False)
    world.keeper.write_all()
    world.core.update_data(world.queue, "a", b'"new"')
    world.add("x", held=False, priority=0)
    world.store.script = [unavailable(outcome)]
    world.keeper.write_all()
    world.clock.now += 1
    world.keeper.write_all()
    assert [job.id for job in world.stored().queue("q").wait] == ["a", "b", "c", "x"]
    assert picture(world.stored()) == picture(world.core)


def test_queue_that_comes_into_being_later():
    """Its first write has its jobs in the order in which they stand, not in that of their coming."""
    world = World(mode="periodic")
    queue = world.core.queue("late")
    for id in "abc":
        world.core.add(queue, "n", b"1", JobOptions(lifo=True), T0, id=id)
    world.keeper.write_all()
    assert [job.id for job in world.stored().queue("late").wait] == ["c", "b", "a"]
