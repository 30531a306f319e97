"""Details of commands that the traces do not pin: moments, slices, answers, and what must stay untouched."""

from __future__ import annotations

import pytest

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import ABSOLUTE_DUE, LIFO, WATCHED, Job, ParentLink, Repeat
from inproc_jobs.core.options import Backoff, Deduplication, JobOptions, Limiter, Retention, WorkerOptions
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import DELAYED, JobState
from inproc_jobs.errors import JobLockMismatchError, JobLockMissingError, JobNotInStateError, QueueBusyError

T0 = 1_700_000_000_001  # odd: no sum of small numbers equals a bitwise operation on it by chance
PLAIN = JobOptions()
LIMITED = WorkerOptions(limiter=Limiter(max=2, duration_ms=1001))


@pytest.fixture
def core() -> Core:
    made = Core()
    made.listening = True
    return made


@pytest.fixture
def queue(core: Core) -> Queue:
    return core.queue("q")


def add(core: Core, queue: Queue, opts: JobOptions = PLAIN, now: int = T0, **more: object) -> Job:
    job = core.add(queue, "n", b"{}", opts, now, **more)  # type: ignore[arg-type]
    assert isinstance(job, Job)
    return job


def told(core: Core, name: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in core.events if event.name == name]


# --- coming in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["options", "flag"])
def test_lifo_by_the_options_or_by_the_job(core: Core, queue: Queue, how: str) -> None:
    """Either puts the job before all that wait; a plain one is not moved by its other flags."""
    opts, flags = (JobOptions(lifo=True), 0) if how == "options" else (PLAIN, LIFO)
    first = add(core, queue)
    plain = add(core, queue, flags=WATCHED)
    front = add(core, queue, opts, flags=flags)
    assert list(queue.wait) == [front, first, plain]


def test_a_kept_add_follows_with_its_own_delay_priority_and_front(core: Core, queue: Queue) -> None:
    """What was asked for by the add that follows an active owner counts from the end of that owner."""
    rule = Deduplication(id="k", keep_last=True)
    for more, home in (
        ({"delay": 500}, queue.delayed),
        ({"priority": 3}, queue.prioritized),
        ({"priority": -3}, queue.wait),  # which leads to prioritized from an add, and not from here, as on BullMQ
        ({"flags": LIFO}, queue.wait),
    ):
        owner = add(core, queue, deduplication=rule)
        assert core.fetch(queue, T0, "t") is owner
        core.add(queue, "n", b"1", PLAIN, T0, deduplication=rule, **more)  # type: ignore[arg-type]
        other = add(core, queue, priority=9) if more.get("flags") != LIFO else add(core, queue)
        core.complete(queue, owner.id, b"1", T0 + 100, "t")
        assert [job.data for job in home][:1] == [b"1"]
        if home is queue.delayed:
            assert [job.due_ms for job in home] == [T0 + 600]
        for job in list(queue.index.values()):
            core.remove(queue, job.id, T0)
        assert other.state is JobState.REMOVED
    core.check()


def test_a_kept_add_makes_the_key_last_until_the_owner_ends(core: Core, queue: Queue) -> None:
    """Also where the owner had taken the key for a time only."""
    owner = add(core, queue, deduplication=Deduplication(id="k", ttl_ms=1000))
    assert core.fetch(queue, T0, "t") is owner
    core.add(queue, "n", b"1", PLAIN, T0 + 500, deduplication=Deduplication(id="k", keep_last=True))
    assert core.deduplication_owner(queue, "k", T0 + 2000) == owner.id
    core.complete(queue, owner.id, b"1", T0 + 3000, "t")
    follower = core.fetch(queue, T0 + 3000, "t")
    assert follower is not None
    assert core.deduplication_owner(queue, "k", T0 + 3000) == follower.id


def test_a_full_delay_counts_from_the_creation(core: Core, queue: Queue) -> None:
    """Not from the moment of the add, where both are given."""
    job = add(core, queue, delay=1000, timestamp=T0 - 300)
    assert job.due_ms == T0 + 700


