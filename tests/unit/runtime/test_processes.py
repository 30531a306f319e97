"""The process host: a handler runs elsewhere, and whatever becomes of its process, the call ends and nothing is left."""

import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inproc_jobs.errors import (
    InvalidHandlerError,
    JobSignal,
    RateLimited,
    ResultNotStorableError,
    RetryLater,
    UnrecoverableError,
)
from inproc_jobs.runtime import _process_child, processes
from inproc_jobs.runtime.context import JobContext
from inproc_jobs.runtime.processes import ProcessCall, ProcessDiedError, ProcessHost, RemoteHandlerError, RunMeta
from tests.unit.runtime import process_handlers

WAIT_S = 30.0
"""How long a test waits for what must happen. Only a broken host makes a test wait that long."""
DUE_MS = 1_767_225_600_000  # 2026-01-01
META: RunMeta = {
    "id": "invoice:42",
    "name": "invoices.send",
    "queue": "emails",
    "attempt": 2,
    "max_attempts": 5,
    "due_ms": DUE_MS,
    "late_by_ms": 250,
    "processed": {"bull:q:a": b"[1]"},
    "ignored": {"bull:q:b": "no stock"},
}
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessHost]:
    """One child for all tests that leave it alive: to start one takes some tenths of a second."""
    host = ProcessHost(1, name="test-shared")
    yield host
    assert host.close() == 0


@pytest.fixture
def host() -> Iterator[ProcessHost]:
    host = ProcessHost(2, name="test-own")
    yield host
    host.close()
    assert (host.idle, host.busy) == (0, 0)


def never(kind: str, value: Any) -> None:
    raise AssertionError(f"unexpected {kind}: {value!r}")


def prepare(
    host: ProcessHost,
    fn: Callable[..., Any] | str,
    payload: Any = None,
    on_message: Callable[[str, Any], None] = never,
    on_start: Callable[[], None] | None = None,
) -> ProcessCall:
    name = fn if isinstance(fn, str) else fn.__qualname__
    module = process_handlers.__name__
    data = json.dumps(payload).encode()
    wants_ctx = not isinstance(fn, str) and len(inspect.signature(fn).parameters) == 2
    return host.prepare(module, name, data, META, wants_ctx=wants_ctx, on_message=on_message, on_start=on_start)


def run(
    host: ProcessHost,
    fn: Callable[..., Any] | str,
    payload: Any = None,
    on_message: Callable[[str, Any], None] = never,
) -> Any:
    return json.loads(prepare(host, fn, payload, on_message).run())


def in_thread(call: Callable[[], Any]) -> "Future[Any]":
    """Run a blocking call elsewhere. Daemon threads, so that a broken host cannot hold up the tests."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that others bring about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        threading.Event().wait(0.005)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # One that has ended and that its foster parent has not collected yet is still listed.
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


# --- results --------------------------------------------------------------------------------------------------------


def test_a_result_comes_back(shared: ProcessHost) -> None:
    """Payload and result cross as JSON, whatever their size, and the handler runs in another process."""
    value = {"text": "h\u00e9 \U0001f4e8", "n": [1, 2.5, None, True], "big": "x" * 3_000_000, "int": 2**80}
    assert run(shared, process_handlers.echo, value) == value
    assert run(shared, process_handlers.pid) != os.getpid()


def test_a_worker_is_used_again(shared: ProcessHost) -> None:
    """The next call finds the process of the last one: no start-up time, and no process more."""
    assert run(shared, process_handlers.pid) == run(shared, process_handlers.pid)
    assert (shared.idle, shared.busy) == (1, 0)


def test_the_host_can_be_called_without_a_handle(shared: ProcessHost) -> None:
    """`call` is `prepare` and `run` in one."""
    module = process_handlers.__name__
    assert shared.call(module, "echo", b"[1]", META, wants_ctx=False, on_message=never) == b"[1]"


def test_a_typed_payload_arrives_as_its_type(shared: ProcessHost) -> None:
    """The child decodes by the handler's annotation, as a thread would."""
    assert run(shared, process_handlers.typed, {"number": 7, "items": ["a", "b"]}) == "7: a, b"


