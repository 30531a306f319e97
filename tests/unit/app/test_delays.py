"""Delays: fixed deadlines, debounce, run_at, years, ties, and clocks that lie (DESIGN 2.5 to 2.7, cases C34 to C52)."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from inproc_jobs import Engine, InvalidDurationError, InvalidOptionError, InvalidOptionTypeError, Registry
from tests.unit.app.virtual import START, START_MS, VirtualClock, virtual
from tests.unit.app.world import World, refused

DAY_S = 86_400
YEAR_S = 365 * DAY_S
HOUR_MS = 3_600_000


# --- debounce by delay and id -----------------------------------------------------------------------------------


@virtual
async def test_five_triggers_are_one_run_with_the_first_payload_at_the_first_deadline(world: World) -> None:
    """`delay` + `job_id` collapses what comes until the deadline, which later dispatches neither move nor change."""
    form = world.recorder()
    async with world.engine():
        receipts = []
        for number in range(5):
            receipts.append(await form.dispatch({"v": number}, job_id="form:7", delay="30s"))
            await asyncio.sleep(6)
        await asyncio.sleep(60)
    assert form.runs == [(30_000, {"v": 0})]
    assert [receipt.duplicate for receipt in receipts] == [False, True, True, True, True]
    assert {receipt.state for receipt in receipts} == {"delayed"}


@virtual
async def test_after_the_run_the_next_trigger_opens_a_new_window(world: World) -> None:
    """The id is free after completion, so a sixth trigger is a run of its own, a full delay later."""
    form = world.recorder()
    async with world.engine():
        await form.dispatch(1, job_id="form:7", delay="30s")
        await asyncio.sleep(31)
        assert (await form.dispatch(2, job_id="form:7", delay="30s")).created
        await asyncio.sleep(60)
    assert form.runs == [(30_000, 1), (61_000, 2)]


# --- when -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", ["2s", " 2 s", "2000ms", "2.0s", 2000, timedelta(seconds=2)], ids=repr)
def test_forms_of_a_delay(world: World, delay: Any) -> None:
    """Text, timedelta and bare milliseconds mean the same."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        async with world.engine():
            await job.dispatch(None, delay=delay)
            await asyncio.sleep(5)
        assert job.starts == [2000]

    story(world=world)


@pytest.mark.parametrize(
    ("delay", "word"),
    [
        (-1, "negative"),
        (timedelta(seconds=-1), "negative"),
        (True, "bool"),
        (1.5, "float"),
        (float("nan"), "float"),
        ("1.5ms", "finer"),
        (timedelta(microseconds=1), "finer"),
        ("3 weeks", "unit"),
        ("30", "unit"),
        ("", "unit"),
        ([], "list"),
        (10**18, "10,000 years"),
    ],
)
async def test_wrong_delays_are_refused(world: World, engine: Engine, delay: Any, word: str) -> None:
    """Each wrong duration names `delay`, what is wrong with it and what is allowed, and changes nothing."""
    job = world.noop()
    with refused(engine, InvalidDurationError, "delay", word, '"30s"') as caught:
        await job.dispatch(None, job_id="x", delay=delay)
    assert caught.value.option == "delay"


@virtual
async def test_run_at(world: World) -> None:
    """An aware datetime of any zone is a moment."""
    job = world.recorder()
    async with world.engine():
        receipt = await job.dispatch(
            None, run_at=(START + timedelta(minutes=5)).astimezone(timezone(timedelta(hours=7)))
        )
        assert receipt.state == "delayed"
        view = await job.find(receipt.id)
        assert view is not None
        assert view.due_at == START + timedelta(minutes=5)
        await asyncio.sleep(600)
    assert job.starts == [300_000]


