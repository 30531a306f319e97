"""Records as BullMQ's hashes and commands, and back, without a server."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.snapshot import bullmq_reading as reading
from inproc_jobs.snapshot import bullmq_writing as writing
from inproc_jobs.snapshot.bullmq_names import BLOCKED_MAX
from inproc_jobs.snapshot.records import (
    JobChange,
    JobRecord,
    KeyRecord,
    ParkedRecord,
    QueueBatch,
    SchedulerRecord,
)
from tests.unit.snapshot.store_contract import job, meta_of


def fields_of(record: JobRecord) -> dict[str, str]:
    flat = writing.job_fields(record, "bull")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def back(record: JobRecord, score: float = 0) -> JobRecord:
    return reading.read_job(record.id, record.state, score, fields_of(record), "bull")


def test_options_have_their_short_names():
    """What BullMQ shortens is short, what it does not is not, and nulls vanish."""
    opts = {
        "attempts": 2,
        "deduplication": {"id": "d", "ttl": 5},
        "keepLogs": 3,
        "failParentOnFailure": True,
        "sizeLimit": 9,
        "telemetry": {"metadata": "m", "omitContext": True},
        "backoff": None,
    }
    stored = json.loads(fields_of(job("1", opts=opts))["opts"])
    assert stored == {
        "attempts": 2,
        "de": {"id": "d", "ttl": 5},
        "kl": 3,
        "fpof": True,
        "sizeLimit": 9,
        "tm": "m",
        "omc": True,
    }
    del opts["backoff"]
    assert back(job("1", opts=opts)).opts == opts


def test_fields_that_are_not_set_are_not_there():
    """A plain job has the fields that an add of BullMQ writes, and ours."""
    assert sorted(fields_of(job("1"))) == ["data", "delay", "inproc", "name", "opts", "priority", "timestamp"]


def test_numbers_are_written_as_javascript_prints_them():
    """No ".0", no exponent below 1e21."""
    assert fields_of(job("1", delay=5.0))["delay"] == "5"
    assert fields_of(job("1", delay=0.5))["delay"] == "0.5"
    assert fields_of(job("1", timestamp=1_700_000_000_123))["timestamp"] == "1700000000123"


def test_child_names_its_parent_three_times():
    """By key, as a link with its policy, and in the options: each is read by another part of BullMQ."""
    fields = fields_of(job("c", parent={"id": "p", "queue": "pdf", "policy": "cpof"}))
    assert fields["parentKey"] == "bull:pdf:p"
    assert json.loads(fields["parent"]) == {"id": "p", "queueKey": "bull:pdf", "cpof": True}
    opts = json.loads(fields["opts"])
    assert opts["parent"] == {"id": "p", "queue": "bull:pdf"}
    assert opts["cpof"] is True


def test_iteration_carries_its_schedule():
    """A worker makes the next iteration from these options alone."""
    repeat = {"pattern": "* * * * *", "tz": "UTC", "count": 3, "priority": 2, "lifo": True, "deduplication_id": "d"}
    record = job("repeat:s:1700000000000", "delayed", 1_700_000_000_000, scheduler_id="s", repeat=repeat, delay=70)
    opts = json.loads(fields_of(record)["opts"])
    assert opts["repeat"] == {"pattern": "* * * * *", "tz": "UTC", "count": 3}
    assert (opts["repeatJobKey"], opts["prevMillis"], opts["jobId"]) == ("s", 1_700_000_000_000, record.id)
    assert (opts["priority"], opts["lifo"], opts["de"], opts["delay"]) == (2, True, {"id": "d"}, 70)
    assert back(record, 1_700_000_000_000 * 4096).repeat == repeat


def test_priority_of_an_iteration_does_not_carry_over():
    """The next iteration gets the schedule's priority, not what this one was given since."""
    record = job("repeat:s:5", scheduler_id="s", repeat={"every": 5, "count": 1}, priority=9, opts={"priority": 9})
    assert "priority" not in json.loads(fields_of(record)["opts"])