def test_a_payload_that_does_not_fit_is_a_failure(shared: ProcessHost) -> None:
    """Stored bytes that the type refuses fail the attempt and leave the worker in order."""
    with pytest.raises(RemoteHandlerError) as caught:
        run(shared, process_handlers.typed, {"number": "seven"})
    assert caught.value.type_name == "InvalidPayloadError"
    assert "payload.number" in caught.value.message
    assert (shared.idle, shared.busy) == (1, 0)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("decorated", "X"),
        ("defined", ["defined", "x"]),
        ("wrapped", ["wrapped", "x"]),
        ("Holder.nested", ["nested", "x"]),
    ],
)
def test_what_a_name_stands_for_is_run(shared: ProcessHost, name: str, result: Any) -> None:
    """A definition that replaced its function is seen through; any other decorator is kept."""
    assert run(shared, name, "x") == result


@pytest.mark.parametrize("name", ["nothing", "test.<locals>.inner", "not_callable"])
def test_a_handler_that_cannot_be_found(shared: ProcessHost, name: str) -> None:
    """The error names the handler and the cure, and is told from a handler that failed."""
    with pytest.raises(InvalidHandlerError, match=name.split(".", maxsplit=1)[0]):
        run(shared, name)
    assert (shared.idle, shared.busy) == (1, 0)


def test_a_module_that_cannot_be_imported(shared: ProcessHost) -> None:
    """What importing the handler's module raises is the job's failure."""
    call = shared.prepare("no_such_module", "f", b"1", META, wants_ctx=False, on_message=never)
    with pytest.raises(RemoteHandlerError, match="no_such_module") as caught:
        call.run()
    assert caught.value.type_name == "ModuleNotFoundError"


# --- errors ---------------------------------------------------------------------------------------------------------


def test_an_error_comes_back_as_text(shared: ProcessHost) -> None:
    """Type, message and the handler's own frames arrive; the text of the error is the message alone."""
    with pytest.raises(RemoteHandlerError) as caught:
        run(shared, process_handlers.fail, "no such invoice")
    error = caught.value
    assert str(error) == error.message == "no such invoice"
    assert error.type_name == "ValueError"
    assert error.signal is None
    assert "raise ValueError(payload)" in error.traceback_text
    assert error.traceback_text.rstrip().endswith("ValueError: no such invoice")
    assert "_process_child" not in error.traceback_text


@pytest.mark.parametrize("kind", process_handlers.BROKEN)
def test_no_exception_breaks_the_worker(shared: ProcessHost, kind: str) -> None:
    """BaseExceptions, exceptions without text, of megabytes and of a thousand causes fail their job only (C100, C106)."""
    before = run(shared, process_handlers.pid)
    with pytest.raises(RemoteHandlerError) as caught:
        run(shared, process_handlers.misbehave, kind)
    assert caught.value.type_name == type(process_handlers.BROKEN[kind]()).__name__
    assert len(caught.value.message) < 10_000
    assert len(caught.value.traceback_text) < 100_000
    assert caught.value.signal is None
    assert run(shared, process_handlers.pid) == before


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("unrecoverable", UnrecoverableError("give up")),
        ("of a subclass", UnrecoverableError("gone")),
        ("of another package", UnrecoverableError("gone")),
        ("retry text", RetryLater("30s", "busy")),
        ("retry int", RetryLater(1500)),
        ("retry float", RetryLater(1.5)),
        ("retry timedelta", RetryLater(timedelta(minutes=2, microseconds=1))),
        ("retry nonsense", RetryLater("[1]", "retry later: [1]")),
        ("rate limited", RateLimited("1m")),
    ],
)
def test_signals_arrive_as_signals(shared: ProcessHost, kind: str, expected: JobSignal) -> None:
    """What a handler raises to steer means the same from another process, its delay included."""
    with pytest.raises(RemoteHandlerError) as caught:
        run(shared, process_handlers.steer, kind)
    arrived = caught.value.signal
    assert type(arrived) is type(expected)
    assert str(arrived) == str(expected)
    assert getattr(arrived, "delay", None) == getattr(expected, "delay", None)


@pytest.mark.parametrize(("kind", "text"), [("object", r"result\.a\[1\]"), ("hostile", "SystemExit: no items")])
def test_a_result_that_is_no_json(shared: ProcessHost, kind: str, text: str) -> None:
    """It is told from a failure of the handler, whose work is done, and names the culprit."""
    with pytest.raises(ResultNotStorableError, match=text):
        run(shared, process_handlers.unstorable, kind)
    assert (shared.idle, shared.busy) == (1, 0)


