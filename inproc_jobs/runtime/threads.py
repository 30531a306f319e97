"""
Threads for handlers that are plain functions.

The pool is our own because the threads of `concurrent.futures` are joined when the interpreter exits, daemon or not:
one handler that hangs would hold up the whole process. It also cannot give up on a call that is running. Here every
thread is a daemon, and a run can be abandoned.

Rules:

- There is no queue. How many runs go on at once is bounded by the caller's slots, so each submit starts at once.
- A run ends in exactly one of two ways: `on_done` is called once, or `abandon` returned True and it never is.
- Idle threads end by themselves, so a host that is forgotten without a `close` leaks nothing.
- A forked child has none of these threads. It must never use a host that its parent made.
"""

from __future__ import annotations

import enum
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["IDLE_MS", "OnDone", "ThreadHost", "ThreadRun"]

IDLE_MS: Final = 10_000
"""How long a thread without work waits before it ends: longer than the pauses in usual traffic, since a start costs
several times a hand-over (about 100 us)."""

OnDone = Callable[[Any, BaseException | None], None]


class _RunState(enum.Enum):
    RUNNING = enum.auto()
    ENDED = enum.auto()
    ABANDONED = enum.auto()


class ThreadRun:
    """
    One call in a thread of a `ThreadHost`, as returned by `ThreadHost.submit`.

    The attributes belong to the host, which guards them with its lock.
    """

    __slots__ = ("call", "host", "on_done", "on_return", "state")

    def __init__(self, host: ThreadHost, call: Callable[[], Any], on_done: OnDone) -> None:
        self.host = host
        self.call: Callable[[], Any] | None = call
        self.on_done: OnDone | None = on_done
        self.on_return: Callable[[], None] | None = None
        self.state = _RunState.RUNNING

    def abandon(self, on_return: Callable[[], None] | None = None) -> bool:
        """
        Give up on this run, whose job timed out or whose engine stops. No thread can be killed, so it goes on alone.

        Its thread counts as abandoned until the call comes back, and then ends: the pool has replaced it long since.
        What the call returns or raises is dropped. A run that no thread has picked up yet never starts.

        Args:
            on_return: Called in that thread once the call has come back, such as to give a held slot free.

        Returns:
            True: `on_done` has not been called and never will be. False: the run had ended (or was abandoned
            before), `on_done` has been called or is about to be, and `on_return` is not called.
        """
        return self.host.abandon(self, on_return)


