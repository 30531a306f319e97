"""
The references: the same work on bare asyncio and bare containers, with nothing that an engine adds.

None of them is an engine. `asyncio.Queue` knows no ids, no retries, no results; its consumer never gives way while
there is work, and so starves everything else in the loop, which an engine must not.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, time

from common import Gate, Numbers, Stopwatch, latency, mean, payload, random_delays_ms, watch_heartbeat


async def dispatch(n: int) -> Numbers:
    """Puts only, nobody takes."""

    async def noop(_data: dict) -> None:
        pass

    queue: asyncio.Queue = asyncio.Queue()
    watch = Stopwatch()
    for i in range(n):
        queue.put_nowait((noop, payload(i)))
    return watch.rate(n)


async def _consume(queue: asyncio.Queue) -> None:
    while True:
        handler, data = await queue.get()
        await handler(data)


async def end_to_end(n: int, concurrency: int) -> Numbers:
    """All is put in, then all is handled."""
    gate = Gate(n)

    async def noop(_data: dict) -> None:
        gate.hit()

    queue: asyncio.Queue = asyncio.Queue()
    watch = Stopwatch()
    for i in range(n):
        queue.put_nowait((noop, payload(i)))
    consumers = [asyncio.create_task(_consume(queue)) for _ in range(concurrency)]
    await gate.opened.wait()
    numbers = watch.rate(n, gate)
    for consumer in consumers:
        consumer.cancel()
    return numbers


async def duplicate(n: int) -> Numbers:
    """A dict that is asked for a key it has, in a coroutine."""
    known = {"job-1": object()}

    async def ask(job_id: str, data: dict) -> object:
        found = known.get(job_id)
        if found is None:
            found = known[job_id] = data
        return found

    watch = Stopwatch()
    for i in range(n):
        await ask("job-1", payload(i))
    return watch.rate(n)


class _Record:
    __slots__ = ("attempts", "data", "due", "id", "max_attempts", "name", "priority", "seq")

    def __init__(self, id: str, name: str, data: dict, due: float, seq: int) -> None:
        self.id = id
        self.name = name
        self.data = data
        self.due = due
        self.attempts = 0
        self.max_attempts = 1
        self.priority = 0
        self.seq = seq


class _Heap:
    """A heap of due times, records with slots, and an index by id: the least that delays and ids need."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, _Record]] = []
        self.index: dict[str, _Record] = {}
        self.seq = 0

    def add(self, data: dict, delay_ms: int) -> None:
        self.seq = seq = self.seq + 1
        id = str(seq)
        record = _Record(id, "noop", data, time() + delay_ms / 1000, seq)
        self.index[id] = record
        heapq.heappush(self.heap, (record.due, seq, record))


async def delayed(n: int, more: int, rounds: int) -> Numbers:
    """See `engine.delayed`."""
    rounds_made = []
    for _ in range(rounds):
        heap = _Heap()
        delays = random_delays_ms(n + more)
        watch = Stopwatch()
        for i in range(n):
            heap.add(payload(i), delays[i])
        numbers = watch.rate(n)
        watch = Stopwatch()
        for i in range(n, n + more):
            heap.add(payload(i), delays[i])
        rounds_made.append({**numbers, **watch.cost_us(more)})
    return mean(rounds_made)


async def start_latency(n: int) -> Numbers:
    """From a put to the parked consumer that gets it."""
    queue: asyncio.Queue = asyncio.Queue()
    seconds: list[float] = []

    async def consume() -> None:
        while True:
            since, done = await queue.get()
            seconds.append(perf_counter() - since)
            done.set_result(None)

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0)
    watch = Stopwatch()
    for _ in range(n):
        done = asyncio.get_running_loop().create_future()
        queue.put_nowait((perf_counter(), done))
        await done
        await asyncio.sleep(0)
    running = watch.rate(n)["running"]
    consumer.cancel()
    return {**latency(seconds), "running": running}


async def heartbeat(n: int) -> Numbers:
    """How long a queue loop keeps the host's own coroutine waiting."""
    gate = Gate(n)

    async def noop(_data: dict) -> None:
        gate.hit()

    queue: asyncio.Queue = asyncio.Queue()
    for i in range(n):
        queue.put_nowait((noop, payload(i)))
    beating = asyncio.create_task(watch_heartbeat(gate.opened.is_set))
    await asyncio.sleep(0.01)
    watch = Stopwatch(collect=False)
    consumer = asyncio.create_task(_consume(queue))
    worst = await beating
    running = watch.rate(n, gate)["running"]
    consumer.cancel()
    return {**worst, "running": running}


async def threads(n: int, concurrency: int) -> Numbers:
    """Plain functions, each call handed to a thread of a pool and awaited."""
    gate = Gate(n)

    def noop(_data: dict) -> None:
        pass

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue = asyncio.Queue()

    with ThreadPoolExecutor(concurrency) as pool:

        async def call(data: dict) -> None:
            await loop.run_in_executor(pool, noop, data)
            gate.hit()

        watch = Stopwatch()
        for i in range(n):
            queue.put_nowait((call, payload(i)))
        consumers = [asyncio.create_task(_consume(queue)) for _ in range(concurrency)]
        await gate.opened.wait()
        numbers = watch.rate(n, gate)
        for consumer in consumers:
            consumer.cancel()
    return numbers


async def retries(n: int, concurrency: int) -> Numbers:
    """Each job fails twice and is put in again at once."""
    gate = Gate(n)
    queue: asyncio.Queue = asyncio.Queue()

    async def flaky(_data: dict, attempt: int) -> None:
        if attempt < 3:
            raise ValueError("not yet")
        gate.hit()

    async def consume() -> None:
        while True:
            handler, data, attempt = await queue.get()
            try:
                await handler(data, attempt)
            except ValueError:
                queue.put_nowait((handler, data, attempt + 1))

    watch = Stopwatch()
    for i in range(n):
        queue.put_nowait((flaky, payload(i), 1))
    consumers = [asyncio.create_task(consume()) for _ in range(concurrency)]
    await gate.opened.wait()
    numbers = watch.rate(n, gate)
    for consumer in consumers:
        consumer.cancel()
    return numbers


WORKLOADS: dict[str, Callable[..., Awaitable[Numbers]]] = {
    function.__name__: function
    for function in (dispatch, end_to_end, duplicate, delayed, start_latency, heartbeat, threads, retries)
}
