"""Importing the package is free for those who do not use it yet."""

import subprocess
import sys

import pytest


def run_python(code: str) -> str:
    """What a fresh interpreter prints; -I keeps the caller's environment out."""
    return subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True).stdout


def modules_after(statement: str) -> set[str]:
    """The modules that `statement` loads in a fresh interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(run_python(code).split())


def test_import_loads_nothing_but_the_table_of_names():
    """`import inproc_jobs` loads itself and its version; neither asyncio nor a dependency, not even typing."""
    assert modules_after("import inproc_jobs") == {"inproc_jobs", "inproc_jobs._version"}


def test_errors_load_without_the_engine():
    """`from inproc_jobs import JobFailedError` in a module that only catches it does not load the engine."""
    loaded = modules_after("from inproc_jobs import JobFailedError")
    assert not loaded & {"asyncio", "msgspec", "redis", "structlog", "inproc_jobs.core", "inproc_jobs.app"}


def test_core_loads_without_io():
    """`import inproc_jobs.core.states` is free of asyncio, threads, logging and every client library."""
    loaded = modules_after("import inproc_jobs.core.states")
    assert not loaded & {"asyncio", "logging", "redis", "structlog", "threading"}


def test_the_engine_loads_without_redis():
    """Who keeps no snapshot in Redis does not pay for its client."""
    assert "redis" not in modules_after("from inproc_jobs import Engine, define_job")


@pytest.mark.slow
def test_import_costs_less_than_15_ms():
    """The best of seven fresh interpreters stays below the bound; the usual figure is around 1 ms."""
    code = "from time import perf_counter as now; start = now(); import inproc_jobs; print((now() - start) * 1000)"
    assert min(float(run_python(code)) for _ in range(7)) < 15
