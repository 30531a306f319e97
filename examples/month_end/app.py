"""
The web app: it answers at once and leaves the work to jobs. This is how the engine is used in FastAPI.

Watch the ids. Whatever is sent again carries the same `job_id`, so the second dispatch does nothing and says so.
Serve it by hand with `cd examples && uvicorn month_end.app:app`.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header
from pydantic import BaseModel

from inproc_jobs import DispatchedJob, Engine, JobContext, define_job
from month_end.outside import Database, HelpDesk, Ledger, MailServer


class Customer(BaseModel):
    id: str
    email: str


class Invoice(BaseModel):
    invoice: str
    customer: Customer
    amount: int  # in the smallest unit of the currency
    currency: str


class InvoiceEvent(BaseModel):
    """What the payment provider posts."""

    id: str
    type: Literal["invoice.finalized"]
    created: int
    data: Invoice


class FormPost(BaseModel):
    email: str
    message: str


class ProfilePost(BaseModel):
    profile: str
    revision: int
    name: str
    city: str


engine = Engine(queues={"invoices": {"concurrency": 20}, "forms": {"concurrency": 10}})
app = FastAPI(title="A small shop", lifespan=engine.lifespan)

ledger = Ledger(os.environ.get("DEMO_LEDGER", os.devnull))
mail_server, help_desk, database = MailServer(ledger), HelpDesk(ledger), Database(ledger)
edits: dict[str, ProfilePost] = {}  # the newest state of each profile form
retries: Counter[str] = Counter()  # by queue
completed: Counter[str] = Counter()  # by queue
engine.on("completed", lambda event: completed.update([event.queue]))

DAY_S = 24 * 60 * 60  # the age of finished jobs is counted in seconds, as in BullMQ


@define_job(
    "invoices.send",
    queue="invoices",
    attempts=5,
    backoff={"type": "exponential", "delay": 500},
    remove_on_complete={"age": DAY_S},  # a finished invoice keeps its id for a day: a late delivery is a no-op too
)
async def send_invoice(invoice: Invoice, ctx: JobContext) -> None:
    retries[ctx.queue] += ctx.attempt > 1
    await mail_server.send(to=invoice.customer.email, invoice=invoice.invoice)


@define_job("forms.deliver", queue="forms", attempts=3, backoff=1_000, remove_on_complete={"age": DAY_S})
async def deliver_form(payload: dict[str, str]) -> None:
    await help_desk.take(payload["id"], sender=payload["email"], text=payload["message"])


@define_job("profiles.save", queue="forms", attempts=3, backoff=1_000)
async def save_profile(payload: dict[str, Any]) -> None:
    # The payload is that of the first click, and the form is read here: the first click makes the job, but the newest
    # is what must be saved. The loop is for a click that comes while the row is written; its dispatch was a no-op.
    saved = None
    while (edit := edits[payload["profile"]]) is not saved:
        await database.save_profile(edit.profile, revision=edit.revision, asked_by=payload["revision"])
        saved = edit


@app.post("/hooks/invoices", status_code=202)
async def invoice_hook(event: InvoiceEvent) -> dict[str, Any]:
    return answer(await send_invoice.dispatch(event.data, job_id=f"invoice:{event.data.invoice}"))


@app.post("/forms/profile", status_code=202)
async def profile_form(post: ProfilePost) -> dict[str, Any]:
    ledger.write("clicked", profile=post.profile, revision=post.revision)
    known = edits.get(post.profile)
    if known is None or post.revision > known.revision:  # clicks may overtake each other on the way
        edits[post.profile] = post
    payload = {"profile": post.profile, "revision": post.revision}
    return answer(await save_profile.dispatch(payload, job_id=f"profile:{post.profile}", delay="3s"))


@app.post("/forms/{form}", status_code=202)
async def other_form(
    form: Literal["contact", "newsletter"], post: FormPost, x_delivery_id: Annotated[str, Header()]
) -> dict[str, Any]:
    payload = {"id": x_delivery_id, "email": post.email, "message": post.message}
    return answer(await deliver_form.dispatch(payload, job_id=f"{form}:{x_delivery_id}"))


@app.get("/status")
async def status() -> dict[str, Any]:
    names = ("invoices", "forms")
    # The queue counts the finished jobs that it keeps; a profile saved again has one record, but was completed twice.
    queues = {name: engine.queue(name).counts() | {"completed": completed[name]} for name in names}
    return {"queues": queues, "retries": retries.total()}


def answer(receipt: DispatchedJob[Any]) -> dict[str, Any]:
    """What the sender gets to see: which job does the work, and whether this delivery made it."""
    return {"job": receipt.id, "duplicate": receipt.duplicate, "state": receipt.state}
