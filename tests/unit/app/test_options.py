"""Every option refuses what is wrong, where it is given, and changes nothing (issue item 8); who wins (DESIGN 4)."""

import asyncio
import functools
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inproc_jobs import (
    Deduplication,
    Engine,
    InprocJobsError,
    InvalidDurationError,
    InvalidHandlerError,
    InvalidJobIdError,
    InvalidOptionError,
    InvalidOptionTypeError,
    NoEngineError,
    QueueFullError,
    Registry,
)
from tests.parameter_ids import stable_repr
from tests.unit.app.virtual import START, virtual
from tests.unit.app.world import World, refused

HUGE = 10**5000
"""An int whose text Python refuses to write: messages must cope."""


class Rude:
    """An object that cannot be shown, compared or tested."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no eq")

    def __bool__(self) -> bool:
        raise ValueError("no bool")

    __hash__ = None  # type: ignore[assignment]


# What is wrong for the options that `define_job`, `default_job_options` and a dispatch share: (option, value, words).
SHARED: list[tuple[str, Any, tuple[str, ...]]] = [
    ("attempts", 0, ("1 or more",)),
    ("attempts", -1, ("1 or more",)),
    ("attempts", True, ("1 or more", "bool")),
    ("attempts", 2.0, ("1 or more", "float")),
    ("attempts", "3", ("1 or more", "str")),
    ("attempts", float("nan"), ("1 or more",)),
    ("attempts", -HUGE, ("1 or more",)),
    ("backoff", -1, ("negative", '"30s"')),
    ("backoff", True, ("bool", '"30s"')),
    ("backoff", 1.5, ("float", '"30s"')),
    ("backoff", "soon", ("unit", '"30s"')),
    ("backoff", {"type": "nope", "delay": 1}, ("'nope'", "'fixed'", "'exponential'")),
    ("backoff", {"type": Rude(), "delay": 1}, ("'fixed'", "'exponential'")),
    ("backoff", {"type": ["fixed"], "delay": 1}, ("'fixed'", "'exponential'")),
    ("backoff", {"type": "fixed"}, ("needs a delay",)),
    ("backoff", {}, ("needs a delay",)),
    ("backoff", {"delay": -5}, ("backoff.delay", "negative")),
    ("backoff", {"delay": "1s", "jitter": 1.5}, ("backoff.jitter", "0 to 1")),
    ("backoff", {"delay": "1s", "jitter": -0.1}, ("backoff.jitter", "0 to 1")),
    ("backoff", {"delay": "1s", "jitter": float("nan")}, ("backoff.jitter", "0 to 1")),
    ("backoff", {"delay": "1s", "jitter": True}, ("backoff.jitter", "0 to 1")),
    ("backoff", {"delay": "1s", "jitter": HUGE}, ("backoff.jitter", "0 to 1")),
    ("backoff", {"delay": "1s", "jitter": None}, ("backoff.jitter", "0 to 1")),
    ("backoff", {"delay": "1s", "max_delay": 5}, ("backoff.max_delay", "guess")),
    ("backoff", {"delay": "1s", "max_delay": "-5s"}, ("backoff.max_delay",)),
    ("backoff", {"delay": "1s", "factor": 2}, ("'factor'", "jitter", "max_delay")),
    ("backoff", {"delay": "1s", 5: 2}, ("5", "jitter", "max_delay")),
    ("remove_on_complete", -1, ("0 or more",)),
    ("remove_on_complete", 1.5, ("True, False, a number",)),
    ("remove_on_complete", "yes", ("True, False, a number",)),
    ("remove_on_complete", {}, ("empty", "count", "False")),
    ("remove_on_complete", {"limit": 5}, ("count", "age")),
    ("remove_on_complete", {"count": None}, ("count", "age")),
    ("remove_on_complete", {"count": -1}, ("remove_on_complete.count", "0 or more")),
    ("remove_on_complete", {"count": True}, ("remove_on_complete.count", "0 or more")),
    ("remove_on_complete", {"age": -1}, ("remove_on_complete.age",)),
    ("remove_on_complete", {"age": float("inf")}, ("remove_on_complete.age",)),
    ("remove_on_complete", {"age": "10"}, ("remove_on_complete.age", "unit")),
    ("remove_on_complete", {"age": 5, "limit": 0}, ("remove_on_complete.limit", "1 or more")),
    ("remove_on_complete", {"ages": 5}, ("'ages'", "count", "age", "limit")),
    ("remove_on_fail", -1, ("0 or more",)),
    ("remove_on_fail", [], ("True, False, a number",)),
    ("remove_on_fail", {"count": 1.0}, ("remove_on_fail.count", "0 or more")),
    ("remove_on_fail", Rude(), ("True, False, a number", "Rude")),
    ("keep_logs", -1, ("0 or more",)),
    ("keep_logs", True, ("0 or more",)),
    ("keep_logs", "3", ("0 or more",)),
    ("size_limit", 0, ("1 or more",)),
    ("size_limit", 1.0, ("1 or more",)),
    ("stack_trace_limit", -1, ("0 or more",)),
    ("stack_trace_limit", False, ("0 or more",)),
]
TIMEOUTS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("timeout", 30, ("timeout", "guess", '"30s"')),
    ("timeout", 1.5, ("timeout", "float")),
    ("timeout", True, ("timeout", "bool")),
    ("timeout", "0s", ("timeout", "more than 0")),
    ("timeout", timedelta(0), ("timeout", "more than 0")),
    ("timeout", "-1s", ("timeout", '"30s"')),
    ("timeout", timedelta(microseconds=5), ("timeout", "finer")),
]


def name_of(value: Any) -> str:
    """A test id that does not call what is rude."""
    if isinstance(value, tuple):
        return ""
    try:
        return stable_repr(value).encode("ascii", "backslashreplace").decode()[:40]
    except ValueError:
        return type(value).__name__


def check(caught: Any, option: str) -> None:
    """The error names the option, and is of the family that callers catch."""
    error = caught.value
    assert isinstance(error, InvalidOptionError)
    assert isinstance(error, InprocJobsError)
    assert isinstance(error, ValueError)
    assert error.option.split(".")[0] == option
    assert option in str(error)
    assert len(str(error)) < 600


# --- dispatch ---------------------------------------------------------------------------------------------------

DISPATCH: list[tuple[str, Any, tuple[str, ...]]] = [
    *SHARED,
    ("priority", -1, ("0 to 2097151",)),
    ("priority", 2_097_152, ("0 to 2097151",)),
    ("priority", HUGE, ("0 to 2097151",)),
    ("priority", 1.5, ("0 to 2097151", "float")),
    ("priority", True, ("0 to 2097151", "bool")),
    ("priority", "high", ("0 to 2097151", "str")),
    ("lifo", 1, ("True or False", "int")),
    ("lifo", "yes", ("True or False", "str")),
    ("deduplication", "key", ("Deduplication", "dict", "str")),
    ("deduplication", {}, ("deduplication.id", "empty")),
    ("deduplication", {"id": ""}, ("deduplication.id", "empty")),
    ("deduplication", {"id": None}, ("deduplication.id", "text")),
    ("deduplication", {"id": 5}, ("deduplication.id", "text")),
    ("deduplication", {"id": "\ud800"}, ("deduplication.id", "surrogate")),
    ("deduplication", {"id": "k", "ttl": -1}, ("deduplication.ttl", "negative")),
    ("deduplication", {"id": "k", "ttl": "soon"}, ("deduplication.ttl", "unit")),
    ("deduplication", {"id": "k", "extend": 1}, ("deduplication.extend", "True or False")),
    ("deduplication", {"id": "k", "replace": "no"}, ("deduplication.replace", "True or False")),
    ("deduplication", {"id": "k", "reschedule": None}, ("deduplication.reschedule", "True or False")),
    ("deduplication", {"id": "k", "keepLastIfActive": 0}, ("deduplication.keepLastIfActive", "True or False")),
    ("deduplication", {"id": "k", "keep_last": True}, ("'keep_last'", "keepLastIfActive")),
    ("timestamp", 0, ("timestamp",)),
    ("timestamp", -5, ("timestamp",)),
    ("timestamp", 1.5, ("timestamp", "float")),
    ("timestamp", True, ("timestamp", "bool")),
    ("timestamp", HUGE, ("timestamp",)),
    ("timestamp", "2026-01-01", ("timestamp", "str")),
    ("timestamp", datetime(2026, 1, 1), ("timestamp", "naive")),
    ("timestamp", datetime(1969, 1, 1, tzinfo=UTC), ("timestamp",)),
]


@pytest.mark.parametrize(("option", "value", "words"), DISPATCH, ids=name_of)
async def test_dispatch_refuses(world: World, engine: Engine, option: str, value: Any, words: tuple[str, ...]) -> None:
    """A wrong dispatch option: typed, names culprit and cure; no id, counter, event or key."""
    job = world.noop()
    with refused(engine, InvalidOptionError, *words) as caught:
        await job.dispatch({"n": 1}, **{"job_id": "x", option: value})
    check(caught, option)
    with refused(engine, InvalidOptionError, *words) as caught:
        job.dispatch_sync({"n": 1}, **{"job_id": "x", option: value})
    check(caught, option)
    with refused(engine, InvalidOptionError, *words) as caught:
        await job.dispatch_many([({"n": 0}, None), ({"n": 1}, {option: value})])
    check(caught, option)
    assert "jobs[1]" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("option", ["timeout", "executor", "queue", "retries", "jobId", ""])
async def test_dispatch_refuses_unknown_options(world: World, engine: Engine, option: str) -> None:
    """A misspelled option is never swallowed; the message lists the known ones."""
    job = world.noop()
    with refused(engine, InvalidOptionTypeError, repr(option), "job_id, delay, run_at"):
        await job.dispatch(None, **{option: 1})
    with refused(engine, InvalidOptionTypeError, repr(option), "job_id, delay, run_at"):
        job.dispatch_sync(None, **{option: 1})
    with refused(engine, InvalidOptionTypeError, repr(option), "job_id, delay, run_at"):
        await job.dispatch_many([(None, {option: 1})])


async def test_a_backoff_callable_belongs_to_the_definition(world: World, engine: Engine) -> None:
    """A job is data: a callable at dispatch or among the defaults is refused with the cure."""
    job = world.noop()
    with refused(engine, InvalidOptionTypeError, "backoff", "define_job(backoff=...)"):
        await job.dispatch(None, attempts=3, backoff=lambda attempts_made, error, job: 1)
    with pytest.raises(InvalidOptionTypeError, match="define_job"):
        world.engine(default_job_options={"backoff": lambda attempts_made, error, job: 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Deduplication.until_done(""),
        lambda: Deduplication.until_done(None),  # type: ignore[arg-type]
        lambda: Deduplication.throttle("k", 0),
        lambda: Deduplication.throttle("k", "0s"),
        lambda: Deduplication.throttle("", "1s"),
        lambda: Deduplication.throttle("k", -1),
        lambda: Deduplication.debounce("k", "soon"),
        lambda: Deduplication.debounce("k", timedelta(0)),
        lambda: Deduplication.keep_last(5),  # type: ignore[arg-type]
    ],
)
def test_deduplication_names_refuse(make: Callable[[], Any]) -> None:
    """The named kinds of collapsing check id and duration where they are made."""
    with pytest.raises(InvalidOptionError, match="deduplication"):
        make()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attempts", 10**9),
        ("priority", 0),
        ("priority", 2_097_151),
        ("backoff", 0),
        ("backoff", {"delay": 0}),
        ("backoff", {"type": "exponential", "delay": "1s", "jitter": 1, "max_delay": timedelta(days=1)}),
        ("remove_on_complete", 0),
        ("remove_on_complete", {"age": 0.5}),
        ("remove_on_complete", {"count": 0, "age": "1d", "limit": 1}),
        ("keep_logs", 0),
        ("stack_trace_limit", 0),
        ("size_limit", 1_000_000),
        ("deduplication", {"id": "k", "ttl": 0}),
        ("timestamp", 1),
        ("timestamp", START),
        ("lifo", False),
        ("delay", None),
    ],
    ids=name_of,
)
async def test_dispatch_accepts_the_edges(world: World, engine: Engine, option: str, value: Any) -> None:
    """The extreme allowed values are allowed, and None is 'not given'."""
    job = world.noop()
    assert (await job.dispatch(None, **{option: value})).created


# --- define_job -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "value", "words"), [*SHARED, *TIMEOUTS], ids=name_of)
def test_define_job_refuses(world: World, option: str, value: Any, words: tuple[str, ...]) -> None:
    """A wrong option of a definition: the name stays undefined, and the decorator is refused before the function."""
    with pytest.raises(InvalidOptionError) as caught:
        world.noop("fresh", **{option: value})
    for word in words:
        assert word in str(caught.value)
    check(caught, option)
    assert world.registry.get("fresh") is None
    with pytest.raises(InvalidOptionError):
        world.registry.define_job("fresh", **{option: value})


@pytest.mark.parametrize(("option", "value", "words"), [*SHARED, *TIMEOUTS], ids=name_of)
def test_default_job_options_refuse(world: World, option: str, value: Any, words: tuple[str, ...]) -> None:
    """The same for the engine's defaults; no engine comes of it."""
    with pytest.raises(InvalidOptionError) as caught:
        Engine(registry=world.registry, default_job_options={option: value})
    for word in words:
        assert word in str(caught.value)
    check(caught, option)
    with pytest.raises(NoEngineError):
        world.noop().dispatch_sync(None)


