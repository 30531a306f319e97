"""
A command-line tool: fetch a few hundred pages from a flaky server, with retries, a progress bar and an exit code.

Watch the retries: one answer in seven is an error the first time, and still every page arrives. A page that is
missing for good is not asked for twice. Press Ctrl-C in the middle: the tool ends at once and says what it has.

    python examples/cli_tool.py                  exit code 0: all fetched
    python examples/cli_tool.py --missing 3      exit code 1: the three are named
    Ctrl-C                                       exit code 130
"""

import argparse
import logging
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from inproc_jobs import Engine, UnrecoverableError, define_job


@define_job("pages.fetch", attempts=4, backoff={"type": "exponential", "delay": 100, "jitter": 0.5}, timeout="30s")
def fetch(url: str) -> int:
    """Fetch one page; the number of bytes. A plain function: it runs in a thread, twenty at a time."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return len(response.read())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise UnrecoverableError(f"{url} does not exist") from error
        raise  # 503 and the like: the next attempt may succeed


def run(base_url: str, count: int) -> int:
    """Fetch all pages; the exit code."""
    logging.getLogger("inproc_jobs").setLevel(logging.CRITICAL)  # the tool itself tells what failed
    engine = Engine(concurrency=20)
    sizes: list[int] = []
    engine.on("completed", lambda event: sizes.append(event["returnvalue"]))
    for number in range(count):
        fetch.dispatch_sync(f"{base_url}/page/{number}", job_id=f"page:{number}")
    try:
        summary = engine.run_until_idle(progress=True)
    except KeyboardInterrupt:
        print(f"stopped: {len(sizes)} of {count} pages fetched", file=sys.stderr)
        return 130
    print(f"{summary.completed} of {count} pages fetched, {sum(sizes) // 1_000} kB, {summary.retried} retries")
    for job in engine.queue("default").jobs(["failed"], ascending=True):
        print(f"  {job.failed_reason}", file=sys.stderr)
    return 0 if summary.ok else 1


class FlakyServer(ThreadingHTTPServer):
    """Stands in for the internet. Every seventh page answers 503 the first time, and some pages do not exist."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, missing: int) -> None:
        super().__init__(("127.0.0.1", 0), FlakyAnswers)
        self.missing = missing
        self.asked: Counter[int] = Counter()


class FlakyAnswers(BaseHTTPRequestHandler):
    server: FlakyServer

    def do_GET(self) -> None:
        threading.Event().wait(0.05)  # a server far away
        number = int(self.path.rpartition("/")[2])
        self.server.asked[number] += 1
        status = 404 if number < self.server.missing else 200
        if number % 7 == 6 and self.server.asked[number] == 1:
            status = 503
        body = b"x" * (1_000 + number)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the screen belongs to the tool."""


@contextmanager
def flaky_server(missing: int) -> Iterator[str]:
    """Run the server in a thread for a while, and give its address."""
    with FlakyServer(missing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch many pages from a flaky server.")
    parser.add_argument("--count", type=int, default=300, help="how many pages (default: 300)")
    parser.add_argument("--missing", type=int, default=0, help="how many of them do not exist (default: 0)")
    options = parser.parse_args()
    with flaky_server(options.missing) as base_url:
        return run(base_url, options.count)


if __name__ == "__main__":
    sys.exit(main())