# --- context --------------------------------------------------------------------------------------------------------


def test_the_context_in_the_child(shared: ProcessHost) -> None:
    """A handler sees its job through a real JobContext; what it says arrives in order, awaited or not."""
    said: list[tuple[str, Any]] = []
    seen = run(shared, process_handlers.talk, "payload", lambda kind, value: said.append((kind, value)))
    assert said == [
        ("progress", {"done": 1}),
        ("log", "plain line"),
        ("update_payload", ["payload", "changed"]),
        ("progress", 50),
        ("log", "line with \\udcff"),
        ("update_payload", {"awaited": True}),
    ]
    assert datetime.fromisoformat(seen.pop("scheduled_for")) == datetime.fromtimestamp(DUE_MS / 1000, UTC)
    assert seen == {
        "id": "invoice:42",
        "name": "invoices.send",
        "queue": "emails",
        "attempt": 2,
        "max_attempts": 5,
        "late_by_ms": 250,
        "cancelled": False,
        "children_values": {"bull:q:a": [1]},
        "ignored_failures": {"bull:q:b": "no stock"},
        "type": f"{JobContext.__module__}.JobContext",
    }


def test_nothing_of_the_context_is_missing_in_the_child() -> None:
    """Every public name of JobContext is used by the handler of the test above."""
    source = inspect.getsource(process_handlers.talk)
    public = {name for name in dir(JobContext) if not name.startswith("_")}
    assert {name for name in public if f"ctx.{name}" not in source} == set()


def test_progress_that_is_no_json_is_refused_where_it_is_made(shared: ProcessHost) -> None:
    """The handler gets the error, with the path, and nothing is sent."""
    assert "progress.when" in run(shared, process_handlers.refused_progress)


def test_a_flood_of_log_lines_arrives_whole(shared: ProcessHost) -> None:
    """The pipe is drained while the handler writes, so neither side waits for the other for ever."""
    lines: list[Any] = []
    run(shared, process_handlers.flood, 5000, lambda _, line: lines.append(line))
    assert lines == [str(number) for number in range(5000)]


def test_each_run_has_a_context_of_its_own(shared: ProcessHost) -> None:
    """What a handler sets in a context variable does not reach the next job of that process."""
    assert run(shared, process_handlers.context_variable, "a") == "unset"
    assert run(shared, process_handlers.context_variable, "b") == "unset"


def test_log_lines_of_a_handler_name_its_job(shared: ProcessHost) -> None:
    """The fields that structlog merges are bound in the child as in the parent."""
    assert run(shared, process_handlers.log_variables) == {
        "structlog_job_id": "invoice:42",
        "structlog_job_name": "invoices.send",
        "structlog_queue": "emails",
        "structlog_attempt": 2,
    }


def test_what_a_leftover_thread_says_belongs_to_no_run(host: ProcessHost) -> None:
    """A thread that outlives its handler neither speaks for the next run nor takes messages away from it."""
    run(host, process_handlers.leave_a_thread, None, lambda *_: None)
    pid = run(host, process_handlers.pid)
    for number in range(300):
        assert run(host, process_handlers.echo, number) == number
    assert run(host, process_handlers.pid) == pid


def test_a_handler_can_see_that_it_is_cancelled(shared: ProcessHost) -> None:
    """`cancel` while the handler runs makes `ctx.cancelled` True."""
    call = prepare(shared, process_handlers.until_cancelled, on_message=lambda *_: call.cancel())
    assert call.run() == b'"stopped"'


def test_a_cancel_before_the_start_is_not_lost(shared: ProcessHost) -> None:
    """`cancel` may come at any time before the end."""
    call = prepare(shared, process_handlers.until_cancelled, on_message=lambda *_: None)
    call.cancel()
    assert call.run() == b'"stopped"'


def test_a_cancel_reaches_no_later_run(shared: ProcessHost) -> None:
    """One that comes too late is for nobody."""
    call = prepare(shared, process_handlers.is_cancelled)
    assert call.run() == b"false"
    call.cancel()
    nosy = prepare(shared, process_handlers.is_cancelled, on_start=call.cancel)
    assert nosy.run() == b"false"


