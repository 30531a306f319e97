"""The rules that are ours (DESIGN 2): free ids, bounded history, full queues, watched jobs, steps of the clock."""

from __future__ import annotations

import pytest

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import ABSOLUTE_DUE, WATCHED, Duplicate, Job
from inproc_jobs.core.options import Deduplication, JobOptions, Limiter, Retention, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import JobState
from inproc_jobs.errors import QueueFullError

T0 = 1_700_000_000_000
FREE = JobOptions(frees_id=True)
KEPT = JobOptions(frees_id=True, remove_on_complete=Retention(), remove_on_fail=Retention())


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def queue(core: Core) -> Queue:
    made = core.queue("q")
    made.history = {JobState.COMPLETED: 3, JobState.FAILED: 2}
    return made


def add(core: Core, queue: Queue, opts: JobOptions = FREE, **more: object) -> Job:
    job = core.add(queue, "n", b"{}", opts, T0, **more)  # type: ignore[arg-type]
    assert isinstance(job, Job)
    return job


def finish(core: Core, queue: Queue, job: Job, *, fail: bool = False, now: int = T0) -> None:
    while core.fetch(queue, now, "t") is not job:
        pass
    if fail:
        core.fail(queue, job.id, "no", None, now, "t")
    else:
        core.complete(queue, job.id, b'"done"', now, "t")


# --- 2.1: when an id is free again --------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", [False, True])
def test_a_finished_job_gives_its_id_back(core: Core, queue: Queue, fail: bool) -> None:
    """An add with the id of a finished job starts a fresh run and replaces the record, silently."""
    old = add(core, queue, id="x")
    finish(core, queue, old, fail=fail)
    core.listening = True
    new = add(core, queue, id="x")
    assert new is not old
    assert queue.index["x"] is new
    assert old.state is JobState.REMOVED
    assert [event.name for event in core.take_events()] == ["added", "waiting"]
    core.check()


def test_a_living_job_keeps_its_id(core: Core, queue: Queue) -> None:
    """In every state before the end an add with the id is a no-op that names the living job."""
    for place in ({}, {"delay": 50}, {"priority": 3}, {"has_children": True}):
        living = add(core, queue, id="x", **place)
        again = core.add(queue, "n", b'{"other":1}', FREE, T0, id="x")
        assert isinstance(again, Duplicate)
        assert again.job is living
        assert living.data == b"{}"
        core.remove(queue, "x", T0)


def test_retention_that_was_asked_for_keeps_the_id(core: Core, queue: Queue) -> None:
    """A job that is kept on request blocks its id, whatever the default does."""
    kept = add(core, queue, KEPT, id="x")
    finish(core, queue, kept)
    assert isinstance(core.add(queue, "n", b"{}", FREE, T0, id="x"), Duplicate)


def test_history_evicts_the_oldest_of_its_own_only(core: Core, queue: Queue) -> None:
    """The bound counts jobs with a free id; one whose id is kept neither counts nor goes."""
    kept = add(core, queue, KEPT, id="kept")
    finish(core, queue, kept)
    jobs = [add(core, queue) for _ in range(5)]
    for number, job in enumerate(jobs):
        finish(core, queue, job, now=T0 + number)
    assert [job.id for job in queue.completed] == ["kept", *(job.id for job in jobs[2:])]
    assert jobs[0].result == b'"done"'
    core.check()


def test_history_is_counted_per_outcome(core: Core, queue: Queue) -> None:
    """Completed and failed jobs have bounds of their own."""
    for number in range(4):
        finish(core, queue, add(core, queue), fail=False, now=T0 + number)
        finish(core, queue, add(core, queue), fail=True, now=T0 + number)
    assert (len(queue.completed), len(queue.failed)) == (3, 2)
    core.check()


