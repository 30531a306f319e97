"""What a handler may be, what it is given, what it may raise to steer, and how its timeout works, in every form."""

import asyncio
import functools
import inspect
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from inproc_jobs import (
    Engine,
    InvalidHandlerError,
    InvalidPayloadError,
    JobContext,
    JobFailedError,
    JobState,
    RateLimited,
    Registry,
    RetryLater,
    UnrecoverableError,
    WouldDeadlockError,
)
from tests.unit.app import process_jobs
from tests.unit.app.real import PATIENCE_S, until
from tests.unit.app.virtual import START, virtual
from tests.unit.app.world import World

FORMS = ["async", "inline", "thread"]


def in_form(registry: Registry, form: str, handle: Callable[..., Any], name: str = "job", **options: Any) -> Any:
    """A plain function as a job of one of the forms; as a coroutine function for "async"."""
    if form != "async":
        return registry.define_job(name, handle=handle, executor=form, **options)  # type: ignore[call-overload]

    async def in_loop(payload: Any, ctx: JobContext) -> Any:
        await asyncio.sleep(0)
        return handle(payload, ctx)

    return registry.define_job(name, handle=in_loop, **options)


# --- C99: is it async? -------------------------------------------------------------------------------------------


async def coroutine_function(payload: Any) -> str:
    await asyncio.sleep(0)
    return f"got {payload}"


async def with_context(prefix: str, payload: Any, ctx: JobContext) -> str:
    await asyncio.sleep(0)
    return f"{prefix} {payload} {ctx.id}"


class AsyncCall:
    async def __call__(self, payload: Any) -> str:
        await asyncio.sleep(0)
        return f"got {payload}"


class Service:
    async def method(self, payload: Any) -> str:
        await asyncio.sleep(0)
        return f"got {payload}"

    @classmethod
    async def class_method(cls, payload: Any) -> str:
        await asyncio.sleep(0)
        return f"got {payload}"

    @staticmethod
    def static(payload: Any) -> str:
        return f"got {payload}"


def returns_a_coroutine(payload: Any) -> Any:
    return coroutine_function(payload)


def returns_a_task(payload: Any) -> Any:
    return asyncio.get_running_loop().create_task(coroutine_function(payload))


class CustomAwaitable:
    def __init__(self, payload: Any) -> None:
        self.payload = payload

    def __await__(self) -> Any:
        return coroutine_function(self.payload).__await__()


@functools.cache
def cached(payload: Any) -> str:
    return f"got {payload}"


def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


CALLABLES: dict[str, tuple[Any, str | None]] = {
    "coroutine function": (coroutine_function, None),
    "partial of one": (functools.partial(coroutine_function), None),
    "partial of a partial": (functools.partial(functools.partial(coroutine_function)), None),
    "object with async __call__": (AsyncCall(), None),
    "bound method": (Service().method, None),
    "class method": (Service.class_method, None),
    "static method": (Service.static, None),
    "lambda returning a coroutine": (lambda payload: coroutine_function(payload), None),  # noqa: PLW0108  # the case
    "function returning a coroutine": (returns_a_coroutine, None),
    "the same, inline": (returns_a_coroutine, "inline"),
    "function returning a task, inline": (returns_a_task, "inline"),
    "function returning an awaitable": (CustomAwaitable, None),
    "the same, inline ": (CustomAwaitable, "inline"),
    "wrapper around a coroutine function": (decorated(coroutine_function), None),
    "plain lambda": (lambda payload: f"got {payload}", None),
    "plain, in a thread": (Service.static, "thread"),
    "plain, inline": (Service.static, "inline"),
    "a cached function": (cached, "inline"),
}


