"""Workloads with a snapshot, and the same jobs on BullMQ from PyPI. `snapshots.py` runs them."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from common import Gate, Numbers, Stopwatch, payload, percentile, random_delays_ms, resident_bytes

from inproc_jobs import Engine, RedisSnapshot, SqliteSnapshot, define_job

QUEUE = "default"
ON_THE_WAY = 1_000


def snapshot(where: str | None, mode: str, every: str = "1s") -> Any:
    """A snapshot in what `where` names: a URL, a path, or None for no snapshot."""
    if where is None:
        return None
    if "://" in where:
        return RedisSnapshot(where, mode=mode, every=every, lease="60s", timeout="60s")
    return SqliteSnapshot(where, mode=mode, every=every, timeout="60s")


async def end_to_end(
    where: str | None, mode: str, n: int, dispatchers: int, concurrency: int, on_the_way: int = ON_THE_WAY
) -> Numbers:
    """
    Many dispatchers, each one job after the other, while the engine runs them.

    At most `on_the_way` jobs have been dispatched and not yet handled. ON_THE_WAY is a busy service that keeps up; with
    `n` a backlog grows, all of which a snapshot has to write. The time ends with the last run, or with the last
    acknowledgement where that is later.
    """
    gate, room = Gate(n), asyncio.Semaphore(on_the_way)

    @define_job("noop")
    async def noop(_data: dict) -> None:
        room.release()
        gate.hit()

    async def dispatch(first: int) -> None:
        for i in range(first, n, dispatchers):
            await room.acquire()
            await noop.dispatch(payload(i))
            await asyncio.sleep(0)

    async with Engine(concurrency=concurrency, snapshot=snapshot(where, mode)) as engine:
        watch = Stopwatch()
        await asyncio.gather(*(dispatch(first) for first in range(dispatchers)))
        await gate.opened.wait()
        numbers = watch.rate(n)
        await engine.runtime.wait_idle()
        left = {state: count for state, count in engine.queue(QUEUE).counts().items() if state != "completed" and count}
        if left:
            raise AssertionError(f"all jobs should be completed; there are {left}")
    return numbers


async def pypi(url: str, n: int, dispatchers: int, concurrency: int, bulk: int) -> Numbers:
    """The same jobs on BullMQ's Python package; `bulk` is how many a producer adds in one call, 0 for one by one."""
    from bullmq import Queue, Worker

    gate = Gate(n)

    async def process(_job: Any, _token: str) -> None:
        gate.hit()

    opts = {"removeOnComplete": True}
    queue = Queue("peer", {"connection": url})
    worker = Worker("peer", process, {"connection": url, "concurrency": concurrency})

    async def dispatch(first: int) -> None:
        for i in range(first, n, dispatchers):
            await queue.add("noop", payload(i), opts)

    async def dispatch_in_bulk() -> None:
        for first in range(0, n, bulk):
            some = range(first, min(first + bulk, n))
            await queue.addBulk([{"name": "noop", "data": payload(i), "opts": opts} for i in some])

    watch = Stopwatch()
    if bulk:
        await dispatch_in_bulk()
    else:
        await asyncio.gather(*(dispatch(first) for first in range(dispatchers)))
    await gate.opened.wait()
    numbers = watch.rate(n)
    await worker.close(force=True)
    await queue.close()
    return numbers


async def first_write(where: str, n: int) -> Numbers:
    """The longest pause of the loop while `n` delayed jobs are written for the first time, and how long that takes."""

    @define_job("noop")
    async def noop(_data: dict) -> None:
        pass

    delays = random_delays_ms(n)
    # An interval that never comes: the write begins when it is asked for.
    async with Engine(snapshot=snapshot(where, "periodic", every="1d")) as engine:
        for i in range(n):
            await noop.dispatch(payload(i), delay=86_400_000 + delays[i])
            if not i % 100:
                await asyncio.sleep(0)
        gc.collect()
        idle_until = perf_counter() + 1
        idle = await _pauses(lambda: perf_counter() > idle_until)
        written = threading.Event()
        writing = threading.Thread(target=_write, args=(engine, written))
        cpu, since = process_time(), perf_counter()
        writing.start()
        pauses = await _pauses(written.is_set)
        seconds, cpu_s = perf_counter() - since, process_time() - cpu
        writing.join()
        left = engine.health()["unsaved_changes"]
        if left:
            raise AssertionError(f"{left} jobs were not written")
    return {
        "pause_ms": max(pauses) * 1000,
        "p99_ms": percentile(pauses, 99) * 1000,
        "idle_ms": max(idle) * 1000,
        "seconds": seconds,
        "running": cpu_s / seconds,
    }


def _write(engine: Engine, written: threading.Event) -> None:
    try:
        engine._keeper.flush(600)  # noqa: SLF001  # what the interval does
    finally:
        written.set()


async def _pauses(until: Callable[[], bool], interval_s: float = 0.001) -> list[float]:
    """How much longer than it asked for each sleep of the host's own coroutine took."""
    pauses = []
    while not until():
        before = perf_counter()
        await asyncio.sleep(interval_s)
        pauses.append(perf_counter() - before - interval_s)
    return pauses


async def load(where: str, n: int) -> Numbers:
    """Start on what `first_write` has left: how long it takes, the most memory it takes, and what stays of that."""

    @define_job("noop")
    async def noop(_data: dict) -> None:
        pass

    gc.collect()
    held = resident_bytes()
    started = asyncio.Event()
    watch = asyncio.create_task(_pauses(started.is_set))
    await asyncio.sleep(0.05)
    since = perf_counter()
    async with Engine(snapshot=snapshot(where, "periodic")) as engine:
        seconds = perf_counter() - since
        started.set()
        pauses = await watch
        count = engine.queue(QUEUE).counts()["delayed"]
        if count != n:
            raise AssertionError(f"{n} jobs should be delayed; there are {count}")
        stays = resident_bytes() - held
        peak = _peak_bytes()
    return {
        "seconds": seconds,
        "peak_mb": peak / 1e6,
        "peak_bytes": (peak - held) / n,
        "bytes": stays / n,
        "pause_ms": max(pauses) * 1000,
    }


def _peak_bytes() -> int:
    """The most memory that this process has held."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resident_bytes()


WORKLOADS: dict[str, Callable[..., Awaitable[Numbers]]] = {
    function.__name__: function for function in (end_to_end, pypi, first_write, load)
}
