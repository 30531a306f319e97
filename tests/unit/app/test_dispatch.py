"""`define_job`, `dispatch`, `find` and `result`: the heart of the facade (DESIGN 1, 4; issue item 1)."""

import asyncio
import functools
import gc
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

import inproc_jobs
from inproc_jobs import (
    BlockingCallError,
    Engine,
    JobContext,
    JobDefinition,
    JobFailedError,
    JobState,
    JobView,
    Registry,
    WouldDeadlockError,
)
from tests.unit.app.virtual import START, virtual
from tests.unit.app.world import World


@virtual
async def test_the_mission(world: World) -> None:
    """The example of DESIGN 1: the second webhook is a no-op, five form posts are one run, the job is found."""
    sent: list[Any] = []
    define_job = world.registry.define_job

    @define_job("invoices.send", attempts=5, backoff={"type": "exponential", "delay": 2000})
    async def send_invoice(payload: dict[str, Any], ctx: JobContext) -> None:
        sent.append((world.ms, payload["invoice_id"], ctx.id))

    async with world.engine():
        receipt = await send_invoice.dispatch({"invoice_id": "42"}, job_id="invoice:42")
        again = await send_invoice.dispatch({"invoice_id": "42"}, job_id="invoice:42")
        assert (again.duplicate, again.state) == (True, "waiting")
        for _ in range(5):
            await send_invoice.dispatch({"invoice_id": "7"}, job_id="invoice:7", delay="30s")
        await receipt.result()
        view = await send_invoice.find("invoice:42")
        assert view is not None
        assert view.state == "completed"
        await asyncio.sleep(60)
    assert sent == [(0, "42", "invoice:42"), (30_000, "7", "invoice:7")]


# --- handlers ---------------------------------------------------------------------------------------------------


class Caller:
    async def __call__(self, payload: int) -> int:
        return payload + 1


class Method:
    async def method(self, payload: int, ctx: JobContext) -> int:
        return payload + ctx.attempt

    def plain(self, payload: int) -> int:
        return payload + 1


async def one(payload: int) -> int:
    await asyncio.sleep(0)
    return payload + 1


async def two(payload: int, ctx: JobContext) -> int:
    return payload + ctx.attempt


def plain(payload: int) -> int:
    return payload + 1


def plain_two(payload: int, ctx: JobContext) -> int:
    return payload + ctx.attempt


async def three(extra: int, payload: int) -> int:
    return payload + extra


def a_future(payload: int) -> Awaitable[int]:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, future.set_result, payload + 1)
    return future


def a_coroutine(payload: int) -> Awaitable[int]:
    return one(payload)