def test_the_caller_is_told_when_the_handler_starts(shared: ProcessHost) -> None:
    """`on_start` comes once, before anything the handler says, in the calling thread."""
    said: list[Any] = []
    prepare(
        shared,
        process_handlers.flood,
        1,
        lambda kind, _: said.append(kind),
        lambda: said.append(threading.current_thread()),
    ).run()
    assert said == [threading.current_thread(), "log"]


def test_an_error_in_on_message_ends_the_call_and_its_process(host: ProcessHost) -> None:
    """The caller sees its own error; the handler's process, which nobody listens to any more, is gone."""
    pid = run(host, process_handlers.pid)
    with pytest.raises(AssertionError, match="unexpected log"):
        run(host, process_handlers.until_cancelled)
    assert not is_alive(pid)
    assert run(host, process_handlers.pid) != pid


# --- processes that vanish ------------------------------------------------------------------------------------------


def test_a_process_that_exits_is_named_and_replaced(host: ProcessHost) -> None:
    """`os._exit` in a handler fails its job with the exit code; the next call works."""
    pid = run(host, process_handlers.pid)
    with pytest.raises(ProcessDiedError, match=r"'invoice:42' \(invoices.send\) vanished, with exit code 7") as caught:
        run(host, process_handlers.leave, 7)
    assert (caught.value.exit_code, caught.value.killed, caught.value.started) == (7, False, True)
    assert run(host, process_handlers.pid) != pid
    assert not is_alive(pid)


@posix
def test_a_process_that_crashes_names_its_signal(host: ProcessHost) -> None:
    """A crash in native code fails its job only."""
    with pytest.raises(ProcessDiedError, match="SIGSEGV") as caught:
        run(host, process_handlers.crash)
    assert caught.value.exit_code == -signal.SIGSEGV


@posix
def test_a_worker_that_died_while_idle_fails_no_job(host: ProcessHost) -> None:
    """The host looks before it hands out work."""
    pid = run(host, process_handlers.pid)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert run(host, process_handlers.pid) != pid
    assert (host.idle, host.busy) == (1, 0)


@posix
@pytest.mark.slow
def test_a_process_that_closes_its_pipe_counts_as_gone(host: ProcessHost) -> None:
    """A handler that closes all files can never answer, so its process is ended and replaced."""
    with pytest.raises(ProcessDiedError):
        run(host, process_handlers.close_everything)
    assert run(host, process_handlers.echo, 1) == 1


@posix
def test_a_grandchild_that_holds_the_pipe_open_hides_nothing(host: ProcessHost, tmp_path: Path) -> None:
    """The end of a process is noticed although a process that it forked keeps its end of the pipe open."""
    with pytest.raises(ProcessDiedError, match="exit code 5"):
        run(host, process_handlers.hide_behind_grandchild, str(tmp_path / "end"))
    (tmp_path / "end").touch()


@posix
def test_children_leave_signals_to_the_parent(shared: ProcessHost) -> None:
    """Ctrl-C and SIGTERM do not end a job, and programs that a handler starts can be terminated by it."""
    assert run(shared, process_handlers.ignore_signals) == ["alive", "SIGTERM"]


# --- killing --------------------------------------------------------------------------------------------------------


def test_kill_ends_a_call_that_hangs(host: ProcessHost, tmp_path: Path) -> None:
    """Another thread ends the call by ending its process; the place is free for the next one (C104)."""
    started = threading.Event()
    call = prepare(host, process_handlers.hang, str(tmp_path / "pid"), on_start=started.set)
    result = in_thread(call.run)
    assert started.wait(WAIT_S)
    eventually((tmp_path / "pid").exists)
    eventually(lambda: (tmp_path / "pid").read_text() != "")
    assert call.kill() is True
    with pytest.raises(ProcessDiedError, match="killed on request") as caught:
        result.result(WAIT_S)
    assert (caught.value.killed, caught.value.started) == (True, True)
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert (host.idle, host.busy) == (0, 0)
    assert run(host, process_handlers.echo, 1) == 1


def test_kill_before_the_run(shared: ProcessHost) -> None:
    """A call that was killed first never runs, and costs no worker."""
    pid = run(shared, process_handlers.pid)
    call = prepare(shared, process_handlers.echo)
    assert call.kill() is True
    with pytest.raises(ProcessDiedError) as caught:
        call.run()
    assert (caught.value.killed, caught.value.started) == (True, False)
    assert run(shared, process_handlers.pid) == pid


