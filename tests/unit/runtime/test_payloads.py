"""Payloads of a type of their own: what is dispatched arrives, as that type, or is refused."""

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import math
import typing
import uuid
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from inproc_jobs.errors import InvalidHandlerError, InvalidPayloadError
from inproc_jobs.runtime.payloads import UNTYPED, Codec, codec_for, decode_json, encode_json

T = TypeVar("T")
Bound = TypeVar("Bound", bound=int)
UserId = NewType("UserId", int)
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


class Color(enum.Enum):
    """Values are text, members are not."""

    RED = "red"


class Size(enum.StrEnum):
    """Members are text."""

    BIG = "big"


class Level(enum.IntEnum):
    """Members are ints."""

    LOW = 1


class Name(str):
    """Text of another type."""

    __slots__ = ()


@dataclasses.dataclass
class Item:
    """A line of an order; its code is drawn where it is not given."""

    price: float
    name: str = "thing"
    note: Any = None
    at: datetime | None = None
    weight: float | None = None
    code: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    total: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.total = self.price / 2


@dataclasses.dataclass
class DearItem(Item):
    """A subclass with a field more."""

    insured: bool = True


@dataclasses.dataclass(eq=False)
class Order:
    """Has no equality of its own."""

    items: list[Item]
    tags: set[str] = dataclasses.field(default_factory=set)
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)


class Payment(msgspec.Struct, rename="camel", omit_defaults=True):
    """A Struct whose JSON has other names."""

    amount_due: Decimal
    paid_on: date | None = None
    status: Color = Color.RED
    paid_by: str = ""


class Tree(msgspec.Struct):
    """Contains itself."""

    kids: list[Tree] = []


class Picky(msgspec.Struct):
    """Has an opinion."""

    age: int

    def __post_init__(self) -> None:
        if self.age > 150:
            raise ValueError("nobody is that old")
        if self.age < 0:
            raise KeyError("age")


class Event(TypedDict):
    """A dict with known keys."""

    id: int
    item: NotRequired[Item]
    raw: NotRequired[Any]


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: float = 0.0


class Box(msgspec.Struct, Generic[T]):
    """A generic type."""

    content: T


class User(pydantic.BaseModel):
    """A model; its age has another name in JSON."""

    id: int
    born: datetime | None = None
    score: float | None = None
    note: Any = None
    age: int = pydantic.Field(default=0, validation_alias="years")
    secret: pydantic.SecretStr | None = None
    local: int = pydantic.Field(default=0, exclude=True)


class Admin(User):
    """A model with a field more."""

    level: int = 1


class Open(pydantic.BaseModel):
    """A model that keeps what it does not know."""

    model_config = pydantic.ConfigDict(extra="allow")

    id: int


class Unique(pydantic.BaseModel):
    """Changes what it is given."""

    ids: list[int]

    @pydantic.field_validator("ids")
    @classmethod
    def without_twins(cls, ids: list[int]) -> list[int]:
        return sorted(set(ids))


class Strict(pydantic.BaseModel):
    """Computes a field, which it does not take back."""

    model_config = pydantic.ConfigDict(extra="forbid")

    id: int

    @pydantic.computed_field
    def twice(self) -> int:
        return self.id * 2


class Token:
    """Has no equality."""

    def __init__(self, text: str) -> None:
        self.text = text


class Holder(pydantic.BaseModel):
    """Brings a type of its own to JSON and back."""

    token: Annotated[
        Token,
        pydantic.PlainValidator(lambda value: value if isinstance(value, Token) else Token(value)),
        pydantic.PlainSerializer(lambda token: token.text),
    ]
    number: int | str = 0


@dataclasses.dataclass
class Signup:
    """A dataclass with a model inside."""

    user: User


@pydantic.dataclasses.dataclass
class Checked:
    """A dataclass that pydantic checks."""

    age: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class Dangling:
    """Names a type that nobody defined."""

    item: Missing  # type: ignore[name-defined]  # noqa: F821  # the point


class DanglingModel(pydantic.BaseModel):
    """Names a type that nobody defined."""

    item: Missing  # type: ignore[name-defined]  # noqa: F821  # the point


class Plain:
    """A class that JSON knows nothing about."""