def test_hash_of_an_old_version():
    """`attemptsMade` of old versions wins, dates of schedules may be text, `debounce` is a deduplication."""
    fields = {
        "name": "n",
        "opts": '{"repeat":{"every":5,"endDate":"2040-01-01T00:00:00.000Z"},"debounce":{"id":"x"}}',
        "attemptsMade": "4",
        "atm": "1",
        "rjk": "s",
    }
    record = reading.read_job("1", "waiting", 0, fields, "bull")
    assert record.attempts_made == 4
    assert record.repeat == {"every": 5, "count": 0, "end_ms": 2_208_988_800_000, "deduplication_id": "x"}
    assert record.data == b"{}"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"name": None}, "name"),
        ({"data": "{"}, "data"),
        ({"data": ""}, "data"),
        ({"opts": "[]"}, "opts"),
        ({"inproc": "7"}, "inproc"),
        ({"inproc": '{"own":1}'}, "inproc"),
        ({"parentKey": "a:b:c", "parent": "{"}, "parent"),
        ({"progress": "{"}, "progress"),
    ],
)
def test_damaged_hash(damage, why):
    """It is refused with the name of the field, never guessed at."""
    fields = {name: value for name, value in {**fields_of(job("1")), **damage}.items() if value is not None}
    with pytest.raises(reading.UnreadableJobError, match=why):
        reading.read_job("1", "waiting", 0, fields, "bull")


@given(
    st.dictionaries(
        st.sampled_from([*fields_of(job("1", "failed")), "parent", "parentKey", "rjk", "progress"]), st.text()
    )
)
def test_whatever_a_hash_holds(fields):
    """A hash is read or refused; no other error comes out."""
    for state in ("waiting", "delayed", "completed"):
        try:
            reading.read_job("1", state, 7.5, fields, "bull")
        except reading.UnreadableJobError:
            pass


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    name=TEXTS,
    reason=TEXTS,
    traces=st.lists(TEXTS),
    own=st.dictionaries(TEXTS, st.integers(-(2**53), 2**53)),
    delay=st.integers(0, 2**53),
    timestamp=st.integers(0, 2**53),
)
def test_what_is_written_is_read(name, reason, traces, own, delay, timestamp):
    """Any text and any number survive."""
    record = job(
        "1", name=name, failed_reason=reason, stacktrace=traces or None, own=own, delay=delay, timestamp=timestamp
    )
    assert back(record) == record


def test_commands_stay_below_the_stack_of_lua():
    """No command has more values than a script can spread."""
    record = job(
        "p",
        "waiting-children",
        5,
        logs=["x"] * 9_001,
        pending=[f"k{number}" for number in range(9_001)],
        processed={f"k{number}": b"1" for number in range(9_001)},
        ignored={f"k{number}": "1" for number in range(9_001)},
        unsuccessful={f"k{number}": 1 for number in range(9_001)},
    )
    commands = writing.job_row(JobChange("p", record, "active"), "mail", "bull")[8]
    assert max(map(len, commands)) <= 2_010
    pushed = [value for command in commands if command[0] == "RPUSH" for value in command[2:]]
    assert len(pushed) == 9_001
    for command in commands:
        if command[0] in {"HSET", "ZADD"}:
            assert len(command) % 2 == 0


def test_lifetime_of_a_key():
    """Rounded up, so that it does not end early; over means gone."""
    keys = {"a": KeyRecord("1", 100.5), "b": KeyRecord("1", None), "c": KeyRecord("1", 50), "d": None}
    commands = writing.commands_of(QueueBatch("mail", keys=keys), "bull", 50)
    assert commands == [
        ["SET", "bull:mail:de:a", "1", "PX", "51"],
        ["SET", "bull:mail:de:b", "1"],
        ["DEL", "bull:mail:de:c"],
        ["DEL", "bull:mail:de:d"],
    ]


