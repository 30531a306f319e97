"""What a queue can be asked and told (issue item 5; cases C17, C18, C42, C110)."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from inproc_jobs import (
    Deduplication,
    Engine,
    EngineStoppedError,
    InvalidDurationError,
    InvalidOptionError,
    InvalidOptionTypeError,
    InvalidPayloadError,
    JobLockedError,
    JobNotFoundError,
    JobNotInStateError,
    JobRemovedError,
    QueueBusyError,
)
from tests.unit.app.virtual import START, virtual
from tests.unit.app.world import World, refused

STATES = ["waiting", "active", "delayed", "prioritized", "completed", "failed", "waiting-children"]


# --- reads ------------------------------------------------------------------------------------------------------


@virtual
async def test_counts_of_all_states(world: World) -> None:
    """All seven states, also the empty ones, at every moment."""
    job = world.recorder()
    job.takes_s = 1
    job.script = [None, ValueError("x")]
    engine = world.engine()
    queue = engine.queue("default")
    assert queue.counts() == dict.fromkeys(STATES, 0)
    for _ in range(4):
        await job.dispatch(None)
    await job.dispatch(None, priority=5)
    await job.dispatch(None, delay="1h")
    async with engine:
        await asyncio.sleep(2.5)
        assert queue.counts() == {
            **dict.fromkeys(STATES, 0),
            "active": 1,
            "waiting": 1,
            "prioritized": 1,
            "delayed": 1,
            "completed": 1,
            "failed": 1,
        }


@virtual
async def test_pages_of_jobs(world: World) -> None:
    """`jobs(states, start, end, ascending)`: one page per state, positions included, BullMQ's orders."""
    job = world.noop()
    engine = world.engine()
    queue = engine.queue("default")
    for id in "abcde":
        await job.dispatch(None, job_id=id)
    for id, delay in (("late", 3000), ("soon", 1000)):
        await job.dispatch(None, job_id=id, delay=delay)

    def ids(*args: Any, **options: Any) -> list[str]:
        return [view.id for view in queue.jobs(*args, **options)]

    assert ids("waiting", ascending=True) == list("abcde")
    assert ids("waiting") == list("edcba")
    assert ids(["waiting"], 1, 2, ascending=True) == ["b", "c"]
    assert ids("wait", 0, 0, True) == ["a"]
    assert ids("delayed", ascending=True) == ["soon", "late"]
    assert ids(("delayed", "waiting"), 0, 0, True) == ["soon", "a"]
    assert sorted(ids()) == sorted([*"abcde", "late", "soon"])
    assert ids("failed") == []
    assert ids("waiting", 10, 20) == []


@pytest.mark.parametrize("states", ["", "done", ["waiting", "x"], [5], "WAITING"])
async def test_wrong_states_are_refused(engine: Engine, states: Any) -> None:
    """An unknown state is an error that lists the known ones, never an empty page."""
    queue = engine.queue("default")
    with refused(engine, InvalidOptionError, "state", "waiting", "completed"):
        queue.jobs(states)
    if isinstance(states, str):
        with refused(engine, InvalidOptionError, "state"):
            await queue.clean(state=states)


async def test_states_that_are_no_words(engine: Engine) -> None:
    """What is no text and no list of texts is refused the same way."""
    for states in (5, None, [[]]):
        with refused(engine, InvalidOptionError, "state"):
            engine.queue("default").jobs(states)  # type: ignore[arg-type]