def test_kill_after_the_end_harms_nobody(shared: ProcessHost) -> None:
    """The worker of a call that is over may be running another one."""
    call = prepare(shared, process_handlers.pid)
    pid = json.loads(call.run())
    assert call.kill() is False
    assert run(shared, process_handlers.pid) == pid


def test_kill_while_the_process_comes_up(host: ProcessHost) -> None:
    """A call can be killed before its process is ready."""
    call = prepare(host, process_handlers.echo)
    result = in_thread(call.run)
    eventually(lambda: host.busy == 1)
    assert call.kill() is True
    with pytest.raises(ProcessDiedError) as caught:
        result.result(WAIT_S)
    assert (caught.value.killed, caught.value.started) == (True, False)
    assert (host.idle, host.busy) == (0, 0)


def test_no_more_processes_than_asked_for(shared: ProcessHost) -> None:
    """A call waits for a worker while all are busy, and can be killed while it waits."""
    running = threading.Event()
    first = prepare(shared, process_handlers.until_cancelled, on_message=lambda *_: running.set())
    first_result = in_thread(first.run)
    assert running.wait(WAIT_S)
    second, third = prepare(shared, process_handlers.echo, 2), prepare(shared, process_handlers.echo, 3)
    second_result, third_result = in_thread(second.run), in_thread(third.run)
    assert third.kill()
    with pytest.raises(ProcessDiedError):
        third_result.result(WAIT_S)
    assert not second_result.done()
    assert (shared.idle, shared.busy) == (0, 1)
    first.cancel()
    assert first_result.result(WAIT_S) == b'"stopped"'
    assert second_result.result(WAIT_S) == b"2"


def test_two_calls_run_at_once(host: ProcessHost, tmp_path: Path) -> None:
    """With two workers, two handlers that wait for each other both get through."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    results = [
        in_thread(prepare(host, process_handlers.wait_for_file, payload).run)
        for payload in ({"touch": a, "until": b}, {"touch": b, "until": a})
    ]
    assert [result.result(WAIT_S) for result in results] == [b'"seen"', b'"seen"']
    assert (host.idle, host.busy) == (2, 0)


def test_a_child_that_never_gets_to_the_handler(host: ProcessHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that takes too long ends the call instead of holding it for ever, and says what is usual."""
    monkeypatch.setattr(processes, "START_TIMEOUT_MS", 0)
    monkeypatch.setattr(processes, "TICK_MS", 1)
    with pytest.raises(ProcessDiedError, match="did not get to the handler") as caught:
        run(host, process_handlers.echo)
    assert (caught.value.killed, caught.value.started) == (False, False)
    assert (host.idle, host.busy) == (0, 0)


