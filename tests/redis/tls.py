"""TLS in front of a server: the bundled binary is built without it, so a proxy of our own ends the encryption."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import Any, Self

import trustme

__all__ = ["TlsProxy"]


class TlsProxy:
    """
    A context manager around a listening socket that speaks TLS, and passes on what it hears to a plain port.

    Attributes:
        ca_path: Certificate of the authority that has signed the proxy's, for clients that check it.
    """

    def __init__(self, port: int, folder: Path) -> None:
        authority = trustme.CA()
        self.ca_path = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_path))
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1", "localhost").configure_cert(self._context)
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._served: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens, with what a client needs to trust it."""
        return f"rediss://localhost:{self.port}/0?ssl_ca_certs={self.ca_path}"

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        with contextlib.closing(writer), contextlib.closing(far_writer):
            ways = [_pump(reader, far_writer), _pump(far_reader, writer)]
            done, rest = await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
            for task in (*done, *rest):
                task.cancel()

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._served):
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
