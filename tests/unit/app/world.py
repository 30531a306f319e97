"""What the tests of the facade work with: engines on virtual time, recorders, and proofs that nothing has changed."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from inproc_jobs import Engine, JobDefinition, Registry
from tests.unit.app.virtual import VirtualClock

__all__ = ["Recorder", "World", "fingerprint", "refused"]


class World:
    """A registry of its own, a virtual clock, and engines made for them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.registry = Registry()
        self.engines: list[Engine] = []

    def engine(self, **options: Any) -> Engine:
        """An engine of this world, which keeps it alive."""
        engine = Engine(**{"registry": self.registry, "clock": self.clock, **options})
        self.engines.append(engine)
        return engine

    def job(self, handle: Callable[..., Any], name: str = "job", **options: Any) -> "JobDefinition[Any, Any]":
        """Define a job here."""
        return self.registry.define_job(name, handle=handle, **options)

    def noop(self, name: str = "job", **options: Any) -> "JobDefinition[Any, Any]":
        """A job that does nothing."""

        async def nothing(payload: Any) -> None:
            pass

        return self.job(nothing, name, **options)

    def recorder(self, name: str = "job", **options: Any) -> "Recorder":
        """A job that writes down its runs."""
        return Recorder(self, name, options)

    @property
    def ms(self) -> int:
        """Elapsed milliseconds."""
        return self.clock.elapsed_ms

    def has_busy_threads(self) -> bool:
        """Whether a handler runs outside the loop, for which time must stand still."""
        return any(
            run.give_up is not None
            for engine in self.engines
            for worker in engine.runtime.workers.values()
            for run in worker.runs
        )

    def forget_handler(self, name: str) -> None:
        """As if the module that defines it were gone."""
        del self.registry._jobs[name]
        for engine in self.engines:
            engine.forget_definition(name)


class Recorder:
    """
    A job that notes each of its runs.

    Attributes:
        runs: (elapsed ms at the start, payload).
        contexts: The contexts that came with them.
        script: What the next runs do: an exception to raise, else a value to return; None is a plain return.
        takes_s: How long each run takes.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.world = world
        self.runs: list[tuple[int, Any]] = []
        self.contexts: list[Any] = []
        self.script: list[Any] = []
        self.takes_s = 0.0
        self.job = world.job(self._handle, name, **options)
        self.dispatch = self.job.dispatch
        self.find = self.job.find

    async def _handle(self, payload: Any, ctx: Any) -> Any:
        self.runs.append((self.world.ms, payload))
        self.contexts.append(ctx)
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        return step

    @property
    def payloads(self) -> list[Any]:
        return [payload for _, payload in self.runs]

    @property
    def starts(self) -> list[int]:
        return [at for at, _ in self.runs]


def fingerprint(engine: Engine) -> dict[str, Any]:
    """All that a refused call must leave as it was. Queues in which nothing ever happened are left out."""
    core = engine.runtime.core
    prints: dict[str, Any] = {}
    for name, queue in core.queues.items():
        jobs = {
            id: (
                job.name,
                job.data,
                job.state,
                job.delay,
                job.priority,
                job.order,
                job.attempts_made,
                job.opts,
                job.flags,
            )
            for id, job in queue.index.items()
        }
        keys = {id: (key.owner, key.until_ms) for id, key in queue.deduplication.items()}
        if jobs or keys or queue.counter or queue.paused or queue.reserved:
            prints[name] = (queue.counter, queue.sequence, queue.paused, queue.reserved, jobs, keys)
    prints[" events"] = list(core.events) + list(engine.runtime._pending_events)
    return prints


@contextmanager
def refused(engine: Engine, error: type[BaseException], *words: str) -> "Iterator[pytest.ExceptionInfo[Any]]":
    """The body is refused with that error, whose message has these words, and nothing has changed."""
    unsubscribe = engine.on("*", lambda event: None)
    before = fingerprint(engine)
    with pytest.raises(error) as caught:
        yield caught
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"
    assert fingerprint(engine) == before
    unsubscribe()
