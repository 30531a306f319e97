"""Which engine a call goes to, and what may be called where (DESIGN 4: "Which engine", "Sync and async")."""

import asyncio
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import inproc_jobs
from inproc_jobs import BlockingCallError, Engine, EngineStoppedError, NoEngineError, Registry
from tests.parameter_ids import stable_repr
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World


def where(receipt: Any) -> Engine:
    """The engine that took a dispatch."""
    engine: Engine = receipt._engine
    return engine


# --- (3) the newest that was not stopped ------------------------------------------------------------------------


async def test_without_an_engine(world: World) -> None:
    """NoEngineError names the job and says what to do."""
    job = world.noop("mail")
    for call in (
        lambda: job.dispatch(None),
        lambda: job.dispatch_many([(None, None)]),
        lambda: job.find("x"),
        lambda: asyncio.to_thread(job.dispatch_sync, None),
        lambda: asyncio.to_thread(job.dispatch_many_sync, []),
        lambda: asyncio.to_thread(job.find_sync, "x"),
    ):
        with pytest.raises(NoEngineError, match=r"'mail'.*Engine\(.*job\.on\(engine\)") as caught:
            await call()
        assert isinstance(caught.value, LookupError)


async def test_the_newest_by_construction(world: World) -> None:
    """Not by start: the last one that was made takes what is dispatched."""
    job = world.noop()
    old = world.engine()
    new = world.engine()
    async with old:
        assert where(await job.dispatch(None)) is new
        assert new.queue("default").counts()["waiting"] == 1


async def test_visible_from_every_thread_and_loop(world: World) -> None:
    """The newest engine is found in other threads and in their loops."""
    job = world.noop()
    engine = world.engine()
    found: list[Engine] = [where(await asyncio.to_thread(job.dispatch_sync, None))]

    def in_another_loop() -> None:
        async def story() -> None:
            found.append(where(await job.dispatch(None)))

        asyncio.run(story())

    thread = threading.Thread(target=in_another_loop)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == [engine, engine]


async def test_a_stopped_engine_is_passed_over(world: World) -> None:
    """When the newest is stopped the next older one takes over; started again it is the newest again."""
    job = world.noop()
    old = world.engine()
    new = world.engine()
    await new.astop()
    assert where(await job.dispatch(None)) is old
    await new.astart()
    assert where(await job.dispatch(None)) is new
    await new.astop()
    assert where(await job.dispatch(None)) is old


async def test_all_stopped(world: World) -> None:
    """Only stopped engines: EngineStoppedError, not NoEngineError: the cure is to start one again."""
    job = world.noop()
    engine = world.engine()
    await engine.astop()
    with pytest.raises(EngineStoppedError, match="start it again"):
        await job.dispatch(None)
    with pytest.raises(EngineStoppedError):
        await job.dispatch_many([(None, None)])
    with pytest.raises(EngineStoppedError):
        job.dispatch_sync(None)
    with pytest.raises(EngineStoppedError):
        await job.on(engine).dispatch(None)


async def test_engines_are_held_weakly(world: World) -> None:
    """A registry does not keep an engine alive: one that nobody holds is gone, and the older one takes over."""
    job = world.noop()
    old = world.engine()
    new = Engine(registry=world.registry)
    assert where(await job.dispatch(None)) is new
    ref = weakref.ref(new)
    del new
    gc.collect()
    assert ref() is None
    assert where(await job.dispatch(None)) is old


async def test_a_running_engine_that_nobody_holds_goes_on(world: World) -> None:
    """`async with Engine():` holds it for as long as the body runs."""
    job = world.recorder()
    async with Engine(registry=world.registry):
        gc.collect()
        assert await (await job.dispatch(None)).result() is None
    with pytest.raises((NoEngineError, EngineStoppedError)):
        await job.dispatch(None)


