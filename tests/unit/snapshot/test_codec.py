"""Between the core and plain records: whatever the facade accepts comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inproc_jobs.core.job import ABSOLUTE_DUE, CUSTOM_ID, LIFO, Children, Job, JobExtra, ParentLink, Repeat
from inproc_jobs.core.options import Backoff, JobOptions, Retention
from inproc_jobs.core.states import STATES, JobState
from inproc_jobs.snapshot import codec
from inproc_jobs.snapshot.records import JobRecord, MetaRecord, QueueState
from tests.unit.snapshot.worlds import T0, new_core, queue_of

retentions = st.none() | st.builds(
    Retention,
    count=st.none() | st.integers(0, 99),
    age_s=st.none() | st.integers(1, 9_999),
    limit=st.just(1000),
)
backoffs = st.none() | st.builds(
    Backoff,
    type=st.sampled_from(["fixed", "exponential", "custom"]),
    delay_ms=st.none() | st.integers(0, 10**9),
    jitter=st.sampled_from([0.0, 0.25, 1.0]),
    max_delay_ms=st.none() | st.integers(1, 10**9),
)
options = st.builds(
    JobOptions,
    attempts=st.integers(0, 50),
    backoff=backoffs,
    lifo=st.booleans(),
    remove_on_complete=retentions,
    remove_on_fail=retentions,
    keep_logs=st.none() | st.integers(0, 99),
    size_limit=st.none() | st.integers(0, 10**6),
    stack_trace_limit=st.none() | st.integers(0, 50),
    frees_id=st.booleans(),
    timeout_ms=st.none() | st.integers(1, 10**9),
)
texts = st.text(max_size=10)
json_texts = st.sampled_from([b"null", b"0", b'"\xc3\xbc"', b'{"a":[1,2.5,null,"x"]}', b"[]"])
extras = st.builds(
    JobExtra,
    failed_reason=st.none() | texts,
    stacktrace=st.lists(texts, max_size=3),
    progress=st.none() | json_texts,
    logs=st.lists(texts, max_size=3),
    stalled_count=st.integers(0, 3),
    deferred_failure=st.none() | texts,
    deduplication_id=st.none() | texts.filter(bool),
    scheduler_id=st.none() | texts.filter(bool),
    repeat=st.none()
    | st.builds(
        Repeat,
        every=st.none() | st.integers(1, 10**9),
        pattern=st.none() | st.just("0 9 * * *"),
        tz=st.none() | st.just("Europe/Berlin"),
        limit=st.none() | st.integers(1, 9),
        start_ms=st.none() | st.integers(T0, 2 * T0),
        end_ms=st.none() | st.integers(T0, 2 * T0),
        offset=st.none() | st.integers(1, 999),
        immediately=st.booleans(),
        count=st.integers(0, 9),
        priority=st.integers(0, 9),
        lifo=st.booleans(),
        catch_up=st.sampled_from(["once", "all", "skip"]),
    ),
    worker_name=st.none() | texts.filter(bool),
    parent=st.none() | st.builds(ParentLink, texts, texts, st.sampled_from(["", "fpof", "cpof", "idof", "rdof"])),
    children=st.none()
    | st.builds(
        Children,
        st.dictionaries(texts, st.none(), max_size=2),
        st.dictionaries(texts, json_texts, max_size=2),
        st.dictionaries(texts, texts, max_size=2),
        st.dictionaries(texts, st.integers(0, T0), max_size=2),
    ),
)


@st.composite
def jobs(draw: Any) -> Job:
    state = draw(st.sampled_from(STATES))
    finished = state in {JobState.COMPLETED, JobState.FAILED}
    job = Job(
        draw(texts.filter(bool)),
        draw(texts.filter(bool)),
        draw(json_texts),
        draw(options),
        draw(st.integers(T0, 2 * T0)),
        draw(st.sampled_from([0, CUSTOM_ID, ABSOLUTE_DUE, CUSTOM_ID | LIFO])),
        draw(st.integers(0, 10**9)),
        draw(st.integers(0, 2_097_151)),
        state=state,
        attempts_made=draw(st.integers(0, 9)),
        attempts_started=draw(st.integers(0, 9)),
        processed_on=draw(st.none() | st.integers(T0, 2 * T0)),
        finished_on=draw(st.integers(T0, 2 * T0)) if finished else None,
        result=draw(json_texts) if state is JobState.COMPLETED else None,
        extra=draw(st.none() | extras),
    )
    if state is JobState.DELAYED:
        job.order = (draw(st.integers(0, 2 * T0)) << 40) + draw(st.integers(1, 10**6))
    elif state is JobState.PRIORITIZED:
        job.order = (job.priority << 32) + draw(st.integers(0, 10**6))
    elif state is JobState.WAITING_CHILDREN:
        job.order = job.timestamp
    return job


@given(options)
def test_options_come_back(opts):
    """As they were, those that are not set too, which mean something else than their defaults."""
    cache = codec.OptionsCache()
    rendered, own = cache.render(opts)
    assert json.loads(json.dumps([rendered, own])) == [rendered, own]
    assert cache.read(rendered, own) == opts


@settings(max_examples=300)
@given(jobs())
def test_jobs_come_back(job):
    """Each field, in each state, through msgpack and through JSON."""
    record = codec.record_of(job, codec.OptionsCache())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=JobRecord) == record
    assert msgspec.json.decode(msgspec.json.encode(record), type=JobRecord) == record
    core = new_core("q")
    queue = core.queue("q")
    codec.restore_queue(core, QueueState("q", meta(), jobs=[record]), codec.OptionsCache())
    back = queue.index[job.id]
    assert codec.record_of(back, codec.OptionsCache()) == record
    assert back.state is job.state
    assert back.opts == (msgspec.structs.replace(job.opts, lifo=True) if job.flags & LIFO else job.opts)
    assert back.scheduled_ms == job.scheduled_ms or job.state not in codec._STARTING
    for name in ("data", "timestamp", "delay", "priority", "attempts_made", "attempts_started", "result", "due_ms"):
        assert getattr(back, name) == getattr(job, name)
    core.check()


def meta(counter: int = 0) -> MetaRecord:
    return MetaRecord(counter, None, False, None, None, None, 0, 0, {})


def test_a_million_jobs_of_one_definition_share_their_options():
    """Restored as dispatched: one record of options, whatever each job has of its own."""
    cache = codec.OptionsCache()
    opts = JobOptions(attempts=3, frees_id=True)
    some = [
        Job("a", "n", b"1", opts, T0, CUSTOM_ID, 5, 3, state=JobState.PRIORITIZED),
        Job("7", "n", b"1", opts, T0, 0, 0, 0, state=JobState.WAITING),
        Job("b", "n", b"1", opts, T0, CUSTOM_ID | ABSOLUTE_DUE, 9, 0, state=JobState.DELAYED, order=T0 << 40),
    ]
    back = [codec.job_of(codec.record_of(job, cache), cache) for job in some]
    assert len({id(job.opts) for job in back}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"state": "elsewhere"},
        {"score": float("nan")},
        {"own": {"kept": 5}},
        {"own": {"kept": [True, True], "timeout_ms": 5, "due_ms": "never"}},
        {"parent": {"id": 5}},
        {"repeat": {"every": "often"}},
        {"repeat": {"pattern": b"\x80\x04cos\nsystem\n."}},
    ],
)
def test_c118_wrong_shapes_are_set_aside(change):
    """One record of a wrong shape does not keep the others from being read, and nothing in it is run."""
    core = new_core("q")
    good = JobRecord(
        id="g", name="n", data=b"1", opts={}, own={}, timestamp=T0, delay=0, priority=0, state="waiting", score=0
    )
    bad = msgspec.structs.replace(good, id="b", **change)
    unreadable, _ = codec.restore_queue(core, QueueState("q", meta(), jobs=[bad, good]), codec.OptionsCache())
    assert list(unreadable) == ["b"]
    queue = queue_of(core, "q")
    assert list(queue.wait) == [queue.index["g"]]
    assert queue.index["b"].state is JobState.REMOVED
    core.check()