@dataclasses.dataclass
class WithPlain:
    """Has such a class inside."""

    items: list[Plain]


def codec(annotation: Any) -> Codec:
    """The codec of a job named "test"."""
    return codec_for(annotation, job_name="test")


def refused(annotation: Any, value: Any) -> InvalidPayloadError:
    """The error with which a dispatch is refused."""
    with pytest.raises(InvalidPayloadError) as caught:
        codec(annotation).encode(value)
    return caught.value


def circular_item() -> Item:
    """An item that contains itself."""
    item = Item(1.0)
    item.note = {"again": [item]}
    return item


def tree(levels: int) -> Tree:
    """A tree without branches."""
    value = Tree()
    for _ in range(levels):
        value = Tree([value])
    return value


# --- which codec -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotation",
    [
        *(inspect.Parameter.empty, Any, object, dict, list, Mapping, MutableMapping, T),
        *(dict[str, Any], dict[Any, Any], dict[str, object], list[Any], Mapping[str, Any]),
        *(typing.Dict, typing.Dict[str, Any], typing.List, typing.Mapping),  # noqa: UP006  # people write them
        *(dict | None, Optional[dict[str, Any]], Union[dict, list, None], dict[str, Any] | list[Any]),  # noqa: UP007, UP045
        *(Annotated[dict[str, Any], "a note"], typing_extensions.TypeAliasType("Json", dict[str, Any])),
    ],
)
def test_an_annotation_that_names_no_type_costs_nothing(annotation: Any) -> None:
    """`payload: dict` and the like take any JSON value, by the quickest way there is."""
    assert codec(annotation) is UNTYPED


def test_the_untyped_codec_is_the_strict_walk() -> None:
    """C85, C93: refused with the path; what is decoded is made anew each time."""
    with pytest.raises(InvalidPayloadError, match=r"^payload\.items\[3\]\.price is a Decimal"):
        UNTYPED.encode({"items": [0, 1, 2, {"price": Decimal(1)}]})
    data = UNTYPED.encode({"items": []})
    assert UNTYPED.decode(data) is not UNTYPED.decode(data)
    assert (UNTYPED.encode, UNTYPED.decode) == (encode_json, decode_json)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Plain, "JSON cannot be turned into a Plain"),
        (list[Plain], "JSON cannot be turned into a Plain"),
        (WithPlain, "JSON cannot be turned into a Plain"),
        (Callable[[int], int], "Callable"),
        (collections.deque[int], "deque"),
        (Dangling, "name 'Missing' is not defined"),
        (list[Dangling], "name 'Missing' is not defined"),
        (DanglingModel, "Missing"),
        (Item | Order, "more than one"),
        (dict[str, User] | list[Plain], "Plain"),
        ("Order", "Order"),
        (5, "5"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_refused_when_the_job_is_defined(annotation: Any, words: str) -> None:
    """The error names the job, the annotation and the cure, before anything is dispatched."""
    with pytest.raises(InvalidHandlerError) as caught:
        codec(annotation)
    message = str(caught.value)
    assert message.startswith("the payload of job 'test' is annotated ")
    assert words in message
    assert "dataclass" in message
    assert len(message) < 900


# --- what arrives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Item, Item(1.5, "x", {"a": [1, None]}, WHEN, 2.5)),
        (Item | None, None),
        (list[Item], [Item(1.0), Item(2.0)]),
        (dict[str, Item], {"a": Item(1.0)}),
        (Payment, Payment(Decimal("1.50"), date(2026, 1, 1))),
        (Payment, Payment(Decimal("0.10"))),
        (Event, {"id": 1}),
        (Event, {"id": 1, "item": Item(1.0, at=WHEN), "raw": {"deep": [1]}}),
        (Point, Point(1, 2.5)),
        (Box[int], Box(5)),
        (Box[list[Item]], Box([Item(1.0)])),
        (Tree, tree(100)),
        (int, 2**70),
        (str, "x\x00"),
        (float, 1.5),
        (bool, True),
        (None, None),
        (bytes, b"\x00\xff"),
        (datetime, WHEN),
        (timedelta, timedelta(microseconds=1)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Color, Color.RED),
        (Level, Level.LOW),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "x")),
        (list[int], [1, 2**64]),
        (dict[int, str], {1: "a", 2: "b"}),
        (dict[date, int], {date(2026, 1, 1): 1}),
        (Literal["a", "b"], "b"),
        (int | str | None, "x"),
        (Annotated[int, msgspec.Meta(gt=0)], 1),
        (UserId, 5),
        (Bound, 5),
        (typing_extensions.TypeAliasType("Ids", list[int]), [1]),
        (User, User.model_validate({"id": 1, "born": WHEN, "score": 1.5, "note": {"a": [1]}, "years": 42})),
        (User | None, None),
        (list[User], [User(id=1)]),
        (dict[str, User], {"a": User(id=1)}),
        (Open, Open.model_validate({"id": 1, "more": {"a": [1]}})),
        (Signup, Signup(User(id=1))),
        (Strict, Strict(id=1)),
        (Unique, Unique(ids=[2, 1, 2])),
        (Checked, Checked(1)),
        (pydantic.RootModel[list[int]], pydantic.RootModel[list[int]]([1])),
    ],
)
def test_a_typed_payload_arrives_as_its_type(annotation: Any, value: Any) -> None:
    """What is dispatched is what the handler gets, and every attempt gets its own."""
    typed = codec(annotation)
    data = typed.encode(value)
    arrives = typed.decode(data)
    assert type(arrives) is type(value)
    assert arrives == value
    decode_json(data)
    if type(value).__hash__ is None:
        assert typed.decode(data) is not arrives


