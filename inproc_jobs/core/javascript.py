"""
What JavaScript and Lua make of option values: truth, numbers, and what is lost on the way through msgpack and cjson.

A dict is an object, an absent key is `undefined`, None is `null`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = ["is_number", "number", "parse_int", "through_lua", "truthy", "truthy_in_lua"]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `typeof value` is "number"."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def truthy(value: Any) -> bool:
    """JavaScript's truth: empty lists and objects count as true."""
    if value is None or value is False or value == "":
        return False
    return not (is_number(value) and (value == 0 or math.isnan(value)))


def truthy_in_lua(value: Any) -> bool:
    """Lua's truth: everything but nil and false."""
    return value is not None and value is not False


def number(value: Any) -> float:
    """JavaScript's `Number(value)` for what options hold; what is no number is NaN."""
    if isinstance(value, (bool, int, float)):
        return +value
    if isinstance(value, str):
        try:
            number = float(value or 0)
        except ValueError:
            return math.nan
        return int(number) if number.is_integer() else number
    return math.nan


def parse_int(text: str) -> str:
    """
    JavaScript's `parseInt(text, 10)`, printed back.

    >>> parse_int("12a"), parse_int("-0"), parse_int(" 7"), parse_int("x")
    ('12', '0', '7', 'NaN')
    """
    stripped = text.lstrip()
    sign = stripped[:1] if stripped[:1] in {"+", "-"} else ""
    digits = ""
    for char in stripped[len(sign) :]:
        if char not in "0123456789":
            break
        digits += char
    if not digits:
        return "NaN"
    number = -int(digits) if sign == "-" else int(digits)
    # From 10^21 JavaScript prints an exponent, so such an id is no integer to it.
    return (
        str(number)
        if abs(number) < 2**53
        else f"{float(number):.17g}"
        if abs(number) >= 1e21
        else str(int(float(number)))
    )


def through_lua(value: Any) -> Any:
    """
    What is left of a value that went through msgpack and Lua's JSON: no nulls, no empty lists, numbers of 14 digits.

    >>> through_lua({"a": None, "b": [], "c": [1, None], "d": 0.12345678901234567})
    {'b': {}, 'c': [1], 'd': 0.12345678901235}
    """
    if isinstance(value, Mapping):
        return {key: through_lua(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        items = [through_lua(item) for item in value]
        while items and items[-1] is None:
            items.pop()  # a table of Lua ends where the nulls begin
        return items or {}
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 10**14 and not isinstance(value, bool)):
        short = float(f"{value:.14g}")
        return int(short) if short.is_integer() else short
    return value