@pytest.mark.parametrize("kind", CALLABLES)
async def test_case_c99_every_kind_of_callable_is_awaited_if_it_needs_to_be(kind: str) -> None:
    """The result is the value, never a coroutine, and nothing is "never awaited" (a warning would be an error)."""
    registry = Registry()
    handle, executor = CALLABLES[kind]
    job = registry.define_job("job", handle=handle, executor=executor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with Engine(registry=registry):
            receipts = [await job.dispatch(number) for number in range(2)]
            assert [await receipt.result(PATIENCE_S) for receipt in receipts] == ["got 0", "got 1"]


async def test_case_c99_a_partial_with_context() -> None:
    """Bound arguments first, then payload and context."""
    registry = Registry()
    job = registry.define_job("job", handle=functools.partial(with_context, "hello"))
    async with Engine(registry=registry):
        assert await (await job.dispatch("you", job_id="one")).result(PATIENCE_S) == "hello you one"


async def async_generator(payload: Any) -> AsyncIterator[Any]:
    yield payload


def generator(payload: Any) -> Iterator[Any]:
    yield payload


@pytest.mark.parametrize("handle", [async_generator, generator, "text", 42])
def test_case_c99_what_cannot_be_a_handler_is_refused_when_defined(handle: Any) -> None:
    """Generators would never run their body; what cannot be called with a payload cannot run at all."""
    registry = Registry()
    with pytest.raises(InvalidHandlerError, match="'job'"):
        registry.define_job("job", handle=handle)
    assert registry.names() == ()


async def test_calling_a_job_runs_its_handler_alone() -> None:
    """`job(payload, ctx)` is for unit tests: no engine, the handler's own return value, a coroutine if it is async."""
    registry = Registry()
    plain = registry.define_job("plain", handle=lambda payload: {"not": {1, 2}, "got": payload})
    coroutine = registry.define_job("async", handle=coroutine_function)
    assert plain("x") == {"not": {1, 2}, "got": "x"}
    answer = coroutine("y")
    assert inspect.iscoroutine(answer)
    assert await answer == "got y"


async def test_redefining_a_name_replaces_the_handler() -> None:
    """Also for jobs that were dispatched before, and on an engine that runs."""
    registry = Registry()
    old = registry.define_job("job", handle=lambda payload: "old")
    async with Engine(registry=registry):
        assert await (await old.dispatch(None)).result(PATIENCE_S) == "old"
        waiting = await old.dispatch(None, delay="20ms")
        registry.define_job("job", handle=coroutine_function)
        assert await (await old.dispatch(1)).result(PATIENCE_S) == "got 1"
        assert await waiting.result(PATIENCE_S) == "got None"


@dataclass
class Invoice:
    number: int
    lines: list[str]


@pytest.mark.parametrize("form", FORMS)
async def test_the_payload_arrives_as_the_annotated_type_and_fresh_for_each_attempt(form: str) -> None:
    """What one attempt does to it, the next does not see; readers see the JSON value that was dispatched."""
    registry = Registry()
    seen: list[Any] = []

    def plain(payload: Invoice, ctx: JobContext) -> int:
        seen.append(list(payload.lines))
        payload.lines.append("changed")
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return payload.number

    async def in_loop(payload: Invoice, ctx: JobContext) -> int:
        return plain(payload, ctx)

    job = registry.define_job(  # type: ignore[call-overload]
        "job", handle=in_loop if form == "async" else plain, executor=None if form == "async" else form, attempts=2
    )
    async with Engine(registry=registry) as engine:
        invoice = Invoice(42, ["one"])
        receipt = await job.dispatch(invoice, job_id="one")
        invoice.lines.append("after the dispatch")
        assert await receipt.result(PATIENCE_S) == 42
        view = engine.queue("default").job("one")
    assert seen == [["one"], ["one"]]
    assert view is not None
    assert view.payload == {"number": 42, "lines": ["one"]}


# --- the context -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
async def test_what_the_context_says(form: str) -> None:
    """Id, name, queue, attempt and attempts, and whether the run should end."""
    registry = Registry()

    def handle(payload: Any, ctx: JobContext) -> list[Any]:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return [ctx.id, ctx.name, ctx.queue, ctx.attempt, ctx.max_attempts, ctx.cancelled, repr(ctx)]

    job = in_form(registry, form, handle, "invoices.send", queue="emails", attempts=4)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None, job_id="invoice:42")
        assert (await receipt.result(PATIENCE_S)) == [
            "invoice:42",
            "invoices.send",
            "emails",
            3,
            4,
            False,
            "JobContext(id='invoice:42', name='invoices.send', queue='emails', attempt=3)",
        ]


