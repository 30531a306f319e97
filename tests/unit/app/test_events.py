"""Events: BullMQ's names and fields to whoever listens; nobody who listens badly disturbs a job or another listener."""

import asyncio
import contextlib
import gc
import logging
import threading
from typing import Any

import pytest

from inproc_jobs import Engine, InvalidOptionError, InvalidOptionTypeError, JobContext, Registry
from inproc_jobs.runtime import runtime as runtime_module
from tests.unit.app.real import PATIENCE_S, until, until_sync
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World


def define(registry: Registry, **options: Any) -> Any:
    async def handle(payload: Any, ctx: JobContext) -> Any:
        await asyncio.sleep(0)
        if isinstance(payload, dict) and "progress" in payload:
            await ctx.progress(payload["progress"])
        if payload == "fail":
            raise ValueError("no such invoice")
        return payload

    return registry.define_job("job", handle=handle, **options)


async def run_to_end(engine: Engine, receipt: Any) -> None:
    with contextlib.suppress(Exception):
        await receipt.result(PATIENCE_S)
    await asyncio.sleep(0.005)


async def test_the_life_of_a_job_in_bullmqs_words() -> None:
    """added, waiting, active, progress, completed: in order, each with BullMQ's fields, JSON values decoded."""
    registry = Registry()
    job = define(registry)
    seen: list[Any] = []
    async with Engine(registry=registry) as engine:
        engine.on("*", seen.append)
        receipt = await job.dispatch({"progress": {"done": 1}}, job_id="one")
        await run_to_end(engine, receipt)
    names = [event.name for event in seen]
    assert [name for name in names if name != "drained"] == ["added", "waiting", "active", "progress", "completed"]
    by_name = {event.name: event for event in seen}
    assert all(by_name[name].job_id == "one" for name in ("added", "waiting", "active", "progress", "completed"))
    assert all(event.queue == "default" for event in seen)
    assert by_name["added"]["name"] == "job"
    assert by_name["active"]["prev"] == "waiting"
    assert by_name["progress"]["data"] == {"done": 1}
    assert by_name["completed"]["returnvalue"] == {"progress": {"done": 1}}
    assert by_name["completed"].missed == 0
    assert "completed" in repr(by_name["completed"])


@virtual
async def test_retries_and_failures_in_bullmqs_words(world: World) -> None:
    """Delayed for a retry with a backoff, failed with its reason at the end."""
    recorder = world.recorder(attempts=2, backoff=1000)
    recorder.script = [ValueError("first"), ValueError("second")]
    seen: list[tuple[str, Any]] = []
    engine = world.engine()
    engine.on("delayed", lambda event: seen.append((event.name, event.job_id)))
    engine.on("failed", lambda event: seen.append((event.name, event["failedReason"])))
    async with engine:
        receipt = await recorder.dispatch(None, job_id="one")
        await run_to_end(engine, receipt)
    assert seen == [("delayed", "one"), ("failed", "second")]


async def test_duplicates_are_told() -> None:
    """A dispatch that was a no-op shows as BullMQ's `duplicated`."""
    registry = Registry()
    job = define(registry)
    seen: list[Any] = []
    engine = Engine(registry=registry)
    engine.on("duplicated", seen.append)
    await job.dispatch(1, job_id="one")
    await job.dispatch(2, job_id="one")
    async with engine:
        await asyncio.sleep(0.005)
    assert [event.job_id for event in seen] == ["one"]


async def test_listeners_run_on_the_engines_loop_outside_its_lock() -> None:
    """So they may call the engine, from whichever thread the event came, and need no locks of their own."""
    registry = Registry()
    job = define(registry)
    seen: list[Any] = []
    async with Engine(registry=registry) as engine:

        def listener(event: Any) -> None:
            assert not engine.runtime.lock._is_owned() or threading.get_ident() == here
            seen.append((asyncio.get_running_loop() is loop, threading.get_ident() == here))
            engine.queue("default").counts()
            engine.health()
            if event.job_id == "from a thread":
                job.dispatch_sync("from a listener", job_id="from a listener")

        here, loop = threading.get_ident(), asyncio.get_running_loop()
        engine.on("added", listener)
        await asyncio.to_thread(job.dispatch_sync, 1, job_id="from a thread")
        await until(lambda: len(seen) == 2)
    assert seen == [(True, True)] * 2


