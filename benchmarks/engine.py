"""The same workloads on an engine as its users have it: default options, default logging, every check in place."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter, process_time

from common import (
    CollectionWatch,
    Gate,
    Numbers,
    Stopwatch,
    latency,
    mean,
    payload,
    random_delays_ms,
    resident_bytes,
    watch_heartbeat,
)

from inproc_jobs import Engine, JobDefinition, define_job


async def dispatch(n: int) -> Numbers:
    """Dispatches only: the engine is not started, so the jobs wait."""

    @define_job("noop")
    async def noop(_data: dict) -> None:
        pass

    engine = Engine(concurrency=1)
    await noop.dispatch(payload(0))
    watch = Stopwatch()
    for i in range(n):
        await noop.dispatch(payload(i))
    numbers = watch.rate(n)
    _check(engine, waiting=n + 1)
    return numbers


async def end_to_end(n: int, concurrency: int) -> Numbers:
    """All is dispatched, then all is run."""
    gate = Gate(n)

    @define_job("noop")
    async def noop(_data: dict) -> None:
        gate.hit()

    engine = Engine(concurrency=concurrency)
    watch = Stopwatch()
    for i in range(n):
        await noop.dispatch(payload(i))
    await engine.astart()
    await gate.opened.wait()
    numbers = watch.rate(n, gate)
    await engine.runtime.wait_idle()
    _check(engine, waiting=0)
    await engine.astop(drain=False)
    return numbers


async def duplicate(n: int) -> Numbers:
    """An id that is alive, again and again."""

    @define_job("noop")
    async def noop(_data: dict) -> None:
        pass

    engine = Engine(concurrency=1)
    await noop.dispatch(payload(0), job_id="job-1")
    watch = Stopwatch()
    for i in range(n):
        await noop.dispatch(payload(i), job_id="job-1")
    numbers = watch.rate(n)
    _check(engine, waiting=1)
    return numbers


async def delayed(n: int, more: int, rounds: int) -> Numbers:
    """
    Delays all over the next hour: put `n` in, then time `more` of them while the set holds as many.

    Rounds begin with an empty engine each, and their rates and costs are averaged: a small set is filled too fast to
    be timed once. Memory and pauses are those of the first round.
    """

    @define_job("noop")
    async def noop(_data: dict) -> None:
        pass

    rounds_made, first = [], {}
    for _ in range(rounds):
        engine = Engine(concurrency=1)
        delays = random_delays_ms(n + more)
        await noop.dispatch(payload(0), delay=3_600_000)
        watch = Stopwatch()
        collections = CollectionWatch()
        held = resident_bytes()
        longest, longest_cpu = await _put_in(noop, n, delays)
        numbers = watch.rate(n)
        collections.close()
        first = first or {
            "bytes": (resident_bytes() - held) / n,
            "pause_ms": longest * 1000,
            "pause_ms_by_cpu": longest_cpu * 1000,
            **collections.longest,
        }
        watch = Stopwatch()
        for i in range(n, n + more):
            await noop.dispatch(payload(i), delay=delays[i])
        rounds_made.append({**numbers, **watch.cost_us(more)})
        _check(engine, waiting=0, delayed=n + more + 1)
    return {**mean(rounds_made), **first}


async def _put_in(job: JobDefinition, n: int, delays: Sequence[int]) -> tuple[float, float]:
    """
    Dispatch with these delays, and answer the longest time that one call took, in seconds.

    The second answer is a bound on it by CPU time. That clock is slow to read: it is read every 64 calls, and the most
    that was used between two readings counts as one pause.
    """
    longest = longest_cpu = 0.0
    before, cpu_before = perf_counter(), process_time()
    for i in range(n):
        await job.dispatch(payload(i), delay=delays[i])
        now = perf_counter()
        if now - before > longest:  # noqa: PLR1730  # a call of max() for each insert would be measured too
            longest = now - before
        before = now
        if not i & 63:
            cpu = process_time()
            longest_cpu = max(longest_cpu, cpu - cpu_before)
            cpu_before = cpu
    return longest, longest_cpu


async def start_latency(n: int) -> Numbers:
    """From the call of `dispatch` to the first line of the handler, the engine being idle before."""
    seconds: list[float] = []
    since = 0.0
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    @define_job("noop")
    async def noop(_data: dict) -> None:
        seconds.append(perf_counter() - since)
        done.set_result(None)

    async with Engine(concurrency=1):
        watch = Stopwatch()
        for i in range(n):
            done = loop.create_future()
            since = perf_counter()
            await noop.dispatch(payload(i))
            await done
            for _ in range(3):  # until the runner has ended too
                await asyncio.sleep(0)
        running = watch.rate(n)["running"]
    return {**latency(seconds), "running": running}


async def heartbeat(n: int) -> Numbers:
    """How long an engine with many ready jobs keeps the host's own coroutine waiting; and how long an idle loop does."""
    gate = Gate(n)

    @define_job("noop")
    async def noop(_data: dict) -> None:
        gate.hit()

    engine = Engine(concurrency=1)
    for i in range(n):
        await noop.dispatch(payload(i))
    idle_until = perf_counter() + 0.5
    idle = await watch_heartbeat(lambda: perf_counter() > idle_until)
    beating = asyncio.create_task(watch_heartbeat(gate.opened.is_set))
    await asyncio.sleep(0.01)
    watch = Stopwatch(collect=False)
    await engine.astart()
    worst = await beating
    running = watch.rate(n, gate)["running"]
    await engine.astop(drain=False)
    return {**worst, "idle_ms": idle["worst_ms"], "running": running}


async def threads(n: int, concurrency: int) -> Numbers:
    """Plain functions, run in threads."""

    @define_job("noop")
    def noop(_data: dict) -> None:
        pass

    engine = Engine(concurrency=concurrency)
    watch = Stopwatch()
    for i in range(n):
        await noop.dispatch(payload(i))
    await engine.astart()
    await engine.runtime.wait_idle()
    numbers = watch.rate(n)
    _check(engine, waiting=0)
    await engine.astop(drain=False)
    return numbers


async def retries(n: int, concurrency: int) -> Numbers:
    """Each job fails twice and is retried at once."""
    gate = Gate(n)

    @define_job("flaky", attempts=3)
    async def flaky(_data: dict, ctx) -> None:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        gate.hit()

    engine = Engine(concurrency=concurrency)
    watch = Stopwatch()
    for i in range(n):
        await flaky.dispatch(payload(i))
    await engine.astart()
    await gate.opened.wait()
    numbers = watch.rate(n, gate)
    await engine.runtime.wait_idle()
    _check(engine, waiting=0, failed=0)
    await engine.astop(drain=False)
    return numbers


def _check(engine: Engine, **expected: int) -> None:
    """A fast engine that loses jobs is not fast."""
    counts = engine.queue("default").counts()
    for state, count in expected.items():
        if counts[state] != count:
            raise AssertionError(f"{count} jobs should be {state}; there are {counts[state]}")


WORKLOADS: dict[str, Callable[..., Awaitable[Numbers]]] = {
    function.__name__: function
    for function in (dispatch, end_to_end, duplicate, delayed, start_latency, heartbeat, threads, retries)
}
