"""
What a test suite of a program with jobs can look like. It covers weeks and runs in a moment.

Run it:  pytest examples/testing -o asyncio_mode=auto
"""

from datetime import UTC, datetime

import httpx2
import pytest
import shop

from inproc_jobs import JobFailedError, UnrecoverableError
from inproc_jobs.testing import Harness, exactly

PAYMENT = {"order_id": "42", "email": "ada@example.org", "amount": 12_900}


async def pay(client: httpx2.AsyncClient, **changes: object) -> dict[str, object]:
    response = await client.post("/webhooks/payments", json={**PAYMENT, **changes})
    assert response.status_code == 202
    answer: dict[str, object] = response.json()
    return answer


# --- what is dispatched -------------------------------------------------------------------------------------------


async def test_a_payment_asks_for_a_receipt(client: httpx2.AsyncClient, jobs: Harness) -> None:
    await pay(client)
    jobs.assert_dispatched(shop.send_receipt, {"order_id": "42"}, job_id="receipt:42", queue="mail")
    assert shop.mail.sent == []  # nothing has run yet


async def test_a_webhook_that_comes_twice_is_one_job(client: httpx2.AsyncClient, jobs: Harness) -> None:
    assert (await pay(client))["duplicate"] is False
    assert (await pay(client))["duplicate"] is True
    jobs.assert_dispatched(shop.send_receipt, times=1)
    await jobs.run_until_idle()
    assert shop.mail.sent.count(("ada@example.org", "receipt for order 42")) == 1


async def test_two_orders_are_two_jobs(client: httpx2.AsyncClient, jobs: Harness) -> None:
    await pay(client)
    await pay(client, order_id="43")
    jobs.assert_dispatched(shop.send_receipt, times=2)
    jobs.assert_dispatched(shop.send_receipt, lambda payload: payload["order_id"] == "43")


async def test_a_payment_that_is_no_payment_dispatches_nothing(client: httpx2.AsyncClient, jobs: Harness) -> None:
    assert (await client.post("/webhooks/payments", json={"order_id": "42"})).status_code == 422
    jobs.refute_dispatched()


async def test_a_receipt_is_followed_by_a_question(client: httpx2.AsyncClient, jobs: Harness) -> None:
    await pay(client)
    await jobs.run_next("mail")
    asked = jobs.assert_dispatched(
        shop.ask_for_review, exactly({"order_id": "42", "email": "ada@example.org"}), delay="3d"
    )
    assert asked.due_at.day == 8
    await jobs.advance("3d")
    assert [subject for _, subject in shop.mail.sent] == ["receipt for order 42", "how did you like order 42?"]


# --- debounce -----------------------------------------------------------------------------------------------------


async def test_many_changes_make_one_reindex_with_the_last_name(client: httpx2.AsyncClient, jobs: Harness) -> None:
    for name in ("A", "AB", "ABC"):
        await client.post("/webhooks/products/chair", params={"name": name})
        await jobs.advance("20s")
    assert shop.reindexed == []  # each change has started the half minute anew
    await jobs.advance("10s")
    assert shop.reindexed == ["chair ABC"]


async def test_products_do_not_wait_for_each_other(client: httpx2.AsyncClient, jobs: Harness) -> None:
    await client.post("/webhooks/products/chair", params={"name": "A"})
    await client.post("/webhooks/products/table", params={"name": "B"})
    summary = await jobs.run_until_idle()
    assert summary.completed == 2


# --- when things go wrong -----------------------------------------------------------------------------------------


async def test_a_mail_server_that_is_away_for_a_day(client: httpx2.AsyncClient, jobs: Harness) -> None:
    jobs.fail_next(shop.send_receipt, ConnectionError("mail server away"), times=4)
    await pay(client)
    await jobs.advance("14h")
    assert (await client.get("/receipts/42")).json() == {"state": "delayed", "attempts": 4}
    await jobs.advance("1h")  # 1 + 2 + 4 + 8 hours
    assert (await client.get("/receipts/42")).json() == {"state": "completed", "attempts": 5}