def test_a_registry_holds_no_dead_engines(world: World) -> None:
    """A thousand short-lived engines leave nothing in the registry."""
    for _ in range(1000):
        Engine(registry=world.registry)
    gc.collect()
    last = world.engine()
    assert [ref() for ref in world.registry._engines] == [last]


def test_run_until_idle_leaves_the_engine_usable(world: World) -> None:
    """After it the engine is not stopped: it takes dispatches and runs again."""
    runs: list[Any] = []
    job = world.job(runs.append, executor="inline")
    engine = Engine(registry=world.registry)
    for number in range(3):
        job.dispatch_sync(number)
        assert engine.run_until_idle(timeout=20).completed == 1
    assert where(job.dispatch_sync(3)) is engine
    assert runs == [0, 1, 2]


# --- (2) the bound one ------------------------------------------------------------------------------------------


async def test_a_bound_job_goes_to_its_engine(world: World) -> None:
    """`job.on(engine)` beats the newest, for dispatch, find, bulk and their twins; the job itself stays unbound."""
    job = world.noop("mail", queue="mails")
    old = world.engine()
    new = world.engine()
    bound = job.on(old)
    assert (bound.name, bound.queue) == ("mail", "mails")
    assert where(await bound.dispatch(None, job_id="x")) is old
    assert where(bound.dispatch_sync(None)) is old
    assert [where(receipt) for receipt in await bound.dispatch_many([(None, None)])] == [old]
    assert [where(receipt) for receipt in bound.dispatch_many_sync([(None, None)])] == [old]
    assert await bound.find("x") is not None
    assert await job.find("x") is None
    assert bound.find_sync("x") is not None
    assert where(await job.dispatch(None)) is new
    assert where(await job.on(old).on(new).dispatch(None)) is new


async def test_a_bound_job_never_goes_elsewhere(world: World) -> None:
    """When its engine is stopped it is refused, though another one is there."""
    job = world.noop()
    old = world.engine()
    world.engine()
    bound = job.on(old)
    await old.astop()
    with pytest.raises(EngineStoppedError):
        await bound.dispatch(None)


@virtual
async def test_a_bound_job_keeps_its_engine_alive_and_its_handler_fresh(world: World) -> None:
    """A bound job is the same job: a redefinition of the name replaces its handler too."""
    old = world.recorder()
    engine = world.engine()
    bound = old.job.on(engine)
    new = world.recorder()
    async with engine:
        await (await bound.dispatch(1)).result()
    assert (old.payloads, new.payloads) == ([], [1])


async def test_binding_to_an_engine_of_another_registry(world: World) -> None:
    """Refused at once, with the cure."""
    job = world.noop("mail")
    stranger = Engine(registry=Registry())
    with pytest.raises(NoEngineError, match=r"'mail'.*another registry.*Engine\(registry=\.\.\.\)"):
        job.on(stranger)


@pytest.mark.parametrize("engine", [None, 5, "engine", Registry()], ids=stable_repr)
def test_binding_to_what_is_no_engine(world: World, engine: Any) -> None:
    """A typed error instead of an AttributeError at some later dispatch."""
    with pytest.raises(inproc_jobs.InvalidOptionTypeError, match="engine"):
        world.noop().on(engine)


# --- (1) the engine whose handler runs this code ----------------------------------------------------------------


@pytest.mark.parametrize("bound", [False, True], ids=["unbound", "bound elsewhere"])
@pytest.mark.parametrize("executor", [None, "inline", "thread"])
def test_inside_a_handler(world: World, executor: str | None, bound: bool) -> None:
    """Code that a handler runs stays with the engine that runs the handler, bound or not, newest or not, threads too."""

    @virtual
    async def story(world: World) -> None:
        inner = world.noop("inner", queue="inner")
        mine = world.engine()
        newest = world.engine()
        inside = inner.on(newest) if bound else inner
        found: list[Engine] = []

        async def handle(payload: Any) -> None:
            found.append(where(await inside.dispatch(None)))
            found.append(where(inside.dispatch_sync(None)))
            # Helpers of the handler: tasks and threads that inherit its context.
            found.append(where(await asyncio.create_task(inside.dispatch(None))))
            found.append(where(await asyncio.to_thread(inside.dispatch_sync, None)))

        def plain(payload: Any) -> None:
            found.append(where(inside.dispatch_sync(None)))

        outer = world.job(handle if executor is None else plain, "outer", executor=executor)
        async with mine:
            await (await outer.on(mine).dispatch(None)).result()
        assert found
        assert set(map(id, found)) == {id(mine)}

    story(world=world)


