"""Faults on demand, crashes, determinism, and beside other clocks."""

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta

import freezegun
import pytest
import time_machine

from inproc_jobs import Engine, EngineStoppedError, JobContext, Registry, UnrecoverableError
from inproc_jobs.errors import InprocJobsError, InvalidOptionError
from inproc_jobs.testing import TimeStuckError, harness
from tests.unit.testing.conftest import names

# --- handlers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ran():
    return []


@pytest.fixture
def send(define, ran):
    @define("send", attempts=3, backoff="1m")
    async def send(payload, ctx: JobContext):
        ran.append((payload, ctx.attempt))
        return "sent"

    return send


async def test_the_next_runs_fail(kit, send, ran):
    """As often as asked for, with an error or its class; then the handler runs again."""
    kit.fail_next(send, ConnectionError("mail server away"))
    kit.fail_next("send", TimeoutError)
    receipt = await send.dispatch(1)
    assert (await kit.run_until_idle()).retried == 2
    assert ran == [(1, 3)]
    assert await receipt.result() == "sent"


async def test_errors_that_steer_work_as_faults(kit, send, ran):
    """`UnrecoverableError` fails the job for good at once."""
    kit.fail_next(send, UnrecoverableError("no such address"))
    await send.dispatch(1)
    assert (await kit.run_until_idle()).failed == 1
    assert ran == []


async def test_failures_by_predicate(kit, send, ran):
    """Every run whose payload the predicate picks, until the faults are cleared."""
    kit.fail_when(send, lambda payload: payload == "bad", ValueError("bad"))
    await send.dispatch("good")
    await send.dispatch("bad")
    summary = await kit.run_until_idle()
    assert (summary.completed, summary.failed, summary.retried) == (1, 1, 2)
    kit.clear_faults()
    await send.dispatch("bad")
    assert (await kit.run_until_idle()).completed == 1
    assert ran == [("good", 1), ("bad", 1)]


@pytest.mark.parametrize("executor", [None, "inline", "async"])
async def test_handlers_that_hang_end_by_their_timeout(executor, kit, define):
    """In virtual time; the retry runs."""

    def plain(payload):
        return "done"

    async def coroutine(payload):
        return "done"

    options = {"executor": executor} if executor == "inline" else {}
    job = define("a", handle=coroutine if executor == "async" else plain, timeout="1h", attempts=2, **options)
    kit.hang_next(job)
    assert await (await job.dispatch(1)).result() == "done"
    assert round(kit.clock.monotonic()) == 3600


async def test_a_handler_that_hangs_without_a_timeout_is_named(kit, send):
    """Nothing ends it, in production neither."""
    kit.time.patience_s = 0.01
    kit.hang_next(send)
    await send.dispatch(1)
    with pytest.raises(TimeStuckError, match="send '1' in 'default': active"):
        await kit.run_until_idle()


def test_faults_that_make_no_sense_are_refused(kit, send):
    """They would never happen, and the test would pass for the wrong reason."""
    with pytest.raises(InvalidOptionError, match="error must be an exception or its class, got 'boom'"):
        kit.fail_next(send, "boom")
    with pytest.raises(InvalidOptionError, match="times must be an int of at least 1"):
        kit.fail_next(send, ValueError, times=0)


async def test_faults_in_threads(registry, define):
    """plain="thread": the fault takes the place of the call in the thread."""

    @define("a", attempts=2)
    def a(payload):
        return threading.current_thread() is threading.main_thread()

    async with harness(registry=registry, plain="thread") as kit:
        kit.fail_next(a, ValueError)
        assert await (await a.dispatch(1)).result() is False


# --- crashes ------------------------------------------------------------------------------------------------------


async def test_a_crash_ends_everything_in_the_middle(kit, define):
    """The handler never comes back, nobody is told, and without a snapshot all jobs are gone; the program goes on."""
    seen = []

    @define("slow")
    async def slow(payload):
        seen.append("began")
        await asyncio.sleep(3600)
        seen.append("ended")

    receipt = await slow.dispatch(None, job_id="x")
    await slow.dispatch(None, delay="1d")
    await kit.advance("1m")
    before = kit.engine
    await kit.crash()
    assert kit.engine is not before
    with pytest.raises(EngineStoppedError):
        await receipt.result()
    assert await slow.find("x") is None
    assert (await slow.dispatch(None, job_id="x")).created
    assert (await kit.run_until_idle()).completed == 1
    assert seen == ["began", "began", "ended"]
    assert names(kit).count("active x") == 2
    assert round(kit.clock.monotonic()) == 60 + 3600


def test_a_crash_in_a_plain_test(registry, define):
    """The same, without a loop."""

    @define("a")
    async def a(payload):
        return None

    with harness(registry=registry) as kit:
        a.dispatch_sync(1)
        kit.crash_sync()
        assert kit.run_until_idle_sync().completed == 0


# --- isolation ----------------------------------------------------------------------------------------------------


async def test_the_harness_stays_the_newest_engine(kit, send):
    """A program that makes its engine later, in its app factory, does not take the dispatches away."""
    theirs = Engine(registry=send.on(kit.engine)._registry)
    await send.dispatch(1)
    kit.assert_dispatched(send)
    assert theirs.runtime.core.queues == {} or not theirs.queue("default").counts()["waiting"]


