"""
The server process of the demo: `python -m month_end.server FD`, where FD is a socket that listens already.

It serves as long as its standard input stays open, so it ends with the demo, however the demo ends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

import uvicorn

from month_end.app import app


def main() -> None:
    """Serve until the demo closes our standard input, or a signal comes."""
    # Idle connections are closed by the client, which gives them up sooner: closed by the server, one could go just when
    # the client sends the next request on it.
    config = uvicorn.Config(app, log_level="warning", timeout_keep_alive=75, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)

    def wait_for_the_end() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing is ever written: this returns when the pipe is closed
        server.should_exit = True

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
