"""
A webhook in FastAPI that is delivered three times and does its work once.

Watch `duplicate` in the answers, and that the work is retried after the mail server was busy. The last delivery comes
when all is done; it is a duplicate too, since a completed job keeps its id for a day.

Self-check:  python examples/webhook_fastapi.py
Serve it:    uvicorn webhook_fastapi:app --app-dir examples
"""

import time
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel

from inproc_jobs import Engine, JobContext, define_job

engine = Engine(concurrency=10)
app = FastAPI(lifespan=engine.lifespan)


class Payment(BaseModel):
    invoice_id: str
    amount: int


@define_job(
    "receipts.send", attempts=5, backoff={"type": "exponential", "delay": 50}, remove_on_complete={"age": 86_400}
)
async def send_receipt(payment: Payment, ctx: JobContext) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the mail server is busy")
    return f"receipt for invoice {payment.invoice_id} sent"


@app.post("/webhooks/payments", status_code=202)
async def payment_hook(payment: Payment) -> dict[str, Any]:
    receipt = await send_receipt.dispatch(payment, job_id=f"receipt:{payment.invoice_id}")
    return {"job": receipt.id, "duplicate": receipt.duplicate}


@app.get("/jobs/{job_id}")
async def job(job_id: str) -> dict[str, Any]:
    view = await send_receipt.find(job_id)
    if view is None:
        raise HTTPException(404, f"no job has the id {job_id}")
    return {"state": view.state, "attempts": view.attempts_made, "result": view.result}


def self_check() -> None:
    with TestClient(app) as client:  # `with` runs the lifespan, so the engine starts and stops
        payment = {"invoice_id": "42", "amount": 12_900}
        for _ in range(2):
            print(client.post("/webhooks/payments", json=payment).json())
        while client.get("/jobs/receipt:42").json()["state"] != "completed":
            time.sleep(0.02)
        print(client.get("/jobs/receipt:42").json())
        print(client.post("/webhooks/payments", json=payment).json())


if __name__ == "__main__":
    self_check()