async def test_async_listeners_are_started_as_tasks() -> None:
    """They may wait without holding anything up, and are not collected meanwhile (C108)."""
    registry = Registry()
    job = define(registry)
    go, seen = asyncio.Event(), []

    async def listener(event: Any) -> None:
        await go.wait()
        seen.append(event.name)

    async with Engine(registry=registry) as engine:
        engine.on("completed", listener)
        receipt = await job.dispatch(1)
        await run_to_end(engine, receipt)
        gc.collect()
        assert seen == []
        go.set()
        await until(lambda: seen)
    assert seen == ["completed"]


class BrokenReprListener:
    def __call__(self, event: Any) -> None:
        raise RuntimeError("listener")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


def raises_error(event: Any) -> None:
    raise ValueError("listener")


def raises_cancelled(event: Any) -> None:
    raise asyncio.CancelledError


def raises_base(event: Any) -> None:
    raise BaseException("listener")


async def raises_async(event: Any) -> None:
    raise ValueError("listener")


async def raises_async_later(event: Any) -> None:
    await asyncio.sleep(0)
    raise ValueError("listener")


@pytest.mark.parametrize(
    "bad",
    [
        raises_error,
        raises_cancelled,
        raises_base,
        raises_async,
        raises_async_later,
        BrokenReprListener(),
    ],
    ids=lambda bad: getattr(bad, "__name__", "broken repr"),
)
async def test_a_broken_listener_is_logged_and_hurts_nobody(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The job completes, the other listeners hear of every event, and one error line names the fault."""
    registry = Registry()
    job = define(registry)
    before, after = [], []
    async with Engine(registry=registry) as engine:
        engine.on("completed", before.append)
        engine.on("completed", bad)
        engine.on("completed", after.append)
        receipts = [await job.dispatch(number) for number in range(2)]
        assert [await receipt.result(PATIENCE_S) for receipt in receipts] == [0, 1]
        await until(lambda: len(after) == 2)
        await asyncio.sleep(0.005)
    assert len(before) == len(after) == 2
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all("listener failed" in message for message in errors)


async def test_unsubscribing() -> None:
    """
    Once it is called no event comes any more; calling it again does nothing, not even to the same function's second
    subscription; with nobody left the core builds no events.
    """
    registry = Registry()
    job = define(registry)
    seen: list[Any] = []
    async with Engine(registry=registry) as engine:
        one = engine.on("completed", seen.append)
        two = engine.on("completed", seen.append)
        await run_to_end(engine, await job.dispatch(1))
        assert len(seen) == 2
        one()
        one()
        await run_to_end(engine, await job.dispatch(2))
        assert len(seen) == 3
        assert engine.runtime.core.listening
        two()
        assert not engine.runtime.core.listening
        await run_to_end(engine, await job.dispatch(3))
        assert len(seen) == 3
        assert not engine.runtime.core.events


async def test_a_listener_may_unsubscribe_itself() -> None:
    """In the middle of a delivery; the others get theirs."""
    registry = Registry()
    job = define(registry)
    once, always = [], []
    async with Engine(registry=registry) as engine:

        def listener(event: Any) -> None:
            once.append(event)
            unsubscribe()

        unsubscribe = engine.on("completed", listener)
        engine.on("completed", always.append)
        for number in range(3):
            await run_to_end(engine, await job.dispatch(number))
    assert (len(once), len(always)) == (1, 3)


def test_no_listener_no_cost() -> None:
    """Without listeners the core builds no events at all; nothing piles up."""
    registry = Registry()
    job = define(registry)
    engine = Engine(registry=registry)
    for number in range(100):
        job.dispatch_sync(number)
    engine.run_until_idle()
    assert not engine.runtime.core.listening
    assert not engine.runtime.core.events
    assert not engine.runtime._pending_events


@pytest.mark.parametrize("name", ["complete", "", "Completed", "error"])
def test_an_unknown_event_is_refused(name: str) -> None:
    """With the list of those there are."""
    engine = Engine(registry=Registry())
    with pytest.raises(InvalidOptionError, match="completed"):
        engine.on(name, print)
    assert not engine.runtime.core.listening


def test_a_listener_that_cannot_be_called_is_refused() -> None:
    """When it is subscribed, not when the first event comes."""
    engine = Engine(registry=Registry())
    with pytest.raises(InvalidOptionTypeError, match="callable"):
        engine.on("completed", "not a function")  # type: ignore[arg-type]


def test_events_of_an_engine_in_a_thread() -> None:
    """Listeners run in the engine's thread."""
    registry = Registry()
    job = define(registry)
    threads: list[str] = []
    with Engine(registry=registry) as engine:
        engine.on("completed", lambda event: threads.append(threading.current_thread().name))
        job.dispatch_sync(1).result_sync(PATIENCE_S)
        until_sync(lambda: threads)
    assert threads == ["inproc_jobs engine"]


async def test_the_last_events_of_an_engine_come_out_before_it_stops() -> None:
    """Leaving `async with` delivers them all."""
    registry = Registry()
    job = define(registry)
    seen: list[Any] = []
    async with Engine(registry=registry) as engine:
        engine.on("completed", seen.append)
        for number in range(5):
            await job.dispatch(number)
    assert len(seen) == 5


async def test_events_from_before_the_start_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners hear of what happened before a loop was there, of the last 10,000 events at most (C110)."""
    registry = Registry()
    job = define(registry)
    engine = Engine(registry=registry)
    seen: list[Any] = []
    engine.on("added", seen.append)
    job.dispatch_many_sync([(number, None) for number in range(runtime_module.MAX_PENDING_EVENTS)])
    assert len(engine.runtime._pending_events) == runtime_module.MAX_PENDING_EVENTS
    await engine.queue("default").drain()
    assert len(engine.runtime._pending_events) == runtime_module.MAX_PENDING_EVENTS


# --- streams ------------------------------------------------------------------------------------------------------


async def next_of(stream: Any) -> Any:
    return await asyncio.wait_for(anext(stream), PATIENCE_S)


async def test_a_stream_of_events() -> None:
    """`async for event in engine.events("completed")`: from now on, those names only, in order."""
    registry = Registry()
    job = define(registry)
    async with Engine(registry=registry) as engine:
        async with contextlib.aclosing(engine.events("completed")) as events:
            first = asyncio.create_task(next_of(events))
            await until(lambda: engine.runtime.core.listening)
            for number in range(3):
                await job.dispatch(number)
            assert [(await first)["returnvalue"], *[(await next_of(events))["returnvalue"] for _ in range(2)]] == [
                0,
                1,
                2,
            ]
        assert not engine.runtime.core.listening


async def test_a_stream_is_bounded_and_says_what_it_missed() -> None:
    """A slow reader: the oldest go, `missed` of the next one says how many, memory stays flat (C110)."""
    registry = Registry()
    job = define(registry)
    async with Engine(registry=registry) as engine:  # noqa: SIM117  # the engine outlives its readers
        async with contextlib.aclosing(engine.events("added", maxsize=5)) as events:
            first = asyncio.create_task(next_of(events))
            await until(lambda: engine.runtime.core.listening)
            await job.dispatch("zero", job_id="zero")
            assert (await first).job_id == "zero"
            await job.dispatch_many([(number, {"job_id": f"job {number}"}) for number in range(20)])
            await until(lambda: engine.queue("default").counts()["completed"] == 21)
            got = [await next_of(events) for _ in range(5)]
            assert [event.job_id for event in got] == [f"job {number}" for number in range(15, 20)]
            assert [event.missed for event in got] == [15, 0, 0, 0, 0]


async def test_two_streams_do_not_share_what_they_missed() -> None:
    """A fast reader is not told of the slow one's gaps."""
    registry = Registry()
    job = define(registry)
    async with Engine(registry=registry) as engine:
        slow, fast = engine.events("added", maxsize=1), engine.events("added")
        firsts = [asyncio.create_task(next_of(stream)) for stream in (slow, fast)]
        await until(lambda: len(engine._hub._streams) == 2)
        await job.dispatch("first")
        await asyncio.gather(*firsts)
        await job.dispatch_many([(number, None) for number in range(3)])
        await asyncio.sleep(0.01)
        assert (await next_of(slow)).missed == 2
        assert [(await next_of(fast)).missed for _ in range(3)] == [0, 0, 0]
        await slow.aclose()
        await fast.aclose()


async def test_a_stream_read_in_another_loop() -> None:
    """The engine has a thread of its own, the reader is here."""
    registry = Registry()
    job = define(registry)
    engine = Engine(registry=registry)
    engine.start()
    events = engine.events("completed")
    first = asyncio.create_task(next_of(events))
    await until(lambda: engine.runtime.core.listening)
    await job.dispatch("value")
    assert (await first)["returnvalue"] == "value"
    await events.aclose()
    await engine.astop()


def test_a_reader_whose_loop_was_closed_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It did not close its stream: it is dropped, and the others still hear of every event."""
    registry = Registry()
    job = define(registry)
    seen: list[Any] = []
    engine = Engine(registry=registry)
    engine.start()
    loop = asyncio.new_event_loop()
    events = engine.events()

    async def read() -> None:
        task = asyncio.ensure_future(anext(events))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    loop.run_until_complete(read())
    loop.close()
    engine.on("completed", seen.append)
    for number in range(3):
        job.dispatch_sync(number).result_sync(PATIENCE_S)
    until_sync(lambda: len(seen) == 3)
    assert engine._hub._streams == []
    engine.stop()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("maxsize", [0, -1, True, 1.5, "5"])
async def test_a_wrong_maxsize_is_refused(maxsize: Any) -> None:
    """A bound of nothing would lose everything."""
    with pytest.raises(InvalidOptionError, match="maxsize"):
        await anext(Engine(registry=Registry()).events(maxsize=maxsize))


async def test_a_stream_of_an_unknown_event_is_refused() -> None:
    """As for listeners."""
    with pytest.raises(InvalidOptionError, match="no event 'complete'"):
        await anext(Engine(registry=Registry()).events("complete"))


async def test_case_c110_a_flood_of_progress_stays_bounded() -> None:
    """A job that reports 50,000 times in one go while a stream waits: neither the stream nor the outbox grows."""
    registry = Registry()
    longest = [0]

    async def flood(payload: Any, ctx: JobContext) -> None:
        for number in range(50_000):
            ctx.progress(number)
        longest[0] = len(engine.runtime._pending_events)

    job = registry.define_job("flood", handle=flood)
    engine = Engine(registry=registry)
    async with engine:
        async with contextlib.aclosing(engine.events("progress", maxsize=10)) as events:
            first = asyncio.create_task(next_of(events))
            await until(lambda: engine.runtime.core.listening)
            receipt = await job.dispatch(None, job_id="one")
            await receipt.result(PATIENCE_S)
            await first
            await asyncio.sleep(0.01)
            assert len(engine._hub._streams[0]._events) <= 10
        view = await job.find("one")
    assert longest[0] <= runtime_module.MAX_PENDING_EVENTS
    assert view is not None
    assert view.progress == 49_999