@virtual
async def test_job_reads_any_name_and_is_a_copy(world: World) -> None:
    """`job(id)` answers whatever the name; a view does not change afterwards."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        receipt = await job.dispatch({"a": [1]}, job_id="x", delay="1s")
        view = queue.job("x")
        assert view is not None
        await receipt.result()
        assert (view.state, view.finished_at) == ("delayed", None)
        view.payload["a"].append(2)
        later = queue.job("x")
        assert later is not None
        assert (later.state, later.payload, view.payload) == ("completed", {"a": [1]}, {"a": [1]})
        assert queue.job("nobody") is None


async def test_all_fields_of_a_view(world: World, engine: Engine) -> None:
    """Before the first attempt; datetimes are UTC and aware."""
    job = world.noop("mail")
    await job.dispatch({"to": "a"}, job_id="x", delay="10s", priority=3)
    view = engine.queue("default").job("x")
    assert view is not None
    fields = {name: getattr(view, name) for name in dir(view) if not name.startswith("_")}
    assert fields == {
        "id": "x",
        "name": "mail",
        "queue": "default",
        "state": "delayed",
        "payload": {"to": "a"},
        "progress": 0,
        "attempts_made": 0,
        "attempts_started": 0,
        "result": None,
        "failed_reason": None,
        "stacktrace": (),
        "created_at": START,
        "processed_at": None,
        "finished_at": None,
        "due_at": START + timedelta(seconds=10),
        "delay_ms": 10_000,
        "priority": 3,
    }
    assert view.created_at.utcoffset() == timedelta(0)


# --- pause and resume -------------------------------------------------------------------------------------------


@virtual
async def test_pause_and_resume(world: World) -> None:
    """Paused: active jobs go on, nothing starts, dispatches are taken; after the resume they run in order."""
    job = world.recorder()
    job.takes_s = 5
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        await job.dispatch("running")
        await asyncio.sleep(1)
        await queue.pause()
        await queue.pause()
        assert queue.is_paused()
        assert (await job.dispatch("a")).created
        await job.dispatch("b")
        await asyncio.sleep(60)
        assert job.payloads == ["running"]
        assert queue.counts()["completed"] == 1
        await queue.resume()
        await queue.resume()
        assert not queue.is_paused()
        await asyncio.sleep(60)
    assert job.payloads == ["running", "a", "b"]


@virtual
async def test_pause_before_the_start_and_across_a_restart(world: World) -> None:
    """A pause belongs to the queue, not to the run of the engine."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    await queue.pause()
    async with engine:
        await job.dispatch(1)
        await asyncio.sleep(5)
    assert job.runs == []
    async with engine:
        await asyncio.sleep(5)
        assert job.runs == []
        await queue.resume()
        await asyncio.sleep(5)
    assert job.payloads == [1]


@virtual
async def test_pause_events(world: World) -> None:
    """`paused` and `resumed` are told."""
    engine = world.engine()
    names: list[str] = []
    engine.on("*", lambda event: names.append(event.name))
    async with engine:
        await engine.queue("default").pause()
        await engine.queue("default").resume()
        await asyncio.sleep(0.1)
    assert names == ["paused", "resumed"]


# --- remove -----------------------------------------------------------------------------------------------------


@virtual
async def test_c17_removing_an_active_job(world: World) -> None:
    """C17: refused as locked; the job completes normally."""
    job = world.recorder()
    job.takes_s = 0.3
    job.script = ["fine"]
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None, job_id="x")
        await asyncio.sleep(0.1)
        with refused(engine, JobLockedError, "'x'", "active") as caught:
            await engine.queue("default").remove("x")
        assert caught.value.id == "x"
        assert await receipt.result() == "fine"


@virtual
async def test_c18_removing_from_a_listener(world: World) -> None:
    """C18: a job that waits for its retry is removed in the `delayed` listener: no error, no further run, no timer."""
    job = world.recorder(attempts=3, backoff=50_000)
    job.script = [ValueError("x")]
    engine = world.engine()
    removed: list[bool] = []
    engine.on("delayed", lambda event: removed.append(engine.queue("default").remove_sync(event.job_id)))
    async with engine:
        receipt = await job.dispatch(None, job_id="x")
        with pytest.raises(JobRemovedError):
            await receipt.result()
        await asyncio.sleep(1)
        assert engine.runtime.core.next_wake_ms(engine.runtime.core.queues["default"], world.clock.now_ms()) is None
        await asyncio.sleep(200)
        assert await job.find("x") is None
    assert removed == [True]
    assert len(job.runs) == 1


