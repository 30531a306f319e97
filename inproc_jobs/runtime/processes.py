"""
Processes for handlers with `executor="process"`.

A `ProcessHost` keeps up to `max_workers` child processes and lends each to one call at a time. A call blocks, so it
belongs into a thread of a `ThreadHost`; `ProcessCall.kill` ends it from any other thread, by ending its process.

Rules:

- Children are spawned, never forked: a fork copies locks that other threads hold. The price is that a child imports
  the program's main module again (`_process_child` says more) and takes some tenths of a second to come up. It stays
  for the next call.
- Whoever takes a worker out of the idle list gets rid of it: nobody else closes a pipe that a thread may be reading.
- No wait here reads a clock. It counts short real waits instead, so that tests which freeze time cannot hang it.
- Children end with their host's `close`, with its garbage collection, at exit, and when the parent dies.

This module is imported at the first run of such a handler and `multiprocessing` with the first host: most programs have
no such handler.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final, assert_never

from inproc_jobs.errors import (
    InprocJobsError,
    InvalidHandlerError,
    JobSignal,
    RateLimited,
    ResultNotStorableError,
    RetryLater,
    UnrecoverableError,
)
from inproc_jobs.runtime import _process_child as wire
from inproc_jobs.runtime._process_child import RunMeta
from inproc_jobs.runtime.failures import RemoteHandlerError
from inproc_jobs.runtime.payloads import decode_json

__all__ = ["ProcessCall", "ProcessDiedError", "ProcessHost", "RemoteHandlerError", "RunMeta"]

START_TIMEOUT_MS: Final = 60_000
"""How long a child may take until it calls the handler. Heavy imports take seconds; one that never ends is a main
module that runs its program when imported."""
KILL_TIMEOUT_MS: Final = 5_000
"""How long to wait for a killed process to be gone; longer only if the system itself is stuck."""
FAREWELL_MS: Final = 1_000
"""How long a child without work may take to end, its own exit handlers included."""
TICK_MS: Final = 500
"""How often a wait looks whether the process is still there, should its pipe be held open by a grandchild."""

OnMessage = Callable[[str, Any], None]

# `Process.start` is not made for several threads at once, whichever host they belong to.
_starting = threading.Lock()


class ProcessDiedError(InprocJobsError):
    """
    A child process vanished in the middle of a call.

    Attributes:
        exit_code: Its exit code, -N when signal N killed it; None when nobody could tell.
        killed: It was killed on purpose, by `ProcessCall.kill` or `ProcessHost.close`.
        started: The handler had been called, so its effects may be half done.
    """

    def __init__(self, message: str, *, exit_code: int | None, killed: bool, started: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.killed = killed
        self.started = started


class _GoneError(Exception):
    """The other end of the pipe is closed."""


class _TooSlowError(Exception):
    """The handler was not called in time."""


class _Worker:
    """One child process and the pipe to it."""

    def __init__(self, name: str) -> None:
        import multiprocessing

        spawn = multiprocessing.get_context("spawn")
        self._connection, child_end = spawn.Pipe()
        # No daemon in multiprocessing's sense: those may not have children, which a handler may need.
        self._process = spawn.Process(target=wire.main, args=(child_end,), name=name, daemon=False)
        self._lock = threading.Lock()
        self._disposed = False
        self.exit_code: int | None = None
        self.is_ready = False
        self.killed = False
        try:
            with _starting, _signals_blocked():
                self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            child_end.close()

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended. If so, it is collected, and `exit_code` tells how if anybody can."""
        with self._lock:
            return self._look()

    @property
    def is_fit(self) -> bool:
        """Whether a worker without work can be given some. One that has died meanwhile has closed its pipe."""
        return not self.is_gone and not self._connection.poll(0)

    def send(self, message: wire.Message) -> None:
        """Send a message; _GoneError when nobody can hear it."""
        try:
            self._connection.send_bytes(wire.encode(message))
        except OSError as error:
            raise _GoneError from error

    def receive(self, timeout_ms: int | None) -> wire.FromChild:
        """
        The next message.

        Raises:
            _GoneError: There will be none.
            _TooSlowError: There was none within the timeout.
        """
        from multiprocessing.connection import wait

        waited_ms = 0
        while True:
            ready = wait([self._connection, self._process.sentinel], TICK_MS / 1000)
            try:
                if self._connection in ready or self._connection.poll(0):
                    return wire.decode_in_parent(self._connection.recv_bytes())
            except (EOFError, OSError) as error:
                raise _GoneError from error
            if ready or self.is_gone:
                raise _GoneError
            waited_ms += TICK_MS
            if timeout_ms is not None and waited_ms >= timeout_ms:
                raise _TooSlowError

    def kill(self) -> None:
        """End the process now; from any thread."""
        with self._lock:
            if not self._look():
                self.killed = True
                self._process.kill()

    def hang_up(self) -> None:
        """Close the pipe: a child without work ends."""
        self._connection.close()

    def dispose(self, farewell_ms: int = FAREWELL_MS) -> None:
        """Get rid of process and pipe: no zombie, no open file. The only road out of existence."""
        self.hang_up()
        if not _wait_gone([self], farewell_ms):
            self.kill()
            _wait_gone([self], KILL_TIMEOUT_MS)
        with self._lock:
            self._disposed = True
            try:
                self._process.close()
            except ValueError:
                # Cannot even be killed, being stuck in the system; or multiprocessing does not know that it is gone.
                pass

    def _look(self) -> bool:
        if self._disposed:
            return True
        self.exit_code = self._process.exitcode
        if self.exit_code is not None:
            return True
        # In a program that ignores SIGCHLD, or waits for all children itself, there is no exit code to be had.
        return sys.platform != "win32" and not _exists(self._process.pid)


