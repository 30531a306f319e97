"""
What runs inside a child process of `ProcessHost`, and the messages both sides speak.

A child runs one job at a time, each in a copy of its own fresh context. Rules:

- Only plain data crosses the pipe, as MessagePack; nothing of the user's is pickled. An exception with a constructor
  of its own could not be rebuilt on the other side (case C106), so errors cross as text, and signals by their kind.
- The pipe closes: the child finishes its job and ends. The parent vanishes: the child ends at once, in the middle of
  its job, since the result has no taker and a restarted engine may run that job again.
- SIGINT and SIGTERM are the parent's to obey. Ctrl-C reaches the whole foreground group, and systemd sends SIGTERM to
  every process of a service; both would kill jobs that a graceful stop wants to let finish.
- A job's result is encoded here, so that a result that is no JSON is known for what it is.

Spawn starts a new interpreter, which first imports the parent's main module again, under the name `__mp_main__`. A
program's start code therefore belongs under `if __name__ == "__main__":`, as everywhere with multiprocessing.
"""

from __future__ import annotations

import contextvars
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict, cast

import msgspec

from inproc_jobs.core.job import Children
from inproc_jobs.errors import InvalidHandlerError, RateLimited, RetryLater, UnrecoverableError
from inproc_jobs.runtime.context import JobContext
from inproc_jobs.runtime.handlers import Handler, inspect_handler
from inproc_jobs.runtime.payloads import encode_json
from inproc_jobs.runtime.tracebacks import reason_of, trace_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from inproc_jobs.runtime.run import Run

__all__ = ["main"]


# --- messages -------------------------------------------------------------------------------------------------------


class RunMeta(TypedDict):
    """
    What the context of a run in another process is made from.

    A job with children brings along what has become of them: `processed` (results as JSON text) and `ignored` (reasons),
    by child key. They are as they were when the attempt started.
    """

    id: str
    name: str
    queue: str
    attempt: int
    max_attempts: int
    due_ms: int
    late_by_ms: int
    processed: NotRequired[dict[str, bytes]]
    ignored: NotRequired[dict[str, str]]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """
    Root of all messages.

    They carry no number of the call they belong to: a call has its worker to itself, and neither side says anything
    between the reply and the next request, except for a cancel that comes too late and is read before that request.
    """


class Request(Message, frozen=True, array_like=True, tag=True):
    """To the child: run this."""

    module: str
    qualname: str
    payload: bytes
    wants_ctx: bool
    meta: RunMeta


class Cancel(Message, frozen=True, array_like=True, tag=True):
    """To the child: `ctx.cancelled` becomes True."""


class Ready(Message, frozen=True, array_like=True, tag=True):
    """From the child: it is up."""


class Started(Message, frozen=True, array_like=True, tag=True):
    """From the child: everything is imported, the handler is called now."""


class Note(Message, frozen=True, array_like=True, tag=True):
    """From the child: the handler said something through its context. `data` is JSON text."""

    kind: Literal["progress", "log", "update_payload"]
    data: bytes


class Result(Message, frozen=True, array_like=True, tag=True):
    """From the child: the handler returned, and this is the JSON text of its result."""

    data: bytes


class Signal(msgspec.Struct, frozen=True, array_like=True):
    """A `JobSignal` as plain data. A timedelta crosses as microseconds, any other delay as it is."""

    kind: Literal["unrecoverable", "retry_later", "rate_limited"]
    delay: int | float | str = 0
    delay_us: int | None = None


class Failure(Message, frozen=True, array_like=True, tag=True):
    """From the child: the handler raised."""

    type_name: str
    message: str
    traceback: str
    signal: Signal | None


class NotStorable(Message, frozen=True, array_like=True, tag=True):
    """From the child: the handler returned what is not JSON. Its work is done."""

    message: str


class NotUsable(Message, frozen=True, array_like=True, tag=True):
    """From the child: there is no such handler. It was not called."""

    message: str


Reply = Result | Failure | NotStorable | NotUsable
"""How a run ends; each request gets exactly one."""

