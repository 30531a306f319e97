"""What really happened, outside of every store: one line per fact, on the disk before anything else is done."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Audit", "Ledger"]


class Ledger:
    """Append-only. A line that was written is there after any kill; the last one may be cut off, and then counts not."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        whole = path.read_bytes().rfind(b"\n") + 1
        # What the kill cut off would run into the first line of this life.
        os.ftruncate(self._fd, whole)

    def write(self, kind: str, *facts: Any) -> None:
        os.write(self._fd, json.dumps([kind, time.time(), *facts]).encode() + b"\n")
        os.fsync(self._fd)


@dataclass
class Audit:
    """
    Reads a ledger and looks for broken promises.

    Attributes:
        mode: Of the snapshot.
        grace_s: What `periodic` may lose: its interval, and the time of a write on a busy machine.
        broken: What was found.
    """

    path: Path
    mode: str
    grace_s: float
    broken: list[str] = field(default_factory=list)
    acked: dict[str, tuple[int, float, str | None]] = field(default_factory=dict)
    tried_by_key: dict[str, list[str]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    life_runs: dict[str, int] = field(default_factory=dict)
    lives: int = 0
    restarts: int = 0
    killed_at: list[float] = field(default_factory=list)
    sure: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    lost_lately: int = 0
    refused: int = 0
    reran: int = 0
    _offset: int = 0

    def read(self) -> None:
        """Go on from where the last call ended."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                kind, at, *facts = json.loads(line)
                getattr(self, f"_on_{kind}")(at, *facts)

    def note_kill(self, trouble_at: float | None = None) -> None:
        """The process is dead as of now; its store was in trouble since then."""
        self.read()
        self.killed_at.append(time.time() if trouble_at is None else trouble_at)
        self.lives += 1
        self.life_runs.clear()

    # --- facts --------------------------------------------------------------------------------------------------

    def _on_try(self, at: float, id: str, key: str | None) -> None:
        if key is not None:
            self.tried_by_key.setdefault(key, []).append(id)

    def _on_ack(self, at: float, id: str, key: str | None) -> None:
        self.acked[id] = (self.lives, at, key)

    def _on_refused(self, at: float, id: str, outcome: str) -> None:
        self.refused += 1
        if outcome == "not written":
            self.dropped.add(id)

    def _on_run(self, at: float, id: str, attempts: int) -> None:
        if id in self.runs and id not in self.life_runs:
            self.reran += 1
        self.runs[id] = self.runs.get(id, 0) + 1
        self.life_runs[id] = self.life_runs.get(id, 0) + 1
        if self.life_runs[id] > attempts:
            self.broken.append(f"{id} ran {self.life_runs[id]} times in one life, of {attempts} attempts")
        if id in self.over:
            self.broken.append(f"{id} ran although its end was stored")
        if id in self.dropped:
            self.broken.append(f"{id} ran although its dispatch was refused as not written")

    def _on_stored(self, at: float, acked: list[str], over: list[str]) -> None:
        self.sure.update(acked)
        self.over.update(over)

    def _on_broken(self, at: float, what: str) -> None:
        self.broken.append(what)

    def _on_state(self, at: float, present: list[str]) -> None:
        self.restarts += 1
        there = set(present)
        for id, (life, acked_at, key) in list(self.acked.items()):
            if id in there or id in self.runs or self._was_superseded(id, key, there):
                continue
            if self.mode == "write_through":
                self.broken.append(f"{id} was acknowledged and is lost (restart {self.restarts})")
            elif id in self.sure:
                self.broken.append(f"{id} was stored and is lost (restart {self.restarts})")
            elif acked_at < self.killed_at[life] - self.grace_s:
                age_s = self.killed_at[life] - acked_at
                self.broken.append(f"{id} is lost, although it was dispatched {age_s:.3f} s before the kill")
            else:
                self.lost_lately += 1
                del self.acked[id]

    def _was_superseded(self, id: str, key: str | None, there: set[str]) -> bool:
        """Whether a later dispatch with the same key has taken its place, or may have."""
        if key is None:
            return False
        tried = self.tried_by_key[key]
        return any(later in there or later in self.runs for later in tried[tried.index(id) + 1 :])

    def _on_idle(self, at: float, ended: list[str]) -> None:
        """What was killed twice while it ran has failed without another run, and a parent with its child: BullMQ's rule."""
        there = set(ended)
        for id, (_, _, key) in self.acked.items():
            if id not in self.runs and id not in there and not self._was_superseded(id, key, there):
                self.broken.append(f"{id} was there and never ran")
