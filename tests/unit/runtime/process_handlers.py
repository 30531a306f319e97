"""Handlers that `test_processes.py` runs in child processes; they are found by name, so they live in a module."""

import asyncio
import atexit
import contextvars
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from inproc_jobs.errors import RateLimited, RetryLater, UnrecoverableError

STEERING: dict[str, Callable[[], BaseException]] = {
    "unrecoverable": lambda: UnrecoverableError("give up"),
    "retry text": lambda: RetryLater("30s", "busy"),
    "retry int": lambda: RetryLater(1500),
    "retry timedelta": lambda: RetryLater(timedelta(minutes=2, microseconds=1)),
    "retry float": lambda: RetryLater(1.5),
    "retry nonsense": lambda: RetryLater([1]),
    "rate limited": lambda: RateLimited("1m"),
    "of a subclass": lambda: OutOfStockError("gone"),
    "of another package": lambda: other_unrecoverable("gone"),
}


class OutOfStockError(UnrecoverableError):
    pass


def other_unrecoverable(message: str) -> Exception:
    return type("UnrecoverableError", (Exception,), {})(message)


def echo(payload: Any) -> Any:
    return payload


def pid(payload: Any) -> int:
    return os.getpid()


def fail(payload: str) -> None:
    raise ValueError(payload)


def steer(payload: str) -> None:
    error = STEERING[payload]()
    raise error


class PickyError(Exception):
    """Cannot be rebuilt from a pickle."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__()
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def chained(depth: int) -> Exception:
    error: Exception = ValueError("first")
    for _ in range(depth):
        cause, error = error, ValueError("next")
        error.__cause__ = cause
    return error


BROKEN: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "StopIteration": lambda: StopIteration(1),
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "BaseException": lambda: BaseException("bare"),
    "Picky": lambda: PickyError(7, detail="no pickle"),
    "Mute": MuteError,
    "huge": lambda: ValueError("x" * 5_000_000),
    "surrogate": lambda: ValueError("file \udcff"),
    "chain": lambda: chained(1000),
}


def misbehave(payload: str) -> None:
    error = BROKEN[payload]()
    raise error


def unstorable(payload: str) -> Any:
    return {"a": [1, object()]} if payload == "object" else Hostile()


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit("no items")

    __iter__ = keys = items


def leave(payload: int) -> None:
    os._exit(payload)


def crash(payload: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(payload: str) -> None:
    """Says that it is there by making a file, then goes on until it is killed."""
    Path(payload).write_text(str(os.getpid()))
    while True:
        time.sleep(60)


def wait_for_file(payload: dict[str, str]) -> str:
    """Touches one file and returns once the other one is there. At the end of its process it makes a third one."""
    atexit.register(Path(payload["touch"] + "-exit").touch)
    Path(payload["touch"]).touch()
    while not Path(payload["until"]).exists():
        time.sleep(0.005)
    return "seen"


def ignore_signals(payload: Any) -> list[str]:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    # A program started by a handler must be one that can be terminated.
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started.terminate()
    return ["alive", signal.Signals(-started.wait(30)).name]


def hide_behind_grandchild(payload: str) -> None:
    """Forks a process that holds all pipes open, and vanishes."""
    if os.fork() == 0:
        while not Path(payload).exists():
            time.sleep(0.005)
        os._exit(0)
    os._exit(5)


def close_everything(payload: Any) -> None:
    os.closerange(3, 1000)
    time.sleep(60)


VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")


def context_variable(payload: str) -> str:
    before = VAR.get()
    VAR.set(payload)
    return before


def log_variables(payload: Any) -> dict[str, Any]:
    return {var.name: value for var, value in contextvars.copy_context().items() if var.name.startswith("structlog_")}


def talk(payload: Any, ctx: Any) -> dict[str, Any]:
    ctx.progress({"done": 1})
    ctx.log("plain line")
    ctx.update_payload([payload, "changed"])
    asyncio.run(talk_async(ctx))
    return {
        "id": ctx.id,
        "name": ctx.name,
        "queue": ctx.queue,
        "attempt": ctx.attempt,
        "max_attempts": ctx.max_attempts,
        "scheduled_for": ctx.scheduled_for.isoformat(),
        "late_by_ms": ctx.late_by_ms,
        "cancelled": ctx.cancelled,
        "children_values": ctx.children_values(),
        "ignored_failures": ctx.ignored_failures(),
        "type": type(ctx).__module__ + "." + type(ctx).__name__,
    }


async def talk_async(ctx: Any) -> None:
    assert await ctx.progress(50) is None
    await ctx.log("line with \udcff")
    await ctx.update_payload({"awaited": True})


def refused_progress(payload: Any, ctx: Any) -> str:
    try:
        ctx.progress({"when": object()})
    except TypeError as error:
        return str(error)
    return "taken"


def flood(payload: int, ctx: Any) -> None:
    for number in range(payload):
        ctx.log(str(number))


def leave_a_thread(payload: Any, ctx: Any) -> None:
    """A thread goes on using the context after the run is over."""

    def chatter() -> None:
        while True:
            ctx.log("late")
            assert ctx.cancelled in {True, False}
            time.sleep(0.0005)

    threading.Thread(target=chatter, daemon=True).start()


def until_cancelled(payload: Any, ctx: Any) -> str:
    ctx.log("waiting")
    while not ctx.cancelled:
        time.sleep(0.002)
    return "stopped"


def is_cancelled(payload: Any, ctx: Any) -> bool:
    return ctx.cancelled


@dataclass
class Order:
    number: int
    items: list[str]


def typed(payload: Order) -> str:
    assert type(payload) is Order
    return f"{payload.number}: {', '.join(payload.items)}"


def shout(fn: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(fn)
    def wrapper(payload: str) -> str:
        return fn(payload).upper()

    return wrapper


@shout
def decorated(payload: str) -> str:
    return payload


class Definition:
    """Stands where its function was, as a `JobDefinition` does."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.handler = type("Handler", (), {"fn": staticmethod(fn)})

    def dispatch(self, payload: Any) -> None:
        raise AssertionError("must not be called")


@Definition
def defined(payload: Any) -> Any:
    return ["defined", payload]


class Wrapped(Definition):
    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.__wrapped__ = fn


@Wrapped
def wrapped(payload: Any) -> Any:
    return ["wrapped", payload]


class Holder:
    @staticmethod
    def nested(payload: Any) -> Any:
        return ["nested", payload]


not_callable = 42
