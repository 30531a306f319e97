"""The npm package `bullmq`, versions 5 and 6, in a Node process of our own."""

from __future__ import annotations

import json
import select
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.npm import install

__all__ = ["NodeBullMQ"]

NODE = Path(__file__).parent / "node"
ANSWER_TIMEOUT_S = 60


class NodeBullMQ:
    """A context manager around the process; each method is one request to `node/bullmq.mjs`."""

    def __init__(self, port: int) -> None:
        command = ["node", str(NODE / "bullmq.mjs"), str(install(NODE, "wire")), str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, door: str, **request: Any) -> Any:
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        into.write(json.dumps({"door": door, **request}).encode() + b"\n")
        into.flush()
        ready, _, _ = select.select([out], [], [], ANSWER_TIMEOUT_S)
        line = out.readline() if ready else b""
        assert line, f"the real BullMQ did not answer {door}"
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def start(self, version: int, queue: str = "mail", worker: str = "w", **options: Any) -> None:
        """Start a worker."""
        self._ask("start", version=version, queue=queue, worker=worker, options=options)

    def log(self, worker: str = "w") -> dict[str, Any]:
        """What a worker has done: `ran`, `failed`, `errors`."""
        answer: dict[str, Any] = self._ask("log", worker=worker)
        return answer

    def stop(self, worker: str = "w") -> dict[str, Any]:
        """End a worker at once."""
        answer: dict[str, Any] = self._ask("stop", worker=worker)
        return answer

    def call(self, version: int, method: str, *args: Any, queue: str = "mail") -> Any:
        """Call a method of a Queue."""
        return self._ask("call", version=version, queue=queue, method=method, args=args)

    def job(self, version: int, id: str, method: str = "", *args: Any, queue: str = "mail") -> Any:
        """Read a job, or call one of its methods."""
        return self._ask("job", version=version, queue=queue, id=id, method=method, args=args)

    def flow(self, version: int, tree: dict[str, Any]) -> None:
        """Add a flow."""
        self._ask("flow", version=version, tree=tree)
