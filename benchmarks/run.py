"""
Measure the engine beside bare asyncio, and say which budgets it meets: `make bench`.

Each number comes from a process of its own. A repetition runs the engine and the bare reference one right after the
other, in an order that alternates, so that a slow machine slows both; what is printed is the median over the
repetitions, with the lowest and highest. What is judged is a ratio wherever a rate would tell more of the machine.
A run that had to share its core is made again. Where that does not help either, its CPU time counts instead of the
clock's, and the last line says so.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import numbers_by_cpu
from figures import Figure, Group, Reading, Results, Run, groups

import inproc_jobs

MEASURE = Path(__file__).with_name("measure.py")
BUSY_BELOW = 0.9
"""A run that had a core for a smaller share of its time than this was measured beside something else."""
TRIES = 2
"""How often such a run is made in the hope of a quiet moment."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    chosen = [group for group in groups(quick=options.quick) if not options.only or group.name in options.only]
    machine = describe_machine()
    print(", ".join(str(value) for value in machine.values() if value))
    if options.quick:
        print("quick: small sizes, once each; too rough to judge a budget by")
    print()
    layout = MARKDOWN if options.markdown else COLUMNS
    print(layout.head)
    rows, disturbed, made = [], 0, 0
    for group in chosen:
        repetitions = options.repetitions or (1 if options.quick else group.repetitions)
        tries = 1 if options.quick else TRIES
        results = [measure_group(group, tries, backwards=bool(i % 2)) for i in range(repetitions)]
        calm = [once for once in results if not is_disturbed(once)]
        made += repetitions
        disturbed += repetitions - len(calm)
        for figure in group.figures:
            # What was measured beside somebody else's work counts only where there is too little else for a median.
            row = summarize(group, figure, calm if len(calm) > 2 else results, judge=not options.quick)
            rows.append(row)
            print(layout.line(row), flush=True)
    print()
    if not options.quick:
        judged = [row["met"] for row in rows if row["met"] is not None]
        print(f"{sum(judged)} of {len(judged)} budgets met")
    if disturbed:
        print(
            f"{disturbed} of {made} repetitions had to share their core with other programs and were timed by CPU time"
        )
    if options.json is not None:
        report = {"machine": machine, "quick": options.quick, "disturbed": disturbed, "figures": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the engine beside bare asyncio.")
    names = [group.name for group in groups(quick=True)]
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: seconds instead of minutes")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"only this; may be repeated: {', '.join(names)}"
    )
    parser.add_argument("--repetitions", type=int, help="instead of 3 or 5")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/performance.md has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    return parser.parse_args(arguments)


def describe_machine() -> dict[str, Any]:
    return {
        "package": f"inproc_jobs {inproc_jobs.__version__}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": f"{os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# --- measuring --------------------------------------------------------------------------------------------------------


def measure_group(group: Group, tries: int, *, backwards: bool) -> Results:
    names = list(group.runs)
    return {name: measure(group.runs[name], tries) for name in (reversed(names) if backwards else names)}


def is_disturbed(results: Results) -> bool:
    return any(numbers.get("running", 1.0) < BUSY_BELOW for numbers in results.values())


def measure(run: Run, tries: int) -> dict[str, float]:
    """
    The numbers of the first process that was not disturbed.

    If all were, those of the least disturbed one, by the time in which it had a core. On a quiet machine the two are the
    same for what never waits; where it might wait, only the clock would notice, so the clock goes first.
    """
    made = []
    while len(made) < tries:
        made.append(measure_once(run))
        if made[-1].get("running", 1.0) >= BUSY_BELOW:
            return made[-1]
    return numbers_by_cpu(max(made, key=lambda numbers: numbers.get("running", 1.0)))


def measure_once(run: Run) -> dict[str, float]:
    """The numbers of one process; one that fails ends the benchmark with its own traceback."""
    command = [sys.executable, str(MEASURE), run.module, run.workload, json.dumps(run.arguments)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"benchmark {run.module} {run.workload} failed")
    return json.loads(ended.stdout)


# --- printing ---------------------------------------------------------------------------------------------------------


def summarize(group: Group, figure: Figure, results: Sequence[Results], *, judge: bool) -> dict[str, Any]:
    """One line of the table as plain data."""

    def median(reading: Reading | None) -> float | None:
        return None if reading is None else statistics.median(reading(once) for once in results)

    values = [figure.judged(once) for once in results]
    value = statistics.median(values)
    return {
        "group": group.name,
        "title": figure.title,
        "unit": figure.unit,
        "engine": median(figure.engine),
        "bare": median(figure.bare),
        "ratio": median(figure.ratio),
        "also": {name: median(reading) for name, reading in figure.also.items()},
        "lowest": min(values),
        "highest": max(values),
        "values": values,
        "budget": figure.budget,
        "budget_is": "least" if figure.higher_is_better else "most",
        "met": figure.met(value) if judge else None,
    }


@dataclass(frozen=True)
class Layout:
    """How the table looks: its head, and a line for a row."""

    head: str
    line: Callable[[dict[str, Any]], str]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    unit = row["unit"]
    budget = "" if row["budget"] is None else f"{'>=' if row['budget_is'] == 'least' else '<='} {_short(row['budget'])}"
    return (
        row["title"],
        f"{_short(row['engine'])} {unit}",
        "" if row["bare"] is None else f"{_short(row['bare'])} {unit}",
        "" if row["ratio"] is None else _short(row["ratio"]),
        f"{_short(row['lowest'])} .. {_short(row['highest'])}",
        budget,
        {True: "met", False: "MISSED", None: ""}[row["met"]],
    )


def _in_columns(cells: Sequence[str]) -> str:
    widths = (45, 17, 17, 7, 20, 9, 6)
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _lines_in_columns(row: dict[str, Any]) -> str:
    also = [f"{'':<45}{_short(value)} {name}" for name, value in row["also"].items()]
    return "\n".join([_in_columns(_cells(row)), *also])


def _line_of_markdown(row: dict[str, Any]) -> str:
    title, *cells = _cells(row)
    also = "".join(f" ({_short(value)} {name})" for name, value in row["also"].items())
    return f"| {' | '.join([title + also, *cells])} |"


HEAD = ("", "engine", "bare", "ratio", "lowest .. highest", "budget", "")
COLUMNS = Layout(_in_columns(HEAD), _lines_in_columns)
MARKDOWN = Layout(f"| {' | '.join(HEAD)} |\n{'| --- ' * len(HEAD)}|", _line_of_markdown)


def _short(value: float) -> str:
    """Three digits that matter."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1g}"


if __name__ == "__main__":
    main()
