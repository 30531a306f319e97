"""
Kill a process that dispatches and works, again and again, and look whether any promise was broken.

    python -m tests.crash --kills 1000 --store sqlite --mode write_through

Each life is a fork of this process, so that starting one takes milliseconds. With --store redis a server of our own is
killed and started again in some of the rounds as well.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.crash.driver import EVERY_S, live
from tests.crash.ledger import Audit
from tests.redis.server import Server


def main() -> int:
    """Exit code 0: no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--store", choices=("sqlite", "redis"), default="sqlite")
    parser.add_argument("--mode", choices=("periodic", "write_through"), default="write_through")
    parser.add_argument("--life", type=float, default=0.6, help="seconds that most lives last at most")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="inproc-jobs-crash-") as folder:
        if options.store == "sqlite":
            return Rounds(Path(folder), f"{folder}/jobs.db", options.mode, seed, None, options.life).play(options.kills)
        with Server(appendonly="yes", appendfsync="always") as server:
            return Rounds(Path(folder), server.url, options.mode, seed, server, options.life).play(options.kills)


class Rounds:
    """Lives, one after the other, on one store."""

    def __init__(self, folder: Path, place: str, mode: str, seed: int, server: Server | None, life_s: float) -> None:
        self.ledger = folder / "ledger"
        self.place = place
        self.mode = mode
        self.seed = seed
        self.server = server
        self.life_s = life_s
        self.random = random.Random(seed)
        self.audit = Audit(self.ledger, mode, grace_s=EVERY_S + 1.5)
        self.server_kills = 0

    def play(self, kills: int) -> int:
        started = time.monotonic()
        for number in range(kills):
            self.one_life(number)
            if self.audit.broken:
                break
        else:
            self.last_life(kills)
        return self.report(time.monotonic() - started)

    def fork(self, number: int, *, last: bool = False) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            # What the engine says about trouble that we make is expected; what goes wrong is in the ledger.
            code = 1
            try:
                with open(os.devnull, "w") as nothing:  # noqa: PTH123
                    os.dup2(nothing.fileno(), 1)
                    if not last:
                        os.dup2(nothing.fileno(), 2)
                live(self.place, self.mode, self.ledger, number, last=last)
                code = 0
            except BaseException:  # nothing of the parent may go on in here
                traceback.print_exc()
            finally:
                os._exit(code)
        return pid

    def one_life(self, number: int) -> None:
        pid = self.fork(number)
        if self.random.random() < 0.8:
            self.await_start()
        # Long lives now and then: what is older than the interval must be there.
        longest_s = self.life_s if number % 10 else 5 * self.life_s
        time.sleep(self.random.random() * longest_s)
        trouble_at = None
        if self.server is not None and self.random.random() < 0.2:
            self.server_kills += 1
            trouble_at = time.time()
            self.server.kill()
            time.sleep(self.random.random() * 0.1)
            if self.random.random() < 0.5:
                self.server.start()
                time.sleep(self.random.random() * self.life_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.audit.note_kill(trouble_at)
        if self.server is not None and self.server._process is None:
            self.server.start()

    def await_start(self) -> None:
        """Else most lives of a store that has grown would end while it is read."""
        before, give_up = self.audit.restarts, time.monotonic() + 30
        while self.audit.restarts == before and time.monotonic() < give_up:
            time.sleep(0.005)
            self.audit.read()

    def last_life(self, number: int) -> None:
        pid = self.fork(number, last=True)
        _, status = os.waitpid(pid, 0)
        self.audit.read()
        if status != 0:
            self.audit.broken.append(f"the last life ended with {status}")

    def report(self, seconds: float) -> int:
        audit = self.audit
        print(  # noqa: T201
            f"{audit.lives} kills ({self.server_kills} of the server), {audit.restarts} restarts audited, "
            f"{len(audit.acked)} jobs acknowledged, {audit.refused} refused, {sum(audit.runs.values())} runs, "
            f"{audit.reran} run again after a kill, {audit.lost_lately} lost within the interval, {seconds:.0f} s"
        )
        for what in audit.broken[:20]:
            print("BROKEN:", what)  # noqa: T201
        if audit.broken:
            kept = Path(tempfile.gettempdir()) / f"inproc-jobs-crash-{os.getpid()}.ledger"
            shutil.copy(self.ledger, kept)
            print(f"seed {self.seed}, ledger {kept}")  # noqa: T201
        return 1 if audit.broken else 0


if __name__ == "__main__":
    sys.exit(main())
