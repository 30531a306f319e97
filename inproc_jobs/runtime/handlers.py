"""
What `define_job` is given, looked at once: how to call it, where to run it, and what its payload is.

A handler is any callable that takes `(payload)` or `(payload, ctx)`. Rules where a callable leaves a choice:

- The context goes to those who ask for it: to a second positional parameter that is required, or that has a default and
  is named `ctx` or `context` or annotated `JobContext`. `*args` and `**kwargs` ask for nothing.
- A decorator that passes `*args` through is looked through (`functools.wraps` leaves `__wrapped__`); one that has
  parameters of its own is taken by them, since they are what can be called.
- Only the payload's annotation is resolved. The others may name what exists for type checkers alone.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from inproc_jobs.errors import InvalidHandlerError, InvalidOptionError
from inproc_jobs.runtime.payloads import Codec, codec_for

__all__ = ["Handler", "Mode", "inspect_handler"]

Mode = Literal["async", "thread", "inline", "process"]
"""Where a handler runs: as a coroutine on the engine's loop, in a thread, as a plain call on the loop, in a process."""

_EXECUTORS: Final[tuple[Mode, ...]] = ("thread", "inline", "process")
_CONTEXT_NAMES: Final = frozenset({"ctx", "context"})
_CONTEXT_TYPE: Final = re.compile(r"\bJobContext\b")
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FORMS: Final = "a handler takes (payload) or (payload, ctx)"


class Handler(msgspec.Struct, frozen=True):
    """
    How one job name is run.

    Attributes:
        fn: The callable, as it was given.
        wants_ctx: Call it with `(payload, ctx)`; else with `(payload)`.
        mode: Where it runs.
        codec: Encodes and decodes its payload.
        module, qualname: Where it is defined, for logs and for a process that has to find it.
    """

    fn: Callable[..., Any]
    wants_ctx: bool
    mode: Mode
    codec: Codec
    module: str
    qualname: str


def inspect_handler(fn: Callable[..., Any], *, job_name: str, executor: str | None) -> Handler:
    """
    Look at a handler once, when it is defined.

    Args:
        fn: Any callable: a function, a bound method, a `functools.partial`, an object with `__call__`, a builtin.
        job_name: For the errors.
        executor: "thread", "inline" or "process" for a plain function; None runs it in a thread. A coroutine function
            runs on the engine's loop, so it takes None only.

    Raises:
        InvalidHandlerError: It cannot be called with (payload) or (payload, ctx), is a generator function, is async with
            an executor, cannot be found by another process, or its payload's annotation cannot be used.
        InvalidOptionError: There is no such executor.

    Cost: tens of microseconds.

    >>> def greet(payload: dict) -> str:
    ...     return f"hello {payload['name']}"
    >>> handler = inspect_handler(greet, job_name="greet", executor=None)
    >>> handler.mode, handler.wants_ctx
    ('thread', False)
    """
    # A definition stands for its handler: decorating twice defines one function under two names.
    if isinstance(defined := getattr(fn, "handler", None), Handler):
        fn = defined.fn
    if not callable(fn):
        raise InvalidHandlerError(
            f"the handler of job {job_name!r} is {fn!r:.80}, which cannot be called; {_FORMS}; give a function"
        )
    mode = _mode_of(fn, job_name, executor)
    module, qualname = _place_of(fn)
    if mode == "process":
        _check_importable(fn, job_name, module, qualname)
    parameters = _parameters_of(fn)
    if parameters is None:
        wants_ctx, annotation = False, inspect.Parameter.empty
    else:
        payload, wants_ctx = _read_parameters(parameters, fn, job_name)
        annotation = _resolved(payload.annotation, fn, job_name)
    return Handler(fn, wants_ctx, mode, codec_for(annotation, job_name=job_name), module, qualname)


# --- where it runs -----------------------------------------------------------------------------------------------------


