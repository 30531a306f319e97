"""What an import costs a program: whole interpreters are started, with and without it, in turns."""

import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

try:
    import resource
except ImportError:  # Windows
    resource = None

STATEMENTS = {
    "bare": "pass",
    "package": "import inproc_jobs",
    "engine": "from inproc_jobs import Engine, define_job",
}


def imports(n: int) -> dict[str, float]:
    """Medians in ms of `n` starts each; the two imports as their excess over the bare start beside them."""
    for statement in STATEMENTS.values():
        _start(statement)  # compiled files are written and cached
    starts = [{name: _start(statement) for name, statement in STATEMENTS.items()} for _ in range(n)]

    def median(name: str, clock: int) -> float:
        above = 0 if name == "bare" else 1
        return statistics.median(start[name][clock] - above * start["bare"][clock] for start in starts) * 1000

    wall, cpu = (sum(took[clock] for start in starts for took in start.values()) for clock in (WALL, CPU))
    numbers = {f"{name}_ms": median(name, WALL) for name in STATEMENTS}
    if not cpu:
        return numbers
    return {**numbers, **{f"{name}_ms_by_cpu": median(name, CPU) for name in STATEMENTS}, "running": cpu / wall}


WALL, CPU = 0, 1


def _start(statement: str) -> tuple[float, float]:
    """Seconds that a start took, by the clock and of CPU time."""
    before, cpu_before = perf_counter(), _cpu_of_children()
    # -I: what the caller's environment says about Python must not be measured.
    subprocess.run([sys.executable, "-I", "-c", statement], check=True)
    return perf_counter() - before, _cpu_of_children() - cpu_before


def _cpu_of_children() -> float:
    if resource is None:
        return 0.0
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


WORKLOADS: dict[str, Callable[..., dict[str, float]]] = {"imports": imports}
