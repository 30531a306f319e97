"""`dispatch_many`: checked whole before the first job is added, one receipt per pair (DESIGN 2.3, 2.9)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from inproc_jobs import (
    Deduplication,
    Engine,
    EngineStoppedError,
    InvalidDurationError,
    InvalidJobIdError,
    InvalidOptionError,
    InvalidOptionTypeError,
    InvalidPayloadError,
    JobIdTakenError,
    QueueFullError,
    Registry,
)
from inproc_jobs.app import dispatching as dispatching_module
from tests.parameter_ids import stable_repr
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused


@virtual
async def test_one_receipt_per_pair_in_order(world: World) -> None:
    """Options per pair: a dict, `job.options(...)` or None; receipts and runs are in order."""
    job = world.recorder()
    engine = world.engine()
    receipts = await job.job.dispatch_many(
        [
            ("a", None),
            ("b", {"job_id": "b"}),
            ("c", job.job.options(delay="1s")),
            ("d", {}),
            ("e", {"job_id": "b"}),
            ["f", {"priority": 1}],  # type: ignore[list-item]
        ]
    )
    assert [receipt.state for receipt in receipts] == [
        "waiting",
        "waiting",
        "delayed",
        "waiting",
        "waiting",
        "prioritized",
    ]
    assert [receipt.duplicate for receipt in receipts] == [False, False, False, False, True, False]
    assert receipts[4].id == receipts[1].id == "b"
    async with engine:
        await asyncio.sleep(5)
    assert job.payloads == ["a", "b", "d", "f", "c"]


@pytest.mark.parametrize("jobs", [[], (), iter([])])
async def test_nothing_to_dispatch(world: World, engine: Engine, jobs: Any) -> None:
    """No pairs, no receipts."""
    assert await world.noop().dispatch_many(jobs) == []
    assert world.noop().dispatch_many_sync([]) == []


@virtual
async def test_any_iterable(world: World) -> None:
    """A generator is read once, whole, before anything is added."""
    job = world.noop()
    engine = world.engine()

    def pairs() -> Iterator[Any]:
        for number in range(3):
            assert engine.queue("default").counts()["waiting"] == 0
            yield number, {"job_id": f"x{number}"}

    assert len(await job.dispatch_many(pairs())) == 3


async def test_an_iterable_that_raises(world: World, engine: Engine) -> None:
    """The caller's own error passes, and nothing was added."""
    job = world.noop()

    def pairs() -> Iterator[Any]:
        yield 1, None
        raise KeyError("broken source")

    with refused(engine, KeyError, "broken source"):
        await job.dispatch_many(pairs())


WRONG: list[tuple[Any, type[Exception], str]] = [
    (({"x": object()}, None), InvalidPayloadError, "payload.x"),
    ((float("nan"), None), InvalidPayloadError, "payload"),
    ((1, {"delay": "soon"}), InvalidDurationError, "delay"),
    ((1, {"job_id": "123"}), InvalidJobIdError, "job_id"),
    ((1, {"job_id": 5}), InvalidJobIdError, "job_id"),
    ((1, {"attempts": 0}), InvalidOptionError, "attempts"),
    ((1, {"dely": "1s"}), InvalidOptionError, "'dely'"),
    ((1, {5: "1s"}), InvalidOptionError, "5"),
    ((1, ["delay"]), InvalidOptionTypeError, "jobs[500]"),
    ((1, "delay"), InvalidOptionTypeError, "jobs[500]"),
    ((1, 5), InvalidOptionTypeError, "jobs[500]"),
    ((1, False), InvalidOptionTypeError, "jobs[500]"),
    (1, InvalidOptionTypeError, "jobs[500]"),
    ((1,), InvalidOptionTypeError, "jobs[500]"),
    ((1, None, None), InvalidOptionTypeError, "jobs[500]"),
    ("ab", InvalidOptionTypeError, "jobs[500]"),
    ({"payload": 1, "options": 2}, InvalidOptionTypeError, "jobs[500]"),
]


@pytest.mark.parametrize(("pair", "error", "word"), WRONG, ids=stable_repr)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_the_whole_bulk_is_checked_first(
    world: World, engine: Engine, pair: Any, error: type[Exception], word: str, sync: bool
) -> None:
    """One wrong pair among a thousand: its position is told, and not one job was added."""
    job = world.noop()
    jobs = [(number, None) for number in range(500)] + [pair] + [(number, None) for number in range(499)]
    with refused(engine, error, word) as caught:
        if sync:
            job.dispatch_many_sync(jobs)
        else:
            await job.dispatch_many(jobs)
    notes = "".join(getattr(caught.value, "__notes__", ()))
    assert "jobs[500]" in notes or "jobs[500]" in str(caught.value)


@pytest.mark.parametrize("jobs", [5, None])
async def test_what_is_no_iterable(world: World, engine: Engine, jobs: Any) -> None:
    """A typed error that says what is expected."""
    with refused(engine, InvalidOptionTypeError, "jobs", "pairs"):
        await world.noop().dispatch_many(jobs)