@virtual
async def test_run_at_in_the_past_runs_at_once(world: World) -> None:
    """Late is better than never."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch(None, run_at=START - timedelta(days=3))
        await asyncio.sleep(1)
    assert job.starts == [0]


@virtual
async def test_run_at_1970_and_before_runs_at_once(world: World) -> None:
    """Moments that are 0 or negative as milliseconds are past ones like all others."""
    job = world.recorder()
    async with world.engine():
        for moment in (
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(1901, 1, 1, tzinfo=UTC),
            datetime.min.replace(tzinfo=UTC),
        ):
            await job.dispatch(None, run_at=moment)
        await asyncio.sleep(1)
    assert job.starts == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"run_at": datetime(2026, 5, 1)}, InvalidOptionError, ("run_at", "naive", "tzinfo=UTC")),
        ({"run_at": "2026-05-01"}, InvalidOptionTypeError, ("run_at", "str", "delay=")),
        ({"run_at": 1_800_000_000_000}, InvalidOptionTypeError, ("run_at", "int")),
        ({"run_at": START, "delay": "1s"}, InvalidOptionError, ("delay", "run_at", "not both")),
        ({"run_at": START, "delay": 0}, InvalidOptionError, ("delay", "run_at", "not both")),
    ],
)
async def test_wrong_run_at_is_refused(
    world: World, engine: Engine, options: Any, error: type[Exception], words: tuple[str, ...]
) -> None:
    """A naive datetime, anything else, or a delay beside it is an error before anything changes."""
    job = world.noop()
    with refused(engine, error, *words) as caught:
        await job.dispatch(None, job_id="x", **options)
    assert caught.value.option == "run_at"


async def test_c51_fold(world: World, engine: Engine) -> None:
    """C51: in the repeated hour `fold` decides; in the skipped one the offset before the change is used."""
    berlin = ZoneInfo("Europe/Berlin")
    job = world.noop()

    async def due(moment: datetime) -> datetime | None:
        view = await job.find((await job.dispatch(None, run_at=moment)).id)
        assert view is not None
        return view.due_at

    assert await due(datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=berlin)) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert await due(datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=berlin)) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert await due(datetime(2026, 3, 29, 2, 30, tzinfo=berlin)) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


@virtual
async def test_timestamp_moves_the_start_of_the_delay(world: World) -> None:
    """A delay counts from `timestamp`, which is also when the job was created."""
    job = world.recorder()
    async with world.engine():
        receipt = await job.dispatch(None, delay="10s", timestamp=START - timedelta(seconds=4))
        view = await job.find(receipt.id)
        assert view is not None
        assert (view.created_at, view.due_at) == (START - timedelta(seconds=4), START + timedelta(seconds=6))
        await asyncio.sleep(60)
    assert job.starts == [6000]


@virtual
async def test_handler_sees_how_late_it_is(world: World) -> None:
    """`scheduled_for` is the due time, `late_by_ms` how long after it the attempt started."""
    job = world.recorder()
    blocker = world.recorder("blocker")
    blocker.takes_s = 5
    async with world.engine():
        await job.dispatch(None, delay="1s")
        await job.dispatch(None, delay="1s", priority=3)
        await blocker.dispatch(None)
        await asyncio.sleep(10)
    assert [ctx.scheduled_for for ctx in job.contexts] == [START + timedelta(seconds=1)] * 2
    assert [ctx.late_by_ms for ctx in job.contexts] == [4000, 4000]


@virtual
async def test_c41_delay_zero_is_not_delayed(world: World) -> None:
    """C41: a delay of zero goes straight to waiting; no `delayed` event, no other order."""
    job = world.recorder()
    engine = world.engine()
    names: list[str] = []
    engine.on("*", lambda event: names.append(event.name))
    first = await job.dispatch(1)
    zero = await job.dispatch(2, delay=0)
    also_zero = await job.dispatch(3, delay="0s")
    async with engine:
        pass
    assert (first.state, zero.state, also_zero.state) == ("waiting", "waiting", "waiting")
    assert job.payloads == [1, 2, 3]
    assert "delayed" not in names


# --- ties -------------------------------------------------------------------------------------------------------


@virtual
async def test_c34_twelve_thousand_jobs_due_in_one_millisecond(world: World) -> None:
    """C34: beyond BullMQ's 4,095 too, jobs due in the same millisecond run strictly in order of adding."""
    job = world.recorder()
    async with world.engine():
        await job.job.dispatch_many([(number, {"delay": 1000}) for number in range(12_000)])
        await asyncio.sleep(2)
    assert job.payloads == list(range(12_000))
    assert set(job.starts) == {1000}


