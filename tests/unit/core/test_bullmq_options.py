"""BullMQ's option dicts, read as BullMQ reads them."""

from __future__ import annotations

from typing import Any

import pytest

from inproc_jobs.core.bullmq_options import check_new_id, job_opts, merge, parse_job, parse_repeat, parse_worker, stored
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Job
from inproc_jobs.core.options import Deduplication, Retention
from inproc_jobs.core.states import JobState
from inproc_jobs.core.trees import NewJob
from inproc_jobs.errors import InvalidOptionError, InvalidOptionTypeError

T0 = 1_700_000_000_000


def parse(opts: dict[str, Any], data: bytes = b"{}") -> NewJob:
    return parse_job("q", "job", data, opts, T0)


@pytest.mark.parametrize("id", ["007", "1.5", "1e3", " 12", "-", "a:b:c", "0x10", "wait", "x" * 2000])
def test_ids_that_bullmq_takes(id: str) -> None:
    """What does not print back as the integer it is read as is an id like any other."""
    assert parse({"jobId": id}).id == id


@pytest.mark.parametrize("id", ["123", "-5", "0", "NaN"])
def test_integer_ids_are_refused(id: str) -> None:
    """Such an id could be an automatic one."""
    with pytest.raises(InvalidOptionError, match="Custom Id cannot be integers"):
        parse({"jobId": id})


@pytest.mark.parametrize("id", ["a:b", "a:b:c:d", ":"])
def test_colons_are_refused(id: str) -> None:
    """All but exactly two."""
    with pytest.raises(InvalidOptionError, match="Custom Id cannot contain :"):
        parse({"jobId": id})


@pytest.mark.parametrize("id", ["0", "0:1", 0, False])
def test_add_refuses_markers(id: Any) -> None:
    """Ids that old versions used as markers are refused by add, and only by it."""
    with pytest.raises(InvalidOptionError, match="cannot be '0' or start with '0:'"):
        check_new_id({"jobId": id})


def test_add_refuses_what_is_no_text() -> None:
    """A number as an id is an error of type, as JavaScript would have it."""
    with pytest.raises(InvalidOptionTypeError):
        check_new_id({"jobId": 5})


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        ({"sizeLimit": 1, "jobId": "1"}, "The size of job job exceeds the limit 1 bytes"),
        (
            {"failParentOnFailure": 1, "ignoreDependencyOnFailure": "x", "jobId": "1"},
            "cannot be used together: failParentOnFailure, ignoreDependencyOnFailure",
        ),
        ({"jobId": "1", "priority": 1.5}, "integers"),
        ({"priority": 1.5, "deduplication": {}}, "Priority should not be float"),
        ({"priority": "5"}, "Priority should not be float"),
        ({"priority": 2_097_152}, "between 0 and 2097151"),
        ({"deduplication": {}, "debounce": None}, "Deduplication id must be provided"),
        ({"deduplication": {"id": "x"}, "parent": {"id": "p", "queue": "bull:q"}}, "parent options cannot be used"),
        ({"debounce": None, "backoff": {"jitter": 2}}, "Debounce option has been removed"),
        ({"backoff": {"type": "fixed", "jitter": -0.1}}, "Jitter should be between 0 and 1"),
    ],
)
def test_refusals_come_in_bullmqs_order(opts: dict[str, Any], message: str) -> None:
    """Each of these has a second fault that BullMQ would find later."""
    with pytest.raises(InvalidOptionError, match=message):
        parse(opts)


def test_only_the_calls_own_id_counts() -> None:
    """An id among the defaults of a queue is ignored."""
    assert merge({"jobId": "x", "attempts": 3}, {"delay": 5}) == {"attempts": 3, "delay": 5}
    assert merge({"jobId": "x"}, {"jobId": "y"}) == {"jobId": "y"}


def test_null_beats_a_default() -> None:
    """A key that is there overrides the default, whatever it holds."""
    assert merge({"attempts": 3}, {"attempts": None}) == {"attempts": None}


