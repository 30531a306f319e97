"""bull-board, as `examples/bull_board` starts it, shows what an engine has written."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.npm import install, why_no_node
from tests.redis.server import Server, why_not

EXAMPLE = Path(__file__).parents[2] / "examples" / "bull_board"

pytestmark = [pytest.mark.slow, pytest.mark.redis]


@contextmanager
def board(redis_url: str) -> Iterator[str]:
    """Its address."""
    packages = install(EXAMPLE, "bull-board")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(EXAMPLE / "board.mjs", folder)
        (Path(folder) / "node_modules").symlink_to(packages / "node_modules")
        environment = {**os.environ, "REDIS_URL": redis_url, "PORT": "0"}
        command = ["node", "--preserve-symlinks", str(Path(folder) / "board.mjs")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], 60)
            address = process.stdout.readline().decode().strip() if ready else ""
            assert address.startswith("http://"), f"bull-board did not start: {address!r}"
            yield address
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def shown(address: str, status: str) -> dict[str, Any]:
    """The queue with its jobs of one status, as the page asks for it."""
    with urllib.request.urlopen(
        f"{address}/api/queues?activeQueue=default&status={status}&page=1", timeout=30
    ) as answer:
        [queue] = json.load(answer)["queues"]
    return queue


def test_board_shows_counts_a_failed_job_and_the_schedule():
    """Also while the engine is gone: what it wrote is a BullMQ queue."""
    reason = why_not() or why_no_node()
    if reason:
        pytest.skip(reason)
    with Server() as server:
        environment = {**os.environ, "REDIS_URL": server.url}
        command = [sys.executable, "-W", "error", str(EXAMPLE / "invoices.py")]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "'completed': 4, 'delayed': 4, 'failed': 1" in ended.stdout
        with board(server.url) as address:
            queue = shown(address, "failed")
            counts = queue["counts"]
            assert (counts["completed"], counts["failed"], counts["delayed"], counts["waiting"]) == (4, 1, 4, 0)
            [failed] = queue["jobs"]
            assert (failed["id"], failed["name"], failed["data"]) == ("invoice:13", "invoices.send", {"number": 13})
            assert failed["failedReason"] == "no such customer"
            assert "no such customer" in "\n".join(failed["stacktrace"])
            delayed = {job["id"]: job for job in shown(address, "delayed")["jobs"]}
            assert {"invoice:20", "invoice:21", "invoice:22"} < set(delayed)
            [scheduled] = [job for id, job in delayed.items() if id.startswith("repeat:daily-report:")]
            assert scheduled["opts"]["repeat"]["pattern"] == "0 6 * * *"
            results = {job["id"]: job["returnValue"] for job in shown(address, "completed")["jobs"]}
            assert results["invoice:10"] == "invoice 10 sent"
