"""Payloads, results and progress through the facade: JSON, refused with a path, never aliased (DESIGN 2.4; cases C85 to C96)."""

import asyncio
import dataclasses
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inproc_jobs import Engine, InvalidHandlerError, InvalidPayloadError, JobFailedError
from tests.parameter_ids import stable_repr
from tests.unit.app.virtual import virtual
from tests.unit.app.world import World, refused


@dataclasses.dataclass
class Invoice:
    id: int
    lines: list[str]


class Form(TypedDict):
    name: str
    age: int


class Mail(msgspec.Struct):
    to: str
    at: datetime


class User(pydantic.BaseModel):
    name: str
    age: int


class IntSubclass(int):
    pass


def circular() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def deep(levels: int = 100_000) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


NOT_JSON: dict[str, Any] = {
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "date": date(2026, 1, 1),
    "timedelta": timedelta(1),
    "Decimal": Decimal("1.5"),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "frozenset": frozenset(),
    "UUID": uuid.uuid4(),
    "dataclass": Invoice(1, []),
    "Struct": Mail("a", datetime(2026, 1, 1, tzinfo=UTC)),
    "complex": 1j,
    "object": object(),
    "class": int,
    "function": deep,
    "generator": (n for n in ()),
    "NaN": float("nan"),
    "infinity": float("inf"),
    "-infinity": float("-inf"),
    "surrogate": "a\ud800",
    "range": range(3),
}


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NOT_JSON)
async def test_c85_c86_what_is_not_json_is_refused_with_its_path(world: World, engine: Engine, kind: str) -> None:
    """C85, C86: at any depth, with the path of the culprit; nothing is stored or converted silently."""
    job = world.noop("mail")
    value = NOT_JSON[kind]
    for payload, path in (
        (value, "payload"),
        ({"a": [1, 2, 3, {"when": value}]}, "payload.a[3].when"),
        ([[value]], "payload[0][0]"),
        ({"not a name": value}, "payload['not a name']"),
    ):
        with refused(engine, InvalidPayloadError, path) as caught:
            await job.dispatch(payload, job_id="x")
        assert caught.value.path == path
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)
        assert len(str(caught.value)) < 1000
        with refused(engine, InvalidPayloadError, path):
            job.dispatch_sync(payload)


@pytest.mark.parametrize(
    "payload",
    [{1: "a", "1": "b"}, {None: 1}, {True: 1}, {1.5: 1}, {("a",): 1}, {b"a": 1}, {"a\ud800": 1}],
    ids=stable_repr,
)
async def test_c91_keys_that_are_not_text(world: World, engine: Engine, payload: Any) -> None:
    """C91: refused instead of converted, since two keys could become one."""
    with refused(engine, InvalidPayloadError, "payload", "key"):
        await world.noop().dispatch(payload, job_id="x")


@virtual
async def test_c91_tuples_become_lists(world: World) -> None:
    """C91: documented: a tuple arrives as a list."""
    job = world.recorder()
    async with world.engine():
        await (await job.dispatch({"t": (1, (2,))})).result()
    assert job.payloads == [{"t": [1, [2]]}]


@pytest.mark.parametrize("make", [circular, deep], ids=["circular", "100,000 levels"])
@virtual
async def test_c92_circular_and_very_deep(world: World, make: Callable[[], Any]) -> None:
    """C92: a typed error; engine and caller go on."""
    job = world.recorder()
    engine = world.engine()
    async with engine:
        with refused(engine, InvalidPayloadError, "payload") as caught:
            await job.dispatch(make(), job_id="x")
        assert len(str(caught.value)) < 1000
        await (await job.dispatch("fine", job_id="x")).result()
    assert job.payloads == ["fine"]


async def test_the_same_object_twice_is_not_circular(world: World, engine: Engine) -> None:
    """A shared part is written twice."""
    shared = {"a": 1}
    receipt = await world.noop().dispatch([shared, shared])
    view = engine.queue("default").job(receipt.id)
    assert view is not None
    assert view.payload == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("level", ["dispatch", "definition", "defaults"])
