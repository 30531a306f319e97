"""Handlers that run in child processes; they are found by name, so they live in a module."""

import os
import time
from pathlib import Path
from typing import Any

import structlog

from inproc_jobs import JobContext, RetryLater, UnrecoverableError


def pid(payload: Any) -> int:
    return os.getpid()


def report(payload: Any, ctx: JobContext) -> dict[str, Any]:
    ctx.progress({"done": 1})
    ctx.log("first line")
    ctx.log("second line")
    return {
        "id": ctx.id,
        "name": ctx.name,
        "queue": ctx.queue,
        "attempt": ctx.attempt,
        "max_attempts": ctx.max_attempts,
        "cancelled": ctx.cancelled,
        "bound": structlog.contextvars.get_contextvars(),
    }


def fail(payload: str) -> None:
    raise {
        "value": ValueError("no such invoice"),
        "system exit": SystemExit(3),
        "keyboard interrupt": KeyboardInterrupt(),
        "unrecoverable": UnrecoverableError("gone"),
    }[payload]


def die(payload: Any) -> None:
    os._exit(7)


def not_json(payload: Any) -> Any:
    return {1, 2}


def once_later(payload: str) -> str:
    """Asks for another time when it is run first; a file is what both runs share."""
    marker = Path(payload)
    if not marker.exists():
        marker.touch()
        raise RetryLater("1ms")
    return "second run"


def hang(payload: Any) -> None:
    time.sleep(3600)