def test_a_retried_job_leaves_the_history(core: Core, queue: Queue) -> None:
    """A job that runs again no longer counts, and counts anew when it has ended again."""
    first, second = add(core, queue), add(core, queue)
    finish(core, queue, first, fail=True)
    finish(core, queue, second, fail=True, now=T0 + 1)
    core.retry(queue, first.id, T0 + 2)
    core.check()
    core.fetch(queue, T0 + 4, "t")
    core.fail(queue, first.id, "no", None, T0 + 4, "t")
    assert [job.id for job in queue.failed] == [second.id, first.id]
    finish(core, queue, add(core, queue), fail=True, now=T0 + 5)
    assert next(job.id for job in queue.failed) == first.id
    core.check()


# --- 2.11: full queues --------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_stays_as_it_was(core: Core, queue: Queue) -> None:
    """Waiting, prioritized and delayed jobs count together; the refusal changes nothing, not even the counter."""
    queue.max_waiting = 3
    add(core, queue)
    add(core, queue, priority=1)
    add(core, queue, delay=10)
    with pytest.raises(QueueFullError) as caught:
        core.add(queue, "n", b"{}", FREE, T0, id="x")
    assert (caught.value.queue, caught.value.max_waiting) == ("q", 3)
    assert queue.counter == 3
    assert "x" not in queue.index
    core.fetch(queue, T0, "t")
    add(core, queue, id="x")


def test_a_full_queue_still_tells_duplicates(core: Core, queue: Queue) -> None:
    """What makes no new job needs no place: an id that is taken, a deduplication id that is held."""
    queue.max_waiting = 1
    once = Deduplication(id="D")
    job = add(core, queue, id="x", deduplication=once)
    assert isinstance(core.add(queue, "n", b"{}", FREE, T0, id="x"), Duplicate)
    same = core.add(queue, "n", b"{}", FREE, T0, deduplication=once)
    assert isinstance(same, Duplicate)
    assert same.job is job


def test_a_promised_place_is_not_given_away(core: Core, queue: Queue) -> None:
    """Places reserved for the rest of a bulk count as taken."""
    queue.max_waiting, queue.reserved = 2, 2
    with pytest.raises(QueueFullError):
        add(core, queue)


# --- watched jobs -------------------------------------------------------------------------------------------------


def test_watchers_hear_of_every_end_once(core: Core, queue: Queue) -> None:
    """Completed, failed, and removed in any way: each is reported once, and can still be read afterwards."""
    completed, failed = add(core, queue, flags=WATCHED), add(core, queue, flags=WATCHED)
    finish(core, queue, completed)
    finish(core, queue, failed, fail=True)
    assert core.take_ended() == [completed, failed]
    assert (completed.result, failed.more().failed_reason) == (b'"done"', "no")
    core.clean(queue, -1, 0, "completed", T0)
    core.remove(queue, failed.id, T0)
    assert core.take_ended() == []
    assert completed.state is failed.state is JobState.REMOVED
    assert (completed.result, completed.finished_on, failed.finished_on) == (b'"done"', T0, T0)


@pytest.mark.parametrize(
    ("place", "removal"),
    [
        ({}, lambda core, queue, job: core.remove(queue, job.id, T0)),
        ({"priority": 2}, lambda core, queue, job: core.drain(queue, T0)),
        ({"delay": 9}, lambda core, queue, job: core.drain(queue, T0, delayed=True)),
        ({"delay": 9}, lambda core, queue, job: core.clean(queue, 0, 0, "delayed", T0)),
        ({}, lambda core, queue, job: core.obliterate(queue, T0)),
        (
            {"delay": 9, "deduplication": Deduplication(id="D")},
            lambda core, queue, job: core.add(
                queue, "n", b"{}", FREE, T0, deduplication=Deduplication(id="D", replace=True)
            ),
        ),
    ],
    ids=["remove", "drain", "drain delayed", "clean", "obliterate", "replaced"],
)
def test_watchers_hear_of_removals(core: Core, queue: Queue, place: dict, removal: object) -> None:
    """A job that goes before its end is reported, in no state and without a moment of its end."""
    job = add(core, queue, flags=WATCHED, **place)
    removal(core, queue, job)  # type: ignore[operator]
    assert core.take_ended() == [job]
    assert job.state is JobState.REMOVED
    assert job.finished_on is None
    core.check()


