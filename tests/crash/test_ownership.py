"""Several processes on one snapshot: one owner, and what becomes of the others, by real processes and real signals."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.redis.server import Server, why_not
from tests.unit.app.real import Program

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]

SOURCE = """
import asyncio, os, sys
from inproc_jobs import Engine, EngineStoppedError, LeaseHeldError, RedisSnapshot, Registry, SqliteSnapshot

registry = Registry()

@registry.define_job("tick")
async def tick(payload):
    with open({runs!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")

async def main():
    place, options = {place!r}, dict(every="50ms", on_held={on_held!r}, lease="1s")
    snapshot = RedisSnapshot(place, **options) if "://" in place else SqliteSnapshot(place, **options)
    engine = Engine(registry=registry, snapshot=snapshot)
    try:
        await engine.astart()
    except LeaseHeldError as error:
        print(f"refused {{error.host}} {{error.pid}} {{error.since.isoformat()}}")
        print(error)
        return
    await engine.schedule("s", tick, None, every="200ms")
    print("owner", flush=True)
    while engine.health()["state"] == "running":
        await asyncio.sleep(0.02)
    try:
        await tick.dispatch(None)
    except EngineStoppedError as error:
        print(f"stopped {{error}}", flush=True)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "jobs.db")
        return
    if why_not():
        pytest.skip(str(why_not()))
    with Server() as server:
        yield server.url


@pytest.fixture
def start(place: str, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(on_held: str = "refuse") -> Program:
        programs.append(Program(SOURCE.format(place=place, on_held=on_held, runs=str(tmp_path / "runs"))))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGCONT)
            program.process.kill()
        program.process.communicate()


def runs_of(folder: Path) -> list[int]:
    path = folder / "runs"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_second_process_is_refused(start):
    """It is told host, process, since when, and what to do instead; the owner goes on."""
    first = start()
    first.expect("owner")
    second = start()
    code, out, errors = second.end()
    assert code == 0, errors
    assert out.startswith("refused ")
    assert f" {first.process.pid} 20" in out.splitlines()[0]
    assert str(first.process.pid) in out.splitlines()[1]
    assert "dispatch" in out.splitlines()[1]
    assert first.process.poll() is None


def test_waiting_process_takes_over(start, tmp_path):
    """Within a lease of the owner's death another one runs the jobs, and the schedule goes on."""
    first = start()
    first.expect("owner")
    second = start("wait")
    time.sleep(0.5)
    assert second.process.poll() is None
    first.send(signal.SIGKILL)
    first.process.wait()
    killed = time.monotonic()
    second.expect("owner")
    assert time.monotonic() - killed < 5
    before = len(runs_of(tmp_path))
    deadline = time.monotonic() + 10
    while len(runs_of(tmp_path)) < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert set(runs_of(tmp_path)[before:]) == {second.process.pid}


def test_c114_four_workers_one_owner(start, tmp_path):
    """Four that start at once: one runs the schedule, the others say who owns it and end; each moment runs once."""
    programs = [start() for _ in range(4)]
    deadline = time.monotonic() + 30
    while sum(one.process.poll() is None for one in programs) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (owner,) = [one for one in programs if one.process.poll() is None]
    owner.expect("owner")
    for one in programs:
        if one is not owner:
            _, out, errors = one.end()
            assert out.startswith("refused "), errors
            assert str(owner.process.pid) in out
    time.sleep(1)
    assert set(runs_of(tmp_path)) == {owner.process.pid}


def test_paused_owner_that_wakes_up(start, place, tmp_path):
    """Whoever was stopped past its lease finds a successor, writes nothing over it, stops, and says why."""
    if "://" not in place:
        pytest.skip("the lock of a file does not run out while its process lives")
    first = start()
    first.expect("owner")
    first.send(signal.SIGSTOP)
    second = start("wait")
    second.expect("owner")
    first.send(signal.SIGCONT)
    code, out, errors = first.end()
    assert code == 0, errors
    assert "stopped the engine was stopped since it lost its snapshot" in out
    assert f"process {second.process.pid}" in out
    time.sleep(0.5)
    woke = len(runs_of(tmp_path))
    time.sleep(0.8)
    assert set(runs_of(tmp_path)[woke:]) == {second.process.pid}
    os.kill(second.process.pid, 0)