async def test_size_limit(world: World, level: str) -> None:
    """More bytes than `size_limit` are refused with both numbers; exactly as many are fine; bytes, not characters."""
    limit = {"size_limit": 10}
    engine = world.engine(default_job_options=limit if level == "defaults" else None)
    job = world.noop("mail", **(limit if level == "definition" else {}))
    options: Any = limit if level == "dispatch" else {}
    assert (await job.dispatch("12345678", **options)).created
    with refused(engine, InvalidPayloadError, "'mail'", "11 bytes", "size_limit of 10"):
        await job.dispatch("123456789", **options)
    with refused(engine, InvalidPayloadError, "size_limit of 10"):
        await job.dispatch("ééééé", **options)
    with refused(engine, InvalidPayloadError, "size_limit of 10"):
        await job.dispatch_many([(1, options), ("123456789", options)])


# --- what is kept exactly ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        1.5,
        1e300,
        5e-324,
        -0.0,
        "",
        "a\x00b",
        "\u2028",
        "🧾 é e\u0301",
        [],
        {},
        {"": {"": []}},
        130775545883395173,
        2**53 + 1,
        2**63 - 1,
        2**64 - 1,
        -(2**63),
        0.1 + 0.2,
    ],
    ids=stable_repr,
)
@virtual
async def test_c87_c89_values_arrive_exactly(world: World, value: Any) -> None:
    """C87, C89: big integers, NUL, any text: exact in the handler, the view, the result and the progress."""
    seen: list[Any] = []

    async def handle(payload: Any, ctx: Any) -> Any:
        seen.append(payload)
        ctx.progress(payload)
        return payload

    job = world.job(handle)
    async with world.engine():
        receipt = await job.dispatch(value)
        result = await receipt.result()
        view = await job.find(receipt.id)
    assert view is not None
    for other in (*seen, result, view.payload, view.result, view.progress):
        assert other == value
        assert type(other) is type(value)
        assert repr(other) == repr(value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(value=json_values)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_value_makes_the_round(value: Any) -> None:
    """What JSON can say comes through handler, result and progress unchanged."""
    world = World()

    @virtual
    async def story(world: World) -> None:
        job = world.recorder()
        job.script = []

        async def handle(payload: Any, ctx: Any) -> Any:
            ctx.progress([payload])
            return {"got": payload}

        echo = world.job(handle, "echo")
        async with world.engine():
            receipt = await echo.dispatch(value)
            assert await receipt.result() == {"got": value}
            view = await echo.find(receipt.id)
        assert view is not None
        assert view.progress == [value]

    story(world=world)


@virtual
async def test_c89_nul_in_the_error_text(world: World) -> None:
    """C89: a failure with NUL or a lone surrogate in its text is recorded and told as any other."""
    job = world.recorder()
    job.script = [ValueError("x\x00y"), ValueError("x\ud800y")]
    engine = world.engine()
    async with engine:
        for _ in range(2):
            with pytest.raises(JobFailedError, match=r"x.*y"):
                await (await job.dispatch(None)).result()
        for failed in await engine.failed_jobs():
            assert failed.failed_reason is not None
            failed.failed_reason.encode()
            failed.stacktrace[0].encode()


# --- aliasing ---------------------------------------------------------------------------------------------------


@virtual
async def test_c93_nothing_is_shared(world: World) -> None:
    """C93: changing the dict after dispatch, in the handler, in a view, in a result or a progress changes nothing stored."""
    returned: dict[str, Any] = {"r": [1]}

    async def handle(payload: dict[str, Any], ctx: Any) -> Any:
        seen.append(payload["list"] == [1])
        progress = {"p": [1]}
        ctx.progress(progress)
        progress["p"].append(2)
        payload["list"].append("handler")
        return returned

    seen: list[bool] = []
    job = world.job(handle)
    engine = world.engine()
    async with engine:
        payload = {"list": [1]}
        receipt = await job.dispatch(payload, job_id="x", delay="1s")
        payload["list"].append("caller")
        view = await job.find("x")
        assert view is not None
        view.payload["list"].append("reader")
        result = await receipt.result()
        result["r"].append("waiter")
        returned["r"].append("handler later")
        after = await job.find("x")
        assert after is not None
        assert (after.payload, after.result, after.progress) == ({"list": [1]}, {"r": [1]}, {"p": [1]})
        assert after.payload is not after.payload
        assert await receipt.result() == {"r": [1]}
        (listed,) = engine.queue("default").jobs("completed")
        assert listed.payload == {"list": [1]}
    assert seen == [True]


@virtual
async def test_c93_the_payload_of_a_duplicate_is_not_taken(world: World) -> None:
    """C93: the dict of an ignored dispatch is not looked at later either."""
    job = world.recorder()
    async with world.engine():
        payload = {"v": 1}
        await job.dispatch(payload, job_id="x", delay="1s")
        payload["v"] = 2
        await job.dispatch(payload, job_id="x")
        await asyncio.sleep(5)
    assert job.payloads == [{"v": 1}]


@virtual
async def test_events_share_nothing_with_the_store(world: World) -> None:
    """C93: a listener that changes the return value it was told changes nothing."""

    async def handle(payload: Any) -> Any:
        return {"r": [1]}

    job = world.job(handle)
    engine = world.engine()
    engine.on("completed", lambda event: event["returnvalue"]["r"].append("listener"))
    seen: list[Any] = []
    async with engine:
        receipt = await job.dispatch(None)
        await asyncio.sleep(1)
        seen.append(await receipt.result())
    assert seen == [{"r": [1]}]


# --- results ----------------------------------------------------------------------------------------------------


def a_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    "make",
    [
        circular,
        deep,
        threading.Lock,
        a_generator,
        object,
        lambda: float("nan"),
        lambda: {1: 2},
        lambda: {"a": {1, 2}},
        lambda: b"x",
        lambda: "\ud800",
    ],
)
@pytest.mark.parametrize("executor", [None, "inline", "thread"])
def test_c95_a_result_that_cannot_be_stored(world: World, make: Callable[[], Any], executor: str | None) -> None:
    """C95: the work was done, so the job fails without a retry, after exactly one run, with the path of the culprit."""

    @virtual
    async def story(world: World) -> None:
        runs: list[Any] = []

        async def handle(payload: Any) -> Any:
            runs.append(payload)
            return make()

        def plain(payload: Any) -> Any:
            runs.append(payload)
            return make()

        job = world.job(handle if executor is None else plain, attempts=5, executor=executor)
        async with world.engine():
            receipt = await job.dispatch(None, job_id="x")
            with pytest.raises(JobFailedError, match=r"cannot be stored.*result"):
                await receipt.result()
            await asyncio.sleep(100)
            view = await job.find("x")
        assert len(runs) == 1
        assert view is not None
        assert (view.state, view.attempts_made, view.result) == ("failed", 1, None)

    story(world=world)


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, b"x", "\ud800"], ids=stable_repr)
@virtual
async def test_c86_progress_that_is_not_json(world: World, value: Any) -> None:
    """C86: refused where it is called, with the path; the handler may go on, the old progress stays."""
    errors: list[InvalidPayloadError] = []

    async def handle(payload: Any, ctx: Any) -> None:
        ctx.progress(50)
        try:
            await ctx.progress({"p": [value]})
        except InvalidPayloadError as error:
            errors.append(error)

    job = world.job(handle)
    async with world.engine():
        receipt = await job.dispatch(None)
        await receipt.result()
        view = await job.find(receipt.id)
    assert view is not None
    assert (view.state, view.progress) == ("completed", 50)
    assert errors[0].path.startswith("progress.p[0]")