@pytest.mark.parametrize("name", ["", None, 5, b"x", "a\ud800", True])
def test_define_job_refuses_names(world: World, name: Any) -> None:
    """A name is non-empty text."""
    with pytest.raises(InvalidOptionError, match="name") as caught:
        world.noop(name)
    assert caught.value.option == "name"
    assert world.registry.names() == ()


@pytest.mark.parametrize("queue", ["", "a:b", 5, b"x", "a\ud800"])
def test_queue_names_are_refused_everywhere(world: World, engine: Engine, queue: Any) -> None:
    """The name of a queue is non-empty text without a colon, wherever it is given."""
    before = list(engine.runtime.core.queues)
    for call in (
        lambda: world.noop("fresh", queue=queue),
        lambda: engine.queue(queue),
        lambda: Engine(registry=world.registry, default_queue=queue),
        lambda: Engine(registry=world.registry, queues={queue: {}}),
        lambda: engine.failed_jobs_sync(queue),
        lambda: engine.retry_failed_job_sync("x", queue),
    ):
        with pytest.raises(InvalidOptionError, match="queue"):
            call()
    assert world.registry.get("fresh") is None
    assert list(engine.runtime.core.queues) == before


@pytest.mark.parametrize("executor", ["threads", "", 5, True, ["thread"]])
def test_define_job_refuses_executors(world: World, executor: Any) -> None:
    """`executor` is one of three words."""
    with pytest.raises(InvalidOptionError, match="thread, inline, process") as caught:
        world.job(lambda payload: None, "fresh", executor=executor)
    assert caught.value.option == "executor"
    assert world.registry.get("fresh") is None