@virtual
async def test_scheduled_for_and_late_by_ms(world: World) -> None:
    """When the attempt was due, and how late it started: behind another job, after a delay, after a backoff."""
    seen: list[tuple[timedelta, int]] = []

    async def handle(payload: Any, ctx: JobContext) -> None:
        seen.append((ctx.scheduled_for - START, ctx.late_by_ms))
        await asyncio.sleep(2)
        if payload == "fails" and ctx.attempt == 1:
            raise ValueError("not yet")

    job = world.job(handle, attempts=2, backoff="10s")
    async with world.engine():
        receipts = [
            await job.dispatch("plain"),
            await job.dispatch("behind"),
            await job.dispatch("delayed", delay="1s"),
        ]
        receipts.append(await job.dispatch("fails", delay="1m"))
        for receipt in receipts:
            await receipt.result()
    seconds = [(due.total_seconds(), late) for due, late in seen]
    assert seconds == [(0, 0), (0, 2000), (1, 3000), (60, 0), (72, 0)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [{1, 2}, float("inf"), b"", {None: 1}])
async def test_progress_and_payload_must_be_json(form: str, value: Any) -> None:
    """InvalidPayloadError names the culprit inside the handler; nothing has changed."""
    registry = Registry()

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.progress("before")
        for change in (ctx.progress, ctx.update_payload):
            with pytest.raises(InvalidPayloadError):
                change(value)

    job = in_form(registry, form, handle)
    async with Engine(registry=registry) as engine:
        await (await job.dispatch("payload", job_id="one")).result(PATIENCE_S)
        view = engine.queue("default").job("one")
    assert view is not None
    assert (view.progress, view.payload) == ("before", "payload")


@pytest.mark.parametrize("form", FORMS)
async def test_update_payload_is_for_later_attempts_and_readers(form: str) -> None:
    """How a long job notes how far it has come."""
    registry = Registry()
    seen: list[Any] = []

    def handle(payload: Any, ctx: JobContext) -> None:
        seen.append(payload)
        ctx.update_payload({"step": payload["step"] + 1})
        if ctx.attempt < 3:
            raise ValueError("not yet")

    job = in_form(registry, form, handle, attempts=3)
    async with Engine(registry=registry) as engine:
        await (await job.dispatch({"step": 0}, job_id="one")).result(PATIENCE_S)
        assert engine.queue("default").job("one").payload == {"step": 3}  # type: ignore[union-attr]
    assert seen == [{"step": 0}, {"step": 1}, {"step": 2}]


# --- signals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
async def test_unrecoverable_fails_at_once(form: str) -> None:
    """Whatever attempts are left; by class, by subclass, or by the name of the class as in BullMQ."""
    registry = Registry()
    runs: list[Any] = []

    class OutOfStockError(UnrecoverableError):
        pass

    kinds: dict[str, Any] = {
        "own": UnrecoverableError,
        "subclass": OutOfStockError,
        "other": type("UnrecoverableError", (Exception,), {}),
    }

    def handle(payload: str, ctx: JobContext) -> None:
        runs.append(payload)
        raise kinds[payload]("gone")

    job = in_form(registry, form, handle, attempts=5)
    async with Engine(registry=registry):
        for kind in kinds:
            with pytest.raises(JobFailedError, match="gone"):
                await (await job.dispatch(kind)).result(PATIENCE_S)
    assert runs == list(kinds)