async def test_ids_of_other_names_are_part_of_the_check(world: World, engine: Engine) -> None:
    """An id that a living job of another name has refuses the whole bulk."""
    await world.noop("other").dispatch(None, job_id="taken")
    job = world.noop()
    with refused(engine, JobIdTakenError, "'taken'", "'other'") as caught:
        await job.dispatch_many([(1, None), (2, {"job_id": "mine"}), (3, {"job_id": "taken"})])
    assert caught.value.id == "taken"


async def test_max_waiting_is_part_of_the_check(world: World) -> None:
    """A bulk that does not fit is refused whole; one that fits exactly is taken whole; duplicates need no room."""
    engine = world.engine(queues={"q": {"max_waiting": 10}})
    job = world.noop(queue="q")
    with refused(engine, QueueFullError, "'q'", "max_waiting=10"):
        await job.dispatch_many([(number, None) for number in range(11)])
    with refused(engine, QueueFullError):
        job.dispatch_many_sync([(number, {"delay": "1h"}) for number in range(11)])
    receipts = await job.dispatch_many([(number, {"job_id": f"x{number % 10}"}) for number in range(15)])
    assert [receipt.created for receipt in receipts].count(True) == 10
    assert engine.queue("q").counts()["waiting"] == 10
    assert [receipt.duplicate for receipt in await job.dispatch_many([(1, {"job_id": "x1"})])] == [True]
    with refused(engine, QueueFullError):
        await job.dispatch_many([(1, {"job_id": "x1"}), (2, None)])


@virtual
async def test_collapsing_pairs_need_no_room(world: World) -> None:
    """Pairs of one deduplication id collapse into one job, so they fit where one job fits."""
    engine = world.engine(queues={"q": {"max_waiting": 1}})
    job = world.noop(queue="q")
    rule = Deduplication.until_done("k")
    receipts = await job.dispatch_many([(1, {"deduplication": rule}), (2, {"deduplication": rule})])
    assert [receipt.created for receipt in receipts] == [True, False]
    assert engine.queue("q").counts()["waiting"] == 1


async def test_a_refused_bulk_gives_its_promised_room_back(world: World) -> None:
    """After a refusal the whole room is there again."""
    engine = world.engine(queues={"q": {"max_waiting": 5}})
    job = world.noop(queue="q")
    with pytest.raises(QueueFullError):
        await job.dispatch_many([(1, None)] * 6)
    assert engine.runtime.core.queues["q"].reserved == 0
    assert len(await job.dispatch_many([(1, None)] * 5)) == 5
    assert engine.runtime.core.queues["q"].reserved == 0


@virtual
async def test_a_cancelled_bulk_gives_its_promised_room_back(world: World) -> None:
    """Cancelled between two slices: what was added stays, what was not needs no room any more."""
    engine = world.engine(queues={"q": {"max_waiting": 100_000}})
    job = world.noop(queue="q")
    task = asyncio.create_task(job.dispatch_many([(number, None) for number in range(100)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.runtime.core.queues["q"].reserved == 0


async def test_a_stopped_engine_refuses_the_whole_bulk(world: World, engine: Engine) -> None:
    """As for one dispatch."""
    job = world.noop()
    await engine.astop()
    with refused(engine, EngineStoppedError, "start it again"):
        await job.dispatch_many([(1, None)] * 3)


@virtual
async def test_an_engine_that_stops_in_the_middle_takes_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was added before the stop is counted as lost; nothing is added unseen after it."""
    monkeypatch.setattr(dispatching_module, "BULK_SLICE_S", 0.0)
    job = world.noop()
    engine = world.engine()
    task = asyncio.create_task(job.dispatch_many([(number, {"delay": "1h"}) for number in range(100)]))
    while engine.queue("default").counts()["delayed"] < 50:
        await asyncio.sleep(0)
    report = await engine.astop()
    with pytest.raises(EngineStoppedError):
        await task
    assert report.lost == engine.queue("default").counts()["delayed"] < 100


@virtual
async def test_jobs_run_while_the_bulk_is_added(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bulk in many slices to a running engine: each job runs once, in order, and ids taken early run once."""
    monkeypatch.setattr(dispatching_module, "BULK_SLICE_S", 0.0)
    job = world.recorder()
    async with world.engine():
        receipts = await job.job.dispatch_many([(number, {"job_id": f"x{number}"}) for number in range(200)])
        for receipt in receipts:
            await receipt.result()
    assert job.payloads == list(range(200))


@pytest.mark.slow
def test_a_large_bulk_gives_the_loop_its_turns() -> None:
    """30,000 jobs at once are checked and added in slices of 2 ms: other tasks of the loop have many turns in both phases."""
    registry = Registry()
    job = registry.define_job("job", handle=lambda payload: None, executor="inline")
    engine = Engine(registry=registry)
    jobs: list[Any] = [({"n": number}, None) for number in range(30_000)]
    turns = {"checking": 0, "adding": 0}

    async def story() -> None:
        adding = asyncio.create_task(job.dispatch_many(jobs))
        while not adding.done():
            turns["adding" if engine.queue("default").counts()["waiting"] else "checking"] += 1
            await asyncio.sleep(0)
        assert len(await adding) == 30_000

    asyncio.run(story())
    assert engine.queue("default").counts()["waiting"] == 30_000
    # Each phase takes 50 ms or more on any machine of today.
    assert turns["checking"] >= 10
    assert turns["adding"] >= 10
