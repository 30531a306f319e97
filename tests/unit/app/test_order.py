"""In which order jobs start: priorities, LIFO, concurrency, several queues (cases C80 to C84)."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inproc_jobs import Engine, InvalidOptionError, InvalidOptionTypeError
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused


@virtual
async def test_c80_no_priority_first_then_the_lowest_number(world: World) -> None:
    """C80: 10, 5 (a), none, 7, 5 (b) run as none, 5a, 5b, 7, 10."""
    job = world.recorder()
    engine = world.engine()
    for name, priority in (("10", 10), ("5a", 5), ("none", None), ("7", 7), ("5b", 5), ("zero", 0)):
        await job.dispatch(name, priority=priority)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["none", "zero", "5a", "5b", "7", "10"]


@virtual
async def test_c81_the_highest_priority_number_keeps_its_order(world: World) -> None:
    """C81: 2097151 is accepted, and equal ones keep the order of adding."""
    job = world.recorder()
    engine = world.engine()
    for number in range(5):
        await job.dispatch(number, priority=2_097_151)
    await job.dispatch("before", priority=2_097_150)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["before", 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("priority", "error"),
    [
        (2_097_152, InvalidOptionError),
        (-1, InvalidOptionError),
        (1.5, InvalidOptionTypeError),
        (True, InvalidOptionTypeError),
        ("1", InvalidOptionTypeError),
    ],
    ids=repr,
)
async def test_c81_other_priorities_are_refused(
    world: World, engine: Engine, priority: Any, error: type[Exception]
) -> None:
    """C81: out of range, not whole, or no number at all: refused at dispatch and at a change, and nothing has changed."""
    job = world.noop()
    with refused(engine, error, "priority"):
        await job.dispatch(None, priority=priority)
    await job.dispatch(None, job_id="x", priority=7)
    with refused(engine, error, "priority"):
        await engine.queue("default").change_priority("x", priority)


@given(priorities=st.lists(st.integers(0, 4), max_size=30))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_priorities_is_sorted_and_stable(priorities: list[int]) -> None:
    """For every list of priorities the runs are a stable sort of it."""
    world = World()

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        engine = world.engine()
        await job.job.dispatch_many(
            [([priority, number], {"priority": priority}) for number, priority in enumerate(priorities)]
        )
        async with engine:
            await asyncio.sleep(1)
        expected = sorted(enumerate(priorities), key=lambda pair: pair[1])
        assert job.payloads == [[priority, number] for number, priority in expected]

    story(world=world)


@virtual
async def test_c82_starvation_shows(world: World) -> None:
    """C82: a steady stream of jobs without a priority keeps one with a priority waiting; its age is in `health()`."""
    job = world.recorder()
    job.takes_s = 0.01
    important = world.recorder("important")
    engine = world.engine()
    async with engine:
        await job.dispatch(None)
        await important.dispatch(None, priority=1)
        for _ in range(6000):
            await job.dispatch(None)
            await asyncio.sleep(0.01)
        assert important.runs == []
        assert engine.health()["queues"]["default"]["oldest_waiting_age_ms"] >= 59_000
        await asyncio.sleep(1)
    assert len(important.runs) == 1


@virtual
async def test_c83_change_to_zero(world: World) -> None:
    """C83: priority 10 changed to 0 moves to the unprioritised lane, at its end."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    await job.dispatch("P10", job_id="p", priority=10)
    await job.dispatch("first")
    await queue.change_priority("p", 0)
    await job.dispatch("last")
    view = await job.find("p")
    assert view is not None
    assert (view.state, view.priority) == ("waiting", 0)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["first", "P10", "last"]


@virtual
async def test_c84_lifo_and_delay(world: World) -> None:
    """C84: a, b lifo, d1 and d2 lifo with delays 50 and 60, started at 150: b, a, d1, d2."""
    job = world.recorder()
    engine = world.engine()
    await job.dispatch("a")
    await job.dispatch("b", lifo=True)
    await job.dispatch("d1", lifo=True, delay=50)
    await job.dispatch("d2", lifo=True, delay=60)
    await asyncio.sleep(0.15)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["b", "a", "d1", "d2"]


@virtual
async def test_lifo_is_a_stack(world: World) -> None:
    """Each lifo job goes before all that wait."""
    job = world.recorder()
    engine = world.engine()
    await job.dispatch(0)
    for number in (1, 2, 3):
        await job.dispatch(number, lifo=True)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == [3, 2, 1, 0]


@virtual
async def test_fifo_at_any_concurrency(world: World) -> None:
    """Jobs start in the order of dispatch, as many at once as the concurrency allows, never more."""
    job = world.recorder()
    job.takes_s = 1
    async with world.engine(concurrency=7):
        await job.job.dispatch_many([(number, None) for number in range(30)])
        await asyncio.sleep(100)
    assert job.payloads == list(range(30))
    assert job.starts == [number // 7 * 1000 for number in range(30)]


@virtual
async def test_concurrency_per_queue(world: World) -> None:
    """`queues` overrides the engine's concurrency; queues do not share slots."""
    jobs = {name: world.recorder(name, queue=name) for name in ("wide", "narrow", "unlisted")}
    engine = world.engine(concurrency=2, queues={"wide": {"concurrency": 5}, "narrow": {"concurrency": 1}})
    for job in jobs.values():
        job.takes_s = 1
        await job.job.dispatch_many([(None, None)] * 5)
    async with engine:
        await asyncio.sleep(100)
    assert jobs["wide"].starts == [0] * 5
    assert jobs["narrow"].starts == [0, 1000, 2000, 3000, 4000]
    assert jobs["unlisted"].starts == [0, 0, 1000, 1000, 2000]


@virtual
async def test_concurrency_holds_for_threads(world: World) -> None:
    """Plain handlers count as the others do: at most so many at once."""
    import threading

    lock = threading.Lock()
    now = most = 0

    def handle(payload: Any) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.005)
        with lock:
            now -= 1

    job = world.job(handle)
    async with world.engine(concurrency=3):
        receipts = await job.dispatch_many([(None, None)] * 20)
        for receipt in receipts:
            await receipt.result()
    assert most == 3


