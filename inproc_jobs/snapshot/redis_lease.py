"""
Who owns a prefix: a lease with a fencing number, and what the owner alone may do.

Lease, fencing number and what is hidden from BullMQ's workers stand under `{prefix}::inproc-jobs:`: a queue with an empty
name, which BullMQ refuses, so nothing of a queue can have such a key.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotError, SnapshotLayoutError
from inproc_jobs.snapshot import lua
from inproc_jobs.snapshot.redis_link import RedisLink
from inproc_jobs.snapshot.store import Owner, StoreEmptiedError

__all__ = ["RedisLease"]

RESERVE: Final = 100_000
"""How far `Q:id` runs ahead of our counter while we own the store."""


class _OwnerRow(msgspec.Struct):
    """What the lease says. `space` is where `pid` means something; empty: unknown."""

    host: str
    pid: int
    since_ms: int
    space: str = ""


def _space() -> str:
    """Names the world in which a process id is unique: machine, boot and container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"{sys.platform}/{socket.gethostname()}/{uuid.getnode()}"


def _has_died(row: _OwnerRow) -> bool:
    """Whether the owner was a process of this very machine that is certainly gone: nobody need wait for its lease."""
    if not row.space or row.space != _space() or row.pid == os.getpid() or row.pid <= 0 or os.name != "posix":
        return False
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class RedisLease:
    """
    The lease on everything under one prefix.

    Args:
        link: For what the owner writes.
        renewing: For renewals, so that a slow write does not lose the lease.
        lease_ms: How long it is ours without a sign of life.

    Attributes:
        base: Start of the keys that are ours.
        seen: Queue -> id of the last event in its stream that we know of. What comes later was somebody else's doing.
    """

    def __init__(self, link: RedisLink, renewing: RedisLink, prefix: str, lease_ms: int) -> None:
        self.base = f"{prefix}::inproc-jobs:"
        self.seen = SeenEvents()
        self._link = link
        self._renewing = renewing
        self._prefix = prefix
        self._lease_ms = lease_ms
        self._keys = [f"{self.base}lease", f"{self.base}fence"]
        self._token, self._fence = "", ""

    def acquire(self, owner: Owner) -> int:
        """See `Store.acquire`. An owner of this machine whose process is gone is not waited for."""
        row = msgspec.json.encode(_OwnerRow(owner.host, owner.pid, owner.since_ms, _space())).decode()
        # Two owners in one process and one millisecond must differ as well.
        row = f"{row} {uuid.uuid4().hex}"
        displaced, holder = "", None
        for _ in range(2):
            word, value = self._link.script(
                lua.ACQUIRE,
                [*self._keys, f"{self.base}layout"],
                [row, str(self._lease_ms), str(lua.LAYOUT), displaced],
            )[:2]
            if word == "ok":
                self.seen.clear()
                self._fence, self._token = value, f"{value} {row}"
                return int(value)
            if word == "layout":
                raise SnapshotLayoutError(
                    f"{self._link.description} holds a snapshot of layout {value}; this version knows up to "
                    f"{lua.LAYOUT}. Nothing was touched; install the version that wrote it"
                )
            holder = _holder(value)
            if holder is None or not _has_died(holder):
                raise self._held(holder)
            displaced = value
        raise self._held(holder)

    def _held(self, holder: _OwnerRow | None) -> LeaseHeldError:
        what = f"{self._link.description} (prefix {self._prefix!r})"
        if holder is None:
            return LeaseHeldError(f"another engine owns {what}")
        since = datetime.fromtimestamp(holder.since_ms / 1000, UTC)
        return LeaseHeldError(
            f"{what} is owned by process {holder.pid} on {holder.host} since {since.isoformat(timespec='seconds')}. "
            'One engine owns a snapshot: stop the other one, let this one wait with on_held="wait", or give it a prefix '
            "of its own. There is no mode that only dispatches: send work to the owner, or run the jobs on a real BullMQ",
            host=holder.host,
            pid=holder.pid,
            since=since,
        )

    def call(self, script: str, *arguments: Any, allowed: str = "ok") -> list[Any]:
        """
        Run one of the scripts that look at the lease first, and change nothing if it is not ours.

        Args:
            allowed: A word that it may answer beside "ok".
        """
        return self._checked(self._link, script, arguments, allowed)

    def renew(self, limits: list[Any]) -> None:
        """See `Store.renew`."""
        self._checked(self._renewing, lua.RENEW, (msgspec.msgpack.encode(limits),), "ok")

    def forget(self) -> None:
        """It was released."""
        self._token = ""

    def _checked(self, link: RedisLink, script: str, arguments: Sequence[Any], allowed: str) -> list[Any]:
        head = {
            "token": self._token,
            "fence": self._fence,
            "lease": str(self._lease_ms),
            "kept": f"{self.base}kept:",
            "mine": f"{self.base}queues",
            "seen": {f"{self._prefix}:{queue}": last for queue, last in self.seen.all().items()},
            "reserve": RESERVE,
        }
        answer = link.script(script, self._keys, [msgspec.msgpack.encode(head), *arguments])
        if answer[0] in {"ok", allowed}:
            return answer
        raise self._refusal(*answer)

    def _refusal(self, word: str, *details: Any) -> SnapshotError:
        """What a script's answer means that has done nothing."""
        where = self._link.description
        if word == "type":
            key, found, wanted = details
            return SnapshotLayoutError(
                f"{where}: the key {key} is a {found} where BullMQ has a {wanted}. "
                "Nothing was touched; remove or rename that key, or use another prefix"
            )
        if word == "emptied":
            return StoreEmptiedError(
                f"{where} has lost its data while this engine was its owner; it must be written anew"
            )
        if word == "worked":
            return LeaseLostError(
                f"the lease on {where} ran out, and a BullMQ worker has taken over {details[0]} since"
            )
        holder = _holder(details[0])
        who = f"process {holder.pid} on {holder.host}" if holder is not None else "another engine"
        return LeaseLostError(f"{where} is owned by {who} now; nothing was written")


class SeenEvents:
    """Queue -> id of its last event that we know of. The threads that write and that renew share it."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def all(self) -> dict[str, str]:
        """A copy."""
        with self._lock:
            return dict(self._last)

    def note(self, queue: str, last: str) -> None:
        """We know what has happened until then."""
        with self._lock:
            self._last[queue] = last

    def add(self, queues: Iterable[str]) -> None:
        """We have put something into these."""
        with self._lock:
            for queue in queues:
                # From the beginning of its events: others may have been in this queue before us.
                self._last.setdefault(queue, "0-0")

    def clear(self) -> None:
        """We know nothing."""
        with self._lock:
            self._last.clear()


def _holder(token: str) -> _OwnerRow | None:
    """Who a lease names: "fence {json} nonce"."""
    start, end = token.find("{"), token.rfind("}")
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(token[start : end + 1], type=_OwnerRow)
    return None
