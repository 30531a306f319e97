"""The engine's log: quiet when nothing is wrong, through structlog or stdlib, and fields for the handler's own lines."""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from inproc_jobs import Engine, JobContext, Registry
from inproc_jobs.observe.logs import JobLogFilter
from tests.unit.app import process_jobs
from tests.unit.app.real import PATIENCE_S, run_program, until
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World

FORMS = ["async", "inline", "thread"]


def define(registry: Registry, form: str, handle: Any, name: str = "invoices.send", **options: Any) -> Any:
    """A job that calls a plain function, run in one of the forms."""
    if form != "async":
        return registry.define_job(name, handle=handle, executor=form, **options)  # type: ignore[call-overload]

    async def in_loop(payload: Any, ctx: JobContext) -> Any:
        await asyncio.sleep(0)
        return handle(payload, ctx)

    return registry.define_job(name, handle=in_loop, **options)


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What a host that has configured structlog gets to see."""
    written: list[dict[str, Any]] = []

    def collect(logger: Any, method: str, event: dict[str, Any]) -> Any:
        written.append({**event, "level": method})
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, collect])
    yield written
    structlog.reset_defaults()


# --- structlog ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
async def test_the_handlers_own_lines_say_which_job(form: str, lines: list[dict[str, Any]]) -> None:
    """`job_id`, `job_name`, `queue`, `attempt` are bound in every form, and are those of the run, retries included."""
    registry = Registry()

    def handle(payload: Any, ctx: JobContext) -> None:
        structlog.get_logger().info("sending", number=payload)
        if ctx.attempt == 1:
            raise ValueError("not yet")

    job = define(registry, form, handle, attempts=2, queue="emails")
    async with Engine(registry=registry):
        receipt = await job.dispatch(42, job_id="invoice:42")
        await receipt.result(PATIENCE_S)
    own = [line for line in lines if line["event"] == "sending"]
    fields = {"job_id": "invoice:42", "job_name": "invoices.send", "queue": "emails", "number": 42}
    assert [{key: line[key] for key in (*fields, "attempt")} for line in own] == [
        {**fields, "attempt": 1},
        {**fields, "attempt": 2},
    ]


async def test_the_fields_do_not_leak() -> None:
    """Jobs that run at once each have their own; outside of handlers there are none."""
    registry = Registry()
    bound: dict[str, set[Any]] = {}

    async def handle(payload: Any, ctx: JobContext) -> None:
        for _ in range(3):
            bound.setdefault(ctx.id, set()).add(tuple(sorted(structlog.contextvars.get_contextvars().items())))
            await asyncio.sleep(0)

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry, concurrency=3):
        receipts = [await job.dispatch(None, job_id=f"job {number}") for number in range(6)]
        for receipt in receipts:
            await receipt.result(PATIENCE_S)
        assert structlog.contextvars.get_contextvars() == {}
    assert bound == {
        f"job {number}": {(("attempt", 1), ("job_id", f"job {number}"), ("job_name", "job"), ("queue", "default"))}
        for number in range(6)
    }


@pytest.mark.slow
async def test_the_fields_are_bound_in_a_process_too() -> None:
    """A handler in another process logs there, with the same fields."""
    registry = Registry()
    job = registry.define_job("report", handle=process_jobs.report, executor="process")
    async with Engine(registry=registry):
        report = await (await job.dispatch(None, job_id="one")).result(PATIENCE_S)
    assert report["bound"] == {"job_id": "one", "job_name": "report", "queue": "default", "attempt": 1}


async def test_what_the_host_had_bound_stays_on_the_lines(lines: list[dict[str, Any]]) -> None:
    """Bound before the start, it is part of the engine's context, whichever host it has."""
    registry = Registry()

    def handle(payload: Any, ctx: JobContext) -> None:
        structlog.get_logger().info("sending")

    job = define(registry, "thread", handle)
    engine = Engine(registry=registry)
    with structlog.contextvars.bound_contextvars(app="shop"):
        async with engine:
            await (await job.dispatch(None)).result(PATIENCE_S)
        engine.start()
        await (await job.dispatch(None)).result(PATIENCE_S)
        await engine.astop()
    assert [line["app"] for line in lines if line["event"] == "sending"] == ["shop", "shop"]


