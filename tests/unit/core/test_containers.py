"""The ordered containers, each beside a naive model that is plainly right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.core.containers import ActiveSet, DelaySet, FinishedSet, Lane, ScoredSet, page
from inproc_jobs.core.job import Job
from inproc_jobs.core.options import DEFAULT_OPTIONS

STEPS = st.lists(st.tuples(st.sampled_from(["back", "front", "leave", "head"]), st.integers(0, 400)), max_size=400)


def job(id: str, order: int = 0, finished_on: int | None = None) -> Job:
    return Job(id, "n", b"{}", DEFAULT_OPTIONS, 0, order=order, finished_on=finished_on)


def both_ways(container: Any) -> list[Job]:
    """What is inside, after making sure that length and both directions agree."""
    inside = list(container)
    assert len(container) == len(inside)
    assert list(reversed(container)) == inside[::-1]
    return inside


@given(STEPS)
def test_lane_is_a_list(steps: list[tuple[str, int]]) -> None:
    """Whatever leaves from wherever and comes back, the order is that of a plain list."""
    lane, model = Lane(), []
    left: list[Job] = []
    for number, (what, pick) in enumerate(steps):
        if what == "leave":
            if model:
                gone = model.pop(pick % len(model))
                lane.discard(gone)
                left.append(gone)
        elif what == "head":
            assert lane.head() is (model[0] if model else None)
        else:
            # Every third comer is one that was here before: its old place may still be marked.
            one = left.pop(pick % len(left)) if left and pick % 3 == 0 else job(str(number))
            lane.add(one, what == "front")
            model.insert(0 if what == "front" else len(model), one)
        assert both_ways(lane) == model


def test_lane_sweeps_marked_places() -> None:
    """Marks do not pile up: a lane of which most has left from the middle holds no more places than twice its jobs."""
    lane = Lane()
    jobs = [job(str(number)) for number in range(1000)]
    for one in jobs:
        lane.add(one)
    for one in jobs[1:-1]:
        lane.discard(one)
    assert list(lane) == [jobs[0], jobs[-1]]
    assert len(lane._jobs) <= 130


def test_active_set_keeps_the_order_of_starts() -> None:
    """The job that was started first comes first, whoever leaves in between."""
    active = ActiveSet()
    jobs = [job(str(number)) for number in range(5)]
    for one in jobs:
        active.add(one)
    active.discard(jobs[2])
    assert both_ways(active) == [jobs[0], jobs[1], jobs[3], jobs[4]]


@given(st.lists(st.integers(-5, 5), max_size=60), st.data())
def test_delay_set_is_sorted_by_order(orders: list[int], data: st.DataObject) -> None:
    """Order keys are unique, and the lowest is the head, after any removals."""
    delayed, model = DelaySet(), []
    for number, order in enumerate(orders):
        one = job(str(number), order=(order << 40) | number)
        delayed.add(one)
        model.append(one)
    while model:
        model.sort(key=lambda one: one.order)
        assert both_ways(delayed) == model
        assert delayed.head() is model[0]
        bound = data.draw(st.integers(-6 << 40, 6 << 40))
        assert delayed.count_before(bound) == sum(one.order < bound for one in model)
        delayed.discard(model.pop(data.draw(st.integers(0, len(model) - 1))))
    assert delayed.head() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), unique_by=lambda pair: pair[1], max_size=40))
def test_scored_set_breaks_ties_by_bytes(pairs: list[tuple[int, str]]) -> None:
    """Among equal orders the bytes of the ids decide, as in a Redis sorted set."""
    scored = ScoredSet()
    jobs = [job(id, order=order) for order, id in pairs]
    for one in jobs:
        scored.add(one)
    expected = sorted(jobs, key=lambda one: (one.order, one.id.encode("utf-8", "surrogatepass")))
    assert both_ways(scored) == expected
    assert scored.count_between(1, 3) == sum(1 <= one.order < 3 for one in jobs)
    assert scored.head() is (expected[0] if expected else None)


@given(
    st.lists(st.tuples(st.sampled_from(["add", "oldest", "any", "look"]), st.integers(0, 99), st.integers(0, 5))),
)
def test_finished_set_is_sorted_by_end(steps: list[tuple[str, int, int]]) -> None:
    """Looking, and leaving by the front or from the middle, in any order, keep it sorted by (finished_on, id)."""
    finished, model = FinishedSet(), []
    for number, (what, pick, end) in enumerate(steps):
        if what == "add":
            one = job(f"{pick}-{number}", finished_on=end)
            finished.add(one)
            model.append(one)
        elif what == "look":
            assert both_ways(finished) == sorted(model, key=lambda one: (one.finished_on, one.id))
        elif model:
            gone = model.pop(0 if what == "oldest" else pick % len(model))
            finished.discard(gone)
        assert len(finished) == len(model)
    assert both_ways(finished) == sorted(model, key=lambda one: (one.finished_on, one.id))


def test_a_look_at_the_history_is_not_paid_for_ever() -> None:
    """What a reader had merged into the sorted part drains again, so that later finishes are O(1) as before."""
    finished = FinishedSet()
    jobs = [job(str(number), finished_on=number) for number in range(20)]
    for one in jobs[:10]:
        finished.add(one)
    assert len(list(finished)) == 10
    for old, new in zip(jobs[:10], jobs[10:], strict=True):
        finished.add(new)
        finished.discard(old)
    assert not finished._sorted
    assert both_ways(finished) == jobs[10:]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, -1, [1, 2, 3, 4]), (1, 2, [2, 3]), (-2, -1, [3, 4]), (-9, 0, [1]), (2, 1, []), (4, 9, []), (0, -9, [])],
)
def test_page_is_a_redis_range(start: int, end: int, expected: list[int]) -> None:
    """Both bounds are included, negative ones count from the end, and what is outside is just not there."""
    assert list(page([1, 2, 3, 4], start, end)) == expected
