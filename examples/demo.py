"""
A web shop at the end of the month: some two thousand real HTTP deliveries, a third of them sent twice or more.

Watch the column `duplicates ignored` grow while each invoice is sent once. The app (`month_end/app.py`) runs under
uvicorn in a process of its own; this process plays the recording `data/deliveries.jsonl` against it, waits until every
job has ended, and then judges by the ledger that the mail server, the help desk and the database have kept.

Run `make demo`, or `python examples/demo.py`. It takes about 25 seconds; on a busy machine it sends less and ends within
a minute. Exit code: 0 all was done once, 1 it was not, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from rich.console import Console

from month_end.checks import Check, judge, read_ledger
from month_end.client import Delivery, Tally, play, read_recording, status, unfinished
from month_end.screen import Screen, print_summary

HERE = Path(__file__).parent
SECONDS_TO_SEND, SECONDS_AT_MOST = 38.0, 50.0  # a healthy run takes 21 and 24


@contextmanager
def web_app(folder: Path) -> Iterator[str]:
    """Run the app in a process of its own, on a port that is free, and give its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # bound here: no port can be snatched in between
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "month_end.server", str(listener.fileno())],
                cwd=HERE,
                env=os.environ | {"DEMO_LEDGER": str(folder / "ledger.jsonl")},
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
    try:
        yield address
    finally:
        try:
            process.communicate(timeout=10)  # closes its standard input, which asks it to finish its jobs and end
        finally:
            process.kill()  # does nothing when it has ended
            process.wait()


async def deliver(address: str, deliveries: list[Delivery], tally: Tally, screen: Screen) -> tuple[list[Delivery], int]:
    """Play the recording and wait until every job has ended; what was sent, and the number of retries."""
    last_moment = time.monotonic() + SECONDS_TO_SEND
    # Idle connections are given up long before the server would close them.
    limits = httpx2.Limits(max_connections=50, keepalive_expiry=5)
    async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=20) as http:
        await status(http)  # answered once the app has started; the clock of the recording starts here
        playing = asyncio.create_task(play(http, deliveries, tally, last_moment=last_moment))
        try:
            while True:
                all_answered = playing.done()  # asked first: the status must be younger than the last job
                now = await status(http)
                screen.update(tally, now)
                if all_answered and (sent := playing.result()) and not unfinished(now):
                    return sent, int(now["retries"])
                await asyncio.sleep(0.1)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)


async def deliver_in_time(
    address: str, deliveries: list[Delivery], tally: Tally, screen: Screen
) -> tuple[list[Delivery], int]:
    """As `deliver`, but break off when it takes too long."""
    try:
        async with asyncio.timeout(SECONDS_AT_MOST):
            return await deliver(address, deliveries, tally, screen)
    except TimeoutError as error:
        raise TimeoutError(
            f"not done after {SECONDS_AT_MOST:.0f} s, with {tally.received:,} of {tally.total:,} deliveries answered"
        ) from error


def run(folder: Path, console: Console, seconds: float) -> int:
    """The whole demo; the exit code."""
    deliveries = read_recording(HERE / "data" / "deliveries.jsonl", seconds=seconds)
    tally = Tally(total=len(deliveries))
    console.print(f"The month end of a small shop: {tally.total:,} deliveries, many of them more than once.\n")
    try:
        with web_app(folder) as address, Screen(console, tally.total) as screen:
            sent, retries = asyncio.run(deliver_in_time(address, deliveries, tally, screen))
    except (httpx2.HTTPError, ExceptionGroup, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"The demo broke off: {error!r}. The last words of the server:", file=sys.stderr)
        print((folder / "server.log").read_text(errors="replace")[-2_000:], file=sys.stderr)
        return 1
    checks = judge(sent, read_ledger(folder / "ledger.jsonl"), retries)
    checks.append(Check("every delivery was accepted", [f"{tally.refused:,} were not"] if tally.refused else []))
    if len(sent) < len(deliveries):
        console.print(f"\nThis machine is busy: only {len(sent):,} of the deliveries could be sent in time.")
    print_summary(console, tally, retries, checks)
    return 0 if all(check.good for check in checks) else 1


def main() -> int:
    """Read the command line, run, clean up."""
    parser = argparse.ArgumentParser(description="Play a recorded month end against a real web app.")
    parser.add_argument("--seconds", type=float, default=60.0, help="play only the first seconds of the recording")
    arguments = parser.parse_args()
    for stop in (signal.SIGTERM, signal.SIGHUP):
        # A closed terminal and `kill` clean up as Ctrl-C does, whose handler asyncio replaces with its own in between.
        signal.signal(stop, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with tempfile.TemporaryDirectory(prefix="month-end-") as folder:
            return run(Path(folder), Console(highlight=False), arguments.seconds)
    except KeyboardInterrupt:
        print("\nStopped; the server is down as well.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
