"""
JSON values: the strict way in, and the tolerant way out.

msgspec is the codec, not the judge: left alone it writes NaN as null and turns dates, bytes, sets and integer keys into
something else without a word. So every untyped value goes through a walk of our own first. The walk comes in two: a
quick one that only says yes or no, and a careful one that names the culprit, or rewrites what merely extends a JSON type.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import isfinite
from types import NoneType
from typing import Any, Final

import msgspec

from inproc_jobs.errors import InvalidPayloadError

__all__ = [
    "MAX_NESTING",
    "Path",
    "circular",
    "decode_json",
    "encode_json",
    "exact_twin",
    "not_finite",
    "path_text",
    "refusal",
    "too_deep",
    "type_text",
]

MAX_NESTING: Final = 500
"""Containers inside containers. Half of Python's default recursion limit, which every JSON decoder spends too."""

# Deeper values take the careful walk. It notices a circle at its first repetition, where the quick one goes round.
_QUICK_NESTING: Final = 20

_ATOMS: Final = frozenset({str, int, bool, NoneType})
_CONTAINERS: Final = (dict, list, tuple)
_PATH_SHOWN: Final = 160
_KEY_SHOWN: Final = 60

Path = tuple[Any, Any]
"""Where a value is: (path of its container, key or index), outermost (None, root). Made into text only for an error."""

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode


def encode_json(value: Any, root: str = "payload") -> bytes:
    """
    JSON text (UTF-8) of a value, if the value is JSON: it decodes to an equal value, or it is refused.

    dict, list, str, int of any size, finite float, bool and None are JSON. Tuples become lists. Subclasses of these,
    such as OrderedDict, StrEnum or a namedtuple, are written as the type they extend.

    Args:
        value: What to encode; nothing in it is kept or changed.
        root: Where the value comes from, for the path in the error: "payload", "result" or "progress".

    Raises:
        InvalidPayloadError: Anything else inside (datetime, Decimal, bytes, set, ...), NaN and infinities, keys that
            are not text, lone surrogates, a circle, nesting deeper than MAX_NESTING, an int with more digits than
            the interpreter reads back (`sys.get_int_max_str_digits()`).

    Cost: O(size).

    >>> encode_json({"user_id": 1, "tags": ("a", "b")})
    b'{"user_id":1,"tags":["a","b"]}'
    """
    if value is None:
        return b"null"
    if _is_exact(value, _QUICK_NESTING):
        try:
            return _write(value)
        except ValueError:
            pass  # a lone surrogate, or an int too long; the careful walk says which and where
    return _encode_carefully(value, root)


def decode_json(data: bytes) -> Any:
    """
    The value of JSON text, made of fresh objects each time.

    Reads what other writers store as well: text with half a surrogate pair (Node writes it), and any key order.
    Ints come back exact; of equal keys the last one counts, as in JavaScript.

    Raises:
        InvalidPayloadError: Not JSON, not UTF-8, NaN, a number too large for a float, nesting that the interpreter
            cannot follow.

    Cost: O(size).

    >>> decode_json(b'{"user_id":1}')
    {'user_id': 1}
    """
    try:
        return _read(data)
    except (msgspec.DecodeError, ValueError, RecursionError):  # older msgspec lets UnicodeDecodeError through
        return _decode_with_stdlib(data)


