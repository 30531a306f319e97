"""Running jobs: draining, single steps, modes, results."""

import asyncio
import threading

import pytest

from inproc_jobs import BlockingCallError, JobContext, JobFailedError, JobTimeoutError, RetryLater
from inproc_jobs.errors import InprocJobsError, InvalidOptionError
from inproc_jobs.testing import DrainLimitError, TimeStuckError, harness
from tests.unit.testing.conftest import names

# --- draining: case C117 ------------------------------------------------------------------------------------------


async def test_draining_follows_jobs_that_jobs_dispatch(kit, define):
    """A adds B adds C: all three are done when the drain returns."""

    @define("c")
    async def c(payload):
        return "end"

    @define("b")
    async def b(payload):
        await c.dispatch(None)

    @define("a")
    async def a(payload):
        await b.dispatch(None)

    await a.dispatch(None)
    summary = await kit.run_until_idle()
    assert (summary.completed, summary.failed, summary.retried, summary.remaining) == (3, 0, 0, 0)
    assert [one.name for one in kit.dispatched()] == ["a", "b", "c"]


async def test_retries_over_days_are_waited_for_in_virtual_time(kit, define):
    """Two failures with a backoff of a day, then success: two days later in the test's time."""

    @define("sync", attempts=3, backoff="1d")
    async def sync(payload, ctx: JobContext):
        if ctx.attempt < 3:
            raise ConnectionError("away")
        return ctx.attempt

    receipt = await sync.dispatch(None)
    summary = await kit.run_until_idle()
    assert (summary.completed, summary.retried) == (1, 2)
    assert await receipt.result() == 3
    assert round(kit.clock.monotonic()) == 2 * 86_400


async def test_a_job_that_dispatches_itself_stops_at_the_limit(kit, define):
    """The drain ends at its limit and names what would come next; the jobs are still there."""

    @define("again")
    async def again(payload):
        await again.dispatch(payload + 1)

    await again.dispatch(0)
    with pytest.raises(DrainLimitError, match="stopped after 50 runs; next would be:\n  again '51' in 'default'"):
        await kit.run_until_idle(limit=50)
    assert kit.engine.queue("default").counts()["waiting"] == 1


async def test_exactly_as_many_runs_as_the_limit_are_no_error(kit, define):
    """A limit of two lets two jobs through."""

    @define("a")
    async def a(payload):
        return None

    await a.dispatch(1)
    await a.dispatch(2)
    assert (await kit.run_until_idle(limit=2)).completed == 2


@pytest.mark.parametrize("call", ["advance", "run_ready", "result"])
async def test_nothing_else_runs_for_ever_either(call, kit, define):
    """Jobs that dispatch each other at once end `advance`, inline runs and an awaited result with the same error."""
    kit.limit = 30

    @define("again")
    async def again(payload):
        await again.dispatch(payload)

    @define("never")
    async def never(payload):
        return None

    await again.dispatch(0)
    receipt = await never.dispatch(None, priority=9)
    with pytest.raises(DrainLimitError):
        await {"advance": lambda: kit.advance("1s"), "run_ready": kit.run_ready, "result": receipt.result}[call]()


async def test_raise_on_failure_raises_the_very_exception_after_the_state_is_stored(kit, define):
    """Not a copy and not a wrapper; the job is failed by then, and what comes after it has not run."""
    error = ValueError("no such invoice")

    @define("a", attempts=2)
    async def a(payload):
        raise error

    @define("b")
    async def b(payload):
        return None

    receipt = await a.dispatch(None)
    later = await b.dispatch(None, delay="1h")
    with pytest.raises(ValueError, match="no such invoice") as caught:
        await kit.run_until_idle(raise_on_failure=True)
    assert caught.value is error
    assert (await a.find(receipt.id)).state == "failed"
    assert (await b.find(later.id)).state == "delayed"
    assert (await kit.run_until_idle(raise_on_failure=True)).completed == 1


async def test_only_one_queue_is_drained(kit, define):
    """Others keep their jobs, also those that the drain brings into being, and they stay visible to assertions."""

    @define("late", queue="born-meanwhile")
    async def late(payload):
        return None

    @define("mail", queue="mail")
    async def mail(payload):
        await late.dispatch(payload)

    @define("report", queue="reports")
    async def report(payload):
        return None

    await report.dispatch(1)
    await mail.dispatch(1)
    summary = await kit.run_until_idle(queue="mail")
    assert (summary.completed, summary.remaining) == (1, 2)
    kit.assert_dispatched(report, 1)
    assert not kit.engine.queue("reports").is_paused()
    assert not kit.engine.queue("born-meanwhile").is_paused()
    assert (await kit.run_until_idle()).completed == 2