@virtual
async def test_inside_a_handler_of_another_registry(world: World) -> None:
    """The running engine serves another registry: the job goes to an engine of its own."""
    other = Registry()
    inner = other.define_job("inner", handle=lambda payload: None)
    inner_engine = world.engine(registry=other)
    found: list[Engine] = []

    async def handle(payload: Any) -> None:
        found.append(where(await inner.dispatch(None)))

    outer = world.job(handle, "outer")
    async with world.engine():
        await (await outer.dispatch(None)).result()
    assert found == [inner_engine]


@virtual
async def test_listeners_are_not_handlers(world: World) -> None:
    """A listener is the host's code: its dispatches go to the newest engine."""
    inner, outer = world.noop("inner", queue="inner"), world.noop("outer")
    mine = world.engine()
    newest = world.engine()
    found: list[Engine] = []
    mine.on("completed", lambda event: found.append(where(inner.dispatch_sync(None))))
    async with mine:
        await outer.on(mine).dispatch(None)
        await asyncio.sleep(1)
    assert found == [newest]


@virtual
async def test_two_engines_with_handlers_at_once(world: World) -> None:
    """Runs of two engines interleave in one loop and one set of threads; each dispatch stays where it belongs."""
    inner = world.noop("inner", queue="inner")
    found: list[tuple[str, Engine]] = []

    async def handle(payload: str) -> None:
        for _ in range(5):
            await asyncio.sleep(0.01)
            found.append((payload, where(await inner.dispatch(None))))

    outer = world.job(handle, "outer")
    one, two = world.engine(concurrency=3), world.engine(concurrency=3)
    async with one, two:
        for _ in range(3):
            await outer.on(one).dispatch("one")
            await outer.on(two).dispatch("two")
        await asyncio.sleep(1)
    assert len(found) == 30
    assert {name for name, engine in found if engine is one} == {"one"}
    assert {name for name, engine in found if engine is two} == {"two"}


@virtual
async def test_the_module_functions_inside_a_handler(world: World) -> None:
    """`failed_jobs` and `retry_failed_job` of the module follow the same rule: the handler's engine first."""
    found: list[list[str]] = []

    async def handle(payload: Any) -> None:
        found.append([one.id for one in await inproc_jobs.failed_jobs("bad")])
        await inproc_jobs.retry_failed_job("x", "bad")

    def fail(payload: Any) -> None:
        raise ValueError("always")

    outer = inproc_jobs.define_job("tests.which engine: outer", handle=handle)
    bad = inproc_jobs.define_job("tests.which engine: bad", handle=fail, queue="bad", executor="inline")
    mine = world.engine(registry=None)
    newest = world.engine(registry=None)
    async with mine:
        await bad.on(mine).dispatch(None, job_id="x")
        await asyncio.sleep(1)
        await (await outer.on(mine).dispatch(None)).result()
        await asyncio.sleep(1)
        view = mine.queue("bad").job("x")
        assert view is not None
        assert view.attempts_made == 2
    assert found == [["x"]]
    assert newest.queue("bad").counts()["failed"] == 0


# --- sync and async ---------------------------------------------------------------------------------------------


