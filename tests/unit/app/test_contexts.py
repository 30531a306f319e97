"""Each run has a context of its own, copied from the engine's at start; nothing a run sets reaches another."""

import asyncio
import contextvars
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from inproc_jobs import Engine, JobContext, Registry
from tests.unit.app.real import PATIENCE_S
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World

RID: ContextVar[str] = ContextVar("rid", default="unset")
OTHER: ContextVar[str] = ContextVar("other", default="unset")
FORMS = ["async", "inline", "thread"]


def reader(registry: Registry, form: str, name: str = "job", **options: Any) -> Any:
    """A job that answers the value it finds, and then sets one of its own."""

    def plain(payload: Any, ctx: JobContext) -> list[str]:
        found = [RID.get(), OTHER.get()]
        RID.set(f"set by {ctx.id}")
        OTHER.set(f"set by {ctx.id}")
        return found

    async def in_loop(payload: Any, ctx: JobContext) -> list[str]:
        found = plain(payload, ctx)
        await asyncio.sleep(0)
        assert RID.get() == f"set by {ctx.id}", "what a run sets is still there after a wait"
        return found

    if form == "async":
        return registry.define_job(name, handle=in_loop, **options)
    return registry.define_job(name, handle=plain, executor=form, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("form", FORMS)
async def test_the_callers_context_does_not_cross_by_itself(form: str) -> None:
    """Nor does it on BullMQ: what is set at dispatch stays with the caller."""
    registry = Registry()
    job = reader(registry, form)
    async with Engine(registry=registry):
        RID.set("A")
        assert await (await job.dispatch(None)).result(PATIENCE_S) == ["unset", "unset"]


@pytest.mark.parametrize("form", FORMS)
async def test_case_c109_named_variables_are_taken_over_from_the_dispatch(form: str) -> None:
    """`Engine(context_vars=[rid])`: each job has the value of its own dispatch, and no other variable."""
    registry = Registry()
    job = reader(registry, form)
    async with Engine(registry=registry, context_vars=[RID]):
        receipts = []
        for value in ("A", "B"):
            RID.set(value)
            OTHER.set(value)
            receipts.append(await job.dispatch(None))
        assert [await receipt.result(PATIENCE_S) for receipt in receipts] == [["A", "unset"], ["B", "unset"]]


@pytest.mark.parametrize("form", FORMS)
async def test_case_c109_what_a_run_sets_does_not_reach_the_next(form: str) -> None:
    """Same runner, same thread, same binding: the next job finds what the engine had at start."""
    registry = Registry()
    job = reader(registry, form)
    RID.set("at start")
    async with Engine(registry=registry, context_vars=[OTHER]):
        RID.set("later")
        for number in range(4):
            receipt = await job.dispatch(None, job_id=f"job {number}")
            assert await receipt.result(PATIENCE_S) == ["at start", "unset"]
        receipts = [await job.dispatch(None) for _ in range(4)]
        for receipt in receipts:
            assert await receipt.result(PATIENCE_S) == ["at start", "unset"]
        assert RID.get() == "later"


async def test_case_c109_a_dispatch_without_a_value_gets_the_default() -> None:
    """Also right after one with a value, and from a thread whose context has none."""
    registry = Registry()
    job = reader(registry, "async")
    async with Engine(registry=registry, context_vars=[RID]):
        context = contextvars.copy_context()
        context.run(RID.set, "A")
        first = context.run(job.dispatch_sync, None)
        second = contextvars.Context().run(job.dispatch_sync, None)
        assert [await receipt.result(PATIENCE_S) for receipt in (first, second)] == [
            ["A", "unset"],
            ["unset", "unset"],
        ]


@virtual
async def test_case_c109_delays_and_retries_keep_the_value_of_the_dispatch(world: World) -> None:
    """Captured once: after a delay, and at every attempt, whatever the attempt before has set."""
    seen: list[tuple[int, str]] = []

    async def handle(payload: Any, ctx: JobContext) -> None:
        seen.append((ctx.attempt, RID.get()))
        RID.set("set by the handler")
        if ctx.attempt < 3:
            raise ValueError("not yet")

    job = world.job(handle, attempts=3, backoff="1s")
    async with world.engine(context_vars=[RID]):
        RID.set("A")
        receipt = await job.dispatch(None, delay="1h")
        RID.set("B")
        await receipt.result()
    assert seen == [(1, "A"), (2, "A"), (3, "A")]


async def test_case_c109_a_duplicate_does_not_change_the_value() -> None:
    """The stored job is the first dispatch's, its context too."""
    registry = Registry()
    job = reader(registry, "async")
    engine = Engine(registry=registry, context_vars=[RID])
    RID.set("first")
    receipt = await job.dispatch(None, job_id="one")
    RID.set("second")
    assert (await job.dispatch(None, job_id="one")).duplicate
    async with engine:
        assert await receipt.result(PATIENCE_S) == ["first", "unset"]


async def test_a_job_that_a_job_dispatches_takes_over_its_value() -> None:
    """The request id goes down the chain."""
    registry = Registry()
    child = reader(registry, "thread", "child")

    async def handle(payload: Any) -> Any:
        return await (await child.dispatch(None)).result(PATIENCE_S)

    parent = registry.define_job("parent", handle=handle)
    async with Engine(registry=registry, concurrency=2, context_vars=[RID]):
        RID.set("A")
        assert await (await parent.dispatch(None)).result(PATIENCE_S) == ["A", "unset"]


def hosts_of(engine: Engine, call: Any) -> dict[str, Any]:
    """The same call under each of the three hosts."""
    answers: dict[str, Any] = {}
    with engine:
        answers["thread"] = call().result_sync(PATIENCE_S)

    async def inside() -> Any:
        async with engine:
            return await call().result(PATIENCE_S)

    answers["loop"] = asyncio.run(inside())
    return answers


def test_the_engines_context_is_the_one_it_was_started_in() -> None:
    """Under every host alike, a thread of its own included."""
    registry = Registry()
    job = reader(registry, "async")
    engine = Engine(registry=registry)
    context = contextvars.copy_context()
    context.run(RID.set, "of the program")
    assert context.run(hosts_of, engine, lambda: job.dispatch_sync(None)) == {
        "thread": ["of the program", "unset"],
        "loop": ["of the program", "unset"],
    }


def test_run_until_idle_has_the_callers_context() -> None:
    """As the other hosts."""
    registry = Registry()
    job = reader(registry, "thread")
    engine = Engine(registry=registry)
    receipts = [job.dispatch_sync(None), job.dispatch_sync(None)]
    context = contextvars.copy_context()
    context.run(RID.set, "of the tool")
    context.run(engine.run_until_idle)
    assert [receipt.result_sync() for receipt in receipts] == [["of the tool", "unset"]] * 2


async def test_a_restart_takes_the_context_of_its_own_start() -> None:
    """Not of the one before."""
    registry = Registry()
    job = reader(registry, "async")
    engine = Engine(registry=registry)
    for value in ("first", "second"):
        RID.set(value)
        async with engine:
            assert await (await job.dispatch(None)).result(PATIENCE_S) == [value, "unset"]


async def test_tasks_and_threads_of_a_handler_inherit_its_context() -> None:
    """As usual in asyncio: create_task, to_thread and TaskGroup copy it, and what they set stays with them."""
    registry = Registry()

    async def in_task() -> str:
        value = RID.get()
        RID.set("of the task")
        return value

    async def handle(payload: Any) -> list[str]:
        RID.set("of the handler")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(in_task())
        return [task.result(), await asyncio.to_thread(RID.get), RID.get()]

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        assert await receipt.result(PATIENCE_S) == ["of the handler"] * 3


async def test_jobs_that_run_at_once_do_not_see_each_other() -> None:
    """Fifty interleaved runs, each with a value of its own at every step."""
    registry = Registry()
    wrong: list[Any] = []

    async def handle(payload: int) -> None:
        RID.set(str(payload))
        for _ in range(5):
            await asyncio.sleep(0)
            if RID.get() != str(payload):
                wrong.append(payload)

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry, concurrency=50):
        await job.dispatch_many([(number, None) for number in range(100)])
    assert wrong == []