@pytest.mark.parametrize("delay", ["30s", 30_000, timedelta(seconds=30)])
@virtual
async def test_retry_later_costs_no_attempt(world: World, delay: Any) -> None:
    """The same job, 30 s later, as often as it likes, also with `attempts=1`; the slot is free meanwhile."""
    seen: list[tuple[int, Any, int]] = []

    async def handle(payload: Any, ctx: JobContext) -> str:
        seen.append((world.ms, payload, ctx.attempt))
        if payload == "later" and len([one for one in seen if one[1] == "later"]) <= 3:
            raise RetryLater(delay)
        return "done"

    job = world.job(handle)
    async with world.engine() as engine:
        receipt = await job.dispatch("later", job_id="one")
        other = await job.dispatch("other")
        assert await other.result() == "done"
        view = engine.queue("default").job("one")
        assert view is not None
        assert (view.state, view.attempts_made, view.delay_ms) == (JobState.DELAYED, 0, 30_000)
        assert await receipt.result() == "done"
    assert seen == [
        (0, "later", 1),
        (0, "other", 1),
        (30_000, "later", 1),
        (60_000, "later", 1),
        (90_000, "later", 1),
    ]


@virtual
async def test_rate_limited_starts_nothing_until_it_is_over(world: World) -> None:
    """No hot loop: between the signal and the end of the limit not one job of the queue is started; others go on."""
    starts: list[tuple[int, Any]] = []

    async def handle(payload: Any, ctx: JobContext) -> None:
        starts.append((world.ms, payload))
        if payload == "limited" and world.ms < 60_000:
            raise RateLimited("1m")

    job = world.job(handle)
    elsewhere = world.job(handle, "elsewhere", queue="other")
    async with world.engine() as engine:
        receipts = [await job.dispatch(payload, job_id=payload) for payload in ("limited", "second", "third")]
        await asyncio.sleep(30)
        assert engine.queue("default").counts()["waiting"] == 3
        await (await elsewhere.dispatch("elsewhere")).result()
        for receipt in receipts:
            await receipt.result()
        view = engine.queue("default").job("limited")
    assert starts[:2] == [(0, "limited"), (30_000, "elsewhere")]
    assert sorted(starts[2:]) == [(60_000, "limited"), (60_000, "second"), (60_000, "third")]
    assert view is not None
    assert (view.attempts_made, view.attempts_started) == (1, 2)


@virtual
async def test_rate_limited_with_several_slots(world: World) -> None:
    """Runs that are going on finish; no slot fetches a new one, whichever job ends meanwhile."""
    starts: list[tuple[int, Any]] = []

    async def handle(payload: Any) -> None:
        starts.append((world.ms, payload))
        if payload == 0 and world.ms < 10_000:
            raise RateLimited("10s")
        await asyncio.sleep(1)

    job = world.job(handle)
    async with world.engine(concurrency=3):
        receipts = [await job.dispatch(number) for number in range(6)]
        for receipt in receipts:
            await receipt.result()
    early = [payload for at, payload in starts if at < 10_000]
    assert len(early) <= 3
    assert early[0] == 0
    assert len(starts) == 7


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("signal", [RetryLater, RateLimited])
@pytest.mark.parametrize("delay", ["soon", -1, None, 1.5, True, []])
async def test_a_signal_with_a_wrong_delay_fails_the_job(form: str, signal: Any, delay: Any) -> None:
    """It cannot be obeyed; a job that hung for ever would be worse, and a retry would raise the same."""
    registry = Registry()

    def handle(payload: Any, ctx: JobContext) -> None:
        raise signal(delay)

    job = in_form(registry, form, handle, attempts=3)
    async with Engine(registry=registry) as engine:
        receipt = await job.dispatch(None, job_id="one")
        with pytest.raises(JobFailedError, match="delay"):
            await receipt.result(PATIENCE_S)
        view = engine.queue("default").job("one")
    assert view is not None
    assert view.attempts_made == 1


@pytest.mark.parametrize("form", FORMS)
async def test_signals_work_in_every_form(form: str) -> None:
    """RetryLater from a thread or inline as from a coroutine."""
    registry = Registry()
    runs: list[int] = []

    def handle(payload: Any, ctx: JobContext) -> str:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            raise RetryLater(1)
        if len(runs) == 2:
            raise RateLimited(1)
        return "done"

    job = in_form(registry, form, handle)
    async with Engine(registry=registry):
        assert await (await job.dispatch(None)).result(PATIENCE_S) == "done"
    assert runs == [1, 1, 1]