async def test_async_calls_from_another_loop(world: World) -> None:
    """Every async call works from any loop: the engine lives in a thread of its own, the caller in this loop."""
    registry = Registry()
    script = [ValueError("once")]

    def handle(payload: Any) -> Any:
        if payload == "bad" and script:
            raise script.pop()
        return payload

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry, concurrency=8)
    outcome: list[Any] = []

    async def story() -> None:
        receipt = await job.dispatch("good", job_id="good")
        outcome.append(await receipt.result(timeout=20))
        receipts = await job.dispatch_many([(1, None), (2, None)])
        outcome.append([await one.result(timeout=20) for one in receipts])
        view = await job.find("good")
        outcome.append(view is not None and view.result)
        bad = await job.dispatch("bad", job_id="bad")
        with pytest.raises(inproc_jobs.JobFailedError):
            await bad.result(timeout=20)
        (failed,) = await engine.failed_jobs()
        await failed.retry()
        outcome.append(await bad.result(timeout=20))
        await engine.queue("default").pause()
        await engine.queue("default").resume()
        await engine.astop()

    def run() -> None:
        engine.start()
        asyncio.run(story())

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join, 60)
    assert outcome == ["good", [1, 2], "good", "bad"]


@pytest.mark.parametrize(
    ("call", "twin"),
    [
        (lambda engine, receipt: receipt.result_sync(), "result()"),
        (lambda engine, receipt: engine.stop(), "astop()"),
        (lambda engine, receipt: engine.run_until_idle(), "async with"),
        (lambda engine, receipt: engine.run_forever(), "async with"),
    ],
    ids=["result_sync", "stop", "run_until_idle", "run_forever"],
)
@virtual
async def test_blocking_calls_inside_the_loop_that_hosts_the_engine(
    world: World, call: Callable[..., Any], twin: str
) -> None:
    """BlockingCallError names the async twin; nothing has happened: the engine runs on."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None)
        with pytest.raises(BlockingCallError) as caught:
            call(engine, receipt)
        assert twin in str(caught.value)
        assert isinstance(caught.value, RuntimeError)
        assert await receipt.result() is None
        assert (await job.dispatch(None)).created


@pytest.mark.parametrize("stop", ["astop", "stop"])
def test_a_handler_cannot_stop_its_own_engine(world: World, stop: str) -> None:
    """It would wait for itself: BlockingCallError, and the engine runs on."""

    @virtual
    async def story(world: World) -> None:
        caught: list[BlockingCallError] = []

        async def handle(payload: Any) -> None:
            try:
                await engine.astop()
            except BlockingCallError as error:
                caught.append(error)

        def plain(payload: Any) -> None:
            try:
                engine.stop()
            except BlockingCallError as error:
                caught.append(error)

        job = world.job(handle if stop == "astop" else plain)
        engine = world.engine()
        async with engine:
            await (await job.dispatch(None)).result()
            assert (await job.dispatch(None)).created
            assert "handler" in str(caught[0])

    story(world=world)


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (inproc_jobs.JobDefinition, "dispatch dispatch_many find"),
        (inproc_jobs.DispatchedJob, "result"),
        (inproc_jobs.FailedJob, "retry"),
        (inproc_jobs.Engine, "failed_jobs retry_failed_job"),
        (
            inproc_jobs.QueueView,
            "pause resume drain clean obliterate remove retry promote change_delay change_priority update_payload",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_async_call_has_a_sync_twin(cls: type, names: str) -> None:
    """What is awaited has a `_sync` counterpart with the same parameters."""
    for name in names.split():
        call, twin = getattr(cls, name), getattr(cls, f"{name}_sync")
        assert inspect.iscoroutinefunction(call), name
        assert not inspect.iscoroutinefunction(twin), name
        if name != "dispatch":
            assert inspect.signature(call).parameters == inspect.signature(twin).parameters, name


def test_reads_of_a_queue_are_plain() -> None:
    """`counts`, `jobs`, `job`, `logs`, `is_paused` and `parked` answer from memory without an await."""
    for name in ("counts", "jobs", "job", "logs", "is_paused", "parked"):
        assert not inspect.iscoroutinefunction(getattr(inproc_jobs.QueueView, name))