async def test_a_queue_that_does_not_exist_is_a_mistake(kit, define):
    """A typo in `queue=` would make a test that drains nothing and passes."""

    @define("mail", queue="mail")
    async def mail(payload):
        return None

    assert (await kit.run_until_idle(queue="mail")).completed == 0
    with pytest.raises(InvalidOptionError, match="no queue 'mial'; there are: mail"):
        await kit.run_until_idle(queue="mial")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
async def test_a_limit_is_a_positive_int(limit, kit):
    """A limit of nothing would look like an idle engine."""
    with pytest.raises(InvalidOptionError, match="limit must be an int of at least 1"):
        await kit.run_until_idle(limit=limit)


# --- steps --------------------------------------------------------------------------------------------------------


async def test_run_next_runs_one_attempt(kit, define):
    """One attempt of one job; a retry that is due at once waits for the next call."""

    @define("a", attempts=2)
    async def a(payload, ctx: JobContext):
        if ctx.attempt == 1:
            raise ValueError

    await a.dispatch(1)
    await a.dispatch(2)
    seen = []
    while (view := await kit.run_next()) is not None:
        seen.append((view.id, view.attempts_made, view.state.value))
    assert seen == [("1", 1, "waiting"), ("2", 1, "waiting"), ("1", 2, "completed"), ("2", 2, "completed")]


async def test_run_next_takes_a_queue_and_leaves_delayed_jobs(kit, define):
    """Nothing ready answers None, and time does not go on for it."""

    @define("mail", queue="mail")
    async def mail(payload):
        return None

    @define("other", queue="other")
    async def other(payload):
        return None

    await mail.dispatch(1, delay="1s")
    await other.dispatch(1)
    assert await kit.run_next("mail") is None
    assert kit.clock.monotonic() == 0
    view = await kit.run_next()
    assert view is not None
    assert (view.name, view.queue) == ("other", "other")


async def test_run_next_does_not_wait_for_other_runs(kit, define):
    """A handler that sleeps for an hour is still asleep when another queue's job has run."""

    @define("slow", queue="a")
    async def slow(payload):
        await asyncio.sleep(3600)

    @define("quick", queue="b")
    async def quick(payload):
        return None

    await slow.dispatch(None)
    await kit.advance("1m")
    await quick.dispatch(None)
    assert (await kit.run_next()).name == "quick"
    assert round(kit.clock.monotonic()) == 60


async def test_advance_runs_what_is_due_meanwhile_in_order(kit, define):
    """A job at each of its moments, and none after the end."""
    seen = []

    @define("a")
    async def a(payload):
        seen.append((payload, round(kit.clock.monotonic())))

    for seconds in (30, 10, 20, 31):
        await a.dispatch(seconds, delay=f"{seconds}s")
    await kit.advance("30s")
    assert seen == [(10, 10), (20, 20), (30, 30)]
    assert kit.clock.monotonic() == pytest.approx(30, abs=1e-4)


async def test_advance_to_a_moment(kit, define):
    """An aware moment that is ahead; others are refused."""
    await kit.advance_to(kit.clock.now().replace(hour=23))
    assert kit.clock.now().hour == 23
    with pytest.raises(InvalidOptionError, match="is over: it is 2026-01-05T23:00"):
        await kit.advance_to(kit.clock.now().replace(hour=3))
    with pytest.raises(InvalidOptionError, match="must be an aware datetime"):
        await kit.advance_to(kit.clock.now().replace(tzinfo=None))


async def test_a_handler_that_sleeps_through_an_advance_goes_on_in_the_next(kit, define):
    """It is active in between, as in production."""

    @define("slow")
    async def slow(payload):
        await asyncio.sleep(90)
        return "awake"

    receipt = await slow.dispatch(None)
    await kit.advance("60s")
    assert (await slow.find(receipt.id)).state == "active"
    await kit.advance("30s")
    assert (await slow.find(receipt.id)).result == "awake"


# --- results ------------------------------------------------------------------------------------------------------