@virtual
async def test_c35_same_due_time_from_different_add_times(world: World) -> None:
    """C35: A at 0 with 100 ms and B at 50 with 50 ms run in order of adding."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch("A", delay=100)
        await asyncio.sleep(0.05)
        await job.dispatch("B", delay=50)
        await asyncio.sleep(1)
    assert job.runs == [(100, "A"), (100, "B")]


@virtual
async def test_c49_equal_entries_never_compare_payloads(world: World) -> None:
    """C49: equal due time, equal priority, dict payloads: they run in order, nothing is compared."""
    job = world.recorder()
    async with world.engine():
        for number in range(3):
            await job.dispatch({"n": number}, delay=50, priority=7)
        await asyncio.sleep(1)
    assert job.payloads == [{"n": 0}, {"n": 1}, {"n": 2}]


# --- years ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delay",
    [timedelta(milliseconds=2**31 + 5000), "60d", timedelta(days=3652), timedelta(days=36_500)],
    ids=["2^31 ms", "60 days", "10 years", "100 years"],
)
def test_c37_delays_beyond_32_bits(world: World, long_waits: None, delay: Any) -> None:
    """C37: no run one millisecond before, exactly one at the due time."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        async with world.engine():
            receipt = await job.dispatch(None, job_id="far", delay=delay)
            view = await job.find("far")
            assert view is not None
            await asyncio.sleep((view.delay_ms - 1) / 1000)
            assert job.runs == []
            await asyncio.sleep(0.001)
            await receipt.result(timeout=1)
            assert job.starts == [view.delay_ms]
            await asyncio.sleep(YEAR_S)
        assert len(job.runs) == 1

    story(world=world)


@virtual
async def test_c37_the_real_slices_count_days_exactly(world: World) -> None:
    """C37: waiting in slices of ten seconds loses no millisecond over a day."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch(None, delay=DAY_S * 1000 + 7)
        await asyncio.sleep(2 * DAY_S)
    assert job.starts == [DAY_S * 1000 + 7]


@virtual
async def test_c38_dates_after_2039(world: World) -> None:
    """C38: after 7 September 2039 BullMQ's score loses bits; here due times stay exact to the millisecond."""
    world.clock.set_wall(datetime(2039, 9, 8, tzinfo=UTC))
    job = world.recorder()
    async with world.engine():
        await job.dispatch("two", delay=2)
        await job.dispatch("one", delay=1)
        await job.dispatch(
            "last year of all", run_at=datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), job_id="last"
        )
        view = await job.find("last")
        assert view is not None
        assert view.due_at == datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
        await asyncio.sleep(1)
    assert job.runs == [(1, "one"), (2, "two")]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["loop", "thread"])
def test_c40_a_wait_too_long_for_the_platform(host: str) -> None:
    """C40: a job in 10,000 years does not keep one in 50 ms from running, on real clocks, in both drivers."""
    registry = Registry()
    ran = threading.Event()
    job = registry.define_job("soon", handle=lambda payload: ran.set())
    engine = Engine(registry=registry)

    def fill() -> None:
        job.dispatch_sync(None, delay=timedelta(days=3_000_000))
        job.dispatch_sync(None, delay="50ms")

    if host == "thread":
        engine.start()
        fill()
        assert ran.wait(20)
    else:

        async def story() -> None:
            async with engine:
                fill()
                end = time.monotonic() + 20
                while not ran.is_set() and time.monotonic() < end:
                    await asyncio.sleep(0.01)

        asyncio.run(story())
    assert ran.is_set()
    report = engine.stop()
    assert report.lost == 1


# --- promotion --------------------------------------------------------------------------------------------------


@virtual
async def test_c42_promote(world: World) -> None:
    """C42: a promoted job runs now, once; its old timer starts nothing."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None, delay="1m")
        await engine.queue("default").promote(receipt.id)
        await receipt.result()
        view = await job.find(receipt.id)
        assert view is not None
        assert view.delay_ms == 0
        await asyncio.sleep(300)
    assert job.starts == [0]


@virtual
async def test_c43_change_of_delay_counts_from_now(world: World) -> None:
    """C43: a delay of 2,000 at 0, changed to 4,000 at 500, ends at 4,500."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None, delay=2000)
        await asyncio.sleep(0.5)
        await engine.queue("default").change_delay(receipt.id, 4000)
        await asyncio.sleep(10)
    assert job.starts == [4500]


