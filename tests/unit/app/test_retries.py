"""Retries: how often, after how long, in which order, and what is kept of the failures (cases C68 to C78)."""

import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inproc_jobs
from inproc_jobs import (
    FailedJob,
    FailedJobNotFoundError,
    InvalidOptionError,
    InvalidOptionTypeError,
    JobFailedError,
    JobView,
    NoEngineError,
    RateLimited,
    RetryLater,
    UnrecoverableError,
)
from tests.unit.app.virtual import START, virtual
from tests.unit.app.world import Recorder, World, refused

FAIL = [ValueError(f"failure {number}") for number in range(1, 100)]


async def run(world: World, job: Recorder, seconds: float = 10_000, **options: Any) -> JobView:
    """Dispatch one job, let time pass, and read it."""
    async with world.engine():
        receipt = await job.dispatch({"n": 0}, job_id="x", **options)
        await asyncio.sleep(seconds)
        view = await job.find(receipt.id)
    assert view is not None
    return view


# --- how long ---------------------------------------------------------------------------------------------------


@virtual
async def test_c68_exponential_three_attempts(world: World) -> None:
    """C68: starts at 0, 1000, 3000; then failed with attempts_made=3."""
    job = world.recorder(attempts=3, backoff={"type": "exponential", "delay": 1000})
    job.script = list(FAIL)
    view = await run(world, job)
    assert job.starts == [0, 1000, 3000]
    assert (view.state, view.attempts_made, view.attempts_started) == ("failed", 3, 3)
    assert view.finished_at == START + timedelta(milliseconds=3000)


@pytest.mark.parametrize(
    ("backoff", "starts"),
    [
        (None, [0, 0, 0, 0]),
        (0, [0, 0, 0, 0]),
        (1000, [0, 1000, 2000, 3000]),
        ("1s", [0, 1000, 2000, 3000]),
        (timedelta(seconds=1), [0, 1000, 2000, 3000]),
        ({"delay": "1s"}, [0, 1000, 2000, 3000]),
        ({"type": "fixed", "delay": 1000}, [0, 1000, 2000, 3000]),
        ({"type": "exponential", "delay": "1s"}, [0, 1000, 3000, 7000]),
        ({"type": "exponential", "delay": "1s", "max_delay": "1500ms"}, [0, 1000, 2500, 4000]),
        ({"type": "exponential", "delay": 0}, [0, 0, 0, 0]),
        ({"type": "fixed", "delay": "1s", "jitter": 0}, [0, 1000, 2000, 3000]),
    ],
    ids=repr,
)
def test_backoff_forms(world: World, backoff: Any, starts: list[int]) -> None:
    """Each form of a backoff gives BullMQ's waits, given at the definition or at dispatch."""

    @virtual
    async def story(world: World) -> None:
        defined = world.recorder("defined", attempts=4, backoff=backoff)
        defined.script = list(FAIL)
        await run(world, defined)
        assert defined.starts == starts
        began = world.ms
        given = world.recorder("given", attempts=4)
        given.script = list(FAIL)
        await run(world, given, backoff=backoff)
        assert [at - began for at in given.starts] == starts

    story(world=world)


@virtual
async def test_c69_backoff_without_attempts_is_one_run_and_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """C69: attempts defaults to 1; the idle backoff is named in the log, once per job name."""
    job = world.recorder(backoff=100)
    job.script = list(FAIL)
    view = await run(world, job)
    assert len(job.runs) == 1
    assert (view.state, view.attempts_made) == ("failed", 1)
    warnings = [record for record in caplog.records if "backoff has no effect" in record.message]
    assert len(warnings) == 1
    assert "'job'" in warnings[0].message


