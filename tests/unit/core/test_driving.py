"""What a driver asks of the core: jobs that a store must have first, jobs that nobody can run, and looks at the line."""

from __future__ import annotations

import pytest

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import HELD, PARKED, WATCHED, Duplicate, Job, Repeat
from inproc_jobs.core.options import Backoff, Deduplication, JobOptions, Retention
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import COMPLETED, DELAYED, WAITING, JobState

T0 = 1_700_000_000_000
FREE = JobOptions(frees_id=True)
KEY = Deduplication(id="k")


@pytest.fixture
def core() -> Core:
    made = Core()
    made.listening = True
    return made


@pytest.fixture
def queue(core: Core) -> Queue:
    made = core.queue("q")
    made.history = {JobState.COMPLETED: 3, JobState.FAILED: 3}
    return made


def add(core: Core, queue: Queue, opts: JobOptions = FREE, now: int = T0, **more: object) -> Job:
    job = core.add(queue, "n", b"{}", opts, now, **more)  # type: ignore[arg-type]
    assert isinstance(job, Job)
    return job


def finished(core: Core, queue: Queue, id: str) -> Job:
    """A completed job whose id is free."""
    job = add(core, queue, id=id)
    assert core.fetch(queue, T0, "t") is job
    core.complete(queue, id, b"1", T0, "t")
    return job


# --- held for a store -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, 3])
def test_a_held_job_does_not_start_and_holds_up_nobody(core: Core, queue: Queue, priority: int) -> None:
    """Fetches step over a job that no store has; once confirmed it starts in its turn."""
    held = add(core, queue, flags=HELD, priority=priority)
    other = add(core, queue, priority=priority)
    assert core.is_unstored(queue, held)
    assert not core.is_unstored(queue, other)
    assert core.fetch(queue, T0, "t") is other
    assert core.fetch(queue, T0, "t") is None
    core.confirm(queue, held)
    core.confirm(queue, held)  # twice changes nothing more
    assert queue.held == 0
    assert not core.is_unstored(queue, held)
    assert core.fetch(queue, T0, "t") is held
    core.check()


def test_a_job_that_no_store_took_goes_as_if_it_had_never_come(core: Core, queue: Queue) -> None:
    """Withdrawn once, with its deduplication key; a second time there is nothing to withdraw."""
    job = add(core, queue, flags=HELD, deduplication=KEY)
    assert core.withdraw(queue, job)
    assert (job.state, queue.held, dict(queue.index)) == (JobState.REMOVED, 0, {})
    assert core.deduplication_owner(queue, "k", T0) is None
    assert not core.withdraw(queue, job)
    stored = add(core, queue)
    assert not core.withdraw(queue, stored)
    assert stored.state is WAITING
    core.check()


def test_removing_a_held_job_forgets_that_it_was_held(core: Core, queue: Queue) -> None:
    """The count of held jobs is in step, so that fetches do not look for held ones for ever."""
    job = add(core, queue, flags=HELD, id="x")
    assert core.remove(queue, "x", T0)
    assert (queue.held, job.state) == (0, JobState.REMOVED)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_finished_job_comes_back_with_its_id(core: Core, queue: Queue, confirmed: bool) -> None:
    """A held job took the id of a finished one: with the store's no that one is back, with its yes it is gone."""
    old = finished(core, queue, "x")
    new = add(core, queue, id="x", flags=HELD)
    assert queue.index["x"] is new
    if confirmed:
        core.confirm(queue, new)
        assert not core.withdraw(queue, new)
        assert queue.displaced == {}
        assert queue.index["x"] is new
        assert list(queue.completed) == []
    else:
        assert core.withdraw(queue, new)
        assert queue.index["x"] is old
        assert (old.state, list(queue.completed), list(queue.past[COMPLETED])) == (COMPLETED, [old], [old])
        assert core.id_is_free(old)
    core.check()


def test_a_replaced_job_comes_back_with_its_key(core: Core, queue: Queue) -> None:
    """A held debounce pushed a delayed owner out: withdrawn, the owner is delayed as before and owns the key again."""
    rule = Deduplication(id="k", ttl_ms=5000, replace=True, extend=True)
    old = add(core, queue, delay=5000, deduplication=rule)
    new = add(core, queue, now=T0 + 1000, delay=5000, deduplication=rule, flags=HELD)
    assert old.state is JobState.REMOVED
    assert core.withdraw(queue, new)
    assert (old.state, old.due_ms, list(queue.delayed)) == (DELAYED, T0 + 5000, [old])
    assert core.deduplication_owner(queue, "k", T0 + 4999) == old.id
    assert core.deduplication_owner(queue, "k", T0 + 5000) is None
    core.check()


