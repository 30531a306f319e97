"""Exactly once by id: when an id is taken, when it is free again, which ids there are (DESIGN 2.1, 2.2; cases C1 to C15)."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inproc_jobs import Engine, InvalidJobIdError, JobDefinition, JobFailedError, JobIdTakenError, JobState, Registry
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused


async def finish(receipt: Any) -> None:
    """Wait for the end, whichever it is."""
    with contextlib.suppress(JobFailedError):
        await receipt.result(timeout=3600)


# --- alive ids --------------------------------------------------------------------------------------------------


@virtual
async def test_a_living_job_keeps_its_id_in_every_state(world: World) -> None:
    """Waiting, prioritized, delayed, active, waiting for a retry: a dispatch is a no-op and says in which state."""
    job = world.recorder(attempts=2, backoff="10s")
    job.takes_s = 5
    job.script = [ValueError("once")]
    engine = world.engine()
    await job.dispatch(1, job_id="a:waiting")
    await job.dispatch(1, job_id="a:prioritized", priority=5)
    await job.dispatch(1, job_id="a:delayed", delay="1h")
    for state in ("waiting", "prioritized", "delayed"):
        again = await job.dispatch(2, job_id=f"a:{state}")
        assert (again.duplicate, again.state, again.id) == (True, state, f"a:{state}")
    await engine.queue("default").remove("a:prioritized")
    async with engine:
        await asyncio.sleep(1)
        assert (await job.dispatch(2, job_id="a:waiting")).state == "active"
        await asyncio.sleep(5)
        assert (await job.dispatch(2, job_id="a:waiting")).state == "delayed"
        await asyncio.sleep(60)
    assert job.payloads == [1, 1]


@virtual
async def test_a_paused_queue_keeps_ids_too(world: World) -> None:
    """A job in a paused queue is waiting, so its id is alive."""
    job = world.noop()
    engine = world.engine()
    await engine.queue("default").pause()
    async with engine:
        await job.dispatch(1, job_id="x")
        await asyncio.sleep(5)
        assert (await job.dispatch(1, job_id="x")).state == "waiting"
        await engine.queue("default").resume()
        await asyncio.sleep(1)
        assert (await job.dispatch(1, job_id="x")).created


@virtual
async def test_c1_the_facade_frees_a_completed_id(world: World) -> None:
    """C1, by DESIGN 2.1: with retention not set the finished job is readable, and its id starts a fresh run."""
    job = world.recorder()
    async with world.engine():
        first = await job.dispatch({"v": 1}, job_id="x")
        await first.result()
        view = await job.find("x")
        assert view is not None
        assert (view.state, view.payload) == ("completed", {"v": 1})
        second = await job.dispatch({"v": 2}, job_id="x")
        assert second.created
        await second.result()
        view = await job.find("x")
        assert view is not None
        assert (view.payload, view.attempts_made) == ({"v": 2}, 1)
    assert job.payloads == [{"v": 1}, {"v": 2}]


@virtual
async def test_c1_with_remove_on_complete_false_the_id_stays_taken(world: World) -> None:
    """C1, as on BullMQ: kept means taken; one run, the receipt says completed, one `duplicated` event."""
    job = world.recorder(remove_on_complete=False)
    engine = world.engine()
    duplicated: list[Any] = []
    engine.on("duplicated", duplicated.append)
    async with engine:
        await (await job.dispatch({"v": 1}, job_id="x")).result()
        again = await job.dispatch({"v": 2}, job_id="x")
        assert (again.created, again.id, again.state) == (False, "x", "completed")
        await asyncio.sleep(1)
        view = await job.find("x")
        assert view is not None
        assert view.payload == {"v": 1}
    assert job.payloads == [{"v": 1}]
    assert [event.job_id for event in duplicated] == ["x"]


@virtual
async def test_c2_with_removal_on_completion_the_id_is_free(world: World) -> None:
    """C2: True removes at once; whoever sees the completion finds the id free already."""
    job = world.recorder(remove_on_complete=True)
    async with world.engine():
        for number in (1, 2):
            receipt = await job.dispatch({"v": number}, job_id="x")
            assert receipt.created
            await receipt.result()
            assert await job.find("x") is None
    assert job.payloads == [{"v": 1}, {"v": 2}]


@virtual
async def test_c2_the_record_is_gone_before_anyone_is_told(world: World) -> None:
    """C2: a listener of `completed` that dispatches the same id again gets a fresh job."""
    job = world.recorder(remove_on_complete=True)
    engine = world.engine()
    created: list[bool] = []

    def again(event: Any) -> None:
        if len(created) < 2:
            created.append(job.job.dispatch_sync(len(created), job_id="x").created)

    engine.on("completed", again)
    async with engine:
        await job.dispatch("first", job_id="x")
        await asyncio.sleep(1)
    assert created == [True, True]
    assert len(job.runs) == 3


@virtual
async def test_c3_age_is_in_seconds_and_lazy(world: World) -> None:
    """C3: {"age": 1} is one second, and is looked at when another job finishes, as on BullMQ."""
    job = world.recorder(remove_on_complete={"age": 1})
    async with world.engine():
        await finish(await job.dispatch("x", job_id="x"))
        await asyncio.sleep(1.4)
        assert not (await job.dispatch("x", job_id="x")).created
        await finish(await job.dispatch("y", job_id="y"))
        again = await job.dispatch("x", job_id="x")
        assert again.created
        await finish(again)
    assert job.payloads == ["x", "y", "x"]


@virtual
async def test_c3_an_age_may_be_text(world: World) -> None:
    """An age of "2m" is 120 seconds: its own unit beats the bare one."""
    job = world.recorder(remove_on_complete={"age": "2m"})
    async with world.engine():
        await finish(await job.dispatch("x", job_id="x"))
        await asyncio.sleep(119)
        await finish(await job.dispatch("y", job_id="y"))
        assert (await job.dispatch("x", job_id="x")).duplicate
        await asyncio.sleep(2)
        await finish(await job.dispatch("z", job_id="z"))
        assert (await job.dispatch("x", job_id="x")).created


@virtual
async def test_c4_age_zero(world: World) -> None:
    """C4: an age of zero is a legal value that keeps nothing."""
    job = world.recorder(remove_on_complete={"age": 0})
    async with world.engine():
        for _ in range(2):
            receipt = await job.dispatch(None, job_id="x")
            assert receipt.created
            await finish(receipt)
    assert len(job.runs) == 2


@virtual
async def test_count_keeps_the_newest(world: World) -> None:
    """A number keeps so many finished jobs of the queue: their ids are taken, those of trimmed ones are free."""
    job = world.recorder(remove_on_complete=2)
    async with world.engine():
        for id in "abc":
            await finish(await job.dispatch(id, job_id=id))
        assert await job.find("a") is None
        assert (await job.dispatch("c", job_id="c")).state == "completed"
        assert (await job.dispatch("a", job_id="a")).created


@virtual
async def test_a_count_trims_the_whole_finished_set(world: World) -> None:
    """BullMQ's rule acts on all finished jobs of the queue, also on those of other definitions (DESIGN 2.1)."""
    kept = world.recorder("kept", remove_on_complete=False)
    free = world.recorder("free")
    trimming = world.recorder("trimming", remove_on_complete={"count": 1})
    async with world.engine():
        await finish(await kept.dispatch(None, job_id="kept"))
        await finish(await free.dispatch(None, job_id="free"))
        await finish(await trimming.dispatch(None, job_id="trimming"))
        assert await kept.find("kept") is None
        assert await free.find("free") is None
        assert await trimming.find("trimming") is not None


