"""
How the payload of one handler is encoded at dispatch and decoded for each attempt.

A handler whose payload has a type of its own (a dataclass, a TypedDict, a msgspec.Struct, a pydantic model, `list[int]`)
receives that type. Encoding alone checks nothing: to msgspec a field annotated `str` is happy with bytes, which would
arrive as base64 text, and a field annotated `Any` with a datetime, which would arrive as text. So a typed payload is
decoded once at dispatch, as an attempt would, and what arrives is compared with what was given, part by part. What is
not the same is refused.

A plain dict may stand in for an object. It is stored as the object that it describes, so that defaults are fixed at
dispatch and not anew in each attempt. Keys that the type does not know are ignored, as msgspec and pydantic do: a
webhook that gains a field must not stop the jobs.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from importlib import import_module
from inspect import Parameter, formatannotation, signature
from types import NoneType, UnionType
from typing import Any, Final, TypeVar

import msgspec

from inproc_jobs.core.json_values import (
    MAX_NESTING,
    Path,
    circular,
    decode_json,
    encode_json,
    not_finite,
    refusal,
    too_deep,
    type_text,
)
from inproc_jobs.errors import InvalidHandlerError, InvalidPayloadError
from inproc_jobs.runtime.round_trip import differs_in_form, first_not_finite, parts

__all__ = ["MAX_NESTING", "UNTYPED", "Codec", "codec_for", "decode_json", "encode_json"]

_ROOT: Final[Path] = (None, "payload")

# Annotations that name a shape of JSON and no type: checking them would cost every dispatch and tell little.
_UNTYPED: Final = frozenset({Parameter.empty, Any, object, dict, list, Mapping, MutableMapping})


class Codec(msgspec.Struct, frozen=True):
    """
    The two directions of one handler's payload. Plain functions, since the hot path calls them directly.

    Attributes:
        encode: Checks a payload and encodes it, or raises InvalidPayloadError. For dispatch.
        decode: The payload as the handler takes it, made anew; InvalidPayloadError when stored bytes do not fit.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


UNTYPED: Final = Codec(encode=encode_json, decode=decode_json)
"""For handlers that take any JSON value."""


def codec_for(annotation: Any, *, job_name: str) -> Codec:
    """
    The codec for a payload with this annotation.

    Args:
        annotation: The resolved annotation of the handler's payload; `inspect.Parameter.empty` if it has none.
        job_name: For the errors.

    Returns:
        `UNTYPED` for a missing annotation, Any, object, dict, list, Mapping, these with Any inside, and unions of these
        with None. A codec of its own for everything else.

    Raises:
        InvalidHandlerError: The annotation, or one inside it, cannot be resolved, or JSON cannot carry its values.

    >>> codec_for(dict[str, Any], job_name="mail") is UNTYPED
    True
    >>> codec_for(list[int], job_name="sums").encode(["one"])
    Traceback (most recent call last):
    ...
    inproc_jobs.errors.InvalidPayloadError: payload[0] does not fit: Expected `int`, got `str`; job 'sums' takes list[int]
    """
    annotation = _unaliased(annotation)
    if _is_untyped(annotation):
        return UNTYPED
    try:
        typed = _typed(annotation, job_name)
    except Exception as error:
        raise InvalidHandlerError(
            f"the payload of job {job_name!r} is annotated {_name(annotation)}, which cannot be used: {_reason(error)}; "
            "annotate it with a dataclass, a TypedDict, a msgspec.Struct or a pydantic model that is defined at module "
            "level, or with dict for any JSON value"
        ) from error
    return Codec(encode=typed.encode, decode=typed.decode)


# --- which codec -------------------------------------------------------------------------------------------------------


def _unaliased(annotation: Any) -> Any:
    """What `type Order = ...` stands for."""
    while type(annotation).__name__ == "TypeAliasType":
        annotation = annotation.__value__
    return annotation