@virtual
async def test_limiter_of_a_queue(world: World) -> None:
    """At most `max` starts per `duration`, whatever the concurrency."""
    job = world.recorder(queue="api")
    async with world.engine(concurrency=10, queues={"api": {"limiter": {"max": 2, "duration": "1s"}}}):
        await job.job.dispatch_many([(number, None) for number in range(6)])
        await asyncio.sleep(100)
    assert job.payloads == list(range(6))
    assert job.starts == [0, 0, 1000, 1000, 2000, 2000]


@virtual
async def test_max_starts_per_second(world: World) -> None:
    """A cap over all queues: no window of one second has more starts."""
    one, two = world.recorder("one", queue="q1"), world.recorder("two", queue="q2")
    async with world.engine(concurrency=50, max_starts_per_second=10):
        await one.job.dispatch_many([(None, None)] * 20)
        await two.job.dispatch_many([(None, None)] * 20)
        await asyncio.sleep(100)
    starts = sorted(one.starts + two.starts)
    assert len(starts) == 40
    assert all(starts[n + 10] - starts[n] >= 999 for n in range(30)), starts
    assert starts[-1] <= 5000


@virtual
async def test_queues_do_not_block_each_other(world: World) -> None:
    """A paused or busy queue leaves the others alone."""
    slow, fast, paused = (world.recorder(name, queue=name) for name in ("slow", "fast", "paused"))
    slow.takes_s = 1000
    engine = world.engine()
    await engine.queue("paused").pause()
    async with engine:
        for job in (slow, paused, fast):
            await job.dispatch(None)
        await asyncio.sleep(1)
        assert (len(slow.runs), len(fast.runs), len(paused.runs)) == (1, 1, 0)
        await engine.queue("paused").resume()
        await asyncio.sleep(1)
        assert len(paused.runs) == 1
        await asyncio.sleep(1000)


@virtual
async def test_default_queue(world: World) -> None:
    """A job that names no queue goes to the engine's `default_queue`, and is found there."""
    job = world.noop()
    engine = world.engine(default_queue="mails")
    receipt = await job.dispatch(None, job_id="x")
    assert (receipt.queue, job.queue) == ("mails", None)
    assert engine.queue("mails").counts()["waiting"] == 1
    view = await job.find("x")
    assert view is not None
    assert view.queue == "mails"


@virtual
async def test_two_engines_do_not_notice_each_other(world: World) -> None:
    """The same definition, id and queue on two engines: two jobs, two runs, counters of their own."""
    job = world.recorder()
    one, two = world.engine(), world.engine()
    async with one, two:
        assert (await job.job.on(one).dispatch(1, job_id="x")).created
        assert (await job.job.on(two).dispatch(2, job_id="x")).created
        assert (await job.job.on(one).dispatch(1)).id == "2"
        assert (await job.job.on(two).dispatch(2)).id == "2"
        await one.queue("default").pause()
        assert not two.queue("default").is_paused()
        await asyncio.sleep(1)
        assert one.queue("default").counts() != two.queue("default").counts()
        await one.queue("default").resume()
    assert sorted(job.payloads) == [1, 1, 2, 2]


async def test_a_full_queue_does_not_close_the_others(world: World, engine: Engine) -> None:
    """`max_waiting` is per queue."""
    from inproc_jobs import QueueFullError

    full, other = world.noop("full", queue="full"), world.noop("other", queue="other")
    bounded = world.engine(queues={"full": {"max_waiting": 1}})
    await full.dispatch(None)
    with refused(bounded, QueueFullError, "'full'"):
        await full.dispatch(None)
    assert (await other.dispatch(None)).created


@pytest.mark.parametrize("delay", [timedelta(0), 0, "0ms"])
@virtual
async def test_priority_with_no_delay_goes_straight_to_its_place(world: World, delay: Any) -> None:
    """A zero delay changes nothing about a priority."""
    job = world.noop()
    world.engine()
    assert (await job.dispatch(None, priority=3, delay=delay)).state == "prioritized"


@virtual
async def test_a_promoted_job_joins_by_priority(world: World) -> None:
    """When its delay is over a job with a priority queues among its equals."""
    job = world.recorder()
    job.takes_s = 1
    engine = world.engine()
    await job.dispatch("now 1")
    await job.dispatch("P5 early", priority=5)
    await job.dispatch("P5 late", priority=5, delay=500)
    await job.dispatch("P1 late", priority=1, delay=600)
    await job.dispatch("plain late", delay=700)
    async with engine:
        await asyncio.sleep(100)
    assert job.payloads == ["now 1", "plain late", "P1 late", "P5 early", "P5 late"]