@virtual
async def test_remove_on_fail_in_all_forms(world: World) -> None:
    """Failed jobs: not set frees the id, False keeps it, True removes, a number keeps so many."""
    expected: dict[str, tuple[Any, bool, bool]] = {
        "unset": (None, True, True),
        "false": (False, True, False),
        "true": (True, False, True),
        "zero": (0, False, True),
        "number": (1, True, False),
        "dict": ({"count": 1, "age": 60, "limit": 5}, True, False),
    }
    for name, (retention, readable, free) in expected.items():
        job = world.recorder(name, remove_on_fail=retention, queue=name)
        job.script = [ValueError("always"), ValueError("always")]
        engine = world.engine()
        async with engine:
            await finish(await job.dispatch(None, job_id="x"))
            view = await job.find("x")
            assert (view is not None and view.state == "failed") is readable, name
            again = await job.dispatch(None, job_id="x")
            assert again.created is free, name
            if not free:
                assert again.state == "failed"


@virtual
async def test_a_failed_id_that_is_free_starts_a_fresh_job(world: World) -> None:
    """The fresh run replaces the failed record: attempts, reason and traces start anew."""
    job = world.recorder(attempts=2)
    job.script = [ValueError("1"), ValueError("2")]
    engine = world.engine()
    async with engine:
        await finish(await job.dispatch(1, job_id="x"))
        assert [one.id for one in await engine.failed_jobs()] == ["x"]
        await finish(await job.dispatch(2, job_id="x"))
        view = await job.find("x")
        assert view is not None
        assert (view.state, view.attempts_made, view.failed_reason, view.stacktrace) == ("completed", 1, None, ())
        assert await engine.failed_jobs() == []
        assert engine.queue("default").counts()["failed"] == 0