def test_a_chain_of_held_replacements_ends_at_what_a_store_has(core: Core, queue: Queue) -> None:
    """Neither of two held jobs was stored: when the later is withdrawn, the stored one that both replaced is back."""
    rule = Deduplication(id="k", replace=True)
    stored = add(core, queue, delay=5000, deduplication=rule)
    first = add(core, queue, delay=5000, deduplication=rule, flags=HELD)
    second = add(core, queue, delay=5000, deduplication=rule, flags=HELD)
    assert core.is_unstored(queue, first)
    assert queue.held == 1
    assert core.withdraw(queue, second)
    assert queue.index == {stored.id: stored}
    assert core.deduplication_owner(queue, "k", T0) == stored.id
    assert not core.is_unstored(queue, first)
    core.check()


def test_a_replaced_job_does_not_take_an_id_back_that_somebody_has(core: Core, queue: Queue) -> None:
    """Meanwhile another job took the id: that one stays."""
    rule = Deduplication(id="k", replace=True)
    add(core, queue, id="x", delay=5000, deduplication=rule)
    new = add(core, queue, id="y", delay=5000, deduplication=rule, flags=HELD)
    other = add(core, queue, id="x")
    assert core.withdraw(queue, new)
    assert queue.index == {"x": other}
    core.check()


def test_a_held_collapse_leaves_nothing_behind_for_the_next(core: Core, queue: Queue) -> None:
    """A finished job made way for a held add that then collapsed: no later job may bring it back."""
    finished(core, queue, "x")
    owner = add(core, queue, id="o", deduplication=KEY)
    answer = core.add(queue, "n", b"{}", FREE, T0, id="x", deduplication=KEY, flags=HELD)
    assert answer == Duplicate("o", owner)
    assert queue.displacing == []
    later = add(core, queue, flags=HELD)
    assert later not in queue.displaced
    assert core.withdraw(queue, later)
    assert set(queue.index) == {"o"}


def test_parked_adds_are_withdrawn_and_confirmed(core: Core, queue: Queue) -> None:
    """Of adds kept for the end of an active owner, the store's no brings back the one that was overwritten."""
    rule = Deduplication(id="k", keep_last=True)
    owner = add(core, queue, deduplication=rule)
    assert core.fetch(queue, T0, "t") is owner
    for number in range(3):
        core.add(queue, "n", b"%d" % number, FREE, T0, deduplication=rule, flags=HELD if number else 0)
    last = queue.parked["k"]
    assert (last.data, last.flags & HELD) == (b"2", HELD)
    assert core.withdraw_parked(queue, last)
    assert queue.parked["k"].data == b"0"  # neither 1 nor 2 is stored
    assert not core.withdraw_parked(queue, last)
    core.add(queue, "n", b"3", FREE, T0, deduplication=rule, flags=HELD)
    kept = queue.parked["k"]
    core.confirm_parked(kept)
    assert (kept.flags & HELD, kept.over) == (0, None)
    core.complete(queue, owner.id, b"1", T0, "t")
    follower = core.fetch(queue, T0, "t")
    assert follower is not None
    assert follower.data == b"3"
    core.check()


def test_a_parked_add_that_is_the_first_is_withdrawn_to_nothing(core: Core, queue: Queue) -> None:
    """Nothing follows the owner then."""
    rule = Deduplication(id="k", keep_last=True)
    owner = add(core, queue, deduplication=rule)
    core.fetch(queue, T0, "t")
    core.add(queue, "n", b"1", FREE, T0, deduplication=rule, flags=HELD)
    assert core.withdraw_parked(queue, queue.parked["k"])
    core.complete(queue, owner.id, b"1", T0, "t")
    assert core.fetch(queue, T0, "t") is None


def test_a_parked_add_that_is_still_held_follows_as_a_held_job(core: Core, queue: Queue) -> None:
    """The owner ended before the store's answer: the follower is made, and does not start before it."""
    rule = Deduplication(id="k", keep_last=True)
    owner = add(core, queue, deduplication=rule)
    core.fetch(queue, T0, "t")
    core.add(queue, "n", b"1", FREE, T0, deduplication=rule, flags=HELD)
    core.complete(queue, owner.id, b"1", T0, "t")
    assert queue.held == 1
    assert core.fetch(queue, T0, "t") is None
    follower = queue.wait.head()
    assert follower is not None
    core.confirm(queue, follower)
    assert core.fetch(queue, T0, "t") is follower


# --- nobody can run them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, 3])
def test_jobs_without_a_handler_are_stepped_over_until_it_is_there(core: Core, queue: Queue, priority: int) -> None:
    """A store's job of an unknown name keeps its place and its state; defining the name lets it run in its turn."""
    core.has_handler = lambda name: name != "gone"
    jobs = [Job(str(n), "gone" if n == 1 else "here", b"{}", FREE, T0, priority=priority) for n in (1, 2, 3)]
    for number, job in enumerate(jobs):
        state = JobState.PRIORITIZED if priority else WAITING
        core.restore_job(queue, job, state, (priority << 32 | number) if priority else 0)
    assert [job.id for job in core.parked_jobs(queue)] == ["1"]
    assert core.has_runnable(queue)
    assert core.fetch(queue, T0, "t") is jobs[1]
    assert core.unpark(queue, "gone") == 1
    assert core.unpark(queue, "gone") == 0
    assert core.parked_jobs(queue) == []
    assert [core.fetch(queue, T0, "t") for _ in range(3)] == [jobs[0], jobs[2], None]
    core.check()