async def test_awaiting_a_result_runs_the_job(kit, define):
    """In manual mode too: nobody else would, and the test would hang. Other jobs run as in production."""

    @define("a", attempts=2, backoff="1h")
    async def a(payload, ctx: JobContext):
        if ctx.attempt == 1:
            raise ValueError
        return payload

    receipt = await a.dispatch("x", delay="1d")
    assert await receipt.result() == "x"
    await a.dispatch("y")
    assert kit.engine.queue("default").counts()["waiting"] == 1  # and the manual mode is back


async def test_results_run_jobs_only_once_everything_else_is_blocked(kit, define):
    """A test that steps by hand keeps the control although the code under test awaits a result."""

    @define("a")
    async def a(payload):
        return payload

    receipt = await a.dispatch(1)
    waiting = asyncio.create_task(receipt.result())
    await asyncio.sleep(0)
    assert kit.timeline()[-1].event == "waiting"
    assert (await kit.run_next()).state == "completed"
    assert await waiting == 1


async def test_a_timeout_of_result_is_virtual(kit, define):
    """The job is due after it, so it raises, in no time."""

    @define("a")
    async def a(payload):
        return payload

    receipt = await a.dispatch(1, delay="1h")
    with pytest.raises(TimeoutError):
        await receipt.result(timeout=60)
    assert round(kit.clock.monotonic()) == 60
    assert await receipt.result(timeout=7200) == 1


async def test_many_results_at_once(kit, define):
    """`gather` over receipts, one of which fails."""

    @define("a")
    async def a(payload):
        if payload == 2:
            raise ValueError("two")
        return payload

    receipts = [await a.dispatch(number) for number in range(4)]
    results = await asyncio.gather(*(one.result() for one in receipts), return_exceptions=True)
    assert isinstance(results.pop(2), JobFailedError)
    assert results == [0, 1, 3]


async def test_a_handler_that_awaits_another_job(kit, define):
    """Results inside handlers are production's business."""

    @define("inner", queue="inner")
    async def inner(payload):
        await asyncio.sleep(60)
        return payload + 1

    @define("outer")
    async def outer(payload):
        return await (await inner.dispatch(payload)).result()

    assert await (await outer.dispatch(1)).result() == 2


async def test_record_mode_says_that_a_result_never_comes(kit, define):
    """Instead of hanging."""

    @define("a")
    async def a(payload):
        return payload

    kit.mode = "record"
    receipt = await a.dispatch(1)
    with pytest.raises(InprocJobsError, match="mode 'record' runs nothing, so the result would never come"):
        await receipt.result()


async def test_a_handler_that_waits_for_ever_is_named(kit, define):
    """Neither a hang nor a jump: the error is raised where the test drains, and names the job."""

    @define("a")
    async def a(payload):
        await asyncio.Event().wait()

    kit.time.patience_s = 0.01
    await a.dispatch(1, job_id="the-one")
    with pytest.raises(TimeStuckError, match="a 'the-one' in 'default': active"):
        await kit.run_until_idle()
    receipt = await a.dispatch(1, job_id="the-one")
    with pytest.raises(TimeStuckError):
        await receipt.result()


# --- modes --------------------------------------------------------------------------------------------------------


async def test_inline_mode_runs_a_job_before_dispatch_returns(kit, define):
    """With all it dispatches and with its own sleeps; what is delayed waits."""
    seen = []

    @define("b")
    async def b(payload):
        seen.append("b")

    @define("a")
    async def a(payload):
        await asyncio.sleep(10)
        seen.append("a")
        await b.dispatch(None)
        await b.dispatch(None, delay="1h")

    kit.mode = "inline"
    await a.dispatch(None)
    assert seen == ["a", "b"]
    await kit.advance("1h")
    assert seen == ["a", "b", "b"]


async def test_inline_mode_has_no_recursion(kit, define):
    """Two thousand retries at once, and a chain of two thousand dispatches, on a stack of usual depth."""

    @define("stubborn", attempts=2001)
    async def stubborn(payload, ctx: JobContext):
        if ctx.attempt < 2001:
            raise ValueError
        return ctx.attempt

    @define("chain")
    async def chain(left):
        if left:
            await chain.dispatch(left - 1)

    kit.mode = "inline"
    assert await (await stubborn.dispatch(None)).result() == 2001
    await chain.dispatch(2000)
    assert kit.engine.queue("default").counts()["completed"] >= 1000