@pytest.mark.parametrize("options", [{}, {"delay": "1h"}, {"priority": 3}], ids=repr)
@virtual
async def test_remove_frees_the_id_and_never_runs(world: World, options: Any) -> None:
    """A removed job is gone at once: True, then False; its id is free; it does not run."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    await job.dispatch("old", job_id="x", **options)
    assert await queue.remove("x") is True
    assert await queue.remove("x") is False
    assert await job.find("x") is None
    assert (await job.dispatch("new", job_id="x")).created
    async with engine:
        await asyncio.sleep(7200)
    assert job.payloads == ["new"]


@virtual
async def test_removing_a_finished_job(world: World) -> None:
    """Completed and failed ones can be removed; kept ids are free again."""
    job = world.recorder(remove_on_complete=False, remove_on_fail=False)
    job.script = [None, ValueError("x")]
    engine = world.engine()
    async with engine:
        for id in ("good", "bad"):
            await job.dispatch(None, job_id=id)
        await asyncio.sleep(1)
        for id in ("good", "bad"):
            assert (await job.dispatch(None, job_id=id)).duplicate
            assert await engine.queue("default").remove(id)
            assert (await job.dispatch(None, job_id=id)).created


@virtual
async def test_removing_frees_the_deduplication_key(world: World) -> None:
    """One routine releases a key, whichever way the job ends."""
    job = world.noop()
    engine = world.engine()
    for rule in (Deduplication.until_done("k"), Deduplication.throttle("t", "1h")):
        receipt = await job.dispatch(1, deduplication=rule, delay="1h")
        await engine.queue("default").remove(receipt.id)
        assert (await job.dispatch(2, deduplication=rule, delay="1h")).created


# --- changes to one job -----------------------------------------------------------------------------------------


@virtual
async def test_c42_promote_is_refused_elsewhere(world: World) -> None:
    """C42: promoting twice, or what is not delayed, is an error and changes nothing."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    await job.dispatch(None, job_id="a:waiting")
    await job.dispatch(None, job_id="a:delayed", delay="1h")
    await queue.promote("a:delayed")
    for id in ("a:delayed", "a:waiting", "nobody"):
        with refused(engine, JobNotInStateError, id, "delayed"):
            await queue.promote(id)
    async with engine:
        await asyncio.sleep(7200)
    assert len(job.runs) == 2


@virtual
async def test_promote_with_a_priority(world: World) -> None:
    """A promoted job with a priority goes among the prioritized."""
    job = world.noop()
    engine = world.engine()
    await job.dispatch(None, job_id="x", delay="1h", priority=4)
    await engine.queue("default").promote("x")
    view = await job.find("x")
    assert view is not None
    assert (view.state, view.delay_ms, view.due_at) == ("prioritized", 0, None)


@virtual
async def test_retry_of_finished_jobs(world: World) -> None:
    """`retry` runs a failed or a completed job again."""
    job = world.recorder()
    job.script = ["one", ValueError("x"), "two", "three"]
    engine = world.engine()
    async with engine:
        for id in ("good", "bad"):
            await job.dispatch(id, job_id=id)
        await asyncio.sleep(1)
        for id in ("good", "bad"):
            await engine.queue("default").retry(id)
        await asyncio.sleep(1)
        views = [await job.find(id) for id in ("good", "bad")]
    assert [view.result for view in views if view is not None] == ["two", "three"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda queue, name: queue.retry(name), JobNotInStateError),
        (lambda queue, name: queue.promote(name), JobNotInStateError),
        (lambda queue, name: queue.change_delay(name, "5s"), JobNotInStateError),
    ],
)
@virtual
async def test_changes_in_the_wrong_state(world: World, change: Callable[..., Any], error: type[Exception]) -> None:
    """A waiting job can neither be retried, promoted nor delayed; nothing changes."""
    job = world.noop()
    engine = world.engine()
    await job.dispatch(None, job_id="x")
    with refused(engine, error, "x"):
        await change(engine.queue("default"), "x")