@virtual
async def test_change_of_delay_to_a_shorter_one_wakes_the_engine(world: World) -> None:
    """The timer follows a due time that moves forward too."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None, delay="9s")
        await asyncio.sleep(1)
        await engine.queue("default").change_delay(receipt.id, "1s")
        await asyncio.sleep(20)
    assert job.starts == [2000]


@virtual
async def test_c52_paused_queue_promotes_what_is_due(world: World) -> None:
    """C52: while paused a due job becomes waiting on time; after the resume it runs behind those that waited."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        queue = engine.queue("default")
        await queue.pause()
        due = await job.dispatch("due", delay=200)
        await job.dispatch("waited", delay=100)
        await asyncio.sleep(0.199)
        assert queue.counts()["delayed"] == 1
        await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        view = await job.find(due.id)
        assert view is not None
        assert view.state == "waiting"
        await asyncio.sleep(0.4)
        assert job.runs == []
        await queue.resume()
        await asyncio.sleep(1)
    assert job.runs == [(600, "waited"), (600, "due")]


@virtual
async def test_nothing_is_promoted_while_all_slots_are_busy(world: World) -> None:
    """Promotion happens only inside a fetch: a due job stays delayed until a slot is free (DESIGN 2.7)."""
    job = world.recorder()
    busy = world.recorder("busy")
    busy.takes_s = 10
    async with world.engine():
        await busy.dispatch(None)
        receipt = await job.dispatch(None, delay="1s")
        await asyncio.sleep(5)
        view = await job.find(receipt.id)
        assert view is not None
        assert view.state == "delayed"
        await asyncio.sleep(10)
    assert job.starts == [10_000]


@virtual
async def test_delays_are_kept_before_the_start(world: World) -> None:
    """A job whose delay ends before the engine starts runs at the start."""
    job = world.recorder()
    engine = world.engine()
    await job.dispatch(None, delay="5s")
    await asyncio.sleep(60)
    async with engine:
        await asyncio.sleep(1)
    assert job.starts == [60_000]


# --- clocks that lie --------------------------------------------------------------------------------------------


@virtual
async def test_c44_wall_clock_set_back(world: World) -> None:
    """C44: two hours back: a relative delay keeps its elapsed time, `run_at` follows the new wall clock."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch("relative", delay="10s")
        await job.dispatch("absolute", run_at=START + timedelta(seconds=10))
        await asyncio.sleep(1)
        world.clock.step_wall(-2 * HOUR_MS)
        await asyncio.sleep(3 * 3600)
    assert job.runs == [(10_000, "relative"), (10_000 + 2 * HOUR_MS, "absolute")]


@virtual
async def test_c44_backoff_keeps_its_elapsed_time(world: World) -> None:
    """C44: what was made from a backoff moves with the clock too."""
    job = world.recorder(attempts=2, backoff="1m")
    job.script = [ValueError("once")]
    async with world.engine():
        await job.dispatch(None)
        await asyncio.sleep(30)
        world.clock.step_wall(-5 * HOUR_MS)
        await asyncio.sleep(3600)
    assert job.starts == [0, 60_000]


@virtual
async def test_c44_a_retried_run_at_job_is_relative_from_then_on(world: World) -> None:
    """C44: the backoff of a job that came from `run_at` is a duration like any other."""
    job = world.recorder(attempts=2, backoff="1m")
    job.script = [ValueError("once")]
    async with world.engine():
        await job.dispatch(None, run_at=START + timedelta(seconds=1))
        await asyncio.sleep(2)
        world.clock.step_wall(-5 * HOUR_MS)
        await asyncio.sleep(3600)
    assert job.starts == [1000, 61_000]


@virtual
async def test_c44_a_step_back_before_the_first_timer_is_seen_by_a_dispatch(world: World) -> None:
    """C44: whoever looks first, timer or dispatch, moves the delays; none moves twice."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch("old", delay="20s")
        await asyncio.sleep(1)
        world.clock.step_wall(-HOUR_MS)
        await job.dispatch("new", delay="2s")
        await asyncio.sleep(60)
    assert job.runs == [(3000, "new"), (20_000, "old")]