class ProcessCall:
    """One call of a handler in a child process, made by `ProcessHost.prepare`. Good for one `run`."""

    def __init__(
        self,
        host: ProcessHost,
        request: wire.Request,
        on_message: OnMessage,
        on_start: Callable[[], None] | None,
    ) -> None:
        self._host = host
        self._request = request
        self._on_message = on_message
        self._on_start = on_start
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._started = False
        self._cancelled = False
        self._killed = False
        self._over = False

    @property
    def killed(self) -> bool:
        """Whether `kill` came before the end."""
        return self._killed

    def run(self) -> bytes:
        """
        Run the handler and wait for it. Blocks.

        Returns:
            The result as JSON text.

        Raises:
            RemoteHandlerError: The handler, or the import of its module, raised.
            ResultNotStorableError: The handler did its work and returned what is not JSON.
            InvalidHandlerError: The child does not find the handler, or it cannot be used there.
            ProcessDiedError: The process vanished, was killed, or did not get to the handler in time.
            RuntimeError: The host is closed.
        """
        worker = self._host.borrow(self)
        reply: wire.Reply | None = None
        death: ProcessDiedError | None = None
        try:
            reply = self._talk(worker)
        except _GoneError:
            death = self._death(worker)
        except _TooSlowError:
            death = self._too_slow()
        finally:
            # Whatever else came, such as an error of on_message: this worker is in the middle of something.
            killed = self._let_go()
            self._host.give_back(worker, usable=reply is not None and not killed)
        if reply is not None and not killed:
            return _outcome(reply)
        raise death or self.death_on_request()

    def kill(self) -> bool:
        """
        End this call by killing its process, from any thread and at any time. Does not wait.

        The worker is replaced when the next call needs one. Processes that the handler itself started go on.

        Returns:
            True: `run` raises ProcessDiedError, at once when it has not begun. False: it is over already.
        """
        with self._lock:
            if self._over:
                return False
            self._killed = True
            if self._worker is not None:
                self._worker.kill()
        self._host.nudge()
        return True

    def cancel(self) -> None:
        """Make `ctx.cancelled` True for the handler, from any thread. It may look there or not."""
        with self._lock:
            self._cancelled = True
            if self._started and self._worker is not None:
                self._send_cancel(self._worker)

    def attach(self, worker: _Worker) -> bool:
        """The host lends this call a worker. False when the call was killed before."""
        with self._lock:
            if not self._killed:
                self._worker = worker
            return not self._killed

    def death_on_request(self) -> ProcessDiedError:
        """The error for a call that was killed."""
        text = f"the process of {self._label()} was killed on request"
        return ProcessDiedError(text, exit_code=None, killed=True, started=self._started)

    def _talk(self, worker: _Worker) -> wire.Reply:
        """Send the request and listen until the reply."""
        while not worker.is_ready:
            worker.is_ready = isinstance(worker.receive(START_TIMEOUT_MS), wire.Ready)
        worker.send(self._request)
        while True:
            message = worker.receive(None if self._started else START_TIMEOUT_MS)
            if isinstance(message, wire.Note):
                self._on_message(message.kind, decode_json(message.data))
            elif isinstance(message, wire.Started):
                self._begin(worker)
            elif not isinstance(message, wire.Ready):
                return message

    def _begin(self, worker: _Worker) -> None:
        with self._lock:
            self._started = True
            if self._cancelled:
                self._send_cancel(worker)
        if self._on_start is not None:
            self._on_start()

    def _send_cancel(self, worker: _Worker) -> None:
        # Only once the handler runs: the child has read the request then, so this fits into the pipe and cannot block.
        try:
            worker.send(wire.Cancel())
        except _GoneError:
            pass  # `run` notices too

    def _let_go(self) -> bool:
        """From here on `kill` does nothing. Whether it was called."""
        with self._lock:
            self._over = True
            self._worker = None
            return self._killed

    def _label(self) -> str:
        return f"job {self._request.meta['id']!r} ({self._request.meta['name']})"

    def _death(self, worker: _Worker) -> ProcessDiedError:
        """Why a process is gone. One that closed its pipe and lives on counts as gone, too."""
        _wait_gone([worker], FAREWELL_MS)
        if worker.killed:
            return self.death_on_request()
        code = worker.exit_code
        if worker.is_ready:
            text = f"the process that ran {self._label()} vanished, {_describe_exit(code)}"
        else:
            text = (
                f"the process for {self._label()} could not start, {_describe_exit(code)}; its standard error says why. "
                "A child imports the program's main module again, so start code belongs under "
                'if __name__ == "__main__":'
            )
        return ProcessDiedError(text, exit_code=code, killed=False, started=self._started)

    def _too_slow(self) -> ProcessDiedError:
        text = (
            f"the process for {self._label()} did not get to the handler within {START_TIMEOUT_MS // 1000} s. A child "
            "imports the program's main module and the handler's; start code belongs under "
            'if __name__ == "__main__":'
        )
        return ProcessDiedError(text, exit_code=None, killed=False, started=False)


