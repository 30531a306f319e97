"""Recurring jobs, daylight saving and missed runs: cases C53 to C66, and C45 with a schedule."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inproc_jobs import Engine
from inproc_jobs.runtime.cron import next_match_ms
from inproc_jobs.testing.memory_store import MemorySnapshot
from tests.unit.app.virtual import START, START_MS, VirtualLoop, virtual
from tests.unit.app.world import Recorder, World

HOUR_S = 3600
DAY_S = 24 * HOUR_S
MINUTE_MS = 60_000


def due(job: Recorder) -> list[str]:
    """The moment for which each run was planned, as UTC text."""
    return [context.scheduled_for.strftime("%Y-%m-%dT%H:%MZ") for context in job.contexts]


def in_zone(world: World, cron: str, tz: str, start: str, days: float) -> list[str]:
    """When the runs of a schedule take place from a moment on, by an engine that lives through all of it."""

    @virtual
    async def story(world: World) -> None:
        world.clock.set_wall(datetime.fromisoformat(start))
        began_ms = world.clock.now_ms()
        engine = world.engine()
        async with engine:
            await engine.schedule("c", job.job, None, cron=cron, tz=tz)
            await asyncio.sleep(days * DAY_S)
        started = [datetime.fromtimestamp((began_ms + at) / 1000, UTC) for at in job.starts]
        assert started == [context.scheduled_for for context in job.contexts]

    job = world.recorder()
    story(world=world)
    return due(job)


# --- C53 to C58: the days on which clocks are changed ---------------------------------------------------------------


@pytest.mark.usefixtures("long_waits")
def test_c53_a_daily_time_inside_the_gap(world: World) -> None:
    """C53: 02:30 Berlin does not exist on 2026-03-29: it runs when the gap is over, and at 02:30 from the next day on."""
    assert in_zone(world, "30 2 * * *", "Europe/Berlin", "2026-03-28T01:31Z", 3) == [
        "2026-03-29T01:00Z",
        "2026-03-30T00:30Z",
        "2026-03-31T00:30Z",
    ]


@pytest.mark.usefixtures("long_waits")
@pytest.mark.parametrize(
    ("cron", "tz", "start", "expected"),
    [
        (
            "30 1 * * *",
            "America/New_York",
            "2026-10-31T06:00Z",
            ["2026-11-01T05:30Z", "2026-11-02T06:30Z"],
        ),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T01:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        ("0 30 2 * * *", "Europe/Berlin", "2026-10-24T01:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        ("30 2 * * 0", "Europe/Berlin", "2026-10-24T12:00Z", ["2026-10-25T00:30Z"]),
    ],
)
def test_c54_a_daily_time_inside_the_overlap(world: World, cron: str, tz: str, start: str, expected: list[str]) -> None:
    """C54: a time that a clock shows twice runs once, the first time."""
    assert in_zone(world, cron, tz, start, 2.5) == expected


@pytest.mark.usefixtures("long_waits")
def test_c54_scheduling_between_the_two_passes_waits_for_the_next_day(world: World) -> None:
    """C54: who registers the schedule between 02:30 and 02:30 gets no run of that day."""
    assert in_zone(world, "30 2 * * *", "Europe/Berlin", "2026-10-25T00:45Z", 1.5) == ["2026-10-26T01:30Z"]


@pytest.mark.usefixtures("long_waits")
@pytest.mark.parametrize("cron", ["*/30 * * * *", "0,30 * * * *", "0 */30 * * * *"])
def test_c55_half_hourly_across_the_overlap(world: World, cron: str) -> None:
    """C55: what runs every half hour leaves no hole in the hour that comes twice."""
    assert in_zone(world, cron, "Australia/Melbourne", "2024-04-06T14:59Z", 2.2 / 24) == [
        f"2024-04-06T{time}Z" for time in ("15:00", "15:30", "16:00", "16:30", "17:00")
    ]


@pytest.mark.usefixtures("long_waits")
@pytest.mark.parametrize(
    ("cron", "tz", "start", "expected"),
    [
        ("0 0 * * *", "US/Pacific", "2022-03-12T09:00Z", ["2022-03-13T08:00Z", "2022-03-14T07:00Z"]),
        ("0 0 * * 1-5", "US/Central", "2021-03-12T05:00Z", ["2021-03-12T06:00Z", "2021-03-15T05:00Z"]),
    ],
)
def test_c56_midnight_loses_no_day(world: World, cron: str, tz: str, start: str, expected: list[str]) -> None:
    """C56: a day of 23 hours moves midnight, and no midnight is left out."""
    assert in_zone(world, cron, tz, start, 3.2)[:2] == expected


@pytest.mark.usefixtures("long_waits")
def test_c58_a_gap_of_half_an_hour(world: World) -> None:
    """C58: 02:15 Lord Howe does not exist on 2026-10-04: it runs at 02:30, when the gap is over."""
    assert in_zone(world, "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", 2) == [
        "2026-10-03T15:30Z",
        "2026-10-04T15:15Z",
    ]


@pytest.mark.usefixtures("long_waits")
def test_c58_an_overlap_of_half_an_hour(world: World) -> None:
    """C58: 01:45 Lord Howe comes at 14:45Z and at 15:15Z on that night: one run, the first."""
    assert in_zone(world, "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00Z", 2) == [
        "2026-04-04T14:45Z",
        "2026-04-05T15:15Z",
    ]


@pytest.mark.usefixtures("long_waits")
def test_c58_a_day_that_a_zone_has_left_out(world: World) -> None:
    """C58: Apia had no 2011-12-30: no noon on it, and the noons around it are where they belong."""
    assert in_zone(world, "0 12 * * *", "Pacific/Apia", "2011-12-28T12:00Z", 4) == [
        "2011-12-28T22:00Z",
        "2011-12-29T22:00Z",
        "2011-12-30T22:00Z",
        "2011-12-31T22:00Z",
    ]


# --- C59: always in the future --------------------------------------------------------------------------------------

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Melbourne",
    "Australia/Lord_Howe",
    "US/Pacific",
    "US/Central",
    "Pacific/Apia",
    "Africa/Casablanca",  # changes twice around Ramadan
    "America/Sao_Paulo",  # changed at midnight
    "Asia/Kathmandu",
)
CHANGES = tuple(
    datetime.fromisoformat(text)
    for text in (
        "2026-03-29T01:00Z",
        "2026-10-25T01:00Z",
        "2026-11-01T06:00Z",
        "2022-03-13T10:00Z",
        "2024-04-06T16:00Z",
        "2026-10-03T15:30Z",
        "2026-04-04T15:00Z",
        "2011-12-30T10:00Z",
        "2018-11-04T03:00Z",
    )
)
AROUND_A_CHANGE = st.builds(
    lambda change, minutes: change + timedelta(minutes=minutes),
    st.sampled_from(CHANGES),
    st.integers(-3 * 1440, 3 * 1440),
)
ANY_TIME = st.datetimes(datetime(1990, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC))


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """One field of a cron expression."""
    number = st.integers(low, high)
    one = st.one_of(
        st.just("*"),
        number.map(str),
        st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.integers(1, high).map("*/{}".format),
    )
    return st.one_of(st.just("*"), one, st.lists(number.map(str), min_size=1, max_size=3).map(",".join))


FIVE = (fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 6))
CRONS = st.one_of(
    st.tuples(*FIVE),
    st.tuples(fields(0, 59), *FIVE),
    st.tuples(fields(0, 59), fields(0, 23), st.just("*"), st.just("*"), st.just("*")),
).map(" ".join)


@given(CRONS, st.sampled_from(ZONES), st.one_of(AROUND_A_CHANGE, ANY_TIME))
@settings(max_examples=60)
def test_c59_every_match_is_later_than_the_one_before(cron: str, tz: str, start: datetime) -> None:
    """C59: for any pattern, zone and instant the next match is in the future, 500 times in a row."""
    at = int(start.timestamp() * 1000)
    for _ in range(500):
        moment = next_match_ms(cron, tz, at)
        if moment is None:
            return
        assert moment > at
        at = moment


@given(st.sampled_from(ZONES), AROUND_A_CHANGE, st.sampled_from([5, 10, 15, 20, 30]))
@settings(max_examples=60)
def test_c59_a_step_of_minutes_has_no_hole_and_no_double(tz: str, start: datetime, step: int) -> None:
    """C55, C59: a pattern of minutes matches each instant whose local minute it names, once, and no other."""
    zone = ZoneInfo(tz)
    first = int(start.timestamp()) // 60 * 60
    expected = [
        second * 1000
        for second in range(first + 60, first + 6 * HOUR_S, 60)
        if datetime.fromtimestamp(second, zone).minute % step == 0
    ]
    at, found = first * 1000, []
    while len(found) < len(expected):
        moment = next_match_ms(f"*/{step} * * * *", tz, at)
        assert moment is not None
        found.append(moment)
        at = moment
    assert found == expected


# --- C61: registering again -----------------------------------------------------------------------------------------


def one_schedule(engine: Engine) -> Any:
    """The one schedule there is, which has one pending run."""
    queue = engine.queue("default")
    (schedule,) = queue.schedules()
    counts = queue.counts()
    assert counts["delayed"] + counts["waiting"] + counts["prioritized"] == 1
    return schedule


@virtual
async def test_c61_registering_before_the_start_and_again(world: World) -> None:
    """C61: before start(), after two runs, with the same and with another pattern: one schedule, one pending run."""
    job = world.recorder()
    engine = world.engine()
    for _ in range(3):
        await engine.schedule("c", job.job, "first", cron="0 * * * *")
    assert one_schedule(engine).cron == "0 * * * *"
    async with engine:
        await engine.schedule("c", job.job, "first", cron="0 * * * *")
        await asyncio.sleep(2 * HOUR_S)
        assert due(job) == ["2026-03-02T10:00Z", "2026-03-02T11:00Z"]
        await engine.schedule("c", job.job, "first", cron="0 * * * *")
        assert one_schedule(engine).next_at == datetime(2026, 3, 2, 12, tzinfo=UTC)
        await engine.schedule("c", job.job, "second", cron="15 * * * *")
        schedule = one_schedule(engine)
        assert (schedule.cron, schedule.payload, schedule.next_at) == (
            "15 * * * *",
            "second",
            datetime(2026, 3, 2, 12, 15, tzinfo=UTC),
        )
        await asyncio.sleep(2 * HOUR_S)
    assert due(job)[2:] == ["2026-03-02T12:15Z", "2026-03-02T13:15Z"]
    assert job.payloads == ["first", "first", "second", "second"]


@virtual
async def test_c61_registering_while_a_run_is_active(world: World) -> None:
    """C61: the active run ends as it began, and the one pending run is of the latest registration."""
    job = world.recorder()
    job.takes_s = 600
    engine = world.engine()
    async with engine:
        await engine.schedule("c", job.job, "first", cron="0 * * * *")
        await asyncio.sleep(0.5 * HOUR_S + 60)
        assert len(job.runs) == 1
        await engine.schedule("c", job.job, "second", cron="0 * * * *")
        assert one_schedule(engine).payload == "second"
        await asyncio.sleep(HOUR_S)
    assert job.payloads == ["first", "second"]


@virtual
async def test_c61_registering_an_interval_again_keeps_its_phase(world: World) -> None:
    """C61: at every start of the application the same interval is registered; its pending run stays where it was."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        for _ in range(4):
            await engine.schedule("i", job.job, None, every="10m")
            await asyncio.sleep(3 * 60)
            assert one_schedule(engine).every_ms == 10 * MINUTE_MS
        await asyncio.sleep(20 * 60)
    assert job.starts == [0, 600_000, 1_200_000, 1_800_000]


