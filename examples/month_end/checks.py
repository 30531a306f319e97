"""The judge: compares the recording with the ledger of the outside world. What the engine says does not count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from month_end.client import Delivery
from month_end.outside import BUSY_SERVER, TURNED_AWAY

DEBOUNCE_MS = 3_000  # as in app.py
CLOCKS_DIFFER_BY_MS = 50  # the ledger goes by the monotonic clock, the engine by the time of day


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


def check_clicks(deliveries: list[Delivery], ledger: list[dict[str, Any]]) -> Check:
    """
    Each burst of clicks is saved by one run, asked for by its first click and not before the debounce is over.

    What a burst is follows from when the server got the clicks, not from when they were sent: on a busy machine they
    come late, and one that comes after the run rightly begins the next burst. How late a run is says more about the
    machine than about the engine, so there is no upper limit; but all that was clicked must be saved in the end.
    """
    unsaved: dict[str, dict[str, Any]] = {}  # by profile: the click that began the burst
    newest: dict[str, int] = {}  # by profile: the revision
    bursts, problems = 0, []
    for line in ledger:
        if line["what"] == "clicked":
            profile, revision = line["profile"], line["revision"]
            newest[profile] = max(revision, newest.get(profile, revision))  # clicks may overtake each other
            bursts += profile not in unsaved
            unsaved.setdefault(profile, line)
        elif line["what"] == "profile saved":
            profile, revision = line["profile"], line["revision"]
            problems += wrong_with_save(line, unsaved.get(profile))
            if revision == newest.get(profile):  # otherwise a click came during the run, which has to save again
                unsaved.pop(profile, None)
    problems += [f"{profile}: revision {newest[profile]} was not saved" for profile in unsaved]
    sent = {(one.body["profile"], one.body["revision"]) for one in deliveries if one.to == "/forms/profile"}
    came = {(line["profile"], line["revision"]) for line in ledger if line["what"] == "clicked"}
    problems += [f"{profile}: the click of revision {revision} never came" for profile, revision in sorted(sent - came)]
    return Check(f"each of {bursts:,} bursts of clicks saved the profile once, with the last click", problems)


def wrong_with_save(save: dict[str, Any], first_click: dict[str, Any] | None) -> list[str]:
    """What speaks against this line of the ledger, given the click that began the burst."""
    name = f"{save['profile']} revision {save['revision']}"
    if first_click is None:
        return [f"{name}: saved again without a click"]
    problems = []
    if save["asked_by"] != first_click["revision"]:
        problems.append(
            f"{name}: asked for by click {save['asked_by']} instead of the first, {first_click['revision']}"
        )
    waited_ms = save["at_ms"] - first_click["at_ms"]
    if waited_ms < DEBOUNCE_MS - CLOCKS_DIFFER_BY_MS:
        problems.append(f"{name}: saved {waited_ms:,} ms after the first click instead of {DEBOUNCE_MS:,}")
    return problems


def judge(deliveries: list[Delivery], ledger: list[dict[str, Any]], retries: int) -> list[Check]:
    """Everything that is promised, checked one by one."""

    def happened(what: str) -> list[dict[str, Any]]:
        return [line for line in ledger if line["what"] == what]

    invoices = {one.body["data"]["invoice"]: one for one in deliveries if one.to == "/hooks/invoices"}
    forms = {one.id for one in deliveries if one.to in ("/forms/contact", "/forms/newsletter")}
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
        check_clicks(deliveries, ledger),
        Check(
            f"{len(busy):,} invoices met a busy mail server, and each was retried twice",
            compare(["retries"] * len(busy) * TURNED_AWAY, ["retries"] * retries)
            + compare(busy * TURNED_AWAY, (line["invoice"] for line in happened("turned away"))),
        ),
    ]