def test_a_kept_add_that_is_not_held_follows_freely(core: Core, queue: Queue) -> None:
    """Its other marks do not count as being held for a store; a negative delay leads through the delayed set, due now."""
    rule = Deduplication(id="k", keep_last=True)
    owner = add(core, queue, deduplication=rule)
    core.fetch(queue, T0, "t")
    core.add(queue, "n", b"1", PLAIN, T0, deduplication=rule, delay=-5, flags=LIFO | WATCHED | ABSOLUTE_DUE)
    core.complete(queue, owner.id, b"1", T0, "t")
    (follower,) = queue.delayed
    assert (follower.due_ms, queue.held) == (T0, 0)
    assert core.fetch(queue, T0, "t") is follower


# --- rate -----------------------------------------------------------------------------------------------------------


def test_a_window_opens_with_the_first_start_and_closes_after_its_time(core: Core, queue: Queue) -> None:
    """Two starts, then none until the window that the first one opened is over."""
    for _ in range(4):
        add(core, queue)
    assert core.fetch(queue, T0, "t", LIMITED) is not None
    assert core.fetch(queue, T0 + 500, "t", LIMITED) is not None
    assert core.fetch(queue, T0 + 1000, "t", LIMITED) is None
    assert core.next_wake_ms(queue, T0 + 1000, LIMITED) == T0 + 1001
    assert core.rate_limit_ttl(queue, T0 + 1000, 2) == 1
    assert core.rate_limit_ttl(queue, T0 + 1000, 3) == 0
    assert core.fetch(queue, T0 + 1001, "t", LIMITED) is not None
    assert queue.limiter_until_ms == T0 + 2002


def test_an_order_to_wait_lasts_as_long_as_it_says(core: Core, queue: Queue) -> None:
    """`rate_limit` holds workers with a limiter, and no others; the bare window is told, and can be closed."""
    for _ in range(3):
        add(core, queue)
    core.rate_limit(queue, 7, T0)
    assert core.fetch(queue, T0 + 6, "t", LIMITED) is None
    assert core.rate_limit_ttl(queue, T0 + 4) == 3
    assert core.fetch(queue, T0 + 6, "t") is not None
    assert core.fetch(queue, T0 + 7, "t", LIMITED) is not None
    core.rate_limit(queue, 7, T0 + 8)
    assert core.remove_rate_limit(queue, T0 + 9)
    assert not core.remove_rate_limit(queue, T0 + 9)
    assert core.rate_limit_ttl(queue, T0 + 9) == -2


def test_a_queue_wakes_for_what_comes_first(core: Core, queue: Queue) -> None:
    """The next due time or the end of the window; a paused queue still wakes to promote; nothing, nothing."""
    assert core.next_wake_ms(queue, T0) is None
    add(core, queue, delay=2000)
    add(core, queue)
    core.rate_limit(queue, 500, T0)
    assert core.next_wake_ms(queue, T0, LIMITED) == T0 + 500
    assert core.next_wake_ms(queue, T0) == T0 + 2000
    core.pause(queue)
    assert core.next_wake_ms(queue, T0, LIMITED) == T0 + 2000


# --- many jobs ------------------------------------------------------------------------------------------------------


def test_a_drain_in_slices(core: Core, queue: Queue) -> None:
    """At most so many at a time, each answered, until none is left; delayed and active ones stay unless asked for."""
    delayed = add(core, queue, delay=5)
    for _ in range(3):
        add(core, queue)
    urgent = add(core, queue, priority=1)
    active = core.fetch(queue, T0, "t")
    assert [core.drain(queue, limit=2) for _ in range(3)] == [2, 1, 0]
    assert urgent.state is JobState.REMOVED
    assert list(queue.index.values()) == [delayed, active]
    assert core.drain(queue, delayed=True) == 1
    assert list(queue.index.values()) == [active]
    assert told(core, "removed") == []
    core.check()


def test_promoting_all_forgets_dates_only(core: Core, queue: Queue) -> None:
    """Jobs with a `run_at` become plain waiting ones; their other marks stay."""
    job = add(core, queue, delay=5000, flags=ABSOLUTE_DUE | WATCHED)
    assert core.promote_jobs(queue, T0) == 1
    assert list(queue.wait) == [job]
    assert job.flags & ABSOLUTE_DUE == 0
    assert job.flags & WATCHED
    core.check()