# --- timeouts ----------------------------------------------------------------------------------------------------


@virtual
async def test_a_timeout_is_per_attempt_and_retried(world: World) -> None:
    """Each attempt has the whole time; a timeout counts as a failure of its attempt only."""
    seen: list[tuple[int, int]] = []

    async def handle(payload: Any, ctx: JobContext) -> str:
        seen.append((world.ms, ctx.attempt))
        await asyncio.sleep(9 if ctx.attempt == 3 else 11)
        return "in time"

    job = world.job(handle, attempts=3, backoff="5s", timeout="10s")
    async with world.engine() as engine:
        receipt = await job.dispatch(None, job_id="one")
        assert await receipt.result() == "in time"
        view = engine.queue("default").job("one")
    assert seen == [(0, 1), (15_000, 2), (30_000, 3)]
    assert view is not None
    assert "timeout of 10000 ms" in view.failed_reason


@virtual
async def test_a_job_in_time_leaves_no_timer_behind(world: World) -> None:
    """The timer of an earlier job must not hit a later one in the same runner."""

    async def quick(payload: Any) -> None:
        await asyncio.sleep(0.5)

    async def slow(payload: Any) -> str:
        await asyncio.sleep(60)
        return "undisturbed"

    first, second = world.job(quick, "quick", timeout="1s"), world.job(slow, "slow")
    async with world.engine():
        await first.dispatch(None)
        receipt = await second.dispatch(None)
        assert await receipt.result() == "undisturbed"


@virtual
async def test_cleaning_up_after_a_timeout(world: World) -> None:
    """`ctx.cancelled` is set, and a handler may take a moment to clean up; its slot is taken until then."""
    seen: list[Any] = []

    async def handle(payload: Any, ctx: JobContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(ctx.cancelled)
            await asyncio.sleep(0.5)
            seen.append(world.ms)

    job = world.job(handle, timeout="10s")
    async with world.engine():
        receipt = await job.dispatch(None)
        with pytest.raises(JobFailedError, match="timeout"):
            await receipt.result()
    assert seen == [True, 10_500]


async def test_a_plain_handler_sees_that_its_time_is_over() -> None:
    """It cannot be interrupted, so it looks at `ctx.cancelled`; its job has failed already."""
    registry = Registry()
    noticed = threading.Event()

    def handle(payload: Any, ctx: JobContext) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.001)
        noticed.set()

    job = registry.define_job("job", handle=handle, timeout="30ms")
    async with Engine(registry=registry):
        with pytest.raises(JobFailedError, match="timeout of 30 ms"):
            await (await job.dispatch(None)).result(PATIENCE_S)
        await until(noticed.is_set)


async def test_a_coroutine_from_a_plain_function_has_the_timeout_too() -> None:
    """The thread has long ended; what it handed out is cancelled."""
    registry = Registry()
    job = registry.define_job("job", handle=lambda payload: asyncio.sleep(3600), timeout="30ms")
    async with Engine(registry=registry):
        with pytest.raises(JobFailedError, match="timeout of 30 ms"):
            await (await job.dispatch(None)).result(PATIENCE_S)


# --- processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_handler_in_another_process() -> None:
    """`executor="process"`: its own pid, context, progress and log; errors, signals and bad results as everywhere."""
    registry = Registry()

    def define(handle: Any, **options: Any) -> Any:
        return registry.define_job(handle.__name__, handle=handle, executor="process", **options)

    async with Engine(registry=registry) as engine:
        assert await (await define(process_jobs.pid).dispatch(None)).result(PATIENCE_S) != os.getpid()
        report = await (await define(process_jobs.report, attempts=3).dispatch(None, job_id="one")).result(PATIENCE_S)
        assert (report["id"], report["queue"], report["attempt"], report["max_attempts"]) == ("one", "default", 1, 3)
        view = engine.queue("default").job("one")
        assert view is not None
        assert view.progress == {"done": 1}
        assert engine.queue("default").logs("one") == ["first line", "second line"]
        fail = define(process_jobs.fail, attempts=2)
        for what, reason, attempts in (
            ("value", "no such invoice", 2),
            ("system exit", "SystemExit", 2),
            ("keyboard interrupt", "KeyboardInterrupt", 2),
            ("unrecoverable", "gone", 1),
        ):
            with pytest.raises(JobFailedError, match=reason):
                await (await fail.dispatch(what, job_id=what)).result(PATIENCE_S)
            assert engine.queue("default").job(what).attempts_made == attempts  # type: ignore[union-attr]
        with pytest.raises(JobFailedError, match=r"JSON|stored"):
            await (await define(process_jobs.not_json, attempts=2).dispatch(None)).result(PATIENCE_S)
        with pytest.raises(JobFailedError, match=r"(?i)process"):
            await (await define(process_jobs.die).dispatch(None)).result(PATIENCE_S)
        assert await (await define(process_jobs.pid).dispatch(None)).result(PATIENCE_S) != os.getpid()