def _mode_of(fn: Callable[..., Any], job_name: str, executor: str | None) -> Mode:
    if executor is not None and executor not in _EXECUTORS:
        raise InvalidOptionError(
            f"executor={executor!r:.80} of job {job_name!r} is unknown; give 'thread', 'inline' or 'process', "
            "or leave it out",
            option="executor",
            value=executor,
        )
    called = _called(fn)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        kind = "an async generator function" if inspect.isasyncgenfunction(called) else "a generator function"
        raise InvalidHandlerError(
            f"the handler of job {job_name!r} ({_label(fn)}) is {kind}, whose body runs only when somebody iterates; "
            "replace yield by return, or by ctx.progress(...) to report on the way"
        )
    if executor is not None:
        if inspect.iscoroutinefunction(called):
            raise InvalidHandlerError(
                f"the handler of job {job_name!r} ({_label(fn)}) is async and runs on the engine's loop, so it takes no "
                f"executor={executor!r}; leave executor out, or make the handler a plain def"
            )
        return executor
    return "async" if any(inspect.iscoroutinefunction(inner) for inner in _unwrapped(called)) else "thread"


def _called(fn: Any) -> Any:
    """The function that a call ends up in: behind partials, and behind the `__call__` of an object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    # The last condition is for objects that are marked as coroutine functions, such as AsyncMock.
    if isinstance(fn, type) or inspect.isroutine(fn) or inspect.iscoroutinefunction(fn):
        return fn
    call = getattr(fn, "__call__", None)  # noqa: B004  # not whether it is callable, but what is called
    return call if isinstance(call, types.MethodType) else fn


def _unwrapped(fn: Any) -> Iterator[Any]:
    """
    The function itself, then what `functools.wraps` says is inside it.

    A plain wrapper around a coroutine function most often just returns the coroutine, so it is run on the loop. One that
    runs the coroutine to its end (`asyncio.run`) needs executor="thread", which only a true coroutine function refuses.
    """
    seen = set()
    while fn is not None and id(fn) not in seen:
        seen.add(id(fn))
        yield fn
        fn = _called(inner) if (inner := getattr(fn, "__wrapped__", None)) is not None else None


# --- its parameters ----------------------------------------------------------------------------------------------------


def _parameters_of(fn: Any) -> list[inspect.Parameter] | None:
    """The parameters that decide; None for a builtin that does not tell."""
    own = _signature(fn, follow_wrapped=False)
    if own is not None and not any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in own.parameters.values()):
        return list(own.parameters.values())
    inner = _signature(fn, follow_wrapped=True)
    return list(inner.parameters.values()) if inner is not None else None


def _signature(fn: Any, *, follow_wrapped: bool) -> inspect.Signature | None:
    try:
        if sys.version_info >= (3, 14):
            # There annotations are computed when looked at, and one that is for type checkers only must not raise.
            from annotationlib import Format

            return inspect.signature(fn, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF)
        return inspect.signature(fn, follow_wrapped=follow_wrapped)
    except (ValueError, TypeError):  # written in C, and does not tell
        return None


def _read_parameters(parameters: list[inspect.Parameter], fn: Any, job_name: str) -> tuple[inspect.Parameter, bool]:
    """The payload's parameter, and whether the context is wanted."""
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    required = [parameter for parameter in positional if parameter.default is inspect.Parameter.empty]
    keywords = [
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty
    ]
    rest = next((parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL), None)

    def refuse(problem: str) -> InvalidHandlerError:
        return InvalidHandlerError(
            f"the handler of job {job_name!r} ({_label(fn)}) {problem}; {_FORMS}, and more parameters only if they have "
            "defaults; functools.partial can give it what else it needs"
        )

    if keywords:
        raise refuse(f"needs keyword arguments ({', '.join(keywords)})")
    if len(required) > 2:
        raise refuse(f"needs {len(required)} arguments ({', '.join(parameter.name for parameter in required)})")
    if not positional and rest is None:
        raise refuse("takes no positional argument")
    if positional and _is_context_type(positional[0]):
        raise refuse(f"takes the context first ({positional[0].name})")
    payload = positional[0] if positional else _untyped(rest)
    return payload, len(required) == 2 or (len(positional) > 1 and _is_context(positional[1]))