@virtual
async def test_c70_backoff_never_overflows(world: World, long_waits: None) -> None:
    """C70: attempt 60 and 1,200 of an exponential backoff wait `max_delay` (a year where none is given), and run."""
    job = world.recorder(attempts=5000, backoff={"type": "exponential", "delay": 1000, "max_delay": "1h"})
    job.script = [ValueError("again") for _ in range(1300)]
    async with world.engine():
        receipt = await job.dispatch(None)
        await receipt.result()
    gaps = [later - earlier for earlier, later in zip(job.starts, job.starts[1:], strict=False)]
    assert len(gaps) == 1300
    assert gaps[:13] == [min(1000 * 2**n, 3_600_000) for n in range(13)]
    assert set(gaps[13:]) == {3_600_000}


@virtual
async def test_c70_the_cap_of_a_backoff_that_has_none(world: World, long_waits: None) -> None:
    """C70: without a max_delay the wait stops growing at a year: due times stay valid, the engine alive."""
    job = world.recorder(attempts=5000, backoff={"type": "exponential", "delay": "1d"})
    job.script = [ValueError("again") for _ in range(60)]
    async with world.engine():
        receipt = await job.dispatch(None)
        await receipt.result()
        other = await job.dispatch("still alive")
        await other.result()
    gaps = [later - earlier for earlier, later in zip(job.starts, job.starts[1:], strict=False)]
    assert max(gaps[:60]) == 365 * 86_400_000


@pytest.mark.parametrize(("jitter", "low", "high"), [(0, 1000, 1000), (0.5, 500, 999), (1, 0, 999), (1.0, 0, 999)])
def test_c71_jitter_bounds(world: World, jitter: float, low: int, high: int) -> None:
    """C71: jitter lowers the delay and never raises it; whole milliseconds."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=2, backoff={"type": "fixed", "delay": 1000, "jitter": jitter})
        job.script = []

        async def fail(payload: Any, ctx: Any) -> None:
            starts.setdefault(ctx.id, []).append(world.ms)
            raise ValueError("x")

        starts: dict[str, list[int]] = {}
        noisy = world.job(fail, "noisy", attempts=2, backoff={"type": "fixed", "delay": 1000, "jitter": jitter})
        async with world.engine(concurrency=50):
            await noisy.dispatch_many([(None, None)] * 500)
            await asyncio.sleep(100)
        waits = [second - first for first, second in starts.values()]
        assert len(waits) == 500
        assert low <= min(waits)
        assert max(waits) <= high
        if jitter:
            assert len(set(waits)) > 50

    story(world=world)


@pytest.mark.parametrize(
    ("jitter", "error"),
    [
        (1.5, InvalidOptionError),
        (-0.1, InvalidOptionError),
        (float("nan"), InvalidOptionError),
        (True, InvalidOptionTypeError),
        ("0.5", InvalidOptionTypeError),
    ],
    ids=repr,
)
async def test_c71_other_jitters_are_refused(world: World, jitter: Any, error: type[Exception]) -> None:
    """C71: jitter is a share from 0 to 1; anything else is refused at dispatch, and nothing has changed."""
    engine = world.engine()
    job = world.noop()
    with refused(engine, error, "jitter"):
        await job.dispatch(None, attempts=2, backoff={"type": "fixed", "delay": 1000, "jitter": jitter})


@virtual
async def test_c71_same_draws_same_waits(world: World) -> None:
    """C71: the randomness comes from one place, so that a seeded engine repeats itself."""

    async def waits(draws: list[float]) -> list[int]:
        job = world.recorder(attempts=3, backoff={"type": "exponential", "delay": 1000, "jitter": 0.5})
        job.script = list(FAIL)
        engine = world.engine()
        engine.runtime.draw = iter(draws).__next__
        began = world.ms
        async with engine:
            await job.job.on(engine).dispatch(None)
            await asyncio.sleep(100)
        return [at - began for at in job.starts]

    assert await waits([0.0, 0.5, 0.9]) == await waits([0.0, 0.5, 0.9]) == [0, 500, 2000]


@given(
    delay=st.integers(0, 10**9),
    jitter=st.floats(0, 1),
    attempts=st.integers(2, 6),
    kind=st.sampled_from(["fixed", "exponential"]),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_backoff_ends(delay: int, jitter: float, attempts: int, kind: str) -> None:
    """Whatever the policy: exactly `attempts` runs, in order of time, each wait at most BullMQ's formula."""
    world = World()

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=attempts, backoff={"type": kind, "delay": delay, "jitter": jitter})
        job.script = list(FAIL)
        async with world.engine():
            receipt = await job.dispatch(None)
            # In one jump: a wait of weeks has very many slices.
            while len(job.runs) < attempts:
                await asyncio.sleep(0)
                due = world.engines[0].runtime.core.next_wake_ms(world.engines[0].runtime.core.queues["default"], 0)
                if due is not None:
                    world.clock.jump(max(0, int(due) - world.clock.now_ms()))
                await asyncio.sleep(0)
            with pytest.raises(JobFailedError):
                await receipt.result()
        assert len(job.runs) == attempts
        for number, (earlier, later) in enumerate(zip(job.starts, job.starts[1:], strict=False)):
            longest = delay * (2**number if kind == "exponential" else 1)
            assert 0 <= later - earlier <= min(longest, 365 * 86_400_000) + 10_000

    story(world=world)


