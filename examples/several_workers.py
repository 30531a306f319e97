"""
Several workers of one app, as gunicorn or uvicorn start them, and one snapshot: it has one owner.

Watch the second worker be refused, with the name of the owner. The third is a hot spare: it waits, and when the owner is
killed it takes over at once and runs the job that the owner has left.
"""

import asyncio
import functools
import multiprocessing
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Literal

from inproc_jobs import Engine, LeaseHeldError, SqliteSnapshot, define_job

sent = asyncio.Event()
say = functools.partial(print, flush=True)  # several processes write to one terminal


@define_job("invoice.send")
async def send(payload: dict[str, int]) -> None:
    say(f"invoice {payload['invoice']} was sent")
    sent.set()


async def worker(path: str, said: Connection, on_held: Literal["refuse", "wait"]) -> None:
    """What each process does: the same app, the same snapshot."""
    try:
        async with Engine(snapshot=SqliteSnapshot(path, mode="write_through", on_held=on_held)):
            if on_held == "wait":
                said.send("took over")
                await sent.wait()
                return
            await send.dispatch({"invoice": 42}, job_id="invoice:42", delay="4s")
            said.send("owns the jobs")
            await asyncio.sleep(60)
    except LeaseHeldError as error:
        said.send(f"was refused: process {error.pid} owns them")


def start(path: str, on_held: str) -> tuple[multiprocessing.Process, Connection]:
    said, speaks = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=run, args=(path, speaks, on_held))
    process.start()
    return process, said


def run(path: str, said: Connection, on_held: Literal["refuse", "wait"]) -> None:
    asyncio.run(worker(path, said, on_held))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/jobs.db"
        first, says = start(path, "refuse")
        say("the first worker", says.recv())
        second, says_too = start(path, "refuse")
        say("the second worker", says_too.recv().replace(str(first.pid), "number one"))
        spare, says_last = start(path, "wait")
        if not says_last.poll(0.5):
            say("the spare waits")
        first.kill()
        say("the first worker is killed; the spare", says_last.recv())
        for process in (second, spare):
            process.join()
        sys.exit(spare.exitcode)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")  # a fork would copy whatever the parent has open
    main()