def test_obliterating_frees_locks_by_force(core: Core, queue: Queue) -> None:
    """Nothing is left of active jobs: not their locks, timed or not, not their marks."""
    for _ in range(2):
        add(core, queue)
    core.fetch(queue, T0, "t", WorkerOptions(lock_ms=1000))
    core.fetch(queue, T0, "t")
    core.obliterate(queue, T0, force=True)
    assert (queue.index, queue.locks, queue.lock_until_ms, queue.stalled_ids) == ({}, {}, {}, {})
    assert (queue.counter, queue.paused) == (0, False)
    core.check()


def test_obliterating_in_slices(core: Core, queue: Queue) -> None:
    """At most so many jobs per call, until the answer is that all is done; paused is told once, schedules go too."""
    for number in range(5):
        add(core, queue, delay=number % 2 * 5, priority=number % 3)
    core.upsert_scheduler(queue, "s", "n", b"{}", Repeat(every=1000, start_ms=T0 + 5), PLAIN, T0)
    sizes = []
    for _ in range(4):
        done = core.obliterate(queue, T0, limit=2)
        sizes.append(len(queue.index))
        if done:
            break
        assert queue.paused
    assert sizes == [4, 2, 0, 0]
    assert (queue.schedulers, queue.paused, queue.counter) == ({}, False, 0)
    assert len(told(core, "paused")) == 1
    core.obliterate(queue, T0)
    assert len(told(core, "paused")) == 2
    core.check()


def test_a_job_that_is_put_back_is_before_its_equals(core: Core, queue: Queue) -> None:
    """Also before the first one that came after the line was empty, whatever their ids."""
    first = add(core, queue, id="z", priority=3)
    assert core.fetch(queue, T0, "t") is first
    assert core.fetch(queue, T0, "t") is None
    second = add(core, queue, id="a", priority=3)
    core.move_to_wait(queue, "z", T0, "t")
    assert list(queue.prioritized) == [first, second]


def test_a_queue_with_active_jobs_is_not_obliterated(core: Core, queue: Queue) -> None:
    """Unless by force; it is paused all the same, as on BullMQ."""
    job = add(core, queue)
    core.fetch(queue, T0, "t")
    with pytest.raises(QueueBusyError):
        core.obliterate(queue, T0)
    assert queue.index == {job.id: job}
    assert queue.paused


def test_retrying_what_ended_by_a_moment(core: Core, queue: Queue) -> None:
    """Jobs that finished later stay; the others run again as if they had not ended, and leave the history."""
    queue.history = {JobState.COMPLETED: 3, JobState.FAILED: 3}
    for number in range(3):
        job = add(core, queue, JobOptions(frees_id=True))
        core.fetch(queue, T0, "t")
        core.complete(queue, job.id, b"1", T0 + number, "t")
    assert core.retry_jobs(queue, "completed", timestamp=T0 + 1, now_ms=T0 + 9) == 2
    assert [job.id for job in queue.wait] == ["1", "2"]
    assert [(job.finished_on, job.result) for job in queue.wait] == [(None, None)] * 2
    assert [job.id for job in queue.past[JobState.COMPLETED]] == ["3"]
    assert core.retry_jobs(queue, "completed", now_ms=T0 + 9) == 1
    core.check()


def test_cleaning_parents_by_the_time_they_wait(core: Core, queue: Queue) -> None:
    """Those that have waited for children long enough, no others."""
    for number in range(3):
        add(core, queue, id=f"p{number}", now=T0 + number, has_children=True)
    assert core.clean(queue, 10, 0, "waiting-children", T0 + 11) == ["p0", "p1"]
    assert set(queue.index) == {"p2"}


# --- ends -----------------------------------------------------------------------------------------------------------


def test_only_watched_jobs_report_their_end(core: Core, queue: Queue) -> None:
    """Nobody waits for the others."""
    watched, plain = add(core, queue, flags=WATCHED), add(core, queue)
    for job in (watched, plain):
        assert core.fetch(queue, T0, "t") is job
        core.complete(queue, job.id, b"1", T0, "t")
    assert core.ended == [watched]


