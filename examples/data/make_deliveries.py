"""
Make the recording that `examples/demo.py` plays: what a small shop receives at the end of a month.

Run it to write `deliveries.jsonl` anew; the same script gives the same bytes on every Python, and a test holds it to
that. One line is one delivery: `at` (milliseconds since the start), `id` (the sender's delivery id, the same each
time it is sent again), `to` (the path it is posted to) and `body` (the JSON that is posted).

Who sends, and what goes wrong on purpose:

- A payment provider announces invoices. It is unsure whether it got through, so about a third come twice or more:
  at once, seconds apart, while the first one is being worked on, or long after it was finished.
- The mail server of a customer decides how sending goes: `mail.example` is quick, `slow.example` takes most of a
  second, and `busy.example` turns the mail away twice before it takes it.
- Visitors send contact forms and sign up for the newsletter; a double click sends the same form twice.
- Customers edit their profile and hammer the button: each click is a delivery of its own, with a new revision.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

SEED = 20260131
INVOICES = 900
CONTACTS = 170
NEWSLETTERS = 120
PROFILES = 50
PROFILES_EDITED_AGAIN = 22

FIRST_SENT_BY_MS = 14_000
MONTH_END = 1_769_875_200  # 2026-01-31 16:00 UTC
WAVES_MS = (1_500, 6_000, 11_000)  # the provider works through its own queue in waves

FIRST_NAMES = ("ada", "bela", "carmen", "dinh", "edsger", "fatima", "grace", "hedy", "ivan", "jun", "katherine", "lu")
CITIES = ("Lisbon", "Oslo", "Graz", "Porto", "Ghent", "Turku", "Brno", "Cork", "Split", "Bergen")
CURRENCIES = ("EUR", "EUR", "EUR", "USD", "USD", "GBP", "SEK")
MESSAGES = (
    "Where is my parcel?",
    "Please send the invoice to our new address.",
    "Do you ship to Iceland?",
    "The blue one is out of stock. When will it be back?",
    "I would like to return an order.",
)

T = TypeVar("T")


class Resend(NamedTuple):
    """One way in which an invoice is sent again."""

    weight: float
    mail_server: str
    gaps_ms: tuple[tuple[int, int], ...]  # one (least, most) per further delivery


RESENDS = {
    "never": Resend(0.62, "", ()),
    "at once": Resend(0.10, "mail.example", ((0, 3),)),
    "at once, three times": Resend(0.03, "mail.example", ((0, 3), (0, 3))),
    "seconds apart": Resend(0.06, "mail.example", ((1_000, 3_000),)),
    "again and again": Resend(0.03, "mail.example", ((200, 600), (1_000, 2_000), (2_000, 3_500))),
    "while it runs": Resend(0.06, "slow.example", ((120, 420),)),
    "between two attempts": Resend(0.04, "busy.example", ((150, 900),)),
    "after it has finished": Resend(0.06, "mail.example", ((4_000, 6_000),)),
}


class Dice:
    """
    Draws that stay the same on every Python version.

    Only `Random.random()` is promised never to change; `choice`, `sample` and `shuffle` are not.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def between(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        return least + int(self._random.random() * (most - least + 1))

    def pick(self, things: tuple[T, ...]) -> T:
        """One of the things, each as likely."""
        return things[self.between(0, len(things) - 1)]

    def chance(self, probability: float) -> bool:
        """True as often as the probability says."""
        return self._random.random() < probability

    def code(self, prefix: str, length: int) -> str:
        """An id as providers write it."""
        return prefix + "".join(self.pick(tuple("0123456789abcdefghjkmnpqrstvwxyz")) for _ in range(length))

    def weighted(self, choices: dict[str, Resend]) -> Resend:
        """One of the ways to send again, by weight."""
        left = self._random.random()
        for choice in choices.values():
            left -= choice.weight
            if left < 0:
                return choice
        return choice


def delivery(at_ms: int, id: str, to: str, body: dict[str, Any]) -> dict[str, Any]:
    """One line of the recording."""
    return {"at": at_ms, "id": id, "to": to, "body": body}


def invoices(dice: Dice) -> Iterator[dict[str, Any]]:
    """What the payment provider posts, again included."""
    for number in range(INVOICES):
        resend = dice.weighted(RESENDS)
        at_ms = wave(dice) if dice.chance(0.45) else dice.between(0, FIRST_SENT_BY_MS)
        server = resend.mail_server or dice.pick(("mail.example",) * 14 + ("slow.example", "busy.example"))
        body = {
            "id": dice.code("evt_", 10),
            "type": "invoice.finalized",
            "created": MONTH_END + at_ms // 1_000,
            "data": {
                "invoice": f"in_{2026_0000 + number}",
                "customer": {"id": dice.code("cus_", 8), "email": f"{dice.pick(FIRST_NAMES)}{number}@{server}"},
                "amount": dice.between(490, 249_900),
                "currency": dice.pick(CURRENCIES),
            },
        }
        id = dice.code("dlv_", 12)
        yield delivery(at_ms, id, "/hooks/invoices", body)
        for least, most in resend.gaps_ms:
            at_ms += dice.between(least, most)
            yield delivery(at_ms, id, "/hooks/invoices", body)


def wave(dice: Dice) -> int:
    """A moment in one of the waves; two draws, so that a wave swells and ebbs."""
    return dice.pick(WAVES_MS) + dice.between(-600, 600) + dice.between(-600, 600)


def forms(dice: Dice) -> Iterator[dict[str, Any]]:
    """Contact forms and newsletter sign-ups; a third are sent twice by a double click or a reload."""
    for number in range(CONTACTS + NEWSLETTERS):
        email = f"{dice.pick(FIRST_NAMES)}.{number}@visitor.example"
        if number < CONTACTS:
            to, body = "/forms/contact", {"email": email, "message": dice.pick(MESSAGES)}
        else:
            to, body = "/forms/newsletter", {"email": email, "message": "subscribe"}
        at_ms, id = dice.between(0, FIRST_SENT_BY_MS), dice.code("frm_", 12)
        yield delivery(at_ms, id, to, body)
        if dice.chance(0.36):
            again_ms = dice.between(0, 250) if dice.chance(0.7) else dice.between(3_000, 6_000)
            yield delivery(at_ms + again_ms, id, to, body)


def profile_edits(dice: Dice) -> Iterator[dict[str, Any]]:
    """Customers who hammer the button; some come back for a second edit, well after the first was saved."""
    for number in range(PROFILES):
        profile, revision = dice.code("pro_", 8), 0
        starts_ms = [dice.between(0, 5_000)]
        if number < PROFILES_EDITED_AGAIN:
            starts_ms.append(dice.between(12_000, FIRST_SENT_BY_MS))
        for start_ms in starts_ms:
            at_ms = start_ms
            for _ in range(dice.between(3, 6)):
                revision += 1
                body = {
                    "profile": profile,
                    "revision": revision,
                    "name": dice.pick(FIRST_NAMES).title(),
                    "city": dice.pick(CITIES),
                }
                yield delivery(at_ms, dice.code("frm_", 12), "/forms/profile", body)
                at_ms += dice.between(60, 170)


def recording() -> str:
    """The whole file, in the order in which the deliveries arrive."""
    dice = Dice(SEED)
    lines = [*invoices(dice), *forms(dice), *profile_edits(dice)]
    lines.sort(key=lambda line: line["at"])  # stable: ties keep the order of making
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def main() -> None:
    """Write the recording beside this script, or to the path given."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("deliveries.jsonl")
    target.write_text(recording(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
