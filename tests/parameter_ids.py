"""Names of parameters that are the same in every process, so that several may share the tests."""

from __future__ import annotations

import re

__all__ = ["stable_repr"]


def stable_repr(value: object) -> str:
    """As `repr`, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
