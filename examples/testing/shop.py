"""
A small FastAPI app whose webhooks dispatch jobs; `test_shop.py` beside it is the point of this example.

Serve it:  uvicorn --factory shop:production --app-dir examples/testing
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from inproc_jobs import Deduplication, Engine, JobContext, UnrecoverableError, define_job


class Payment(BaseModel):
    order_id: str
    email: str
    amount: int


class MailServer:
    """Stands for a library that sends mail."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def send(self, to: str, subject: str) -> None:
        if "@" not in to:
            raise ValueError(f"{to!r} is no address")
        self.sent.append((to, subject))


mail = MailServer()
reindexed: list[str] = []
reports: list[str] = []


@define_job("receipts.send", queue="mail", attempts=6, backoff={"type": "exponential", "delay": "1h"}, timeout="30s")
async def send_receipt(payment: Payment) -> str:
    try:
        await mail.send(payment.email, f"receipt for order {payment.order_id}")
    except ValueError as error:
        raise UnrecoverableError(str(error)) from error  # it will be no address tomorrow either
    await ask_for_review.dispatch({"order_id": payment.order_id, "email": payment.email}, delay="3d")
    return f"receipt for {payment.order_id}"


@define_job("reviews.ask", queue="mail", attempts=2, backoff="1d")
async def ask_for_review(payload: dict[str, Any]) -> None:
    await mail.send(payload["email"], f"how did you like order {payload['order_id']}?")


@define_job("search.reindex")
def reindex(payload: dict[str, Any]) -> None:
    reindexed.append(f"{payload['product']} {payload['name']}")


@define_job("reports.daily")
def daily_report(payload: None, ctx: JobContext) -> None:
    reports.append(ctx.scheduled_for.isoformat())


def create_app() -> FastAPI:
    app = FastAPI()

    @app.post("/webhooks/payments", status_code=202)
    async def payment_hook(payment: Payment) -> dict[str, Any]:
        receipt = await send_receipt.dispatch(payment, job_id=f"receipt:{payment.order_id}")
        return {"job": receipt.id, "duplicate": receipt.duplicate}

    @app.post("/webhooks/products/{product}", status_code=202)
    def product_hook(product: str, name: str) -> dict[str, Any]:
        last_wins = Deduplication.debounce(f"product:{product}", "30s")
        receipt = reindex.dispatch_sync({"product": product, "name": name}, deduplication=last_wins)
        return {"job": receipt.id}

    @app.get("/receipts/{order_id}")
    async def receipt(order_id: str) -> dict[str, Any]:
        view = await send_receipt.find(f"receipt:{order_id}")
        if view is None:
            raise HTTPException(404, f"no receipt for order {order_id}")
        return {"state": view.state, "attempts": view.attempts_made}

    return app


def production() -> FastAPI:
    engine = Engine(queues={"mail": {"concurrency": 5}})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            await plan_reports(engine)
            yield

    app = create_app()
    app.router.lifespan_context = lifespan
    return app


async def plan_reports(engine: Engine) -> None:
    await engine.schedule("reports", daily_report, None, cron="30 2 * * *", tz="Europe/Berlin")