# --- strategies -------------------------------------------------------------------------------------------------


@virtual
async def test_c73_unknown_strategies_are_refused_at_dispatch(world: World) -> None:
    """C73: on BullMQ such a job would stay active for ever."""
    engine = world.engine()
    job = world.noop()
    with refused(engine, InvalidOptionError, "'nope'", "fixed", "exponential"):
        await job.dispatch(None, attempts=3, backoff={"type": "nope"})


@virtual
async def test_a_callable_backoff(world: World) -> None:
    """(attempts_made, error, job) -> a duration in any form; the job is a JobView of this moment."""
    calls: list[Any] = []

    def strategy(attempts_made: int, error: BaseException, job: JobView) -> Any:
        calls.append((attempts_made, str(error), job.id, job.name, job.queue, job.payload, job.state))
        return {1: "2s", 2: timedelta(seconds=3), 3: 4000}[attempts_made]

    job = world.recorder(attempts=4, backoff=strategy, queue="mails")
    job.script = list(FAIL)
    view = await run(world, job)
    assert job.starts == [0, 2000, 5000, 9000]
    assert view.state == "failed"
    assert [call[:2] for call in calls] == [(1, "failure 1"), (2, "failure 2"), (3, "failure 3")]
    assert {call[2:] for call in [(*call[:5], str(call[5]), call[6]) for call in calls]} == {
        ("x", "job", "mails", "{'n': 0}", "active")
    }


@virtual
async def test_a_callable_sees_the_queue_of_a_job_without_one(world: World) -> None:
    """The view handed to a strategy names the queue that the job is in, also where the definition names none."""
    queues: list[str] = []

    def strategy(attempts_made: int, error: BaseException, job: JobView) -> Any:
        queues.append(job.queue)

    job = world.recorder(attempts=2, backoff=strategy)
    job.script = list(FAIL)
    async with world.engine(default_queue="mails"):
        await job.dispatch(None)
        await asyncio.sleep(1)
    assert queues == ["mails"]


@virtual
async def test_an_async_callable_backoff(world: World) -> None:
    """A strategy may await."""

    async def strategy(attempts_made: int, error: BaseException, job: JobView) -> str:
        await asyncio.sleep(1)
        return "5s"

    job = world.recorder(attempts=2, backoff=strategy)
    job.script = list(FAIL)
    await run(world, job)
    assert job.starts == [0, 6000]


@virtual
async def test_a_callable_that_answers_none_ends_the_retries(world: World) -> None:
    """None means: no retry."""
    job = world.recorder(attempts=9, backoff=lambda attempts_made, error, job: "1s" if attempts_made < 3 else None)
    job.script = list(FAIL)
    view = await run(world, job)
    assert (len(job.runs), view.state, view.attempts_made) == (3, "failed", 3)


