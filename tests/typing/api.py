"""
The public API as programs use it. Type checkers read this file (`make types`); nobody runs it.

`assert_type` states what a call gives. A `type: ignore` with its code states that a mistake is seen: mypy complains
about an ignore that is not needed.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, assert_type

from inproc_jobs import (
    Deduplication,
    DispatchedJob,
    Engine,
    FailedJob,
    FailedJobNotFoundError,
    InprocJobsError,
    JobContext,
    JobDefinition,
    JobFailedError,
    JobState,
    JobView,
    QueueView,
    RateLimited,
    Registry,
    RetryLater,
    RunSummary,
    StopReport,
    UnrecoverableError,
    __version__,
    define_job,
    failed_jobs,
    retry_failed_job,
)

assert_type(__version__, str)

# --- definitions ------------------------------------------------------------------------------------------------------


@dataclass
class Invoice:
    invoice_id: str
    amount: int


@define_job("invoices.send", attempts=5, backoff={"type": "exponential", "delay": 2000})
async def send_invoice(payload: dict[str, Any], ctx: JobContext) -> None:
    await ctx.progress({"sent": 1})
    await ctx.log(f"attempt {ctx.attempt} of {ctx.max_attempts}, {ctx.late_by_ms} ms late")
    if ctx.cancelled:
        raise UnrecoverableError("asked to stop")
    if payload.get("busy"):
        raise RateLimited("30s")
    if payload.get("early"):
        raise RetryLater(dt.timedelta(minutes=5))
    await ctx.update_payload({**payload, "sent": True})
    assert_type(ctx.id, str)
    assert_type(ctx.scheduled_for, dt.datetime)


@define_job("invoices.total", queue="reports", timeout="30s", executor="thread", remove_on_complete=True)
def total(invoice: Invoice) -> int:
    return invoice.amount


assert_type(total.name, str)
assert_type(total.queue, str | None)


def send_plainly(payload: dict[str, Any]) -> str:
    return str(payload)


registry = Registry()
send_direct = define_job("invoices.plain", handle=send_plainly, remove_on_fail={"count": 100, "age": 3600})
in_registry = registry.define_job("invoices.registry", handle=send_plainly)
engine = Engine(
    concurrency=10,
    queues={"emails": {"concurrency": 5, "limiter": {"max": 10, "duration": "1s"}, "max_waiting": 10_000}},
    default_queue="default",
    default_job_options={"attempts": 3},
    history={"completed": 1000, "failed": 5000},
    shutdown_timeout="30s",
    registry=registry,
)

Engine(10)  # type: ignore[call-arg]  # options have names


# --- dispatch ---------------------------------------------------------------------------------------------------------


async def dispatches() -> None:
    receipt = await total.dispatch(Invoice("42", 100), job_id="invoice:42", delay="30s", priority=3)
    assert_type(receipt.id, str)
    assert_type(receipt.duplicate, bool)
    assert_type(receipt.created, bool)
    assert_type(receipt.state, JobState)
    assert_type(await receipt.result(timeout=5), int)
    assert_type(await (await send_direct.dispatch({})).result(), str)
    assert_type(total.dispatch_sync(Invoice("42", 100)).result_sync(timeout=5), int)

    await send_invoice.dispatch({"invoice_id": "42"}, run_at=dt.datetime.now(dt.UTC), lifo=True)
    await send_invoice.dispatch({"invoice_id": "42"}, delay=dt.timedelta(seconds=30), attempts=1, backoff=500)
    await send_invoice.dispatch({"invoice_id": "42"}, deduplication=Deduplication.throttle("42", ttl="5s"))
    await send_invoice.dispatch({"invoice_id": "42"}, deduplication=Deduplication.debounce("42", wait="5s"))
    await send_invoice.dispatch({"invoice_id": "42"}, deduplication={"id": "42", "ttl": 5000})
    for many in await total.dispatch_many([(Invoice("1", 1), {}), (Invoice("2", 2), total.options(delay="30s"))]):
        assert_type(await many.result(), int)

    await total.dispatch({"invoice_id": "42"})  # type: ignore[arg-type]  # not an Invoice
    await total.dispatch(Invoice("42", 100), job_id=42)  # type: ignore[arg-type]  # an id is text
    await total.dispatch(Invoice("42", 100), retries=3)  # type: ignore[call-arg]  # no such option


async def handlers_can_be_called_directly(ctx: JobContext) -> None:
    print(total(Invoice("42", 100)) + 1)
    await send_invoice({"invoice_id": "42"}, ctx)


def definitions_and_receipts_can_be_passed_on(
    job: JobDefinition[Invoice, int], receipt: DispatchedJob[int]
) -> tuple[int, str]:
    on_engine = job.on(engine)
    assert_type(on_engine.dispatch_sync(Invoice("1", 1)).result_sync(), int)
    return receipt.result_sync(), receipt.queue


# --- views ------------------------------------------------------------------------------------------------------------


async def views() -> None:
    view = await total.find("invoice:42")
    if view is not None:
        assert_type(view, JobView)
        assert_type(view.state, JobState)
        assert_type(view.failed_reason, str | None)
        assert_type(view.attempts_made, int)
        assert_type(view.created_at, dt.datetime)
        assert_type(view.finished_at, dt.datetime | None)
    assert_type(total.find_sync("invoice:42"), JobView | None)

    for failed in await failed_jobs("reports", start=0, end=9):
        assert_type(failed, FailedJob)
        await failed.retry()
    assert_type(await engine.failed_jobs(queue="reports"), list[FailedJob])
    try:
        await retry_failed_job("invoice:42", queue="reports")
    except FailedJobNotFoundError as error:
        assert_type(error.id, str)


async def queues() -> None:
    emails = engine.queue("emails")
    assert_type(emails, QueueView)
    assert_type(emails.counts(), dict[str, int])
    assert_type(emails.is_paused(), bool)
    assert_type(emails.job("1"), JobView | None)
    await emails.pause()
    emails.resume_sync()


# --- running ----------------------------------------------------------------------------------------------------------


async def inside_a_loop() -> None:
    async with Engine() as running:
        assert_type(running, Engine)
        receipt = await total.on(running).dispatch(Invoice("42", 100))
        try:
            await receipt.result()
        except JobFailedError as error:
            assert_type(error.reason, str)
        except InprocJobsError:
            pass


def without_a_loop() -> None:
    with Engine() as running:
        assert_type(running, Engine)
    engine.start()
    assert_type(engine.stop(timeout=5), StopReport)
    summary = engine.run_until_idle(timeout=60)
    assert_type(summary, RunSummary)
    assert_type(summary.completed + summary.failed + summary.retried, int)
    assert_type(summary.timed_out, bool)