@virtual
async def test_c44_back_in_many_small_steps(world: World) -> None:
    """C44: ten steps of a minute each are ten times moved, and the delay is still ten seconds."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch(None, delay="30s")
        for _ in range(10):
            await asyncio.sleep(1)
            world.clock.step_wall(-60_000)
        await asyncio.sleep(7200)
    assert len(job.starts) == 1
    assert 30_000 <= job.starts[0] <= 31_000


@virtual
async def test_c44_while_the_engine_does_not_run(world: World) -> None:
    """C44: a step back between the dispatch and the start moves the delay as well."""
    job = world.recorder()
    engine = world.engine()
    await job.dispatch(None, delay="10s")
    await asyncio.sleep(1)
    world.clock.step_wall(-2 * HOUR_MS)
    await asyncio.sleep(1)
    async with engine:
        await asyncio.sleep(60)
    assert job.starts == [10_000]


@virtual
async def test_c45_a_year_forward_and_back(world: World) -> None:
    """C45: a jump forward runs what became due, once; after the correction later delays still keep their time."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch("before", delay="1h")
        await asyncio.sleep(1)
        world.clock.step_wall(365 * 24 * HOUR_MS)
        await asyncio.sleep(11)
        assert job.payloads == ["before"]
        await job.dispatch("in the wrong year", delay="1h")
        world.clock.step_wall(-365 * 24 * HOUR_MS)
        await asyncio.sleep(2 * 3600)
    assert job.payloads == ["before", "in the wrong year"]
    assert abs(job.starts[1] - 12_000 - HOUR_MS) <= 1000


@virtual
async def test_c45_forward_step_runs_once(world: World) -> None:
    """C45: an hour forward counts as elapsed time; each due job runs exactly once, within one slice."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch("a", delay="50m")
        await job.dispatch("b", run_at=START + timedelta(minutes=40))
        await asyncio.sleep(60)
        world.clock.step_wall(HOUR_MS)
        await asyncio.sleep(2 * 3600)
    assert job.payloads == ["b", "a"]
    assert all(60_000 <= at <= 70_000 for at in job.starts)


@virtual
async def test_c47_suspend_for_eight_hours(world: World) -> None:
    """C47: the wall clock gains 8 h, the monotonic one nothing: the job runs within one slice, once, and sees how late."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch(None, delay="1h")
        await asyncio.sleep(600)
        world.clock.step_wall(8 * HOUR_MS)
        await asyncio.sleep(3 * 3600)
    assert len(job.runs) == 1
    assert 600_000 <= job.starts[0] <= 610_000
    late = job.contexts[0].late_by_ms
    assert 7 * HOUR_MS + 600_000 <= late <= 7 * HOUR_MS + 610_000 + 1000


@virtual
async def test_c63_a_blocked_driver_drops_nothing(world: World) -> None:
    """C63: the loop stood still for 1,800 ms past the due time; the job runs and knows it."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch(None, delay="1s")
        world.clock.jump(2800)
        await asyncio.sleep(1)
    assert job.contexts[0].late_by_ms >= 1800


@virtual
async def test_idle_waits_for_delays_of_days(world: World, long_waits: None) -> None:
    """Jobs weeks apart run in due order, whatever the order of dispatch."""
    job = world.recorder()
    async with world.engine():
        for days in (30, 1, 365, 7):
            await job.dispatch(days, delay=f"{days}d")
        await asyncio.sleep(YEAR_S + 1)
    assert job.payloads == [1, 7, 30, 365]
    assert job.starts == [days * DAY_S * 1000 for days in (1, 7, 30, 365)]


def test_run_until_idle_waits_for_delays() -> None:
    """The blocking host waits for delays (short ones here: its loop is its own, on real time)."""
    registry = Registry()
    ran: list[int] = []
    job = registry.define_job("job", handle=ran.append, executor="inline")
    engine = Engine(registry=registry)
    job.dispatch_sync(1, delay=20)
    summary = engine.run_until_idle(timeout=20)
    assert (ran, summary.completed, summary.remaining) == ([1], 1, 0)


def test_the_virtual_clock_itself() -> None:
    """The helper: wall and monotonic time move apart only by a step."""
    clock = VirtualClock()
    clock.jump(5)
    assert (clock.now_ms() - START_MS, clock.elapsed_ms) == (5, 5)
    clock.step_wall(-100)
    assert (clock.now_ms() - START_MS, clock.elapsed_ms) == (-95, 5)
    clock.set_wall(START)
    assert clock.now_ms() == START_MS
