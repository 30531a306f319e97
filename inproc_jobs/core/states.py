"""
The states of a job and the one table of legal transitions.

Rule: nothing about which state may follow which is written anywhere else. `Core` applies the table in one place
(`CoreBase._move`), the docs draw their diagram from it, and a trigger that the table does not allow raises and
changes nothing. The rows follow BullMQ 6.7 (spec section 1.2); a trigger is the reason of a transition, so two
roads into one state stay distinguishable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = [
    "ACTIVE",
    "ALIVE_STATES",
    "COMPLETED",
    "DELAYED",
    "FAILED",
    "FINISHED_STATES",
    "ON_ADD",
    "ON_COMPLETE",
    "ON_DUE",
    "ON_FAIL",
    "ON_FETCH",
    "ON_PUT_BACK",
    "ON_RETRY",
    "PRIORITIZED",
    "REMOVED",
    "STATES",
    "TRANSITIONS",
    "WAITING",
    "WAITING_CHILDREN",
    "JobState",
    "Trigger",
]


class JobState(StrEnum):
    """Where a job is. The text is BullMQ's word."""

    # Members are dict keys on every transition; Enum's own hash is a Python call per lookup.
    __hash__ = str.__hash__

    WAITING = "waiting"
    """Ready, priority 0. In by add, promotion, retry or release; out by a fetch (first in, first out)."""
    PRIORITIZED = "prioritized"
    """Ready, priority above 0. Fetched after every waiting job, lowest number first."""
    DELAYED = "delayed"
    """Not before its due time. A fetch at or after that time promotes it."""
    ACTIVE = "active"
    """A handler runs it. Out by success, failure, or being put back."""
    WAITING_CHILDREN = "waiting-children"
    """A flow parent whose children are pending. Out when the last one is done."""
    COMPLETED = "completed"
    """The handler returned. Goes by retention or removal; may be retried."""
    FAILED = "failed"
    """The last attempt failed. Goes by retention or removal; may be retried."""
    REMOVED = "removed"
    """Not in the queue any more; only a receipt or a view still holds the record."""


class Trigger(StrEnum):
    """Why a job changes its state."""

    __hash__ = str.__hash__  # as in JobState

    ADD = "add"
    DUE = "due"
    PROMOTE = "promote"
    RESCHEDULE = "reschedule"
    PRIORITY = "change priority"
    FETCH = "fetch"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry after failure"
    PUT_BACK = "put back"
    STALL = "stall"
    WAIT_FOR_CHILDREN = "wait for children"
    CHILDREN_DONE = "children done"
    REPROCESS = "reprocess"
    REMOVE = "remove"
    RESTORE = "restore"


# On Python 3.11 reading a member off its class (`JobState.ACTIVE`) costs 150 ns, a global 8: as much as all the rest of
# a transition. What runs for every job uses these names instead.
WAITING: Final = JobState.WAITING
PRIORITIZED: Final = JobState.PRIORITIZED
DELAYED: Final = JobState.DELAYED
ACTIVE: Final = JobState.ACTIVE
WAITING_CHILDREN: Final = JobState.WAITING_CHILDREN
COMPLETED: Final = JobState.COMPLETED
FAILED: Final = JobState.FAILED
REMOVED: Final = JobState.REMOVED
ON_ADD: Final = Trigger.ADD
ON_DUE: Final = Trigger.DUE
ON_FETCH: Final = Trigger.FETCH
ON_COMPLETE: Final = Trigger.COMPLETE
ON_FAIL: Final = Trigger.FAIL
ON_RETRY: Final = Trigger.RETRY
ON_PUT_BACK: Final = Trigger.PUT_BACK

_W, _P, _D, _A = WAITING, PRIORITIZED, DELAYED, ACTIVE
_K, _C, _F, _R = WAITING_CHILDREN, COMPLETED, FAILED, REMOVED
_READY: Final = frozenset((_W, _P))
_PLACED: Final = frozenset((_W, _P, _D))

STATES: Final = (_A, _C, _D, _F, _P, _W, _K)
"""The seven states a stored job can have, in the order in which BullMQ lists them."""
ALIVE_STATES: Final = frozenset((_W, _P, _D, _A, _K))
"""While a job is in one of these its id is taken."""
FINISHED_STATES: Final = frozenset((_C, _F))

TRANSITIONS: Final[dict[Trigger, dict[JobState, frozenset[JobState]]]] = {
    # A record is born REMOVED: outside every container, like one that has left.
    Trigger.ADD: {_R: frozenset((_W, _P, _D, _K))},
    Trigger.DUE: {_D: _READY},
    Trigger.PROMOTE: {_D: _READY},
    Trigger.RESCHEDULE: {_D: frozenset((_D,))},
    Trigger.PRIORITY: {_W: _READY, _P: _READY},
    Trigger.FETCH: {_W: frozenset((_A,)), _P: frozenset((_A,))},
    Trigger.COMPLETE: {_A: frozenset((_C,))},
    Trigger.FAIL: {_A: frozenset((_F,))},
    Trigger.RETRY: {_A: _PLACED},
    Trigger.PUT_BACK: {_A: _PLACED},
    Trigger.STALL: {_A: frozenset((_W,))},
    Trigger.WAIT_FOR_CHILDREN: {_A: frozenset((_K,))},
    Trigger.CHILDREN_DONE: {_K: _PLACED, _D: _PLACED},
    Trigger.REPROCESS: {_C: _READY, _F: _READY},
    Trigger.REMOVE: {s: frozenset((_R,)) for s in STATES},
    # From a snapshot a record comes back into the state in which it was written.
    Trigger.RESTORE: {_R: frozenset(STATES)},
}
"""trigger -> state before -> states that may follow."""
