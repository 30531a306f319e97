"""What may happen to a snapshot in a file: each trouble is told as what it is, and nothing is half done."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inproc_jobs import Engine, Registry, SqliteSnapshot
from inproc_jobs.errors import LeaseHeldError, LeaseLostError, SnapshotLayoutError, SnapshotUnavailableError
from inproc_jobs.snapshot.file_lock import FileLock
from inproc_jobs.snapshot.records import JobChange, KeyRecord
from inproc_jobs.snapshot.sqlite_store import LAYOUT, SqliteStore
from inproc_jobs.snapshot.store import StoreEmptiedError
from tests.unit.snapshot.store_contract import batch_of, change, ids, job, loaded, owner

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")
no_root = pytest.mark.skipif(hasattr(os, "getuid") and os.getuid() == 0, reason="root may write anywhere")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    stores: list[SqliteStore] = []

    def opened(where: object = path, *, timeout_ms: int = 100, acquire: bool = True) -> SqliteStore:
        stores.append(SqliteStore(str(where), timeout_ms=timeout_ms, lease_ms=1_000))
        if acquire:
            stores[-1].acquire(owner())
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


# --- passing troubles ---------------------------------------------------------------------------------------------


def test_somebody_else_writes_into_the_file(path, opened):
    """A locked database is told as not written, and the same write goes through later."""
    store = opened()
    store.apply(batch_of(change(job("1"))))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(SnapshotUnavailableError) as caught:
        store.apply(batch_of(change(job("2"))))
    assert caught.value.outcome == "not written"
    other.execute("rollback")
    other.close()
    store.apply(batch_of(change(job("2"))))
    assert ids(loaded(store), "waiting") == ["1", "2"]


def test_somebody_reads_the_file(path, opened):
    """A reader, such as a backup, keeps nobody from writing."""
    store = opened()
    store.apply(batch_of(change(job("1"))))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin")
    other.execute("select count(*) from jobs").fetchone()
    store.apply(batch_of(change(job("2"))))
    other.execute("rollback")
    other.close()
    assert ids(loaded(store), "waiting") == ["1", "2"]


def test_full_disk(opened):
    """Nothing of a write that does not fit is there; a smaller one fits, and so does this one when there is room."""
    store = opened()
    store.apply(batch_of(change(job("1"))))
    pages = store._db.execute("pragma page_count").fetchone()[0]
    store._db.execute(f"pragma max_page_count = {pages + 2}")
    big = change(job("big", data=b'"' + b"x" * 100_000 + b'"'))
    with pytest.raises(SnapshotUnavailableError):
        store.apply(batch_of(change(job("1", "active"), "waiting"), change(job("2")), big))
    assert ids(loaded(store), "waiting") == ["1"]
    store._db.execute("pragma max_page_count = 100000")
    store.apply(batch_of(change(job("1", "active"), "waiting"), change(job("2")), big))
    state = loaded(store)
    assert (ids(state, "active"), ids(state, "waiting")) == (["1"], ["2", "big"])


def test_order_after_a_write_that_failed(opened):
    """Places that were given out for it are given out again: later moves are not mixed up with them."""
    store = opened()
    store.apply(batch_of(*(change(job(id)) for id in "ab")))
    store._db.execute("pragma query_only = 1")
    with pytest.raises(SnapshotUnavailableError):
        store.apply(batch_of(change(job("c")), change(job("d"), front=True)))
    store._db.execute("pragma query_only = 0")
    store.apply(batch_of(change(job("e")), change(job("c")), change(job("d"), front=True)))
    assert ids(loaded(store), "waiting") == ["d", "a", "b", "e", "c"]


@no_root
def test_read_only_file(path, opened):
    """It cannot be owned, which passes: somebody may set the permission right."""
    store = opened()
    store.close()
    path.chmod(0o400)
    with pytest.raises(SnapshotUnavailableError):
        opened()
    path.chmod(0o600)
    opened()


def test_folder_that_is_not_there(tmp_path, opened):
    """The message names the lock file that cannot be made."""
    with pytest.raises(SnapshotUnavailableError, match="nowhere"):
        opened(tmp_path / "nowhere" / "jobs.db")


def test_closed_store(opened):
    """A late call is told that it came late."""
    store = opened()
    store.close()
    with pytest.raises(SnapshotUnavailableError, match="closed"):
        store.apply(batch_of(change(job("1"))))
    with pytest.raises(LeaseLostError):
        store.renew()


# --- damaged, or not ours -----------------------------------------------------------------------------------------


def test_database_of_something_else(path, opened):
    """It is refused, and not one byte of it changes."""
    other = sqlite3.connect(path)
    other.execute("create table customers (name text)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(SnapshotLayoutError, match="something else"):
        opened()
    assert path.read_bytes() == before


def test_no_database_at_all(path, opened):
    """A file of another kind is refused, and not one byte of it changes."""
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(SnapshotLayoutError, match="no database"):
        opened()
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_newer_layout(path, opened):
    """A file of a later version is refused untouched, and says which version can read it."""
    opened().close()
    other = sqlite3.connect(path)
    other.execute(f"pragma user_version = {LAYOUT + 1}")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SnapshotLayoutError, match=f"layout {LAYOUT + 1}, newer than {LAYOUT}"):
        opened()
    assert path.read_bytes() == before
    assert not Path(f"{path}-wal").exists()


def test_refused_file_is_not_kept_locked(path, opened):
    """Whoever was refused does not stand in the way of one that can read it."""
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(SnapshotLayoutError):
        opened()
    path.unlink()
    opened()


@pytest.mark.parametrize("cut", [0.02, 0.3, 0.5, 0.8, 0.99])
def test_file_that_was_cut_off(path, opened, cut):
    """Half a file is refused, or all that is left of it is whole; it is never read as fewer jobs than it says."""
    store = opened()
    names = [f"j{number}" for number in range(500)]
    store.apply(batch_of(*(change(job(id)) for id in names)))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises((SnapshotLayoutError, SnapshotUnavailableError)):
        assert ids(loaded(opened()), "waiting") == names


def test_log_that_was_cut_off(path, opened, tmp_path):
    """A copy taken in the middle of a write (a crash of the machine) has whole writes only."""
    store = opened()
    store._db.execute("pragma wal_autocheckpoint = 0")
    store.apply(batch_of(change(job("0"))))
    store._db.execute("pragma wal_checkpoint(truncate)")
    for number in range(1, 5):
        store.apply(batch_of(change(job(f"{number}a")), change(job(f"{number}b"))))
    log = Path(f"{path}-wal").read_bytes()
    seen = set()
    for cut in range(0, len(log), 1013):
        copy = tmp_path / f"cut{cut}.db"
        copy.write_bytes(path.read_bytes())
        Path(f"{copy}-wal").write_bytes(log[:cut])
        other = opened(copy)
        found = ids(loaded(other), "waiting")
        other.close()
        assert len(found) % 2 == 1
        assert found == ["0", *(f"{number}{half}" for number in range(1, len(found) // 2 + 1) for half in "ab")]
        seen.add(len(found))
    assert seen >= {1, 3, 5, 7}


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80", b"\x01", b"\x80\x04\x95cos\nsystem\n", "text", None])
def test_damaged_record(path, opened, blob):
    """One bad record among a hundred is set aside with its reason; the others are read, and it stays as it is."""
    store = opened()
    store.apply(batch_of(*(change(job(f"j{number}")) for number in range(100))))
    store._db.execute("update jobs set record = ? where id = 'j50'", (b"" if blob is None else blob,))
    state = loaded(store)
    assert list(state.unreadable) == ["j50"]
    assert state.unreadable["j50"]
    assert len(state.jobs) == 99
    store.apply(batch_of(JobChange("j1", None, "waiting"), change(job("new"))))
    assert list(loaded(store).unreadable) == ["j50"]


def test_record_at_a_wrong_place(opened):
    """A row whose record says otherwise than its columns is not believed."""
    store = opened()
    store.apply(batch_of(change(job("1")), change(job("2"))))
    store._db.execute("update jobs set state = 'active' where id = '1'")
    assert list(loaded(store).unreadable) == ["1"]


def test_damaged_parts(opened):
    """A key or a scheduler that cannot be read is left alone, and the operator is told."""
    store = opened()
    store.apply(batch_of(change(job("1")), keys={"d": KeyRecord("1", None), "e": KeyRecord("1", None)}))
    store._db.execute("update parts set record = x'c1' where id = 'd'")
    assert list(loaded(store).keys) == ["e"]
    assert [warning for warning in store.warnings if "'d'" in warning]


def test_damaged_settings(opened):
    """Without its counter a queue would give out ids twice: the file is refused."""
    store = opened()
    store.apply(batch_of(change(job("1"))))
    store._db.execute("update queues set meta = x'c1'")
    with pytest.raises(SnapshotLayoutError, match="settings of queue 'mail'"):
        loaded(store)


# --- ownership ----------------------------------------------------------------------------------------------------


def test_two_names_of_one_file(path, opened, tmp_path):
    """A link to the file is the same file."""
    opened()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(LeaseHeldError):
        opened(link)


def test_lock_file_that_says_nothing(path, opened):
    """An owner that cannot be read is an owner."""
    opened()
    Path(f"{path}.lock").write_bytes(b"")
    with pytest.raises(LeaseHeldError, match="unknown host"):
        opened()


def test_lock_file_that_was_deleted(path, opened):
    """The owner notices at the next renewal, before anybody else has come."""
    store = opened()
    store.renew()
    Path(f"{path}.lock").unlink()
    with pytest.raises(LeaseLostError, match="deleted"):
        store.renew()


def test_lock_of_a_deleted_file_is_not_taken(tmp_path):
    """Whoever locks a file that is no longer there has locked nothing; the loser of the race takes the new one."""
    one, other = FileLock(str(tmp_path / "l")), FileLock(str(tmp_path / "l"))
    assert one.acquire(owner()) is None
    (tmp_path / "l").unlink()
    assert other.acquire(owner("two.example")) is None
    assert other.is_ours()
    assert not one.is_ours()
    one.release()
    other.release()


HOLD = """
import sys, time
from inproc_jobs.snapshot.sqlite_store import SqliteStore
from inproc_jobs.snapshot.store import Owner
import os, socket
store = SqliteStore(sys.argv[1], timeout_ms=1000, lease_ms=1000)
store.acquire(Owner(socket.gethostname(), os.getpid(), 1_700_000_000_000))
{more}
print("mine", flush=True)
sys.stdin.read()
"""


def hold(path: Path, more: str = "") -> subprocess.Popen[str]:
    """Another process that owns the file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more=more), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_another_process_owns_it(path, opened):
    """It is named with host, process and since when; once it is dead, nobody waits for anything."""
    other = hold(path)
    try:
        with pytest.raises(LeaseHeldError, match=f"process {other.pid} on .* since 2023-11-14"):
            opened()
    finally:
        end(other)
    opened()