def test_parked_add():
    """BullMQ finds the id under `jid`, and makes the job from name, data and options."""
    parked = ParkedRecord("9", False, "n", b"[1]", {"delay": 5, "priority": 2}, {"frees_id": True}, 77, 5, 2)
    _, hset = writing.commands_of(QueueBatch("mail", parked={"d": parked}), "bull", 0)
    fields = dict(zip(hset[2::2], hset[3::2], strict=True))
    assert (fields["jid"], fields["name"], fields["data"]) == ("9", "n", "[1]")
    assert reading.parked_record(fields) == parked


def test_scheduler_that_somebody_else_has_changed():
    """An upsert by BullMQ drops our field, so its schedule counts."""
    record = SchedulerRecord(
        "s", "n", b"{}", {"every": 5, "catch_up": "all"}, {"attempts": 2}, {}, 100, 4, 3, {"attempts": 2}
    )
    commands = writing.commands_of(QueueBatch("mail", schedulers={"s": record}), "bull", 0)
    fields = dict(zip(commands[-1][2::2], commands[-1][3::2], strict=True))
    assert "data" not in fields
    assert reading.scheduler_record("s", 100.0, fields) == record
    del fields["inproc"]
    assert reading.scheduler_record("s", 100.0, {**fields, "every": "9"}).repeat == {"every": 9}


def test_repeatable_of_an_old_version_is_refused():
    """Without a count of iterations it is no scheduler."""
    with pytest.raises(reading.UnreadableJobError, match="old BullMQ"):
        reading.scheduler_record("a:b:::5", 1, {"name": "n", "every": "5"})


def read_meta(meta=None, kept=None, counter="0", limiter=(None, -2)):
    return reading.meta_record(meta or {}, kept or {}, counter, None, limiter, {}, 1_000)


def test_what_the_blocked_limiter_shows_is_not_believed():
    """The kept values are the true ones, unless somebody has changed what was shown."""
    blocked = (BLOCKED_MAX, 5_000)
    shown = {"max": BLOCKED_MAX, "duration": "1000"}
    assert read_meta(shown, {"shown": BLOCKED_MAX}, limiter=blocked).max is None
    kept = {"shown": "7", "max": "7", "duration": "9", "count": "2", "until": "1500"}
    record = read_meta({"max": "7", "duration": "9"}, kept, limiter=blocked)
    assert (record.max, record.duration, record.limiter_count, record.limiter_until_ms) == (7, 9, 2, 1500)
    assert read_meta({"max": "8", "duration": "4"}, kept, limiter=blocked).max == 8
    assert read_meta({"max": "3", "duration": "1000"}, {"shown": "3"}).max is None
    assert read_meta(shown).max is None, "left behind by an owner whose other keys are gone"


def test_counter_is_ours_as_long_as_nobody_else_drew_an_id():
    """The reserve is told from ids of others."""
    assert read_meta(kept={"counter": "5", "ahead": "105"}, counter="105").counter == 5
    assert read_meta(kept={"counter": "5", "ahead": "105"}, counter="106").counter == 106


def test_settings_in_commands():
    """A pause is a field that is there; metrics without a point leave no keys."""
    part = writing.meta_part(meta_of(3, paused=True, concurrency=2, priority_counter=4), "mail", "bull", 0)
    assert part["commands"] == [
        ["HSET", "bull:mail:meta", "paused", "1"],
        ["HSET", "bull:mail:meta", "concurrency", "2"],
        ["SET", "bull:mail:pc", "4"],
    ]
    assert (part["counter"], part["kept"]) == ("3", [])


@pytest.mark.parametrize(
    ("score", "beside", "wanted"), [(5 * 4096 + 7, None, (5, 7)), (5 * 4096 + 4095, "12", (5, 4108))]
)
def test_scores_of_delayed_jobs(score, beside, wanted):
    """Due time and order; those without room in the score come after the others of their millisecond."""
    fields = {} if beside is None else {"inprocTie": beside}
    assert reading.scored("delayed", score, fields) == wanted