class ProcessHost:
    """
    A few child processes, each of which runs one handler at a time.

    Every method may be called from any thread. Making a host starts no process; each call takes an idle one or starts
    one, and waits when `max_workers` are busy.

    Args:
        max_workers: How many processes there may be, at least 1.
        name: Prefix of the processes' names.
    """

    def __init__(self, max_workers: int, *, name: str = "inproc_jobs-process") -> None:
        from multiprocessing.util import Finalize

        if max_workers < 1:
            raise ValueError(f"max_workers is {max_workers}; a process host needs at least 1")
        self._max_workers = max_workers
        self._name = name
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._taken = 0
        self._closed = False
        # Shared with the finalizer, which must not know the host.
        self._workers: set[_Worker] = set()
        # Unlike atexit, this comes before multiprocessing waits for its children, and also in processes that
        # multiprocessing itself started (the workers of some web servers).
        Finalize(self, _kill_all, args=(self._workers,), exitpriority=10)

    @property
    def idle(self) -> int:
        """Processes that wait for work."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Processes that run a handler, start, or are being got rid of."""
        return self._taken

    @property
    def closed(self) -> bool:
        """Whether `close` was called and `reopen` was not."""
        return self._closed

    def prepare(
        self,
        module: str,
        qualname: str,
        payload: bytes,
        meta: RunMeta,
        *,
        wants_ctx: bool,
        on_message: OnMessage,
        on_start: Callable[[], None] | None = None,
    ) -> ProcessCall:
        """
        A call that can be killed from elsewhere while `ProcessCall.run` blocks. Starts nothing yet.

        Args:
            module: Where the handler is, as in `fn.__module__`. "__main__" works for programs started from a file.
            qualname: Its name there, as in `fn.__qualname__`; what a `define_job` decorator left there will do.
            payload: JSON text.
            meta: What the handler's context shows.
            wants_ctx: Whether the handler takes a context.
            on_message: Called in the thread of `run` with "progress", "log" or "update_payload" and the JSON value.
                What it raises ends the call, and its process with it.
            on_start: Called in that thread right before the handler is. A timeout is best counted from here: a
                process that is killed while it still imports its modules would never get any further.
        """
        request = wire.Request(module, qualname, payload, wants_ctx, meta)
        return ProcessCall(self, request, on_message, on_start)

    def call(
        self, module: str, qualname: str, payload: bytes, meta: RunMeta, *, wants_ctx: bool, on_message: OnMessage
    ) -> bytes:
        """Run a handler and wait for it; see `prepare` for the arguments and `ProcessCall.run` for the rest."""
        return self.prepare(module, qualname, payload, meta, wants_ctx=wants_ctx, on_message=on_message).run()

    def close(self, timeout_ms: int = 10_000) -> int:
        """
        Let idle processes end now and busy ones after their call; kill what is left. Blocks. Closing twice is fine.

        Args:
            timeout_ms: How long calls may still go on.

        Returns:
            How many processes were killed in the middle of a call.
        """
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for worker in idle:
            worker.hang_up()
        with self._changed:
            self._changed.wait_for(lambda: not self._taken, timeout_ms / 1000)
            left = self._workers.difference(idle) if self._taken else set()
        for worker in left:
            worker.kill()
        _wait_gone(idle, FAREWELL_MS)
        for worker in idle:
            worker.dispose(0)
        with self._changed:
            self._workers.difference_update(idle)
            self._changed.wait_for(lambda: not self._taken, KILL_TIMEOUT_MS / 1000)
        return len(left)

    def reopen(self) -> None:
        """Take calls again after a `close`."""
        with self._changed:
            self._closed = False

    # --- for ProcessCall --------------------------------------------------------------------------------------------

    def borrow(self, call: ProcessCall) -> _Worker:
        """A worker for this call alone; waits for one if all are busy."""
        worker = self._take(call)
        if worker is not None and not worker.is_fit:
            self._drop(worker)
            worker = None
        if worker is None:
            worker = self._make()
        if call.attach(worker):
            return worker
        self.give_back(worker, usable=worker.is_ready)
        raise call.death_on_request()

    def give_back(self, worker: _Worker, *, usable: bool) -> None:
        """The end of a `borrow`."""
        with self._changed:
            if usable and not self._closed:
                self._idle.append(worker)
                self._taken -= 1
                self._changed.notify()
                return
        if not usable:
            worker.kill()
        self._drop(worker)
        self._free_place()

    def nudge(self) -> None:
        """A call was killed that may be waiting for a worker."""
        with self._changed:
            self._changed.notify_all()

    def _take(self, call: ProcessCall) -> _Worker | None:
        """An idle worker, or None for the place to make one."""
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("the process host is closed; call reopen() first")
                if call.killed:
                    raise call.death_on_request()
                if self._idle or self._taken < self._max_workers:
                    self._taken += 1
                    return self._idle.pop() if self._idle else None
                self._changed.wait()

    def _make(self) -> _Worker:
        try:
            worker = _Worker(f"{self._name}-{next(self._numbers)}")
        except BaseException:
            self._free_place()
            raise
        with self._changed:
            self._workers.add(worker)
            if not self._closed:
                return worker
        self.give_back(worker, usable=False)
        raise RuntimeError("the process host was closed meanwhile")

    def _drop(self, worker: _Worker) -> None:
        worker.dispose()
        with self._changed:
            self._workers.discard(worker)

    def _free_place(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()


def _outcome(reply: wire.Reply) -> bytes:
    """What a reply means for whoever asked."""
    match reply:
        case wire.Result():
            return reply.data
        case wire.Failure():
            signal = None if reply.signal is None else _rebuild(reply.signal, reply.message)
            raise RemoteHandlerError(reply.type_name, reply.message, reply.traceback, signal)
        case wire.NotStorable():
            raise ResultNotStorableError(f"the handler returned what cannot be stored: {reply.message}")
        case wire.NotUsable():
            raise InvalidHandlerError(reply.message)
        case _:
            assert_never(reply)


def _rebuild(signal: wire.Signal, message: str) -> JobSignal:
    if signal.kind == "unrecoverable":
        return UnrecoverableError(message)
    delay = signal.delay if signal.delay_us is None else timedelta(microseconds=signal.delay_us)
    return RateLimited(delay, message) if signal.kind == "rate_limited" else RetryLater(delay, message)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "with an unknown exit code"
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often the system's, for lack of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}, exit code {code}"


def _wait_gone(workers: list[_Worker], timeout_ms: int) -> bool:
    """Wait for the end of processes, and collect them."""
    # Not by Process.join: that takes the closing of an inherited pipe for the end of the process and then waits without
    # a limit, so a handler that closes all files would hold it for as long as it lives.
    waited_ms, pause_ms = 0, 1
    while not all(worker.is_gone for worker in workers):
        if waited_ms >= timeout_ms:
            return False
        time.sleep(pause_ms / 1000)
        waited_ms += pause_ms
        pause_ms = min(2 * pause_ms, 50)
    return True


def _exists(pid: int | None) -> bool:
    assert pid is not None  # only asked about processes that were started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _kill_all(workers: set[_Worker]) -> None:
    """At exit, or when the host was forgotten."""
    for worker in list(workers):
        worker.kill()
    _wait_gone(list(workers), KILL_TIMEOUT_MS)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """
    Block SIGINT and SIGTERM in this thread, since a child inherits that.

    Without it a Ctrl-C while a child comes up kills it with a traceback, before it can say that it ignores them.
    """
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise start() does it, and unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
