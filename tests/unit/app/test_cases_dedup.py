"""Deduplication, debounce and throttle: cases C20 to C33, at the facade and at the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from inproc_jobs import (
    Deduplication,
    Engine,
    InvalidDurationError,
    InvalidOptionError,
    InvalidOptionTypeError,
)
from inproc_jobs.core import options as core_options
from inproc_jobs.core.core import Core
from inproc_jobs.core.job import Duplicate, Job
from inproc_jobs.core.options import Backoff, JobOptions, Retention
from inproc_jobs.core.states import COMPLETED
from inproc_jobs.snapshot.records import KeyRecord
from inproc_jobs.testing.memory_store import MemorySnapshot
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused

T0 = 1_700_000_000_000
DELETED = JobOptions(remove_on_complete=Retention(count=0))


@dataclass
class Line:
    """One queue of the bare core with a single worker; `at` moves the clock through everything that is due before."""

    core: Core = field(default_factory=Core)
    takes_ms: int = 0
    runs: list[tuple[int, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    outcomes: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = self.core.queue("q")
        self.core.listening = True
        self.now = 0
        self.running: tuple[Job, int] | None = None

    def add(self, data: str = "", **more: Any) -> Job | Duplicate:
        opts = more.pop("opts", JobOptions())
        return self.core.add(self.queue, "n", data.encode(), opts, T0 + self.now, **more)

    def at(self, moment: int) -> None:
        """Run what is due before a moment, each thing at its own time, and let it be that moment."""
        while self._step(moment):
            pass
        self.now = moment
        self.core.check()

    def _step(self, until: int) -> bool:
        if self.running is not None:
            job, end = self.running
            if end > until:
                return False
            self.now, self.running = end, None
            if self.outcomes and not self.outcomes.pop(0):
                self.core.fail(self.queue, job.id, "no", None, T0 + end, "t")
            else:
                self.core.complete(self.queue, job.id, b"1", T0 + end, "t")
            return True
        job = self.core.fetch(self.queue, T0 + self.now, "t")
        if job is not None:
            self.runs.append((self.now, job.data.decode()))
            self.ids.append(job.id)
            self.running = (job, self.now + self.takes_ms)
            return True
        wake = self.core.next_wake_ms(self.queue, T0 + self.now)
        if wake is None or wake - T0 > until:
            return False
        self.now = int(wake) - T0
        return True

    def events(self, name: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.core.events if event.name == name]


@pytest.fixture
def line() -> Line:
    return Line()


def told(engine: Engine, *names: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of these names from now on."""
    heard: list[tuple[str, dict[str, Any]]] = []
    for name in names:
        engine.on(name, lambda event: heard.append((event.name, dict(event.fields))))
    return heard


# --- C20: a delay and an id -----------------------------------------------------------------------------------------


@virtual
async def test_c20_a_delay_and_an_id_the_first_call_wins(world: World) -> None:
    """C20: the second call at 3000 moves neither the time nor the payload: one run, at 5000, v=1."""
    job = world.recorder()
    async with world.engine():
        await job.dispatch({"v": 1}, job_id="x", delay=5000)
        await asyncio.sleep(3)
        again = await job.dispatch({"v": 2}, job_id="x", delay=5000)
        assert (again.created, again.id, again.state) == (False, "x", "delayed")
        await asyncio.sleep(60)
    assert job.runs == [(5000, {"v": 1})]


def test_c20_at_the_core(line: Line) -> None:
    """C20: the same rule, without the facade."""
    line.add("v1", id="x", delay=5000)
    line.at(3000)
    assert isinstance(line.add("v2", id="x", delay=5000), Duplicate)
    line.at(60_000)
    assert line.runs == [(5000, "v1")]
    assert line.events("duplicated") == [{"jobId": "x"}]