HANDLERS: dict[str, tuple[Any, str | None]] = {
    "async": (one, None),
    "async with ctx": (two, None),
    "plain in a thread": (plain, None),
    "plain with ctx": (plain_two, "thread"),
    "plain inline": (plain, "inline"),
    "plain inline with ctx": (plain_two, "inline"),
    "partial of async": (functools.partial(three, 1), None),
    "partial of plain": (functools.partial(plain), None),
    "async __call__": (Caller(), None),
    "bound async method": (Method().method, None),
    "bound plain method": (Method().plain, None),
    "lambda giving a coroutine": (lambda payload: one(payload), None),  # noqa: PLW0108  # a lambda is the point
    "lambda inline": (lambda payload: payload + 1, "inline"),
    "plain giving a coroutine in a thread": (a_coroutine, "thread"),
    "plain giving a coroutine inline": (a_coroutine, "inline"),
    "plain giving a future": (a_future, "inline"),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_every_kind_of_handler(world: World, kind: str) -> None:
    """C99: each kind is called or awaited as it should be; the result is the value, nothing is left unawaited."""

    @virtual
    async def story(world: World) -> None:
        handle, executor = HANDLERS[kind]
        job = world.job(handle, executor=executor)
        async with world.engine():
            assert await (await job.dispatch(41)).result() == 42

    story(world=world)
    gc.collect()


@pytest.mark.parametrize("decorator", [True, False])
async def test_decorator_and_direct_form(world: World, engine: Engine, decorator: bool) -> None:
    """Both give a JobDefinition with name and queue."""
    if decorator:
        job: JobDefinition[Any, Any] = world.registry.define_job("mail", queue="mails")(one)
    else:
        job = world.registry.define_job("mail", queue="mails", handle=one)
    assert isinstance(job, JobDefinition)
    assert (job.name, job.queue) == ("mail", "mails")
    assert repr(job) == "<JobDefinition 'mail' in 'mails'>"
    assert world.registry.get("mail") is job
    assert await job(1) == 2


async def test_calling_a_job_calls_its_handler(world: World) -> None:
    """For unit tests: no engine, no JSON, no retry; the context is whatever the test gives."""

    class FakeContext:
        attempt = 9

    assert world.job(plain)(1) == 2
    assert await world.job(two)(1, FakeContext()) == 10
    marker = object()
    assert world.job(lambda payload: payload)(marker) is marker


@virtual
async def test_redefining_a_name_replaces_the_handler(world: World) -> None:
    """Jobs that wait already are run by the new handler."""
    old = world.recorder()
    engine = world.engine()
    await old.dispatch("waiting")
    new = world.recorder()
    async with engine:
        await old.dispatch("through the old definition")
        await asyncio.sleep(1)
    assert (old.payloads, new.payloads) == ([], ["waiting", "through the old definition"])


@virtual
async def test_defining_inside_a_handler(world: World) -> None:
    """A handler may define and dispatch jobs."""

    async def outer(payload: int) -> Any:
        inner = world.job(one, "inner")
        return (await inner.dispatch(payload)).id

    job = world.job(outer, "outer")
    async with world.engine(concurrency=2):
        id = await (await job.dispatch(5)).result()
        await asyncio.sleep(1)
        view = await world.registry.get("inner").find(id)  # type: ignore[union-attr]
    assert view is not None
    assert view.result == 6


@virtual
async def test_the_same_function_under_two_names(world: World) -> None:
    """A definition may be the handler of another one."""
    first = world.job(one, "first")
    second = world.registry.define_job("second")(first)  # type: ignore[arg-type]
    async with world.engine():
        assert await (await second.dispatch(1)).result() == 2
        assert (await first.dispatch(1)).name == "first"


# --- result -----------------------------------------------------------------------------------------------------


@virtual
async def test_result_is_decoded_anew_for_each_caller(world: World) -> None:
    """No two callers share an object."""

    async def handle(payload: Any) -> Any:
        return {"list": [1]}

    job = world.job(handle)
    async with world.engine():
        receipt = await job.dispatch(None)
        first = await receipt.result()
        first["list"].append(2)
        assert await receipt.result() == {"list": [1]}


@virtual
async def test_result_of_a_failed_job(world: World) -> None:
    """JobFailedError names the job and the reason, with the stored traces."""
    job = world.recorder("mail", queue="mails", attempts=2)
    job.script = [ValueError("first"), ValueError("second")]
    async with world.engine():
        receipt = await job.dispatch(None, job_id="x")
        with pytest.raises(JobFailedError, match=r"job 'x' \(mail\) in queue 'mails' failed: second") as caught:
            await receipt.result()
    error = caught.value
    assert (error.id, error.name, error.queue, error.reason, len(error.stacktrace)) == (
        "x",
        "mail",
        "mails",
        "second",
        2,
    )


@virtual
async def test_result_waits_through_retries(world: World) -> None:
    """A failed attempt is not the end."""
    job = world.recorder(attempts=3, backoff="10s")
    job.script = [ValueError("1"), ValueError("2"), "third"]
    async with world.engine():
        assert await (await job.dispatch(None)).result() == "third"
    assert world.ms == 20_000


@pytest.mark.parametrize("timeout", [5, 5.0, "5s"])
@virtual
async def test_result_with_a_timeout(world: World, timeout: Any) -> None:
    """Bare numbers are seconds; TimeoutError leaves the job alone, and a later wait gets its result."""
    job = world.recorder()
    job.takes_s = 60
    job.script = ["late"]
    async with world.engine():
        receipt = await job.dispatch(None)
        with pytest.raises(TimeoutError):
            await receipt.result(timeout=timeout)
        assert world.ms == 5000
        assert await receipt.result(timeout=3600) == "late"
    assert world.ms == 60_000


@virtual
async def test_a_timeout_of_zero_asks_whether_it_is_done(world: World) -> None:
    """0 does not wait: TimeoutError if it is not done, the result if it is."""
    job = world.recorder()
    job.script = ["done"]
    async with world.engine():
        receipt = await job.dispatch(None)
        with pytest.raises(TimeoutError):
            await receipt.result(timeout=0)
        await asyncio.sleep(1)
        assert await receipt.result(timeout=0) == "done"


@virtual
async def test_a_cancelled_waiter_leaves_the_job_alone(world: World) -> None:
    """Cancelling `result()` cancels the waiting, not the work; other waiters go on, nothing is left behind."""
    job = world.recorder()
    job.takes_s = 10
    job.script = ["fine"]
    engine = world.engine()
    async with engine:
        receipt = await job.dispatch(None)
        gone, stays = asyncio.create_task(receipt.result()), asyncio.create_task(receipt.result())
        await asyncio.sleep(1)
        gone.cancel()
        assert await stays == "fine"
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert engine.runtime._waiters == {}


@virtual
async def test_a_hundred_waiters(world: World) -> None:
    """Every waiter gets the result; before the start of the engine too."""
    job = world.recorder()
    job.script = [7]
    engine = world.engine()
    receipt = await job.dispatch(None)
    waiters = [asyncio.create_task(receipt.result()) for _ in range(100)]
    await asyncio.sleep(1)
    async with engine:
        assert await asyncio.gather(*waiters) == [7] * 100
    assert engine.runtime._waiters == {}


@virtual
async def test_a_dispatch_whose_caller_is_cancelled_survives(world: World) -> None:
    """C115: a request that is cancelled after its dispatch does not take the job along."""
    job = world.recorder()

    async def request() -> None:
        await job.dispatch("from a request")
        await asyncio.sleep(100)

    async with world.engine():
        task = asyncio.create_task(request())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(10)
    assert job.payloads == ["from a request"]


@virtual
async def test_a_dispatch_while_the_last_runner_is_leaving(world: World) -> None:
    """A job that comes in after the runner found nothing and before it is gone is run (other threads hit this often)."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        first = await job.dispatch(1)
        # What a thread in `result_sync` does, at the earliest moment at which it can: when the result is told.
        told = engine.runtime.watch(first._job)  # type: ignore[arg-type]
        assert told is not None
        told.add_done_callback(lambda future: job.job.dispatch_sync(2))
        await asyncio.sleep(100)
        assert job.payloads == [1, 2]


# --- waiting inside handlers ------------------------------------------------------------------------------------


@virtual
async def test_awaiting_a_result_that_can_never_come(world: World) -> None:
    """The only slot waits for a job that needs the only slot: WouldDeadlockError, told at once, with the cure."""
    inner = world.recorder("inner")

    async def outer(payload: Any) -> Any:
        return await (await inner.dispatch(None)).result()

    job = world.job(outer, "outer")
    async with world.engine():
        with pytest.raises(JobFailedError, match="concurrency"):
            await (await job.dispatch(None)).result()
        await asyncio.sleep(1)
    assert len(inner.runs) == 1
    assert world.ms == 1000


@virtual
async def test_all_slots_waiting_alike(world: World) -> None:
    """With three slots, three handlers that wait for a fourth job: the last to wait is told, the others get results."""
    inner = world.recorder("inner")
    outcomes: list[str] = []

    async def outer(payload: Any) -> None:
        await asyncio.sleep(payload)
        receipt = await inner.dispatch(payload)
        try:
            await receipt.result()
            outcomes.append("result")
        except WouldDeadlockError:
            outcomes.append("refused")

    job = world.job(outer, "outer")
    async with world.engine(concurrency=3):
        receipts = await job.dispatch_many([(1, None), (2, None), (3, None)])
        for receipt in receipts:
            await receipt.result()
    assert sorted(outcomes) == ["refused", "result", "result"]


@virtual
async def test_waiting_for_oneself(world: World) -> None:
    """A handler that waits for its own result would wait for ever, whatever the concurrency."""

    async def handle(payload: Any) -> None:
        receipt = await job.dispatch(None, job_id="me")
        await receipt.result()

    job: Any = world.job(handle)
    async with world.engine(concurrency=10):
        with pytest.raises(JobFailedError, match="awaits job 'me'"):
            await (await job.dispatch(None, job_id="me")).result()


@virtual
async def test_waiting_with_a_free_slot_or_another_queue_is_fine(world: World) -> None:
    """No refusal where the result can come."""
    inner, elsewhere = world.recorder("inner"), world.recorder("elsewhere", queue="other")
    inner.script, elsewhere.script = ["inner"], ["elsewhere"]

    async def outer(payload: Any) -> Any:
        return [await (await inner.dispatch(None)).result(), await (await elsewhere.dispatch(None)).result()]

    job = world.job(outer, "outer")
    async with world.engine(concurrency=2, queues={"other": {"concurrency": 1}}):
        assert await (await job.dispatch(None)).result() == ["inner", "elsewhere"]


@virtual
async def test_waiting_for_a_delayed_job_in_a_full_queue(world: World) -> None:
    """A delayed job needs a slot as well: refused when none can come free."""
    inner = world.recorder("inner")

    async def outer(payload: Any) -> Any:
        return await (await inner.dispatch(None, delay="1s")).result()

    job = world.job(outer, "outer")
    async with world.engine():
        with pytest.raises(JobFailedError, match="concurrency"):
            await (await job.dispatch(None)).result()


# --- sync twins -------------------------------------------------------------------------------------------------


@virtual
async def test_dispatch_sync_and_find_sync_inside_a_loop(world: World) -> None:
    """They do not block, so they work inside a running loop."""
    job = world.recorder()
    async with world.engine():
        receipt = job.job.dispatch_sync({"a": 1}, job_id="x", priority=2)
        assert receipt.state == "prioritized"
        view = job.job.find_sync("x")
        assert view is not None
        assert view.payload == {"a": 1}
        await receipt.result()


@virtual
async def test_result_sync_inside_a_loop_is_refused(world: World) -> None:
    """It would block the loop: the error names the async twin, and the job is not touched."""
    job = world.recorder()
    async with world.engine():
        receipt = await job.dispatch(None)
        with pytest.raises(BlockingCallError, match=r"await dispatched.result\(\)"):
            receipt.result_sync()
        await receipt.result()
        with pytest.raises(BlockingCallError):
            receipt.result_sync()


def test_sync_twins_from_many_threads(world: World) -> None:
    """dispatch_sync, dispatch_many_sync, find_sync, result_sync and failed jobs from threads of their own."""
    registry = Registry()
    job = registry.define_job("job", handle=plain)
    bad = registry.define_job("bad", handle=lambda payload: 1 / 0, queue="bad")
    errors: list[BaseException] = []
    with Engine(registry=registry, concurrency=4) as engine:

        def work(number: int) -> None:
            try:
                assert job.dispatch_sync(number).result_sync(timeout=20) == number + 1
                receipts = job.dispatch_many_sync([(n, {"priority": n}) for n in range(5)])
                assert [receipt.result_sync("20s") for receipt in receipts] == [1, 2, 3, 4, 5]
                failed = bad.dispatch_sync(None, job_id=f"bad:{number}")
                with pytest.raises(JobFailedError, match="division"):
                    failed.result_sync(timeout=20)
                assert isinstance(bad.find_sync(f"bad:{number}"), JobView)
                engine.retry_failed_job_sync(f"bad:{number}", "bad")
                with pytest.raises(JobFailedError):
                    failed.result_sync(timeout=20)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert len(engine.failed_jobs_sync("bad")) == 8


def test_result_sync_times_out(world: World) -> None:
    """Seconds, as everywhere where one waits; without an engine running nothing ends it earlier."""
    engine = Engine(registry=world.registry)
    receipt = world.noop().dispatch_sync(None)
    with pytest.raises(TimeoutError):
        receipt.result_sync(timeout=0.01)
    assert engine.runtime._waiters == {}


def test_sync_calls_inside_plain_handlers(world: World) -> None:
    """A handler in a thread uses the sync twins; its dispatches reach its own engine."""
    registry = Registry()
    inner = registry.define_job("inner", handle=plain, queue="inner")
    outer = registry.define_job("outer", handle=lambda payload: inner.dispatch_sync(payload).result_sync(timeout=20))
    with Engine(registry=registry):
        assert outer.dispatch_sync(1).result_sync(timeout=20) == 2


# --- find -------------------------------------------------------------------------------------------------------


@virtual
async def test_find(world: World) -> None:
    """None for ids that are unknown or belong to a job of another name; a view of the record otherwise."""
    mine, other = world.recorder("mine"), world.recorder("other")
    mine.script = [{"answer": 42}]
    async with world.engine():
        await mine.dispatch({"n": 1}, job_id="x")
        assert await other.find("x") is None
        assert await mine.find("y") is None
        await asyncio.sleep(1)
        view = await mine.find("x")
    assert isinstance(view, JobView)
    assert isinstance(view.state, JobState)
    assert (view.state, view.result, view.payload, view.attempts_made) == ("completed", {"answer": 42}, {"n": 1}, 1)
    assert (view.created_at, view.processed_at, view.finished_at) == (START, START, START)
    assert repr(view) == "<JobView 'x' mine in 'default': completed>"


@virtual
async def test_find_by_an_automatic_id(world: World) -> None:
    """Automatic ids are text, and found as such."""
    job = world.noop()
    world.engine()
    receipt = await job.dispatch("p")
    assert receipt.id == "1"
    assert await job.find("1") is not None


@virtual
async def test_context_of_a_run(world: World) -> None:
    """`ctx` names the job, this attempt and what it was due for."""
    job = world.recorder("mail", queue="mails", attempts=3)
    async with world.engine():
        await job.dispatch(None, job_id="x", delay="5s")
        await asyncio.sleep(10)
    (ctx,) = job.contexts
    assert isinstance(ctx, JobContext)
    assert (ctx.id, ctx.name, ctx.queue, ctx.attempt, ctx.max_attempts, ctx.cancelled) == (
        "x",
        "mail",
        "mails",
        1,
        3,
        False,
    )
    assert (ctx.late_by_ms, repr(ctx)) == (0, "JobContext(id='x', name='mail', queue='mails', attempt=1)")


def test_public_names_of_this_page() -> None:
    """The names the tests use are those the package exports."""
    for name in ("define_job", "Engine", "JobContext", "JobView", "DispatchedJob", "Registry", "Deduplication"):
        assert name in inproc_jobs.__all__