async def test_asyncio_timeouts_and_groups_work_in_a_shared_runner() -> None:
    """Runners are shared tasks: `timeout`, TaskGroup and `wait_for` of one job do not reach into another."""
    registry = Registry()

    async def handle(payload: Any) -> str:
        if payload == "times out":
            try:
                async with asyncio.timeout(0.005):
                    await asyncio.sleep(3600)
            except TimeoutError:
                return "timed out"
        if payload == "group":
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(3600))
                    raise ValueError("of the body")
            except ExceptionGroup:
                return "group cancelled"
        await asyncio.sleep(0.01)
        return "undisturbed"

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry, concurrency=2):
        payloads = ["times out", "plain", "group", "plain", "times out", "plain"]
        receipts = await job.dispatch_many([(payload, None) for payload in payloads])
        assert [await receipt.result(PATIENCE_S) for receipt in receipts] == [
            "timed out",
            "undisturbed",
            "group cancelled",
            "undisturbed",
            "timed out",
            "undisturbed",
        ]


async def test_listeners_run_in_the_engines_context() -> None:
    """Not in that of whoever dispatched, nor in a run's."""
    registry = Registry()
    job = reader(registry, "async")
    seen: list[tuple[str, str]] = []
    RID.set("at start")
    async with Engine(registry=registry) as engine:
        engine.on("*", lambda event: seen.append((event.name, RID.get())))
        RID.set("at dispatch")
        await job.dispatch(None)
    assert {value for _, value in seen} == {"at start"}


def test_dispatching_from_threads_captures_their_context() -> None:
    """Each thread has a value of its own, as request handlers of WSGI servers do."""
    registry = Registry()
    job = reader(registry, "thread")
    results: dict[str, Any] = {}

    def request(rid: str) -> None:
        RID.set(rid)
        results[rid] = job.dispatch_sync(None).result_sync(PATIENCE_S)

    with Engine(registry=registry, concurrency=4, context_vars=[RID]):
        threads = [threading.Thread(target=request, args=(f"request {number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert results == {f"request {number}": [f"request {number}", "unset"] for number in range(8)}