def test_a_type_without_equality_arrives_too() -> None:
    """The check looks at the parts, not at `==`."""
    typed = codec(Order)
    arrives = typed.decode(typed.encode(Order([Item(1.0, code="c")], {"a"}, {"k": [1]})))
    assert isinstance(arrives, Order)
    assert (arrives.items, arrives.tags, arrives.meta) == ([Item(1.0, code="c")], {"a"}, {"k": [1]})


@given(
    value=st.lists(
        st.builds(
            Item, price=st.floats(allow_nan=False, allow_infinity=False), name=st.text(), at=st.none() | st.datetimes()
        )
    )
)
def test_any_items_arrive(value: list[Item]) -> None:
    """No item that its type allows is refused or changed."""
    typed = codec(list[Item])
    assert typed.decode(typed.encode(value)) == value


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (Item, {"price": 1, "code": "c"}, Item(1.0, code="c")),
        (Item, {"price": 1, "at": "2026-01-02T03:04:05.678901Z", "code": "c"}, Item(1.0, at=WHEN, code="c")),
        (Item, {"price": 1, "at": WHEN, "code": "c"}, Item(1.0, at=WHEN, code="c")),
        (Item, {"price": 1, "code": "c", "unheard": [1]}, Item(1.0, code="c")),
        (list[Item], ({"price": 1, "code": "c"}, Item(2, code="d")), [Item(1.0, code="c"), Item(2.0, code="d")]),
        (Event, {"id": 1, "item": {"price": 1.0, "code": "c"}}, {"id": 1, "item": Item(1.0, code="c")}),
        (Event, {"id": 1, "unheard": 2}, {"id": 1}),
        (Payment, {"amountDue": "1.50", "status": "red"}, Payment(Decimal("1.50"))),
        (Point, [1, 2], Point(1, 2.0)),
        (Point, (1,), Point(1)),
        (set[int], [1, 2, 2], {1, 2}),
        (Color, "red", Color.RED),
        (float, 1, 1.0),
        (str, Name("x"), "x"),
        (str, Size.BIG, "big"),
        (int, Level.LOW, 1),
        (list[Any], collections.UserList([1]).data, [1]),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (dict[str, int], collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (User, {"id": 1, "years": 3}, User.model_validate({"id": 1, "years": 3})),
        (User, {"id": 1, "born": WHEN, "unheard": 1}, User(id=1, born=WHEN)),
        (list[User], [{"id": 1}, User(id=2)], [User(id=1), User(id=2)]),
        (Signup, {"user": {"id": 1}}, Signup(User(id=1))),
    ],
)
def test_json_may_stand_in_for_a_type(annotation: Any, value: Any, arrives: Any) -> None:
    """A dict for a dataclass, text for a date: what validates is accepted, and arrives as the type."""
    typed = codec(annotation)
    assert typed.decode(typed.encode(value)) == arrives


