"""
What is measured, at which sizes, and what it should come to.

A group is a few runs that belong together: the engine and the bare reference beside it, or one workload at several
sizes. A figure is one printed line, computed from the numbers of one repetition of its group.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Results = Mapping[str, Mapping[str, float]]
"""Numbers by the name of the run that gave them."""
Reading = Callable[[Results], float]


@dataclass(frozen=True)
class Run:
    """One process: a workload of `engine`, `bare` or `startup` with its arguments."""

    module: str
    workload: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """
    One line of the table.

    Attributes:
        engine, bare: What was measured, and its counterpart.
        unit: Of both.
        ratio: What is judged instead of the engine's own number, if anything is.
        budget: Bound on the judged number; None where there is none.
        higher_is_better: Whether the budget is a least or a most.
        also: More numbers of the engine, by the name they are printed with.
    """

    title: str
    unit: str
    engine: Reading
    bare: Reading | None = None
    ratio: Reading | None = None
    budget: float | None = None
    higher_is_better: bool = True
    also: Mapping[str, Reading] = field(default_factory=dict)

    def judged(self, results: Results) -> float:
        return (self.ratio or self.engine)(results)

    def met(self, value: float) -> bool | None:
        if self.budget is None:
            return None
        return value >= self.budget if self.higher_is_better else value <= self.budget


@dataclass(frozen=True)
class Group:
    """Runs that are repeated together, `repetitions` times at most, and what is read from them."""

    name: str
    runs: Mapping[str, Run]
    figures: tuple[Figure, ...]
    repetitions: int


def of(run: str, key: str) -> Reading:
    return lambda results: results[run][key]


def quotient(above: Reading, below: Reading) -> Reading:
    return lambda results: above(results) / below(results)


def _pair(workload: str, **arguments: Any) -> dict[str, Run]:
    return {side: Run(side, workload, arguments) for side in ("engine", "bare")}


def _rates(title: str, budget: float | None) -> Figure:
    engine, bare = of("engine", "rate"), of("bare", "rate")
    return Figure(title, "jobs/s", engine, bare, quotient(engine, bare), budget)


def _end_to_end(concurrency: int, n: int, repetitions: int) -> Group:
    return Group(
        f"end-to-end-{concurrency}",
        _pair("end_to_end", n=n, concurrency=concurrency),
        (_rates(f"end to end, concurrency {concurrency}", 0.12),),
        repetitions,
    )


def _delayed(sizes: tuple[int, int, int], repetitions: int) -> Group:
    # A small set is filled in a moment: several of them are averaged.
    rounds = (10, 2, 1)
    runs = {
        f"{side} {n}": Run(side, "delayed", {"n": n, "more": max(n // 50, min(n // 5, 10_000)), "rounds": count})
        for n, count in zip(sizes, rounds, strict=True)
        for side in ("engine", "bare")
    }
    small, _, large = sizes
    cost = quotient(of(f"engine {large}", "cost_us"), of(f"engine {small}", "cost_us"))
    held = f"engine {large}"
    rates = tuple(
        Figure(
            f"delayed inserts, {n:,} put in",
            "jobs/s",
            of(f"engine {n}", "rate"),
            of(f"bare {n}", "rate"),
            quotient(of(f"engine {n}", "rate"), of(f"bare {n}", "rate")),
            also={"us per insert on top of them": of(f"engine {n}", "cost_us")},
        )
        for n in sizes
    )
    return Group(
        "delayed",
        runs,
        (
            *rates,
            Figure(
                f"cost of an insert at {large:,} / {small:,}",
                "x",
                cost,
                quotient(of(f"bare {large}", "cost_us"), of(f"bare {small}", "cost_us")),
                budget=2.5,
                higher_is_better=False,
            ),
            Figure("memory per delayed job", "bytes", of(held, "bytes"), budget=450, higher_is_better=False),
            Figure(
                f"longest pause, {large:,} put in",
                "ms",
                of(held, "pause_ms"),
                budget=50,
                higher_is_better=False,
                also={"ms longest garbage collection": of(held, "collection_ms")},
            ),
        ),
        repetitions,
    )


def groups(*, quick: bool) -> tuple[Group, ...]:
    """All groups in the order in which they are printed; `quick` has sizes for a look, not for a verdict."""

    def size(full: int) -> int:
        return full // 10 if quick else full

    return (
        Group("dispatch", _pair("dispatch", n=size(100_000)), (_rates("dispatch alone", 0.20),), 5),
        _end_to_end(1, size(100_000), 5),
        _end_to_end(50, size(100_000), 5),
        Group("duplicate", _pair("duplicate", n=size(100_000)), (_rates("duplicate dispatch", 0.10),), 5),
        _delayed((1_000, 10_000, 50_000) if quick else (10_000, 100_000, 1_000_000), 3),
        Group(
            "latency",
            _pair("start_latency", n=size(5_000)),
            (
                Figure(
                    "dispatch to handler start, p50",
                    "us",
                    of("engine", "p50_us"),
                    of("bare", "p50_us"),
                    budget=25,
                    higher_is_better=False,
                ),
                Figure("dispatch to handler start, p99", "us", of("engine", "p99_us"), of("bare", "p99_us")),
            ),
            5,
        ),
        Group(
            "heartbeat",
            _pair("heartbeat", n=size(100_000)),
            (
                Figure(
                    f"heartbeat's longest wait, {size(100_000):,} ready",
                    "ms",
                    of("engine", "worst_ms"),
                    of("bare", "worst_ms"),
                    budget=25,
                    higher_is_better=False,
                    also={"ms in an idle loop": of("engine", "idle_ms")},
                ),
            ),
            5,
        ),
        Group(
            "threads",
            _pair("threads", n=size(10_000), concurrency=10),
            (_rates("plain functions in threads, concurrency 10", None),),
            5,
        ),
        Group(
            "retries",
            _pair("retries", n=size(10_000), concurrency=10),
            (_rates("two failures each, concurrency 10", None),),
            5,
        ),
        Group(
            "imports",
            {"starts": Run("startup", "imports", {"n": 3 if quick else 15})},
            (
                Figure(
                    "import inproc_jobs",
                    "ms",
                    of("starts", "package_ms"),
                    budget=15,
                    higher_is_better=False,
                    also={"ms bare Python": of("starts", "bare_ms")},
                ),
                Figure(
                    "import Engine, define_job",
                    "ms",
                    of("starts", "engine_ms"),
                    budget=100,
                    higher_is_better=False,
                ),
            ),
            3,
        ),
    )
