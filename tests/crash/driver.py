"""The process that is killed: it dispatches and works as fast as it may, and writes down what it knows for sure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from inproc_jobs import (
    Deduplication,
    Engine,
    JobContext,
    RedisSnapshot,
    Registry,
    SnapshotUnavailableError,
    SqliteSnapshot,
)
from inproc_jobs.core.states import FINISHED_STATES
from tests.crash.ledger import Ledger

__all__ = ["EVERY_S", "live"]

EVERY_S = 0.05


class Life:
    """One life of the process, from its start to whatever ends it."""

    def __init__(self, place: str, mode: str, ledger: Path, number: int) -> None:
        self.number = number
        self.random = random.Random(number)
        self.ledger = Ledger(ledger)
        self.acked: list[str] = []
        options: dict[str, Any] = {"mode": mode, "every": f"{int(EVERY_S * 1000)}ms"}
        snapshot = RedisSnapshot(place, **options) if "://" in place else SqliteSnapshot(place, **options)
        registry = Registry()
        self.engine = Engine(
            registry=registry,
            concurrency=4,
            snapshot=snapshot,
            history={"completed": 100_000, "failed": 100_000},
            shutdown_timeout="10s",
        )
        self.plain = registry.define_job("plain", handle=self.run)
        self.flaky = registry.define_job("flaky", handle=self.run_flaky, attempts=3, backoff="5ms")
        self.parent = registry.define_job("parent", handle=self.run, queue="parents")

    # --- handlers -----------------------------------------------------------------------------------------------

    async def run(self, payload: Any, ctx: JobContext) -> str:
        self.ledger.write("run", ctx.id, ctx.max_attempts)
        await asyncio.sleep(self.random.random() * 0.004)
        return ctx.id

    async def run_flaky(self, payload: Any, ctx: JobContext) -> None:
        await self.run(payload, ctx)
        if ctx.attempt < 3 and self.random.random() < 0.5:
            raise RuntimeError("again")

    # --- dispatching --------------------------------------------------------------------------------------------

    async def dispatch(self, id: str) -> None:
        kinds: list[Callable[[str], Awaitable[Any]]] = [
            lambda one: self.plain.dispatch({"id": one}, job_id=one),
            lambda one: self.plain.dispatch({"id": one}, job_id=one, delay=self.random.randrange(80)),
            lambda one: self.plain.dispatch({"id": one}, job_id=one, priority=self.random.randrange(1, 4)),
            lambda one: self.flaky.dispatch({"id": one}, job_id=one),
        ]
        draw = self.random.random()
        if draw < 0.15:
            return await self.dispatch_flow(id)
        key = f"k{self.random.randrange(2)}" if draw < 0.35 else None
        self.ledger.write("try", id, key)
        if key is not None:
            debounce = Deduplication.debounce(key, "30ms")
            receipt = await self.plain.dispatch({"id": id}, job_id=id, deduplication=debounce)
            if receipt.duplicate:
                return None  # its owner is being run; a debounce drops what comes meanwhile
        else:
            await self.random.choice(kinds)(id)
        self.ledger.write("ack", id, key)
        self.acked.append(id)
        return None

    async def dispatch_flow(self, id: str) -> None:
        ids = [f"{id}-p", f"{id}-c", f"{id}-d"]
        children = [self.plain.node(None, job_id=one) for one in ids[1:]]
        await self.engine.flow(self.parent.node(None, job_id=ids[0], children=children))
        for one in ids:
            self.ledger.write("ack", one, None)
        self.acked += ids

    async def keep_dispatching(self, lane: int) -> None:
        number = 0
        while True:
            number += 1
            id = f"{self.number}.{lane}.{number}"
            try:
                await self.dispatch(id)
            except SnapshotUnavailableError as error:
                self.ledger.write("refused", id, error.outcome)
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.random.random() * 0.003)

    # --- looking ------------------------------------------------------------------------------------------------

    def look(self) -> tuple[list[str], list[str]]:
        """Ids that are there, and of those that have ended."""
        runtime = self.engine.runtime
        with runtime.lock:
            jobs = [job for queue in runtime.core.queues.values() for job in queue.index.values()]
            return [job.id for job in jobs], [job.id for job in jobs if job.state in FINISHED_STATES]

    async def keep_flushing(self) -> None:
        """Now and then write down what is certainly stored."""
        told = 0
        while True:
            await asyncio.sleep(0.02)
            keeper = self.engine._keeper
            acked, (_, over) = self.acked[told:], self.look()
            if keeper is not None and await asyncio.to_thread(keeper.flush, 5):
                told += len(acked)
                self.ledger.write("stored", acked, over)

    async def start(self) -> None:
        await self.engine.astart()
        try:
            with self.engine.runtime.lock:
                self.engine.runtime.core.check()
        except AssertionError as error:
            self.ledger.write("broken", f"check after restart: {error}")
        present, _ = self.look()
        self.ledger.write("state", present)

    async def until_killed(self) -> None:
        await self.start()
        await asyncio.gather(self.keep_flushing(), *(self.keep_dispatching(lane) for lane in range(4)))

    async def until_idle(self) -> None:
        """The last life: run all that is there, and stop as one does."""
        await self.start()
        async with asyncio.timeout(60):
            await self.engine.runtime.wait_idle()
        _, ended = self.look()
        report = await self.engine.astop()
        if report.lost:
            self.ledger.write("broken", f"a clean stop lost {report.lost} jobs")
        self.ledger.write("idle", ended)


def live(place: str, mode: str, ledger: Path, number: int, *, last: bool = False) -> None:
    """Run one life in this process."""
    life = Life(place, mode, ledger, number)
    asyncio.run(life.until_idle() if last else life.until_killed())