@virtual
async def test_a_dispatch_option_decides_per_job(world: World) -> None:
    """Retention given at dispatch belongs to that job alone."""
    job = world.recorder()
    async with world.engine():
        await finish(await job.dispatch(1, job_id="kept", remove_on_complete=False))
        await finish(await job.dispatch(1, job_id="free"))
        await finish(await job.dispatch(1, job_id="gone", remove_on_complete=True))
        assert (await job.dispatch(1, job_id="kept")).duplicate
        assert (await job.dispatch(1, job_id="free")).created
        assert (await job.dispatch(1, job_id="gone")).created


@virtual
async def test_the_stored_job_decides_whether_its_id_is_free(world: World) -> None:
    """The second dispatch cannot free a kept id, nor take a free one, by its own retention."""
    job = world.recorder()
    async with world.engine():
        await finish(await job.dispatch(1, job_id="kept", remove_on_complete=False))
        await finish(await job.dispatch(1, job_id="free"))
        assert (await job.dispatch(2, job_id="kept", remove_on_complete=True)).duplicate
        assert (await job.dispatch(2, job_id="free", remove_on_complete=False)).created


# --- bounded history --------------------------------------------------------------------------------------------


@virtual
async def test_history_is_bounded_per_queue_and_outcome(world: World) -> None:
    """`history` bounds what stays readable, oldest first out, each queue and outcome for itself."""
    good, bad = world.recorder("good"), world.recorder("bad")
    other = world.recorder("other", queue="other")
    bad.script = [ValueError("no") for _ in range(10)]
    engine = world.engine(history={"completed": 3, "failed": 2})
    async with engine:
        for number in range(5):
            for job in (good, bad, other):
                await finish(await job.dispatch(None, job_id=f"{job.job.name}-{number}"))
        counts = engine.queue("default").counts()
        assert (counts["completed"], counts["failed"]) == (3, 2)
        assert engine.queue("other").counts()["completed"] == 3
        assert [one.id for one in await engine.failed_jobs()] == ["bad-4", "bad-3"]
        assert await good.find("good-1") is None
        assert await good.find("good-2") is not None


@virtual
async def test_history_never_evicts_a_kept_id(world: World) -> None:
    """Records whose id is kept neither count for the history nor go by it."""
    job = world.recorder()
    engine = world.engine(history={"completed": 1})
    async with engine:
        await finish(await job.dispatch(None, job_id="kept", remove_on_complete=False))
        for number in range(4):
            await finish(await job.dispatch(None, job_id=f"free-{number}"))
        assert (await job.dispatch(None, job_id="kept")).state == "completed"
        assert engine.queue("default").counts()["completed"] == 2


@virtual
async def test_history_zero_keeps_nothing(world: World) -> None:
    """A bound of 0 is legal: a finished job is gone, its waiter still gets the result."""
    job = world.recorder()
    job.script = ["done"]
    async with world.engine(history={"completed": 0, "failed": 0}):
        receipt = await job.dispatch(None, job_id="x")
        assert await receipt.result() == "done"
        assert await job.find("x") is None