def test_a_type_that_cannot_tell_is_trusted() -> None:
    """A type of the user's own without equality would never be the same."""
    typed = codec(Holder)
    assert typed.decode(typed.encode(Holder(token=Token("x")))).token.text == "x"


def test_a_default_is_fixed_at_dispatch() -> None:
    """A default that is drawn is drawn once, so two attempts see the same payload."""
    typed = codec(Item)
    data = typed.encode({"price": 1})
    assert typed.decode(data).code == typed.decode(data).code
    assert decode_json(data)["code"] == typed.decode(data).code


# --- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "path", "words"),
    [
        # Wrong shape.
        (Item, {"price": "1"}, "payload.price", "Expected `float`, got `str`"),
        (Item, {}, "payload", "missing required field `price`"),
        (Item, None, "payload", "got `null`"),
        (Item, [1], "payload", "got `array`"),
        (Order, {"items": [{"price": 1}, {"price": None}]}, "payload.items[1].price", "got `null`"),
        (list[int], [1, "x"], "payload[1]", "Expected `int`, got `str`"),
        (list[int], [1, True], "payload[1]", "Expected `int`, got `bool`"),
        (dict[str, int], {"a": "x"}, "payload[...]", "Expected `int`, got `str`"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "payload", ">= 1"),
        (Picky, {"age": 200}, "payload", "nobody is that old"),
        (Picky, {"age": -1}, "payload", "'age'"),
        (User, {"id": "x"}, "payload.id", "valid integer"),
        (list[User], [User(id=1), {"id": None}], "payload[1].id", "valid integer"),
        (User, User.model_construct(id="x"), "payload", "cannot be encoded"),
        (Checked, {"age": 0}, "payload.age", "greater than 0"),
        # Silently something else, if the check were left to the encoder.
        (Item, Item(1.0, name=b"x"), "payload.name", "is a bytes and would arrive as a str"),  # type: ignore[arg-type]
        (Item, Item(1.0, name=WHEN), "payload.name", "is a datetime and would arrive as a str"),  # type: ignore[arg-type]
        (Item, Item(1.0, name=Color.RED), "payload.name", "is a Color and would arrive as a str"),  # type: ignore[arg-type]
        (Item, Item(1.0, note=[{"at": WHEN}]), "payload.note[0].at", "is a datetime and would arrive as a str"),
        (Item, Item(1.0, note={1, 2}), "payload.note", "is a set and would arrive as a list"),
        (Item, Item(1.0, note={1: "a"}), "payload.note", "has a key that is an int"),
        (Item, Item(1.0, note=Item(2.0)), "payload.note", "is an Item and would arrive as a dict"),
        (Item, Item(2**53 + 1), "payload.price", "would arrive as a float"),
        (list[Item], [Item(1.0), DearItem(1.0)], "payload[1]", "is a DearItem and would arrive as an Item"),
        (Event, {"id": 1, "raw": {"deep": Decimal(1)}}, "payload.raw.deep", "is a Decimal and would arrive as a str"),
        (Event, {"id": 1, 2: 3}, "payload", "has a key that is an int"),
        (Box[Any], Box(b"x"), "payload.content", "is a bytes"),
        (dict[int, str], {1: "a", "1": "b"}, "payload", "two keys"),
        (list[int], {1, 2}, "payload", "is a set"),
        (set[str], [b"x"], "payload[0]", "is a bytes"),
        (set[float | None], [1.0, math.nan], "payload[1]", "is nan"),
        (Payment, {"amountDue": "1.50", "paidBy": b"x"}, "payload.paidBy", "is a bytes"),
        (Annotated[dict[str, Any], msgspec.Meta(min_length=1)], {}, "payload", "length >= 1"),
        (Holder, Holder.model_construct(token=Token("x"), number=True), "payload.number", "is a bool"),
        (Unique, Unique.model_construct(ids=[1, 1]), "payload.ids", "would arrive changed"),
        (str, b"x", "payload", "is a bytes"),
        (User, User(id=1, note=WHEN), "payload.note", "is a datetime"),
        (User, User(id=1, note={1}), "payload.note", "is a set"),
        (User, Admin(id=1), "payload", "is an Admin and would arrive as a User"),
        (User, User(id=1, secret=pydantic.SecretStr("x")), "payload.secret", "would arrive changed"),
        (Open, Open.model_validate({"id": 1, "more": WHEN}), "payload.__pydantic_extra__.more", "is a datetime"),
        # What no JSON holds.
        (Item, Item(math.nan), "payload.price", "is nan"),
        (Item, Item(1.0, weight=math.inf), "payload.weight", "is inf"),
        (Item, Item(1.0, note=[0, -math.inf]), "payload.note[1]", "is -inf"),
        (Item, {"price": math.nan}, "payload.price", "is nan"),
        (list[float], [1.0, math.nan], "payload[1]", "is nan"),
        (User, User(id=1, score=math.nan), "payload.score", "is nan"),
        (User, {"id": 1, "score": math.inf}, "payload.score", "is inf"),
        (Item, Item(1.0, name="\ud800"), "payload.name", "surrogates"),
        (Item, Item(1.0, note={"a": {"\ud800": 1}}), "payload.note.a", "surrogates"),
        (Order, Order([Item(1.0)], meta={"a": [object()]}), "payload.meta.a[0]", "JSON does not have an object"),
        (Item, circular_item(), "payload.note.again[0]", "circular"),
        (Tree, tree(20_000), None, "nested too deeply"),
        (User, User(id=1, note=object()), "payload", "cannot be encoded"),
        (User, object(), "payload", "does not fit"),
    ],
)
def test_what_would_not_arrive_is_refused_at_dispatch(
    annotation: Any, value: Any, path: str | None, words: str
) -> None:
    """C85, C86, C91, C92: the path of the culprit and the reason, whether the type or JSON objects."""
    error = refused(annotation, value)
    assert words in str(error)
    assert len(str(error)) < 900
    assert path is None or error.path == path


