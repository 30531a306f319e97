"""
Is what arrives what was given? The comparison behind typed payloads.

By structure and not by `==`: to Python 1 equals True, NaN does not equal itself, and a dataclass may have no equality or
leave fields out of it. What JSON turned into something else (bytes into text, a set into a list, NaN into null, a subclass
into its base) shows as a difference of types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import isfinite
from types import NoneType
from typing import Any, Final

from inproc_jobs.core.json_values import Path, exact_twin, not_finite, refusal, type_text
from inproc_jobs.errors import InvalidPayloadError

__all__ = ["differs_in_form", "field_names", "first_not_finite", "parts"]

_SCALARS: Final = frozenset({str, int, float, bool, NoneType})
_CONTAINERS: Final = (dict, list, tuple)
_SETS: Final = (set, frozenset)

_Pair = tuple[Any, Any, Path]  # what was given, what arrives, and where


def differs_in_form(given: Any, arrives: Any, path: Path) -> bool:
    """
    Compare what was given with what was decoded from its JSON.

    Args:
        given: What the caller dispatches.
        arrives: What the handler would receive.
        path: Where both are.

    Returns:
        Whether a dict or a list stands in for an object somewhere.

    Raises:
        InvalidPayloadError: At the first part that would not arrive as it is.

    Cost: O(size).
    """
    # A list of what is left to compare, and no recursion: a deep payload must not need a deep stack.
    todo: list[_Pair] = [(given, arrives, path)]
    stands_in = False
    while todo:
        pair = todo.pop()
        given, arrives, path = pair
        kind = type(arrives)
        if kind in _SCALARS:
            if not _same_scalar(given, arrives):
                raise _changed(pair)
        elif kind is dict:
            todo += _dict_pairs(pair)
        elif kind is list or kind is tuple:
            todo += _sequence_pairs(pair)
        elif (names := field_names(kind)) is None:
            _check_leaf(pair)
        elif type(given) is kind:
            todo += [(getattr(given, name), getattr(arrives, name), (path, name)) for name in names[::-1]]
        else:
            todo += _stand_in_pairs(pair, names)
            stands_in = True
    return stands_in


def first_not_finite(value: Any, path: Path) -> tuple[float, Path] | None:
    """NaN or an infinity inside a value, and where; None if there is none."""
    todo, seen = [(value, path)], set[int]()
    while todo:
        item, where = todo.pop()
        if isinstance(item, float):
            if not isfinite(item):
                return item, where
        elif id(item) not in seen:
            seen.add(id(item))
            todo.extend((part, (where, step)) for step, part in parts(item))
    return None


def parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value is made of, each part with the key, index or field name that leads to it."""
    kind = type(value)
    names = field_names(kind)
    if names is not None:
        return ((name, getattr(value, name)) for name in names)
    if issubclass(kind, dict):
        return iter(value.items())
    return iter(enumerate(value)) if issubclass(kind, (*_CONTAINERS, *_SETS)) else iter(())


def _field_names(kind: Any) -> tuple[str, ...] | None:
    fields: Any
    if (fields := getattr(kind, "__struct_fields__", None)) is not None:
        return tuple(fields)
    if hasattr(kind, "__pydantic_core_schema__") and hasattr(kind, "model_fields"):
        names = [name for name, field in kind.model_fields.items() if not field.exclude]
        return (*names, *(["__pydantic_extra__"] if kind.model_config.get("extra") == "allow" else []))
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.init)
    if (fields := getattr(kind, "__attrs_attrs__", None)) is not None:
        return tuple(field.name for field in fields if field.init)
    return getattr(kind, "_fields", None) if isinstance(kind, type) and issubclass(kind, tuple) else None


field_names: Final[Callable[[type], tuple[str, ...] | None]] = lru_cache(maxsize=512)(_field_names)
"""The fields that are written, for a class that has fields; None for any other class."""


def _same_scalar(given: Any, arrives: Any) -> bool:
    kind, arriving = type(given), type(arrives)
    if kind is arriving:
        return bool(given == arrives)
    if bool in (kind, arriving) or arrives is None:
        return False
    # An int where a float arrives is the same number, up to 2**53.
    return issubclass(kind, (int, float) if arriving is float else arriving) and bool(given == arrives)


def _dict_pairs(pair: _Pair) -> list[_Pair]:
    given, arrives, path = pair
    if not issubclass(type(given), dict):
        raise _changed(pair)
    if not all(type(key) is str for key in arrives):
        return _keyed_dict_pairs(pair)
    # A key that a TypedDict does not know does not arrive, by design; a key that is not text would become another one.
    for key in given:
        if not issubclass(type(key), str):
            raise refusal(key, path, f"has a key that is {type_text(key)} and would arrive as text")
    return [(given[key], arrives[key], (path, key)) for key in reversed(arrives)]


def _keyed_dict_pairs(pair: _Pair) -> list[_Pair]:
    """Dicts whose keys are not text, such as `dict[int, str]`: both are in the order in which they were written."""
    given, arrives, path = pair
    if len(given) != len(arrives):
        raise refusal(given, path, "has two keys that would arrive as one")
    pairs: list[_Pair] = []
    for (key, item), (arriving_key, arriving_item) in zip(given.items(), arrives.items(), strict=True):
        pairs.append((item, arriving_item, (path, key)))
        if type(key) is not str:  # text is how JSON writes any key
            pairs.append((key, arriving_key, path))
    return pairs


def _sequence_pairs(pair: _Pair) -> list[_Pair]:
    given, arrives, path = pair
    if not issubclass(type(given), (list, tuple)) or len(given) != len(arrives):
        raise _changed(pair)
    return [(given[index], arrives[index], (path, index)) for index in reversed(range(len(given)))]


def _stand_in_pairs(pair: _Pair, names: tuple[str, ...]) -> list[_Pair]:
    """A dict (or a list, for a tuple with names) where an object with these fields arrives."""
    given, arrives, path = pair
    if issubclass(type(given), dict):
        written_as = getattr(type(arrives), "__struct_encode_fields__", names)
        keys = dict(zip(names, written_as, strict=True))
        return [(given[key], getattr(arrives, name), (path, key)) for name, key in keys.items() if key in given]
    if issubclass(type(given), (list, tuple)) and field_names(type(given)) is None:
        return [(item, getattr(arrives, names[index]), (path, index)) for index, item in enumerate(given[: len(names)])]
    raise _changed(pair)


def _check_leaf(pair: _Pair) -> None:
    """Dates, decimals, enums, sets and the like, which have no parts to look at."""
    given, arrives, path = pair
    kind = type(given)
    if kind in _SCALARS or (type(arrives) in _SETS and issubclass(kind, (list, tuple))):
        exact_twin(given, path)  # JSON for it, such as text for a date
    elif not _equal(given, arrives):
        raise _changed(pair)


def _equal(given: Any, arrives: Any) -> bool:
    """Whether two values of a type that we do not know are the same; yes, if they cannot tell."""
    equality: Any = type(given).__eq__
    if type(given) is type(arrives) and equality is object.__eq__:
        return True
    try:
        return bool(given == arrives)
    except Exception:  # noqa: BLE001  # arrays, for one, have no truth
        return True


def _changed(pair: _Pair) -> InvalidPayloadError:
    given, arrives, path = pair
    if isinstance(given, float) and not isfinite(given):
        return not_finite(given, path)
    if type(given) is type(arrives):
        return refusal(given, path, f"is {type_text(given)} that would arrive changed")
    return refusal(given, path, f"is {type_text(given)} and would arrive as {type_text(arrives)}")
