"""JSON values: the strict way in, the tolerant way out."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
import sys
import types
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inproc_jobs.core.json_values import MAX_NESTING, decode_json, encode_json
from inproc_jobs.errors import InvalidPayloadError


class Size(enum.StrEnum):
    """Text of another type."""

    BIG = "big"


class Level(enum.IntEnum):
    """An int of another type."""

    LOW = 1


class Color(enum.Enum):
    """No JSON type at all, although its value is one."""

    RED = "red"


class Pair(NamedTuple):
    """A tuple of another type."""

    left: int
    right: str


class Text(str):
    """Text of another type."""

    __slots__ = ()


class SameText(Text):
    """Text that is a key of its own even where the text is equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Meters(float):
    """A float of another type, as numpy has it."""

    __slots__ = ()


class Rows(list[Any]):
    """A list of another type."""


@dataclasses.dataclass
class Invoice:
    """An object with fields."""

    id: int


def nested(levels: int, innermost: Any = None) -> Any:
    """A list in a list in a list."""
    value = [] if innermost is None else [innermost]
    for _ in range(levels - 1):
        value = [value]
    return value


def circular_dict() -> dict[str, Any]:
    """A dict that contains itself two levels down."""
    value: dict[str, Any] = {"name": "loop"}
    value["items"] = [1, value]
    return value


def branching_circle() -> list[Any]:
    """A list whose every element is the list."""
    value: list[Any] = []
    value.extend([value, value, value])
    return value


def refused(value: Any, root: str = "payload") -> InvalidPayloadError:
    """The error with which a value is refused."""
    with pytest.raises(InvalidPayloadError) as caught:
        encode_json(value, root)
    return caught.value


@contextmanager
def int_digits(limit: int) -> Iterator[None]:
    """Another limit for int <-> text."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(limit)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


TEXT = st.text(max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
JSON_VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)
NOT_JSON = st.one_of(
    st.just(math.nan),
    st.just(math.inf),
    st.just(-math.inf),
    st.binary(max_size=3),
    st.datetimes(),
    st.decimals(),
    st.uuids(),
    st.sets(st.integers(), max_size=2),
    st.just("\ud800"),
    st.builds(object),
    st.builds(Invoice, st.integers()),
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: to Python 1, 1.0 and True are equal."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


@given(value=JSON_VALUES)
@example(value={"a": -0.0, "b": 1e308, "c": 5e-324, "d": 2**64, "e": -(2**63) - 1, "f": "\u2028\U0001f600\x00"})
def test_a_json_value_comes_back_equal(value: Any) -> None:
    """What is JSON survives the trip, types and order included, for our reader and for everybody's."""
    data = encode_json(value)
    assert same(decode_json(data), value)
    assert same(json.loads(data), value)


@given(value=JSON_VALUES, steps=st.lists(st.one_of(TEXT, st.integers(0, 3)), max_size=30), culprit=NOT_JSON)
@example(value=None, steps=["items", 3, "price"], culprit=Decimal(1))
def test_what_is_not_json_is_refused_with_its_path(value: Any, steps: list[str | int], culprit: Any) -> None:
    """C85, C86: wherever the culprit is and whatever surrounds it, the error names the place and carries it."""
    path = "payload"
    for step in steps:
        path += f"[{step!r}]" if isinstance(step, int) or not step.isidentifier() else f".{step}"
    inner = culprit
    for step in reversed(steps):
        inner = [value] * step + [inner, value] if isinstance(step, int) else {"before": value, step: inner}
    error = refused(inner)
    assert error.path == path
    assert error.value is culprit


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "is a datetime, which JSON does not have; give its isoformat()"),
        (date(2026, 1, 1), "give its isoformat()"),
        (time(1), "give its isoformat()"),
        (timedelta(1), "give its total_seconds()"),
        (Decimal("1.5"), "is a Decimal, which JSON does not have; give str(...) of it"),
        (uuid.UUID(int=1), "is a UUID, which JSON does not have; give str(...) of it"),
        (PurePosixPath("/tmp"), "give str(...) of it"),
        (b"x", "give its decode(), or base64 text"),
        (bytearray(b"x"), "give its decode(), or base64 text"),
        ({1}, "give a sorted list of it"),
        (frozenset(), "give a sorted list of it"),
        (Color.RED, "give its value"),
        (Invoice(1), "give a dict of its fields, or annotate the handler's payload with the type"),
        (types.MappingProxyType({}), "give dict(...) of it"),
        (collections.UserDict(), "give dict(...) of it"),
        (range(3), "give a dict, list, text, number, bool or None"),
        (object(), "give a dict, list, text, number, bool or None"),
        (1j, "give a dict, list, text, number, bool or None"),
        (MagicMock(spec=dict), "is a MagicMock"),  # it passes isinstance(..., dict)
        (int, "is a type"),
        (math.nan, "is nan; JSON has neither NaN nor infinity"),
        (-math.inf, "is -inf; JSON has neither NaN nor infinity"),
        (Meters("nan"), "is nan; JSON has neither NaN nor infinity"),
    ],
)
def test_a_refusal_says_what_to_give_instead(culprit: Any, words: str) -> None:
    """C85: nothing is converted silently; the message names the place, the type and the cure, at depth 3 as on top."""
    assert words in str(refused(culprit))
    message = str(refused({"a": [0, 1, 2, {"when": culprit}]}, "result"))
    assert message.startswith("result.a[3].when is ")
    assert words in message