# --- C21: debounce --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"deduplication": Deduplication.debounce("k", "5s")},
        {"deduplication": {"id": "k", "ttl": 5000, "extend": True, "replace": True}, "delay": 5000},
    ],
    ids=["named", "as BullMQ's dict"],
)
def test_c21_real_debounce(world: World, options: dict[str, Any]) -> None:
    """C21: adds at 0, 3000, 6000: one run at 11000 with the last payload; the others are told as removed."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        engine = world.engine()
        heard = told(engine, "removed", "deduplicated")
        receipts = []
        async with engine:
            for version in (1, 2, 3):
                receipts.append(await job.dispatch({"v": version}, **options))
                await asyncio.sleep(3)
            await asyncio.sleep(60)
        assert job.runs == [(11_000, {"v": 3})]
        ids = [receipt.id for receipt in receipts]
        assert [receipt.created for receipt in receipts] == [True, True, True]
        assert len(set(ids)) == 3
        assert heard == [
            ("removed", {"jobId": ids[0], "prev": "delayed"}),
            ("deduplicated", {"jobId": ids[1], "deduplicationId": "k", "deduplicatedJobId": ids[0]}),
            ("removed", {"jobId": ids[1], "prev": "delayed"}),
            ("deduplicated", {"jobId": ids[2], "deduplicationId": "k", "deduplicatedJobId": ids[1]}),
        ]

    story(world=world)


@virtual
async def test_c21_a_quiet_period_ends_a_debounce(world: World) -> None:
    """C21: what comes after the run is a run of its own, a full quiet period later."""
    job = world.recorder()
    rule = Deduplication.debounce("k", "5s")
    async with world.engine():
        await job.dispatch(1, deduplication=rule)
        await asyncio.sleep(5.001)
        await job.dispatch(2, deduplication=rule)
        await asyncio.sleep(60)
    assert job.runs == [(5000, 1), (10_001, 2)]


def test_c21_at_the_core(line: Line) -> None:
    """C21: the same rule, without the facade."""
    rule = core_options.Deduplication(id="k", ttl_ms=5000, extend=True, replace=True)
    ids = []
    for moment in (0, 3000, 6000):
        line.at(moment)
        ids.append(line.add(f"at {moment}", delay=5000, deduplication=rule).id)
    line.at(60_000)
    assert ids == ["1", "2", "3"]
    assert line.runs == [(11_000, "at 6000")]
    assert line.events("removed") == [{"jobId": "1", "prev": "delayed"}, {"jobId": "2", "prev": "delayed"}]


def test_c21_replacing_without_extending_keeps_the_rest_of_the_lifetime(line: Line) -> None:
    """C21: with `replace` alone the window of the first add goes on, so an add after its end finds no owner."""
    rule = core_options.Deduplication(id="k", ttl_ms=5000, replace=True)
    line.add("1", delay=9000, deduplication=rule)
    line.at(3000)
    line.add("2", delay=9000, deduplication=rule)
    line.at(6000)
    line.add("3", delay=9000, deduplication=rule)
    line.at(60_000)
    assert line.runs == [(12_000, "2"), (15_000, "3")]


# --- C22, C25: throttle ---------------------------------------------------------------------------------------------

THROTTLES = pytest.mark.parametrize(
    "rule", [Deduplication.throttle("k", "5s"), {"id": "k", "ttl": 5000}], ids=["named", "as BullMQ's dict"]
)


@THROTTLES
def test_c22_a_throttle_outlives_the_job(world: World, rule: Any) -> None:
    """C22: adds at 0, 2000, 4999, 5001: runs at 0 and 5001; the duplicates name the first, which is gone by then."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(remove_on_complete=True)
        receipts = []
        async with world.engine():
            for moment in (0, 2000, 4999, 5001):
                await asyncio.sleep((moment - world.ms) / 1000)
                receipts.append(await job.dispatch(moment, deduplication=rule))
                await asyncio.sleep(0.0005)
            assert await job.find(receipts[0].id) is None
            await asyncio.sleep(60)
        assert job.runs == [(0, 0), (5001, 5001)]
        assert [receipt.created for receipt in receipts] == [True, False, False, True]
        assert receipts[1].id == receipts[2].id == receipts[0].id
        assert receipts[3].id != receipts[0].id

    story(world=world)