def _is_untyped(annotation: Any) -> bool:
    annotation = _unaliased(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _is_untyped(arguments[0]) and not any(isinstance(extra, msgspec.Meta) for extra in arguments[1:])
    if origin is typing.Union or origin is UnionType:
        return all(member is NoneType or _is_untyped(member) for member in arguments)
    if isinstance(annotation, TypeVar):
        return annotation.__bound__ is None and not annotation.__constraints__
    if not arguments:
        return _is_one_of(origin or annotation, _UNTYPED)
    *keys, item = arguments
    return origin in _UNTYPED and item in (Any, object) and all(key in (str, Any, object) for key in keys)


def _is_one_of(annotation: Any, known: frozenset[Any]) -> bool:
    try:
        return annotation in known
    except TypeError:  # not hashable
        return False


def _typed(annotation: Any, job_name: str) -> _Typed:
    takes = f"job {job_name!r} takes {_name(annotation)}"
    if _mentions_model(annotation):
        return _pydantic_typed(annotation, takes)
    info = msgspec.inspect.type_info(annotation)
    for kind in _foreign_types(info):
        if _is_model(kind):
            return _pydantic_typed(annotation, takes)
        raise TypeError(f"JSON cannot be turned into a {kind.__qualname__}")
    encoder = msgspec.json.Encoder(enc_hook=_base_value)
    return _Typed(encoder.encode, msgspec.json.Decoder(annotation).decode, takes)


def _foreign_types(info: msgspec.inspect.Type) -> Iterator[type]:
    """The classes in a type that msgspec would decode only with a hook, or that are pydantic's to decode."""
    todo, seen = [info], set[int]()
    while todo:
        node: Any = todo.pop()
        if isinstance(node, tuple):
            todo.extend(node)
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))  # a type may contain itself
            if isinstance(node, msgspec.inspect.CustomType) or _is_model(getattr(node, "cls", None)):
                yield node.cls  # type: ignore[union-attr]  # both kinds have it
            todo.extend(getattr(node, name) for name in node.__struct_fields__)


