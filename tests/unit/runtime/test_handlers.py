"""What `define_job` is given: how it is called, where it runs, what its payload is."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from msgspec import Meta

from inproc_jobs.errors import InvalidHandlerError, InvalidOptionError, InvalidPayloadError
from inproc_jobs.runtime.handlers import Handler, inspect_handler
from inproc_jobs.runtime.payloads import UNTYPED

if TYPE_CHECKING:
    from nowhere import ForTypeCheckersOnly  # type: ignore[import-not-found]

    from inproc_jobs.runtime.context import JobContext


@dataclasses.dataclass
class Order:
    """A payload type; annotations of it are text in this module."""

    id: int


def look(fn: Any, executor: str | None = None) -> Handler:
    """Look at a handler of a job named "test"."""
    return inspect_handler(fn, job_name="test", executor=executor)


def refused(fn: Any, executor: str | None = None) -> str:
    """The message with which a handler is refused."""
    with pytest.raises(InvalidHandlerError) as caught:
        look(fn, executor)
    message = str(caught.value)
    assert "job 'test'" in message
    return message


def takes_orders(handler: Handler) -> bool:
    """Whether the payload arrives as an Order."""
    return bool(handler.codec.decode(b'{"id":1}') == Order(1))


def passes_through(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as most people write it."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def gives_database(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that fills in an argument and so has another signature than what it wraps."""

    @functools.wraps(fn)
    def wrapper(payload: Any) -> Any:
        return fn(payload, "database")

    return wrapper


def plain(payload: Order) -> int:
    return payload.id


def with_ctx(payload: Order, ctx: JobContext) -> int:
    return payload.id


async def coroutine(payload: Order, ctx: JobContext) -> int:
    return payload.id


async def with_database(payload: Order, ctx: JobContext, database: str) -> int:
    return payload.id


def numbers(payload: Order) -> Iterator[int]:
    yield payload.id


async def async_numbers(payload: Order) -> AsyncIterator[int]:
    yield payload.id


class Mailer:
    """Handlers as methods."""

    def send(self, payload: Order, ctx: JobContext) -> int:
        return payload.id

    async def send_async(self, payload: Order) -> int:
        return payload.id

    @classmethod
    def send_all(cls, payload: Order) -> int:
        return payload.id

    @staticmethod
    def send_one(payload: Order) -> int:
        return payload.id


class NightlyMailer(Mailer):
    """Inherits its handlers."""


class Callback:
    """A plain callable object."""

    def __call__(self, payload: Order, ctx: JobContext) -> int:
        return payload.id


class AsyncCallback:
    """An async callable object; `inspect.iscoroutinefunction` is False for it."""

    async def __call__(self, payload: Order) -> int:
        return payload.id


class YieldingCallback:
    """A callable object that is a generator function."""

    def __call__(self, payload: Order) -> Iterator[int]:
        yield payload.id


class Fill:
    """A handler that is a class: calling it makes an object."""

    def __init__(self, payload: Order) -> None:
        self.id = payload.id


# --- is it async? ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        coroutine,
        functools.partial(coroutine),
        functools.partial(functools.partial(with_database, database="x")),
        AsyncCallback(),
        functools.partial(AsyncCallback()),
        Mailer().send_async,
        passes_through(coroutine),
        passes_through(passes_through(coroutine)),
        functools.partial(passes_through(coroutine)),
        passes_through(AsyncCallback().__call__),
        AsyncMock(),
    ],
)
def test_what_is_known_to_be_async_runs_on_the_loop(fn: Any) -> None:
    """C99: partials, callable objects and wrapped functions are recognized without calling them."""
    assert look(fn).mode == "async"
    assert look(fn).fn is fn


@pytest.mark.parametrize(
    "fn",
    [
        *(plain, functools.partial(plain), Callback(), Mailer().send, Mailer.send_all, passes_through(plain), print),
        *(lambda payload: coroutine(payload, None), lambda payload: asyncio.Future(), MagicMock(), Fill),  # type: ignore[arg-type]
    ],
)
def test_all_else_runs_in_a_thread(fn: Any) -> None:
    """C99: a plain function may still return an awaitable; that shows only when it is called."""
    assert look(fn).mode == "thread"


@pytest.mark.parametrize(("fn", "kind"), [(numbers, "a generator function"), (async_numbers, "an async generator")])
def test_generator_functions_are_refused(fn: Any, kind: str) -> None:
    """C99: their body would never run; the error says what to write instead."""
    for variant in (fn, functools.partial(fn)):
        message = refused(variant)
        assert kind in message
        assert "return" in message
    assert "a generator function" in refused(YieldingCallback(), "thread")