def _untyped(rest: inspect.Parameter | None) -> inspect.Parameter:
    """`*args` as the payload's parameter. Its annotation stays out: it is about all arguments."""
    name = rest.name if rest is not None else "payload"
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)


def _is_context(parameter: inspect.Parameter) -> bool:
    return parameter.name in _CONTEXT_NAMES or _is_context_type(parameter)


def _is_context_type(parameter: inspect.Parameter) -> bool:
    """By name, since the annotation may be text that only type checkers can resolve."""
    if parameter.annotation is inspect.Parameter.empty:
        return False
    annotation = parameter.annotation
    return (
        _CONTEXT_TYPE.search(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))
        is not None
    )


def _resolved(annotation: Any, fn: Any, job_name: str) -> Any:
    """The payload's annotation as a type, where it is text (`from __future__ import annotations`) or has text inside."""
    if annotation is inspect.Parameter.empty:
        return annotation
    scopes = _scopes(_called(fn))

    def stand_in() -> None:
        """A function with this one annotation, so that the others are not resolved."""

    stand_in.__annotations__ = {"payload": annotation}
    try:
        # A wrapper copies the annotations of what it wraps, so the names are meant as the innermost module has them.
        hints = typing.get_type_hints(
            stand_in, globalns=scopes[0] if scopes else {}, localns=scopes[-1] if scopes else {}, include_extras=True
        )
    except Exception as error:
        raise InvalidHandlerError(
            f"the payload of job {job_name!r} ({_label(fn)}) is annotated {annotation!r:.200}, which cannot be resolved: "
            f"{type(error).__name__}: {error}; import or define that name at the top level of the handler's module, "
            "outside of `if TYPE_CHECKING`"
        ) from error
    return hints["payload"]


def _scopes(called: Any) -> list[dict[str, Any]]:
    """The names that annotations may use, outermost wrapper first."""
    if isinstance(called, type):
        return [vars(module)] if (module := sys.modules.get(called.__module__)) is not None else []
    return [inner.__globals__ for inner in _unwrapped(called) if hasattr(inner, "__globals__")]


# --- where it is defined -----------------------------------------------------------------------------------------------


def _place_of(fn: Any) -> tuple[str, str]:
    named = fn
    if isinstance(fn, types.MethodType) and isinstance(fn.__self__, type):
        # A classmethod is found through the class it was taken from, which may be a subclass of its home.
        return fn.__self__.__module__, f"{fn.__self__.__qualname__}.{fn.__name__}"
    if not isinstance(getattr(fn, "__qualname__", None), str):
        named = _called(fn)
    return str(getattr(named, "__module__", None) or ""), str(
        getattr(named, "__qualname__", None) or type(fn).__qualname__
    )


def _label(fn: Any) -> str:
    return ".".join(filter(None, _place_of(fn)))


def _check_importable(fn: Any, job_name: str, module: str, qualname: str) -> None:
    """A process that is started afresh imports the handler by module and name; say so now if it cannot."""
    if "<lambda>" in qualname:
        problem = "is a lambda"
    elif "<locals>" in qualname:
        problem = "is defined inside a function"
    elif isinstance(fn, types.MethodType) and not isinstance(fn.__self__, type):
        problem = "is a method of one object, which another process does not have"
    elif not (inspect.isroutine(fn) or isinstance(fn, type)):
        problem = f"is an object ({type(fn).__name__}) without a name to import it by"
    elif not module:
        problem = "belongs to no module"
    elif module == "__main__" and not _main_has_file():
        problem = "is defined in an interactive session, which another process cannot import"
    else:
        return
    raise InvalidHandlerError(
        f"the handler of job {job_name!r} ({_label(fn)}) {problem}; with executor='process' it is imported by name in "
        "another process, so define it with def at the top level of a module"
    )


def _main_has_file() -> bool:
    main = sys.modules.get("__main__")
    if getattr(main, "__spec__", None) is not None:  # python -m
        return True
    file = getattr(main, "__file__", None)
    return file is not None and os.path.exists(file)  # noqa: PTH110  # pathlib takes 5 ms to import