def _is_model(kind: Any) -> bool:
    """A model or dataclass of pydantic 2, told without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_core_schema__")


def _mentions_model(annotation: Any) -> bool:
    return _is_model(annotation) or any(_mentions_model(member) for member in typing.get_args(annotation))


def _pydantic_typed(annotation: Any, takes: str) -> _Typed:
    adapter = import_module("pydantic").TypeAdapter(annotation)  # by name: pydantic is the user's, not ours
    if not getattr(adapter, "pydantic_complete", True):
        adapter.rebuild(raise_errors=True)  # raises for what cannot be resolved
    return _TypedByPydantic(adapter, takes)


def _base_value(value: Any) -> Any:
    """What msgspec asks about: text and numbers of a type of their own are written as the type that they extend."""
    for base, exact in _EXACT.items():
        if isinstance(value, base):
            return exact(value)
    raise TypeError(f"JSON does not have {type_text(value)}")


_EXACT: Final[dict[type, Callable[[Any], Any]]] = {str: str.__str__, int: int.__int__, float: float.__float__}


# --- typed payloads ----------------------------------------------------------------------------------------------------


class _Typed:
    """Encodes and decodes by a type, and refuses what would arrive as something else."""

    __slots__ = ("_dump", "_load", "_takes")

    def __init__(self, dump: Callable[[Any], bytes], load: Callable[[bytes], Any], takes: str) -> None:
        self._dump = dump
        self._load = load
        self._takes = takes

    def encode(self, value: Any) -> bytes:
        given, data = self._prepare(value)
        arrives = self._arrival(given, data)
        # A dict that stood in for an object is stored as that object.
        return self._dump(arrives) if differs_in_form(given, arrives, _ROOT) else data

    def decode(self, data: bytes) -> Any:
        try:
            return self._load(data)
        except Exception as error:  # a type's own checks may raise anything
            raise self._misfit(data, error) from error

    def _prepare(self, value: Any) -> tuple[Any, bytes]:
        """The value to compare with, and its bytes."""
        try:
            return value, self._dump(value)
        except Exception as error:  # same
            raise self._unencodable(value) from error

    def _arrival(self, given: Any, data: bytes) -> Any:
        try:
            return self.decode(data)
        except InvalidPayloadError:
            # NaN was written as null, so the complaint would be about a null that nobody gave.
            culprit = first_not_finite(given, _ROOT)
            if culprit is not None:
                raise not_finite(*culprit) from None
            raise

    def _unencodable(self, value: Any) -> InvalidPayloadError:
        """The error for the innermost part that cannot be encoded."""
        path, inside = _ROOT, set[int]()
        while len(inside) <= MAX_NESTING:
            if id(value) in inside:
                return circular(value, path)
            inside.add(id(value))
            for step, part in parts(value):
                if self._problem(part) is not None:
                    value, path = part, (path, step)
                    break
            else:
                return refusal(value, path, f"cannot be encoded: {self._problem(value)}; {self._takes}")
        return too_deep(value, path)

    def _problem(self, value: Any) -> str | None:
        try:
            self._dump(value)
        except Exception as error:  # noqa: BLE001  # same
            return _reason(error)
        return None

    def _misfit(self, data: bytes, error: Exception) -> InvalidPayloadError:
        """The error for JSON that the type does not take."""
        steps, problem = _located(error)
        try:
            return self._unfit(decode_json(data), steps, problem)
        except InvalidPayloadError as unreadable:
            return unreadable

    def _unfit(self, value: Any, steps: list[Any], problem: str) -> InvalidPayloadError:
        path = _ROOT
        for step in steps:
            path = (path, step)
            try:
                value = value[step]
            except (LookupError, TypeError):
                value = None  # a step that names no place, such as `[...]`
        return refusal(value, path, f"does not fit: {problem}; {self._takes}")


class _TypedByPydantic(_Typed):
    """The same, where what is no model yet is made one first, through pydantic's own validation."""

    __slots__ = ("_validate",)

    def __init__(self, adapter: Any, takes: str) -> None:
        # A field may be written under its name and read under an alias; pydantic 2.11 and later can read both.
        names = {"by_alias": True, "by_name": True} if "by_name" in signature(adapter.validate_json).parameters else {}
        dump = partial(adapter.dump_json, by_alias=True, round_trip=True, warnings="error")
        super().__init__(dump, partial(adapter.validate_json, **names), takes)
        self._validate = partial(adapter.validate_python, **names)

    def _prepare(self, value: Any) -> tuple[Any, bytes]:
        try:
            return value, self._dump(value)
        except Exception:  # noqa: BLE001  # a dict where a model is meant, most often; else the next lines raise it again
            given = self._model(value)
        try:
            return given, self._dump(given)
        except Exception as error:
            raise refusal(value, _ROOT, f"cannot be encoded: {_reason(error)}; {self._takes}") from error

    def _model(self, value: Any) -> Any:
        try:
            return self._validate(value)
        except Exception as error:
            steps, problem = _located(error)
            raise self._unfit(value, steps, problem) from error


# --- words for errors --------------------------------------------------------------------------------------------------


def _name(annotation: Any) -> str:
    return formatannotation(annotation)


def _reason(error: Exception) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__


_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def _located(error: Exception) -> tuple[list[Any], str]:
    """Where a decoder found fault, and what it said."""
    if type(error).__module__.startswith("pydantic") and hasattr(error, "errors"):
        first = error.errors(include_url=False)[0]
        return list(first["loc"]), first["msg"]
    problem, _, place = _reason(error).partition(" - at `")
    steps: list[Any] = []
    for name, index in _STEP.findall(place.removesuffix("`")):
        steps.append(name or (Ellipsis if index == "..." else int(index)))
    return steps, problem