@pytest.mark.parametrize("root", ["payload", "result", "progress"])
def test_the_path_starts_where_the_value_comes_from(root: str) -> None:
    """C86: results and progress go through the same gate as payloads."""
    assert refused([math.nan], root).path == f"{root}[0]"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({1: "a", "1": "b"}, 1),
        ({None: 1}, None),
        ({True: 1}, True),
        ({1.5: 1}, 1.5),
        ({b"a": 1}, b"a"),
        ({("a", "b"): 1}, ("a", "b")),
        ({"\ud800": 1}, "\ud800"),
    ],
)
def test_a_key_that_is_not_text_is_refused(value: dict[Any, Any], key: Any) -> None:
    """C91: JSON would turn 1 into "1" and lose one of two values; the error names the dict and carries the key."""
    error = refused({"items": [value]})
    assert error.path == "payload.items[0]"
    assert error.value == key
    assert "key" in str(error)


def test_two_keys_of_equal_text_are_refused() -> None:
    """C91: not even keys that only Python tells apart lose a value silently."""
    assert "two keys" in str(refused({SameText("a"): 1, SameText("a"): 2}))


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ((1, (2,)), [1, [2]]),
        ({"a": ()}, {"a": []}),
        (Pair(1, "x"), [1, "x"]),
        ({Size.BIG: Level.LOW}, {"big": 1}),
        ([Text("x"), Meters(1.5)], ["x", 1.5]),
        (Rows([Rows([1])]), [[1]]),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        ({Text("a"): {Text("b"): None}}, {"a": {"b": None}}),
    ],
)
def test_what_extends_a_json_type_is_written_as_that_type(value: Any, arrives: Any) -> None:
    """Tuples become lists, and StrEnum, IntEnum, OrderedDict and the like become what they extend."""
    assert same(decode_json(encode_json(value)), arrives)
    assert same(decode_json(encode_json([value])), [arrives])


def test_an_ordered_dict_keeps_its_own_order() -> None:
    """An OrderedDict is ordered by its own rule, not by the dict inside it."""
    value = collections.OrderedDict(a=1, b=2, c=3)
    value.move_to_end("a")
    assert encode_json(value) == b'{"b":2,"c":3,"a":1}'


@pytest.mark.parametrize("number", [130775545883395173, 2**53 + 1, 2**64, 2**64 + 1, -(2**63) - 1, 10**400, 10**4299])
def test_an_int_of_any_size_stays_exact(number: int) -> None:
    """C87: no hop goes through a double."""
    assert decode_json(encode_json({"id": number})) == {"id": number}
    assert decode_json(encode_json(-number)) == -number


def test_an_int_that_no_reader_takes_is_refused() -> None:
    """Python's own readers stop at 4,300 digits, so longer numbers could be written and never read."""
    error = refused({"key": [10**4300]})
    assert error.path == "payload.key[0]"
    assert "digits" in str(error)


def test_an_int_is_as_long_as_the_interpreter_reads() -> None:
    """A host that raised the interpreter's limit gets the longer numbers, both ways."""
    with int_digits(10_000):
        assert decode_json(encode_json([10**9_000])) == [10**9_000]