@pytest.mark.parametrize("how", ["complete", "fail for good", "retry now", "retry later", "put back"])
def test_only_an_active_job_can_end(core: Core, queue: Queue, how: str) -> None:
    """Without a token, which would be refused before, each end says that the job is not active; it stays where it is."""
    backoff = {"retry now": None, "retry later": Backoff(delay_ms=5)}.get(how)
    job = add(core, queue, JobOptions(attempts=3 if how.startswith("retry") else 0, backoff=backoff))
    ends = {
        "complete": lambda: core.complete(queue, job.id, b"1", T0),
        "put back": lambda: core.move_to_delayed(queue, job.id, 5, T0),
    }
    with pytest.raises(JobNotInStateError, match="is not in the active state"):
        ends.get(how, lambda: core.fail(queue, job.id, "no", None, T0))()
    assert list(queue.wait) == [job]
    assert (job.attempts_made, job.finished_on) == (0, None)
    core.check()


def test_a_retried_job_that_is_kept_leaves_the_history(core: Core, queue: Queue) -> None:
    """It failed with a free id and completed with one that stays taken: it does not count as history any more."""
    queue.history = {JobState.COMPLETED: 3, JobState.FAILED: 3}
    job = add(core, queue, JobOptions(frees_id=True, remove_on_complete=Retention()))
    core.fetch(queue, T0, "t")
    core.fail(queue, job.id, "no", None, T0, "t")
    core.retry(queue, job.id, T0)
    core.fetch(queue, T0, "t")
    core.complete(queue, job.id, b"1", T0, "t")
    assert [list(past) for past in queue.past.values()] == [[], []]
    core.check()


def test_traces_grow_with_the_failures(core: Core, queue: Queue) -> None:
    """From those that are stored, or from those that the worker knows; the newest stay where there is a limit."""
    job = add(core, queue, JobOptions(attempts=9, stack_trace_limit=2))
    for number in range(3):
        assert core.fetch(queue, T0, "t") is job
        core.fail(queue, job.id, "no", f"trace {number}", T0, "t")
    assert job.extra is not None
    assert job.extra.stacktrace == ["trace 1", "trace 2"]
    core.fetch(queue, T0, "t")
    core.fail(queue, job.id, "no", None, T0, "t")
    assert job.extra.stacktrace == ["trace 1", "trace 2"]
    stale = Job(job.id, "n", b"{}", job.opts, T0)
    core.fetch(queue, T0, "t")
    core.fail(queue, job.id, "no", "another", T0, "t", held=stale)
    assert job.extra.stacktrace == ["another"]


def test_a_finish_hands_over_the_next_under_its_own_token(core: Core, queue: Queue) -> None:
    """With `fetch_next` the next job is locked with `next_token`, or where none is given with the same."""
    for _ in range(3):
        add(core, queue)
    core.fetch(queue, T0, "a")
    second = core.complete(queue, "1", b"1", T0, "a", fetch_next=True, next_token="b")
    assert second is not None
    with pytest.raises(JobLockMismatchError):
        core.complete(queue, second.id, b"1", T0, "a")
    third = core.complete(queue, second.id, b"1", T0, "b", fetch_next=True)
    assert third is not None
    core.complete(queue, third.id, b"1", T0, "b")
    with pytest.raises(JobLockMissingError):
        core.complete(queue, third.id, b"1", T0, "b")


def test_a_custom_strategy_is_bounded_by_max_delay(core: Core, queue: Queue) -> None:
    """What it answers is cut at `max_delay`, and goes as it is below."""
    opts = JobOptions(attempts=9, backoff=Backoff(type="mine", max_delay_ms=100))
    for answer, due in ((50, 50), (100, 100), (5000, 100)):
        job = add(core, queue, opts)
        assert core.fetch(queue, T0, "t") is job
        core.fail(queue, job.id, "no", None, T0, "t", strategy_delay=answer)
        assert (job.state, job.due_ms) == (DELAYED, T0 + due)
        core.remove(queue, job.id, T0)