async def generator(payload: Any) -> Any:
    yield payload


@pytest.mark.parametrize(
    "handle", [5, "name", object(), generator, lambda: None, lambda a, b, c: None], ids=stable_repr
)
def test_define_job_refuses_handlers(world: World, handle: Any) -> None:
    """What cannot be called with (payload) or (payload, ctx), or gives an async generator (C99), is refused."""
    with pytest.raises(InvalidHandlerError, match="fresh"):
        world.job(handle, "fresh")
    with pytest.raises(InvalidHandlerError):
        world.registry.define_job("fresh")(handle)
    assert world.registry.get("fresh") is None


def test_a_refused_redefinition_keeps_the_old_one(world: World) -> None:
    """The old handler stays when the new definition is wrong."""
    old = world.noop("job")
    with pytest.raises(InvalidOptionError):
        world.noop("job", attempts=0)
    with pytest.raises(InvalidHandlerError):
        world.job(generator, "job")
    assert world.registry.get("job") is old


def test_define_job_refuses_unknown_options(world: World) -> None:
    """A misspelled option is Python's own TypeError."""
    with pytest.raises(TypeError, match="retries"):
        world.noop("job", retries=3)


# --- Engine -----------------------------------------------------------------------------------------------------

ENGINE: list[tuple[str, Any, tuple[str, ...]]] = [
    ("concurrency", 0, ("1 or more",)),
    ("concurrency", -1, ("1 or more",)),
    ("concurrency", True, ("1 or more",)),
    ("concurrency", 1.5, ("1 or more",)),
    ("concurrency", "5", ("1 or more",)),
    ("concurrency", None, ("1 or more",)),
    ("concurrency", -HUGE, ("1 or more",)),
    ("concurrency", Rude(), ("1 or more",)),
    ("queues", [], ("dict",)),
    ("queues", "emails", ("dict",)),
    ("queues", {"emails": 5}, ("'emails'", "dict")),
    ("queues", {"emails": {"concurency": 5}}, ("'concurency'", "concurrency, limiter, max_waiting")),
    ("queues", {"emails": {"concurrency": 0}}, ("queues['emails'].concurrency", "1 or more")),
    ("queues", {"emails": {"concurrency": "2"}}, ("queues['emails'].concurrency", "1 or more")),
    ("queues", {"emails": {"max_waiting": 0}}, ("queues['emails'].max_waiting", "1 or more")),
    ("queues", {"emails": {"max_waiting": 1.0}}, ("queues['emails'].max_waiting", "1 or more")),
    ("queues", {"emails": {"limiter": 5}}, ("queues['emails'].limiter", "max", "duration")),
    ("queues", {"emails": {"limiter": {"max": 5}}}, ("queues['emails'].limiter", "duration")),
    ("queues", {"emails": {"limiter": {"max": 5, "duration": "1s", "x": 1}}}, ("queues['emails'].limiter",)),
    ("queues", {"emails": {"limiter": {"max": 0, "duration": "1s"}}}, ("queues['emails'].limiter.max",)),
    (
        "queues",
        {"emails": {"limiter": {"max": 1, "duration": 0}}},
        ("queues['emails'].limiter.duration", "more than 0"),
    ),
    (
        "queues",
        {"emails": {"limiter": {"max": 1, "duration": "1 week"}}},
        ("queues['emails'].limiter.duration", "unit"),
    ),
    ("default_job_options", [], ("dict",)),
    ("default_job_options", {"retries": 3}, ("'retries'", "attempts")),
    ("default_job_options", {"job_id": "x"}, ("'job_id'", "attempts")),
    ("history", {"completed": -1}, ("completed", "0 or more")),
    ("history", {"completed": True}, ("completed", "0 or more")),
    ("history", {"failed": 1.5}, ("failed", "0 or more")),
    ("history", {"failed": None}, ("failed", "0 or more")),
    ("history", {"active": 5}, ("'active'", "'completed'", "'failed'")),
    ("history", 100, ("history", "dict")),
    ("history", [("completed", 5)], ("history", "dict")),
    ("snapshot", object(), ("snapshot",)),
    ("shutdown_timeout", 30, ("shutdown_timeout", "guess", '"30s"')),
    ("shutdown_timeout", "-1s", ("shutdown_timeout",)),
    ("shutdown_timeout", None, ("shutdown_timeout",)),
    ("max_starts_per_second", 0, ("above 0",)),
    ("max_starts_per_second", -1.5, ("above 0",)),
    ("max_starts_per_second", float("nan"), ("above 0",)),
    ("max_starts_per_second", float("inf"), ("above 0",)),
    ("max_starts_per_second", True, ("above 0",)),
    ("max_starts_per_second", "5", ("above 0",)),
    ("max_starts_per_second", HUGE, ("above 0",)),
    ("context_vars", 5, ("context_vars", "ContextVar")),
    ("context_vars", ["request_id"], ("context_vars", "ContextVar")),
    ("context_vars", ContextVar("single"), ("context_vars", "ContextVar")),
    ("registry", "jobs", ("registry", "Registry")),
    ("registry", {}, ("registry", "Registry")),
    ("clock", 5, ("clock", "now_ms", "monotonic")),
]


