"""The words of BullMQ's layout that its writer and its reader share (spec section 14)."""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCKED_MAX", "OWN_FIELD", "OWN_REPEAT", "POLICY_OPTIONS", "REPEAT", "SHORT"]

OWN_FIELD: Final = "inproc"
"""What is ours sits in this extra field of a job, which BullMQ leaves alone; its presence says that we know the job."""
BLOCKED_MAX: Final = "9007199254740991"
SHORT: Final = {
    "deduplication": "de",
    "keepLogs": "kl",
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
    "removeDependencyOnFailure": "rdof",
}
POLICY_OPTIONS: Final = {short: long for long, short in SHORT.items() if short not in {"de", "kl"}}
REPEAT: Final = {
    "every": "every",
    "pattern": "pattern",
    "tz": "tz",
    "limit": "limit",
    "start_ms": "startDate",
    "end_ms": "endDate",
    "offset": "offset",
}
OWN_REPEAT: Final = ("catch_up", "immediately")
"""Parts of a schedule that BullMQ does not store."""