async def test_inline_dispatches_side_by_side(kit, define):
    """`gather` of dispatches: each has run when its own await is over."""

    @define("a")
    async def a(payload):
        await asyncio.sleep(payload)
        return payload

    kit.mode = "inline"
    receipts = await asyncio.gather(*(a.dispatch(seconds) for seconds in (3, 1, 2)))
    assert [a.find_sync(one.id).result for one in receipts] == [3, 1, 2]


async def test_inline_mode_for_bulks_flows_and_schedules(kit, define):
    """Every door runs what is ready."""

    @define("a")
    async def a(payload):
        return payload

    kit.mode = "inline"
    await a.dispatch_many([(1, None), (2, None)])
    await kit.engine.flow(a.node("parent", children=[a.node("child")]))
    await kit.engine.schedule("tick", a, "tick", every="1h")
    assert [entry.fields["returnvalue"] for entry in kit.timeline() if entry.event == "completed"] == [
        1,
        2,
        "child",
        "parent",
        "tick",
    ]


def test_inline_mode_in_a_plain_test(registry, define):
    """`dispatch_sync` and its kin have run the job when they return."""

    @define("a")
    def a(payload):
        return payload

    with harness(registry=registry, mode="inline") as kit:
        assert a.find_sync(a.dispatch_sync(1).id).result == 1
        assert [a.find_sync(one.id).result for one in a.dispatch_many_sync([(2, None), (3, None)])] == [2, 3]
        kit.engine.flow_sync(a.node(4, children=[a.node(5)]))
        kit.engine.schedule_sync("tick", a, 6, every="1h")
        done = [entry.fields["returnvalue"] for entry in kit.timeline() if entry.event == "completed"]
        assert done == [1, 2, 3, 5, 4, 6]


async def test_inline_dispatch_sync_inside_a_loop_says_why_it_cannot(kit, define):
    """Nothing is added then; in a handler it works, since whoever runs that runs the rest."""

    @define("b")
    async def b(payload):
        return "b"

    @define("a")
    async def a(payload):
        b.dispatch_sync(None)

    kit.mode = "inline"
    with pytest.raises(BlockingCallError, match=r"dispatch_sync\(\) in mode 'inline' has to run the job"):
        b.dispatch_sync(None)
    kit.refute_dispatched(b)
    await a.dispatch(None)
    assert names(kit)[-2:] == ["completed 2", "drained"]


async def test_inline_dispatch_sync_from_a_thread_of_the_program(kit, define):
    """A plain FastAPI endpoint runs in a thread: its job runs on the test's loop before it goes on."""

    @define("a")
    async def a(payload):
        await asyncio.sleep(3600)
        return threading.current_thread() is threading.main_thread()

    def endpoint():
        return a.find_sync(a.dispatch_sync(None).id).result

    kit.mode = "inline"
    assert await asyncio.to_thread(endpoint) is True


def test_result_sync_in_a_plain_test(registry, define):
    """It runs the jobs, and its timeout is virtual."""

    @define("a")
    async def a(payload):
        return payload

    with harness(registry=registry):
        assert a.dispatch_sync(1, delay="1d").result_sync() == 1
        with pytest.raises(TimeoutError):
            a.dispatch_sync(1, delay="1d").result_sync(timeout=60)


async def test_result_sync_from_a_thread_of_the_program(kit, define):
    """The thread waits for the loop, so the loop does not wait for the thread."""

    @define("a")
    async def a(payload):
        await asyncio.sleep(60)
        return payload

    receipt = await a.dispatch(1)
    assert await asyncio.to_thread(receipt.result_sync) == 1


async def test_record_mode_runs_nothing_and_remembers(kit, define):
    """Duplicates are told as ever; running is refused, and possible later."""

    @define("a")
    async def a(payload):
        return payload

    with kit.using("record"):
        await a.dispatch(1, job_id="x")
        assert (await a.dispatch(1, job_id="x")).duplicate
        for call in (kit.run_until_idle, kit.run_next, kit.run_ready):
            with pytest.raises(InprocJobsError, match="mode 'record' runs nothing"):
                await call()
        await kit.advance("1h")
    kit.assert_dispatched(a, 1, job_id="x")
    assert kit.mode == "manual"
    assert (await kit.run_until_idle()).completed == 1