def test_a_queue_of_parked_jobs_has_nothing_to_run(core: Core, queue: Queue) -> None:
    """Neither now nor by itself later: so an engine does not wait for them."""
    core.has_handler = lambda name: False
    core.restore_job(queue, Job("1", "gone", b"{}", FREE, T0), WAITING, 0)
    core.restore_job(queue, Job("2", "gone", b"{}", FREE, T0), DELAYED, T0 + 5)
    assert not core.has_runnable(queue)
    assert not core.has_pending_delays(queue)
    assert core.fetch(queue, T0, "t") is None
    assert [job.id for job in core.parked_jobs(queue)] == ["1", "2"]
    add(core, queue, delay=5)
    assert core.has_pending_delays(queue)


def test_removing_a_parked_job_forgets_that_it_was_parked(core: Core, queue: Queue) -> None:
    """Nothing is stepped over any more."""
    core.has_handler = lambda name: False
    job = Job("1", "gone", b"{}", FREE, T0)
    core.restore_job(queue, job, WAITING, 0)
    assert job.flags & PARKED
    assert core.remove(queue, "1", T0)
    assert not any(queue.unhandled.values())


# --- looks at the line ----------------------------------------------------------------------------------------------


def test_pending_iterations_are_no_delays_to_wait_for(core: Core, queue: Queue) -> None:
    """They never end; they are counted by themselves."""
    core.upsert_scheduler(queue, "s", "n", b"{}", Repeat(every=1000, start_ms=T0 + 500), JobOptions(), T0)
    assert not core.has_pending_delays(queue)
    assert len(core.planned_ids(queue)) == 1
    add(core, queue, delay=5)
    assert core.has_pending_delays(queue)
    core.promote_due(queue, T0 + 1000)
    assert core.planned_ids(queue) == set()


def test_the_oldest_that_waits(core: Core, queue: Queue) -> None:
    """The head of either line, whichever was made first."""
    assert core.oldest_waiting_ms(queue) is None
    add(core, queue, now=T0 + 2)
    assert core.oldest_waiting_ms(queue) == T0 + 2
    add(core, queue, now=T0 + 1, priority=1)
    assert core.oldest_waiting_ms(queue) == T0 + 1


def test_active_jobs_go_back_in_their_old_order(core: Core, queue: Queue) -> None:
    """The loop that ran them is gone: they are next again, no attempt is counted."""
    jobs = [add(core, queue) for _ in range(3)]
    for job in jobs[:2]:
        assert core.fetch(queue, T0, "0") is job
    core.reset_active(queue, T0)
    assert list(queue.wait) == jobs
    assert [job.attempts_made for job in jobs] == [0, 0, 0]
    core.check()


def test_a_stalled_job_is_put_back_once_and_then_condemned(core: Core, queue: Queue) -> None:
    """One stall is survived; the next start of a job that stalled too often fails it."""
    job = add(core, queue, JobOptions(attempts=5, backoff=Backoff(delay_ms=0)))
    for stalls in (1, 2):
        assert core.fetch(queue, T0, "t") is job
        assert core.recover_stalled(queue, job.id, T0)
        assert not core.recover_stalled(queue, job.id, T0)
        assert job.extra is not None
        assert job.extra.stalled_count == stalls
        assert (job.extra.deferred_failure is not None) is (stalls == 2)
    assert not core.recover_stalled(queue, "nobody", T0)


def test_a_due_time_stays_known_after_promotion(core: Core, queue: Queue) -> None:
    """`scheduled_ms` is when the latest attempt was due, with and without a priority, and after a retry."""
    plain, urgent = add(core, queue, delay=100), add(core, queue, delay=100, priority=1)
    at_once = add(core, queue, JobOptions(attempts=2, backoff=Backoff(delay_ms=300)))
    core.promote_due(queue, T0 + 200)
    assert [job.scheduled_ms for job in (plain, urgent, at_once)] == [T0 + 100, T0 + 100, T0]
    assert core.fetch(queue, T0 + 200, "t") is at_once
    core.fail(queue, at_once.id, "no", None, T0 + 250, "t")
    core.promote_due(queue, T0 + 600)
    assert at_once.scheduled_ms == T0 + 550


def test_removal_tells_watchers_but_not_of_finished_jobs(core: Core, queue: Queue) -> None:
    """A finished job has told its outcome already."""
    waiting = add(core, queue, id="w", flags=WATCHED)
    core.remove(queue, "w", T0)
    assert core.ended == [waiting]
    core.ended.clear()
    done = add(core, queue, JobOptions(remove_on_complete=Retention()), id="d", flags=WATCHED)
    core.fetch(queue, T0, "t")
    core.complete(queue, "d", b"1", T0, "t")
    core.ended.clear()
    core.remove(queue, "d", T0)
    assert core.ended == []
    assert (done.state, done.result) == (JobState.REMOVED, b"1")