def _is_exact(value: Any, room: int) -> bool:
    """Whether a value consists of exact JSON types, so that msgspec writes it faithfully. Text is left to msgspec."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                return False
            kind = type(item)
            if kind in _ATOMS or (kind is float and isfinite(item)):
                continue
            if kind not in _CONTAINERS or not room or not _is_exact(item, room - 1):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:
            kind = type(item)
            if kind in _ATOMS or (kind is float and isfinite(item)):
                continue
            if kind not in _CONTAINERS or not room or not _is_exact(item, room - 1):
                return False
        return True
    return kind in _ATOMS or (kind is float and isfinite(value))


def _encode_carefully(value: Any, root: str) -> bytes:
    twin = exact_twin(value, (None, root))
    try:
        return _write(twin)
    except RecursionError as error:
        raise too_deep(value, (None, root)) from error


class _Open:
    """A container that the careful walk is inside of."""

    __slots__ = ("items", "path", "source", "twin")

    def __init__(self, source: Any, path: Path) -> None:
        self.source = source
        self.path = path
        self.twin: Any
        self.items: Iterator[tuple[Any, Any]]
        if issubclass(type(source), dict):
            self.twin = {}
            self.items = _text_keyed(source, path)
        else:
            self.twin = []
            self.items = enumerate(source)

    def store(self, key: Any, item: Any) -> None:
        if type(self.twin) is dict:
            self.twin[key] = item
        else:
            self.twin.append(item)


def exact_twin(value: Any, path: Path) -> Any:
    """
    A copy in exact JSON types, or the error that names the culprit.

    Iterative: a list nested 100,000 deep must end in an error, not in the interpreter's stack.
    """
    # issubclass of the type, not isinstance: mocks and lazy proxies lie about their class.
    if not issubclass(type(value), _CONTAINERS):
        return _exact_scalar(value, path)
    outermost = _Open(value, path)
    stack, inside = [outermost], {id(value)}
    while stack:
        top = stack[-1]
        for key, item in top.items:
            where = (top.path, key)
            if not issubclass(type(item), _CONTAINERS):
                top.store(key, _exact_scalar(item, where))
                continue
            if id(item) in inside:
                raise circular(item, where)
            if len(stack) >= MAX_NESTING:
                raise too_deep(item, where)
            child = _Open(item, where)
            top.store(key, child.twin)
            stack.append(child)
            inside.add(id(item))
            break
        else:
            inside.discard(id(stack.pop().source))
    return outermost.twin


def _text_keyed(source: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """The items of a dict, keys as exact text."""
    seen = set()
    for key, item in source.items():  # not dict.items: an OrderedDict has an order of its own
        if not issubclass(type(key), str):
            raise refusal(
                key, path, f"has a key that is {type_text(key)}; the keys of a JSON object are text, so give str(key)"
            )
        text = _exact_text(key, path, "has a key with a lone surrogate")
        if text in seen:
            raise refusal(key, path, f"has two keys that are both written {text!r}")
        seen.add(text)
        yield text, item


def _exact_scalar(value: Any, path: Path) -> Any:
    kind = type(value)
    if kind is bool or value is None:
        return value
    if issubclass(kind, str):
        return _exact_text(value, path, "has a lone surrogate")
    if issubclass(kind, int):
        return _exact_int(value, path)
    if issubclass(kind, float):
        if not isfinite(value):
            raise not_finite(value, path)
        return float.__float__(value)
    raise refusal(value, path, f"is {type_text(value)}, which JSON does not have; {_cure(kind)}")


def _exact_text(value: str, path: Path, problem: str) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refusal(
            value,
            path,
            f"{problem} at index {error.start} (half a character, which UTF-8 cannot hold); "
            'decode the bytes that it came from with errors="replace"',
        ) from None
    return text


def _exact_int(value: int, path: Path) -> int:
    number = int.__int__(value)
    try:
        if number.bit_length() > 2_000:  # about 600 digits; the interpreter's limit cannot be set below 640
            str(number)
    except ValueError:
        raise refusal(
            value,
            path,
            f"has more than {sys.get_int_max_str_digits()} digits, which no reader takes; give hex(...) of it",
        ) from None
    return number


def _decode_with_stdlib(data: bytes) -> Any:
    """What msgspec refuses and the standard library reads without loss; the error for all else."""
    try:
        return json.loads(bytes(data).decode(), parse_constant=_refuse_constant, parse_float=_finite_float)
    except (ValueError, RecursionError) as error:
        raise InvalidPayloadError(f"stored JSON cannot be read: {error}", path="", value=data) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a float")
    return number


# --- words for errors --------------------------------------------------------------------------------------------------


def path_text(path: Path) -> str:
    """
    A path as Python would write it.

    >>> path_text((((None, "payload"), "items"), 3))
    'payload.items[3]'
    """
    parts = []
    parent, key = path
    while parent is not None:
        parts.append(_step(key))
        parent, key = parent
    parts.append(key)
    return "".join(reversed(parts))


def type_text(value: Any) -> str:
    """The type of a value with its article, for a sentence such as "is a Decimal"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def refusal(value: Any, path: Path, problem: str) -> InvalidPayloadError:
    """The error that names a culprit. The value itself stays out of the text: its `repr` may be secret, huge or broken."""
    text = path_text(path)
    shown = text if len(text) <= _PATH_SHOWN else f"{text[:100]}...{text[-50:]}"
    return InvalidPayloadError(f"{shown} {problem}", path=text, value=value)


def not_finite(value: float, path: Path) -> InvalidPayloadError:
    """The error for NaN and the infinities."""
    return refusal(value, path, f"is {float(value)}; JSON has neither NaN nor infinity, so give None or text")


def too_deep(value: Any, path: Path) -> InvalidPayloadError:
    """The error for containers in containers in containers."""
    return refusal(value, path, f"is nested too deeply; at most {MAX_NESTING} levels can be stored and read back")


def circular(value: Any, path: Path) -> InvalidPayloadError:
    """The error for a container that is met again inside itself."""
    return refusal(value, path, "contains itself; JSON cannot be circular")


def _step(key: Any) -> str:
    if key is Ellipsis:  # msgspec does not say which key
        return "[...]"
    if isinstance(key, str):
        if key.isidentifier():
            return f".{key}"
        return f"[{key!r}]" if len(key) <= _KEY_SHOWN else f"[{key[:_KEY_SHOWN]!r}...]"
    return f"[{key!r}]"


# By name, so that nothing has to be imported to recognize what nobody passed.
_CURES: Final = {
    "datetime.datetime": "give its isoformat()",
    "datetime.date": "give its isoformat()",
    "datetime.time": "give its isoformat()",
    "datetime.timedelta": "give its total_seconds()",
    "decimal.Decimal": "give str(...) of it",
    "uuid.UUID": "give str(...) of it",
    "pathlib.PurePath": "give str(...) of it",
    "builtins.bytes": "give its decode(), or base64 text",
    "builtins.bytearray": "give its decode(), or base64 text",
    "builtins.set": "give a sorted list of it",
    "builtins.frozenset": "give a sorted list of it",
    "enum.Enum": "give its value",
    "numpy.generic": "give its item()",
    "numpy.ndarray": "give its tolist()",
}


def _cure(kind: type) -> str:
    for base in kind.__mro__:
        cure = _CURES.get(f"{base.__module__.partition('.')[0]}.{base.__qualname__}")
        if cure is not None:
            return cure
    if any(hasattr(kind, mark) for mark in ("__dataclass_fields__", "__struct_fields__", "__pydantic_fields__")):
        return "give a dict of its fields, or annotate the handler's payload with the type"
    if hasattr(kind, "keys"):
        return "give dict(...) of it"
    return "give a dict, list, text, number, bool or None"