def test_a_process_that_cannot_be_made(host: ProcessHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system grants no process, the call fails and the place stays free."""
    import multiprocessing.context

    def refuse(process: Any) -> None:
        raise BlockingIOError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.context.SpawnProcess, "start", refuse)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                run(host, process_handlers.echo)
    assert run(host, process_handlers.echo, 1) == 1


# --- the end --------------------------------------------------------------------------------------------------------


def test_close_lets_a_call_end_and_refuses_the_next(host: ProcessHost, tmp_path: Path) -> None:
    """A graceful close takes no result away, and lets each process end as it likes; afterwards none is left."""
    pid = run(host, process_handlers.pid)
    touched, until = tmp_path / "touched", tmp_path / "until"
    result = in_thread(prepare(host, process_handlers.wait_for_file, {"touch": str(touched), "until": str(until)}).run)
    eventually(touched.exists)
    closed = in_thread(host.close)
    eventually(lambda: host.closed)
    with pytest.raises(RuntimeError, match="closed"):
        run(host, process_handlers.echo)
    until.touch()
    assert result.result(WAIT_S) == b'"seen"'
    assert closed.result(WAIT_S) == 0
    assert (host.idle, host.busy) == (0, 0)
    assert not is_alive(pid)
    assert (tmp_path / "touched-exit").exists()


def test_close_lets_idle_processes_end_by_themselves(host: ProcessHost, tmp_path: Path) -> None:
    """Their exit handlers run, so what they have buffered is written."""
    run(host, process_handlers.wait_for_file, {"touch": str(tmp_path / "a"), "until": str(tmp_path / "a")})
    assert host.close(timeout_ms=0) == 0
    assert (tmp_path / "a-exit").exists()


def test_close_kills_what_does_not_end(host: ProcessHost, tmp_path: Path) -> None:
    """A close is bounded: a call that hangs is killed and counted, idle processes end by themselves."""
    calls = [prepare(host, process_handlers.hang, str(tmp_path / name)) for name in "ab"]
    results = [in_thread(call.run) for call in calls]
    eventually(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    assert host.close(timeout_ms=1) == 2
    for result in results:
        with pytest.raises(ProcessDiedError) as caught:
            result.result(WAIT_S)
        assert caught.value.killed
    assert (host.idle, host.busy) == (0, 0)


def test_close_turns_away_who_waits_for_a_worker(tmp_path: Path) -> None:
    """A call that waits for a place is told, not left waiting."""
    host = ProcessHost(1)
    busy = in_thread(prepare(host, process_handlers.hang, str(tmp_path / "pid")).run)
    eventually((tmp_path / "pid").exists)
    waiting = in_thread(prepare(host, process_handlers.echo).run)
    assert host.close(timeout_ms=1) == 1
    with pytest.raises(RuntimeError, match="closed"):
        waiting.result(WAIT_S)
    with pytest.raises(ProcessDiedError):
        busy.result(WAIT_S)


def test_a_host_can_be_closed_twice_and_opened_again(host: ProcessHost) -> None:
    """Stop, stop, start, run (C112)."""
    host.close()
    host.close()
    assert host.closed
    host.reopen()
    assert run(host, process_handlers.echo, 1) == 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files in /proc")
@pytest.mark.slow
def test_starts_and_stops_leak_no_file_and_no_process(tmp_path: Path) -> None:
    """After five rounds with normal ends, crashes and kills there are as many files and children as before (C115)."""

    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())

    def one_round(number: int) -> None:
        host = ProcessHost(2)
        assert run(host, process_handlers.echo, 1) == 1
        with pytest.raises(ProcessDiedError):
            run(host, process_handlers.leave, 1)
        call = prepare(host, process_handlers.hang, str(tmp_path / str(number)), on_start=lambda: call.kill())  # noqa: PLW0108  # `call` is not there yet
        with pytest.raises(ProcessDiedError):
            call.run()
        assert run(host, process_handlers.echo, 1) == 1
        assert host.close() == 0

    one_round(0)  # multiprocessing's resource tracker stays
    before = open_files(), children()
    for number in range(1, 5):
        one_round(number)
    assert (open_files(), children()) == before


def test_a_forgotten_host_leaves_no_process() -> None:
    """Garbage collection of a host that nobody closed ends its processes."""
    host = ProcessHost(1)
    pid = run(host, process_handlers.pid)
    del host
    gc.collect()
    eventually(lambda: not is_alive(pid))


def test_a_host_needs_a_worker() -> None:
    """No worker at all would make every call wait for ever."""
    with pytest.raises(ValueError, match="max_workers is 0"):
        ProcessHost(0)


# --- whole programs -------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading
from pathlib import Path
from inproc_jobs.runtime.processes import ProcessDiedError, ProcessHost

META = dict(id="1", name="job", queue="default", attempt=1, max_attempts=1, due_ms=0, late_by_ms=0)


def pid(payload):
    return os.getpid()


def leave(payload):
    os._exit(payload)


def hang(payload):
    Path(payload).write_text(str(os.getpid()))
    while True:
        threading.Event().wait(60)


def call(host, fn, payload=b"null", **options):
    return host.prepare("__main__", fn.__qualname__, payload, META, wants_ctx=False, on_message=print, **options)


"""


class Program:
    """A script of its own, as a user would start it."""

    def __init__(self, folder: Path, body: str, *, guarded: bool = True, child_starts: str = "pass") -> None:
        text = textwrap.dedent(body)
        if guarded:
            text = (
                'if __name__ == "__main__":\n'
                + textwrap.indent(text, "    ")
                + "\nelse:\n"
                + textwrap.indent(textwrap.dedent(child_starts), "    ")
            )
        (folder / "program.py").write_text(PROGRAM + text)
        self.process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, out, err


def hanging_child(folder: Path) -> int:
    path = folder / "pid"
    eventually(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


@pytest.mark.slow
def test_a_handler_of_the_main_module(tmp_path: Path) -> None:
    """A handler in the program's own file is found, and the guarded part of that file runs once."""
    program = Program(
        tmp_path,
        """
        print("guarded")
        host = ProcessHost(1)
        print(call(host, pid).run() != str(os.getpid()).encode())
        host.close()
        """,
    )
    assert program.end() == (0, "guarded\nTrue\n", "")


@pytest.mark.slow
def test_a_main_module_without_its_guard(tmp_path: Path) -> None:
    """The call ends with an error that names the cure, not with a program that starts itself over and over."""
    program = Program(
        tmp_path,
        """
        host = ProcessHost(1)
        try:
            call(host, pid).run()
        except ProcessDiedError as error:
            print(error.exit_code, "__main__" in str(error))
        host.close()
        """,
        guarded=False,
    )
    code, out, _ = program.end()
    assert code == 0
    assert out.splitlines()[-1].endswith("1 True")


@posix
@pytest.mark.slow
def test_a_parent_that_is_killed_leaves_no_orphan(tmp_path: Path) -> None:
    """A child whose parent vanished ends in the middle of its job: a restarted engine may run that job again."""
    program = Program(tmp_path, """call(ProcessHost(1), hang, b'"pid"').run()""")
    child = hanging_child(tmp_path)
    program.process.kill()
    program.end()
    eventually(lambda: not is_alive(child))


@posix
@pytest.mark.slow
def test_a_program_that_ends_takes_its_children_along(tmp_path: Path) -> None:
    """Neither an idle process nor one that hangs holds up the exit, and nothing is printed (C112)."""
    program = Program(
        tmp_path,
        """
        host = ProcessHost(2)
        started = threading.Event()
        threading.Thread(target=call(host, hang, b'"pid"', on_start=started.set).run, daemon=True).start()
        threading.excepthook = lambda args: None  # the call ends with ProcessDiedError, which is right
        started.wait()
        print(call(host, pid).run().decode())
        """,
    )
    code, out, err = program.end()
    assert (code, err) == (0, "")
    assert not is_alive(int(out))
    assert not is_alive(hanging_child(tmp_path))


@posix
@pytest.mark.slow
def test_ctrl_c_is_the_parents_business(tmp_path: Path) -> None:
    """SIGINT to the whole group, also while a child comes up: the parent decides, and no child says a word."""
    program = Program(
        tmp_path,
        """
        import signal, time

        interrupts = []  # not an Event: the thread that waits for one may hold its lock when the signal comes
        signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
        host = ProcessHost(1)
        starting = threading.Thread(target=lambda: print("child" if call(host, pid).run() else ""))
        starting.start()
        while len(interrupts) < 1:
            time.sleep(0.001)
        starting.join()
        Path("again").touch()
        while len(interrupts) < 2:
            time.sleep(0.001)
        print("alive" if call(host, pid).run() else "")
        host.close()
        """,
        child_starts="""
        Path("up").touch()
        while not Path("interrupted").exists():
            threading.Event().wait(0.005)
        """,
    )
    for sign in ("up", "again"):
        eventually((tmp_path / sign).exists)
        os.killpg(program.process.pid, signal.SIGINT)
        (tmp_path / "interrupted").touch()
    assert program.end() == (0, "child\nalive\n", "")


@posix
@pytest.mark.slow
def test_a_program_that_ignores_its_children(tmp_path: Path) -> None:
    """Where nobody can tell an exit code, the end of a process is noticed all the same."""
    program = Program(
        tmp_path,
        """
        import signal, time

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        host = ProcessHost(1)
        call(host, pid).run()
        start = time.monotonic()
        try:
            call(host, leave, b"7").run()
        except ProcessDiedError as error:
            print(error, error.killed)
        print(len(call(host, pid).run()) > 0)
        print(host.close())
        print(time.monotonic() - start < 5)  # in vain it would wait for 12 s
        """,
    )
    _, out, _ = program.end()
    assert out.splitlines() == [
        "the process that ran job '1' (job) vanished, with an unknown exit code False",
        "True",
        "0",
        "True",
    ]


def test_messages_are_plain_data() -> None:
    """What crosses the pipe is MessagePack of known shapes: nothing that would be run when it is read."""
    request = _process_child.Request("module", "name", b"{}", True, META)
    assert _process_child.decode_in_child(_process_child.encode(request)) == request
    with pytest.raises(msgspec.ValidationError):
        _process_child.decode_in_child(_process_child.encode(_process_child.Result(b"1")))