def test_a_strategy_without_an_answer_retries_at_once(core: Core, queue: Queue) -> None:
    """So does a fixed backoff without a delay."""
    for backoff in (Backoff(type="mine"), Backoff(delay_ms=None)):
        job = add(core, queue, JobOptions(attempts=2, backoff=backoff))
        assert core.fetch(queue, T0, "t") is job
        core.fail(queue, job.id, "no", None, T0, "t")
        assert list(queue.wait) == [job]
        core.remove(queue, job.id, T0)


@pytest.mark.parametrize(
    ("opts", "flags", "front"),
    [
        (JobOptions(attempts=2, lifo=True), 0, True),
        (JobOptions(attempts=2), LIFO, True),
        (JobOptions(attempts=2), 0, False),
    ],
)
def test_a_lifo_job_retries_as_the_next(core: Core, queue: Queue, opts: JobOptions, flags: int, front: bool) -> None:
    """By its options or by its own mark; any other job goes to the end of the line."""
    job = add(core, queue, opts, flags=flags)
    core.fetch(queue, T0, "t")
    other = add(core, queue)
    core.fail(queue, job.id, "no", None, T0, "t")
    assert list(queue.wait) == ([job, other] if front else [other, job])


def test_the_token_that_skips_the_check_leaves_a_timed_lock(core: Core, queue: Queue) -> None:
    """As in BullMQ, until it runs out; one that never would goes with the end."""
    timed, plain = add(core, queue), add(core, queue)
    core.fetch(queue, T0, "t", WorkerOptions(lock_ms=100))
    core.fetch(queue, T0, "t")
    core.complete(queue, timed.id, b"1", T0)
    core.complete(queue, plain.id, b"1", T0)
    assert core.is_locked(queue, timed.id, T0 + 99)
    assert not core.is_locked(queue, plain.id, T0)


def test_a_new_delay_is_a_duration(core: Core, queue: Queue) -> None:
    """A job with a `run_at` stays when the clock is set back; once its delay was changed it moves along."""
    job = add(core, queue, delay=5000, flags=ABSOLUTE_DUE | WATCHED)
    core.shift_clock(-1000)
    assert job.due_ms == T0 + 5000
    core.change_delay(queue, job.id, 3000, T0)
    core.shift_clock(-1000)
    assert job.due_ms == T0 + 2000
    assert job.flags & WATCHED


def test_locks_run_out_to_the_millisecond(core: Core, queue: Queue) -> None:
    """Extended while it holds and by its owner only, counted from then; afterwards the job cannot be ended."""
    job = add(core, queue)
    core.fetch(queue, T0, "t", WorkerOptions(lock_ms=100))
    assert core.is_locked(queue, job.id, T0 + 99)
    assert not core.is_locked(queue, job.id, T0 + 100)
    assert not core.extend_lock(queue, job.id, "other", 100, T0 + 50)
    assert not core.extend_lock(queue, job.id, "t", 100, T0 + 100)
    assert core.extend_lock(queue, job.id, "t", 100, T0 + 99)
    assert core.is_locked(queue, job.id, T0 + 198)
    with pytest.raises(JobLockMissingError):
        core.complete(queue, job.id, b"1", T0 + 199, "t")
    assert not core.extend_lock(queue, "nobody", "t", 100, T0)


def test_a_timed_lock_leaves_nothing_behind(core: Core, queue: Queue) -> None:
    """Neither its end nor a mark of the stalled check."""
    worker = WorkerOptions(lock_ms=100)
    job = add(core, queue)
    core.fetch(queue, T0, "t", worker)
    queue.stalled_ids[job.id] = None
    core.complete(queue, job.id, b"1", T0 + 50, "t")
    assert (queue.locks, queue.lock_until_ms, queue.stalled_ids) == ({}, {}, {})


def test_a_worker_signs_with_its_name(core: Core, queue: Queue) -> None:
    """Where it has one; else nothing is stored."""
    signed, unsigned = add(core, queue), add(core, queue)
    core.fetch(queue, T0, "t", WorkerOptions(name="w"))
    core.fetch(queue, T0, "t")
    assert signed.extra is not None
    assert signed.extra.worker_name == "w"
    assert unsigned.extra is None