@posix
def test_forked_child_does_not_own_it(path, opened):
    """A child that outlives its parent does not keep the file locked, and cannot write into it."""
    more = "if os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)"
    other = hold(path, more)
    pid = int(subprocess.run(["pgrep", "-P", str(other.pid)], capture_output=True, text=True, check=True).stdout)
    try:
        end_parent(other)
        opened()
    finally:
        os.kill(pid, 9)


def end_parent(process: subprocess.Popen[str]) -> None:
    """Its child has its pipes, so their end is not waited for."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


@posix
def test_child_that_ends_does_not_release_it(path, opened):
    """The end of a forked child leaves its parent the owner."""
    store = opened()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if store._lock._fd is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    store.renew()
    with pytest.raises(LeaseHeldError):
        opened()
    store.apply(batch_of(change(job("1"))))


def test_many_processes_one_owner(path):
    """Of eight that come at once one gets it."""
    source = (
        HOLD.format(more="")
        .replace("store.acquire(", "try:\n    store.acquire(")
        .replace(
            "1_700_000_000_000))\n",
            "1_700_000_000_000))\nexcept Exception as error:\n    sys.exit(type(error).__name__)\n",
        )
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", source, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    try:
        give_up = time.monotonic() + 60
        while sum(process.poll() is None for process in processes) > 1 and time.monotonic() < give_up:
            time.sleep(0.02)
        alive = [process for process in processes if process.poll() is None]
        assert len(alive) == 1
        assert {process.communicate()[1].strip() for process in processes if process is not alive[0]} == {
            "LeaseHeldError"
        }
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


# --- files that go away under their owner -------------------------------------------------------------------------


def delete(*paths: Path) -> None:
    """As somebody does who cleans up."""
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not delete open files")
@pytest.mark.parametrize("victims", [("",), ("", "-wal", "-shm"), ("-wal",)], ids=["database", "all", "log"])
@pytest.mark.parametrize("mode", ["periodic", "write_through"])
async def test_deleted_file_is_written_anew(tmp_path, mode, victims):
    """SQLite goes on writing into a deleted file; here everything is back, and was never told as stored without being it."""
    path = tmp_path / "jobs.db"
    registry = Registry()
    work = registry.define_job("work", handle=lambda payload: None)
    async with Engine(registry=registry, snapshot=SqliteSnapshot(path, mode=mode, every="20ms")) as engine:
        await work.dispatch(1, job_id="before", delay="1h")
        await engine.save_now(5)
        delete(*(Path(f"{path}{suffix}") for suffix in victims))
        await work.dispatch(1, job_id="after", delay="1h")
        await engine.save_now(5)
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert {row[0] for row in db.execute("select id from jobs")} == {"before", "after"}
    async with Engine(registry=registry, snapshot=SqliteSnapshot(path)) as engine:
        assert {job.id for job in engine.queue("default").jobs()} == {"before", "after"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not delete open files")
def test_deleted_file_is_noticed_without_a_write(path, opened):
    """The lease is renewed all the time; who opens it again has a higher number than before."""
    store = opened(acquire=False)
    before = store.acquire(owner())
    store.renew()
    Path(path).unlink()
    with pytest.raises(StoreEmptiedError, match="deleted"):
        store.renew()
    assert store.acquire(owner()) > before
    store.apply(batch_of(change(job("1"))))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not replace open files")
def test_file_that_was_replaced_is_left_alone(path, opened, tmp_path):
    """A backup that is put back under a running engine is not mixed with what the engine has: the engine stops."""
    store = opened()
    backup = tmp_path / "backup.db"
    backup.write_bytes(b"a backup")
    backup.replace(path)
    for call in (store.renew, lambda: store.apply(batch_of(change(job("1"))))):
        with pytest.raises(LeaseLostError, match="another file") as caught:
            call()
        assert not isinstance(caught.value, StoreEmptiedError)
    assert Path(path).read_bytes() == b"a backup"


@pytest.mark.parametrize("command", ["delete from {}", "drop table {}"])
async def test_database_that_was_emptied_is_written_anew(tmp_path, command):
    """By whoever had it open in another program."""
    path = tmp_path / "jobs.db"
    registry = Registry()
    work = registry.define_job("work", handle=lambda payload: None)
    async with Engine(registry=registry, snapshot=SqliteSnapshot(path, every="20ms")) as engine:
        await work.dispatch(1, job_id="before", delay="1h")
        await engine.save_now(5)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            for table in ("jobs", "queues", "parts", "fence"):
                db.execute(command.format(table))
        await work.dispatch(1, job_id="after", delay="1h")
        assert await engine.save_now(5)
        assert engine.health()["store_error"] is None
    async with Engine(registry=registry, snapshot=SqliteSnapshot(path)) as engine:
        assert {job.id for job in engine.queue("default").jobs()} == {"before", "after"}
