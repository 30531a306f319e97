"""The suite of all stores, on SQLite and in memory. `tests/redis/test_contract.py` runs the same one on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inproc_jobs.errors import LeaseHeldError, LeaseLostError
from inproc_jobs.snapshot.records import JobChange, KeyRecord
from inproc_jobs.snapshot.sqlite_store import SqliteStore
from inproc_jobs.snapshot.store import Store
from inproc_jobs.testing.memory_store import MemorySnapshot
from tests.unit.snapshot.store_contract import NOW, StoreContract, batch_of, change, ids, job, loaded, owner


class SqlitePlace:
    """See `store_contract.Place`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self._stores: list[SqliteStore] = []

    def open(self, *, lease_ms: int = 60_000) -> SqliteStore:
        self._stores.append(SqliteStore(str(self.path), timeout_ms=1_000, lease_ms=lease_ms))
        return self._stores[-1]

    def lose_lease(self, store: Store) -> None:
        """Somebody tidies up: the lock file is gone, and the next one locks a new one."""
        Path(f"{self.path}.lock").unlink()

    def close(self) -> None:
        for store in self._stores:
            store.close()


class MemoryPlace:
    """See `store_contract.Place`."""

    def __init__(self) -> None:
        self.snapshot = MemorySnapshot()

    def open(self, *, lease_ms: int = 60_000) -> Store:
        return self.snapshot.open_store()

    def lose_lease(self, store: Store) -> None:
        self.snapshot.evict_owner()


class OwnedByALock(StoreContract):
    """Leases that do not run out by themselves: they go with the process."""

    def test_lease_runs_out_and_the_former_owner_is_fenced_off(self, place):
        """Whoever has lost the store by accident cannot write over its successor, nor renew."""
        former, successor = place.open(), place.open()
        former.acquire(owner())
        former.apply(batch_of(change(job("1"))))
        place.lose_lease(former)
        successor.acquire(owner("two.example"))
        with pytest.raises(LeaseLostError):
            former.apply(batch_of(JobChange("1", None, "waiting")))
        with pytest.raises(LeaseLostError):
            former.renew()
        assert ids(loaded(successor), "waiting") == ["1"]
        former.close()
        successor.release()
        successor.close()

    def test_renewing_keeps_the_store(self, place):
        """An owner stays the owner."""
        keeper, other = place.open(lease_ms=1), place.open()
        keeper.acquire(owner())
        keeper.renew()
        with pytest.raises(LeaseHeldError):
            other.acquire(owner("two.example"))
        keeper.apply(batch_of(change(job("1"))))
        keeper.close()
        other.close()

    test_lease_that_nobody_took_is_taken_up_again = None  # nothing runs out

    def test_deduplication_keys(self, store, reopen):
        """Owner and lifetime come back; keys whose time is over may, since the core drops them by the engine's clock."""
        keys = {"until:done": KeyRecord("1", None), "throttled": KeyRecord("1", NOW + 600_000)}
        store.apply(batch_of(change(job("1", deduplication_id="until:done")), keys={**keys, "gone": keys["throttled"]}))
        store.apply(batch_of(keys={"gone": None}))
        assert reopen().keys == keys


class TestSqliteStore(OwnedByALock):
    """SqliteStore keeps what every store promises."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[SqlitePlace]:
        place = SqlitePlace(tmp_path)
        yield place
        place.close()


class TestMemoryStore(OwnedByALock):
    """MemoryStore, with which everything else is tested, does not promise less."""

    @pytest.fixture
    def place(self) -> MemoryPlace:
        return MemoryPlace()