async def test_the_engines_own_lines_go_through_a_configured_structlog(
    lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """And then not to the stdlib logger as well."""
    registry = Registry()

    def handle(payload: Any, ctx: JobContext) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    job = define(registry, "inline", handle, attempts=2)
    async with Engine(registry=registry):
        await job.dispatch(None, job_id="one")
    engine_lines = [line for line in lines if line["event"] != "sending"]
    assert [(line["level"], line["event"], line["reason"]) for line in engine_lines] == [
        ("info", "attempt failed, job will be retried", "attempt 1"),
        ("error", "job failed", "attempt 2"),
    ]
    assert all(line["job_id"] == "one" and line["job_name"] == "invoices.send" for line in engine_lines)
    assert "ValueError: attempt 2" in engine_lines[1]["stack"]
    assert [record for record in caplog.records if record.name == "inproc_jobs"] == []


async def test_a_broken_processor_of_the_host_does_not_end_a_job() -> None:
    """Logging never raises into the engine: the job ends as it would have."""
    registry = Registry()

    def explode(logger: Any, method: str, event: dict[str, Any]) -> Any:
        raise RuntimeError("processor")

    def handle(payload: Any, ctx: JobContext) -> str:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return "done"

    job = define(registry, "inline", handle, attempts=2)
    structlog.configure(processors=[explode])
    try:
        async with Engine(registry=registry):
            assert await (await job.dispatch(None)).result(PATIENCE_S) == "done"
    finally:
        structlog.reset_defaults()


# --- stdlib -------------------------------------------------------------------------------------------------------


def test_without_a_configured_structlog_nothing_reaches_standard_output() -> None:
    """Lines go to the stdlib logger `inproc_jobs`; unconfigured structlog would print them all, so it is not used."""
    code, out, errors = run_program(
        """
        import sys
        import structlog  # imported by the host, but not configured
        from inproc_jobs import Engine, define_job

        @define_job("bad", attempts=2)
        def bad(payload):
            raise ValueError("no such invoice")

        engine = Engine()
        bad.dispatch_sync(None)
        bad.dispatch_sync(None)
        engine.run_until_idle()
        """
    )
    assert (code, out) == (0, "")
    assert errors.count("job failed") == 2
    assert "will be retried" not in errors, "an info line, below the level of an unconfigured logging"


def test_an_engine_without_trouble_is_silent() -> None:
    """Start, jobs of every form, a debounce, a duplicate, a stop: not one line at INFO or above."""
    code, out, errors = run_program(
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        from inproc_jobs import Engine, define_job

        @define_job("async")
        async def one(payload):
            pass

        @define_job("thread")
        def two(payload):
            pass

        @define_job("inline", executor="inline")
        def three(payload):
            pass

        engine = Engine()
        with engine:
            for job in (one, two, three):
                job.dispatch_sync(None, job_id=job.name)
                job.dispatch_sync(None, job_id=job.name, delay=5)
                job.dispatch_sync(None, delay=5).result_sync(10)
        one.on(Engine()).dispatch_sync(None)
        """
    )
    assert (code, out, errors) == (0, "", "")


@virtual
async def test_levels(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A retry is worth knowing (info), a job that failed for good is an error with its stack; both name the job."""
    caplog.set_level(logging.DEBUG, logger="inproc_jobs")
    recorder = world.recorder("flaky", attempts=2, backoff="1s")
    recorder.script = [ValueError("first"), ValueError("second")]
    async with world.engine():
        receipt = await recorder.dispatch(None, job_id="one")
        await asyncio.wait((asyncio.ensure_future(receipt.result()),))
    records = [record for record in caplog.records if record.name == "inproc_jobs"]
    assert [(record.levelname, record.getMessage().split(":")[0]) for record in records] == [
        ("INFO", "attempt failed, job will be retried"),
        ("ERROR", "job failed"),
    ]
    for record, attempt in zip(records, (1, 2), strict=True):
        assert (record.job_id, record.job_name, record.queue, record.attempt) == ("one", "flaky", "default", attempt)  # type: ignore[attr-defined]
    assert "ValueError: second" in records[1].getMessage()


@pytest.mark.parametrize("form", FORMS)
async def test_the_filter_puts_the_fields_on_stdlib_records(form: str) -> None:
    """`handler.addFilter(JobLogFilter())` for hosts that log with the stdlib; None outside of a job."""
    registry = Registry()
    records: list[logging.LogRecord] = []
    logger = logging.getLogger(f"shop.{form}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    sink = logging.Handler()
    sink.emit = records.append  # type: ignore[method-assign]
    sink.addFilter(JobLogFilter())
    logger.addHandler(sink)

    def handle(payload: Any, ctx: JobContext) -> None:
        logger.info("sending")

    job = define(registry, form, handle)
    async with Engine(registry=registry):
        logger.info("outside")
        await (await job.dispatch(None, job_id="one")).result(PATIENCE_S)
    logger.removeHandler(sink)
    outside, inside = records
    assert (outside.job_id, outside.attempt) == (None, None)  # type: ignore[attr-defined]
    assert (inside.job_id, inside.job_name, inside.queue, inside.attempt) == ("one", "invoices.send", "default", 1)  # type: ignore[attr-defined]


@virtual
async def test_case_c105_a_handler_that_blocks_the_loop_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """With its job, its queue and how long it held the loop, whether before its first wait, after it, or inline."""

    async def blocks_first(payload: Any) -> None:
        world.clock.jump(250)
        await asyncio.sleep(0)

    async def blocks_later(payload: Any) -> None:
        await asyncio.sleep(0)
        world.clock.jump(350)
        await asyncio.sleep(0)

    def blocks_inline(payload: Any) -> None:
        world.clock.jump(450)

    async def blocks_without_a_wait(payload: Any) -> None:
        world.clock.jump(550)

    async def behaves(payload: Any) -> None:
        await asyncio.sleep(5)

    async with world.engine() as engine:
        for handle in (blocks_first, blocks_later, blocks_inline, blocks_without_a_wait, behaves):
            executor = "inline" if handle is blocks_inline else None
            job = world.registry.define_job(handle.__name__, handle=handle, executor=executor)  # type: ignore[call-overload]
            await (await job.dispatch(None)).result()
    blocked = [
        (record.job_name, record.queue, record.blocked_ms)  # type: ignore[attr-defined]
        for record in caplog.records
        if "blocked the event loop" in record.getMessage()
    ]
    assert blocked == [
        ("blocks_first", "default", 250),
        ("blocks_later", "default", 350),
        ("blocks_inline", "default", 450),
        ("blocks_without_a_wait", "default", 550),
    ]
    assert engine.health()["state"] == "stopped"


@pytest.mark.parametrize("ending", ["returns", "raises"])
@virtual
async def test_case_c105_a_handler_that_blocks_after_its_last_wait_is_named(
    world: World, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    """The most common kind: it awaits its data, and then works on them at length."""

    async def crunches(payload: Any) -> None:
        await asyncio.sleep(1)
        world.clock.jump(400)
        if ending == "raises":
            raise ValueError("no such invoice")

    job = world.job(crunches, "crunches")
    async with world.engine():
        receipt = await job.dispatch(None)
        await asyncio.wait((asyncio.ensure_future(receipt.result()),))
    assert [record.blocked_ms for record in caplog.records if "blocked the event loop" in record.getMessage()] == [400]  # type: ignore[attr-defined]


def test_a_log_handler_may_ask_the_engine() -> None:
    """The lock is not held while a line is written: a handler of the host that reads health() must not hang."""
    code, out, errors = run_program(
        """
        import faulthandler, logging
        faulthandler.dump_traceback_later(5, exit=True)
        import asyncio
        from inproc_jobs import Engine, define_job

        class Asks(logging.Handler):
            def emit(self, record):
                engine.health()

        logging.getLogger("inproc_jobs").addHandler(Asks())
        go = asyncio.Event()

        @define_job("job")
        async def job(payload):
            await go.wait()

        engine = Engine()

        async def main():
            async with engine:
                await job.dispatch(None)
                while not engine.queue("default").counts()["active"]:
                    await asyncio.sleep(0)
                await engine.queue("default").obliterate(force=True)
                go.set()  # its late result is dropped, with a line that says so
            print("ended")

        asyncio.run(main())
        """
    )
    assert (code, out.strip()) == (0, "ended"), errors


# --- the job's own log --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
async def test_progress_and_log_without_await(form: str) -> None:
    """Plain functions just call them; what they said is there while the job still runs."""
    registry = Registry()
    go = threading.Event()

    def handle(payload: Any, ctx: JobContext) -> None:
        ctx.log("first line")
        ctx.progress(50)
        ctx.log("second line")
        ctx.progress({"percent": 100})
        if form == "thread":
            go.wait(PATIENCE_S)

    job = define(registry, form, handle)
    async with Engine(registry=registry) as engine:
        receipt = await job.dispatch(None, job_id="one")
        await until(lambda: engine.queue("default").job("one").progress == {"percent": 100})  # type: ignore[union-attr]
        assert engine.queue("default").logs("one") == ["first line", "second line"]
        go.set()
        await receipt.result(PATIENCE_S)


async def test_progress_log_and_update_payload_with_await() -> None:
    """The same calls may be awaited."""
    registry = Registry()

    async def handle(payload: Any, ctx: JobContext) -> None:
        assert await ctx.log("line") is None
        assert await ctx.progress([1, 2]) is None
        assert await ctx.update_payload({"step": 2}) is None

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry) as engine:
        receipt = await job.dispatch({"step": 1}, job_id="one")
        await receipt.result(PATIENCE_S)
        view = engine.queue("default").job("one")
    assert view is not None
    assert (view.progress, view.payload, engine.queue("default").logs("one")) == ([1, 2], {"step": 2}, ["line"])


async def test_case_c110_keep_logs_bounds_the_log_of_a_job() -> None:
    """`keep_logs=3`, five lines: the last three."""
    registry = Registry()

    async def handle(payload: Any, ctx: JobContext) -> None:
        for number in range(5):
            await ctx.log(f"line {number}")

    job = registry.define_job("job", handle=handle, keep_logs=3)
    async with Engine(registry=registry) as engine:
        await (await job.dispatch(None, job_id="one")).result(PATIENCE_S)
        assert engine.queue("default").logs("one") == ["line 2", "line 3", "line 4"]


async def test_case_c110_logging_after_the_end_is_a_no_op_with_a_sign(caplog: pytest.LogCaptureFixture) -> None:
    """A task that outlives its handler may still call ctx: nothing changes, a debug line says so."""
    caplog.set_level(logging.DEBUG, logger="inproc_jobs")
    registry = Registry()
    go = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def outlives(ctx: JobContext) -> None:
        await go.wait()
        await ctx.log("too late")
        await ctx.progress("too late")
        await ctx.update_payload("too late")

    async def handle(payload: Any, ctx: JobContext) -> None:
        tasks.append(asyncio.create_task(outlives(ctx)))

    job = registry.define_job("job", handle=handle)
    async with Engine(registry=registry) as engine:
        await (await job.dispatch("payload", job_id="one")).result(PATIENCE_S)
        go.set()
        await asyncio.gather(*tasks)
        view = engine.queue("default").job("one")
    assert view is not None
    assert (view.payload, view.progress, engine.queue("default").logs("one")) == ("payload", 0, [])
    assert len([record for record in caplog.records if "job is over" in record.getMessage()]) == 3


def test_structlog_is_not_imported_for_its_own_sake() -> None:
    """It is looked for, never loaded: a host that does not use it does not pay for it."""
    code, out, errors = run_program(
        """
        import sys
        from inproc_jobs import Engine, define_job

        @define_job("bad")
        def bad(payload):
            raise ValueError("logged")

        engine = Engine()
        bad.dispatch_sync(None)
        engine.run_until_idle()
        print("structlog" in sys.modules)
        """
    )
    assert (code, out.strip()) == (0, "False"), errors
    assert "structlog" in sys.modules, "the test itself has it"
