"""
The world outside the app: mail servers with moods, a help desk, a database, and the ledger they all write to.

Nothing here knows of jobs. The ledger is what the demo is judged by: what it shows twice was done twice, and its order
and its times are those of the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

SECONDS_TO_SEND = {"slow.example": 0.7}
BUSY_SERVER, TURNED_AWAY = "busy.example", 2


class MailServerBusyError(Exception):
    """The mail server takes nothing right now."""


class Ledger:
    """A file with one line for each thing that really happened."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # open for life

    def write(self, what: str, **facts: str | int) -> None:
        """Add one line, with the time on a clock that never jumps; it is in the file when this returns."""
        at_ms = round(time.monotonic() * 1_000)
        self._file.write(json.dumps({"at_ms": at_ms, "what": what, **facts}) + "\n")


class MailServer:
    """Sends invoices. Slow for some customers, and busy for others until they have been tried three times."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tries: Counter[str] = Counter()

    async def send(self, *, to: str, invoice: str) -> None:
        """Send one invoice, or raise MailServerBusyError."""
        server = to.partition("@")[2]
        self._tries[invoice] += 1
        await asyncio.sleep(SECONDS_TO_SEND.get(server, 0.02))
        if server == BUSY_SERVER and self._tries[invoice] <= TURNED_AWAY:
            self._ledger.write("turned away", invoice=invoice)
            raise MailServerBusyError(f"451 {server} is busy, try again later")
        self._ledger.write("invoice sent", invoice=invoice, to=to)


class HelpDesk:
    """Where contact forms and newsletter sign-ups end."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def take(self, id: str, *, sender: str, text: str) -> None:
        """Open a ticket for the form."""
        await asyncio.sleep(0.01)
        self._ledger.write("form taken", id=id, sender=sender, text=text)


class Database:
    """Where profiles are kept."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def save_profile(self, profile: str, *, revision: int, asked_by: int) -> None:
        """Write one row, which remembers the revision whose click has asked for it."""
        await asyncio.sleep(0.01)
        self._ledger.write("profile saved", profile=profile, revision=revision, asked_by=asked_by)
