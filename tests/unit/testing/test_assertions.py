"""Assertions on what was dispatched: case C117 (i)."""

from dataclasses import dataclass
from datetime import timedelta
from unittest import mock

import pytest

from inproc_jobs import Deduplication
from inproc_jobs.errors import InvalidOptionError
from inproc_jobs.testing import ANY, exactly


@pytest.fixture
def send(define):
    @define("invoices.send", queue="mail", attempts=5)
    async def send(payload):
        return None

    return send


ORDER = {"id": 7, "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}], "paid": True}


@pytest.mark.parametrize(
    "wanted",
    [
        ORDER,
        {"id": 7},
        {},
        {"lines": [{"sku": "a"}, {"count": 2}]},
        {"lines": [ANY, {"sku": lambda sku: sku > "a"}]},
        {"id": mock.ANY},
        {"id": pytest.approx(7.1, abs=0.2)},
        lambda payload: payload["id"] == 7,
        exactly(ORDER),
        ANY,
        mock.ANY,
    ],
)
async def test_payloads_that_match(wanted, kit, send):
    """Equality, a part at any depth, predicates, and matcher objects of other libraries; the match is returned."""
    await send.dispatch(ORDER)
    assert kit.assert_dispatched(send, wanted).payload == ORDER
    assert kit.assert_dispatched("invoices.send", payload=wanted).name == "invoices.send"
    with pytest.raises(AssertionError):
        kit.refute_dispatched(send, wanted)


@pytest.mark.parametrize(
    ("wanted", "miss"),
    [
        ({"id": 8}, "payload.id is 7"),
        ({"ID": 7}, "payload has no 'ID'"),
        ({"paid": 1}, "payload.paid is True"),
        ({"id": True}, "payload.id is 7"),
        ({"lines": []}, "payload.lines has 2 items"),
        ({"lines": [ANY, {"count": 3}]}, r"payload.lines\[1\].count is 2"),
        ({"lines": {"sku": "a"}}, r"payload.lines is \["),
        (exactly({"id": 7}), r"payload is \{"),
        (lambda payload: False, r"payload is \{"),
        ("text", r"payload is \{"),
        (None, r"payload is \{"),
    ],
)
async def test_payloads_that_do_not_match(wanted, miss, kit, send):
    """The message says where they differ."""
    await send.dispatch(ORDER)
    kit.refute_dispatched(send, wanted)
    with pytest.raises(AssertionError, match=miss):
        kit.assert_dispatched(send, wanted)


async def test_an_object_of_the_payload_type_is_compared_by_its_json(kit, define):
    """As it would arrive; a matcher object of another library stays what it is."""

    @dataclass
    class Invoice:
        id: int
        note: str = ""

    @define("typed")
    async def typed(payload: Invoice):
        return None

    await typed.dispatch(Invoice(7))
    kit.assert_dispatched(typed, Invoice(7))
    kit.refute_dispatched(typed, Invoice(8))
    kit.assert_dispatched(typed, mock.ANY)


@pytest.mark.parametrize(
    ("dispatch", "wanted", "miss"),
    [
        ({"job_id": "invoice:7"}, {"job_id": "invoice:7"}, {"job_id": "invoice:8"}),
        ({"job_id": "invoice:7"}, {"job_id": lambda given: given.startswith("invoice:")}, {"job_id": None}),
        ({}, {"job_id": None}, {"job_id": "1"}),
        ({"delay": "30s"}, {"delay": "30s"}, {"delay": "31s"}),
        ({"delay": "30s"}, {"delay": timedelta(seconds=30)}, {"delay": 0}),
        ({"delay": "30s"}, {"delay": 29_000, "within": "1s"}, {"delay": 29_000, "within": "999ms"}),
        ({"delay": "30s"}, {"delay": lambda ms: 0 < ms < 60_000}, {"delay": lambda ms: ms > 60_000}),
        ({"delay": "30s"}, {"delay": pytest.approx(30_000)}, {"delay": pytest.approx(31_000)}),
        ({}, {"delay": 0}, {"delay": 1}),
        ({"priority": 3}, {"priority": 3}, {"priority": 0}),
        ({"attempts": 2}, {"attempts": 2, "queue": "mail"}, {"attempts": 5}),
        ({}, {"attempts": 5}, {"queue": "default"}),
        ({"deduplication": Deduplication.until_done("k")}, {"deduplication": "k"}, {"deduplication": None}),
        ({"lifo": True}, {"where": lambda one: one.lifo}, {"where": lambda one: not one.lifo}),
    ],
)
async def test_options(dispatch, wanted, miss, kit, send):
    """Compared, asked or matched; times with a tolerance that can be set."""
    await send.dispatch(1, **dispatch)
    kit.assert_dispatched(send, **wanted)
    kit.refute_dispatched(send, **miss)


async def test_moments(kit, send):
    """`run_at` is when the job may run at the earliest, whether it was asked for by a moment or by a delay."""
    noon = kit.clock.now() + timedelta(hours=3)
    await send.dispatch(1, run_at=noon)
    await send.dispatch(2, delay="3h")
    kit.assert_dispatched(send, 1, run_at=noon, delay="3h")
    kit.assert_dispatched(send, run_at=noon + timedelta(seconds=5), within="5s", times=2)
    kit.assert_dispatched(send, run_at=lambda due: due.hour == 12, times=2)
    kit.refute_dispatched(send, run_at=noon + timedelta(seconds=5), within="4s")
    with pytest.raises(InvalidOptionError, match="run_at must be an aware datetime"):
        kit.assert_dispatched(send, run_at=noon.replace(tzinfo=None))


async def test_exactly_one_is_the_default(kit, send):
    """Two matches are an error unless two were asked for; None asks for one at least."""
    await send.dispatch(1)
    await send.dispatch(2)
    with pytest.raises(AssertionError, match=r"expected 1 dispatch\(es\) of invoices.send matching anything, found 2"):
        kit.assert_dispatched(send)
    assert kit.assert_dispatched(send, times=2).payload == 2
    kit.assert_dispatched(send, times=None)
    with pytest.raises(AssertionError, match="expected at least one"):
        kit.assert_dispatched(send, 3, times=None)
    for wrong in (0, -1, True, "2"):
        with pytest.raises(InvalidOptionError, match="for never use refute_dispatched"):
            kit.assert_dispatched(send, times=wrong)


async def test_the_message_lists_what_was_dispatched_nearest_first(kit, send, define):
    """With the reasons, so that the mistake is found without a debugger."""

    @define("other")
    async def other(payload):
        return None

    await other.dispatch({"id": 1})
    await send.dispatch({"id": 7}, job_id="invoice:7", delay="1m")
    with pytest.raises(AssertionError) as caught:
        kit.assert_dispatched(send, {"id": 7}, delay="30s")
    assert str(caught.value).splitlines() == [
        "expected 1 dispatch(es) of invoices.send matching payload={'id': 7}, delay_ms=30000, found 0",
        "  - invoices.send in 'mail', payload={'id': 7}, job_id='invoice:7', delay=60000 ms",
        "      delay is 60000 ms",
        "  - other in 'default', payload={'id': 1}",
        "      job is 'other'",
        "      payload.id is 1",
        "      delay is 0 ms",
    ]


async def test_the_message_stays_short(kit, send):
    """Ten near misses are enough; and nothing at all is said so."""
    with pytest.raises(AssertionError, match="nothing was dispatched"):
        kit.assert_dispatched(send)
    for number in range(15):
        await send.dispatch(number)
    with pytest.raises(AssertionError, match=r"\.\.\. and 5 more"):
        kit.assert_dispatched(send, "x")


async def test_duplicates_are_told_apart(kit, send):
    """A dispatch that made no job counts only where it is asked for, and shows the payload that was ignored."""
    await send.dispatch("first", job_id="x")
    await send.dispatch("second", job_id="x")
    assert kit.assert_dispatched(send).payload == "first"
    assert kit.assert_dispatched(send, duplicate=True).payload == "second"
    kit.assert_dispatched(send, duplicate=None, times=2)
    assert [one.duplicate for one in kit.dispatched(send)] == [False, True]
    with pytest.raises(AssertionError, match="it was a duplicate"):
        kit.assert_dispatched(send, "second")


async def test_marks_and_clearing(kit, send):
    """Counting from here on: by a mark, which outlives a clear, or by forgetting what was."""
    await send.dispatch(1)
    mark = kit.mark()
    kit.refute_dispatched(send, since=mark)
    await send.dispatch(2)
    assert kit.assert_dispatched(send, since=mark).payload == 2
    kit.clear()
    assert (kit.dispatched(), kit.timeline()) == ([], [])
    await send.dispatch(3)
    assert kit.assert_dispatched(send).payload == 3
    assert [one.payload for one in kit.dispatched(send, since=mark)] == [3]
    assert kit.dispatched(send, since=kit.mark()) == []


async def test_what_was_dispatched_is_a_copy(kit, send):
    """Changing what an assertion returns changes nothing."""
    payload = {"list": [1]}
    await send.dispatch(payload)
    payload["list"].append(2)
    kit.assert_dispatched(send).payload["list"].append(3)
    kit.dispatched().clear()
    assert kit.assert_dispatched(send).payload == {"list": [1]}


async def test_jobs_that_have_run_stay_visible(kit, send):
    """Assertions look at dispatches, not at what is left in the queue; bulks and flows count as well."""
    await send.dispatch_many([(1, None), (2, {"delay": "1s"})])
    await kit.engine.flow(send.node(3, children=[send.node(4, priority=2)]))
    await kit.run_until_idle()
    assert [(one.payload, one.delay_ms, one.priority) for one in kit.dispatched()] == [
        (1, 0, 0),
        (2, 1000, 0),
        (3, 0, 0),
        (4, 0, 2),
    ]


async def test_leftovers(kit, send):
    """Whatever has not ended, with its moment; schedules are meant to go on. Failures count on request."""
    await kit.engine.schedule("daily", send, "tick", cron="0 3 * * *")
    kit.assert_no_leftovers()
    await send.dispatch(1, job_id="a")
    await send.dispatch(2, job_id="b", delay="1h")
    with pytest.raises(AssertionError) as caught:
        kit.assert_no_leftovers()
    assert str(caught.value).splitlines() == [
        "jobs were left over:",
        "  invoices.send 'a' in 'mail': waiting",
        "  invoices.send 'b' in 'mail': delayed, due at 2026-01-05T10:00:00+00:00",
    ]
    kit.fail_next(send, ValueError("boom"), times=5)
    await kit.run_until_idle()
    kit.assert_no_leftovers()
    with pytest.raises(AssertionError, match=r"invoices.send 'a' in 'mail': failed, boom"):
        kit.assert_no_leftovers(failed=True)
