"""
Where the time of a job goes: `python benchmarks/parts.py [--json FILE]`, in nanoseconds of CPU time per job.

Each part is done alone, over as many real jobs as the whole, and the best of several rounds counts. Some parts are in
others (`encode` in all but the coroutine, `core.fetch` in `core.complete`). What is left over is the code between the parts, and
caches that a loop over one part keeps warmer than a job would. This is for those who make the engine faster; `run.py` says how fast it is.
"""

# ruff: noqa: SLF001  # it looks at the inner parts on purpose

import argparse
import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from time import process_time_ns
from typing import Any

from common import Gate, log_as_in_production, payload

from inproc_jobs import Engine, JobDefinition, Registry
from inproc_jobs.app.receipt import DispatchedJob
from inproc_jobs.core.job import Job
from inproc_jobs.core.states import JobState
from inproc_jobs.runtime.context import bind_run
from inproc_jobs.runtime.run import Run, begin
from inproc_jobs.runtime.worker import QueueWorker

Parts = dict[str, float]

LIMIT_S = 60
"""A round that takes longer waits for jobs that will never end."""

DISPATCH, DUPLICATE, RUN = "dispatch, whole", "duplicate dispatch, whole", "run, whole"
PARTS_OF_DISPATCH = (
    "  payload, the caller's", "  find the engine", "  encode", "  lock", "  clock", "  core.add", "  receipt"
)  # fmt: skip
PARTS_OF_RUN = ("  begin, in its context, with all these", "  succeed, with Run, lock and clock")