@pytest.mark.parametrize(("moment", "created"), [(4999, False), (5000, True), (5001, True)])
def test_c22_at_the_core(line: Line, moment: int, created: bool) -> None:
    """C22: the lifetime ends at its exact millisecond, as a Redis key's does; the job may be long gone."""
    rule = core_options.Deduplication(id="k", ttl_ms=5000)
    first = line.add("1", opts=DELETED, deduplication=rule)
    line.at(moment)
    assert first.id not in line.queue.index
    again = line.add("2", opts=DELETED, deduplication=rule)
    assert isinstance(again, Job) is created
    assert (again.id == first.id) is not created


@THROTTLES
def test_c25_retention_frees_no_throttle_key(world: World, rule: Any) -> None:
    """C25: the owner falls to retention when others finish; the key blocks on until its lifetime ends."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(remove_on_complete=1)
        async with world.engine():
            first = await job.dispatch("first", deduplication=rule)
            await asyncio.sleep(1)
            for number in range(3):
                await job.dispatch(number)
            await asyncio.sleep(1)
            assert await job.find(first.id) is None
            assert not (await job.dispatch("blocked", deduplication=rule)).created
            await asyncio.sleep(3)
            assert (await job.dispatch("free", deduplication=rule)).created
            await asyncio.sleep(1)
        assert job.payloads == ["first", 0, 1, 2, "free"]

    story(world=world)


def test_c25_at_the_core(line: Line) -> None:
    """C25: retention leaves a key with a lifetime alone; removal by hand frees it."""
    rule = core_options.Deduplication(id="k", ttl_ms=5000)
    one = JobOptions(remove_on_complete=Retention(count=1))
    line.add("first", opts=one, deduplication=rule)
    line.at(10)
    line.add("other", opts=one)
    line.at(20)
    assert "1" not in line.queue.index
    assert isinstance(line.add("blocked", opts=one, deduplication=rule), Duplicate)
    line.at(5000)
    owner = line.add("second", opts=one, deduplication=rule)
    assert isinstance(owner, Job)
    line.core.remove(line.queue, owner.id, T0 + 5000)
    assert isinstance(line.add("third", opts=one, deduplication=rule), Job)


@virtual
async def test_c25_removal_by_hand_frees_a_throttle_key(world: World) -> None:
    """C25: only a removal on purpose frees the key before its time."""
    job = world.recorder()
    rule = Deduplication.throttle("k", "5s")
    engine = world.engine()
    async with engine:
        first = await job.dispatch(1, deduplication=rule)
        await asyncio.sleep(1)
        assert await engine.queue("default").remove(first.id)
        assert (await job.dispatch(2, deduplication=rule)).created
        await asyncio.sleep(1)
    assert job.payloads == [1, 2]


# --- C23: until the job is done -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Deduplication.until_done("k"), {"id": "k"}], ids=["named", "as BullMQ's dict"])
def test_c23_simple_deduplication_holds_through_retries(world: World, rule: Any) -> None:
    """C23: adds at 500 and 1500 are ignored while attempts are left; after the success at 2000 one is created."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=3, backoff={"type": "fixed", "delay": 1000})
        job.script = [ValueError("one"), ValueError("two")]
        created, states = [], []
        async with world.engine():
            await job.dispatch("first", deduplication=rule)
            for moment in (500, 1500, 2500):
                await asyncio.sleep((moment - world.ms) / 1000)
                receipt = await job.dispatch(moment, deduplication=rule)
                created.append(receipt.created)
                states.append(receipt.state)
            await asyncio.sleep(10)
        assert created == [False, False, True]
        assert states == ["delayed", "delayed", "waiting"]
        assert job.runs == [(0, "first"), (1000, "first"), (2000, "first"), (2500, 2500)]

    story(world=world)


@pytest.mark.parametrize("succeeds", [True, False])
def test_c23_at_the_core(line: Line, succeeds: bool) -> None:
    """C23: neither failure before the last frees the key; the end does, whichever it is."""
    rule = core_options.Deduplication(id="k")
    line.outcomes = [False, False, succeeds]
    line.add("first", opts=JobOptions(attempts=3, backoff=Backoff(delay_ms=1000)), deduplication=rule)
    for moment in (500, 1500):
        line.at(moment)
        assert line.core.deduplication_owner(line.queue, "k", T0 + moment) == "1"
        assert isinstance(line.add("no", deduplication=rule), Duplicate)
    line.at(2500)
    assert line.core.deduplication_owner(line.queue, "k", T0 + 2500) is None
    assert isinstance(line.add("yes", deduplication=rule), Job)


