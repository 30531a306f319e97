"""What an import costs a program: whole interpreters are started, with and without it, in turns."""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

STATEMENTS = {
    "bare": "pass",
    "package": "import inproc_jobs",
    "engine": "from inproc_jobs import Engine, define_job",
}


def imports(n: int) -> dict[str, float]:
    """Medians in ms of `n` starts each; the two imports as their excess over the bare start beside them."""
    for statement in STATEMENTS.values():
        _start(statement)  # compiled files are written and cached
    bare, package, engine = [], [], []
    wall, cpu = perf_counter(), _cpu_of_children()
    for _ in range(n):
        bare.append(_start(STATEMENTS["bare"]))
        package.append(_start(STATEMENTS["package"]) - bare[-1])
        engine.append(_start(STATEMENTS["engine"]) - bare[-1])
    cpu = _cpu_of_children() - cpu
    return {
        "running": cpu / (perf_counter() - wall) if cpu else 1.0,  # 1: Windows counts no children
        "bare_ms": statistics.median(bare),
        "package_ms": statistics.median(package),
        "engine_ms": statistics.median(engine),
    }


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _start(statement: str) -> float:
    before = perf_counter()
    # -I: what the caller's environment says about Python must not be measured.
    subprocess.run([sys.executable, "-I", "-c", statement], check=True)
    return (perf_counter() - before) * 1000


WORKLOADS: dict[str, Callable[..., dict[str, float]]] = {"imports": imports}
