"""
A snapshot in one SQLite file.

A batch is a transaction, so it is all or nothing by SQLite's own promise (WAL, synchronous=FULL). One row per job holds
its record; `state` and `place` are columns of their own, so that a job that only moves is cheap and order is kept. A
file lock beside it says who owns it: it goes with the process, so no lease runs out here, and the fencing number in the
file still stops whoever has lost the lock by accident.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotLayoutError, SnapshotUnavailableError
from inproc_jobs.snapshot.file_lock import FileLock
from inproc_jobs.snapshot.records import (
    WAITING,
    Batch,
    JobChange,
    JobRecord,
    KeyRecord,
    MetaRecord,
    ParkedRecord,
    QueueBatch,
    QueueState,
    SchedulerRecord,
)
from inproc_jobs.snapshot.store import Owner, StoreEmptiedError

__all__ = ["LAYOUT", "SqliteStore"]

LAYOUT: Final = 1
"""Version of the tables. A file of a newer one is refused untouched."""
_APPLICATION_ID: Final = 0x696E6A62
"""Says whose file it is; `file` and SQLite's own tools show it."""
_SCHEMA: Final = """
create table if not exists jobs (
    queue text not null, id text not null, state text not null, place integer not null, record blob not null,
    primary key (queue, id)
) without rowid;
create table if not exists queues (name text primary key, meta blob not null) without rowid;
create table if not exists parts (
    queue text not null, kind text not null, id text not null, record blob not null, primary key (queue, kind, id)
) without rowid;
create table if not exists fence (one integer primary key check (one = 1), number integer not null);
insert or ignore into fence values (1, 0);
"""
_encode: Final = msgspec.msgpack.Encoder().encode
_read_job: Final = msgspec.msgpack.Decoder(JobRecord).decode
_read_meta: Final = msgspec.msgpack.Decoder(MetaRecord).decode
_PARTS: Final[dict[str, Any]] = {"key": KeyRecord, "parked": ParkedRecord, "scheduler": SchedulerRecord}
_PART_JOBS: Final = 200
_NO_META: Final = MetaRecord(0, None, False, None, None, None, 0, 0, {})