@pytest.mark.parametrize(("option", "value", "words"), ENGINE, ids=name_of)
def test_engine_refuses(world: World, option: str, value: Any, words: tuple[str, ...]) -> None:
    """A wrong engine option: typed, names culprit and cure; the registry serves no half-made engine."""
    with pytest.raises(InvalidOptionError) as caught:
        Engine(**{"registry": world.registry, option: value})
    for word in words:
        assert word in str(caught.value)
    assert option in str(caught.value) or "queues" in str(caught.value)
    with pytest.raises(NoEngineError):
        world.noop().dispatch_sync(None)


def test_engine_refuses_unknown_options() -> None:
    """A misspelled option is Python's own TypeError; there are no positional ones."""
    with pytest.raises(TypeError, match="concurency"):
        Engine(concurency=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Engine(5)  # type: ignore[misc]


# --- max_waiting ------------------------------------------------------------------------------------------------


@virtual
async def test_max_waiting_counts_waiting_prioritized_and_delayed(world: World) -> None:
    """A full queue refuses, names itself and its bound, and has room again when a job has started or gone."""
    job = world.recorder(queue="emails")
    job.takes_s = 5
    engine = world.engine(queues={"emails": {"max_waiting": 3}})
    await job.dispatch(1, job_id="w")
    await job.dispatch(2, priority=1)
    await job.dispatch(3, delay="1h")
    with refused(engine, QueueFullError, "'emails'", "max_waiting=3", "raise max_waiting") as caught:
        await job.dispatch(4)
    assert (caught.value.queue, caught.value.max_waiting) == ("emails", 3)
    assert (await job.dispatch(9, job_id="w")).duplicate, "a duplicate needs no room"
    async with engine:
        await asyncio.sleep(1)
        await job.dispatch(5)
        with refused(engine, QueueFullError):
            await job.dispatch(6)


@virtual
async def test_max_waiting_lets_a_collapsing_dispatch_through(world: World) -> None:
    """A dispatch that collapses into a job that is there needs no room."""
    job = world.noop(queue="emails")
    world.engine(queues={"emails": {"max_waiting": 1}})
    first = await job.dispatch(1, deduplication=Deduplication.until_done("k"))
    again = await job.dispatch(2, deduplication=Deduplication.until_done("k"))
    assert (again.duplicate, again.id) == (True, first.id)


@virtual
async def test_retries_come_back_into_a_full_queue(world: World) -> None:
    """`max_waiting` bounds dispatches only: a retried job is never lost to it."""
    job = world.recorder(queue="emails", attempts=2)
    job.script = [ValueError("once")]
    engine = world.engine(queues={"emails": {"max_waiting": 1}})
    async with engine:
        job.takes_s = 1
        first = await job.dispatch("a")
        await asyncio.sleep(0.5)
        await job.dispatch("b")
        await asyncio.sleep(10)
        assert await first.result() is None
    assert job.payloads == ["a", "b", "a"]


# --- precedence -------------------------------------------------------------------------------------------------


@virtual
async def test_dispatch_beats_definition_beats_defaults(world: World) -> None:
    """For attempts: each level wins over the one below it."""

    async def handle(payload: Any, ctx: Any) -> None:
        seen.append((payload, ctx.max_attempts))

    seen: list[Any] = []
    silent = world.job(handle, "silent")
    loud = world.job(handle, "loud", attempts=3)
    async with world.engine(default_job_options={"attempts": 2}):
        await silent.dispatch("defaults")
        await loud.dispatch("definition")
        await loud.dispatch("dispatch", attempts=4)
        await silent.dispatch("dispatch over defaults", attempts=5)
        await asyncio.sleep(1)
    assert seen == [("defaults", 2), ("definition", 3), ("dispatch", 4), ("dispatch over defaults", 5)]


OVERRIDES: list[tuple[str, Any, Any, Callable[[Any], Any], Any]] = [
    # option, default, dispatch, how to read it from the stored record's options, expected after the dispatch
    ("attempts", 2, 1, lambda opts: opts.attempts, 1),
    ("backoff", "1s", 0, lambda opts: opts.backoff.delay_ms, 0),
    ("remove_on_complete", True, False, lambda opts: opts.remove_on_complete.count, None),
    ("remove_on_fail", 5, 0, lambda opts: opts.remove_on_fail.count, 0),
    ("keep_logs", 5, 0, lambda opts: opts.keep_logs, 0),
    ("size_limit", 5, 500, lambda opts: opts.size_limit, 500),
    ("stack_trace_limit", 5, 0, lambda opts: opts.stack_trace_limit, 0),
]


@pytest.mark.parametrize(("option", "low", "high", "read", "expected"), OVERRIDES, ids=name_of)
async def test_precedence_of_each_option(
    world: World, option: str, low: Any, high: Any, read: Any, expected: Any
) -> None:
    """Falsy values (0, False) win too: only None means 'not given'."""
    by_default = world.noop("by default")
    defined_low, defined_high = world.noop("low", **{option: low}), world.noop("high", **{option: high})
    low_engine, high_engine = world.engine(default_job_options={option: low}), world.engine()

    async def stored(job: Any, engine: Engine, **options: Any) -> Any:
        receipt = await job.on(engine).dispatch(1, **options)
        return read(engine.runtime.core.queues["default"].index[receipt.id].opts)

    from_default = await stored(by_default, low_engine)
    assert from_default == await stored(defined_low, high_engine) != expected
    assert await stored(defined_high, low_engine) == expected
    assert await stored(by_default, low_engine, **{option: high}) == expected
    assert await stored(defined_low, high_engine, **{option: high}) == expected
    assert await stored(by_default, low_engine, **{option: None}) == from_default


@virtual
async def test_defaults_of_priority_delay_and_lifo(world: World) -> None:
    """`default_job_options` also takes what a definition does not: a dispatch of 0 or False beats it."""
    job = world.noop()
    world.engine(default_job_options={"priority": 5, "delay": "1m"})
    assert (await job.dispatch(1)).state == "delayed"
    assert (await job.dispatch(1, delay=0)).state == "prioritized"
    assert (await job.dispatch(1, delay=0, priority=0)).state == "waiting"
    assert (await job.dispatch(1, run_at=START)).state == "prioritized"
    other = world.recorder("other")
    engine = world.engine(default_job_options={"lifo": True})
    for number, options in enumerate(({}, {}, {"lifo": False}, {"lifo": True})):
        await other.dispatch(number, **options)
    async with engine:
        await asyncio.sleep(1)
    assert other.payloads == [3, 1, 0, 2]


@virtual
async def test_timeout_comes_from_definition_or_defaults(world: World) -> None:
    """The definition's timeout beats the default one."""
    slow = world.recorder("slow", timeout="2s")
    default = world.recorder("default")
    slow.takes_s = default.takes_s = 10
    engine = world.engine(default_job_options={"timeout": "1s"}, concurrency=2)
    async with engine:
        await slow.dispatch(None, job_id="s")
        await default.dispatch(None, job_id="d")
        await asyncio.sleep(60)
        one, two = await slow.find("s"), await default.find("d")
    assert one is not None
    assert two is not None
    assert one.finished_at == START + timedelta(seconds=2)
    assert two.finished_at == START + timedelta(seconds=1)
    assert "timeout" in (one.failed_reason or "")


@virtual
async def test_max_delay_of_backoff_is_part_of_the_backoff(world: World) -> None:
    """A dispatch's backoff replaces the definition's as a whole; parts are not mixed."""
    job = world.recorder(attempts=3, backoff={"type": "exponential", "delay": "1s", "max_delay": "1s"})
    job.script = [ValueError("x"), ValueError("y")]
    async with world.engine():
        await job.dispatch(None, backoff={"type": "exponential", "delay": "10s"})
        await asyncio.sleep(100)
    assert job.starts == [0, 10_000, 30_000]


@pytest.mark.parametrize("engine_options", [{}, {"default_job_options": {"attempts": 3}}])
async def test_options_are_resolved_anew_after_a_redefinition(world: World, engine_options: Any) -> None:
    """A redefined name brings its new options; the old definition object keeps its own."""
    engine = world.engine(**engine_options)
    old = world.noop("job", attempts=7)
    new = world.noop("job", attempts=9)

    async def attempts(job: Any) -> int:
        receipt = await job.dispatch(None)
        return engine.runtime.core.queues["default"].index[receipt.id].opts.attempts

    assert await attempts(new) == 9
    assert await attempts(old) == 7


def test_options_given_as_a_partial(world: World, engine: Engine) -> None:
    """`job.options` is a plain dict that a dispatch takes."""
    job = world.noop()
    options = job.options(delay="30s", priority=2)
    assert options == {"delay": "30s", "priority": 2}
    assert functools.partial(job.dispatch_sync, **options)(None).state == "delayed"


def test_registries_are_apart() -> None:
    """Two registries may define the same name."""
    one, two = Registry(), Registry()
    first = one.define_job("job", handle=lambda payload: None)
    second = two.define_job("job", handle=lambda payload: None)
    assert (one.get("job"), two.get("job")) == (first, second)


# --- waiting calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout", [-1, True, float("nan"), float("inf"), "soon", [], timedelta(seconds=-1)], ids=name_of
)
async def test_waiting_calls_refuse_wrong_timeouts(world: World, engine: Engine, timeout: Any) -> None:
    """`result`, `result_sync`, `stop`, `astop` and `run_until_idle` check their timeout before they do anything."""
    job = world.noop()
    receipt = await job.dispatch(None)
    for call in (
        lambda: asyncio.to_thread(receipt.result_sync, timeout),
        lambda: receipt.result(timeout),
        lambda: engine.astop(timeout),
        lambda: asyncio.to_thread(engine.stop, timeout),
        lambda: asyncio.to_thread(engine.run_until_idle, timeout),
    ):
        with refused(engine, InvalidDurationError, "timeout") as caught:
            await call()
        assert caught.value.option == "timeout"
    assert (await job.dispatch(None)).created, "the engine was not stopped"


