"""Every example runs as a stranger would run it, ends by itself, and prints what its top comment announces."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(*command: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run an example as a script, its output piped and every warning an error; it must end as said."""
    # The fallback of NO_COLOR and friends is what a pipe gets; a developer's FORCE_COLOR must not leak in.
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert ended.returncode == exit_code, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    assert "\x1b" not in ended.stdout + ended.stderr, "escape codes in a pipe"
    assert "Traceback" not in ended.stderr or "Error: " in ended.stderr
    return ended


def test_webhook_fastapi() -> None:
    """Three deliveries, one job: it is retried once, and the delivery after its end is a duplicate too."""
    assert run("webhook_fastapi.py").stdout.splitlines() == [
        "{'job': 'receipt:42', 'duplicate': False}",
        "{'job': 'receipt:42', 'duplicate': True}",
        "{'state': 'completed', 'attempts': 2, 'result': 'receipt for invoice 42 sent'}",
        "{'job': 'receipt:42', 'duplicate': True}",
    ]


def test_flask_app() -> None:
    """The engine runs beside Flask in a thread, and the process ends although nobody stops it by hand."""
    assert run("flask_app.py").stdout.splitlines() == [
        "{'duplicate': False, 'job': 'report:2026'}",
        "{'duplicate': True, 'job': 'report:2026'}",
        "{'progress': {'month': 12}, 'report': {'pages': 12, 'year': 2026}, 'state': 'completed'}",
    ]


def test_several_workers() -> None:
    """One owner, one refused, and a spare that runs what the killed owner has left."""
    assert run("several_workers.py").stdout.splitlines() == [
        "the first worker owns the jobs",
        "the second worker was refused: process number one owns them",
        "the spare waits",
        "the first worker is killed; the spare took over",
        "invoice 42 was sent",
    ]


def test_debounce() -> None:
    """Five triggers make one run with the first payload and the first deadline; afterwards the id is free."""
    assert run("debounce.py").stdout.splitlines() == [
        "edit A: created, delayed",
        "edit B: duplicate, delayed",
        "edit C: duplicate, delayed",
        "edit D: duplicate, delayed",
        "edit E: duplicate, delayed",
        "the deadline did not move",
        "reindexing shop lisbon, asked for by edit A",
        "edit F: created, delayed",
        "reindexing shop lisbon, asked for by edit F",
    ]


def test_cli_tool_fetches_everything() -> None:
    """300 pages of which every seventh fails at first: all are fetched, with one retry for each of those."""
    ended = run("cli_tool.py")
    assert ended.stdout.splitlines()[-1] == "300 of 300 pages fetched, 344 kB, 42 retries"


def test_cli_tool_reports_what_is_missing() -> None:
    """Pages that do not exist are named, are not retried, and make the exit code 1."""
    ended = run("cli_tool.py", "--count", "20", "--missing", "3", exit_code=1)
    assert ended.stdout.splitlines()[-1] == "17 of 20 pages fetched, 17 kB, 2 retries"
    missing = [re.search(r"page/(\d+) does not exist", line) for line in ended.stderr.splitlines()]
    assert sorted(match[1] for match in missing if match) == ["0", "1", "2"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send to one process")
def test_cli_tool_ends_on_ctrl_c() -> None:
    """Ctrl-C in the middle: the tool ends within seconds, says how far it came, and exits with 130."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "cli_tool.py"), "--count", "5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tool:
        with pytest.raises(subprocess.TimeoutExpired):
            tool.wait(3)  # 5,000 pages take more than ten seconds
        tool.send_signal(signal.SIGINT)
        try:
            out, err = tool.communicate(timeout=10)
        finally:
            tool.kill()
    assert tool.returncode == 130, (out, err)
    assert re.fullmatch(r"stopped: \d+ of 5000 pages fetched", err.splitlines()[-1])
    assert "Traceback" not in err


def test_every_example_is_listed_and_tested() -> None:
    """A new example goes into the README of the examples, and gets a test here or in test_demo.py."""
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert f'"{example.name}"' in tests, f"{example.name} has no test"
        assert example.name in readme, f"{example.name} is not in examples/README.md"