def test_what_is_stored_of_options() -> None:
    """Numbers as backoff become policies, nulls vanish, empty lists turn into objects, digits beyond 14 go."""
    given = {"backoff": 0, "removeOnComplete": None, "foo": [], "bar": [1, None], "n": 123456789012345678}
    assert stored(given) == {
        "attempts": 0,
        "backoff": {"type": "fixed", "delay": 0},
        "foo": {},
        "bar": [1],
        "n": 123456789012350000,
    }


def test_a_handle_hides_what_belongs_to_schedulers() -> None:
    """The moment of creation and the schedule are not shown among the options."""
    assert job_opts({"attempts": 1, "repeat": {}, "prevMillis": 1, "timestamp": 2, "repeatJobKey": "s"}) == {
        "attempts": 1
    }


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (None, None),
        (True, Retention(count=0)),
        (False, Retention()),
        (0, Retention(count=0)),
        (3, Retention(count=3)),
        (-1, Retention()),
        ({}, Retention()),
        ({"age": 5}, Retention(age_s=5)),
        ({"age": 5, "count": 2, "limit": 7}, Retention(count=2, age_s=5, limit=7)),
    ],
)
def test_retention(given: Any, rule: Retention | None) -> None:
    """False keeps all, which is not the same as saying nothing."""
    assert parse({"removeOnComplete": given}).opts.remove_on_complete == rule


def test_a_delay_given_as_text_is_shown_and_not_obeyed() -> None:
    """BullMQ stores it, and looks for a number when it decides where the job goes."""
    core = Core()
    job = core.add_new(parse({"delay": "100"}), T0)
    assert isinstance(job, Job)
    assert (job.state, job.delay) == (JobState.WAITING, 100)


def test_deduplication_and_parent() -> None:
    """Truth of these options is Lua's, for which 0 is true; the parent's queue loses its prefix."""
    wanted = parse({"deduplication": {"id": 5, "ttl": 10, "replace": 0, "extend": False}}).deduplication
    assert wanted == Deduplication(id="5", ttl_ms=10, replace=True)
    link = parse({"parent": {"id": "p", "queue": "bull:other"}, "continueParentOnFailure": True}).parent
    assert link is not None
    assert (link.id, link.queue, link.policy) == ("p", "other", "cpof")


@pytest.mark.parametrize(
    ("repeat", "message"),
    [
        ({}, "Either .pattern or .every"),
        ({"every": 0}, "Either .pattern or .every"),
        ({"every": 1, "pattern": "* * * * *"}, "Both .pattern and .every"),
        ({"every": 1, "immediately": True, "startDate": T0}, "Both .immediately and .startDate"),
        ({"every": 1, "endDate": T0 - 1}, "End date must be greater"),
    ],
)
def test_schedules_that_are_refused(repeat: dict[str, Any], message: str) -> None:
    """Neither, both, contradicting, or over already."""
    with pytest.raises(InvalidOptionError, match=message):
        parse_repeat(repeat, {}, T0)


def test_a_schedule() -> None:
    """The options go to each iteration, and as they were given to those who list schedulers."""
    schedule = parse_repeat({"every": 100, "limit": None}, {"priority": 3, "backoff": 5, "jobId": "no"}, T0)
    assert (schedule.repeat.every, schedule.repeat.limit, schedule.repeat.priority) == (100, 0, 3)
    assert schedule.template == {"priority": 3, "backoff": 5, "jobId": "no"}
    assert schedule.opts.backoff is not None


def test_worker_options_have_bullmqs_defaults() -> None:
    """Thirty seconds of lock, thirty between checks, one stall."""
    options = parse_worker({})
    assert (options.lock_ms, options.stalled_interval_ms, options.max_stalled_count) == (30_000, 30_000, 1)
    assert options.limiter is None
    assert parse_worker({"limiter": {"max": 0, "duration": 5}}).limiter is not None
