"""How long a failed job waits: bounds, jitter, overflow (cases C68, C70, C71)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.core.backoff import next_delay_ms, wants_retry
from inproc_jobs.core.core import Core
from inproc_jobs.core.options import Backoff, JobOptions, WorkerOptions
from inproc_jobs.core.states import JobState

T0 = 1_700_000_000_000


def starts_of(opts: JobOptions, limit: int = 50) -> tuple[list[int], int]:
    """When each run of an always failing job starts, from now on, and how many attempts it had at the end."""
    core = Core()
    queue = core.queue("q")
    core.add(queue, "n", b"{}", opts, T0)
    now, starts = T0, []
    while len(starts) < limit:
        job = core.fetch(queue, now, "t")
        if job is None:
            wake = core.next_wake_ms(queue, now)
            if wake is None:
                break
            now = int(wake)
            continue
        starts.append(now - T0)
        core.fail(queue, job.id, "no", None, now, "t")
    failed = next(iter(queue.failed))
    return starts, failed.attempts_made


def test_c68_three_attempts_have_two_waits() -> None:
    """Exponential from one second, three attempts: runs at 0, 1 and 3 seconds, then failed for good."""
    opts = JobOptions(attempts=3, backoff=Backoff(type="exponential", delay_ms=1000))
    assert starts_of(opts) == ([0, 1000, 3000], 3)


def test_c69_backoff_alone_brings_no_second_attempt() -> None:
    """A backoff without attempts is a single run."""
    assert starts_of(JobOptions(backoff=Backoff(delay_ms=100))) == ([0], 1)


@pytest.mark.parametrize("attempt", [1, 30, 60, 1200, 4999])
def test_c70_no_attempt_number_overflows(attempt: int) -> None:
    """With a cap the delay of any attempt is an int within it, even where 2**n has left the range of floats."""
    backoff = Backoff(type="exponential", delay_ms=1000, max_delay_ms=86_400_000)
    delay = next_delay_ms(backoff, attempt, 0.0)
    assert isinstance(delay, int)
    assert 0 < delay <= 86_400_000


@given(st.integers(1, 10**6), st.floats(0, 10**15), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_c70_any_delay_can_be_added_to_a_clock(attempt: int, base: float, jitter: float, draw: float) -> None:
    """Even without a cap the result is a finite number."""
    delay = next_delay_ms(Backoff(type="exponential", delay_ms=base, jitter=jitter), attempt, draw)
    assert math.isfinite(delay)
    assert math.isfinite(T0 + delay)


def test_c70_a_job_with_thousands_of_attempts_goes_on() -> None:
    """Attempt 60 of an exponential backoff is due within the cap, and its due time can be read back."""
    core = Core()
    queue = core.queue("q")
    opts = JobOptions(attempts=5000, backoff=Backoff(type="exponential", delay_ms=1000, max_delay_ms=3_600_000))
    job = core.add(queue, "n", b"{}", opts, T0)
    for made in (60, 1200):
        assert core.fetch(queue, T0 + made * 10**8, "t") is job
        job.attempts_made = made
        core.fail(queue, job.id, "no", None, T0 + made * 10**8, "t")
        assert job.state is JobState.DELAYED
        assert job.due_ms == T0 + made * 10**8 + 3_600_000
    core.check()


@given(st.floats(0, 1, exclude_max=True))
def test_c71_jitter_takes_off_at_most_its_share(draw: float) -> None:
    """Half a second of jitter on one second gives whole numbers in [500, 1000)."""
    delay = next_delay_ms(Backoff(delay_ms=1000, jitter=0.5), 1, draw)
    assert isinstance(delay, int)
    assert 500 <= delay < 1000


@given(st.floats(0, 1, exclude_max=True))
def test_c71_the_ends_of_jitter(draw: float) -> None:
    """Jitter 0 takes nothing off, jitter 1 may take all of it; the same draw gives the same delay."""
    assert next_delay_ms(Backoff(delay_ms=1000, jitter=0.0), 1, draw) == 1000
    whole = Backoff(delay_ms=1000, jitter=1.0)
    assert 0 <= next_delay_ms(whole, 1, draw) < 1000
    assert next_delay_ms(whole, 1, draw) == next_delay_ms(whole, 1, draw)


@pytest.mark.parametrize("base", [1, 2, 3, 1000, 10**15])
def test_c71_the_largest_draw_takes_one_off(base: int) -> None:
    """As floats 0.999... of a delay rounds up to all of it; something is taken off all the same, and no more than that."""
    largest = 1 - 2**-53
    assert next_delay_ms(Backoff(delay_ms=base, jitter=0.5), 1, largest) == base - 1


def test_jitter_of_exponential_is_a_share_of_the_doubled_delay() -> None:
    """Third attempt of one second doubled twice: between two and four seconds."""
    backoff = Backoff(type="exponential", delay_ms=1000, jitter=0.5)
    assert next_delay_ms(backoff, 3, 0.0) == 2000
    assert next_delay_ms(backoff, 3, 0.999) == 3998


@pytest.mark.parametrize("attempts", [-1, 0, 1])
def test_less_than_two_attempts_are_one_run(attempts: int) -> None:
    """0, 1 and negative numbers all mean a single run."""
    assert starts_of(JobOptions(attempts=attempts)) == ([0], 1)


def test_bound_on_starts_forbids_retries() -> None:
    """A worker's bound on starts beats attempts that are left."""
    opts = JobOptions(attempts=9)
    assert wants_retry(opts, 0, 1, 2, unrecoverable=False)
    assert not wants_retry(opts, 1, 2, 2, unrecoverable=False)
    assert not wants_retry(opts, 0, 1, None, unrecoverable=True)


@pytest.mark.parametrize(
    ("backoff", "state"),
    [
        (None, JobState.WAITING),
        (Backoff(delay_ms=0), JobState.WAITING),
        (Backoff(type="exponential", delay_ms=None), JobState.WAITING),
        (Backoff(delay_ms=-1), JobState.FAILED),
        (Backoff(delay_ms=-5), JobState.DELAYED),
        (Backoff(delay_ms=5), JobState.DELAYED),
    ],
)
def test_where_a_delay_leads(backoff: Backoff | None, state: JobState) -> None:
    """No delay retries at once, -1 not at all, any other number by way of the delayed set."""
    core = Core()
    queue = core.queue("q")
    job = core.add(queue, "n", b"{}", JobOptions(attempts=3, backoff=backoff), T0)
    core.fetch(queue, T0, "t", WorkerOptions())
    core.fail(queue, job.id, "no", None, T0, "t")
    assert job.state is state