class SqliteStore:
    """
    The port on a file.

    Args:
        path: The file, made when missing.
        timeout_ms: Patience with somebody who reads the file at the same time.
        lease_ms: Without meaning here; part of the port.

    Attributes:
        warnings: What cannot be read and was left alone.
        limits, wanted, left_alone: Without meaning here, as nobody else uses the file; part of the port.
    """

    def __init__(self, path: str, *, timeout_ms: int, lease_ms: int) -> None:
        self.description = f"SQLite file {path}"
        self.warnings: list[str] = []
        self.limits: dict[str, tuple[int, float]] = {}
        self.wanted: frozenset[str] | None = None
        self.left_alone: frozenset[str] = frozenset()
        self._path = os.path.realpath(path)  # two names of one file must have one lock
        self._timeout_s = timeout_ms / 1000
        self._lock = FileLock(f"{self._path}.lock")
        self._connection: sqlite3.Connection | None = None
        self._guard = threading.Lock()
        self._fence = 0
        self._files: tuple[tuple[int, int], bool] = ((0, 0), False)
        self._ends: dict[str, list[int]] = {}

    # --- ownership ----------------------------------------------------------------------------------------------

    def acquire(self, owner: Owner) -> int:
        """See `Store.acquire`. Whoever owns it already opens it again, after its file was deleted."""
        holder = None if self._lock.is_ours() else self._lock.acquire(owner)
        if holder is not None:
            since = datetime.fromtimestamp(holder.since_ms / 1000, UTC)
            raise LeaseHeldError(
                f"{self.description} is owned by process {holder.pid} on {holder.host} since {since.isoformat()}; run one "
                'engine per file, or wait for it with on_held="wait". Other processes cannot dispatch into it: have them '
                "ask the owner, over HTTP for example",
                host=holder.host,
                pid=holder.pid,
                since=since,
            )
        try:
            with self._errors(), self._guard:
                self._disconnect()
                self._open()
                with self._transaction() as db:
                    number = db.execute("select number from fence").fetchone()[0]
                    self._fence = max(number, self._fence) + 1
                    db.execute("update fence set number = ?", (self._fence,))
                self._files = self._files_there()
        except BaseException:
            self.close()
            raise
        return self._fence

    def _open(self) -> None:
        db = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False)
        self._connection = db
        _OPEN[id(self)] = db
        kind = db.execute("pragma application_id").fetchone()[0]
        layout = db.execute("pragma user_version").fetchone()[0]
        empty = db.execute("select count(*) from sqlite_master").fetchone()[0] == 0
        if kind != _APPLICATION_ID and not empty:
            raise SnapshotLayoutError(
                f"{self._path} is a database of something else; nothing was touched, name another file"
            )
        if layout > LAYOUT:
            raise SnapshotLayoutError(
                f"{self._path} has layout {layout}, newer than {LAYOUT}; nothing was touched, use the newer version of "
                "inproc_jobs that wrote it"
            )
        db.execute("pragma journal_mode = wal")  # where it cannot be (a network drive), the old journal does
        db.execute("pragma synchronous = full")
        db.executescript(_SCHEMA)
        db.execute(f"pragma application_id = {_APPLICATION_ID}")
        db.execute(f"pragma user_version = {LAYOUT}")

    def _files_there(self) -> tuple[tuple[int, int], bool]:
        """Which file stands at our path, and whether its log stands beside it."""
        found = Path(self._path).stat()
        return (found.st_dev, found.st_ino), Path(f"{self._path}-wal").exists()

    def _refuse_deleted(self) -> None:
        """SQLite goes on writing into a file that was deleted, and what it says is stored is gone with it."""
        try:
            (file, has_log), (opened, had_log) = self._files_there(), self._files
        except FileNotFoundError:
            raise StoreEmptiedError(
                f"{self.description} was deleted while it was in use; it must be written anew"
            ) from None
        except OSError as error:
            raise SnapshotUnavailableError(f"{self.description}: {error}", outcome="unknown") from error
        if file != opened:
            raise LeaseLostError(
                f"another file stands where {self.description} was; nothing was written into it. Stop the engine before "
                "its file is replaced"
            )
        if had_log and not has_log:
            raise StoreEmptiedError(f"{self._path}-wal was deleted while it was in use; all must be written anew")

    def renew(self) -> None:
        """See `Store.renew`."""
        with self._errors(), self._guard:
            if self._connection is not None:
                self._refuse_deleted()
        if not self._lock.is_ours():
            raise LeaseLostError(f"the lock of {self.description} is gone: somebody has deleted {self._path}.lock")

    def release(self, *, handover: bool = False) -> None:
        """See `Store.release`. A file cannot be handed to BullMQ; the jobs stay in it."""
        self._lock.release()

    def close(self) -> None:
        """See `Store.close`."""
        with self._guard:
            self._disconnect()
        self._lock.release()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            _OPEN.pop(id(self), None)
        self._ends.clear()

    # --- reading ------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[QueueState]:
        """See `Store.load`."""
        with self._errors(), self._guard:
            names = [row[0] for row in self._db.execute("select name from queues union select queue from jobs")]
        for name in names:
            with self._errors(), self._guard:
                state = self._load_frame(name)
                rows = self._db.execute("select id, state, record from jobs where queue = ? order by place", (name,))
            first = True
            while True:
                with self._errors(), self._guard:
                    some = rows.fetchmany(_PART_JOBS)
                if not some and not first:
                    break
                for id, word, blob in some:
                    self._load_job(state, id, word, blob)
                yield state
                state, first = QueueState(name, state.meta), False

    def _load_frame(self, name: str) -> QueueState:
        """A queue without its jobs."""
        row = self._db.execute("select meta from queues where name = ?", (name,)).fetchone()
        state = QueueState(name, _NO_META if row is None else self._load_meta(name, row[0]))
        for kind, id, blob in self._db.execute("select kind, id, record from parts where queue = ?", (name,)):
            self._load_part(state, kind, id, blob)
        self._ends[name] = self._read_ends(name)
        return state

    def _load_meta(self, name: str, blob: Any) -> MetaRecord:
        try:
            meta: MetaRecord = _read_meta(blob)
        except (msgspec.DecodeError, TypeError) as error:
            # Without its counter the next id could be one that is taken.
            raise SnapshotLayoutError(
                f"{self.description} is damaged: the settings of queue {name!r} cannot be read ({error}); nothing was "
                "touched, restore the file from a backup"
            ) from error
        return meta

    @staticmethod
    def _load_job(state: QueueState, id: str, word: str, blob: Any) -> None:
        try:
            record = _read_job(blob)
            if (record.id, record.state) != (id, word):
                raise ValueError(f"it says that it is {record.id!r}, {record.state}, and stands as {id!r}, {word}")
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            state.unreadable[id] = str(error)
        else:
            state.jobs.append(record)

    def _load_part(self, state: QueueState, kind: str, id: str, blob: Any) -> None:
        try:
            record = msgspec.msgpack.decode(blob, type=_PARTS[kind])
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            self.warnings.append(f"{kind} {id!r} of queue {state.queue!r} cannot be read and was left alone: {error}")
            return
        homes: dict[str, dict[str, Any]] = {"key": state.keys, "parked": state.parked, "scheduler": state.schedulers}
        homes[kind][id] = record

    def _read_ends(self, queue: str) -> list[int]:
        low, high = self._db.execute("select min(place), max(place) from jobs where queue = ?", (queue,)).fetchone()
        return [low or 0, high or 0]

    def poll_foreign(self) -> list[QueueState]:
        """See `Store.poll_foreign`: nobody else writes into the file."""
        return []

    # --- writing ------------------------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """See `Store.apply`."""
        with self._errors(), self._guard:
            with self._transaction() as db:
                self._refuse_deleted()
                if self._read_fence(db) != self._fence:
                    raise LeaseLostError(f"another engine has taken {self.description} over")
                for part in batch.queues:
                    self._write_queue(db, part)
            # And once more: only now whoever waits may rely on it.
            self._refuse_deleted()

    def _read_fence(self, db: sqlite3.Connection) -> int:
        try:
            row = db.execute("select number from fence").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            row = None
        if row is None:
            raise StoreEmptiedError(
                f"somebody has emptied {self.description} while it was in use; it must be written anew"
            )
        number: int = row[0]
        return number

    def _write_queue(self, db: sqlite3.Connection, part: QueueBatch) -> None:
        ends = self._ends.get(part.queue) or self._ends.setdefault(part.queue, self._read_ends(part.queue))
        gone = [(part.queue, change.id) for change in part.jobs if change.record is None]
        db.executemany("delete from jobs where queue = ? and id = ?", gone)
        db.executemany(
            "insert into jobs values (?, ?, ?, ?, ?) on conflict (queue, id) do update set state = excluded.state, "
            "place = case when ?6 then excluded.place else jobs.place end, record = excluded.record",
            [self._row(part.queue, change, ends) for change in part.jobs if change.record is not None],
        )
        if part.meta is not None:
            db.execute("insert or replace into queues values (?, ?)", (part.queue, _encode(part.meta)))
        for kind, changes in (("key", part.keys), ("parked", part.parked), ("scheduler", part.schedulers)):
            for id, record in changes.items():
                if record is None:
                    db.execute("delete from parts where queue = ? and kind = ? and id = ?", (part.queue, kind, id))
                else:
                    db.execute(
                        "insert or replace into parts values (?, ?, ?, ?)", (part.queue, kind, id, _encode(record))
                    )

    @staticmethod
    def _row(queue: str, change: JobChange, ends: list[int]) -> tuple[Any, ...]:
        """The row of a job. Places grow at the back and fall at the front, so moves are replayed by their numbers."""
        record = change.record
        assert record is not None  # asked by the caller
        if change.moved and change.front and record.state == WAITING:
            ends[0] -= 1
            place = ends[0]
        else:
            ends[1] += 1
            place = ends[1]
        return queue, change.id, record.state, place, _encode(record), change.moved

    # --- the connection -----------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SnapshotUnavailableError(f"{self.description} is closed")
        return self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing. The write lock is taken at once, so that a reader cannot make a half-done write fail."""
        db = self._db
        ends = {queue: list(pair) for queue, pair in self._ends.items()}
        db.execute("begin immediate")
        committing = False
        try:
            yield db
            committing = True
            db.execute("commit")
        except BaseException as error:
            self._ends = ends
            with contextlib.suppress(sqlite3.Error):
                db.execute("rollback")
            if committing and isinstance(error, sqlite3.Error):
                # A disk that failed while it was told to keep all of it may have kept it.
                raise SnapshotUnavailableError(f"{self.description}: {error}", outcome="unknown") from error
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as those of the port."""
        try:
            yield
        except sqlite3.OperationalError as error:
            # Locked, full, read-only, unreadable disk: the transaction was rolled back, so nothing of it is there.
            raise SnapshotUnavailableError(f"{self.description}: {error}") from error
        except sqlite3.ProgrammingError as error:
            raise SnapshotUnavailableError(f"{self.description} is closed: {error}") from error
        except sqlite3.DatabaseError as error:
            raise SnapshotLayoutError(
                f"{self.description} is damaged or no database: {error}; nothing was touched"
            ) from error


_OPEN: Final[dict[int, sqlite3.Connection]] = {}
_OF_PARENTS: Final[list[sqlite3.Connection]] = []
"""Connections that a fork has copied. SQLite forbids their use in the child, and closing one is a use."""


def _after_fork() -> None:
    _OF_PARENTS.extend(_OPEN.values())
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