@pytest.mark.parametrize("drain", [1, "yes", 0])
async def test_stop_refuses_a_wrong_drain(world: World, engine: Engine, drain: Any) -> None:
    """`drain` is True, False or None."""
    with refused(engine, InvalidOptionTypeError, "drain", "True, False or None"):
        await engine.astop(drain=drain)
    with refused(engine, InvalidOptionTypeError, "drain"):
        engine.stop(drain=drain)
    assert world.noop().dispatch_sync(None).created


def test_events_refuse(engine: Engine) -> None:
    """A wrong event name, listener or bound is refused; nothing listens afterwards."""
    with pytest.raises(InvalidOptionError, match=r"'finished'.*completed"):
        engine.on("finished", print)
    with pytest.raises(InvalidOptionTypeError, match="callable"):
        engine.on("completed", "print")  # type: ignore[arg-type]
    assert engine.runtime.core.listening is False


async def test_event_streams_refuse(engine: Engine) -> None:
    """The same for `events()`, when it is called."""
    with pytest.raises(InvalidOptionError, match="'finished'"):
        engine.events("finished")
    for maxsize in (0, True):
        with pytest.raises(InvalidOptionError, match="maxsize"):
            engine.events(maxsize=maxsize)
    assert engine.runtime.core.listening is False