# --- C26, C27: keep the last ----------------------------------------------------------------------------------------

KEEP_LASTS = pytest.mark.parametrize(
    "rule",
    [Deduplication.keep_last("k"), {"id": "k", "keepLastIfActive": True}],
    ids=["named", "as BullMQ's dict"],
)


@KEEP_LASTS
def test_c26_keep_the_last_one_while_active(world: World, rule: Any) -> None:
    """C26: of four adds during one run of 10 s the last runs once more, at 10000; never two at once."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        job.takes_s = 10
        async with world.engine(concurrency=5):
            for version, moment in ((1, 0), (2, 100), (3, 5000), (4, 5100)):
                await asyncio.sleep((moment - world.ms) / 1000)
                assert (await job.dispatch({"v": version}, deduplication=rule)).created is (version == 1)
            await asyncio.sleep(60)
        assert job.runs == [(0, {"v": 1}), (10_000, {"v": 4})]

    story(world=world)


def test_c26_at_the_core(line: Line) -> None:
    """C26: the same rule, without the facade; each collapse is told with the owner's id."""
    rule = core_options.Deduplication(id="k", keep_last=True)
    line.takes_ms = 10_000
    for version, moment in ((1, 0), (2, 100), (3, 5000), (4, 5100)):
        line.at(moment)
        line.add(f"v{version}", deduplication=rule)
    line.at(60_000)
    assert line.runs == [(0, "v1"), (10_000, "v4")]
    assert [event["jobId"] for event in line.events("deduplicated")] == ["1", "1", "1"]


@KEEP_LASTS
def test_c26_a_run_that_fails_for_good_is_followed_as_well(world: World, rule: Any) -> None:
    """C26: the follow-up comes whichever way the first run ends, and only after its last attempt."""

    @virtual
    async def story(world: World) -> None:
        job = world.recorder(attempts=2)
        job.takes_s = 10
        job.script = [ValueError("one"), ValueError("two")]
        async with world.engine():
            await job.dispatch(1, deduplication=rule)
            await asyncio.sleep(1)
            await job.dispatch(2, deduplication=rule)
            await asyncio.sleep(60)
        assert job.runs == [(0, 1), (10_000, 1), (20_000, 2)]

    story(world=world)


@virtual
async def test_c27_keep_last_keeps_the_callers_id(world: World) -> None:
    """C27: the follow-up has the id of its own dispatch, and the counter has moved for it."""
    job = world.recorder()
    job.takes_s = 10
    rule = Deduplication.keep_last("k")
    async with world.engine():
        await job.dispatch(1, job_id="u1", deduplication=rule)
        await asyncio.sleep(1)
        await job.dispatch(2, job_id="u2", deduplication=rule)
        await asyncio.sleep(10)
        assert (await job.dispatch(3)).id == "4"
        await asyncio.sleep(60)
    assert [context.id for context in job.contexts] == ["u1", "u2", "4"]


def test_c27_at_the_core(line: Line) -> None:
    """C27: two adds and the follow-up count, so the next automatic id is 4."""
    rule = core_options.Deduplication(id="k", keep_last=True)
    line.takes_ms = 10_000
    line.add("1", id="u1", deduplication=rule)
    line.at(100)
    line.add("2", id="u2", deduplication=rule)
    line.at(10_500)
    assert line.add("3").id == "4"
    line.at(60_000)
    assert line.ids == ["u1", "u2", "4"]