@pytest.mark.slow
async def test_a_process_past_its_timeout_is_killed() -> None:
    """A handler in a process can be ended, unlike one in a thread: nothing hangs on."""
    registry = Registry()
    job = registry.define_job("hang", handle=process_jobs.hang, executor="process", timeout="200ms")
    quick = registry.define_job("quick", handle=process_jobs.pid, executor="process")
    async with Engine(registry=registry) as engine:
        with pytest.raises(JobFailedError, match="timeout of 200 ms"):
            await (await job.dispatch(None)).result(PATIENCE_S)
        assert await (await quick.dispatch(None)).result(PATIENCE_S) != os.getpid()
        assert engine.health()["queues"]["default"]["abandoned"] == 0


@pytest.mark.slow
async def test_stopping_kills_processes_that_hang(tmp_path: Any) -> None:
    """Bounded as for every other form; the job is put back."""
    registry = Registry()
    job = registry.define_job("hang", handle=process_jobs.hang, executor="process")
    later = registry.define_job("later", handle=process_jobs.once_later, executor="process", queue="other")
    engine = Engine(registry=registry)
    await engine.astart()
    assert await (await later.dispatch(str(tmp_path / "marker"))).result(PATIENCE_S) == "second run"
    await job.dispatch(None, job_id="one")
    await until(lambda: engine.queue("default").counts()["active"])
    report = await engine.astop(0.3)
    assert (report.interrupted, report.timed_out) == (("one",), True)
    view = engine.queue("default").job("one")
    assert view is not None
    assert view.state is JobState.WAITING


@pytest.mark.parametrize("handle", [lambda payload: None, AsyncCall(), coroutine_function, functools.partial(len)])
def test_what_another_process_could_not_find_is_refused_when_defined(handle: Any) -> None:
    """It is imported there by name; the error says how to define it."""
    with pytest.raises(InvalidHandlerError, match=r"process|executor"):
        Registry().define_job("job", handle=handle, executor="process")


# --- no handler --------------------------------------------------------------------------------------------------


@virtual
async def test_a_job_without_a_handler_fails_at_its_turn(world: World) -> None:
    """At once and without retries, whatever its attempts; the reason names the job and the cure."""
    gone = world.noop("gone", attempts=5, backoff="1h")
    other = world.noop("other")
    async with world.engine() as engine:
        receipt = await gone.dispatch(None, job_id="one", delay="1s")
        world.forget_handler("gone")
        following = await other.dispatch(None, delay="2s")
        with pytest.raises(JobFailedError, match=r"define_job\('gone'\)"):
            await receipt.result()
        await following.result()
        view = engine.queue("default").job("one")
    assert view is not None
    assert (view.state, world.ms) == (JobState.FAILED, 2000)


# --- waiting for other jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["async", "thread"])
async def test_a_handler_that_waits_for_what_cannot_come_is_told(form: str) -> None:
    """One slot, and the handler in it awaits a job of the same queue: WouldDeadlockError names both and the cure."""
    registry = Registry()
    child = registry.define_job("child", handle=coroutine_function)

    async def in_loop(payload: Any) -> Any:
        return await (await child.dispatch(1, job_id="child")).result()

    def plain(payload: Any) -> Any:
        return child.dispatch_sync(1, job_id="child").result_sync()

    parent = registry.define_job("parent", handle=in_loop if form == "async" else plain)
    async with Engine(registry=registry):
        receipt = await parent.dispatch(None, job_id="parent")
        with pytest.raises(JobFailedError, match=r"'parent' awaits job 'child'.*concurrency"):
            await receipt.result(PATIENCE_S)