@pytest.mark.parametrize(
    ("annotation", "value", "culprit"),
    [
        (Order, {"items": [{"price": "cheap"}]}, "cheap"),
        (Order, Order([Item(1.0, name=b"x")]), b"x"),  # type: ignore[arg-type]
        (User, {"id": "x"}, "x"),
    ],
)
def test_a_refusal_carries_the_culprit(annotation: Any, value: Any, culprit: Any) -> None:
    """`error.value` is what stands at `error.path`."""
    assert refused(annotation, value).value == culprit


def test_a_refusal_names_the_job_and_its_type() -> None:
    """Whoever reads the traceback of a dispatch sees which handler wanted what."""
    assert str(refused(list[int], ["x"])).endswith("; job 'test' takes list[int]")


@pytest.mark.parametrize(("annotation", "name"), [(Item, "Item"), (User, "User"), (Tree, "Tree")])
@pytest.mark.parametrize("data", [b'{"kids":[' * 100_000, b'{"kids":1}', b"{", b"null", b'"\xff"', b"[" * 100_000])
def test_stored_bytes_that_do_not_fit_are_a_typed_error(annotation: Any, name: str, data: bytes) -> None:
    """A job stored by an older version of the program fails with a reason."""
    with pytest.raises(InvalidPayloadError) as caught:
        codec(annotation).decode(data)
    assert "stored JSON cannot be read" in str(caught.value) or name in str(caught.value)


@pytest.mark.parametrize("annotation", [Item, User])
def test_stored_bytes_of_a_newer_version_are_read(annotation: Any) -> None:
    """Fields that this version of the program does not know are ignored."""
    assert codec(annotation).decode(b'{"id":1,"price":1.0,"unheard":2}') is not None


def test_a_field_that_is_not_written_is_not_compared() -> None:
    """`exclude=True` is the model's own choice."""
    typed = codec(User)
    assert typed.decode(typed.encode(User(id=1, local=5))).local == 0


def test_sequences_are_typed() -> None:
    """A Sequence has an item type to check."""
    with pytest.raises(InvalidPayloadError):
        codec(Sequence[int]).encode(["x"])