@pytest.mark.parametrize(
    "change",
    [
        lambda queue: queue.retry("nobody"),
        lambda queue: queue.change_delay("nobody", "5s"),
        lambda queue: queue.change_priority("nobody", 5),
        lambda queue: queue.update_payload("nobody", {}),
    ],
)
async def test_changes_of_a_job_that_is_not_there(engine: Engine, change: Callable[..., Any]) -> None:
    """JobNotFoundError (a LookupError) with the id."""
    with refused(engine, JobNotFoundError, "nobody") as caught:
        await change(engine.queue("default"))
    assert caught.value.id == "nobody"
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda queue: queue.change_delay("x", -1), InvalidDurationError, "delay"),
        (lambda queue: queue.change_delay("x", "soon"), InvalidDurationError, "delay"),
        (lambda queue: queue.change_priority("x", -1), InvalidOptionError, "priority"),
        (lambda queue: queue.change_priority("x", 2_097_152), InvalidOptionError, "2097151"),
        (lambda queue: queue.change_priority("x", True), InvalidOptionTypeError, "priority"),
        (lambda queue: queue.change_priority("x", 10**5000), InvalidOptionError, "priority"),
        (lambda queue: queue.change_priority("x", 1, lifo="yes"), InvalidOptionTypeError, "lifo"),
        (lambda queue: queue.update_payload("x", {"a": {1}}), InvalidPayloadError, "payload.a"),
        (lambda queue: queue.update_payload("x", float("nan")), InvalidPayloadError, "payload"),
        (lambda queue: queue.drain(delayed=1), InvalidOptionTypeError, "delayed"),
        (lambda queue: queue.obliterate(force="yes"), InvalidOptionTypeError, "force"),
        (lambda queue: queue.clean(-1), InvalidDurationError, "grace"),
        (lambda queue: queue.clean("1 week"), InvalidDurationError, "grace"),
        (lambda queue: queue.clean(limit=-1), InvalidOptionError, "limit"),
        (lambda queue: queue.clean(limit=True), InvalidOptionTypeError, "limit"),
        (lambda queue: queue.clean(limit=1.5), InvalidOptionTypeError, "limit"),
        (lambda queue: queue.clean(state="done"), InvalidOptionError, "state"),
    ],
)
async def test_wrong_arguments_of_changes(
    world: World, engine: Engine, change: Callable[..., Any], error: type[Exception], word: str
) -> None:
    """Typed, names the argument, changes nothing."""
    await world.noop().dispatch({"n": 1}, job_id="x", delay="1h")
    with refused(engine, error, word):
        await change(engine.queue("default"))