def test_obliterating_starts_the_counts_anew(core: Core, queue: Queue) -> None:
    """Metrics, ids and limits are those of a new queue."""
    worker = WorkerOptions(metrics_points=5)
    for _ in range(2):
        job = add(core, queue)
        core.fetch(queue, T0, "t", worker)
        core.complete(queue, job.id, b"1", T0, "t", worker=worker)
    assert queue.metrics["completed"].count == 2
    queue.max, queue.duration, queue.concurrency = 1, 1000, 1
    core.obliterate(queue, T0)
    assert [metrics.count for metrics in queue.metrics.values()] == [0, 0]
    assert (queue.max, queue.duration, queue.concurrency) == (None, None, None)
    assert add(core, queue).id == "1"


@pytest.mark.parametrize(
    ("limit", "left"), [(2, ["1", "2", "5"]), (3, ["1", "5"]), (0, ["1", "2", "3", "4", "5"]), (-1, ["5"])]
)
def test_the_age_rule_takes_so_many_at_a_time(core: Core, queue: Queue, limit: int, left: list[str]) -> None:
    """The newest of those that are too old go first; a negative limit is none, as on BullMQ."""
    for number in range(4):
        job = add(core, queue)
        core.fetch(queue, T0 + number, "t")
        core.complete(queue, job.id, b"1", T0 + number, "t")
    last = add(core, queue, JobOptions(remove_on_complete=Retention(age_s=1, limit=limit)))
    core.fetch(queue, T0 + 1003, "t")
    core.complete(queue, last.id, b"1", T0 + 1003, "t")
    assert [job.id for job in queue.completed] == left
    core.check()


# --- flows ----------------------------------------------------------------------------------------------------------


def family(core: Core, queue: Queue, children: int = 2) -> tuple[Job, list[Job]]:
    parent = add(core, queue, id="p", has_children=True)
    link = ParentLink("p", "q")
    return parent, [add(core, queue, id=f"c{number}", parent=link) for number in range(children)]


def test_a_parent_goes_on_when_its_last_child_is_cut_off(core: Core, queue: Queue) -> None:
    """Each answer says whether there was something to cut; once cut off a child has no parent any more."""
    parent, (first, second) = family(core, queue)
    assert core.remove_child_dependency(queue, first.id)
    assert first.extra is not None
    assert first.extra.parent is None
    assert parent.state is JobState.WAITING_CHILDREN
    assert core.remove_child_dependency(queue, second.id)
    assert parent.state is JobState.WAITING
    assert queue.wait.head() is parent
    core.check()


def test_removing_a_parent_takes_its_children_in_every_state(core: Core, queue: Queue) -> None:
    """Children first; without `remove_children` they stay."""
    _, (first, second) = family(core, queue)
    assert core.fetch(queue, T0, "t") is first
    core.complete(queue, first.id, b"1", T0, "t")
    assert core.remove(queue, "p", T0)
    assert queue.index == {}
    assert [event["jobId"] for event in told(core, "removed")] == [first.id, second.id, "p"]
    family(core, queue)
    assert core.remove(queue, "p", T0, remove_children=False)
    assert set(queue.index) == {"c0", "c1"}
    core.check()


def test_a_parent_goes_on_with_its_own_delay(core: Core, queue: Queue) -> None:
    """Even with the shortest."""
    parent = add(core, queue, id="p", has_children=True, delay=1)
    child = add(core, queue, parent=ParentLink("p", "q"))
    core.fetch(queue, T0, "t")
    core.complete(queue, child.id, b"1", T0, "t")
    assert (parent.state, parent.due_ms) == (DELAYED, T0 + 1)


def test_a_child_of_an_id_that_is_another_job_now(core: Core, queue: Queue) -> None:
    """Its parent went and a plain job has the id: the child's end changes nothing of that."""
    _, (first, second) = family(core, queue)
    core.remove(queue, "p", T0, remove_children=False)
    plain = add(core, queue, id="p")
    for child in (first, second):
        core.fetch(queue, T0, "t")
        core.complete(queue, child.id, b"1", T0, "t")
    assert (plain.state, plain.extra) == (JobState.WAITING, None)
    assert core.find_by_key("bull:q:p") == (queue, plain)
    assert core.find_by_key("bull:q:nobody") is None
    assert core.find_by_key("bull:nowhere:p") is None


