"""
Where the core differs from BullMQ on purpose: what BullMQ does there is an accident (`docs/differences-from-bullmq.md`).

The steps are those of `tests/conformance/data`, so that each test can be tried on the real thing as well.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.run import Run

NOW = 1_700_000_000_123
ITERATION = f"repeat:s:{NOW}"
IMMEDIATELY = {"op": "upsertJobScheduler", "id": "s", "repeat": {"pattern": "* * * * * *", "immediately": True}}
NEXT = {"op": "next"}


def add(id: str, data: Any = None, **opts: Any) -> dict[str, Any]:
    return {"op": "add", "data": data or {}, "opts": {"jobId": id, **opts}}


def listed(*states: str) -> dict[str, Any]:
    return {"op": "list", "types": states, "asc": True}


def results(*steps: dict[str, Any]) -> list[Any]:
    """What each step answers; the containers are consistent afterwards."""
    run = Run({"name": "", "area": "", "steps": steps})
    found: list[Any] = run.trace()["results"]
    run.core.check()
    return found


# --- schedulers -------------------------------------------------------------------------------------------------------


def test_drain_spares_an_iteration_between_others() -> None:
    """It still waits and runs; BullMQ trims the list by count: the iteration is lost, and a removed id stays."""
    every_second = {"op": "upsertJobScheduler", "id": "s", "repeat": {"every": 1000}}
    *_, waiting, fetched, nothing = results(
        add("before"), every_second, add("after"), {"op": "drain"}, listed("waiting"), NEXT, NEXT
    )
    assert waiting == [ITERATION]
    assert fetched["id"] == ITERATION
    assert nothing is None


def test_a_pattern_is_not_written_over_a_running_iteration() -> None:
    """Refused with -10, and the pending one stays; BullMQ lists the running job a second time, as waiting."""
    _, running, refusal, active, pending = results(
        IMMEDIATELY, NEXT, IMMEDIATELY, listed("active"), listed("waiting", "delayed")
    )
    assert refusal["error"]["code"] == -10
    assert active == [running["id"]] == [ITERATION]
    assert pending == ["repeat:s:1700000001000"]


def test_a_pattern_replaces_a_finished_iteration_of_the_same_moment() -> None:
    """The record is made anew and listed once; BullMQ writes over it and leaves it in the completed ones."""
    *_, completed, waiting = results(
        IMMEDIATELY,
        NEXT,
        {"op": "complete", "id": ITERATION},
        IMMEDIATELY,
        listed("completed"),
        listed("waiting", "delayed"),
    )
    assert completed == []
    assert waiting == [ITERATION]


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_parent_released_into_delayed_goes_behind_those_of_its_millisecond() -> None:
    """First in, first out; BullMQ gives it the first place of its millisecond, and ids decide among equals."""
    family = {
        "name": "p",
        "queueName": "main",
        "opts": {"jobId": "p", "delay": 1000},
        "children": [{"name": "c", "queueName": "main", "opts": {"jobId": "c"}}],
    }
    *_, delayed = results(
        {"op": "flow", "tree": family},
        add("x", delay=1000),
        add("y", delay=1000),
        NEXT,
        {"op": "complete", "id": "c"},
        listed("delayed"),
    )
    assert delayed == ["x", "y", "p"]


def test_fractions_of_a_millisecond_do_not_decide() -> None:
    """
    Jobs of one millisecond stay together in the order of adding. BullMQ spreads the places of a millisecond over the
    next one too: "third" would start after "next ms", which is due later.
    """
    *_, delayed = results(
        add("first", delay=100.7),
        add("next ms", delay=101),
        add("third", delay=100.2),
        listed("delayed"),
    )
    assert delayed == ["first", "third", "next ms"]


# --- flows ------------------------------------------------------------------------------------------------------------


def test_a_ring_of_parents_is_removed_job_by_job() -> None:
    """Each is visited once; BullMQ's script calls itself until it dies, and nothing is removed."""
    *_, removed, left = results(
        add("a"),
        add("b", parent={"id": "a", "queue": "main"}),
        add("a", parent={"id": "b", "queue": "main"}),
        {"op": "remove", "id": "a"},
        listed("waiting", "waiting-children"),
    )
    assert removed == 1
    assert left == []


# --- values on which BullMQ hangs or dies -----------------------------------------------------------------------------


def test_batches_of_nothing_end() -> None:
    """A count of 0 is no bound: all jobs are promoted, retried and removed; BullMQ goes round for ever."""
    *_, promoted, _, _, _, retried, _, left = results(
        add("a", delay=1000),
        {"op": "promoteJobs", "count": 0},
        listed("waiting"),
        NEXT,
        {"op": "fail", "id": "a", "message": "no"},
        {"op": "retryJobs", "count": 0},
        listed("waiting"),
        {"op": "obliterate", "count": 0},
        listed("waiting"),
    )
    assert promoted == ["a"]
    assert retried == ["a"]
    assert left == []


def test_a_rate_limit_of_nothing_holds_up_nobody() -> None:
    """0 ms are over at once; Redis refuses such a lifetime, so that BullMQ raises."""
    _, answer, _, fetched = results(
        {"op": "setGlobalRateLimit", "max": 1, "duration": 1000}, {"op": "rateLimit", "ms": 0}, add("a"), NEXT
    )
    assert answer is None
    assert fetched["id"] == "a"


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        pytest.param({"count": "x"}, ["a"], id="no bound"),
        pytest.param({"age": "x"}, [], id="no age"),
        pytest.param({"count": 0.5}, [], id="a whole number"),
    ],
)
def test_a_strange_retention_is_read_laxly(keep: dict[str, Any], left: list[str]) -> None:
    """The job completes all the same; BullMQ's script dies half way through the completion."""
    *_, answer, completed = results(
        add("a", removeOnComplete=keep), NEXT, {"op": "complete", "id": "a"}, listed("completed")
    )
    assert answer is None
    assert completed == left


def test_a_strange_lifetime_of_a_deduplication_is_none() -> None:
    """The key lives until its job has ended, as without a lifetime; BullMQ's script dies, and nothing is added."""
    strange = {"deduplication": {"id": "k", "ttl": "x"}}
    *_, duplicate, waiting = results(add("a", **strange), add("b", **strange), listed("waiting"))
    assert duplicate == "a"
    assert waiting == ["a"]