# --- C29: no id -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        ({}, InvalidOptionError, ("deduplication.id", "empty")),
        ({"id": ""}, InvalidOptionError, ("deduplication.id", "empty")),
        ({"id": None}, InvalidOptionTypeError, ("deduplication.id", "text")),
        ({"id": 7}, InvalidOptionTypeError, ("deduplication.id", "text")),
        ({"id": "\ud800"}, InvalidOptionError, ("deduplication.id",)),
        ({"id": "k", "tll": 5}, InvalidOptionError, ("tll", "ttl")),
        ({"id": "k", "ttl": -1}, InvalidDurationError, ("deduplication.ttl",)),
        ({"id": "k", "replace": 1}, InvalidOptionTypeError, ("deduplication.replace",)),
        ("k", InvalidOptionTypeError, ("deduplication", "dict with an id")),
    ],
    ids=repr,
)
async def test_c29_a_deduplication_without_an_id_is_refused(
    world: World, engine: Engine, rule: Any, error: type[Exception], words: tuple[str, ...]
) -> None:
    """C29: an empty or missing key would make all such jobs block each other: refused, and nothing has changed."""
    job = world.noop()
    with refused(engine, error, *words):
        await job.dispatch(None, deduplication=rule)


@pytest.mark.parametrize(
    "make",
    [
        Deduplication.until_done,
        Deduplication.keep_last,
        lambda key: Deduplication.throttle(key, "1s"),
        lambda key: Deduplication.debounce(key, "1s"),
    ],
    ids=["until_done", "keep_last", "throttle", "debounce"],
)
@pytest.mark.parametrize("id", ["", None, 7])
def test_c29_the_named_kinds_refuse_it_too(make: Callable[[Any], Deduplication], id: Any) -> None:
    """C29: each of the named kinds checks the id where it is made."""
    with pytest.raises((InvalidOptionError, InvalidOptionTypeError), match=r"deduplication\.id"):
        make(id)


@pytest.mark.parametrize("make", [Deduplication.throttle, Deduplication.debounce])
def test_c29_a_window_of_nothing_is_refused(make: Callable[[str, Any], Deduplication]) -> None:
    """A throttle or debounce of no length would be another kind of collapsing."""
    with pytest.raises(InvalidDurationError, match="more than 0"):
        make("k", 0)


# --- C30: replace -----------------------------------------------------------------------------------------------


@virtual
async def test_c30_replace_leaves_a_waiting_job_alone(world: World) -> None:
    """C30: `replace` acts on a delayed owner only; a waiting one keeps its payload and the add is ignored."""
    job = world.recorder()
    engine = world.engine()
    queue = engine.queue("default")
    await queue.pause()
    async with engine:
        first = await job.dispatch({"v": 1}, deduplication={"id": "k", "replace": True})
        again = await job.dispatch({"v": 2}, deduplication={"id": "k", "replace": True})
        assert (again.created, again.id, again.state) == (False, first.id, "waiting")
        await queue.resume()
        await asyncio.sleep(1)
    assert job.payloads == [{"v": 1}]


def test_c30_at_the_core(line: Line) -> None:
    """C30: ignored without an event, which is what BullMQ does; a delayed owner is replaced by any later add."""
    rule = core_options.Deduplication(id="k", replace=True)
    line.add("v1", deduplication=rule)
    assert isinstance(line.add("v2", deduplication=rule), Duplicate)
    assert line.events("deduplicated") == []
    line.at(10)
    line.add("v3", delay=500, deduplication=rule)
    line.add("v4", deduplication=rule)
    line.at(1000)
    assert line.runs == [(0, "v1"), (10, "v4")]


# --- C32: a key whose owner is gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("ttl_ms", "created"), [(None, True), (60_000, False), (-1, True)])
async def test_c32_a_key_whose_owner_is_gone(
    world: World, caplog: pytest.LogCaptureFixture, ttl_ms: int | None, created: bool
) -> None:
    """C32: without a lifetime the key is dropped on restore, with a warning; a throttle key with time left blocks on."""
    job = world.noop()
    kept = MemorySnapshot()
    async with world.engine(snapshot=kept):
        await job.dispatch("another", delay="1d")
    until_ms = None if ttl_ms is None else world.clock.now_ms() + ttl_ms
    kept.shelves["default"].state.keys["k"] = KeyRecord("gone", until_ms)
    async with world.engine(snapshot=kept) as engine:
        assert engine.queue("default").counts()["delayed"] == 1
        receipt = await job.dispatch("new", deduplication={"id": "k"})
        assert receipt.created is created
        if not created:
            assert receipt.id == "gone"
            world.clock.jump(60_001)
            assert (await job.dispatch("new", deduplication={"id": "k"})).created
    warnings = [record.getMessage() for record in caplog.records if "deduplication ids" in record.getMessage()]
    assert len(warnings) == (ttl_ms is None)
    assert all("'k'" in warning and "'default'" in warning for warning in warnings)