def with_store(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """As `virtual`, with a store whose threads are waited for in `running`."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        world = fixtures["world"]
        world.waits_for_store = False
        make = functools.partial(VirtualLoop, world.clock, lambda: world.waits_for_store or world.has_busy_threads())
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(test(**fixtures))

    return run


@asynccontextmanager
async def running(world: Any, kept: MemorySnapshot, **options: Any) -> AsyncIterator[Engine]:
    """One life of the application, from reading the store to saving what is left."""
    engine = world.engine(snapshot=kept, **options)
    world.waits_for_store = True
    await engine.astart()
    world.waits_for_store = False
    yield engine
    world.waits_for_store = True
    await engine.astop()
    world.waits_for_store = False


@with_store
async def test_c61_registering_after_a_restore(world: World) -> None:
    """C61: an application that registers its schedules at each start has one of each, of the latest pattern."""
    job = world.recorder()
    kept = MemorySnapshot()
    for cron in ("0 * * * *", "0 * * * *", "30 * * * *"):
        async with running(world, kept) as engine:
            await engine.schedule("c", job.job, None, cron=cron)
            assert one_schedule(engine).cron == cron
            await asyncio.sleep(HOUR_S + 60)
            assert one_schedule(engine).cron == cron
    assert due(job) == ["2026-03-02T10:00Z", "2026-03-02T11:00Z", "2026-03-02T12:30Z"]


# --- C62: retries of a recurring run --------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["once", "all", "skip"])
@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (None, [(0, 1), (0, 2), (0, 3), (2000, 1), (4000, 1), (6000, 1)]),
        (500, [(0, 1), (500, 2), (1000, 3), (2000, 1), (4000, 1), (6000, 1)]),
        (1500, [(0, 1), (1500, 2), (2000, 1), (3000, 3), (4000, 1), (6000, 1)]),
        (2500, [(0, 1), (2000, 1), (2500, 2), (4000, 1), (5000, 3), (6000, 1)]),
    ],
    ids=repr,
)
def test_c62_a_retry_is_no_extra_run(world: World, backoff: Any, expected: list[Any], catch_up: Any) -> None:
    """C62: the first run of an interval of 2000 fails twice: one iteration per slot, and all three attempts are made."""

    @virtual
    async def story(world: World) -> None:
        attempts: list[tuple[int, int]] = []

        async def handle(payload: Any, ctx: Any) -> None:
            attempts.append((world.ms, ctx.attempt))
            if ctx.id == f"repeat:i:{START_MS}" and ctx.attempt < 3:
                raise ValueError("again")

        job = world.job(handle, attempts=3, backoff=backoff)
        engine = world.engine()
        async with engine:
            await engine.schedule("i", job, None, every=2000, catch_up=catch_up)
            await asyncio.sleep(7)
            assert len(engine.queue("default").schedules()) == 1
            assert engine.queue("default").counts()["delayed"] == 1
        assert attempts == expected

    story(world=world)


# --- C63: late ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["once", "all", "skip"])
@pytest.mark.parametrize("how", [{"cron": "0 * * * *"}, {"every": "1h", "start": START + timedelta(minutes=30)}])
def test_c63_a_run_that_is_1800_ms_late_runs(world: World, how: dict[str, Any], catch_up: Any) -> None:
    """C63: the loop stood still past the due time; whatever the policy, the run is made and knows how late it is."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        engine = world.engine()
        async with engine:
            await engine.schedule("s", job.job, None, catch_up=catch_up, **how)
            await asyncio.sleep(1799)
            world.clock.jump(2800)
            await asyncio.sleep(HOUR_S)
        assert [context.late_by_ms for context in job.contexts] == [1800, 0]
        assert due(job) == ["2026-03-02T10:00Z", "2026-03-02T11:00Z"]

    story(world=world)


# --- C65: five hours down -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"cron": "*/5 * * * *"}, {"every": "5m", "start": START + timedelta(minutes=5)}])
@pytest.mark.parametrize(("catch_up", "made_up"), [("skip", []), ("once", [5]), ("all", list(range(5, 305, 5)))])
def test_c65_five_hours_down(world: World, how: dict[str, Any], catch_up: Any, made_up: list[int]) -> None:
    """C65: restored after 5 h a five-minute schedule makes up for 0, 1 or 60 runs, by the policy in the snapshot."""

    @with_store
    async def story(world: World) -> None:
        job = world.recorder()
        kept = MemorySnapshot()
        async with running(world, kept) as engine:
            await asyncio.sleep(60)
            await engine.schedule("s", job.job, None, catch_up=catch_up, **how)
            await asyncio.sleep(60)
        world.clock.jump(300 * MINUTE_MS)
        async with running(world, kept) as engine:
            (schedule,) = engine.queue("default").schedules()
            assert schedule.catch_up == catch_up
            await asyncio.sleep(60)
            at_once = len(job.runs)
            await asyncio.sleep(9 * 60)
        assert at_once == len(made_up)
        expected = [START + timedelta(minutes=minutes) for minutes in [*made_up, 305, 310]]
        assert [context.scheduled_for for context in job.contexts] == expected
        assert [context.late_by_ms for context in job.contexts] == [
            *((302 - minutes) * MINUTE_MS for minutes in made_up),
            0,
            0,
        ]

    story(world=world)


@with_store
async def test_c65_a_limit_counts_what_is_made_up_for(world: World) -> None:
    """C65: `limit` bounds the runs of a schedule, those that are made up for included."""
    job = world.recorder()
    kept = MemorySnapshot()
    async with running(world, kept) as engine:
        await engine.schedule("s", job.job, None, cron="*/5 * * * *", catch_up="all", limit=7)
    world.clock.jump(300 * MINUTE_MS)
    async with running(world, kept):
        await asyncio.sleep(HOUR_S)
    assert [context.scheduled_for for context in job.contexts] == [
        START + timedelta(minutes=minutes) for minutes in range(5, 40, 5)
    ]


ENDS = pytest.mark.parametrize(
    ("how", "after_the_end"),
    [({"cron": "*/5 * * * *"}, []), ({"every": "5m", "start": START + timedelta(minutes=5)}, [25])],
    ids=["cron", "every"],
)
"""An interval's last run is planned before the end and may come after it, as on BullMQ (spec section 11.3)."""


@ENDS
def test_c65_an_end_while_nothing_ran(world: World, how: dict[str, Any], after_the_end: list[int]) -> None:
    """C65: with "all" the moments before `end` are made up for although `end` is over by then."""

    @with_store
    async def story(world: World) -> None:
        job = world.recorder()
        kept = MemorySnapshot()
        async with running(world, kept) as engine:
            await engine.schedule("s", job.job, None, catch_up="all", end=START + timedelta(minutes=22), **how)
        world.clock.jump(300 * MINUTE_MS)
        async with running(world, kept):
            await asyncio.sleep(HOUR_S)
        assert [context.scheduled_for for context in job.contexts] == [
            START + timedelta(minutes=minutes) for minutes in (5, 10, 15, 20, *after_the_end)
        ]

    story(world=world)


@ENDS
def test_what_an_end_ends(world: World, how: dict[str, Any], after_the_end: list[int]) -> None:
    """Nothing is planned once `end` is over."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        engine = world.engine()
        async with engine:
            await engine.schedule("s", job.job, None, end=START + timedelta(minutes=22), **how)
            await asyncio.sleep(HOUR_S)
        assert job.starts == [minutes * MINUTE_MS for minutes in (5, 10, 15, 20, *after_the_end)]

    story(world=world)


# --- C66: many overdue at once --------------------------------------------------------------------------------------


@with_store
async def test_c66_two_hundred_overdue_at_once(world: World) -> None:
    """C66: with a cap of 5 starts a second 200 overdue jobs start over 40 s, oldest first; none is lost or put off."""
    job = world.recorder()
    kept = MemorySnapshot()
    async with running(world, kept) as engine:
        for number in range(200):
            await job.dispatch(number, delay=timedelta(seconds=3600 - number))
    world.clock.jump(2 * HOUR_S * 1000)
    began = world.ms
    async with running(world, kept, max_starts_per_second=5, concurrency=50) as engine:
        await asyncio.sleep(60)
        counts = engine.queue("default").counts()
    assert job.payloads == list(range(199, -1, -1))
    starts = [at - began for at in job.starts]
    assert all(starts[number + 5] - starts[number] >= 999 for number in range(195))
    assert 38_000 <= starts[-1] <= 42_000
    assert (counts["waiting"], counts["delayed"]) == (0, 0)


@with_store
async def test_c66_two_hundred_overdue_schedules(world: World) -> None:
    """C66: the same for schedules: each overdue run is made within its own period, and the period stays what it was."""
    job = world.recorder()
    kept = MemorySnapshot()
    async with running(world, kept) as engine:
        for number in range(200):
            await engine.schedule(
                f"s{number}", job.job, number, every="1h", start=START + timedelta(seconds=number + 1)
            )
    world.clock.jump(3 * HOUR_S * 1000 + 600_000)
    began = world.ms
    async with running(world, kept, max_starts_per_second=5, concurrency=50) as engine:
        await asyncio.sleep(60)
        assert job.payloads == list(range(200))
        starts = [at - began for at in job.starts]
        assert all(starts[number + 5] - starts[number] >= 999 for number in range(195))
        assert {schedule.next_at for schedule in engine.queue("default").schedules()} == {
            START + timedelta(hours=4, seconds=number + 1) for number in range(200)
        }


# --- C45: a clock that jumps ahead and back -------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["once", "skip"])
@pytest.mark.parametrize("how", [{"cron": "0 * * * *"}, {"every": "1h", "start": START + timedelta(minutes=30)}])
def test_c45_a_schedule_when_the_clock_jumps_a_year_ahead_and_back(
    world: World, how: dict[str, Any], catch_up: Any
) -> None:
    """C45: at most one catch-up run, and the next run is within one hour of the corrected time."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        engine = world.engine()
        year_ms = 365 * DAY_S * 1000
        async with engine:
            await engine.schedule("s", job.job, None, catch_up=catch_up, **how)
            await asyncio.sleep(60)
            world.clock.step_wall(year_ms)
            await asyncio.sleep(11)
            await job.dispatch("a tick that sees the wrong year")
            await asyncio.sleep(1)
            world.clock.step_wall(-year_ms)
            await asyncio.sleep(11)
            ahead = [payload for payload in job.payloads if payload is None]
            assert len(ahead) <= 1
            corrected = world.ms
            (schedule,) = engine.queue("default").schedules()
            assert schedule.next_at <= START + timedelta(hours=1, minutes=30)
            assert engine.queue("default").counts()["delayed"] == 1
            await asyncio.sleep(2 * HOUR_S)
        later = [at for at, payload in job.runs if payload is None and at > corrected]
        assert len(later) in {1, 2}
        assert later[0] - corrected <= HOUR_S * 1000
        assert all(second - first >= HOUR_S * 1000 - 1 for first, second in pairwise(later))

    story(world=world)
