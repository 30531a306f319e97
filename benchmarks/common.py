"""What the engine's workloads and the bare ones share, so that both do the same and are timed alike."""

import asyncio
import gc
import logging
import os
import random
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

Numbers = dict[str, float]


def payload(i: int) -> dict:
    return {"user_id": i, "kind": "welcome"}


def log_as_in_production() -> None:
    """Warnings are formatted and written, to where no disk is measured; what is below is switched off."""
    logging.basicConfig(
        level=logging.WARNING,
        stream=Path(os.devnull).open("w"),  # noqa: SIM115  # open until the process ends
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )


def numbers_by_cpu(numbers: Numbers) -> Numbers:
    """The same with what is known by CPU time (its name ends in `_by_cpu`) in place of what the clock said."""
    known = {name.removesuffix("_by_cpu"): value for name, value in numbers.items() if name.endswith("_by_cpu")}
    return {**numbers, **known}


class Gate:
    """Counts handler calls; opens with the last one and keeps its time."""

    __slots__ = ("at", "cpu_at", "left", "opened")

    def __init__(self, expected: int) -> None:
        self.left = expected
        self.opened = asyncio.Event()

    def hit(self) -> None:
        self.left -= 1
        if not self.left:
            self.at = perf_counter()
            self.cpu_at = process_time()
            self.opened.set()


class Stopwatch:
    """Times what follows; garbage of the time before is out of the way, unless a collection would disturb."""

    def __init__(self, *, collect: bool = True) -> None:
        if collect:
            gc.collect()
        self.cpu = process_time()
        self.wall = perf_counter()

    def rate(self, n: int, gate: Gate | None = None) -> Numbers:
        """
        Jobs per second until now, or until the gate opened, by the clock and by the time this process had a core.

        `running` is the share of the time in which it had one; well below 1, others were measured too.
        """
        wall = (perf_counter() if gate is None else gate.at) - self.wall
        cpu = (process_time() if gate is None else gate.cpu_at) - self.cpu
        return {"rate": n / wall, "rate_by_cpu": n / cpu, "running": cpu / wall}

    def cost_us(self, n: int) -> Numbers:
        """Microseconds per item until now, by both."""
        return {
            "cost_us": (perf_counter() - self.wall) / n * 1e6,
            "cost_us_by_cpu": (process_time() - self.cpu) / n * 1e6,
        }


def mean(rounds: list[Numbers]) -> Numbers:
    return {key: sum(numbers[key] for numbers in rounds) / len(rounds) for key in rounds[0]}


def resident_bytes() -> int:
    """Memory that this process holds; where /proc is missing, the most it has ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def random_delays_ms(n: int) -> array:
    """
    Delays spread evenly over the next hour.

    An array makes a new int whenever one is read, as a caller's own arithmetic would. Ints of a list would be shared
    with the records and their memory would not be counted.
    """
    draw = random.Random(1).random
    return array("q", (1 + int(draw() * 3_600_000) for _ in range(n)))


class CollectionWatch:
    """The longest collection of the garbage collector while it is open."""

    def __init__(self) -> None:
        self.longest = {"collection_ms": 0.0, "collection_ms_by_cpu": 0.0}
        self._since = (0.0, 0.0)
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict) -> None:
        now = (perf_counter(), process_time())
        if phase == "start":
            self._since = now
            return
        for name, before, after in zip(self.longest, self._since, now, strict=True):
            self.longest[name] = max(self.longest[name], (after - before) * 1000)

    def close(self) -> None:
        gc.callbacks.remove(self._on_collection)


async def watch_heartbeat(until: Callable[[], bool], interval_s: float = 0.001) -> Numbers:
    """The host's own coroutine: how many ms longer than it asked for a sleep took at worst."""
    worst = worst_cpu = 0.0
    while not until():
        before, cpu_before = perf_counter(), process_time()
        await asyncio.sleep(interval_s)
        worst = max(worst, perf_counter() - before - interval_s)
        worst_cpu = max(worst_cpu, process_time() - cpu_before - interval_s)
    return {"worst_ms": worst * 1000, "worst_ms_by_cpu": worst_cpu * 1000}


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[round(percent / 100 * (len(ordered) - 1))]


def latency(seconds: list[float]) -> Numbers:
    """Median and tail in microseconds; the first twentieth warms up."""
    warm = seconds[len(seconds) // 20 :]
    return {"p50_us": percentile(warm, 50) * 1e6, "p99_us": percentile(warm, 99) * 1e6}