def test_c32_at_the_core(line: Line) -> None:
    """C32: a key that lost its job gives way to the next add even without a restart, unless it has a lifetime."""
    line.core.set_deduplication_key(line.queue, "k", "gone", None)
    assert isinstance(line.add("1", deduplication=core_options.Deduplication(id="k")), Job)
    line.core.set_deduplication_key(line.queue, "t", "gone", T0 + 1000)
    assert isinstance(line.add("2", deduplication=core_options.Deduplication(id="t")), Duplicate)


# --- C33: a lifetime that ends before the job -----------------------------------------------------------------------


@virtual
async def test_c33_an_expired_lifetime_and_a_waiting_owner(world: World) -> None:
    """C33: in a paused queue the window ends at 1000, so the add at 2000 is a job; the first's end frees nothing."""
    job = world.recorder()
    job.takes_s = 0.2
    engine = world.engine()
    queue = engine.queue("default")
    await queue.pause()
    rule = Deduplication.throttle("k", "1s")
    async with engine:
        assert (await job.dispatch(1, deduplication=rule)).created
        await asyncio.sleep(2)
        second = await job.dispatch(2, deduplication=rule)
        assert second.created
        await queue.resume()
        await asyncio.sleep(0.3)
        assert job.payloads == [1, 2]
        third = await job.dispatch(3, deduplication=rule)
        assert (third.created, third.id) == (False, second.id)
        await asyncio.sleep(10)
    assert job.payloads == [1, 2]


@pytest.mark.parametrize("ttl_ms", [1000, 0], ids=["throttle", "until done"])
def test_c33_at_the_core(line: Line, ttl_ms: int) -> None:
    """C33: the end of the first owner takes nothing from the second, whichever kind of key that one has."""
    line.takes_ms = 100
    line.core.pause(line.queue)
    line.add("1", deduplication=core_options.Deduplication(id="k", ttl_ms=1000))
    line.at(2000)
    second = line.add("2", deduplication=core_options.Deduplication(id="k", ttl_ms=ttl_ms))
    assert isinstance(second, Job)
    line.core.resume(line.queue)
    line.at(2150)
    assert line.queue.index["1"].state is COMPLETED
    assert line.core.deduplication_owner(line.queue, "k", T0 + 2150) == second.id


# --- what the named kinds stand for ---------------------------------------------------------------------------------


@virtual
async def test_reschedule_moves_the_owner(world: World) -> None:
    """BullMQ's `reschedule`: the delayed owner keeps its payload and gets the due time of the add."""
    job = world.recorder()
    async with world.engine():
        first = await job.dispatch(1, delay="5s", deduplication={"id": "k", "reschedule": True})
        await asyncio.sleep(1)
        again = await job.dispatch(2, delay="10s", deduplication={"id": "k", "reschedule": True})
        assert (again.created, again.id, again.state) == (False, first.id, "delayed")
        await asyncio.sleep(60)
    assert job.runs == [(11_000, 1)]


@virtual
async def test_keys_belong_to_a_queue(world: World) -> None:
    """Keys belong to a queue: the same deduplication id elsewhere is another one."""
    one, two = world.recorder("one", queue="q1"), world.recorder("two", queue="q2")
    async with world.engine():
        for job in (one, two):
            receipts = await job.job.dispatch_many(
                [(number, {"deduplication": Deduplication.until_done("k"), "delay": "1s"}) for number in range(3)]
            )
            assert [receipt.created for receipt in receipts] == [True, False, False]
        await asyncio.sleep(10)
    assert (one.payloads, two.payloads) == ([0], [0])
