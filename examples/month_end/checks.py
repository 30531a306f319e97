"""The judge: compares the recording with the ledger of the outside world. What the engine says does not count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from month_end.client import Delivery
from month_end.outside import BUSY_SERVER, TURNED_AWAY

DEBOUNCE_MS = 3_000  # as in app.py; the recording leaves two seconds to spare on either side


class Check(NamedTuple):
    """One thing that must hold, and how it went."""

    text: str
    problems: list[str]

    @property
    def good(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """What really happened, in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compare(expected: Iterable[str], happened: Iterable[str]) -> list[str]:
    """Name each thing that happened too seldom or too often."""
    wanted, found = Counter(iter(expected)), Counter(iter(happened))
    return [
        f"{thing}: {found[thing]} times instead of {wanted[thing]}"
        for thing in sorted(wanted | found)
        if wanted[thing] != found[thing]
    ]


def last_clicks(deliveries: list[Delivery]) -> list[str]:
    """What must be saved: the newest revision of each burst of clicks, a burst being what fits into one debounce."""
    newest: dict[tuple[str, int], int] = {}  # (profile, start of the burst): revision
    burst_of: dict[str, int] = {}
    for delivery in deliveries:
        if delivery.to == "/forms/profile":
            profile = delivery.body["profile"]
            if delivery.at_ms - burst_of.get(profile, -DEBOUNCE_MS) >= DEBOUNCE_MS:
                burst_of[profile] = delivery.at_ms
            newest[profile, burst_of[profile]] = delivery.body["revision"]
    return [f"{profile} revision {revision}" for (profile, _), revision in newest.items()]


def judge(deliveries: list[Delivery], ledger: list[dict[str, Any]], retries: int) -> list[Check]:
    """Everything that is promised, checked one by one."""

    def happened(what: str) -> list[dict[str, Any]]:
        return [line for line in ledger if line["what"] == what]

    invoices = {one.body["data"]["invoice"]: one for one in deliveries if one.to == "/hooks/invoices"}
    forms = {one.id for one in deliveries if one.to in ("/forms/contact", "/forms/newsletter")}
    saves = last_clicks(deliveries)
    busy = [id for id, one in invoices.items() if one.body["data"]["customer"]["email"].endswith("@" + BUSY_SERVER)]
    return [
        Check(
            f"each of {len(invoices):,} invoices was sent once",
            compare(invoices, (line["invoice"] for line in happened("invoice sent"))),
        ),
        Check(
            f"each of {len(forms):,} contact and newsletter forms was taken once",
            compare(forms, (line["id"] for line in happened("form taken"))),
        ),
        Check(
            f"each of {len(saves):,} bursts of clicks saved the profile once, with the last click",
            compare(saves, (f"{line['profile']} revision {line['revision']}" for line in happened("profile saved"))),
        ),
        Check(
            f"{len(busy):,} invoices met a busy mail server, and each was retried twice",
            compare(["retries"] * len(busy) * TURNED_AWAY, ["retries"] * retries)
            + compare(busy * TURNED_AWAY, (line["invoice"] for line in happened("turned away"))),
        ),
    ]
