"""The core beside a naive model: after every command both hold the same jobs in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inproc_jobs.core.core import Core
from inproc_jobs.core.job import ABSOLUTE_DUE, WATCHED
from inproc_jobs.core.options import Backoff, Deduplication, JobOptions, Retention
from inproc_jobs.core.states import STATES, JobState
from inproc_jobs.errors import JobNotInStateError
from tests.stateful.core_model import HISTORY, ModelJob, ModelQueue

T0 = 1_700_000_000_000
IDS = st.sampled_from(["", "", "a", "b", "c", "d"])
NUMBERS = st.integers(0, 10_000)
PLAIN = {"lifo": False, "kept": False, "attempts": 0, "backoff": None, "watched": False, "dated": False}


class CoreMachine(RuleBasedStateMachine):
    """Every command goes to both; `same` compares."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.queue = self.core.queue("q")
        self.queue.history = {JobState(state): bound for state, bound in HISTORY.items()}
        self.model = ModelQueue(T0)
        self.tokens: dict[str, str] = {}
        self.ended: list[str] = []

    @initialize(listening=st.booleans())
    def start(self, listening: bool) -> None:
        self.core.listening = listening

    def pick(self, number: int, *states: str) -> ModelJob | None:
        """One of the jobs in these states, by a number that Hypothesis can shrink."""
        ids = [id for state in states for id in self.model.ids(state)]
        return self.model.jobs[ids[number % len(ids)]] if ids else None

    # --- coming in ----------------------------------------------------------------------------------------------

    @rule(
        id=IDS,
        delay=st.sampled_from([0, 0, 10, 50, -5]),
        priority=st.sampled_from([0, 0, 1, 2]),
        lifo=st.booleans(),
        kept=st.booleans(),
        attempts=st.integers(0, 3),
        backoff=st.sampled_from([None, 0, 20]),
        watched=st.booleans(),
        dated=st.booleans(),
        key=st.sampled_from([None, None, "D"]),
        ttl=st.sampled_from([0, 30]),
        replace=st.booleans(),
    )
    def add(self, id: str, delay: int, priority: int, key: str | None, ttl: int, replace: bool, **more: Any) -> None:
        self.add_one(id, delay, priority, key, ttl, replace, **more)

    def add_one(
        self, id: str, delay: int, priority: int, key: str | None, ttl: int, replace: bool, **more: Any
    ) -> None:
        opts = JobOptions(
            attempts=more["attempts"],
            backoff=None if more["backoff"] is None else Backoff(delay_ms=more["backoff"]),
            lifo=more["lifo"],
            remove_on_complete=Retention() if more["kept"] else None,
            remove_on_fail=Retention() if more["kept"] else None,
            frees_id=True,
        )
        flags = (WATCHED if more["watched"] else 0) | (ABSOLUTE_DUE if more["dated"] else 0)
        got = self.core.add(
            self.queue,
            "n",
            b"{}",
            opts,
            self.model.now,
            id=id,
            delay=delay,
            priority=priority,
            flags=flags,
            deduplication=None if key is None else Deduplication(id=key, ttl_ms=ttl, replace=replace),
        )
        want = self.model.add(id, delay=delay, key=key, ttl=ttl, replace=replace, priority=priority, **more)
        assert got.id == want

    @rule(count=st.integers(1, 4), attempts=st.integers(0, 2), backoff=st.sampled_from([None, 20]), delay=st.just(0))
    def add_plain(self, count: int, attempts: int, backoff: int | None, delay: int) -> None:
        """Several simple jobs: the queue must be full enough for the other rules to bite."""
        for _ in range(count):
            self.add_one("", delay, 0, None, 0, False, **PLAIN | {"attempts": attempts, "backoff": backoff})

    @rule(
        delay=st.sampled_from([0, 10, 50]), ttl=st.sampled_from([0, 30]), replace=st.booleans(), watched=st.booleans()
    )
    def collapse(self, delay: int, ttl: int, replace: bool, watched: bool) -> None:
        """The same deduplication id again and again."""
        self.add_one("", delay, 0, "D", ttl, replace, **PLAIN | {"watched": watched})

    # --- running ------------------------------------------------------------------------------------------------

    @rule(number=NUMBERS)
    def fetch(self, number: int) -> None:
        token = f"t{number}"
        job = self.core.fetch(self.queue, self.model.now, token)
        assert (job.id if job is not None else None) == self.model.fetch()
        if job is not None:
            self.tokens[job.id] = token

    @rule(number=NUMBERS, fetch_next=st.booleans())
    def complete(self, number: int, fetch_next: bool) -> None:
        job = self.pick(number, "active")
        if job is None:
            return
        token = self.tokens.pop(job.id)
        following = self.core.complete(
            self.queue, job.id, b"1", self.model.now, token, fetch_next=fetch_next, next_token="n"
        )
        self.model.finish(job, "completed")
        if fetch_next:
            assert (following.id if following is not None else None) == self.model.fetch()
            if following is not None:
                self.tokens[following.id] = "n"

    @rule(number=NUMBERS)
    def fail(self, number: int) -> None:
        job = self.pick(number, "active")
        if job is not None:
            self.core.fail(self.queue, job.id, "no", "trace", self.model.now, self.tokens.pop(job.id))
            self.model.fail(job)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=5), fail=st.booleans())
    def run(self, numbers: list[int], fail: bool) -> None:
        """Start and end some jobs in one go."""
        for number in numbers:
            self.fetch(number)
            if fail:
                self.fail(number)
            else:
                self.complete(number, fetch_next=False)

    @rule(number=NUMBERS, delay=st.sampled_from([0, 15, -3]))
    def put_back(self, number: int, delay: int) -> None:
        job = self.pick(number, "active")
        if job is not None:
            self.core.move_to_delayed(self.queue, job.id, delay, self.model.now, self.tokens.pop(job.id))
            job.dated = False
            self.model.delay(job, self.model.now + max(delay, 0))

    @rule(ms=st.sampled_from([1, 5, 10, 20, 100]))
    def time_passes(self, ms: int) -> None:
        self.model.now += ms

    @rule(delta=st.sampled_from([-1000, -7, 13, 5000]))
    def clock_steps(self, delta: int) -> None:
        self.core.shift_clock(delta)
        self.model.shift(delta)

    # --- changes ------------------------------------------------------------------------------------------------

    @rule(number=NUMBERS)
    def retry(self, number: int) -> None:
        job = self.pick(number, "failed", "completed")
        if job is not None:
            self.core.retry(self.queue, job.id, self.model.now, state=job.state)
            self.model.retry(job)

    @rule(number=NUMBERS)
    def retry_elsewhere(self, number: int) -> None:
        job = self.pick(number, "waiting", "delayed", "active", "completed")
        if job is not None:
            with pytest.raises(JobNotInStateError):
                self.core.retry(self.queue, job.id, self.model.now)

    @rule(number=NUMBERS)
    def promote(self, number: int) -> None:
        job = self.pick(number, "delayed")
        if job is not None:
            self.core.promote(self.queue, job.id, self.model.now)
            self.model.ready(job)

    @rule(number=NUMBERS, delay=st.sampled_from([0, 10, 40]))
    def change_delay(self, number: int, delay: int) -> None:
        job = self.pick(number, "delayed")
        if job is not None:
            self.core.change_delay(self.queue, job.id, delay, self.model.now)
            job.dated = False
            self.model.delay(job, self.model.now + delay)

    @rule(number=NUMBERS, priority=st.sampled_from([0, 1, 2]), lifo=st.booleans())
    def change_priority(self, number: int, priority: int, lifo: bool) -> None:
        job = self.pick(number, "waiting", "prioritized", "delayed")
        if job is None:
            return
        self.core.change_priority(self.queue, job.id, priority, self.model.now, lifo=lifo)
        job.priority = priority
        if job.state != "delayed":
            self.model.ready(job, front=lifo)
            if priority and lifo:
                job.counter = 0

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        job = self.pick(number, *map(str, STATES))
        if job is None:
            return
        removed = self.core.remove(self.queue, job.id, self.model.now)
        assert removed == (job.state != "active")
        if removed:
            self.model.gone(job)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.model.paused = paused
        if paused:
            self.core.pause(self.queue)
        else:
            self.core.resume(self.queue, self.model.now)

    @precondition(lambda self: len(self.model.jobs) > 4)
    @rule(delayed=st.booleans(), limit=st.sampled_from([None, None, 1, 2]))
    def drain(self, delayed: bool, limit: int | None) -> None:
        ids = [*reversed(self.model.ids("waiting")), *(self.model.ids("delayed") if delayed else ())]
        ids += self.model.ids("prioritized")
        doomed = ids[:limit]
        assert self.core.drain(self.queue, self.model.now, delayed=delayed, limit=limit) == len(doomed)
        for id in doomed:
            self.model.gone(self.model.jobs[id])

    @rule(state=st.sampled_from(["completed", "failed", "delayed", "prioritized", "waiting"]), grace=st.integers(0, 40))
    def clean(self, state: str, grace: int) -> None:
        cutoff = self.model.now - grace
        ids = self.model.ids(state)
        if state == "waiting":
            ids.reverse()
        moments = {
            "completed": lambda job: job.finished_on,
            "failed": lambda job: job.finished_on,
            "prioritized": lambda job: job.timestamp,
        }
        moment = moments.get(state, lambda job: job.timestamp if job.processed_on is None else job.processed_on)
        doomed = [id for id in ids if moment(self.model.jobs[id]) <= cutoff]
        assert self.core.clean(self.queue, grace, 0, state, self.model.now) == doomed
        for id in doomed:
            self.model.gone(self.model.jobs[id])

    # --- comparing ----------------------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        self.core.check()
        self.core.take_events()
        for state in map(str, STATES):
            jobs = self.core.jobs(self.queue, [state], ascending=True)
            assert [job.id for job in jobs] == self.model.ids(state), state
            for job in jobs:
                want = self.model.jobs[job.id]
                assert (job.priority, job.attempts_made, job.attempts_started, job.finished_on) == (
                    want.priority,
                    want.attempts_made,
                    want.attempts_started,
                    want.finished_on,
                )
                assert job.due_ms == (want.due if state == "delayed" else None)
        assert set(self.queue.index) == set(self.model.jobs)
        assert self.queue.counter == self.model.counter
        assert set(self.queue.locks) == set(self.model.ids("active"))
        assert self.core.deduplication_owner(self.queue, "D", self.model.now) == self.model.owner("D")

    @invariant()
    def same_ends(self) -> None:
        self.ended += [job.id for job in self.core.take_ended()]
        assert sorted(self.ended) == sorted(self.model.ended)


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=100, stateful_step_count=50)