@virtual
async def test_update_payload_that_is_not_json(world: World) -> None:
    """The same for `ctx.update_payload`."""
    errors: list[InvalidPayloadError] = []

    async def handle(payload: Any, ctx: Any) -> None:
        try:
            await ctx.update_payload({"p": {1}})
        except InvalidPayloadError as error:
            errors.append(error)

    job = world.job(handle)
    async with world.engine():
        receipt = await job.dispatch({"old": 1})
        await receipt.result()
        view = await job.find(receipt.id)
    assert view is not None
    assert view.payload == {"old": 1}
    assert errors[0].path == "payload.p"


# --- typed payloads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "stored", "wrong"),
    [
        (Invoice, Invoice(1, ["a"]), {"id": 1, "lines": ["a"]}, Invoice("one", ["a"])),  # type: ignore[arg-type]
        (Form, {"name": "a", "age": 3}, {"name": "a", "age": 3}, {"name": "a", "age": "three"}),
        (
            Mail,
            Mail("a", datetime(2026, 1, 1, tzinfo=UTC)),
            {"to": "a", "at": "2026-01-01T00:00:00Z"},
            Mail(5, datetime(2026, 1, 1, tzinfo=UTC)),  # type: ignore[arg-type]
        ),
        (User, User(name="a", age=3), {"name": "a", "age": 3}, User.model_construct(name="a", age="three")),
        (list[int], [1, 2], [1, 2], [1, "2"]),
    ],
    ids=["dataclass", "TypedDict", "Struct", "pydantic", "list[int]"],
)
def test_typed_payloads(world: World, kind: Any, value: Any, stored: Any, wrong: Any) -> None:
    """Encoded and decoded by the handler's annotation; the view shows the JSON value; a wrong one changes nothing."""

    @virtual
    async def story(world: World) -> None:
        seen: list[Any] = []

        async def handle(payload: Any) -> None:
            seen.append(payload)

        handle.__annotations__["payload"] = kind
        job = world.job(handle)
        engine = world.engine()
        async with engine:
            receipt = await job.dispatch(value, job_id="x")
            await receipt.result()
            view = await job.find("x")
            assert view is not None
            assert view.payload == stored
            with refused(engine, InvalidPayloadError, "payload"):
                await job.dispatch(wrong, job_id="y")
            with refused(engine, InvalidPayloadError, "payload"):
                await engine.queue("default").update_payload("x", wrong)
        assert seen == [value]
        assert type(seen[0]) is type(value)

    story(world=world)