@pytest.mark.parametrize("executor", ["thread", "inline", "process"])
def test_a_plain_function_runs_where_it_is_told(executor: str) -> None:
    """`executor=` wins over the default."""
    assert look(plain, executor).mode == executor


@pytest.mark.parametrize("executor", ["thread", "inline", "process"])
@pytest.mark.parametrize("fn", [coroutine, functools.partial(coroutine), AsyncCallback(), Mailer().send_async])
def test_an_async_handler_takes_no_executor(fn: Any, executor: str) -> None:
    """It would be a coroutine that nobody awaits there."""
    assert f"executor={executor!r}" in refused(fn, executor)


def test_a_plain_wrapper_around_async_code_may_be_sent_to_a_thread() -> None:
    """A wrapper that runs the coroutine to its end cannot run on the loop, and says so with executor="thread"."""

    @functools.wraps(coroutine)
    def run(payload: Order) -> Any:
        return asyncio.run(coroutine(payload, None))  # type: ignore[arg-type]

    assert look(run).mode == "async"
    assert look(run, "thread").mode == "thread"


@pytest.mark.parametrize("executor", ["async", "Thread", "", "fiber", 1])
def test_an_unknown_executor_is_refused(executor: Any) -> None:
    """The error names the option and what is allowed."""
    with pytest.raises(InvalidOptionError, match="'thread', 'inline' or 'process'") as caught:
        look(plain, executor)
    assert (caught.value.option, caught.value.value) == ("executor", executor)


# --- its parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "wants_ctx"),
    [
        (lambda payload: None, False),
        (lambda payload=None: None, False),
        (lambda payload, ctx: None, True),
        (lambda payload, whatever: None, True),
        (lambda payload, ctx=None: None, True),
        (lambda payload, context=None: None, True),
        (lambda payload=None, ctx=None: None, True),
        (lambda payload, retries=3: None, False),
        (lambda payload, ctx, retries=3: None, True),
        (lambda payload, retries=3, ctx=None: None, False),
        (lambda payload, /, ctx: None, True),
        (lambda payload, *, retries=3: None, False),
        (lambda *args: None, False),
        (lambda payload, *args: None, False),
        (lambda payload, ctx, *args, **kwargs: None, True),
        (lambda payload, **kwargs: None, False),
        (lambda *args, **kwargs: None, False),
        (Mailer().send, True),
        (Mailer().send_async, False),
        (Mailer.send_all, False),
        (Mailer.send_one, False),
        (Callback(), True),
        (AsyncCallback(), False),
        (Fill, False),
        (functools.partial(with_database, database="x"), True),
        (functools.partial(lambda database, payload: None, "x"), False),
        (functools.partial(lambda payload, ctx: None, ctx=None), False),
        (passes_through(with_ctx), True),
        (passes_through(plain), False),
        (functools.partial(passes_through(with_ctx)), True),
        (functools.partial(passes_through(with_database), database="x"), True),
        (gives_database(lambda payload, database: None), False),
        (functools.lru_cache(with_ctx), True),
        (AsyncMock(), False),
        (MagicMock(), False),
        (print, False),
        (dict, False),
        ([].append, False),
    ],
)
def test_the_context_goes_to_those_who_ask_for_it(fn: Any, wants_ctx: bool) -> None:
    """A second required parameter asks, and one named or annotated as the context; nothing else does."""
    assert look(fn).wants_ctx is wants_ctx


def test_the_annotation_asks_for_the_context_too() -> None:
    """Whatever the parameter's name, and although the name of its type exists for type checkers only."""

    def handler(payload: dict[str, Any], job: JobContext | None = None) -> None: ...

    assert look(handler).wants_ctx


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (lambda: None, "takes no positional argument"),
        (lambda *, payload: None, "needs keyword arguments (payload)"),
        (lambda **kwargs: None, "takes no positional argument"),
        (lambda payload, *, ctx, db: None, "needs keyword arguments (ctx, db)"),
        (lambda payload, ctx, database: None, "needs 3 arguments (payload, ctx, database)"),
        (with_database, "needs 3 arguments (payload, ctx, database)"),
        (functools.partial(plain, Order(1)), "takes no positional argument"),
        (passes_through(with_database), "needs 3 arguments"),
        (Mailer.send, "needs 3 arguments (self, payload, ctx)"),
        (Mailer, "takes no positional argument"),
    ],
)
def test_what_cannot_be_called_with_a_payload_is_refused(fn: Any, problem: str) -> None:
    """The error says what was found and what a handler takes."""
    message = refused(fn)
    assert problem in message
    assert "(payload) or (payload, ctx)" in message