FromChild = Ready | Started | Note | Reply

encode: Final[Callable[[Message], bytes]] = msgspec.msgpack.Encoder().encode
decode_in_child: Final[Callable[[bytes], Request | Cancel]] = msgspec.msgpack.Decoder(Request | Cancel).decode
decode_in_parent: Final[Callable[[bytes], FromChild]] = msgspec.msgpack.Decoder(FromChild).decode


# --- the child's side -----------------------------------------------------------------------------------------------

# structlog merges every context variable of such a name into the handler's own lines.
_LOG_FIELDS: Final = {
    "id": ContextVar[Any]("structlog_job_id"),
    "name": ContextVar[Any]("structlog_job_name"),
    "queue": ContextVar[Any]("structlog_queue"),
    "attempt": ContextVar[Any]("structlog_attempt"),
}


class _Pipe:
    """The child's end of the pipe, for the main thread and for the threads of handlers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        data = encode(message)
        with self._sending:
            self._connection.send_bytes(data)

    def receive(self) -> Request | Cancel:
        return decode_in_child(self._connection.recv_bytes())

    def has_news(self) -> bool:
        return self._connection.poll(0)


class _ChildRun:
    """Stands behind a `JobContext` in the child, as `Run` does in the parent: what a handler says goes over the pipe."""

    def __init__(self, pipe: _Pipe, request: Request, handler: Handler) -> None:
        meta = request.meta
        self.job = SimpleNamespace(
            id=meta["id"],
            name=meta["name"],
            opts=SimpleNamespace(attempts=meta["max_attempts"]),
            processed_on=meta["due_ms"] + meta["late_by_ms"],
        )
        self.queue_name = meta["queue"]
        self.attempt = meta["attempt"]
        self.due_ms = meta["due_ms"]
        self._children = Children(processed=meta.get("processed", {}), ignored=meta.get("ignored", {}))
        self._pipe = pipe
        self._handler = handler
        self._lock = threading.Lock()
        self._over = False
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        # Read here, when asked, so that runs which never look pay for no reading thread. Once the run is over the
        # pipe is the main thread's again: what comes then is the next request.
        with self._lock:
            while not self._over and not self._cancelled and self._pipe.has_news():
                try:
                    message = self._pipe.receive()
                except (EOFError, OSError):  # the parent wants no more
                    self._cancelled = True
                else:
                    self._cancelled = isinstance(message, Cancel)
            return self._cancelled

    def set_progress(self, value: Any) -> None:
        self._say("progress", encode_json(value, "progress"))

    def add_log(self, line: str) -> None:
        self._say("log", msgspec.json.encode(_storable(str(line))))

    def update_payload(self, value: Any) -> None:
        self._say("update_payload", self._handler.codec.encode(value))

    def children(self) -> Children:
        return self._children

    def finish(self) -> None:
        """Whatever threads of the handler still say belongs to no run."""
        with self._lock:
            self._over = True

    def _say(self, kind: Literal["progress", "log", "update_payload"], data: bytes) -> None:
        with self._lock:
            if not self._over:
                self._pipe.send(Note(kind, data))


def main(connection: Connection) -> None:
    """Serve requests until the pipe closes."""
    _leave_signals_to_parent()
    threading.Thread(target=_end_with_parent, name="inproc_jobs watches the parent", daemon=True).start()
    pipe = _Pipe(connection)
    handlers: dict[tuple[str, str], Handler] = {}
    try:
        pipe.send(Ready())
        while True:
            request = pipe.receive()
            if isinstance(request, Request):  # a cancel that comes now was for a run that is over
                pipe.send(_serve(pipe, request, handlers))
    except (EOFError, OSError):
        return


def _leave_signals_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not SIG_IGN: programs that a handler starts would inherit that, and could not be terminated by it any more.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if sys.platform != "win32":
        # The parent blocked them, so that neither could hit a child before this line.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _end_with_parent() -> None:
    import multiprocessing  # not above: the parent imports this module for its messages, whether it has children or not

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _serve(pipe: _Pipe, request: Request, handlers: dict[tuple[str, str], Handler]) -> Reply:
    """Run one job and say how it ended."""
    try:
        handler = handlers.get((request.module, request.qualname))
        if handler is None:
            fn = find_handler(request.module, request.qualname)
            handler = inspect_handler(fn, job_name=request.meta["name"], executor="process")
            handlers[request.module, request.qualname] = handler
        payload = handler.codec.decode(request.payload)
    except InvalidHandlerError as error:
        return NotUsable(reason_of(error))
    except BaseException as error:  # noqa: BLE001  # the user's module ran, and may raise anything
        return _failure(error)
    run = _ChildRun(pipe, request, handler)
    pipe.send(Started())
    try:
        result = contextvars.copy_context().run(_call, run, handler.fn, payload, request.wants_ctx)
    except BaseException as error:  # noqa: BLE001  # SystemExit and its like end a job, not the child
        return _failure(error)
    finally:
        run.finish()
    try:
        return Result(encode_json(result, "result"))
    except BaseException as error:  # noqa: BLE001  # user data: its methods may raise anything
        return NotStorable(reason_of(error))


def _call(run: _ChildRun, fn: Callable[..., Any], payload: Any, wants_ctx: bool) -> Any:
    for field, value in (("id", run.job.id), ("name", run.job.name), ("queue", run.queue_name)):
        _LOG_FIELDS[field].set(value)
    _LOG_FIELDS["attempt"].set(run.attempt)
    return fn(payload, JobContext(cast("Run", run))) if wants_ctx else fn(payload)


def find_handler(module: str, qualname: str) -> Callable[..., Any]:
    """
    The function that a definition was made from.

    `define_job` as a decorator has put a `JobDefinition` into the function's place; then it is taken from there.
    Other decorators are kept: what the name stands for is what runs.

    Raises:
        InvalidHandlerError: The module has no such function.
        BaseException: Whatever importing the module raises.
    """
    target: Any = importlib.import_module(module)
    for name in qualname.split("."):
        try:
            target = getattr(target, name)
        except AttributeError:
            raise InvalidHandlerError(
                f"the child process finds no {qualname!r} in module {module!r}; a handler with executor='process' "
                "must be a function on the top level of a module that can be imported"
            ) from None
    if hasattr(target, "dispatch"):
        for fn in (getattr(getattr(target, "handler", None), "fn", None), getattr(target, "__wrapped__", None)):
            if callable(fn):
                return cast("Callable[..., Any]", fn)
    if not callable(target):
        raise InvalidHandlerError(f"{qualname!r} in module {module!r} is no function but a {type(target).__name__}")
    return cast("Callable[..., Any]", target)


def _failure(error: BaseException) -> Failure:
    return Failure(_storable(type(error).__name__), reason_of(error), trace_of(error), _signal_of(error))


def _signal_of(error: BaseException) -> Signal | None:
    if isinstance(error, RetryLater | RateLimited):
        kind: Literal["retry_later", "rate_limited"] = (
            "rate_limited" if isinstance(error, RateLimited) else "retry_later"
        )
        return _with_delay(kind, error.delay)
    # By name too, as in the parent: it may come from the `bullmq` package.
    names = {cls.__name__ for cls in type(error).__mro__}
    is_final = isinstance(error, UnrecoverableError) or "UnrecoverableError" in names
    return Signal("unrecoverable") if is_final else None


def _with_delay(kind: Literal["retry_later", "rate_limited"], delay: Any) -> Signal:
    if isinstance(delay, timedelta):
        return Signal(kind, delay_us=delay // timedelta(microseconds=1))
    if isinstance(delay, str):
        return Signal(kind, _storable(delay))
    if isinstance(delay, float) or (isinstance(delay, int) and not isinstance(delay, bool) and abs(delay) < 2**63):
        return Signal(kind, delay)
    return Signal(kind, _storable(repr(delay)))  # refused in the parent, with this text


def _storable(text: str) -> str:
    """Lone surrogates cannot cross; a name or a line with one still must."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
