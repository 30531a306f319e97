"""Putting a queue together from what a store has kept."""

from __future__ import annotations

import pytest

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import PARKED, UNREADABLE, Job
from inproc_jobs.core.options import Deduplication, JobOptions, Retention
from inproc_jobs.core.queue import Candidate, Queue
from inproc_jobs.core.states import ACTIVE, COMPLETED, DELAYED, FAILED, PRIORITIZED, WAITING, JobState

T0 = 1_700_000_000_000
FREE = JobOptions(frees_id=True)
KEPT = JobOptions(frees_id=True, remove_on_complete=Retention())


@pytest.fixture
def core() -> Core:
    made = Core()
    made.listening = True
    return made


@pytest.fixture
def queue(core: Core) -> Queue:
    made = core.queue("q")
    made.history = {JobState.COMPLETED: 2, JobState.FAILED: 2}
    return made


def restore(core: Core, queue: Queue, id: str, state: JobState, score: float = 0, tie: int = 0, **more: object) -> Job:
    job = Job(id, "n", b"{}", more.pop("opts", FREE), T0, **more)  # type: ignore[arg-type]
    core.restore_job(queue, job, state, score, tie)
    return job


def test_each_job_gets_its_place_and_nothing_is_told(core: Core, queue: Queue) -> None:
    """Lists in the order of the calls, the others by their scores; a delayed job has its due time and its tie."""
    restore(core, queue, "w1", WAITING)
    restore(core, queue, "w2", WAITING)
    restore(core, queue, "p2", PRIORITIZED, 5 << 32 | 2, priority=5)
    restore(core, queue, "p1", PRIORITIZED, 5 << 32 | 1, priority=5)
    late = restore(core, queue, "d2", DELAYED, T0 + 50, 8)
    soon = restore(core, queue, "d1", DELAYED, T0 + 50, 7)
    assert [job.id for job in queue.wait] == ["w1", "w2"]
    assert [job.id for job in queue.prioritized] == ["p1", "p2"]
    assert [job.id for job in queue.delayed] == ["d1", "d2"]
    assert (soon.due_ms, late.due_ms, queue.sequence) == (T0 + 50, T0 + 50, 8)
    assert list(core.events) == []
    new = core.add(queue, "n", b"{}", FREE, T0, delay=50)
    assert isinstance(new, Job)
    assert [job.id for job in queue.delayed] == ["d1", "d2", new.id]
    core.check()


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_refused(core: Core, queue: Queue, score: float) -> None:
    """Nothing has changed then."""
    with pytest.raises((ValueError, OverflowError)):
        restore(core, queue, "d", DELAYED, score)
    assert queue.index == {}
    core.check()


def test_an_id_is_restored_once(core: Core, queue: Queue) -> None:
    """The second record is refused by name, the first stays."""
    first = restore(core, queue, "x", WAITING)
    with pytest.raises(ValueError, match="job 'x' is in queue 'q' already"):
        restore(core, queue, "x", DELAYED, T0)
    assert queue.index == {"x": first}
    core.check()


def test_a_marker_of_old_versions_is_none_of_ours_to_run(core: Core, queue: Queue) -> None:
    """An id like "0:5" in the list is thrown away by the fetch that meets it, as on BullMQ."""
    restore(core, queue, "0:5", WAITING)
    job = restore(core, queue, "x", WAITING)
    assert core.fetch(queue, T0, "t") is job
    assert "0:5" in queue.index


def test_the_history_is_there_and_gets_its_bound(core: Core, queue: Queue) -> None:
    """Finished jobs with a free id count, the oldest go first; those that were asked to be kept do not count."""
    for number in range(4):
        restore(core, queue, f"c{number}", COMPLETED, T0 + number, finished_on=T0 + number)
    restore(core, queue, "kept", COMPLETED, T0, finished_on=T0, opts=KEPT)
    restore(core, queue, "f", FAILED, T0, finished_on=T0)
    core.finish_restore(queue, T0 + 10)
    assert [job.id for job in queue.completed] == ["kept", "c2", "c3"]
    assert [job.id for job in queue.past[COMPLETED]] == ["c2", "c3"]
    assert [job.id for job in queue.failed] == ["f"]
    core.check()


def test_without_a_history_of_ours_nothing_is_trimmed(core: Core) -> None:
    """A queue of BullMQ's own rules keeps what it has."""
    queue = core.queue("bare")
    for number in range(4):
        restore(core, queue, str(number), COMPLETED, T0 + number, finished_on=T0 + number)
    assert core.finish_restore(queue, T0) == []
    assert len(queue.completed) == 4
    core.check()


def test_what_was_active_is_next_in_the_order_of_its_starts(core: Core, queue: Queue) -> None:
    """It comes back as stalled, before what waits, and is counted."""
    restore(core, queue, "w", WAITING)
    first, second = restore(core, queue, "a1", ACTIVE), restore(core, queue, "a2", ACTIVE)
    assert core.finish_restore(queue, T0) == ["a2", "a1"]
    assert [job.id for job in queue.wait] == ["a1", "a2", "w"]
    assert [job.extra.stalled_count for job in (first, second) if job.extra is not None] == [1, 1]
    core.check()


def test_keys_of_nobody_go(core: Core, queue: Queue) -> None:
    """Those that nobody would free, with what is parked behind them, and those whose time is over (case C32)."""
    restore(core, queue, "x", WAITING)
    for id, owner, until_ms in (
        ("owned", "x", None),
        ("orphan", "gone", None),
        ("throttled", "gone", T0 + 1),
        ("over", "x", T0),
    ):
        core.set_deduplication_key(queue, id, owner, until_ms)
        queue.parked[id] = Candidate(Deduplication(id=id), "p", "n", b"{}", FREE, T0, 0, 0, 0)
    core.finish_restore(queue, T0)
    assert set(queue.deduplication) == set(queue.parked) == {"owned", "throttled"}
    core.check()


def test_what_nobody_can_read_keeps_its_id(core: Core, queue: Queue) -> None:
    """It is shown with the reason, its id is taken, it never runs, and it can be removed."""
    core.keep_unreadable(queue, "x", "field data is no JSON")
    core.keep_unreadable(queue, "x", "another reason")
    (job,) = core.parked_jobs(queue)
    assert job.extra is not None
    assert (job.id, job.extra.failed_reason, job.flags & UNREADABLE) == ("x", "field data is no JSON", UNREADABLE)
    assert not isinstance(core.add(queue, "n", b"{}", FREE, T0, id="x"), Job)
    assert core.fetch(queue, T0, "t") is None
    assert core.remove(queue, "x", T0)
    assert (queue.unreadable, queue.index) == ({}, {})


def test_a_job_is_parked_by_its_name(core: Core, queue: Queue) -> None:
    """Only where nobody has defined it."""
    core.has_handler = lambda name: name == "n"
    assert not restore(core, queue, "x", WAITING).flags & PARKED
    other = Job("y", "unknown", b"{}", FREE, T0)
    core.restore_job(queue, other, WAITING, 0)
    assert other.flags & PARKED
    assert queue.unhandled == {"unknown": {other: None}}