class Bench:
    """An engine of its own with `n` jobs to come, and the loop over them."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.gate = Gate(n)
        registry = Registry()
        gate = self.gate

        @registry.define_job("noop")
        async def noop(_data: dict) -> None:
            gate.hit()

        self.job: JobDefinition[Any, Any] = noop
        self.engine = Engine(registry=registry)
        self.runtime = self.engine.runtime

    @property
    def worker(self) -> QueueWorker:
        return self.runtime.worker("default")

    async def dispatch_all(self) -> None:
        for i in range(self.n):
            await self.job.dispatch(payload(i))

    async def runs(self) -> list[Run]:
        """All jobs, dispatched and taken by a run each; the handlers have not been called."""
        await self.dispatch_all()
        self.runtime.fetching = True
        runs = [self.worker._fetch() for _ in range(self.n)]
        return [run for run in runs if run is not None]


def each(items: Sequence[Any], call: Callable[[Any], object]) -> float:
    """Nanoseconds per item of a call, less those of the empty loop."""
    gc.collect()
    before = process_time_ns()
    for item in items:
        call(item)
    took = process_time_ns() - before
    before = process_time_ns()
    for _item in items:
        pass
    return (took - (process_time_ns() - before)) / len(items)


def less_call(ns: float) -> float:
    """Without what a lambda costs by itself."""
    return ns - LAMBDA_NS


LAMBDA_NS = min(each(range(20_000), lambda _i: None) for _ in range(5))


# --- the way in -------------------------------------------------------------------------------------------------------


async def way_in(n: int) -> Parts:
    """`await job.dispatch(payload)` on an engine that is not started, and its parts."""
    parts: Parts = {}
    numbers = range(n)

    bench = Bench(n)
    gc.collect()
    before = process_time_ns()
    await bench.dispatch_all()
    parts[DISPATCH] = (process_time_ns() - before) / n
    parts["  payload, the caller's"] = each(numbers, payload)

    job, runtime, engine = bench.job, bench.runtime, bench.engine
    parts["  find the engine"] = less_call(each(numbers, lambda _i: job._engine()))
    encode, values = job.handler.codec.encode, [payload(i) for i in numbers]
    parts["  encode"] = each(values, encode)
    parts["  all but the coroutine"] = less_call(
        each(values, lambda value: engine.submit_plain(job, value, None, None))
    )
    lock = runtime.lock
    parts["  lock"] = less_call(each(numbers, lambda _i: _with(lock)))
    parts["  clock"] = less_call(each(numbers, lambda _i: runtime.now_ms()))

    queue = bench.worker.queue
    stored: Job = queue.index["1"]
    add, name, data, opts, now_ms = runtime.core.add, stored.name, stored.data, stored.opts, stored.timestamp
    parts["  core.add"] = less_call(each(numbers, lambda _i: add(queue, name, data, opts, now_ms)))
    parts["  receipt"] = less_call(
        each(numbers, lambda _i: DispatchedJob("1", name, "default", False, JobState.WAITING, stored, engine))
    )
    return parts


async def again(n: int) -> Parts:
    """`await job.dispatch(payload, job_id=...)` of an id that is alive, and what differs from other dispatches."""
    parts: Parts = {}
    numbers = range(n)
    bench = Bench(n)
    job, engine = bench.job, bench.engine
    await job.dispatch(payload(0), job_id="job-1")
    gc.collect()
    before = process_time_ns()
    for i in numbers:
        await job.dispatch(payload(i), job_id="job-1")
    parts[DUPLICATE] = (process_time_ns() - before) / n
    values = [payload(i) for i in numbers]
    parts["  all but the coroutine, id taken"] = less_call(
        each(values, lambda value: engine.submit_plain(job, value, "job-1", None))
    )
    queue = bench.worker.queue
    stored: Job = queue.index["job-1"]
    add, name, data, opts, now_ms = bench.runtime.core.add, stored.name, stored.data, stored.opts, stored.timestamp
    parts["  core.add, id taken"] = less_call(
        each(numbers, lambda _i: add(queue, name, data, opts, now_ms, id="job-1"))
    )
    return parts


def _with(lock: Any) -> None:
    with lock:
        pass


# --- the run ----------------------------------------------------------------------------------------------------------


async def run(n: int) -> Parts:
    """What a runner does with a waiting job whose handler never waits, and its parts."""
    parts: Parts = {}
    bench = Bench(n)
    await bench.dispatch_all()
    gc.collect()
    before = process_time_ns()
    await bench.engine.astart()
    await bench.gate.opened.wait()
    parts[RUN] = (process_time_ns() - before) / n
    await bench.engine.astop(drain=False)

    parts["  make a Run"] = less_call(each(range(n), lambda _i: Run(bench.worker)))
    parts["  fetch, with Run, lock and clock"] = await _fetch(n)
    parts["  core.fetch"] = await _core_fetch(n)
    parts |= await _begin(n)
    parts["  core.complete, fetching the next"] = await _complete(n)
    parts["  succeed, with Run, lock and clock"] = await _succeed(n)
    return parts


async def _fetch(n: int) -> float:
    bench = Bench(n)
    await bench.dispatch_all()
    bench.runtime.fetching = True
    fetch = bench.worker._fetch
    return less_call(each(range(n), lambda _i: fetch()))


async def _core_fetch(n: int) -> float:
    bench = Bench(n)
    await bench.dispatch_all()
    worker = bench.worker
    fetch, queue, now_ms, options = bench.runtime.core.fetch, worker.queue, bench.runtime.now_ms(), worker.options
    tokens = [Run(worker) for _ in range(n)]
    return less_call(each(tokens, lambda token: fetch(queue, now_ms, token, options)))


async def _begin(n: int) -> Parts:
    bench = Bench(n)
    runs = await bench.runs()
    handler = bench.job.handler
    base, fn, decode, wants_ctx = copy_context(), handler.fn, handler.codec.decode, handler.wants_ctx
    parts = {
        "  context copy": less_call(each(runs, lambda _run: base.copy())),
        "  enter a context": less_call(each(runs, lambda _run: base.run(int))),
        "  bind the run in its context": less_call(each(runs, lambda run: base.run(bind_run, run))),
        "  decode": less_call(each(runs, lambda run: decode(run.job.data))),
        "  handler, by itself": less_call(each(runs, lambda run: _step(fn(run)))),
    }
    bench.gate.left = n
    parts["  begin, in its context, with all these"] = less_call(
        each(runs, lambda run: base.copy().run(begin, run, fn, decode, wants_ctx))
    )
    return parts


def _step(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        pass


async def _complete(n: int) -> float:
    bench = Bench(n)
    await bench.dispatch_all()
    worker = bench.worker
    core, queue, now_ms, options = bench.runtime.core, worker.queue, bench.runtime.now_ms(), worker.options
    job = core.fetch(queue, now_ms, worker, options)
    gc.collect()
    before = process_time_ns()
    while job is not None:
        job = core.complete(queue, job.id, b"null", now_ms, worker, worker=options, fetch_next=True, next_token=worker)
    return (process_time_ns() - before) / n


async def _succeed(n: int) -> float:
    """On a hosted engine, whose own runner gets no turn meanwhile: nothing here waits."""
    bench = Bench(n)
    await bench.engine.astart()
    await bench.dispatch_all()
    worker = bench.worker
    run = worker._fetch()
    gc.collect()
    before = process_time_ns()
    while run is not None:
        run = worker._succeed(run, None)
    took = process_time_ns() - before
    await bench.engine.astop(drain=False)
    return took / n


# --- the script -------------------------------------------------------------------------------------------------------


def best_of(rounds: int, n: int) -> Parts:
    parts: Parts = {}
    for _ in range(rounds):
        for name, ns in asyncio.run(_once(n)).items():
            parts[name] = min(ns, parts.get(name, ns))
    return parts


async def _once(n: int) -> Parts:
    async with asyncio.timeout(LIMIT_S):
        return {**await way_in(n), **await again(n), **await run(n)}


def left_over(parts: Parts, whole: str, *known: str) -> float:
    """What a whole takes beyond the parts that make it up."""
    return parts[whole] - sum(parts[name] for name in known)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Where the time of a job goes, in ns per job.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    log_as_in_production()
    parts = best_of(options.rounds, options.jobs)
    parts["left over of dispatch"] = left_over(parts, DISPATCH, *PARTS_OF_DISPATCH)
    parts["left over of run"] = left_over(parts, RUN, *PARTS_OF_RUN)
    for name, ns in parts.items():
        print(f"{name:<45}{ns:>8,.0f} ns")
    if options.json is not None:
        options.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
