"""
A core, what is captured of it, and a store: whatever happens, and whatever becomes of the writes, the store can be made
to hold what the core holds, and every single write leaves a state from which a process can go on.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inproc_jobs.core.job import ABSOLUTE_DUE, HELD, Job, ParentLink, Repeat
from inproc_jobs.core.options import Backoff, Deduplication, JobOptions, Retention
from inproc_jobs.core.queue import Queue
from inproc_jobs.core.states import ALIVE_STATES, STATES, JobState
from inproc_jobs.core.trees import NewJob
from inproc_jobs.errors import InprocJobsError
from inproc_jobs.snapshot import capture as capture_module
from inproc_jobs.snapshot.capture import Capture
from inproc_jobs.snapshot.records import Batch
from inproc_jobs.snapshot.store import Owner
from inproc_jobs.testing.memory_store import MemorySnapshot
from tests.unit.snapshot.worlds import T0, keeper_of, new_core, picture, restored, write_all

OPTIONS = [
    JobOptions(frees_id=True),
    JobOptions(attempts=3, backoff=Backoff(type="exponential", delay_ms=20, max_delay_ms=90), frees_id=True),
    JobOptions(attempts=2, remove_on_complete=Retention(), remove_on_fail=Retention(count=2), timeout_ms=70),
    JobOptions(attempts=2, lifo=True, frees_id=True, keep_logs=2),
    JobOptions(remove_on_complete=Retention(count=0), remove_on_fail=Retention(count=0)),
    JobOptions(attempts=1, given={"attempts": 1, "telemetry": {"metadata": "m"}}),
]
NUMBERS = st.integers(0, 1_000)
QUEUES = st.sampled_from(["q", "r"])
IDS = st.sampled_from(["", "", "a", "b", "c"])


class CaptureMachine(RuleBasedStateMachine):
    """The truth is the core; the store is asked what it would give back."""

    batch_jobs = 3

    def __init__(self) -> None:
        super().__init__()
        capture_module.BATCH_JOBS = self.batch_jobs  # type: ignore[misc]  # small, so that few jobs make several writes
        capture_module.BATCH_PARTS = 1  # type: ignore[misc]
        self.core = new_core("q", "r")
        self.snapshot = MemorySnapshot()
        self.store = self.snapshot.open_store()
        self.store.acquire(Owner("here", 1, T0))
        self.capture = Capture(self.core)
        self.capture.track(self.core.queue("q"))  # the other one is tracked when it is first looked at
        self.now = T0
        self.token = 0
        self.in_flight: Batch | None = None

    def teardown(self) -> None:
        capture_module.BATCH_JOBS = 200  # type: ignore[misc]
        capture_module.BATCH_PARTS = 200  # type: ignore[misc]

    def pick(self, name: str, number: int, *states: JobState) -> tuple[Queue, Job | None]:
        queue = self.core.queue(name)
        jobs = [job for state in states or ALIVE_STATES for job in queue.containers[state]]
        return queue, jobs[number % len(jobs)] if jobs else None

    # --- what happens to jobs -----------------------------------------------------------------------------------

    @rule(
        name=QUEUES,
        id=IDS,
        opts=st.sampled_from(OPTIONS),
        delay=st.sampled_from([0, 0, 10, 500]),
        priority=st.sampled_from([0, 0, 0, 1, 2]),
        dated=st.booleans(),
        held=st.booleans(),
        key=st.sampled_from([None, None, "d", "e"]),
        rule_of_key=st.sampled_from(
            [
                {},
                {"ttl_ms": 30},
                {"replace": True, "ttl_ms": 30, "extend": True},
                {"keep_last": True},
                {"replace": True},
            ]
        ),
    )
    def add(self, name: str, id: str, opts: JobOptions, **more: Any) -> None:
        self.core.add(
            self.core.queue(name),
            "n",
            b'{"at":%d}' % self.now,
            opts,
            self.now,
            id=id,
            delay=more["delay"],
            priority=more["priority"],
            flags=(ABSOLUTE_DUE if more["dated"] else 0) | (HELD if more["held"] else 0),
            deduplication=None if more["key"] is None else Deduplication(id=more["key"], **more["rule_of_key"]),
        )

    @rule(name=QUEUES, other=QUEUES, held=st.booleans(), policy=st.sampled_from(["", "fpof", "cpof", "idof", "rdof"]))
    def add_flow(self, name: str, other: str, held: bool, policy: str) -> None:
        self.token += 1
        flags = HELD if held else 0
        parent = f"p{self.token}"
        child = {"opts": OPTIONS[0], "flags": flags, "parent": ParentLink(parent, name, policy), "data": b"1"}
        self.core.add_flow(
            [
                NewJob(queue=name, name="n", data=b"0", opts=OPTIONS[0], id=parent, flags=flags, has_children=True),
                NewJob(queue=other, name="n", id=f"k{self.token}", **child),
                NewJob(queue="q", name="n", id=f"l{self.token}", delay=10, **child),
            ],
            self.now,
        )

    @rule(name=QUEUES)
    def fetch(self, name: str) -> None:
        self.token += 1
        job = self.core.fetch(self.core.queue(name), self.now, f"t{self.token}")
        if job is not None:
            self.core.start_iteration(self.core.queue(name), job, self.now)

    @rule(name=QUEUES, number=NUMBERS, fetch_next=st.booleans())
    def complete(self, name: str, number: int, fetch_next: bool) -> None:
        queue, job = self.pick(name, number, JobState.ACTIVE)
        if job is not None:
            self.token += 1
            self.refusable(
                lambda: self.core.complete(
                    queue,
                    job.id,
                    b'"done"',
                    self.now,
                    queue.locks.get(job.id, "0"),
                    fetch_next=fetch_next,
                    next_token=f"t{self.token}",
                )
            )

    @rule(name=QUEUES, number=NUMBERS, final=st.booleans())
    def fail(self, name: str, number: int, final: bool) -> None:
        queue, job = self.pick(name, number, JobState.ACTIVE)
        if job is not None:
            token = queue.locks.get(job.id, "0")
            self.refusable(lambda: self.core.fail(queue, job.id, "boom", "trace", self.now, token, unrecoverable=final))

    @rule(name=QUEUES, number=NUMBERS, ms=st.sampled_from([0, 15]))
    def put_back(self, name: str, number: int, ms: int) -> None:
        queue, job = self.pick(name, number, JobState.ACTIVE)
        if job is None:
            return
        token = queue.locks.get(job.id, "0")
        if ms:
            self.core.move_to_delayed(queue, job.id, ms, self.now, token)
        else:
            self.core.move_to_wait(queue, job.id, self.now, token)

    @rule(name=QUEUES, number=NUMBERS)
    def retry(self, name: str, number: int) -> None:
        queue, job = self.pick(name, number, JobState.FAILED, JobState.COMPLETED)
        if job is not None:
            self.core.retry(queue, job.id, self.now, state=str(job.state))

    @rule(name=QUEUES, number=NUMBERS, what=st.sampled_from(["promote", "change_delay", "recover"]))
    def move(self, name: str, number: int, what: str) -> None:
        state = JobState.ACTIVE if what == "recover" else JobState.DELAYED
        queue, job = self.pick(name, number, state)
        if job is None:
            return
        if what == "promote":
            self.core.promote(queue, job.id, self.now)
        elif what == "change_delay":
            self.core.change_delay(queue, job.id, 40, self.now)
        else:
            self.core.recover_stalled(queue, job.id, self.now)

    @rule(name=QUEUES, number=NUMBERS, priority=st.integers(0, 2), lifo=st.booleans())
    def change_priority(self, name: str, number: int, priority: int, lifo: bool) -> None:
        queue, job = self.pick(name, number)
        if job is not None:
            self.core.change_priority(queue, job.id, priority, self.now, lifo=lifo)

    @rule(name=QUEUES, number=NUMBERS)
    def say(self, name: str, number: int) -> None:
        queue, job = self.pick(name, number)
        if job is not None:
            self.core.add_log(queue, job.id, f"row {number}", 2)
            self.core.update_progress(queue, job.id, b"%d" % number)
            self.core.update_data(queue, job.id, b'"new"')

    @rule(name=QUEUES, number=NUMBERS)
    def remove(self, name: str, number: int) -> None:
        queue, job = self.pick(name, number, *STATES)
        if job is not None:
            self.refusable(lambda: self.core.remove(queue, job.id, self.now))

    @rule(name=QUEUES, what=st.sampled_from(["pause", "resume", "drain", "clean", "rate_limit", "obliterate"]))
    def administer(self, name: str, what: str) -> None:
        queue = self.core.queue(name)
        if what == "clean":
            self.core.clean(queue, 0, 2, "completed", self.now)
        elif what == "rate_limit":
            self.core.rate_limit(queue, 50, self.now)
        elif what == "drain":
            self.core.drain(queue, self.now, delayed=True, limit=2)
        elif what == "obliterate":
            self.core.obliterate(queue, self.now, force=True)
        elif what == "pause":
            self.core.pause(queue)
        else:
            self.core.resume(queue)

    @rule(name=QUEUES, id=st.sampled_from(["s", "t"]), catch_up=st.sampled_from(["once", "all", "skip"]))
    def schedule(self, name: str, id: str, catch_up: str) -> None:
        queue = self.core.queue(name)
        repeat = Repeat(every=100, catch_up=catch_up, priority=1)
        self.refusable(
            lambda: self.core.upsert_scheduler(queue, id, "n", b"{}", repeat, OPTIONS[1], self.now, template={"a": 1})
        )

    @rule(name=QUEUES, id=st.sampled_from(["s", "t"]))
    def unschedule(self, name: str, id: str) -> None:
        self.core.remove_scheduler(self.core.queue(name), id)

    @rule(ms=st.sampled_from([1, 20, 200]))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule(ms=st.sampled_from([-30, 30]))
    def shift(self, ms: int) -> None:
        self.core.shift_clock(ms)
        self.now += ms

    def refusable(self, command: Any) -> None:
        """What the core may refuse, as long as it says so."""
        try:
            command()
        except InprocJobsError:
            pass

    # --- what becomes of writes ---------------------------------------------------------------------------------

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def begin_write(self) -> None:
        self.in_flight = self.capture.take(self.now)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def write_arrives(self) -> None:
        assert self.in_flight is not None
        self.store.apply(self.in_flight)
        held, parked = self.capture.written(self.in_flight)
        self.in_flight = None
        for queue, job in held:
            self.core.confirm(queue, job)
        for new in parked:
            self.core.confirm_parked(new)
        # Whatever of it all the store has by now: a process can go on from there.
        restored(self.store, finish_ms=self.now).check()

    @precondition(lambda self: self.in_flight is not None)
    @rule(arrived=st.sampled_from([None, True, False]), withdraw=st.booleans())
    def write_fails(self, arrived: bool | None, withdraw: bool) -> None:
        assert self.in_flight is not None
        if arrived:
            self.store.apply(self.in_flight)
        self.capture.not_written(self.in_flight, unknown=arrived is not None)
        self.in_flight = None
        if not withdraw:
            return
        for queue in self.core.queues.values():
            for job in list(queue.index.values()):
                self.core.withdraw(queue, job)
            for new in list(queue.parked.values()):
                if new.flags & HELD:
                    self.core.withdraw_parked(queue, new)
            assert not queue.held
            assert not queue.displaced
            assert not queue.unstored

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def catch_up_with_it(self) -> None:
        """After a quiet moment the store has exactly what the core has."""
        write_all(self.core, self.capture, self.store, self.now)
        assert not self.capture.backlog()
        assert picture(restored(self.store)) == picture(self.core)
        assert self.capture.take(self.now) is None

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def lose_everything(self) -> None:
        """The store came back empty; it is told everything anew."""
        self.snapshot.shelves.clear()
        self.capture.forget_store()
        self.catch_up_with_it()

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def crash(self) -> None:
        """The process goes on from the store, having lost what was not written."""
        write_all(self.core, self.capture, self.store, self.now)
        stalled = sum(len(queue.active) for queue in self.core.queues.values())
        self.core = new_core("q", "r")
        keeper = keeper_of(self.core, self.store, now_ms=lambda: self.now)
        keeper._intake.load(keeper._store)
        self.capture = keeper.capture
        self.core.check()
        assert len(self.capture.take(self.now).queues if stalled else ()) > 0 or not stalled
        self.capture.give_back()

    @invariant()
    def nothing_contradicts(self) -> None:
        self.core.check()
        for queue in self.core.queues.values():
            assert queue.held == sum(1 for job in queue.index.values() if job.flags & HELD)
            assert set(queue.displaced) <= {*queue.index.values(), *queue.unstored}
            assert not queue.unstored or queue.displaced


TestCapture = CaptureMachine.TestCase
TestCapture.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