@pytest.mark.parametrize("answer", ["soon", -5, 1.5, True, RuntimeError("broken strategy"), SystemExit(3)], ids=repr)
def test_a_broken_callable_fails_the_job_once(world: World, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A strategy that raises or answers nonsense: the job ends failed with its own error, the log names the strategy."""

    @virtual
    async def story(world: World) -> None:
        def strategy(attempts_made: int, error: BaseException, job: JobView) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        job = world.recorder(attempts=5, backoff=strategy)
        job.script = list(FAIL)
        view = await run(world, job)
        assert (len(job.runs), view.state, view.failed_reason) == (1, "failed", "failure 1")
        assert any("backoff strategy failed" in record.message for record in caplog.records)

    story(world=world)


# --- signals ----------------------------------------------------------------------------------------------------


class SubclassedUnrecoverableError(UnrecoverableError):
    pass


NAMESAKE = type("UnrecoverableError", (Exception,), {})


@pytest.mark.parametrize(
    "error", [UnrecoverableError("no"), SubclassedUnrecoverableError("no"), NAMESAKE("no")], ids=repr
)
def test_c74_unrecoverable(world: World, error: Exception) -> None:
    """C74: by class, by subclass, by the mere name of the class: one run, failed for good."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=5, backoff="1s")
        job.script = [error]
        view = await run(world, job)
        assert (len(job.runs), view.state, view.failed_reason, view.attempts_made) == (1, "failed", "no", 1)

    story(world=world)


@virtual
async def test_retry_later_uses_no_attempt(world: World) -> None:
    """`RetryLater` puts the job back without counting: made stays, started grows."""
    job = world.recorder(attempts=2)
    job.script = [RetryLater("10s"), RetryLater(5000), RetryLater(timedelta(seconds=1)), ValueError("once"), "done"]
    view = await run(world, job)
    assert job.starts == [0, 10_000, 15_000, 16_000, 16_000]
    assert (view.state, view.result, view.attempts_made, view.attempts_started) == ("completed", "done", 2, 5)
    assert [ctx.attempt for ctx in job.contexts] == [1, 1, 1, 1, 2]
    assert view.failed_reason == "once"


@virtual
async def test_retry_later_works_without_attempts_left(world: World) -> None:
    """A job with one attempt may put itself off as often as it likes."""
    job = world.recorder()
    job.script = [RetryLater("1s")] * 5
    view = await run(world, job)
    assert len(job.runs) == 6
    assert (view.state, view.attempts_made) == ("completed", 1)


@pytest.mark.parametrize("delay", [-1, "soon", True, 1.5, None])
def test_retry_later_with_a_wrong_delay_fails_the_job(world: World, delay: Any) -> None:
    """It ends failed with a message that names the delay; it is not retried and not lost."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=5)
        job.script = [RetryLater(delay)]
        view = await run(world, job)
        assert (len(job.runs), view.state) == (1, "failed")
        assert "delay" in (view.failed_reason or "")

    story(world=world)


@virtual
async def test_rate_limited_stops_the_queue(world: World) -> None:
    """`RateLimited` puts the job back first in line and starts nothing of its queue meanwhile; others go on."""
    job, other = world.recorder(), world.recorder("other", queue="other")
    job.script = [RateLimited("30s")]
    async with world.engine():
        await job.dispatch("a")
        await job.dispatch("b")
        await other.dispatch("c")
        await asyncio.sleep(100)
    assert job.runs == [(0, "a"), (30_000, "a"), (30_000, "b")]
    assert other.starts == [0]


@virtual
async def test_any_exception_is_a_failure(world: World) -> None:
    """Whatever is raised, base exceptions too, is an attempt that failed."""
    job = world.recorder(attempts=6)
    errors = [
        ValueError("v"),
        KeyboardInterrupt(),
        SystemExit(3),
        BaseException("b"),
        StopAsyncIteration(),
        asyncio.CancelledError(),
    ]
    job.script = list(errors)
    view = await run(world, job)
    assert (len(job.runs), view.state, view.attempts_made) == (6, "failed", 6)


# --- order ------------------------------------------------------------------------------------------------------


@virtual
async def test_c75_priority_survives_a_retry(world: World) -> None:
    """C75: a job of priority 25 that failed runs again before one of 50."""
    job = world.recorder(attempts=2)
    job.script = [ValueError("once")]
    engine = world.engine()
    await job.dispatch("P25", priority=25)
    await job.dispatch("P50", priority=50)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["P25", "P25", "P50"]


@virtual
async def test_c75_priority_survives_a_delayed_retry(world: World) -> None:
    """C75: also when it comes back from a backoff."""
    job = world.recorder(attempts=2, backoff=50)
    job.takes_s = 0.04
    job.script = [ValueError("once")]
    engine = world.engine()
    await job.dispatch("P25", priority=25)
    for _ in range(4):
        await job.dispatch("P50", priority=50)
    async with engine:
        await asyncio.sleep(10)
    assert job.payloads == ["P25", "P50", "P50", "P25", "P50", "P50"]


@virtual
async def test_c77_an_immediate_retry_joins_the_end_of_the_line(world: World) -> None:
    """C77: A fails once: A, B, C, A."""
    job = world.recorder(attempts=2)
    job.script = [ValueError("once")]
    engine = world.engine()
    for name in "ABC":
        await job.dispatch(name)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["A", "B", "C", "A"]


@virtual
async def test_a_lifo_job_retries_as_the_next(world: World) -> None:
    """With lifo an immediate retry goes to the front, as on BullMQ."""
    job = world.recorder(attempts=2)
    job.script = [ValueError("once")]
    engine = world.engine()
    await job.dispatch("B")
    await job.dispatch("A", lifo=True)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["A", "A", "B"]


@virtual
async def test_c78_changes_of_the_first_attempt_do_not_leak(world: World) -> None:
    """C78: every attempt starts with the payload as dispatched, unless `update_payload` was called."""
    seen: list[Any] = []

    async def handle(payload: dict[str, Any], ctx: Any) -> None:
        seen.append(copy.deepcopy(payload))
        payload["n"] += 1
        payload["inner"].append("x")
        if ctx.attempt == 2:
            await ctx.update_payload({"n": 100, "inner": []})
        raise ValueError("again")

    job = world.job(handle, attempts=3)
    async with world.engine():
        receipt = await job.dispatch({"n": 1, "inner": []})
        await asyncio.sleep(1)
        view = await job.find(receipt.id)
    assert seen == [{"n": 1, "inner": []}, {"n": 1, "inner": []}, {"n": 100, "inner": []}]
    assert view is not None
    assert view.payload == {"n": 100, "inner": []}


@virtual
async def test_attempts_seen_by_the_handler(world: World) -> None:
    """`ctx.attempt` counts from 1, `max_attempts` is the limit; made and started grow as on BullMQ."""
    job = world.recorder(attempts=3, backoff="1s")
    job.script = [ValueError("a"), ValueError("b"), None]
    engine = world.engine()
    views: list[JobView | None] = []
    async with engine:
        await job.dispatch(None, job_id="x")
        for _ in range(3):
            await asyncio.sleep(0.5)
            views.append(await job.find("x"))
            await asyncio.sleep(0.5)
    assert [(ctx.attempt, ctx.max_attempts) for ctx in job.contexts] == [(1, 3), (2, 3), (3, 3)]
    assert [(view.attempts_made, view.attempts_started, str(view.state)) for view in views if view is not None] == [
        (1, 1, "delayed"),
        (2, 2, "delayed"),
        (3, 3, "completed"),
    ]


@virtual
async def test_a_late_success_keeps_the_last_reason(world: World) -> None:
    """`failed_reason` and the traces of earlier attempts stay after a later success, as on BullMQ."""
    job = world.recorder(attempts=3)
    job.script = [ValueError("a"), ValueError("b"), "fine"]
    view = await run(world, job)
    assert (view.state, view.result, view.failed_reason, len(view.stacktrace)) == ("completed", "fine", "b", 2)


# --- what is kept -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "kept"), [(None, 5), (2, 2), (0, 0), (10, 5)])
def test_stack_traces_are_bounded(world: World, limit: int | None, kept: int) -> None:
    """`stack_trace_limit` keeps the newest, oldest first; 0 keeps none; each tells where and what."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=5, stack_trace_limit=limit)
        job.script = list(FAIL)
        view = await run(world, job)
        assert len(view.stacktrace) == kept
        for number, trace in enumerate(view.stacktrace):
            assert f"failure {5 - kept + number + 1}" in trace
            assert "world.py" in trace

    story(world=world)


@virtual
async def test_failed_jobs_newest_first_and_by_page(world: World) -> None:
    """`failed_jobs` pages from the newest; both ends are included; it has a view's fields."""
    job = world.recorder()
    job.script = list(FAIL)
    engine = world.engine()
    async with engine:
        for number in range(7):
            await job.dispatch(number, job_id=f"x{number}")
            await asyncio.sleep(1)
        assert [one.id for one in await engine.failed_jobs()] == [f"x{number}" for number in range(6, -1, -1)]
        assert [one.id for one in await engine.failed_jobs("default", 2, 3)] == ["x4", "x3"]
        assert [one.id for one in await engine.failed_jobs(start=5, end=-1)] == ["x1", "x0"]
        assert await engine.failed_jobs("other") == []
        newest = (await engine.failed_jobs(end=0))[0]
        assert isinstance(newest, FailedJob)
        assert isinstance(newest, JobView)
        assert (newest.payload, newest.failed_reason, newest.state, newest.queue) == (
            6,
            "failure 7",
            "failed",
            "default",
        )
        assert newest.finished_at == START + timedelta(seconds=6)


@virtual
async def test_retry_runs_once_more_whatever_attempts_says(world: World) -> None:
    """A retried failed job gets one more attempt: it fails for good again, counts on, and can be retried again."""
    job = world.recorder(attempts=2)
    job.script = [ValueError("1"), ValueError("2"), ValueError("3"), "fine"]
    engine = world.engine()
    async with engine:
        await job.dispatch(None, job_id="x")
        await asyncio.sleep(1)
        (failed,) = await engine.failed_jobs()
        await failed.retry()
        await asyncio.sleep(1)
        view = await job.find("x")
        assert view is not None
        assert (view.state, view.attempts_made, view.failed_reason) == ("failed", 3, "3")
        await engine.retry_failed_job("x")
        await asyncio.sleep(1)
        view = await job.find("x")
        assert view is not None
        assert (view.state, view.attempts_made, view.result) == ("completed", 4, "fine")
    assert len(job.runs) == 4


@virtual
async def test_retry_clears_the_outcome(world: World) -> None:
    """While it waits for its new attempt the job has no reason and no end."""
    job = world.recorder()
    job.script = [ValueError("1")]
    engine = world.engine()
    async with engine:
        await job.dispatch(None, job_id="x")
        await asyncio.sleep(1)
        await engine.queue("default").pause()
        await engine.retry_failed_job("x")
        view = await job.find("x")
        assert view is not None
        assert (view.state, view.failed_reason, view.finished_at) == ("waiting", None, None)
        assert await engine.failed_jobs() == []


@virtual
async def test_the_receipt_follows_a_retry(world: World) -> None:
    """After the retry the receipt of the same job answers with the new outcome."""
    job = world.recorder()
    job.script = [ValueError("1"), "fine"]
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None, job_id="x")
        with pytest.raises(JobFailedError):
            await receipt.result()
        await engine.retry_failed_job("x")
        assert await receipt.result() == "fine"