@virtual
async def test_default_history_holds_a_thousand(world: World) -> None:
    """The default keeps 1,000 completed jobs."""
    job = world.noop()
    engine = world.engine()
    async with engine:
        await job.dispatch_many([(None, None)] * 1010)
        await asyncio.sleep(1)
        assert engine.queue("default").counts()["completed"] == 1000


@virtual
async def test_a_retried_job_leaves_the_history(world: World) -> None:
    """A failed job that runs again is alive: it is no longer evicted, and counts once when it ends."""
    job = world.recorder()
    job.script = [ValueError("x"), ValueError("y"), ValueError("z"), None]
    engine = world.engine(history={"failed": 1})
    async with engine:
        await finish(await job.dispatch(None, job_id="a"))
        await engine.queue("default").pause()
        await engine.retry_failed_job("a")
        assert (await job.dispatch(None, job_id="a")).state == "waiting"
        await engine.queue("default").resume()
        await asyncio.sleep(1)
        await finish(await job.dispatch(None, job_id="b"))
        assert [one.id for one in await engine.failed_jobs()] == ["b"]


# --- which ids --------------------------------------------------------------------------------------------------

RESERVED = (
    "active wait waiting-children paused id delayed prioritized stalled-check completed failed stalled repeat limiter meta "
    "events pc marker de priority delay"
).split()


