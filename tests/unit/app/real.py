"""What tests of hosts work with where time is real: patience with a limit, programs of their own, and what they leak."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PATIENCE_S", "Program", "posix", "program", "run_program", "seconds_of", "until", "until_sync"]

PATIENCE_S = 20.0
"""How long a test waits for what must happen. Only a broken engine makes a test wait that long."""
REPOSITORY = Path(__file__).parents[3]

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Give the loop turns until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what or condition}"
        await asyncio.sleep(0.001)


def until_sync(condition: Callable[[], object], what: str = "") -> None:
    """As `until`, in a thread without a loop."""
    pause = threading.Event()
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what or condition}"
        pause.wait(0.001)


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call took, and what it returned. A call that never returns fails the test by its timeout."""
    start = time.monotonic()
    answer = call()
    return time.monotonic() - start, answer


class Program:
    """A Python program in a process of its own."""

    def __init__(self, source: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=environment,
            start_new_session=True,
        )

    def expect(self, line: str) -> None:
        """Wait until it prints this line."""
        assert self.process.stdout is not None
        for printed in self.process.stdout:
            if printed.strip() == line:
                return
        raise AssertionError(f"never printed {line!r}; stderr: {self.end()[2]}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, the rest of its output, its errors."""
        try:
            out, errors = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._kill_group()
            out, errors = self.process.communicate()
            raise AssertionError(f"the program hangs; output: {out}; stderr: {errors}") from None
        return self.process.returncode, out, errors

    def _kill_group(self) -> None:
        """With the children that it may have forked, which hold its pipes."""
        if sys.platform == "win32":
            self.process.kill()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)


def program(source: str) -> Program:
    """Start a program."""
    return Program(source)


def run_program(source: str) -> tuple[int, str, str]:
    """Run a program to its end."""
    return Program(source).end()