@pytest.mark.parametrize("state", ["missing", "waiting", "active", "completed", "delayed"])
def test_retrying_what_has_not_failed(world: World, state: str) -> None:
    """FailedJobNotFoundError says what is the matter, and nothing changes."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        engine = world.engine()
        async with engine:
            if state == "waiting":
                await engine.queue("default").pause()
            if state == "active":
                job.takes_s = 60
            if state != "missing":
                await job.dispatch(None, job_id="x", delay="1h" if state == "delayed" else 0)
            await asyncio.sleep(1)
            with refused(
                engine, FailedJobNotFoundError, "'x'", "'default'", "no job" if state == "missing" else state
            ) as caught:
                await engine.retry_failed_job("x")
            assert caught.value.id == "x"
            assert isinstance(caught.value, LookupError)
            await engine.queue("default").resume()

    story(world=world)


@virtual
async def test_a_stale_failed_job_cannot_be_retried(world: World) -> None:
    """`FailedJob.retry` of a job that was retried meanwhile raises."""
    job = world.recorder()
    job.script = [ValueError("1")]
    engine = world.engine()
    async with engine:
        await job.dispatch(None, job_id="x")
        await asyncio.sleep(1)
        (failed,) = await engine.failed_jobs()
        await failed.retry()
        await asyncio.sleep(1)
        with pytest.raises(FailedJobNotFoundError, match="completed"):
            await failed.retry()
        with pytest.raises(FailedJobNotFoundError):
            failed.retry_sync()


@virtual
async def test_retries_of_the_module(world: World) -> None:
    """Module-level `failed_jobs` and `retry_failed_job` go to the default registry's newest engine."""
    engine = inproc_jobs.Engine(clock=world.clock)
    world.engines.append(engine)
    script: list[Any] = [ValueError("1"), None]

    async def handle(payload: Any) -> None:
        step = script.pop(0)
        if step is not None:
            raise step

    job = inproc_jobs.define_job("tests.retries of the module", handle=handle)
    async with engine:
        await job.dispatch(None, job_id="x")
        await asyncio.sleep(1)
        assert [one.id for one in await inproc_jobs.failed_jobs()] == ["x"]
        await inproc_jobs.retry_failed_job("x")
        await asyncio.sleep(1)
        assert await inproc_jobs.failed_jobs() == []
        with pytest.raises(FailedJobNotFoundError):
            await inproc_jobs.retry_failed_job("x")
    assert script == []