class ThreadHost:
    """
    A small pool of daemon threads that runs each call at once and can give up on it.

    Every method may be called from any thread. Making a host starts nothing.

    Args:
        name: Prefix of the threads' names.
        idle_ms: How long a thread waits for work before it ends.
    """

    def __init__(self, name: str, *, idle_ms: int = IDLE_MS) -> None:
        self._name = name
        self._idle_s = idle_ms / 1000
        self._lock = threading.Lock()
        # One inbox for all threads, not one per thread: with eight slots of short jobs a thread that has just
        # finished takes the next run without going to sleep, which made a round trip 20 us instead of 37 us.
        self._inbox: queue.SimpleQueue[ThreadRun | None] = queue.SimpleQueue()
        # Threads that wait and are not spoken for: waiting threads = _idle + entries in _inbox, always.
        self._idle = 0
        self._busy = 0
        self._abandoned = 0
        self._started = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    @property
    def busy(self) -> int:
        """Runs that go on and were not abandoned."""
        return self._busy

    @property
    def idle(self) -> int:
        """Threads that wait for work."""
        return self._idle

    @property
    def abandoned(self) -> int:
        """
        Threads stuck in a run that was given up on.

        The host sets no limit to them. The caller does, by holding back a slot until `on_return`.
        """
        return self._abandoned

    @property
    def closed(self) -> bool:
        """Whether `close` was called and `reopen` was not."""
        return self._closed

    def submit(self, call: Callable[[], Any], on_done: OnDone) -> ThreadRun:
        """
        Run `call` at once, in a thread that is idle or in a new one.

        Args:
            call: Runs the handler. Already bound to its payload and its context (`partial(ctx.run, fn, payload)`).
            on_done: Called in the worker thread with the result and None, or with None and what `call` raised: any
                BaseException, SystemExit, KeyboardInterrupt and StopIteration included. It must be quick and must
                not wait for another run, as its thread counts as idle already. What it raises goes to
                `threading.excepthook`, and the thread lives on.

        Returns:
            The run, which can be abandoned.

        Raises:
            RuntimeError: The host is closed, or the system grants no new thread. Nothing runs.

        Cost: O(1), about 20 us for the round trip to an event loop and back when several runs are on their way.
        """
        run = ThreadRun(self, call, on_done)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"thread host {self._name!r} is closed; call reopen() first")
            self._busy += 1
            if self._idle:
                self._idle -= 1
                self._inbox.put(run)
                return run
            thread = self._new_thread(run)
        self._start(thread, run)
        return run

    def abandon(self, run: ThreadRun, on_return: Callable[[], None] | None = None) -> bool:
        """Give up on a run; see `ThreadRun.abandon`."""
        with self._lock:
            if run.state is not _RunState.RUNNING:
                return False
            run.state = _RunState.ABANDONED
            run.on_done = None
            run.on_return = on_return
            self._busy -= 1
            self._abandoned += 1
            return True

    def close(self, timeout_ms: int = 0) -> int:
        """
        Let idle threads end now, and busy ones after their call. Abandoned runs end on their own.

        Closing twice does nothing more. Runs that go on keep their `on_done`, unless they are abandoned.

        Args:
            timeout_ms: How long to wait for the threads to end. 0 returns at once.

        Returns:
            How many threads are still there. The calling thread, should it be one of them, is not waited for.
        """
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._inbox.put(None)
            self._idle = 0
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_ms / 1000
        for thread in threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return sum(_is_there(thread) for thread in threads)

    def reopen(self) -> None:
        """
        Take runs again after a `close`.

        An engine that is started again reopens its host, so that threads stuck since the last time stay counted.
        """
        with self._lock:
            self._closed = False

    def _new_thread(self, run: ThreadRun) -> threading.Thread:
        self._started += 1
        thread = threading.Thread(target=self._work, args=(run,), name=f"{self._name}-{self._started}", daemon=True)
        self._threads = [known for known in self._threads if _is_there(known)]
        self._threads.append(thread)
        return thread

    def _start(self, thread: threading.Thread, run: ThreadRun) -> None:
        """Start a thread; not under the lock, since that waits until the thread breathes."""
        try:
            thread.start()
        except Exception:
            with self._lock:
                self._busy -= 1
                self._threads.remove(thread)
            raise
        except BaseException:  # Ctrl-C while start() waited: the thread exists, and the caller never gets its run
            self.abandon(run)
            raise

    def _work(self, first: ThreadRun) -> None:
        """The life of one thread."""
        run: ThreadRun | None = first
        del first  # a thread that waits must keep no payload alive
        while run is not None and self._execute(run):
            run = None
            run = self._next()

    def _next(self) -> ThreadRun | None:
        """The next run for this thread, or None when it should end."""
        while True:
            try:
                return self._inbox.get(timeout=self._idle_s)
            except queue.Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return None
                # Every waiting thread is spoken for, this one too: its run was put into the inbox just now.

    def _execute(self, run: ThreadRun) -> bool:
        """Run one call and report it. Returns whether this thread stays in the pool."""
        call, run.call = run.call, None
        result: Any = None
        error: BaseException | None = None
        if call is not None and run.state is _RunState.RUNNING:
            try:
                result = call()
            except BaseException as caught:  # noqa: BLE001  # SystemExit and its like end a job, never the thread
                error = caught
        call = None
        stays, report, late = self._settle(run)
        try:
            if late is not None:
                late()
            elif report is not None:
                report(result, error)
        except BaseException as broken:  # noqa: BLE001  # goes to threading.excepthook
            _show(broken)
        finally:
            result = error = None  # the error's traceback holds this frame: a cycle, and with it the payload
        return stays

    def _settle(self, run: ThreadRun) -> tuple[bool, OnDone | None, Callable[[], None] | None]:
        """Close a run in the books: whether its thread stays, and who is to be told."""
        with self._lock:
            if run.state is _RunState.ABANDONED:
                self._abandoned -= 1
                late, run.on_return = run.on_return, None
                return False, None, late
            run.state = _RunState.ENDED
            report, run.on_done = run.on_done, None
            self._busy -= 1
            if self._closed:
                return False, report, None
            # Idle before the report: the loop that hears it submits the next run before this thread gets the GIL
            # back, and would start a second thread for a single slot.
            self._idle += 1
            return True, report, None


def _is_there(thread: threading.Thread) -> bool:
    """Whether a thread runs, or is being started by a submit elsewhere."""
    return thread.ident is None or thread.is_alive()


def _show(error: BaseException) -> None:
    """Hand an error to `threading.excepthook`, as if it had ended the thread."""
    details = threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
    try:
        threading.excepthook(details)
    except BaseException as broken_hook:  # noqa: BLE001  # the hook is the application's; a thread of the pool must outlive it
        sys.__excepthook__(type(broken_hook), broken_hook, broken_hook.__traceback__)
