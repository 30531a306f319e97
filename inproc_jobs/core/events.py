"""Facts for the public, with BullMQ's names and fields (spec section 13)."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["EVENT_NAMES", "Event"]

EVENT_NAMES = frozenset(
    (
        "added",
        "waiting",
        "delayed",
        "waiting-children",
        "active",
        "progress",
        "completed",
        "failed",
        "retries-exhausted",
        "stalled",
        "removed",
        "duplicated",
        "deduplicated",
        "paused",
        "resumed",
        "cleaned",
        "drained",
    )
)
"""Every name that `Core` emits."""


class Event(msgspec.Struct, frozen=True):
    """
    One fact about a queue.

    Attributes:
        queue: Name of the queue.
        name: One of `EVENT_NAMES`.
        fields: BullMQ's fields: `jobId`, `prev`, ...; `returnvalue` and `data` are JSON text (bytes), `delay` is
            the absolute due time in ms.
    """

    queue: str
    name: str
    fields: dict[str, Any]