def test_definitions_that_a_test_replaces_are_put_back():
    """The next test finds the handler that the program defined; new names stay, modules are imported only once."""
    registry = Registry()
    original = registry.define_job("a", handle=lambda payload: "original")
    with harness(registry=registry) as kit:
        registry.define_job("a", handle=lambda payload: "replaced")
        registry.define_job("b", handle=lambda payload: None)
        receipt = original.dispatch_sync(None)
        assert receipt.result_sync() == "replaced"
        assert kit.engine is registry.current()
    assert registry.get("a") is original
    assert registry.get("b") is not None
    assert "serve" not in vars(registry)


async def test_a_closed_harness_says_so(registry, send):
    """Its engine refuses, and it runs nothing; closing twice is closing once."""
    with harness(registry=registry) as kit:
        pass
    kit.close()
    with pytest.raises(EngineStoppedError):
        await send.dispatch(1)
    with pytest.raises(InprocJobsError, match="was closed at the end of its test"):
        await kit.run_until_idle()


def test_nothing_is_left_after_many_harnesses(define, registry):
    """A hundred starts and ends: no thread, no loop, no task, no engine that still takes jobs."""

    @define("a")
    async def a(payload):
        await asyncio.sleep(10)

    threads = threading.active_count()
    for _ in range(100):
        with harness(registry=registry) as kit:
            a.dispatch_sync(1)
            kit.advance_sync("5s")
    assert threading.active_count() == threads
    assert kit._own_loop is None


# --- determinism --------------------------------------------------------------------------------------------------


def story(seed):
    """A timeline with jitter, concurrency, flows and threads of jobs."""
    registry = Registry()

    @registry.define_job("a", queue="q", attempts=4, backoff={"type": "exponential", "delay": 1000, "jitter": 0.9})
    async def a(payload, ctx: JobContext):
        await asyncio.sleep(payload % 3)
        if ctx.attempt < 4:
            raise ValueError(payload)
        await b.dispatch(payload, delay=payload * 10)

    @registry.define_job("b")
    def b(payload):
        return payload

    with harness(registry=registry, seed=seed, queues={"q": {"concurrency": 3}}) as kit:
        a.dispatch_many_sync([(number, None) for number in range(6)])
        kit.engine.flow_sync(b.node("parent", children=[b.node("child")]))
        kit.engine.schedule_sync("tick", b, "tick", every="1s")
        kit.advance_sync("15s")
        return json.dumps([(entry.elapsed_ms, entry.queue, entry.event, entry.fields) for entry in kit.timeline()])


def test_the_same_seed_gives_the_same_timeline_a_hundred_times():
    """Ids of flows, jitter and order included; another seed gives another one."""
    first = story(1)
    assert first.count("completed") > 20
    assert {story(1) for _ in range(99)} == {first}
    assert story(2) != first


# --- beside other clocks: case C116 -------------------------------------------------------------------------------

ELSEWHERE = datetime(2001, 2, 3, tzinfo=UTC)


@pytest.fixture(
    params=["freezegun", "freezegun tick", "freezegun asyncio", "time-machine", "time-machine tick", "before", "none"]
)
def clock_library(request):
    """Each as a context manager."""
    return {
        "freezegun": lambda: freezegun.freeze_time(ELSEWHERE),
        "freezegun tick": lambda: freezegun.freeze_time(ELSEWHERE, tick=True),
        "freezegun asyncio": lambda: freezegun.freeze_time(ELSEWHERE, real_asyncio=True),
        "time-machine": lambda: time_machine.travel(ELSEWHERE, tick=False),
        "time-machine tick": lambda: time_machine.travel(ELSEWHERE, tick=True),
        "before": lambda: freezegun.freeze_time(datetime(1970, 1, 1, tzinfo=UTC)),
        "none": lambda: harness(registry=Registry(), mode="record"),
    }[request.param]


async def test_virtual_time_is_the_same_beside_other_clocks(clock_library, registry, define):
    """Whether they are entered before the harness or inside it, frozen or ticking."""

    @define("a", attempts=2, backoff="1d", timeout="1h")
    async def a(payload, ctx: JobContext):
        await asyncio.sleep(2 * 3600 if ctx.attempt == 1 else 1)
        await asyncio.to_thread(int)
        return ctx.attempt

    async def timeline(kit):
        receipt = await a.dispatch(1, delay="30s")
        assert await receipt.result() == 2
        return [(entry.at, entry.event) for entry in kit.timeline()]

    async with harness(registry=registry) as kit:
        expected = await timeline(kit)
    with clock_library():
        async with harness(registry=registry) as kit:
            assert await timeline(kit) == expected
    async with harness(registry=registry) as kit:
        with clock_library():
            assert await timeline(kit) == expected
    assert expected[0][0].year == 2026


async def test_handlers_can_see_the_test_s_time_through_a_clock_library(kit, define):
    """`clock.follow` moves the library's clock along, so that `datetime.now()` in the code under test is right."""

    @define("a")
    async def a(payload):
        return datetime.now(UTC).isoformat()

    with freezegun.freeze_time() as frozen:
        kit.clock.follow(frozen.move_to)
        assert await (await a.dispatch(None, delay="1d")).result() == "2026-01-06T09:00:00+00:00"
    with time_machine.travel(0, tick=False) as traveller:
        kit.clock.follow(traveller.move_to)
        await asyncio.sleep(timedelta(days=1).total_seconds())
        assert datetime.now(UTC).day == 7


def test_sleeping_for_real_stays_real(registry, define):
    """`time.sleep` blocks the thread as ever; virtual time does not see it."""

    @define("a")
    def a(payload):
        began = time.perf_counter()
        time.sleep(0.01)  # the promise is about this very call
        return time.perf_counter() - began

    with harness(registry=registry) as kit:
        assert a.dispatch_sync(None).result_sync() >= 0.009
        assert kit.clock.monotonic() == 0
