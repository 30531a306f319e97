"""
One process, cut off at every single call of its store, before and after it: whatever came before is there, once.

The program is always the same: dispatches of every kind in both modes, worked on between them. What it was told is known
at each cut, so what must be there can be said exactly.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from inproc_jobs import Deduplication, Engine, Registry, SnapshotUnavailableError
from inproc_jobs.snapshot.config import Mode
from inproc_jobs.snapshot.records import Batch
from inproc_jobs.testing.memory_store import MemorySnapshot, MemoryStore


class CutSnapshot(MemorySnapshot):
    """A place whose store dies at its n-th write: before it arrives, or after, without an answer."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode=mode, every="1ms")
        self.cut_at: int | None = None
        self.after = False
        self.calls = 0
        self.dead = False

    def open_store(self) -> MemoryStore:
        return CutStore(self)


class CutStore(MemoryStore):
    """See `CutSnapshot`."""

    def apply(self, batch: Batch) -> None:
        place = self._snapshot
        assert isinstance(place, CutSnapshot)
        if not place.dead:
            place.calls += 1
            place.dead = place.calls == place.cut_at
            if not place.dead or place.after:
                super().apply(batch)
        if place.dead:
            raise SnapshotUnavailableError("cut off", outcome="unknown")


@dataclass
class Program:
    """What was told, and what ran."""

    snapshot: CutSnapshot
    acked: list[str] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    engine: Engine | None = None

    def registry(self) -> Registry:
        registry = Registry()

        async def run(payload: Any, ctx: Any) -> str:
            self.runs[ctx.id] = self.runs.get(ctx.id, 0) + 1
            return "done"

        self.job = registry.define_job("job", handle=run)
        self.other = registry.define_job("other", handle=run, queue="others")
        return registry

    async def run(self) -> None:
        """Until its end, or until the store is cut off."""
        engine = Engine(registry=self.registry(), snapshot=self.snapshot, concurrency=2, shutdown_timeout="100ms")
        self.engine = engine
        try:
            await engine.astart()
        except SnapshotUnavailableError:
            return
        try:
            await self.dispatch_all(engine)
        except SnapshotUnavailableError:
            pass
        finally:
            self.snapshot.dead = True  # nothing that happens from here on counts
            engine.vanish()

    async def dispatch_all(self, engine: Engine) -> None:
        await self.ack(self.job.dispatch(1, job_id="plain"))
        await self.ack(self.job.dispatch(1, job_id="later", delay="1h"))
        await self.ack(self.job.dispatch(1, job_id="ranked", priority=3))
        debounce = Deduplication.debounce("d", "1h")
        await self.ack(self.job.dispatch(1, job_id="first", deduplication=debounce))
        await self.ack(self.job.dispatch(2, job_id="second", deduplication=debounce))
        await self.job.dispatch(9, job_id="later")
        flow = await engine.flow(self.other.node(1, job_id="parent", children=[self.job.node(1, job_id="child")]))
        await self.note(flow.job.id, "child")
        await engine.schedule("tick", self.job, 1, every="1h")
        await flow.job.result(10)
        await self.ack(self.job.dispatch(1, job_id="plain"))
        await asyncio.sleep(0.005)

    async def ack(self, dispatch: Any) -> None:
        receipt = await dispatch
        assert receipt.created
        await self.note(receipt.id)

    async def note(self, *ids: str) -> None:
        """With `periodic` a job counts once a write has followed it."""
        assert self.engine is not None
        if self.snapshot.mode == "periodic":
            assert self.engine._keeper is not None
            if not await asyncio.to_thread(self.engine._keeper.flush, 5):
                raise SnapshotUnavailableError("cut off")
        self.acked += ids


def count_writes(mode: Mode) -> int:
    program = Program(CutSnapshot(mode))
    asyncio.run(program.run())
    assert program.runs["parent"] == 1
    return program.snapshot.calls


async def go_on(program: Program) -> tuple[set[str], dict[str, int]]:
    """Start again on what is there, and run it."""
    place = program.snapshot
    place.dead, place.cut_at = False, None
    place.evict_owner()
    program.runs = {}
    engine = Engine(registry=program.registry(), snapshot=place, concurrency=2)
    await engine.astart()
    with engine.runtime.lock:
        engine.runtime.core.check()
        there = {id for queue in engine.runtime.core.queues.values() for id in queue.index}
    async with asyncio.timeout(10):
        while not engine.runtime.is_idle(ready_only=True):
            await asyncio.sleep(0.001)
    await engine.astop()
    return there, program.runs


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", ["write_through", "periodic"])
def test_cut_at_every_write(mode, after):
    """Acknowledged jobs are there or have run; the state is consistent; nothing runs twice in the life that follows."""
    cut = 0
    writes = count_writes(mode)
    assert writes >= 7
    while cut < writes:
        cut += 1
        program = Program(CutSnapshot(mode))
        program.snapshot.cut_at, program.snapshot.after = cut, after
        asyncio.run(program.run())
        ran = dict(program.runs)
        there, again = asyncio.run(go_on(program))
        where = f"cut {'after' if after else 'before'} write {cut} of {mode}"
        for id in program.acked:
            superseded = id == "first" and "second" in there
            assert id in there or id in ran or superseded, f"{where}: {id} is lost"
        assert not {"first", "second"} <= there, f"{where}: both jobs of one key are there"
        assert ("parent" in there) == ("child" in there), f"{where}: half a flow"
        assert all(count == 1 for count in again.values()), f"{where}: {again}"