def test_watchers_hear_of_a_job_that_is_deleted_at_its_end(core: Core, queue: Queue) -> None:
    """With removal on completion the record is gone from the queue, and its outcome still there."""
    job = add(core, queue, JobOptions(remove_on_complete=Retention(count=0)), flags=WATCHED)
    finish(core, queue, job)
    assert core.take_ended() == [job]
    assert (job.state, job.result, job.finished_on) == (JobState.REMOVED, b'"done"', T0)
    assert job.id not in queue.index


# --- 2.7: a step of the wall clock --------------------------------------------------------------------------------


def test_durations_move_with_the_clock_and_dates_stay(core: Core, queue: Queue) -> None:
    """After a step back what was asked for "in 10 s" is still due 10 s later; a date stays a date."""
    relative = add(core, queue, delay=10_000)
    dated = add(core, queue, delay=10_000, flags=ABSOLUTE_DUE)
    core.shift_clock(-3_600_000)
    assert relative.due_ms == T0 + 10_000 - 3_600_000
    assert dated.due_ms == T0 + 10_000
    assert core.next_wake_ms(queue, T0 - 3_600_000) == relative.due_ms
    core.check()


def test_lifetimes_move_with_the_clock(core: Core, queue: Queue) -> None:
    """Deduplication windows, rate windows and locks are as long after a step as before."""
    throttled = Deduplication(id="D", ttl_ms=1000)
    add(core, queue, deduplication=throttled)
    limited = WorkerOptions(limiter=Limiter(max=1, duration_ms=1000), lock_ms=1000)
    job = core.fetch(queue, T0, "t", limited)
    assert job is not None
    core.shift_clock(-5000)
    now = T0 - 5000
    assert core.deduplication_owner(queue, "D", now + 999) == job.id
    assert core.deduplication_owner(queue, "D", now + 1000) is None
    assert core.limited_until_ms(queue, now + 999, limited) == now + 1000
    assert core.is_locked(queue, job.id, now + 999)
    assert not core.is_locked(queue, job.id, now + 1000)
    core.check()


# --- order and memory ---------------------------------------------------------------------------------------------


def test_more_than_4096_jobs_due_in_one_millisecond_keep_their_order(core: Core, queue: Queue) -> None:
    """BullMQ's scores run out of room there; ours do not."""
    jobs = [add(core, queue, delay=5) for _ in range(5000)]
    started = []
    while (job := core.fetch(queue, T0 + 5, "t")) is not None:
        started.append(job)
    assert started == jobs


def test_a_due_time_in_the_far_future_is_exact(core: Core, queue: Queue) -> None:
    """A date in the year 2300 is kept to the millisecond, where BullMQ's scores lose precision after 2039."""
    due = 10_413_792_000_001
    job = add(core, queue, delay=due - T0)
    assert job.due_ms == due
    assert core.fetch(queue, due - 1, "t") is None
    assert core.fetch(queue, due, "t") is job


def test_deduplication_ids_used_once_do_not_pile_up(core: Core, queue: Queue) -> None:
    """Keys whose time is over are dropped by the way, without anybody asking for them."""
    for number in range(1000):
        job = core.add(queue, "n", b"{}", FREE, T0 + number, deduplication=Deduplication(id=f"D{number}", ttl_ms=10))
        assert isinstance(job, Job)
    assert len(queue.deduplication) < 50
    assert len(queue.deduplication_ends) < 50
    core.check()


def test_a_window_that_is_extended_for_ever_has_one_entry(core: Core, queue: Queue) -> None:
    """Restarting a window again and again does not make its bookkeeping grow."""
    sliding = Deduplication(id="D", ttl_ms=10, extend=True)
    for number in range(1000):
        core.add(queue, "n", b"{}", FREE, T0 + number * 7, deduplication=sliding)
    assert len(queue.deduplication_ends) == 1
    assert len(queue.wait) == 1
