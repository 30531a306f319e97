"""Schedules in the core: what is ours about them (catch_up, a clock that is set back), and slots of intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import LIFO, Job, Repeat
from inproc_jobs.core.options import Backoff, JobOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.schedulers import next_slot
from inproc_jobs.core.states import DELAYED, JobState
from inproc_jobs.errors import JobSchedulerError

T0 = 1_700_000_000_000
EVERY = 100


@pytest.fixture
def core() -> Core:
    made = Core()
    made.listening = True
    return made


@pytest.fixture
def queue(core: Core) -> Queue:
    return core.queue("q")


def hundreds(repeat: Repeat, after_ms: int) -> int | None:
    """A pattern that matches each full 100 ms."""
    moment = (after_ms // EVERY + 1) * EVERY
    return None if repeat.end_ms and moment > repeat.end_ms else moment


def upsert(core: Core, queue: Queue, now: int = T0, *, pattern: bool = True, **more: object) -> Job | None:
    kind: dict[str, object] = {"pattern": "*"} if pattern else {"every": EVERY}
    repeat = Repeat(**{**kind, **more})  # type: ignore[arg-type]
    return core.upsert_scheduler(queue, "s", "n", b"{}", repeat, JobOptions(attempts=3), now, next_match=hundreds)


def start(core: Core, queue: Queue, now: int) -> tuple[str | None, bool]:
    """Start what is due: its id, and whether it is to be run."""
    job = core.fetch(queue, now, "0")
    if job is None:
        return None, False
    return job.id, core.start_iteration(queue, job, now, hundreds)


def iteration(after: int) -> str:
    return f"repeat:s:{T0 + after}"


# --- missed moments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [True, False], ids=["pattern", "every"])
def test_once_runs_one_late_and_skips_to_the_next(core: Core, queue: Queue, pattern: bool) -> None:
    """Of 100 to 500 that passed, 100 runs late; the next is 600, which knows it is 600."""
    upsert(core, queue, pattern=pattern, start_ms=T0 + 100 - pattern)
    assert start(core, queue, T0 + 550) == (iteration(100), True)
    assert [job.id for job in queue.delayed] == [iteration(600)]
    assert core.fetch(queue, T0 + 599, "0") is None
    core.check()


@pytest.mark.parametrize("pattern", [True, False], ids=["pattern", "every"])
def test_all_runs_each_and_each_knows_its_moment(core: Core, queue: Queue, pattern: bool) -> None:
    """100 to 500 in their order, then 600 in time."""
    upsert(core, queue, pattern=pattern, start_ms=T0 + 100 - pattern, catch_up="all")
    for moment in range(100, 600, 100):
        job = core.fetch(queue, T0 + 550, "0")
        assert job is not None
        assert (job.id, job.scheduled_ms) == (iteration(moment), T0 + moment)
        assert core.start_iteration(queue, job, T0 + 550, hundreds)
        core.complete(queue, job.id, b"1", T0 + 550)
    assert core.fetch(queue, T0 + 550, "0") is None
    assert [job.due_ms for job in queue.delayed] == [T0 + 600]
    core.check()


@pytest.mark.parametrize("pattern", [True, False], ids=["pattern", "every"])
def test_skip_runs_none_of_them(core: Core, queue: Queue, pattern: bool) -> None:
    """The late one is removed, told as such and not counted among the active; the next runs in time."""
    upsert(core, queue, pattern=pattern, start_ms=T0 + 100 - pattern, catch_up="skip")
    assert start(core, queue, T0 + 550) == (iteration(100), False)
    assert iteration(100) not in queue.index
    assert (list(queue.active), dict(queue.locks)) == ([], {})
    told = [dict(event.fields) for event in core.events if event.name == "removed"]
    assert told == [{"jobId": iteration(100), "prev": "active"}]
    assert start(core, queue, T0 + 600) == (iteration(600), True)
    core.check()


@pytest.mark.parametrize(("late", "runs"), [(0, True), (99, True), (100, False), (101, False)])
@pytest.mark.parametrize("pattern", [True, False], ids=["pattern", "every"])
def test_skip_skips_once_the_next_moment_is_there(
    core: Core, queue: Queue, late: int, runs: bool, pattern: bool
) -> None:
    """Merely late is not missed: a run is skipped from the millisecond on in which the next one is due."""
    upsert(core, queue, pattern=pattern, start_ms=T0 + 100 - pattern, catch_up="skip")
    assert start(core, queue, T0 + 100 + late) == (iteration(100), runs)


def test_skip_lets_retries_be(core: Core, queue: Queue) -> None:
    """A retry is late by nature; the attempt that belongs to the moment was in time."""
    repeat = Repeat(every=EVERY, start_ms=T0 + 100, catch_up="skip")
    opts = JobOptions(attempts=3, backoff=Backoff(delay_ms=1000))
    core.upsert_scheduler(queue, "s", "n", b"{}", repeat, opts, T0)
    assert start(core, queue, T0 + 100) == (iteration(100), True)
    core.fail(queue, iteration(100), "no", None, T0 + 100)
    core.remove_scheduler(queue, "s")
    assert start(core, queue, T0 + 1100) == (iteration(100), True)


def test_a_job_of_no_scheduler_is_just_run(core: Core, queue: Queue) -> None:
    """There is nothing to plan."""
    core.add(queue, "n", b"{}", JobOptions(), T0)
    assert start(core, queue, T0) == ("1", True)
    assert len(queue.index) == 1


def test_the_moments_before_an_end_are_made_up_for_after_it(core: Core, queue: Queue) -> None:
    """With "all" the end is that of the schedule, not of the time in which it can be worked off."""
    upsert(core, queue, end_ms=T0 + 350, catch_up="all")
    ids = [start(core, queue, T0 + 1000)[0] for _ in range(4)]
    assert ids == [iteration(100), iteration(200), iteration(300), None]


def test_a_limit_counts_every_iteration(core: Core, queue: Queue) -> None:
    """The third of two is not made, and the scheduler stays known."""
    upsert(core, queue, limit=2)
    ids = [start(core, queue, T0 + moment)[0] for moment in (100, 200, 300)]
    assert ids == [iteration(100), iteration(200), None]
    assert set(queue.schedulers) == {"s"}
    assert upsert(core, queue, limit=0) is None


# --- a clock that is set back ---------------------------------------------------------------------------------------


def test_pending_iterations_are_planned_anew(core: Core, queue: Queue) -> None:
    """Planned for the wrong future they would be silent until the clock has caught up."""
    upsert(core, queue, T0 + 1_000_000)
    (old,) = queue.delayed
    core.reschedule_all(T0, hundreds)
    (new,) = queue.delayed
    assert old.state is JobState.REMOVED
    assert (new.id, new.due_ms, queue.schedulers["s"].next_ms) == (iteration(100), T0 + 100, T0 + 100)
    core.check()


def test_an_interval_keeps_its_phase_and_its_start(core: Core, queue: Queue) -> None:
    """Not before `start`, and at `start` itself; without one at the first moment of its phase that is to come."""
    upsert(core, queue, pattern=False, start_ms=T0 + 130)
    assert start(core, queue, T0 + 1_000_000)[0] == iteration(130)
    core.reschedule_all(T0, hundreds)
    assert [job.due_ms for job in queue.delayed] == [T0 + 130]
    core.reschedule_all(T0 + 130, hundreds)
    assert [job.due_ms for job in queue.delayed] == [T0 + 130]


@pytest.mark.parametrize(("now", "due"), [(0, 30), (29, 30), (30, 130), (31, 130)])
def test_an_interval_without_a_start_goes_back_to_its_phase(core: Core, queue: Queue, now: int, due: int) -> None:
    """The next moment is strictly later than the corrected time."""
    upsert(core, queue, T0 + 1_000_030, pattern=False)
    assert start(core, queue, T0 + 1_000_030)[1]
    core.reschedule_all(T0 + now, hundreds)
    (job,) = queue.delayed
    assert (job.due_ms, job.id, job.delay) == (T0 + due, iteration(due), due - now)
    core.check()


def test_what_is_due_earlier_or_runs_stays(core: Core, queue: Queue) -> None:
    """Only what the jump has put off is planned anew: not what is due before, and not what is no longer delayed."""
    upsert(core, queue)
    (pending,) = queue.delayed
    core.reschedule_all(T0 + 50, hundreds)
    assert list(queue.delayed) == [pending]
    core.promote_due(queue, T0 + 100)
    core.reschedule_all(T0 - 5000, hundreds)
    assert list(queue.wait) == [pending]


def test_an_iteration_keeps_its_number_when_it_is_planned_anew(core: Core, queue: Queue) -> None:
    """It is the same iteration: the limit is not used up by corrections."""
    upsert(core, queue, T0 + 1_000_000, limit=1)
    for _ in range(3):
        core.reschedule_all(T0, hundreds)
    assert start(core, queue, T0 + 100) == (iteration(100), True)
    assert list(queue.delayed) == []


# --- ids that are taken ---------------------------------------------------------------------------------------------


def test_a_running_iteration_of_the_same_moment_is_not_overwritten(core: Core, queue: Queue) -> None:
    """A pattern that is to start immediately, twice in one millisecond: -10, nothing has changed."""
    job = upsert(core, queue, immediately=True)
    assert job is not None
    assert core.fetch(queue, T0, "0") is job
    with pytest.raises(JobSchedulerError) as caught:
        upsert(core, queue, immediately=True)
    assert caught.value.code == -10
    assert queue.index[iteration(0)] is job


def test_an_id_that_is_taken_is_refused_for_a_pattern(core: Core, queue: Queue) -> None:
    """Where no pending iteration is replaced: -10."""
    core.add(queue, "n", b"{}", JobOptions(), T0, id=iteration(100))
    with pytest.raises(JobSchedulerError) as caught:
        upsert(core, queue)
    assert caught.value.code == -10


def test_a_job_that_names_a_scheduler_without_a_rule_plans_nothing(core: Core, queue: Queue) -> None:
    """As a record of an older version may."""
    upsert(core, queue)
    job = core.fetch(queue, T0 + 100, "0")
    assert job is not None
    job.more().repeat = None
    assert core.schedule_next(queue, job, T0 + 100, hundreds) is None
    assert core.start_iteration(queue, job, T0 + 100, hundreds)


def test_an_iteration_goes_over_a_finished_one_of_its_moment(core: Core, queue: Queue) -> None:
    """A clock that was set back comes to the same moment again: the old record gives way, nothing is listed twice."""
    upsert(core, queue)
    assert start(core, queue, T0 + 100)[1]
    core.complete(queue, iteration(100), b"1", T0 + 100)
    core.reschedule_all(T0, hundreds)
    (job,) = queue.delayed
    assert (job.id, job.state, queue.index[job.id]) == (iteration(100), DELAYED, job)
    assert list(queue.completed) == []
    core.check()


def test_a_template_hands_its_options_to_each_iteration(core: Core, queue: Queue) -> None:
    """Priority, front and deduplication id, the last without taking the key (spec section 11.1)."""
    upsert(core, queue, priority=4, lifo=True, deduplication_id="k")
    for moment in (100, 200):
        (job,) = queue.delayed
        assert job.extra is not None
        assert (job.priority, job.flags & LIFO, job.extra.deduplication_id) == (4, LIFO, "k")
        assert start(core, queue, T0 + moment)[1]
    assert core.deduplication_owner(queue, "k", T0 + 200) is None


# --- slots ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**7), st.integers(0, 10**7), st.integers(0, 10**9))
def test_a_slot_is_later_in_phase_and_the_first(every: int, phase: int, late: int) -> None:
    """After `previous` comes previous + every, or where that is over the first moment of the phase after now."""
    previous = T0 // every * every + phase % every
    now = previous + late
    moment, offset = next_slot(previous, every, now, phase % every, None)
    assert (moment - previous) % every == 0
    assert moment == previous + every or (now < moment <= now + every)
    assert moment >= now
    assert offset == previous % every


def test_an_interval_steps_over_ids_that_are_taken(core: Core, queue: Queue) -> None:
    """Registered again while a run is active the next free slot is taken; after 32 taken ones it is refused (-11)."""
    upsert(core, queue, pattern=False)
    assert core.fetch(queue, T0, "0") is not None
    for step in (1, 2):
        core.add(queue, "n", b"{}", JobOptions(), T0, id=iteration(EVERY * step))
    job = upsert(core, queue, pattern=False)
    assert job is not None
    assert (job.id, job.due_ms) == (iteration(300), T0 + 300)
    core.remove_scheduler(queue, "s")
    assert core.fetch(queue, T0, "0") is not None
    core.check()


def test_an_interval_gives_up_after_32_taken_ids(core: Core, queue: Queue) -> None:
    """And nothing has changed."""
    upsert(core, queue, pattern=False)
    assert core.fetch(queue, T0, "0") is not None
    for step in range(1, 34):
        core.add(queue, "n", b"{}", JobOptions(), T0, id=iteration(EVERY * step))
    with pytest.raises(JobSchedulerError) as caught:
        upsert(core, queue, pattern=False)
    assert caught.value.code == -11
    assert list(queue.delayed) == []
    core.check()