@virtual
async def test_change_priority_of_waiting_jobs(world: World) -> None:
    """A ready job moves behind its new equals, with lifo before them; a delayed one keeps it for later."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    for id in "abc":
        await job.dispatch(id, job_id=id, priority=5)
    await job.dispatch("d", job_id="d", delay=100)
    await queue.change_priority("a", 5)
    await queue.change_priority("c", 5, lifo=True)
    await queue.change_priority("d", 1)
    await asyncio.sleep(1)
    async with engine:
        await asyncio.sleep(1)
    assert job.payloads == ["d", "c", "b", "a"]


@virtual
async def test_update_payload(world: World) -> None:
    """Later attempts and readers see the new payload; the attempt that runs has the old one."""
    job = world.recorder(attempts=2)
    job.takes_s = 1
    job.script = [ValueError("once")]
    engine = world.engine()
    async with engine:
        await job.dispatch({"v": 1}, job_id="x")
        await asyncio.sleep(0.5)
        await engine.queue("default").update_payload("x", {"v": 2})
        await asyncio.sleep(10)
    assert job.payloads == [{"v": 1}, {"v": 2}]


# --- many jobs --------------------------------------------------------------------------------------------------


@virtual
async def test_drain(world: World) -> None:
    """Waiting and prioritized jobs go; delayed ones only if asked; active and finished ones stay."""
    job = world.recorder()
    job.takes_s = 10
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        await job.dispatch("active")
        await asyncio.sleep(1)
        await job.job.dispatch_many([(None, None)] * 450)
        await job.dispatch(None, priority=2)
        await job.dispatch(None, delay="1h")
        assert await queue.drain() == 451
        assert queue.counts()["delayed"] == 1
        assert await queue.drain(delayed=True) == 1
        assert await queue.drain(delayed=True) == 0
        await asyncio.sleep(100)
    assert job.payloads == ["active"]


@virtual
async def test_clean(world: World) -> None:
    """`clean(grace, limit, state)` removes finished jobs older than the grace and returns their ids."""
    job = world.recorder()
    job.script = [None, None, None, ValueError("x")]
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        for number in range(4):
            await job.dispatch(None, job_id=f"x{number}")
            await asyncio.sleep(10)
        assert await queue.clean("35s") == ["x0"]
        assert await queue.clean(0, limit=1) == ["x1"]
        assert await queue.clean() == ["x2"]
        assert await queue.clean() == []
        assert await queue.clean(timedelta(seconds=5), state="failed") == ["x3"]
        assert queue.counts() == dict.fromkeys(STATES, 0)


@virtual
async def test_clean_in_many_slices(world: World) -> None:
    """More jobs than a slice holds, with and without a limit."""
    job = world.noop()
    engine = world.engine()
    queue = engine.queue("default")
    await job.dispatch_many([(None, None)] * 1000)
    assert len(await queue.clean(0, limit=250, state="waiting")) == 250
    assert len(await queue.clean(0, state="wait")) == 750
    assert queue.counts()["waiting"] == 0


@pytest.mark.parametrize("state", ["waiting", "delayed", "prioritized"])
@virtual
async def test_clean_goes_on_past_jobs_that_stay(world: World, state: str) -> None:
    """A slice of jobs that are too young hides none of the old ones behind it: all old ones go, no young one."""
    job = world.noop()
    engine = world.engine()
    queue = engine.queue("default")
    behind: Any = {"waiting": {}, "delayed": {"delay": "2d"}, "prioritized": {"priority": 5}}[state]
    before: Any = {"waiting": {"lifo": True}, "delayed": {"delay": "1d"}, "prioritized": {"priority": 1}}[state]
    await job.dispatch_many([(None, behind)] * 450)
    await asyncio.sleep(100)
    await job.dispatch_many([(None, before)] * 900)
    assert len(await queue.clean("50s", state=state)) == 450
    assert queue.counts()[state] == 900
    assert await queue.clean("1h", limit=20, state=state) == []


@virtual
async def test_obliterate(world: World) -> None:
    """Refused while jobs are active (the queue is paused then, as on BullMQ); with force all goes."""
    job = world.recorder()
    job.takes_s = 10
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        receipt = await job.dispatch("active", job_id="x")
        await job.dispatch("waiting")
        await asyncio.sleep(1)
        with pytest.raises(QueueBusyError, match="active"):
            await queue.obliterate()
        assert queue.is_paused()
        assert queue.counts()["waiting"] == 1
        await queue.obliterate(force=True)
        assert queue.counts() == dict.fromkeys(STATES, 0)
        with pytest.raises(JobRemovedError):
            await receipt.result()
        assert (await job.dispatch("after")).id == "1"
        await asyncio.sleep(100)
    assert job.payloads == ["active", "after"]


@virtual
async def test_a_late_result_after_obliterate_does_not_touch_the_new_job(world: World) -> None:
    """The abandoned run of an obliterated job ends without effect on a later job of the same id."""
    job = world.recorder()
    job.takes_s = 10
    job.script = ["old", "new"]
    engine = world.engine(concurrency=2)
    async with engine:
        await job.dispatch(1, job_id="x")
        await asyncio.sleep(1)
        await engine.queue("default").obliterate(force=True)
        await asyncio.sleep(5)
        second = await job.dispatch(2, job_id="x")
        assert second.created
        assert await second.result() == "new"
    assert world.ms == 16_000


# --- logs and progress ------------------------------------------------------------------------------------------


@virtual
async def test_c110_logs_are_bounded(world: World) -> None:
    """C110: `keep_logs=3` keeps the last three of five lines; 0 and None keep all, as on BullMQ."""

    async def handle(payload: Any, ctx: Any) -> None:
        for number in range(5):
            await ctx.log(f"line {number}")

    job = world.job(handle)
    engine = world.engine()
    async with engine:
        for id, keep in (("three", 3), ("zero", 0), ("none", None)):
            await (await job.dispatch(None, job_id=id, keep_logs=keep)).result()
        queue = engine.queue("default")
        assert queue.logs("three") == ["line 2", "line 3", "line 4"]
        assert queue.logs("zero") == queue.logs("none") == [f"line {number}" for number in range(5)]
        assert queue.logs("none", 1, 2) == ["line 1", "line 2"]
        assert queue.logs("none", -2, -1) == ["line 3", "line 4"]
        assert queue.logs("nobody") == []


@virtual
async def test_logs_and_progress_from_plain_functions(world: World) -> None:
    """Without `await`, in a thread; progress is any JSON value, read back decoded."""

    def handle(payload: Any, ctx: Any) -> None:
        ctx.log("starting")
        ctx.progress({"done": [1, 2]})
        ctx.log("ending")

    job = world.job(handle)
    engine = world.engine()
    progress: list[Any] = []
    engine.on("progress", lambda event: progress.append((event.job_id, event["data"])))
    async with engine:
        await (await job.dispatch(None, job_id="x")).result()
        view = engine.queue("default").job("x")
        assert view is not None
        assert view.progress == {"done": [1, 2]}
        assert engine.queue("default").logs("x") == ["starting", "ending"]
    assert progress == [("x", {"done": [1, 2]})]


@virtual
async def test_c110_a_flood_of_progress_stays_flat(world: World) -> None:
    """C110: 20,000 updates keep one value and at most as many events as BullMQ's stream."""
    from inproc_jobs.runtime.runtime import MAX_PENDING_EVENTS

    async def handle(payload: Any, ctx: Any) -> None:
        for number in range(20_000):
            ctx.progress(number)

    job = world.job(handle)
    engine = world.engine()
    events: list[Any] = []
    engine.on("progress", events.append)
    async with engine:
        await (await job.dispatch(None, job_id="x")).result()
        view = engine.queue("default").job("x")
        assert view is not None
        assert view.progress == 19_999
        assert len(engine.runtime._pending_events) <= MAX_PENDING_EVENTS