def test_the_context_does_not_come_first() -> None:
    """A handler that takes the context alone would get the payload in its place."""

    def handler(ctx: JobContext) -> None: ...

    assert "takes the context first (ctx)" in refused(handler)


@pytest.mark.parametrize("fn", [None, 5, "handler", Order(1), property(len)])
def test_what_is_not_callable_is_refused(fn: Any) -> None:
    """Decorating the wrong thing shows at once."""
    assert "cannot be called" in refused(fn)


def test_a_definition_stands_for_its_handler() -> None:
    """Decorating twice defines one function under two names, with its context and its payload type."""
    definition: Any = lambda *args: None  # noqa: E731  # stands for a JobDefinition
    definition.handler = look(with_ctx)
    handler = look(definition)
    assert handler.fn is with_ctx
    assert handler.wants_ctx
    assert takes_orders(handler)


# --- its payload -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        *(plain, with_ctx, coroutine, Mailer().send, Mailer().send_async, Mailer.send_all, Mailer.send_one),
        *(Callback(), AsyncCallback(), Fill, passes_through(plain), passes_through(passes_through(coroutine))),
        *(functools.partial(with_database, database="x"), functools.partial(passes_through(with_ctx))),
        functools.partial(functools.partial(Mailer().send)),
    ],
)
def test_the_payload_arrives_as_it_is_annotated(fn: Any) -> None:
    """Annotations are text in this module, and are found behind partials, methods, objects and wrappers."""
    assert takes_orders(look(fn))


def test_a_payload_behind_a_filled_parameter_is_found() -> None:
    """A partial that fills the first parameter makes the second one the payload."""

    def handler(database: str, payload: Order) -> None: ...

    assert takes_orders(look(functools.partial(handler, "x")))


def test_an_annotation_with_text_inside_is_resolved() -> None:
    """`list["Order"]` is a list of orders."""

    def handler(payload: Any) -> None: ...

    handler.__annotations__ = {"payload": list["Order"], "return": "ForTypeCheckersOnly"}
    assert look(handler).codec.decode(b'[{"id":1}]') == [Order(1)]


@pytest.mark.parametrize("annotation", ["dict", "dict[str, Any]", "Any", dict, object])
def test_a_payload_that_is_any_json_keeps_the_quick_codec(annotation: Any) -> None:
    """`payload: dict` is checked as JSON and costs no more."""

    def handler(payload: Any) -> None: ...

    handler.__annotations__ = {"payload": annotation}
    assert look(handler).codec is UNTYPED


@pytest.mark.parametrize("fn", [lambda payload: None, print, [].append, AsyncMock(), lambda *args: None])
def test_a_payload_without_annotation_is_any_json(fn: Any) -> None:
    """Builtins and mocks among them."""
    assert look(fn).codec is UNTYPED


def test_a_constraint_in_the_annotation_counts() -> None:
    """`Annotated[int, Meta(gt=0)]` is more than an int."""

    def handler(payload: Annotated[int, Meta(gt=0)]) -> None: ...

    with pytest.raises(InvalidPayloadError):
        look(handler).codec.encode(0)


def elsewhere(annotation: str) -> Callable[..., Any]:
    """A function of a module in which this one's names do not exist."""
    fn = types.FunctionType(plain.__code__, {"__builtins__": {}, "Elsewhere": Order}, "elsewhere")
    fn.__annotations__ = {"payload": annotation}
    return fn


def test_an_annotation_is_read_where_it_was_written() -> None:
    """A wrapper from another module copies annotations whose names only the wrapped function's module has."""
    assert takes_orders(look(elsewhere("Elsewhere")))
    assert takes_orders(look(passes_through(elsewhere("Elsewhere"))))
    wrapper = passes_through(elsewhere("Order"))
    assert takes_orders(look(wrapper))  # the decorator's own


def test_an_annotation_of_args_is_not_about_the_payload() -> None:
    """`*args: int` says something about every argument."""

    def handler(*args: int) -> None: ...

    assert look(handler).codec is UNTYPED


