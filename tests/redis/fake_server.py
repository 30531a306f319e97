"""A server that gives one answer to everything, for states that a real one is in too briefly."""

from __future__ import annotations

import socket
import threading
from typing import Self

__all__ = ["FakeServer"]


class FakeServer:
    """
    A context manager around a listening socket.

    Args:
        answer: What follows the connection's own greeting, as it goes over the wire; empty closes the connection.
    """

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while received := connection.recv(1 << 20):
                greetings = received.upper().count(b"SETINFO")
                if greetings:
                    connection.sendall(b"+OK\r\n" * greetings)
                elif self._answer:
                    connection.sendall(self._answer)
                else:
                    connection.close()
                    return
        except OSError:
            return

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        for thread in self._threads:
            thread.join(5)