@virtual
async def test_log_and_progress_after_the_end_are_dropped(world: World) -> None:
    """What a handler's leftover task says about a job that is over changes nothing and raises nothing."""
    contexts: list[Any] = []

    async def handle(payload: Any, ctx: Any) -> None:
        contexts.append(ctx)
        ctx.progress(1)

    job = world.job(handle)
    engine = world.engine()
    async with engine:
        await (await job.dispatch(None, job_id="x")).result()
        contexts[0].progress(2)
        contexts[0].log("late")
        contexts[0].update_payload({"late": True})
        view = engine.queue("default").job("x")
        assert view is not None
        assert (view.progress, view.payload, engine.queue("default").logs("x")) == (1, None, [])


# --- sync twins and stopped engines -----------------------------------------------------------------------------


def test_every_change_has_a_sync_twin_for_any_thread(world: World) -> None:
    """The same through the `_sync` names, from another thread while the engine runs in its own."""
    engine = Engine(registry=world.registry)
    job = world.recorder()
    queue = engine.queue("default")
    with engine:
        queue.pause_sync()
        for id in "abcd":
            job.job.dispatch_sync({"v": id}, job_id=id)
        job.job.dispatch_sync(None, job_id="late", delay="1h")
        errors: list[BaseException] = []

        def change() -> None:
            try:
                assert queue.remove_sync("a")
                queue.update_payload_sync("b", {"v": "B"})
                queue.change_priority_sync("c", 3)
                queue.change_delay_sync("late", "2h")
                queue.promote_sync("late")
                assert queue.clean_sync(0, limit=1, state="waiting") != []
                queue.resume_sync()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=change)
        thread.start()
        thread.join(20)
        assert errors == []
        # A drain waits for what is ready.
        report = engine.stop()
    assert report.lost == 0
    assert queue.counts()["completed"] == 3


@virtual
async def test_reads_of_a_stopped_engine_answer_and_changes_are_refused(world: World) -> None:
    """Memory can be read after the stop; nothing can be changed until it is started again."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    async with engine:
        await job.dispatch(None, job_id="done")
        await job.dispatch(None, job_id="left", delay="1h")
        await asyncio.sleep(1)
    assert queue.counts()["completed"] == 1
    assert queue.job("left") is not None
    assert [view.id for view in queue.jobs("delayed")] == ["left"]
    assert queue.logs("done") == []
    assert queue.parked() == []
    for change in (
        queue.pause(),
        queue.resume(),
        queue.remove("left"),
        queue.promote("left"),
        queue.retry("done"),
        queue.change_delay("left", 5),
        queue.change_priority("left", 5),
        queue.update_payload("left", 5),
        queue.drain(),
        queue.clean(),
        queue.obliterate(),
        engine.retry_failed_job("left"),
    ):
        with refused(engine, EngineStoppedError, "start it again"):
            await change


def test_repr(engine: Engine) -> None:
    """A printed view names its queue and its counts."""
    assert repr(engine.queue("mails")).startswith("<QueueView 'mails' {'active': 0, ")
