"""
What every store promises, written against the port only.

    class TestMyStore(StoreContract): ...

in a module that sees a fixture `place`, which answers a `Place`.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, Protocol

import pytest

from inproc_jobs.errors import LeaseHeldError, LeaseLostError
from inproc_jobs.snapshot.records import (
    Batch,
    JobChange,
    JobRecord,
    KeyRecord,
    MetaRecord,
    ParkedRecord,
    QueueBatch,
    QueueState,
    SchedulerRecord,
)
from inproc_jobs.snapshot.store import Owner, Store

__all__ = ["NOW", "Place", "StoreContract", "batch_of", "change", "job", "meta_of", "owner"]

NOW = round(time.time() * 1000)


class Place(Protocol):
    """Where stores of one test are kept."""

    def open(self, *, lease_ms: int = 60_000) -> Store:
        """Another store on the same data, as another process would open it; not acquired."""


def owner(host: str = "one.example", pid: int | None = None) -> Owner:
    """Somebody on another machine, unless told otherwise."""
    return Owner(host, os.getpid() if pid is None else pid, NOW)


def job(id: str, state: str = "waiting", score: float = 0, **more: Any) -> JobRecord:
    """A job with little in it."""
    given: dict[str, Any] = {
        "name": "mail.send",
        "data": b'{"to":"ann"}',
        "opts": {"attempts": 3, "backoff": {"type": "fixed", "delay": 10}},
        "own": {},
        "timestamp": NOW,
        "delay": 0,
        "priority": 0,
    }
    if state in {"completed", "failed"}:
        score = score or NOW
        given |= {"finished_on": int(score), "processed_on": int(score) - 1, "attempts_made": 1, "attempts_started": 1}
        given["result" if state == "completed" else "failed_reason"] = b"null" if state == "completed" else "boom"
    return JobRecord(id=id, state=state, score=score, **{**given, **more})


def meta_of(counter: int = 0, **more: Any) -> MetaRecord:
    """Settings with nothing set."""
    given: dict[str, Any] = {
        "priority_counter": None,
        "paused": False,
        "concurrency": None,
        "max": None,
        "duration": None,
        "limiter_count": 0,
        "limiter_until_ms": 0,
        "metrics": {"completed": (0, 0, 0, ()), "failed": (0, 0, 0, ())},
    }
    return MetaRecord(counter=counter, **{**given, **more})


def change(record: JobRecord, was: str | None = None, *, front: bool = False, moved: bool = True) -> JobChange:
    """What a job has become."""
    return JobChange(record.id, record, was, front, moved)


def batch_of(*changes: JobChange, queue: str = "mail", **more: Any) -> Batch:
    """One write to one queue."""
    more.setdefault("meta", meta_of())
    return Batch(round(time.time() * 1000), [QueueBatch(queue, list(changes), **more)])


def loaded(store: Store, queue: str = "mail") -> QueueState:
    """One queue, its parts put together."""
    whole: QueueState | None = None
    for part in store.load():
        if part.queue != queue:
            continue
        if whole is None:
            whole = part
        else:
            whole.jobs = [*whole.jobs, *part.jobs]
            whole.unreadable = {**whole.unreadable, **part.unreadable}
    assert whole is not None, f"there is no queue {queue}"
    return whole


def ids(state: QueueState, word: str) -> list[str]:
    """Ids of one state in the order in which they were given back; sets by score and tie."""
    some = [one for one in state.jobs if one.state == word]
    if word not in {"waiting", "active"}:
        some.sort(key=lambda one: (one.score, one.tie))
    return [one.id for one in some]


STATES = ("waiting", "active", "delayed", "prioritized", "completed", "failed", "waiting-children")


def _leave(lists: dict[str, list[str]], state: str, id: str) -> None:
    if state in lists:
        lists[state].remove(id)


class StoreContract:
    """The suite."""

    @pytest.fixture
    def store(self, place: Place):
        store = place.open()
        store.acquire(owner())
        yield store
        store.close()

    @pytest.fixture
    def reopen(self, place: Place, store: Store):
        """Give the store up and load it as the next process would."""

        def reopened(queue: str = "mail") -> QueueState:
            store.release()
            store.close()
            other = place.open()
            other.acquire(owner("two.example"))
            try:
                return loaded(other, queue)
            finally:
                other.release()
                other.close()

        return reopened

    # --- owning -------------------------------------------------------------------------------------------------

    def test_an_empty_store_loads_nothing(self, store):
        """A new store has no queues."""
        assert list(store.load()) == []

    def test_second_owner_is_refused_and_told_who_it_is(self, place, store):
        """One owner; the error names host, process and since when."""
        other = place.open()
        with pytest.raises(LeaseHeldError) as caught:
            other.acquire(owner("two.example"))
        assert caught.value.host == "one.example"
        assert caught.value.pid == os.getpid()
        assert round(caught.value.since.timestamp() * 1000) == NOW
        assert "one.example" in str(caught.value)
        other.close()

    def test_released_store_is_free_at_once(self, place, store):
        """Whoever comes after a release need not wait, and gets a higher fencing number."""
        store.release()
        other = place.open()
        first = other.acquire(owner("two.example"))
        other.release()
        second = other.acquire(owner("two.example"))
        assert second > first
        other.close()

    @pytest.mark.slow
    def test_lease_runs_out_and_the_former_owner_is_fenced_off(self, place):
        """A process that slept past its lease cannot write over its successor, nor renew."""
        sleeper, successor = place.open(lease_ms=300), place.open()
        sleeper.acquire(owner())
        sleeper.apply(batch_of(change(job("1"))))
        time.sleep(0.6)
        successor.acquire(owner("two.example"))
        with pytest.raises(LeaseLostError):
            sleeper.apply(batch_of(JobChange("1", None, "waiting")))
        with pytest.raises(LeaseLostError):
            sleeper.renew()
        assert ids(loaded(successor), "waiting") == ["1"]
        sleeper.close()
        successor.release()
        successor.close()

    @pytest.mark.slow
    def test_renewing_keeps_the_store(self, place):
        """An owner that renews is the owner beyond its first lease."""
        keeper, other = place.open(lease_ms=600), place.open()
        keeper.acquire(owner())
        for _ in range(4):
            time.sleep(0.3)
            keeper.renew()
        with pytest.raises(LeaseHeldError):
            other.acquire(owner("two.example"))
        keeper.apply(batch_of(change(job("1"))))
        keeper.release()
        keeper.close()
        other.close()

    @pytest.mark.slow
    def test_lease_that_nobody_took_is_taken_up_again(self, place):
        """A machine that slept alone goes on as the owner."""
        store = place.open(lease_ms=200)
        store.acquire(owner())
        time.sleep(0.5)
        store.apply(batch_of(change(job("1"))))
        store.renew()
        assert ids(loaded(store), "waiting") == ["1"]
        store.release()
        store.close()

    def test_closing_twice_is_fine(self, store):
        """`close` is idempotent."""
        store.close()
        store.close()

    # --- what a job is ------------------------------------------------------------------------------------------

    def test_every_field_of_a_job_comes_back(self, store, reopen):
        """Nothing is lost between two processes."""
        parent = {"id": "p", "queue": "mail", "policy": "fpof"}
        full = job(
            "x:1",
            "failed",
            NOW + 5,
            name="näme/✓",
            data='{"text":"ü✓/","n":[1,2.5,null]}'.encode(),
            own={"frees_id": True, "timeout_ms": 5, "kept": [False, True]},
            timestamp=NOW - 1000,
            priority=7,
            attempts_made=2,
            attempts_started=3,
            failed_reason="it broke",
            stacktrace=["one\ntwo", "three"],
            progress=b'{"done":3}',
            logs=["first", "second"],
            stalled_count=1,
            deduplication_id="d:1",
            worker_name="w",
            parent=parent,
        )
        store.apply(
            batch_of(
                change(
                    job(
                        "p",
                        "waiting-children",
                        NOW,
                        pending=["bull:mail:x:1"],
                        processed={},
                        ignored={},
                        unsuccessful={},
                    )
                ),
                change(full),
            )
        )
        state = reopen()
        back = next(one for one in state.jobs if one.id == "x:1")
        back.opts.pop("failParentOnFailure", None)  # BullMQ's layout shows the parent's rule among the options too
        assert back == full

    def test_empty_texts_are_not_nothing(self, store, reopen):
        """An empty reason, an empty row of a log, and a result null are values."""
        store.apply(
            batch_of(
                change(job("f", "failed", failed_reason="", logs=[""])),
                change(job("c", "completed", result=b"null", attempts_made=1)),
            )
        )
        back = {one.id: one for one in reopen().jobs}
        assert back["f"].failed_reason == ""
        assert back["f"].logs == [""]
        assert back["c"].result == b"null"

    def test_large_payload(self, store, reopen):
        """A payload of a megabyte is no matter."""
        data = b'"' + b"x" * 1_000_000 + b'"'
        store.apply(batch_of(change(job("1", data=data))))
        assert reopen().jobs[0].data == data

    def test_family_of_a_parent(self, store, reopen):
        """Pending, processed, ignored and failed children come back, thousands of them too."""
        pending = [f"bull:mail:c{number}" for number in range(5_000)]
        record = job(
            "p",
            "waiting-children",
            NOW,
            pending=pending,
            processed={"bull:mail:a": b'{"x":1}', "bull:mail:b": b"null"},
            ignored={"bull:mail:i": "why"},
            unsuccessful={"bull:mail:u": NOW},
        )
        store.apply(batch_of(change(record)))
        back = reopen().jobs[0]
        assert sorted(back.pending) == sorted(pending)
        assert back.processed == record.processed
        assert back.ignored == record.ignored
        assert back.unsuccessful == record.unsuccessful

    def test_what_a_job_no_longer_has_is_gone(self, store, reopen):
        """A retried job has no result, no end and no reason; one whose logs were cleared has none."""
        store.apply(batch_of(change(job("1", "failed", logs=["a"], deferred_failure="d", progress=b"1"))))
        store.apply(batch_of(change(job("1"), "failed")))
        back = reopen().jobs[0]
        assert back == job("1")

    # --- places -------------------------------------------------------------------------------------------------

    def test_waiting_order(self, store, reopen):
        """First in, first out; what is put in front runs next."""
        store.apply(batch_of(*(change(job(id)) for id in "abc")))
        store.apply(batch_of(change(job("x"), front=True), change(job("d"))))
        assert ids(reopen(), "waiting") == ["x", "a", "b", "c", "d"]

    def test_moving_within_the_waiting_list(self, store, reopen):
        """Replaying moves on the stored order gives the order."""
        store.apply(batch_of(*(change(job(id)) for id in "abcd")))
        store.apply(
            batch_of(
                change(job("a"), "waiting"),
                change(job("c"), "waiting", front=True),
                change(job("b", data=b"2"), "waiting", moved=False),
            )
        )
        state = reopen()
        assert ids(state, "waiting") == ["c", "b", "d", "a"]
        assert next(one.data for one in state.jobs if one.id == "b") == b"2"

    def test_many_leave_the_middle_of_a_long_list(self, store, reopen):
        """Removing every other of thousands leaves the others in order."""
        names = [f"j{number}" for number in range(3_000)]
        store.apply(batch_of(*(change(job(id)) for id in names)))
        store.apply(batch_of(*(JobChange(id, None, "waiting") for id in names[1::2])))
        assert ids(reopen(), "waiting") == names[::2]

    def test_a_job_walks_through_all_states(self, store, place):
        """At every step it stands in one place."""
        was = None
        for state, score in (
            ("delayed", NOW + 50),
            ("waiting", 0),
            ("active", 0),
            ("waiting-children", NOW),
            ("prioritized", 3 << 32 | 1),
            ("active", 0),
            ("failed", NOW),
            ("waiting", 0),
            ("active", 0),
            ("completed", NOW),
        ):
            store.apply(batch_of(change(job("1", state, score), was)))
            was = state
            assert [one.state for one in loaded(store).jobs] == [state]

    def test_delayed_order_within_one_millisecond(self, store, reopen):
        """First come, first due, also beyond the 4,096 that BullMQ's scores can tell apart."""
        names = [f"j{number:05}" for number in reversed(range(4_500))]
        changes = [change(job(id, "delayed", NOW, tie=tie)) for tie, id in enumerate(names)]
        for start in range(0, len(changes), 500):
            store.apply(batch_of(*changes[start : start + 500]))
        assert ids(reopen(), "delayed") == names

    def test_delayed_order_after_2039(self, store, reopen):
        """Dates whose scores have no room for a tie keep their order all the same."""
        due = 2_500_000_000_000
        changes = [change(job(id, "delayed", due, tie=tie)) for tie, id in enumerate("cab")]
        store.apply(batch_of(*changes))
        state = reopen()
        assert ids(state, "delayed") == ["c", "a", "b"]
        assert {one.score for one in state.jobs} == {due}

    def test_priorities(self, store, reopen):
        """Order by priority, then by counter, with the exact numbers."""
        top = 2_097_151 << 32 | 5
        changes = [
            change(job("a", "prioritized", top, priority=2_097_151)),
            change(job("b", "prioritized", 1 << 32 | 3, priority=1)),
            change(job("c", "prioritized", 1 << 32 | 2, priority=1)),
        ]
        store.apply(batch_of(*changes, meta=meta_of(3, priority_counter=5)))
        state = reopen()
        assert ids(state, "prioritized") == ["c", "b", "a"]
        assert max(one.score for one in state.jobs) == top
        assert state.meta.priority_counter == 5

    def test_active_jobs_come_oldest_first(self, store, reopen):
        """In the order in which they started."""
        store.apply(batch_of(*(change(job(id)) for id in "abc")))
        store.apply(batch_of(*(change(job(id, "active"), "waiting") for id in "abc")))
        assert ids(reopen(), "active") == ["a", "b", "c"]

    def test_removed_jobs_leave_nothing(self, store, reopen):
        """Neither the job nor its logs come back when its id is used again."""
        store.apply(batch_of(change(job("1", logs=["old"], progress=b"3"))))
        store.apply(batch_of(JobChange("1", None, "waiting")))
        assert loaded(store).jobs == []
        store.apply(batch_of(change(job("1", "delayed", NOW))))
        back = reopen().jobs
        assert [(one.id, one.logs, one.progress) for one in back] == [("1", None, None)]

    def test_replacing_a_finished_job_by_a_fresh_run(self, store, reopen):
        """The record of the former run is gone whole."""
        store.apply(batch_of(change(job("1", "completed", result=b'"old"', logs=["old"]))))
        store.apply(batch_of(change(job("1"), "completed")))
        assert reopen().jobs == [job("1")]

    @pytest.mark.parametrize("arrived", [True, False])
    def test_repeating_a_write_of_unknown_outcome(self, store, reopen, arrived):
        """Whether it had arrived or not, once repeated it stands in one place, with the last state."""
        store.apply(batch_of(change(job("a")), change(job("b"))))
        if arrived:
            store.apply(batch_of(change(job("a", "active"), "waiting"), change(job("c"))))
        store.apply(batch_of(change(job("a", "delayed", NOW), "?"), change(job("c"), "?"), JobChange("b", None, "?")))
        state = reopen()
        assert ids(state, "delayed") == ["a"]
        assert ids(state, "waiting") == ["c"]
        assert len(state.jobs) == 2

    @pytest.mark.parametrize("seed", range(4))
    def test_any_sequence_of_changes(self, store, reopen, seed):
        """After many random writes everything stands where a plain model says."""
        dice = random.Random(seed)
        where: dict[str, str] = {}
        lists: dict[str, list[str]] = {"waiting": [], "active": []}
        scores: dict[str, float] = {}
        for step in range(60):
            changes = []
            for id in dice.sample([f"j{number}" for number in range(40)], dice.randint(1, 12)):
                was = where.get(id)
                told = "?" if was and dice.random() < 0.2 else was
                if was and dice.random() < 0.3:
                    changes.append(JobChange(id, None, told))
                    _leave(lists, where.pop(id), id)
                    scores.pop(id, None)
                    continue
                state = dice.choice(list(STATES))
                front = state == "waiting" and dice.random() < 0.3
                score = float(NOW + step * 1000 + len(changes)) if state not in lists else 0
                changes.append(change(job(id, state, score), told, front=front))
                if was:
                    _leave(lists, was, id)
                where[id] = state
                scores[id] = score
                if state in lists:
                    lists[state].insert(0 if front else len(lists[state]), id)
            store.apply(batch_of(*changes))
        state = reopen()
        assert {one.id: one.state for one in state.jobs} == where
        for word in STATES:
            wanted = lists.get(word) or sorted((id for id in where if where[id] == word), key=scores.__getitem__)
            assert ids(state, word) == wanted

    # --- the rest of a queue ------------------------------------------------------------------------------------

    def test_settings_and_counters(self, store, reopen):
        """Counter, pause, limits, rate window and metrics come back."""
        meta = meta_of(
            41,
            priority_counter=9,
            paused=True,
            concurrency=4,
            max=10,
            duration=1000,
            limiter_count=3,
            limiter_until_ms=NOW + 500_000,
            metrics={"completed": (5, NOW, 2, (1, 0, 2)), "failed": (0, 0, 0, ())},
        )
        store.apply(batch_of(meta=meta))
        back = reopen().meta
        assert abs(back.limiter_until_ms - meta.limiter_until_ms) < 5_000
        assert back == meta_of(
            41,
            priority_counter=9,
            paused=True,
            concurrency=4,
            max=10,
            duration=1000,
            limiter_count=3,
            limiter_until_ms=back.limiter_until_ms,
            metrics=meta.metrics,
        )

    def test_settings_that_were_taken_back(self, store, reopen):
        """What is no longer set is not set."""
        store.apply(batch_of(meta=meta_of(1, paused=True, concurrency=2, max=3, duration=4, priority_counter=5)))
        store.apply(batch_of(meta=meta_of(2)))
        assert reopen().meta == meta_of(2)

    def test_settings_survive_a_death(self, place, store):
        """The next owner finds the true settings although nobody released the store."""
        meta = meta_of(7, limiter_count=2, limiter_until_ms=NOW + 500_000)
        store.apply(batch_of(change(job("1")), meta=meta))
        back = loaded(store).meta
        assert (back.counter, back.max, back.duration, back.limiter_count) == (7, None, None, 2)

    def test_deduplication_keys(self, store, reopen):
        """Owner and the rest of the lifetime; ended and deleted ones are gone."""
        keys = {
            "until:done": KeyRecord("1", None),
            "throttled": KeyRecord("1", NOW + 600_000),
            "over": KeyRecord("1", NOW - 1),
            "gone": KeyRecord("1", None),
        }
        store.apply(batch_of(change(job("1", deduplication_id="until:done")), keys=keys))
        store.apply(batch_of(keys={"gone": None}))
        back = reopen().keys
        assert sorted(back) == ["throttled", "until:done"]
        assert back["until:done"] == KeyRecord("1", None)
        assert abs(back["throttled"].until_ms - (NOW + 600_000)) < 5_000

    def test_parked_adds(self, store, reopen):
        """An add that waits for its turn comes back whole."""
        opts = {"attempts": 2, "deduplication": {"id": "d", "keepLastIfActive": True}, "delay": 5, "priority": 3}
        parked = ParkedRecord("p1", True, "mail.send", b'{"n":1}', opts, {"frees_id": True}, NOW, 5, 3)
        gone = ParkedRecord("7", False, "mail.send", b"null", {"attempts": 1}, {}, NOW, 0, 0)
        store.apply(batch_of(change(job("1")), parked={"d": parked, "e": gone}))
        store.apply(batch_of(parked={"e": None}))
        assert reopen().parked == {"d": parked}

    def test_schedulers(self, store, reopen):
        """Schedule, template, count and phase come back, and the iteration knows its schedule."""
        every = {"every": 60_000, "limit": 5, "start_ms": NOW, "end_ms": NOW + 10_000_000, "count": 0}
        cron = {"pattern": "0 9 * * *", "tz": "Europe/Berlin", "count": 0, "catch_up": "all", "priority": 4}
        opts = {"attempts": 2}
        first = SchedulerRecord("e:1", "tick", b'{"a":1}', every, opts, {}, NOW + 5, 3, 5, {"attempts": 2})
        second = SchedulerRecord("c", "tock", b"{}", cron, opts, {"timeout_ms": 9}, NOW + 9, 1, 0, {"attempts": 2})
        iteration = job(
            f"repeat:c:{NOW + 9}",
            "delayed",
            NOW + 9,
            scheduler_id="c",
            repeat={**cron, "count": 2},
            priority=4,
        )
        store.apply(batch_of(change(iteration), schedulers={"e:1": first, "c": second, "gone": first}))
        store.apply(batch_of(schedulers={"gone": None}))
        state = reopen()
        assert state.schedulers == {"e:1": first, "c": second}
        assert state.jobs[0].repeat == {**cron, "count": 2}
        assert state.jobs[0].scheduler_id == "c"

    def test_several_queues_in_one_write(self, store, place):
        """Parents and children in two queues go together."""
        store.apply(
            Batch(
                NOW,
                [
                    QueueBatch(
                        "mail",
                        [
                            change(
                                job(
                                    "p",
                                    "waiting-children",
                                    NOW,
                                    pending=["bull:pdf:c"],
                                    processed={},
                                    ignored={},
                                    unsuccessful={},
                                )
                            )
                        ],
                        meta_of(1),
                    ),
                    QueueBatch(
                        "pdf", [change(job("c", parent={"id": "p", "queue": "mail", "policy": ""}))], meta_of(2)
                    ),
                ],
            )
        )
        states = {state.queue: state for state in store.load()}
        assert states["mail"].jobs[0].pending == ["bull:pdf:c"]
        assert states["pdf"].jobs[0].parent == {"id": "p", "queue": "mail", "policy": ""}
        assert (states["mail"].meta.counter, states["pdf"].meta.counter) == (1, 2)

    def test_many_jobs_in_one_write(self, store, reopen):
        """A write of thousands is one write."""
        names = [f"j{number}" for number in range(7_000)]
        store.apply(batch_of(*(change(job(id)) for id in names)))
        assert ids(reopen(), "waiting") == names

    def test_nobody_foreign_comes_by_themselves(self, store):
        """What we write is never reported as somebody else's."""
        store.apply(batch_of(change(job("1")), meta=meta_of(1)))
        assert store.poll_foreign() == []