def test_unknown_settings_are_refused(registry):
    """A typo in a mode would be a manual mode that nobody wanted."""
    for wrong in ({"mode": "eager"}, {"plain": "process"}, {"real_io": "maybe"}, {"start": "today"}):
        with pytest.raises(InvalidOptionError, match=next(iter(wrong))):
            harness(registry=registry, **wrong)


async def test_sync_calls_inside_a_loop_name_their_twin(kit):
    """They would block the loop that they need."""
    with pytest.raises(BlockingCallError, match="await the call without _sync"):
        kit.run_until_idle_sync()


def test_every_sync_twin(registry, define):
    """A plain test has the same calls."""

    @define("a")
    async def a(payload):
        return payload

    with harness(registry=registry) as kit:
        a.dispatch_sync(1)
        assert kit.run_next_sync().result == 1
        a.dispatch_sync(2, delay="1m")
        kit.run_ready_sync()
        kit.advance_sync("1m")
        kit.advance_to_sync(kit.clock.now().replace(hour=12))
        a.dispatch_sync(3)
        assert kit.run_until_idle_sync().completed == 1
        assert kit.clock.now().hour == 12


# --- where handlers run -------------------------------------------------------------------------------------------


async def test_plain_functions_run_on_the_test_s_thread_without_seeing_its_loop(kit, define):
    """As in a thread of production: `asyncio.run` works inside. And the loop is there again afterwards."""

    @define("a")
    def a(payload):
        assert threading.current_thread() is threading.main_thread()
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return asyncio.run(asyncio.sleep(0, "inner"))

    assert await (await a.dispatch(None)).result() == "inner"
    assert asyncio.current_task() is not None
    assert asyncio.get_running_loop() is not None


async def test_result_sync_in_a_plain_handler_says_what_to_do(kit, define):
    """On the test's own thread it could only hang."""

    @define("inner", queue="inner")
    def inner(payload):
        return 1

    @define("outer")
    def outer(payload):
        return inner.dispatch_sync(None).result_sync()

    with pytest.raises(JobFailedError, match="use plain='thread' for this test"):
        await (await outer.dispatch(None)).result()


async def test_plain_functions_in_threads_hold_time(registry, define):
    """With plain="thread" they run as in production, time stands still meanwhile, and results work inside."""

    @define("inner", queue="inner")
    async def inner(payload):
        await asyncio.sleep(60)
        return threading.current_thread() is threading.main_thread()

    began, go = threading.Event(), threading.Event()

    @define("outer")
    def outer(payload):
        began.set()
        assert go.wait(10)
        return inner.dispatch_sync(None).result_sync(), threading.current_thread() is threading.main_thread()

    async with harness(registry=registry, plain="thread") as kit:
        receipt = await outer.dispatch(None)
        asyncio.get_running_loop().call_later(3600, go.set)  # would fire at once if time did not stand still
        waiting = asyncio.create_task(receipt.result())
        assert await asyncio.to_thread(began.wait, 10)
        assert kit.clock.monotonic() == 0
        go.set()
        assert await waiting == [True, False]


async def test_an_inline_executor_still_sees_the_loop(kit, define):
    """executor="inline" runs on the loop in production too."""

    @define("a", executor="inline")
    def a(payload):
        return asyncio.get_running_loop() is not None

    assert await (await a.dispatch(None)).result() is True


async def test_handlers_time_out_in_virtual_time(kit, define):
    """A timeout of an hour, a handler that sleeps a day, and a retry that is quick."""

    @define("a", timeout="1h", attempts=2)
    async def a(payload, ctx: JobContext):
        if ctx.attempt == 1:
            await asyncio.sleep(86_400)
        return ctx.attempt

    assert await (await a.dispatch(None)).result() == 2
    assert round(kit.clock.monotonic()) == 3600


async def test_raise_on_failure_knows_timeouts(kit, define):
    """What is raised is what production reports."""

    @define("a", timeout="1h")
    async def a(payload):
        await asyncio.sleep(86_400)

    await a.dispatch(None)
    with pytest.raises(JobTimeoutError, match="attempt 1 took longer than its timeout"):
        await kit.run_until_idle(raise_on_failure=True)


async def test_signals_of_handlers_work_as_ever(kit, define):
    """`RetryLater` puts the job back without counting the attempt."""

    @define("a")
    async def a(payload):
        if kit.clock.monotonic() < 3000:
            raise RetryLater("1h")
        return "now"

    assert await (await a.dispatch(None)).result() == "now"
    assert round(kit.clock.monotonic()) == 3600
