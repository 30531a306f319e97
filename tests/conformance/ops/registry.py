"""The operations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tests.conformance.run import Run, Step

__all__ = ["OPS", "Op", "op"]

Op: TypeAlias = Callable[[Run, Step], Any]
OPS: dict[str, Op] = {}


def op(function: Op) -> Op:
    """Register an operation under its name, which has no underscore at the end."""
    OPS[function.__name__.rstrip("_")] = function
    return function