@pytest.mark.parametrize(
    "id",
    [
        *("", "x" * 513, "0", "123", "9007199254740993", "a\ud800", *RESERVED),
        *("0:1", "de:x", "dn:x", "repeat:x", "metrics:completed"),
        *(f"invoice{end}" for end in (":lock", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful")),
    ],
)
async def test_c6_refused_ids(world: World, engine: Engine, id: str) -> None:
    """C6, by DESIGN 2.2: ids that collide with automatic ids or keys of the layout are refused; nothing changes."""
    job = world.noop()
    with refused(engine, InvalidJobIdError, "job_id") as caught:
        await job.dispatch(None, job_id=id)
    assert (caught.value.option, caught.value.value) == ("job_id", id)


@pytest.mark.parametrize(
    "id",
    [
        *("00123", " 12", "1e3", "1.0", "+5", "-5", "123abc", "Infinity", "NaN", "１２", "٣"),
        *("a:b", "a:b:c", "a:b:c:d", "invoice:42", ":", "::", "x:repeat:y", "xde:1", "00:1"),
        *("x" * 512, "wait ", "Active", ":lock:", "lock", "waiting", "jobs"),
    ],
)
@virtual
async def test_c6_accepted_ids(world: World, id: str) -> None:
    """C6, by DESIGN 2.2: what only looks special is an id like any other; colons are welcome."""
    job = world.recorder()
    async with world.engine():
        receipt = await job.dispatch("once", job_id=id)
        assert receipt.id == id
        assert (await job.dispatch("twice", job_id=id)).duplicate
        await receipt.result()
        assert await job.find(id) is not None
    assert job.payloads == ["once"]


@virtual
async def test_c7_the_counter_moves_on_every_add(world: World) -> None:
    """C7: own ids and kept duplicates move the automatic counter, as on BullMQ."""
    job = world.noop()
    world.engine()
    await job.dispatch(None, job_id="x")
    await job.dispatch(None, job_id="x")
    assert (await job.dispatch(None)).id == "3"


class Rude:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    "id", [1, True, 1.0, b"x", ("a",), 0, Rude(), b"x" * 100_000, 10**5000], ids=lambda value: type(value).__name__
)
async def test_c8_ids_are_text(world: World, engine: Engine, id: Any) -> None:
    """C8: what equals another in Python but not as text is refused, as a TypeError that says how to write it."""
    job = world.noop()
    with refused(engine, InvalidJobIdError, "job_id must be text", type(id).__name__, "invoice:") as caught:
        await job.dispatch(None, job_id=id)
    assert len(str(caught.value)) < 500
    assert issubclass(InvalidJobIdError, TypeError)
    assert issubclass(InvalidJobIdError, ValueError)


async def test_c8_none_is_an_automatic_id(world: World, engine: Engine) -> None:
    """None, the default, draws the next number as text."""
    job = world.noop()
    assert [(await job.dispatch(None, job_id=None)).id for _ in range(3)] == ["1", "2", "3"]


@virtual
async def test_c10_readding_the_own_id_inside_the_handler(world: World) -> None:
    """C10: the running job still has the id: duplicate, active, one run; nothing hangs."""
    receipts: list[Any] = []

    async def handle(payload: Any) -> None:
        receipts.append(await job.dispatch("again", job_id="x"))

    job: JobDefinition[Any, Any] = world.job(handle)
    async with world.engine():
        await job.dispatch("first", job_id="x")
        await asyncio.sleep(5)
    assert [(receipt.created, receipt.state) for receipt in receipts] == [(False, "active")]


@virtual
async def test_c12_the_same_id_in_two_queues(world: World) -> None:
    """C12: ids are unique per queue."""
    one, two = world.recorder("one", queue="q1"), world.recorder("two", queue="q2")
    async with world.engine():
        assert (await one.dispatch(1, job_id="x")).created
        assert (await two.dispatch(2, job_id="x")).created
        await asyncio.sleep(1)
        first, second = await one.find("x"), await two.find("x")
        assert first is not None
        assert second is not None
        assert (first.queue, second.queue) == ("q1", "q2")
    assert (one.payloads, two.payloads) == ([1], [2])


async def test_c13_a_duplicate_changes_nothing(world: World, engine: Engine) -> None:
    """C13: payload, delay, priority, attempts of the stored job stay, and so does its place."""
    job = world.noop()
    await job.dispatch({"v": 1}, job_id="x", delay=5000, priority=5, attempts=2)
    before = await job.find("x")
    await job.dispatch({"v": 2}, job_id="x", delay=0, priority=1, attempts=9, remove_on_complete=True, timestamp=1)
    after = await job.find("x")
    assert before is not None
    assert after is not None
    for field in ("state", "delay_ms", "due_at", "priority", "payload", "created_at", "attempts_made"):
        assert getattr(before, field) == getattr(after, field), field


@virtual
async def test_c14_the_receipt_of_a_duplicate_waits_for_the_stored_job(world: World) -> None:
    """C14: both receipts are of one job and one result; the ignored payload is nowhere."""

    async def echo(payload: Any) -> Any:
        return payload

    job = world.job(echo)
    async with world.engine():
        first = await job.dispatch({"v": 1}, job_id="x", delay="1s")
        second = await job.dispatch({"v": 2}, job_id="x")
        assert await asyncio.gather(first.result(), second.result()) == [{"v": 1}, {"v": 1}]


def test_c15_fifty_threads_one_id() -> None:
    """C15: fifty threads dispatch one id at once: one created, 49 duplicates, one run, in each of 40 rounds."""
    registry = Registry()
    runs: list[str] = []
    job = registry.define_job("once", handle=runs.append, executor="inline", remove_on_complete=False)
    threads, rounds = 50, 40
    with Engine(registry=registry) as engine:
        for number in range(rounds):
            barrier = threading.Barrier(threads)
            receipts: list[Any] = []

            def dispatch(id: str = f"x{number}", barrier: threading.Barrier = barrier, out: Any = receipts) -> None:
                barrier.wait()
                out.append(job.dispatch_sync(id, job_id=id))

            pool = [threading.Thread(target=dispatch) for _ in range(threads)]
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
            assert sum(receipt.created for receipt in receipts) == 1
            assert len(receipts) == threads
            receipts[0].result_sync(timeout=20)
        assert engine.queue("default").counts()["completed"] == rounds
    assert sorted(runs) == sorted(f"x{number}" for number in range(rounds))


@virtual
async def test_c15_concurrent_tasks_one_id(world: World) -> None:
    """C15: hundreds of tasks of one loop, too."""
    job = world.recorder()
    async with world.engine():
        receipts = await asyncio.gather(*(job.dispatch(number, job_id="x") for number in range(500)))
        await asyncio.sleep(1)
    assert [receipt.created for receipt in receipts].count(True) == 1
    assert job.payloads == [0]


# --- ids of other names -----------------------------------------------------------------------------------------


async def test_an_id_of_another_name_is_refused(world: World, engine: Engine) -> None:
    """A living job of another name has the id: an error instead of swallowed work (DESIGN 2.3)."""
    world.noop("other")
    mine, other = world.noop("mine"), world.registry.get("other")
    assert other is not None
    await other.dispatch(None, job_id="x", delay="1h")
    with refused(engine, JobIdTakenError, "'x'", "'other'", "delayed", "put the job name into the id") as caught:
        await mine.dispatch(None, job_id="x")
    assert (caught.value.id, caught.value.name, caught.value.state) == ("x", "other", "delayed")


@virtual
async def test_a_kept_job_of_another_name_is_refused_and_a_free_one_replaced(world: World) -> None:
    """Kept finished jobs hold their id against other names; free ones do not."""
    other, mine = world.recorder("other"), world.recorder("mine")
    engine = world.engine()
    async with engine:
        await finish(await other.dispatch(None, job_id="kept", remove_on_complete=False))
        await finish(await other.dispatch(None, job_id="free"))
        with refused(engine, JobIdTakenError, "completed"):
            await mine.dispatch(None, job_id="kept")
        assert (await mine.dispatch(None, job_id="free")).created
        await asyncio.sleep(1)
        assert await other.find("free") is None
        assert await mine.find("free") is not None


# --- names and ids from hell ------------------------------------------------------------------------------------

HELL = [
    "a/b",
    "a.b",
    "#",
    "*",
    "{x}",
    "a+b",
    " ",
    "a\x00b",
    "__proto__",
    "constructor",
    "🧾",
    "é",
    "e\u0301",
    "?",
    "..",
    "%2F",
]


@virtual
async def test_c98_ids_match_exactly(world: World) -> None:
    """C98: no glob, no URL, no normalisation: each odd id is its own job and is removed alone."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    for id in HELL:
        assert (await job.dispatch(id, job_id=id)).created, id
    assert queue.counts()["waiting"] == len(HELL)
    assert await queue.remove("*")
    assert not await queue.remove("*")
    assert queue.counts()["waiting"] == len(HELL) - 1
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == [id for id in HELL if id != "*"]


@pytest.mark.parametrize("name", [*HELL, "a:b", "x" * 10_000, "123", "wait"])
@virtual
async def test_c98_names_match_exactly(world: World, name: str) -> None:
    """C98: any text is a name."""
    job = world.recorder(name)
    async with world.engine():
        receipt = await job.dispatch(1)
        await receipt.result()
        view = await job.find(receipt.id)
        assert view is not None
        assert view.name == name
    assert len(job.runs) == 1


@pytest.mark.parametrize("name", [name for name in HELL if ":" not in name])
@virtual
async def test_c98_queue_names_match_exactly(world: World, name: str) -> None:
    """C98: queue names are any text without a colon."""
    job = world.recorder(queue=name)
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(1)
        await receipt.result()
        assert receipt.queue == name
        assert engine.queue(name).counts()["completed"] == 1


def is_accepted(id: str) -> bool:
    """DESIGN 2.2 once more, in other words than the code's."""
    reserved = id in RESERVED or id.startswith(("0:", "de:", "dn:", "repeat:", "metrics:"))
    suffixed = id.endswith((":lock", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful"))
    number = id.isascii() and id.isdigit() and str(int(id)) == id
    return bool(id) and not reserved and not suffixed and not number


odd_ids = st.text(max_size=30) | st.from_regex(r"\A(0:|de:|repeat:)?[0-9a-z:]{0,6}(:lock|:logs|:failed)?\Z")


@given(id=odd_ids)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_accepted_id_is_found_again(id: str) -> None:
    """Whatever `check_job_id` lets through comes back unchanged, once; the rest is refused with the option's name."""
    registry = Registry()
    job = registry.define_job("job", handle=lambda payload: None)
    engine = Engine(registry=registry)
    if not is_accepted(id):
        with pytest.raises(InvalidJobIdError) as caught:
            job.dispatch_sync(1, job_id=id)
        assert caught.value.option == "job_id"
        assert engine.queue("default").counts()["waiting"] == 0
        return
    assert job.dispatch_sync(1, job_id=id).created
    assert job.dispatch_sync(1, job_id=id).duplicate
    view = job.find_sync(id)
    assert view is not None
    assert (view.id, view.state) == (id, JobState.WAITING)