def test_a_locked_child_keeps_its_parent(core: Core, queue: Queue) -> None:
    """Nothing is removed then, unless the children are to stay anyway."""
    _, (first, second) = family(core, queue)
    assert core.fetch(queue, T0, "t") is first
    assert not core.remove(queue, "p", T0)
    assert set(queue.index) == {"p", first.id, second.id}
    core.remove_unprocessed_children(queue, "p", T0)
    assert set(queue.index) == {"p", first.id}
    core.check()


# --- what a store is told -------------------------------------------------------------------------------------------

COMMANDS = {
    "update_data": lambda core, queue: core.update_data(queue, "w", b"1"),
    "update_progress": lambda core, queue: core.update_progress(queue, "w", b"1"),
    "add_log": lambda core, queue: core.add_log(queue, "w", "row"),
    "change_priority of a delayed one": lambda core, queue: core.change_priority(queue, "d", 3, T0),
    "change_priority": lambda core, queue: core.change_priority(queue, "w", 3, T0),
    "change_delay": lambda core, queue: core.change_delay(queue, "d", 3, T0),
    "promote": lambda core, queue: core.promote(queue, "d", T0),
    "complete": lambda core, queue: core.complete(queue, "a", b"1", T0),
    "fail": lambda core, queue: core.fail(queue, "a", "no", None, T0),
    "retry later": lambda core, queue: core.fail(queue, "b", "no", None, T0),
    "move_to_wait": lambda core, queue: core.move_to_wait(queue, "a", T0),
    "move_to_delayed": lambda core, queue: core.move_to_delayed(queue, "a", 5, T0),
    "retry": lambda core, queue: core.retry(queue, "f", T0),
    "remove": lambda core, queue: core.remove(queue, "w", T0),
    "fetch": lambda core, queue: core.fetch(queue, T0, "0"),
    "drain": lambda core, queue: core.drain(queue),
    "cut off": lambda core, queue: core.remove_child_dependency(queue, "c1"),
    "the end of a child": lambda core, queue: core.complete(queue, "c0", b"1", T0),
    "a child that fails its parent": lambda core, queue: core.fail(queue, "c2", "no", None, T0),
    "a child whose failure is ignored": lambda core, queue: core.fail(queue, "c0", "no", None, T0),
    "recover_stalled": lambda core, queue: core.recover_stalled(queue, "a", T0),
    "shift_clock": lambda core, queue: core.shift_clock(-5),
    "add": lambda core, queue: core.add(queue, "n", b"{}", PLAIN, T0),
    "add a parent": lambda core, queue: core.add(queue, "n", b"{}", PLAIN, T0, has_children=True),
}


def records(queue: Queue) -> dict[str, tuple[object, ...]]:
    """Everything about each job that a store keeps."""
    return {
        id: (
            *(getattr(job, name) for name in Job.__struct_fields__ if name not in {"extra", "opts"}),
            repr(job.extra),
        )
        for id, job in queue.index.items()
    }


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_store_is_told_of_every_job_that_a_command_changes(core: Core, queue: Queue, command: object) -> None:
    """Whatever of a record is another one afterwards, its id is among those that are to be written; no others are."""
    parent = add(core, queue, id="p", has_children=True)
    for number in (0, 1, 2):
        add(core, queue, id=f"c{number}", parent=ParentLink("p", "q", ("idof", "", "fpof")[number]))
    for id in "ab":
        add(core, queue, JobOptions(attempts=2, backoff=Backoff(delay_ms=9)) if id == "b" else PLAIN, id=id)
    add(core, queue, id="f")
    for _ in range(6):
        core.fetch(queue, T0, "0")
    core.move_to_wait(queue, "c1", T0)
    core.fail(queue, "f", "no", None, T0)
    for id, delay in (("w", 0), ("d", 50)):
        add(core, queue, id=id, delay=delay)
    assert parent.state is JobState.WAITING_CHILDREN
    queue.track()
    assert queue.touched == {}
    before = records(queue)
    command(core, queue)  # type: ignore[operator]
    after = records(queue)
    changed = {id for id in before.keys() | after.keys() if before.get(id) != after.get(id)}
    assert changed
    assert set(queue.touched) == changed
    core.check()