@virtual
async def test_the_module_without_an_engine(world: World) -> None:
    """Without an engine they say so."""
    other = inproc_jobs.Registry()
    with pytest.raises(NoEngineError, match="make one with Engine"):
        await other.define_job("x", handle=lambda payload: None).dispatch(None)


# --- no handler -------------------------------------------------------------------------------------------------


@virtual
async def test_a_job_without_a_handler_fails_at_once(world: World) -> None:
    """A job made in this process whose handler is gone at its turn: failed, no retries, and the reason tells the cure."""
    job = world.recorder(attempts=5, backoff="1s")
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None, delay="1s", job_id="x")
        world.forget_handler("job")
        with pytest.raises(JobFailedError, match="define_job"):
            await receipt.result()
        view = await engine.failed_jobs()
        assert (view[0].attempts_made, view[0].id) == (1, "x")
        assert world.ms == 1000
        world.recorder("job")
        await engine.retry_failed_job("x")
        assert await receipt.result() is None


@virtual
async def test_a_redefined_handler_is_used_by_the_next_attempt(world: World) -> None:
    """Redefining a name replaces the handler for waiting jobs and retries too."""
    old = world.recorder(attempts=2, backoff="1s")
    old.script = [ValueError("old")]
    async with world.engine():
        receipt = await old.dispatch(1)
        await asyncio.sleep(0.5)
        new = world.recorder()
        new.script = ["new"]
        assert await receipt.result() == "new"
    assert (old.payloads, new.payloads) == ([1], [1])


@virtual
async def test_one_exception_object_raised_by_every_attempt(world: World) -> None:
    """A module-level error that is raised again and again leaves traces of one raise each."""
    job = world.recorder(attempts=30, stack_trace_limit=100)
    job.script = [ValueError("always the same")] * 30
    view = await run(world, job)
    assert [trace.count("in _handle") for trace in view.stacktrace] == [1] * 30


@virtual
async def test_stack_traces_are_bounded_without_being_told(world: World) -> None:
    """A job that is retried for days keeps the last ten traces; what came before has shown nothing else."""
    job = world.recorder(attempts=30)
    job.script = [ValueError(f"error {number}") for number in range(30)]
    view = await run(world, job)
    assert [trace.splitlines()[-1] for trace in view.stacktrace] == [f"ValueError: error {n}" for n in range(20, 30)]