@pytest.mark.parametrize(("start", "end"), [("0", 5), (0, None), (1.5, 2), (True, 2)])
async def test_pages_refuse_what_is_no_position(world: World, engine: Engine, start: Any, end: Any) -> None:
    """Positions are whole numbers, for jobs, logs and failed jobs."""
    await world.noop().dispatch(None, job_id="x")
    for call in (
        lambda: engine.failed_jobs_sync("default", start, end),
        lambda: engine.queue("default").jobs((), start, end),
        lambda: engine.queue("default").logs("x", start, end),
    ):
        with pytest.raises(InvalidOptionTypeError, match=r"start|end"):
            call()


@pytest.mark.parametrize("id", [5, None, True, b"x", [], Rude()], ids=name_of)
async def test_looking_up_by_what_is_no_text(world: World, engine: Engine, id: Any) -> None:
    """An id is text everywhere: looking for the number of a row is a mistake that must not read as 'no such job'."""
    job = world.noop()
    assert (await job.dispatch(None)).id == "1"
    queue = engine.queue("default")
    for call in (
        lambda: job.find_sync(id),
        lambda: queue.job(id),
        lambda: queue.logs(id),
        lambda: queue.remove_sync(id),
        lambda: queue.promote_sync(id),
        lambda: queue.retry_sync(id),
        lambda: queue.change_delay_sync(id, 5),
        lambda: queue.change_priority_sync(id, 5),
        lambda: queue.update_payload_sync(id, 5),
        lambda: engine.retry_failed_job_sync(id),
    ):
        with refused(engine, InvalidJobIdError, "text", "str(id)"):
            call()