@pytest.mark.parametrize(
    "text", ["a\u0000b", '\x7f\x1f\n\t"\\/', "\u2028\ufeff", "\U0010ffff", "e\u0301", "\u00e9", "</script>"]
)
def test_every_valid_text_survives(text: str) -> None:
    """C89: NUL and its friends are escaped, nothing is normalized."""
    data = encode_json({text: text})
    assert decode_json(data) == {text: text}
    assert json.loads(data) == {text: text}
    assert b"\x00" not in data


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", Text("\udc80")])
def test_half_a_character_is_refused(text: str) -> None:
    """C96: text that was decoded with surrogateescape cannot be written; it is an error before anything changes."""
    error = refused({"name": ["x", text]})
    assert error.path == "payload.name[1]"
    assert "surrogate" in str(error)


@pytest.mark.parametrize(
    ("value", "path"),
    [(circular_dict(), "payload.items[1]"), (branching_circle(), "payload[0]"), (nested(30, circular_dict()), None)],
)
def test_what_contains_itself_is_refused(value: Any, path: str | None) -> None:
    """C92: a circle is found at its first repetition, in time that does not explode with its branches."""
    error = refused(value)
    assert "circular" in str(error)
    assert path is None or error.path == path


def test_what_appears_twice_is_no_circle() -> None:
    """One dict in two places is written twice."""
    shared = {"a": Text("x")}
    assert encode_json([shared, shared, [shared]]) == b'[{"a":"x"},{"a":"x"},[{"a":"x"}]]'


@pytest.mark.parametrize("levels", [1, 19, 20, 21, 22, 23, MAX_NESTING])
@pytest.mark.parametrize("innermost", [None, "x", Text("x")])
def test_nesting_up_to_the_limit_survives(levels: int, innermost: Any) -> None:
    """The quick and the careful walk meet at some depth, and nothing is lost there."""
    value = nested(levels, innermost)
    data = encode_json(value)
    assert json.loads(data) == value
    assert decode_json(data) == value


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 100_000])
def test_nesting_beyond_the_limit_is_refused(levels: int) -> None:
    """C92: a typed error with a short message, no RecursionError, no crash; and the caller goes on."""
    error = refused(nested(levels))
    assert "nested too deeply" in str(error)
    assert str(MAX_NESTING) in str(error)
    assert len(str(error)) < 400
    assert error.path == "payload" + "[0]" * MAX_NESTING
    assert encode_json({"still": "works"}) == b'{"still":"works"}'


def test_a_long_path_is_shortened_in_the_message_only() -> None:
    """A key may be a whole document; the message stays readable."""
    error = refused({"x" * 5_000: {"a b" * 5_000: {1}}})
    assert len(str(error)) < 400
    assert error.path.startswith("payload.xxx")


def test_little_stack_left_is_a_typed_error_or_none() -> None:
    """Deep in a recursion of the caller's own, nesting may find no stack; even then no RecursionError gets out."""
    value = nested(MAX_NESTING)

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
            return
        try:
            data = encode_json(value)
        except InvalidPayloadError:
            return
        assert decode_json(data) == value

    descend(600)


def test_stored_bytes_share_nothing_with_what_was_given() -> None:
    """C93: a change after dispatch changes nothing, and every reader gets objects of its own."""
    value = {"items": [{"price": 1}]}
    data = encode_json(value)
    value["items"][0]["price"] = 2
    first, second = decode_json(data), decode_json(data)
    assert first == second == {"items": [{"price": 1}]}
    first["items"][0]["price"] = 3
    assert second == decode_json(data) == {"items": [{"price": 1}]}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b' {"b" : [1 , 2.50, 1E2],\n"a":null} ', {"b": [1, 2.5, 100.0], "a": None}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'["\\ud800"]', ["\ud800"]),  # JSON.stringify of Node writes it
        (b'{"\\udfff":1}', {"\udfff": 1}),
        (b"-0.0", -0.0),
        (b"12345678901234567890.5", 12345678901234567890.5),
    ],
)
def test_what_other_writers_store_is_read(data: bytes, value: Any) -> None:
    """A job from Node is read as Node would read it."""
    assert same(decode_json(data), value)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"{", b"{'a':1}", b"[1,]", b"1 2", b"undefined", b"NaN", b"[Infinity]", b"-Infinity"),
        *(b"1e400", b"[-1e400]", b"\xff", b'"\xed\xa0\x80"', b'"a\x00b"', b'"\\ud8"', b"9" * 5_000, b"[" * 100_000),
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_cannot_be_read_faithfully_is_a_typed_error(data: bytes) -> None:
    """Damage, NaN and numbers that a float cannot hold are an error, never a value that is nearly right."""
    with pytest.raises(InvalidPayloadError, match="stored JSON cannot be read"):
        decode_json(data)
