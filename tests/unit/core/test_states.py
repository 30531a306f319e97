"""The table of transitions, and the one place that applies it."""

from __future__ import annotations

import itertools

import pytest

from inproc_jobs.core.base import CoreBase, IllegalTransitionError
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job
from inproc_jobs.core.options import DEFAULT_OPTIONS
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import ALIVE_STATES, FINISHED_STATES, STATES, TRANSITIONS, JobState, Trigger

ILLEGAL = [
    (trigger, before, after)
    for trigger, before, after in itertools.product(Trigger, JobState, STATES)
    if after not in TRANSITIONS[trigger].get(before, ())
]


def placed(core: CoreBase, state: JobState) -> tuple[Queue, Job]:
    """A queue with one job in a state, put there past all rules."""
    queue = core.queue("q")
    one = Job("j", "n", b"{}", DEFAULT_OPTIONS, 0, order=7, finished_on=5)
    if state is not JobState.REMOVED:
        queue.index["j"] = one
        one.state = state
        queue.containers[state].add(one)
    return queue, one


@pytest.mark.parametrize("trigger", Trigger)
@pytest.mark.parametrize("halves", [False, True], ids=["move", "leave"])
def test_illegal_triggers_change_nothing(trigger: Trigger, halves: bool) -> None:
    """What the table does not have raises, names both states, and leaves the job in its place."""
    for _, before, after in (row for row in ILLEGAL if row[0] is trigger):
        core = Core()
        queue, one = placed(core, before)
        act = core._leave if halves else core._move
        with pytest.raises(IllegalTransitionError, match=f"from {before} nowhere near {after}"):
            act(queue, one, trigger, after)
        assert one.state is before
        assert one.order == 7
        assert one.finished_on == 5
        assert [len(home) for home in queue.containers.values()].count(1) == (before is not JobState.REMOVED)
        core.check()


@pytest.mark.parametrize(
    ("trigger", "before", "after"),
    [
        (trigger, before, after)
        for trigger, rows in TRANSITIONS.items()
        for before, targets in rows.items()
        for after in targets
        if after is not JobState.REMOVED
    ],
)
def test_legal_triggers_move(trigger: Trigger, before: JobState, after: JobState) -> None:
    """Every row of the table leads where it says, and into that container only."""
    core = Core()
    queue, one = placed(core, before)
    core._move(queue, one, trigger, after)
    assert one.state is after
    assert {state for state, home in queue.containers.items() if len(home)} == {after}


def test_the_table_is_complete() -> None:
    """Every trigger has rows, every state can be reached and left, and the sets of states agree with it."""
    assert set(TRANSITIONS) == set(Trigger)
    reached = {after for rows in TRANSITIONS.values() for targets in rows.values() for after in targets}
    left = {before for rows in TRANSITIONS.values() for before in rows}
    assert reached == left == set(JobState)
    assert ALIVE_STATES | FINISHED_STATES | {JobState.REMOVED} == set(JobState)
    assert not ALIVE_STATES & FINISHED_STATES


def test_the_words_are_bullmqs() -> None:
    """States print as BullMQ's words, since they are stored and shown as such."""
    assert {str(state) for state in STATES} == {
        "waiting", "prioritized", "delayed", "active", "waiting-children", "completed", "failed",
    }  # fmt: skip