async def test_a_mail_server_that_never_comes_back(client: httpx2.AsyncClient, jobs: Harness) -> None:
    jobs.fail_when(shop.send_receipt, lambda payment: payment.order_id == "42", ConnectionError("mail server away"))
    await pay(client)
    await pay(client, order_id="43")
    summary = await jobs.run_until_idle(queue="mail")
    assert (summary.failed, summary.retried) == (1, 5)
    [failed] = await jobs.engine.failed_jobs("mail")
    assert (failed.id, failed.failed_reason) == ("receipt:42", "mail server away")
    jobs.clear_faults()
    await failed.retry()  # what an operator would do
    await jobs.run_until_idle()
    assert (await client.get("/receipts/42")).json()["state"] == "completed"


async def test_an_address_that_is_none_is_not_tried_again(client: httpx2.AsyncClient, jobs: Harness) -> None:
    await pay(client, email="ada")
    with pytest.raises(UnrecoverableError, match="'ada' is no address"):
        await jobs.run_until_idle(raise_on_failure=True)
    assert (await client.get("/receipts/42")).json() == {"state": "failed", "attempts": 1}


async def test_a_mail_server_that_hangs(client: httpx2.AsyncClient, jobs: Harness) -> None:
    jobs.hang_next(shop.send_receipt)
    await pay(client)
    await jobs.advance("30s")
    assert (await client.get("/receipts/42")).json() == {"state": "delayed", "attempts": 1}
    await jobs.advance("1h")
    assert (await client.get("/receipts/42")).json()["state"] == "completed"


async def test_a_crash_loses_what_no_snapshot_keeps(client: httpx2.AsyncClient, jobs: Harness) -> None:
    jobs.hang_next(shop.send_receipt)
    await pay(client)
    await jobs.advance("10s")  # in the middle of the run
    await jobs.crash()
    assert (await client.get("/receipts/42")).status_code == 404
    assert (await pay(client))["duplicate"] is False  # so the sender's next delivery does the work
    await jobs.run_until_idle(queue="mail")
    assert ("ada@example.org", "receipt for order 42") in shop.mail.sent


# --- schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.jobs(start=datetime(2026, 3, 27, 12, tzinfo=UTC))
async def test_daily_reports_when_the_clocks_go_forward(jobs: Harness) -> None:
    await shop.plan_reports(jobs.engine)
    await jobs.advance("3d")
    assert shop.reports == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",  # 02:30 does not exist on that day: 03:00 in Berlin
        "2026-03-30T00:30:00+00:00",
    ]


@pytest.mark.jobs(start=datetime(2026, 10, 24, 12, tzinfo=UTC))
async def test_daily_reports_when_the_clocks_go_back(jobs: Harness) -> None:
    await shop.plan_reports(jobs.engine)
    await jobs.advance("2d")
    assert shop.reports == [
        "2026-10-25T00:30:00+00:00",  # 02:30 comes twice on that day, the report once
        "2026-10-26T01:30:00+00:00",
    ]


# --- other ways ---------------------------------------------------------------------------------------------------


@pytest.mark.jobs(mode="inline")
async def test_inline_for_tests_that_only_care_about_the_outcome(client: httpx2.AsyncClient) -> None:
    await pay(client)
    assert shop.mail.sent == [("ada@example.org", "receipt for order 42")]


def test_a_plain_function(jobs: Harness) -> None:
    receipt = shop.reindex.dispatch_sync({"product": "chair", "name": "A"}, delay="1d")
    assert receipt.result_sync() is None
    assert shop.reindexed == ["chair A"]


async def test_a_handler_without_an_engine() -> None:
    payment = shop.Payment(order_id="42", email="ada", amount=1)
    with pytest.raises(UnrecoverableError):
        await shop.send_receipt(payment)


async def test_a_result(jobs: Harness) -> None:
    payment = shop.Payment(order_id="7", email="ada@example.org", amount=1)
    assert await (await shop.send_receipt.dispatch(payment)).result() == "receipt for 7"
    broken = await shop.send_receipt.dispatch(payment.model_copy(update={"email": "ada"}))
    with pytest.raises(JobFailedError, match="'ada' is no address"):
        await broken.result()


async def test_what_happened_in_order(client: httpx2.AsyncClient, jobs: Harness) -> None:
    jobs.fail_next(shop.send_receipt, ConnectionError("away"))
    await pay(client)
    await jobs.advance("1h")
    mine = [(entry.elapsed_ms, entry.event) for entry in jobs.timeline() if entry.job_id == "receipt:42"]
    assert mine == [
        (0, "added"),
        (0, "waiting"),
        (0, "active"),
        (0, "delayed"),
        (3_600_000, "waiting"),
        (3_600_000, "active"),
        (3_600_000, "completed"),
    ]
