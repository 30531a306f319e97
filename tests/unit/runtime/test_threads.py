"""The thread host: every run starts at once, reports exactly once or never, and nothing holds up the process."""

import asyncio
import gc
import queue
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest

from inproc_jobs.runtime.threads import ThreadHost, ThreadRun

WAIT_S = 20.0
"""How long a test waits for what must happen. Only a broken host makes a test wait that long."""


class Gate:
    """A call that waits until the test opens the gate."""

    def __init__(self, result: Any = "late") -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.result = result

    def __call__(self) -> Any:
        self.entered.set()
        assert self.opened.wait(WAIT_S)
        return self.result


@pytest.fixture
def host() -> Iterator[ThreadHost]:
    host = ThreadHost("test-host")
    yield host
    assert host.close(timeout_ms=int(WAIT_S * 1000)) == 0


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Threads take turns every few microseconds, so that races are met."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def start(host: ThreadHost, call: Callable[[], Any]) -> "tuple[ThreadRun, Future[tuple[Any, BaseException | None]]]":
    """Submit a call; the future gets what `on_done` gets."""
    done: Future[tuple[Any, BaseException | None]] = Future()
    run = host.submit(call, lambda result, error: done.set_result((result, error)))
    return run, done


def outcome(host: ThreadHost, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    return start(host, call)[1].result(WAIT_S)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other threads bring about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        threading.Event().wait(0.001)


def never(*_: Any) -> None:
    raise AssertionError("must not be called")


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


# --- results ----------------------------------------------------------------------------------------------------


def test_a_result_is_reported_from_the_worker_thread(host: ThreadHost) -> None:
    """`on_done` gets the value and no error, in the daemon thread that ran the call."""
    seen: Future[tuple[Any, Any, threading.Thread]] = Future()
    ran_in: list[threading.Thread] = []

    def call() -> int:
        ran_in.append(threading.current_thread())
        return 42

    host.submit(call, lambda result, error: seen.set_result((result, error, threading.current_thread())))
    result, error, thread = seen.result(WAIT_S)
    assert (result, error) == (42, None)
    assert thread is ran_in[0]
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert thread.name == "test-host-1"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        BaseException("bare"),
        StopIteration("next() on nothing"),
        StopAsyncIteration(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_call_raises_is_reported(host: ThreadHost, error: BaseException) -> None:
    """Every BaseException is handed on as it is, and the same thread runs the next call (C100, C101)."""

    def call() -> None:
        raise error

    assert outcome(host, call) == (None, error)
    assert outcome(host, threading.current_thread)[0].name == "test-host-1"


def test_next_on_an_empty_iterator_is_reported(host: ThreadHost) -> None:
    """A bare `next(iter([]))` ends its run instead of leaving the caller waiting for ever (C101)."""
    assert isinstance(outcome(host, lambda: next(iter([])))[1], StopIteration)


def test_a_run_has_the_context_its_call_is_bound_to(host: ThreadHost) -> None:
    """What a run sets in its context reaches neither the next run in that thread nor the caller."""
    var: ContextVar[str] = ContextVar("var", default="unset")
    var.set("caller")
    first = copy_context()
    assert outcome(host, partial(first.run, lambda: (var.get(), var.set("job"))[0])) == ("caller", None)
    assert outcome(host, partial(copy_context().run, var.get)) == ("caller", None)
    assert outcome(host, var.get) == ("unset", None)
    assert first[var] == "job"


async def test_results_reach_an_event_loop(host: ThreadHost) -> None:
    """A thousand runs from one loop come back, on no more threads than there were runs at once."""
    loop = asyncio.get_running_loop()
    ran_in: set[str] = set()

    async def one(number: int) -> int:
        future: asyncio.Future[int] = loop.create_future()

        def call() -> int:
            ran_in.add(threading.current_thread().name)
            return number

        host.submit(call, lambda result, _: loop.call_soon_threadsafe(future.set_result, result))
        return await asyncio.wait_for(future, WAIT_S)

    async def slot(numbers: range) -> list[int]:
        return [await one(number) for number in numbers]

    results = await asyncio.gather(*(slot(range(start, 1000, 4)) for start in range(4)))
    assert sorted(number for part in results for number in part) == list(range(1000))
    assert len(ran_in) <= 4


async def test_one_slot_uses_one_thread(host: ThreadHost) -> None:
    """A thread counts as idle before it reports, so the loop that hears the report does not start a second one."""
    loop = asyncio.get_running_loop()
    for _ in range(50):
        future: asyncio.Future[str] = loop.create_future()
        host.submit(
            lambda: threading.current_thread().name,
            lambda result, _, future=future: loop.call_soon_threadsafe(future.set_result, result),
        )
        assert await asyncio.wait_for(future, WAIT_S) == "test-host-1"


# --- concurrency ------------------------------------------------------------------------------------------------


def test_every_submit_starts_at_once(host: ThreadHost) -> None:
    """There is no queue: with every thread busy, the next submit gets a thread of its own."""
    gates = [Gate(number) for number in range(20)]
    dones = [start(host, gate)[1] for gate in gates]
    assert all(gate.entered.wait(WAIT_S) for gate in gates)
    assert (host.busy, host.idle, host.abandoned) == (20, 0, 0)
    for gate in gates:
        gate.opened.set()
    assert [done.result(WAIT_S) for done in dones] == [(number, None) for number in range(20)]
    assert (host.busy, host.idle) == (0, 20)


def test_submits_from_many_threads_at_once_lose_nothing(host: ThreadHost) -> None:
    """Any thread may submit; each run is run once and reported once."""
    reports: list[int] = []
    barrier = threading.Barrier(8)

    def producer(start_at: int) -> None:
        barrier.wait(WAIT_S)
        for number in range(start_at, start_at + 250):
            done = threading.Event()
            host.submit(lambda number=number: number, lambda result, _, done=done: (reports.append(result), done.set()))
            assert done.wait(WAIT_S)

    producers = [threading.Thread(target=producer, args=(250 * part,)) for part in range(8)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join(WAIT_S)
    assert sorted(reports) == list(range(2000))
    assert host.busy == 0
    assert host.idle <= 8


# --- giving up --------------------------------------------------------------------------------------------------


def test_an_abandoned_run_never_reports(host: ThreadHost) -> None:
    """After `abandon` the late result is dropped, and `on_return` tells that the thread is free of it (C104)."""
    gate = Gate()
    came_back = threading.Event()
    run, done = start(host, gate)
    assert gate.entered.wait(WAIT_S)
    assert run.abandon(came_back.set) is True
    assert (host.busy, host.abandoned) == (0, 1)
    gate.opened.set()
    assert came_back.wait(WAIT_S)
    assert (host.busy, host.idle, host.abandoned) == (0, 0, 0)
    assert not done.done()
    eventually(lambda: not threads_of("test-host"))


def test_a_stuck_thread_is_replaced(host: ThreadHost) -> None:
    """Five calls that hang are visible as such, and a quick one runs all the same (C104)."""
    gates = [Gate() for _ in range(5)]
    for gate in gates:
        run, _ = start(host, gate)
        assert gate.entered.wait(WAIT_S)
        run.abandon()
    assert host.abandoned == 5
    assert outcome(host, lambda: "quick") == ("quick", None)
    for gate in gates:
        gate.opened.set()
    eventually(lambda: host.abandoned == 0)


def test_abandon_after_the_end_changes_nothing(host: ThreadHost) -> None:
    """A run that has reported cannot be abandoned any more, and the counts stay right."""
    called = threading.Event()
    run, done = start(host, lambda: 1)
    assert done.result(WAIT_S) == (1, None)
    assert run.abandon(called.set) is False
    assert (host.busy, host.abandoned) == (0, 0)
    assert not called.is_set()


def test_abandon_twice(host: ThreadHost) -> None:
    """The second `abandon` says False and does not count the thread again."""
    gate = Gate()
    run, _ = start(host, gate)
    assert run.abandon() is True
    assert run.abandon() is False
    assert host.abandoned == 1
    gate.opened.set()
    eventually(lambda: host.abandoned == 0)


def test_a_run_that_was_not_picked_up_does_not_start_once_abandoned(host: ThreadHost) -> None:
    """Giving up before the thread got there means that the handler never runs."""
    in_report, go_on, returned = threading.Event(), threading.Event(), threading.Event()
    ran: list[str] = []

    def slow_report(result: Any, error: BaseException | None) -> None:
        in_report.set()
        go_on.wait(WAIT_S)

    host.submit(lambda: None, slow_report)
    assert in_report.wait(WAIT_S)
    run, _ = start(host, lambda: ran.append("ran"))  # goes to the thread that is still reporting
    assert run.abandon(returned.set)
    go_on.set()
    assert returned.wait(WAIT_S)
    assert ran == []


def test_abandon_races_with_the_end(host: ThreadHost, hasty_switches: None) -> None:
    """Either `abandon` is True and nothing is reported, or it is False and exactly one report comes."""
    outcomes: list[bool] = []
    for turn in range(5_000):
        if turn >= 400 and len(set(outcomes)) == 2:
            break  # a busy machine may take longer to meet the race from both sides
        # Now the run is a little longer, now the time until the abandon, so that one moves across the other.
        run_spins, abandon_spins = (turn * 10, 0) if turn % 2 else (0, turn * 10)
        reports: list[BaseException | None] = []
        started, over = threading.Event(), threading.Event()

        def call(started: threading.Event = started, spins: int = run_spins) -> None:
            started.set()
            sum(range(spins))

        def report(_: Any, error: BaseException | None, reports: Any = reports, over: Any = over) -> None:
            reports.append(error)
            over.set()

        run = host.submit(call, report)
        assert started.wait(WAIT_S)
        sum(range(abandon_spins))
        abandoned = run.abandon(over.set)
        assert over.wait(WAIT_S)
        assert reports == ([] if abandoned else [None])
        outcomes.append(abandoned)
    assert set(outcomes) == {True, False}, "the race was not met from both sides"
    eventually(lambda: (host.busy, host.abandoned) == (0, 0))


# --- broken callbacks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_an_error_in_a_report_is_seen_and_survived(
    host: ThreadHost, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """What `on_done` raises goes to `threading.excepthook`, with its thread, and the thread runs the next call."""
    seen: Future[threading.ExceptHookArgs] = Future()
    monkeypatch.setattr(threading, "excepthook", seen.set_result)

    def report(result: Any, _: BaseException | None) -> None:
        raise error

    host.submit(lambda: None, report)
    args = seen.result(WAIT_S)
    assert args.exc_value is error
    assert args.thread is not None
    assert args.thread.name == "test-host-1"
    assert outcome(host, lambda: threading.current_thread().name) == ("test-host-1", None)


def test_a_broken_excepthook_is_survived(
    host: ThreadHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where the application's own hook raises, the pool lives on and says what happened."""

    def hook(args: threading.ExceptHookArgs) -> None:
        raise LookupError("the hook is broken")

    def report(result: Any, _: BaseException | None) -> None:
        raise ValueError("the report is broken")

    monkeypatch.setattr(threading, "excepthook", hook)
    host.submit(lambda: None, report)
    assert outcome(host, lambda: 1) == (1, None)
    eventually(lambda: "the hook is broken" in capsys.readouterr().err)


def test_a_thread_that_cannot_start_leaves_the_host_usable(host: ThreadHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system grants no thread, submit raises, the call never runs and nothing stays counted."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            host.submit(never, never)
    assert (host.busy, host.idle, host.abandoned) == (0, 0, 0)
    assert outcome(host, lambda: 1) == (1, None)


# --- threads end ------------------------------------------------------------------------------------------------


def test_idle_threads_end_by_themselves() -> None:
    """A host that is never closed keeps no thread for longer than its idle time, and works again after that."""
    host = ThreadHost("test-idle", idle_ms=10)
    assert outcome(host, lambda: 1) == (1, None)
    eventually(lambda: not threads_of("test-idle"))
    assert host.idle == 0
    assert outcome(host, lambda: 2) == (2, None)
    eventually(lambda: not threads_of("test-idle"))


def test_a_run_for_a_thread_that_was_about_to_end() -> None:
    """A thread whose idle time is over just when a run is handed to it stays and runs it."""
    host = ThreadHost("test-race")
    waiting, time_is_up = threading.Event(), threading.Event()
    inbox = host._inbox

    class Inbox:
        put = inbox.put

        def get(self, timeout: float) -> ThreadRun | None:
            if time_is_up.is_set():
                return inbox.get(timeout=timeout)
            waiting.set()
            assert time_is_up.wait(WAIT_S)
            raise queue.Empty

    host._inbox = Inbox()
    assert outcome(host, lambda: 1) == (1, None)
    assert waiting.wait(WAIT_S)
    _, done = start(host, lambda: threading.current_thread().name)
    time_is_up.set()
    assert done.result(WAIT_S) == ("test-race-1", None)
    eventually(lambda: (host.busy, host.idle) == (0, 1))
    assert host.close(timeout_ms=int(WAIT_S * 1000)) == 0


def test_submits_race_with_the_end_of_idle_threads() -> None:
    """A host whose threads end all the time still runs everything, and counts right."""
    host = ThreadHost("test-hasty", idle_ms=1)
    for turn in range(200):
        assert outcome(host, lambda turn=turn: turn) == (turn, None)
        threading.Event().wait(0.0005 + (turn % 7) * 0.0001)
    eventually(lambda: not threads_of("test-hasty"))
    assert (host.busy, host.idle) == (0, 0)


def test_close_ends_idle_threads_at_once_and_busy_ones_after_their_call() -> None:
    """A close takes no run away: a busy thread reports first and then ends."""
    host = ThreadHost("test-close")
    gate = Gate("done")
    _, done = start(host, gate)
    assert gate.entered.wait(WAIT_S)
    assert outcome(host, lambda: 1) == (1, None)
    assert host.close() >= 1
    eventually(lambda: len(threads_of("test-close")) == 1)
    assert not done.done()
    gate.opened.set()
    assert done.result(WAIT_S) == ("done", None)
    assert host.close(timeout_ms=int(WAIT_S * 1000)) == 0
    assert threads_of("test-close") == []


def test_close_is_bounded_by_its_timeout() -> None:
    """A call that hangs does not hold up a close; it is counted in what close returns."""
    host = ThreadHost("test-bounded")
    gate = Gate()
    run, _ = start(host, gate)
    assert gate.entered.wait(WAIT_S)
    run.abandon()
    assert host.close(timeout_ms=1) == 1
    assert host.abandoned == 1
    gate.opened.set()
    assert host.close(timeout_ms=int(WAIT_S * 1000)) == 0


def test_close_from_one_of_its_own_threads_does_not_wait_for_itself() -> None:
    """A handler that stops the engine is not a deadlock."""
    host = ThreadHost("test-self")
    assert outcome(host, partial(host.close, timeout_ms=int(WAIT_S * 1000))) == (1, None)
    eventually(lambda: not threads_of("test-self"))


def test_a_closed_host_refuses_and_can_be_opened_again() -> None:
    """Stop, stop, start, run (C112). Threads stuck since before stay counted."""
    host = ThreadHost("test-again")
    gate = Gate()
    run, _ = start(host, gate)
    run.abandon()
    host.close()
    host.close()
    assert host.closed
    with pytest.raises(RuntimeError, match="closed"):
        host.submit(never, never)
    host.reopen()
    assert not host.closed
    assert host.abandoned == 1
    assert outcome(host, lambda: 1) == (1, None)
    gate.opened.set()
    assert host.close(timeout_ms=int(WAIT_S * 1000)) == 0


def test_five_hundred_starts_and_stops_leak_no_thread() -> None:
    """Each close ends its threads (C115)."""
    host = ThreadHost("test-cycles")
    for turn in range(500):
        host.reopen()
        assert outcome(host, lambda turn=turn: turn) == (turn, None)
        assert host.close(timeout_ms=int(WAIT_S * 1000)) == 0
    assert threads_of("test-cycles") == []


def test_an_idle_thread_keeps_nothing_alive(host: ThreadHost) -> None:
    """Payload, result and error of the last run can be freed while its thread waits for the next."""

    class Big:
        pass

    def call(big: Big) -> None:
        raise ValueError(big)

    def submit(big: Big) -> "weakref.ref[Big]":
        host.submit(partial(call, big), lambda *_: None)
        return weakref.ref(big)

    gc.disable()  # no cycles either: they would stay until the next collection, which may be long
    try:
        reference = submit(Big())
        eventually(lambda: reference() is None)
    finally:
        gc.enable()
    assert host.idle == 1


# --- the end of the interpreter ---------------------------------------------------------------------------------


def run_script(script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_handler_that_hangs_does_not_hold_up_the_exit() -> None:
    """The process ends, without a word, although threads are idle, busy and abandoned (C112)."""
    ended = run_script(
        """
        import threading
        from inproc_jobs.runtime.threads import ThreadHost

        host, entered, never = ThreadHost("exit"), threading.Semaphore(0), threading.Event()

        def hang():
            entered.release()
            never.wait()

        done = threading.Event()
        host.submit(lambda: None, lambda *_: done.set())
        done.wait()
        runs = [host.submit(hang, print) for _ in range(3)]
        for _ in runs:
            entered.acquire()
        runs[0].abandon()
        print("main ends")
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "main ends\n", "")


def test_runs_that_end_while_the_interpreter_does_print_nothing() -> None:
    """Threads that are working at full speed at the end of the process cause no traceback (C112)."""
    ended = run_script(
        """
        import threading
        from inproc_jobs.runtime.threads import ThreadHost

        host, many = ThreadHost("exit"), threading.Semaphore(0)

        def again(*_):
            many.release()
            host.submit(lambda: sum(range(100)), again)

        for _ in range(4):
            again()
        for _ in range(500):
            many.acquire()
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