@pytest.mark.parametrize("form", ["async", "thread"])
async def test_all_slots_waiting_alike_is_a_deadlock_too(form: str) -> None:
    """Three slots, three parents: the last one to wait is told, and with its slot the others go on."""
    registry = Registry()
    child = registry.define_job("child", handle=coroutine_function)
    barrier = threading.Barrier(3)
    everybody = asyncio.Event()
    there: list[Any] = []

    async def in_loop(payload: Any) -> Any:
        there.append(payload)
        if len(there) == 3:
            everybody.set()
        await everybody.wait()
        try:
            return await (await child.dispatch(payload)).result()
        except WouldDeadlockError:
            return "told"

    def plain(payload: Any) -> Any:
        barrier.wait(PATIENCE_S)
        try:
            return child.dispatch_sync(payload).result_sync()
        except WouldDeadlockError:
            return "told"

    parent = registry.define_job("parent", handle=in_loop if form == "async" else plain)
    async with Engine(registry=registry, concurrency=3):
        receipts = [await parent.dispatch(number) for number in range(3)]
        results = [await receipt.result(PATIENCE_S) for receipt in receipts]
    assert sorted(results).count("told") == 1
    assert len([result for result in results if result.startswith("got")]) == 2


async def test_waiting_is_fine_where_a_slot_is_left() -> None:
    """Another queue, a free slot, or a wait with a limit: no false alarm."""
    registry = Registry()
    child = registry.define_job("child", handle=coroutine_function)
    elsewhere = registry.define_job("elsewhere", handle=coroutine_function, queue="other")

    async def handle(payload: str) -> Any:
        if payload == "elsewhere":
            return await (await elsewhere.dispatch(1)).result()
        if payload == "with a limit":
            try:
                return await (await child.dispatch(1)).result(timeout=0.01)
            except TimeoutError:
                return "timed out"
        return await (await child.dispatch(1)).result()

    parent = registry.define_job("parent", handle=handle)
    async with Engine(registry=registry):
        assert await (await parent.dispatch("elsewhere")).result(PATIENCE_S) == "got 1"
        assert await (await parent.dispatch("with a limit")).result(PATIENCE_S) == "timed out"
    async with Engine(registry=registry, concurrency=2):
        assert await (await parent.dispatch("two slots")).result(PATIENCE_S) == "got 1"


async def test_two_jobs_that_wait_for_each_other_are_told() -> None:
    """A circle over two queues with a slot each."""
    registry = Registry()
    receipts: dict[str, Any] = {}
    ready = asyncio.Event()

    async def handle(payload: str) -> str:
        await ready.wait()
        try:
            return str(await receipts[payload].result())
        except WouldDeadlockError:
            return "told"

    one = registry.define_job("one", handle=handle, queue="one")
    two = registry.define_job("two", handle=handle, queue="two")
    async with Engine(registry=registry):
        receipts["one"] = await one.dispatch("two", job_id="one")
        receipts["two"] = await two.dispatch("one", job_id="two")
        ready.set()
        results = {await receipt.result(PATIENCE_S) for receipt in receipts.values()}
    assert results == {"told"}


async def test_a_job_that_waits_for_itself_is_told() -> None:
    """It can find its own receipt by dispatching its own id."""
    registry = Registry()

    async def handle(payload: Any, ctx: JobContext) -> Any:
        again = await job.dispatch(None, job_id=ctx.id)
        assert again.duplicate
        return await again.result()

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry, concurrency=5):
        receipt = await job.dispatch(None, job_id="one")
        with pytest.raises(JobFailedError, match="awaits job 'one'"):
            await receipt.result(PATIENCE_S)