def test_the_other_annotations_do_not_matter() -> None:
    """What is imported for type checkers only may annotate everything but the payload."""

    def handler(payload: Order, ctx: ForTypeCheckersOnly, extra: Nonsense = 1) -> AlsoNonsense: ...  # type: ignore[name-defined]  # noqa: F821

    assert takes_orders(look(handler))
    assert look(handler).wants_ctx


def test_a_payload_type_that_cannot_be_resolved_is_refused() -> None:
    """The error shows the annotation, the missing name and the cure."""

    def handler(payload: ForTypeCheckersOnly) -> None: ...

    message = refused(handler)
    assert "'ForTypeCheckersOnly'" in message
    assert "NameError" in message
    assert "TYPE_CHECKING" in message


def test_a_local_payload_type_is_refused() -> None:
    """With annotations as text a class inside a function cannot be found by its name."""

    @dataclasses.dataclass
    class LocalOrder:
        id: int

    def handler(payload: LocalOrder) -> None: ...

    assert "top level" in refused(handler)


def test_a_payload_type_that_json_cannot_carry_is_refused() -> None:
    """A class without fields known to msgspec or pydantic."""

    def handler(payload: Mailer) -> None: ...

    assert "Mailer" in refused(handler)


# --- in another process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "qualname"),
    [
        (plain, "plain"),
        (Mailer.send_one, "Mailer.send_one"),
        (Mailer.send_all, "Mailer.send_all"),
        (NightlyMailer.send_all, "NightlyMailer.send_all"),
    ],
)
def test_a_process_finds_a_handler_by_its_name(fn: Any, qualname: str) -> None:
    """Module and qualname lead to the handler again."""
    handler = look(fn, "process")
    assert (handler.module, handler.qualname) == (__name__, qualname)
    found: Any = sys.modules[handler.module]
    for name in handler.qualname.split("."):
        found = getattr(found, name)
    assert found == fn


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (lambda payload: None, "is a lambda"),
        (Mailer().send, "is a method of one object"),
        (Callback(), "is an object (Callback)"),
        (functools.partial(plain), "is an object (partial)"),
        ([].append, "belongs to no module"),
    ],
)
def test_what_another_process_cannot_import_is_refused(fn: Any, problem: str) -> None:
    """When the job is defined, not when it first runs; in a thread all of these are fine."""
    message = refused(fn, "process")
    assert problem in message
    assert "top level of a module" in message
    assert look(fn, "thread").mode == "thread"


def test_a_function_inside_a_function_cannot_be_imported() -> None:
    """It exists only while its surroundings run."""

    def handler(payload: Order) -> None: ...

    assert "is defined inside a function" in refused(handler, "process")


@pytest.fixture
def main_handler(monkeypatch: pytest.MonkeyPatch) -> tuple[types.ModuleType, Callable[..., Any]]:
    """A main module of our own, and a handler that says it comes from there."""
    main = types.ModuleType("__main__")
    main.__spec__ = None
    monkeypatch.setitem(sys.modules, "__main__", main)

    def handler(payload: dict[str, Any]) -> None: ...

    handler.__module__, handler.__qualname__ = "__main__", "handler"
    return main, handler


def test_an_interactive_session_cannot_be_imported(main_handler: tuple[types.ModuleType, Callable[..., Any]]) -> None:
    """A notebook or `python -c` has no file that another process could run."""
    main, handler = main_handler
    assert "interactive session" in refused(handler, "process")
    main.__file__ = "/nowhere/<stdin>"
    assert "interactive session" in refused(handler, "process")


def test_a_script_can_be_imported(main_handler: tuple[types.ModuleType, Callable[..., Any]]) -> None:
    """`python script.py` and `python -m package` both can: spawn imports the main module again."""
    main, handler = main_handler
    main.__file__ = str(Path(__file__))
    assert look(handler, "process").mode == "process"
    del main.__file__
    main.__spec__ = inspect.getmodule(plain).__spec__  # type: ignore[union-attr]
    assert look(handler, "process").mode == "process"


def test_every_handler_has_a_name_for_the_log() -> None:
    """A handler that blocks the loop is named, whatever it is."""
    handlers: list[Callable[..., Any] | Coroutine[Any, Any, Any]] = [
        functools.partial(plain),
        Callback(),
        passes_through(plain),
    ]
    names = [look(fn).qualname for fn in handlers]
    assert names == ["plain", "Callback.__call__", "plain"]