@virtual
async def test_a_typed_payload_is_decoded_freshly_for_each_attempt(world: World) -> None:
    """Changing the object in one attempt does not show in the next."""
    seen: list[Any] = []

    async def handle(payload: Invoice) -> None:
        seen.append(list(payload.lines))
        payload.lines.append("changed")
        raise ValueError("again")

    job = world.job(handle, attempts=3)
    async with world.engine():
        await job.dispatch(Invoice(1, ["a"]))
        await asyncio.sleep(1)
    assert seen == [["a"]] * 3


def test_an_annotation_that_cannot_be_resolved(world: World) -> None:
    """An error at `define_job`, which names job and annotation; nothing is defined."""

    async def handle(payload: "NoSuchType") -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(InvalidHandlerError, match=r"'mail'.*NoSuchType"):
        world.job(handle, "mail")
    assert world.registry.get("mail") is None


@virtual
async def test_a_stored_payload_of_an_older_type_fails_its_job(world: World) -> None:
    """A job that waits while its handler's type changes: it fails with a typed reason, and the engine goes on."""
    old = world.noop("mail")
    engine = world.engine()
    await old.dispatch({"unknown": 1}, job_id="x")

    async def handle(payload: Invoice) -> None:
        raise AssertionError("never called")

    world.job(handle, "mail", attempts=3)
    async with engine:
        await asyncio.sleep(1)
        (failed,) = await engine.failed_jobs()
    assert "payload" in (failed.failed_reason or "")


@virtual
async def test_subclasses_of_plain_types(world: World) -> None:
    """An int subclass is either refused or arrives as its JSON value; never as something else."""
    job = world.recorder()
    async with world.engine():
        try:
            await (await job.dispatch({"n": IntSubclass(5)})).result()
        except InvalidPayloadError as error:
            assert error.path == "payload.n"  # noqa: PT017  # either is fine
        else:
            assert job.payloads == [{"n": 5}]
