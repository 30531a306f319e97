"""Every run of the facade ends in a final state, whatever the handler does (DESIGN 2.8)."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inproc_jobs import Engine, JobContext, JobFailedError, JobState, Registry
from inproc_jobs.runtime import worker as worker_module
from inproc_jobs.runtime.tracebacks import MAX_REASON, MAX_TRACE
from tests.unit.app.real import until


class BrokenStrError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text today")


class BrokenReprError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no text today")


class ExitingStrError(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class TwoArgumentsError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


class BareError(BaseException):
    pass


def thousand_causes() -> Exception:
    error: Exception = ValueError("cause 0")
    for number in range(1, 1000):
        following = ValueError(f"cause {number}")
        following.__cause__ = error
        error = following
    return error


def circle_of_causes() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


# What is raised, and what the reason must say.
RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an error": (lambda: ValueError("no such invoice"), "no such invoice"),
    "an error without text": (ValueError, "ValueError"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "a bare BaseException": (lambda: BaseException("bare"), "BaseException: bare"),
    "a child of BaseException": (BareError, "BareError"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "StopIteration": (StopIteration, "StopIteration"),
    "StopIteration with a value": (lambda: StopIteration("value"), ""),
    "StopAsyncIteration": (StopAsyncIteration, "StopAsyncIteration"),
    "CancelledError of its own": (asyncio.CancelledError, "CancelledError"),
    "TimeoutError of its own": (lambda: TimeoutError("its own"), "its own"),
    "a text that raises": (BrokenStrError, "BrokenStrError"),
    "a text that exits": (ExitingStrError, "ExitingStrError"),
    "a repr that raises": (lambda: BrokenReprError("text"), "text"),
    "two arguments": (lambda: TwoArgumentsError(42, "why"), "42: why"),
    "5 MB of text": (lambda: ValueError("x" * 5_000_000), "5,000,000 characters"),
    "a lone surrogate": (lambda: ValueError("\ud800"), "\\ud800"),
    "1000 causes": (thousand_causes, "cause 999"),
    "causes in a circle": (circle_of_causes, "one"),
    "a group": (lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]), "several"),
    "a group with SystemExit": (lambda: BaseExceptionGroup("several", [SystemExit(3)]), "several"),
}


async def raise_at_once(payload: Any) -> None:
    raise payload_to_error(payload)


async def raise_after_a_wait(payload: Any) -> None:
    await asyncio.sleep(0)
    raise payload_to_error(payload)


def raise_plainly(payload: Any) -> None:
    raise payload_to_error(payload)


def payload_to_error(payload: str) -> BaseException:
    return RAISED[payload][0]()


FORMS: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "async": (raise_at_once, None),
    "async, later": (raise_after_a_wait, None),
    "inline": (raise_plainly, "inline"),
    "thread": (raise_plainly, "thread"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", RAISED)
async def test_case_c100_c101_c106_whatever_is_raised_ends_its_job_only(what: str, form: str) -> None:
    """The job has failed, says why within bounds, and the same slot runs the next job: C100, C101, C106."""
    registry = Registry()
    handle, executor = FORMS[form]
    bad = registry.define_job("bad", handle=handle, executor=executor)  # type: ignore[call-overload]

    async def fine(payload: Any) -> str:
        return "fine"

    good = registry.define_job("good", handle=fine)
    engine = Engine(registry=registry)
    async with engine:
        failed = await bad.dispatch(what, job_id="bad")
        following = await good.dispatch(None)
        with pytest.raises(JobFailedError) as caught:
            await failed.result(timeout=20)
        assert await following.result(timeout=20) == "fine"
        view = await bad.find("bad")
    assert view is not None
    assert view.state is JobState.FAILED
    assert view.failed_reason == caught.value.reason
    assert RAISED[what][1] in view.failed_reason
    assert view.failed_reason
    assert len(view.failed_reason) <= MAX_REASON + 50
    assert len(view.stacktrace) == 1
    assert len(view.stacktrace[0]) <= MAX_TRACE + 100
    assert engine.queue("default").counts()["active"] == 0


@pytest.mark.parametrize("form", FORMS)
async def test_case_c100_the_type_is_recorded(form: str) -> None:
    """A bare SystemExit(3) would read "3"; its type is in the reason and in the stack trace."""
    registry = Registry()
    handle, executor = FORMS[form]
    bad = registry.define_job("bad", handle=handle, executor=executor)  # type: ignore[call-overload]
    engine = Engine(registry=registry)
    async with engine:
        receipt = await bad.dispatch("SystemExit", job_id="bad")
        with pytest.raises(JobFailedError, match="SystemExit: 3"):
            await receipt.result(timeout=20)
        view = await bad.find("bad")
    assert view is not None
    assert "SystemExit" in view.stacktrace[0]
    assert "raise_" in view.stacktrace[0], "the handler's own frame"
    assert "inproc_jobs/runtime" not in view.stacktrace[0].replace("\\", "/"), "frames of the engine"


@pytest.mark.parametrize("executor", ["thread", "inline"])
async def test_case_c101_next_of_an_empty_iterator_frees_the_slot(executor: str) -> None:
    """`next(iter([]))` in a plain handler: a future cannot hold StopIteration, and on 3.11 its waiter would hang."""
    registry = Registry()

    def first_of(payload: list[Any]) -> Any:
        return next(iter(payload))

    job = registry.define_job("first", handle=first_of, executor=executor)  # type: ignore[call-overload]
    async with Engine(registry=registry):
        empty, full = await job.dispatch([]), await job.dispatch([7])
        with pytest.raises(JobFailedError, match="StopIteration"):
            await empty.result(timeout=20)
        assert await full.result(timeout=20) == 7


async def cancels_itself(payload: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "done"


async def cancels_and_uncancels(payload: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.uncancel()
    return "done"


async def cancels_itself_and_waits(payload: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)
    return "never"


async def swallows_its_own_cancellation(payload: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "done"
    return "never"


async def cancels_itself_and_raises(payload: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    raise ValueError("after all")


def cancels_the_runner_inline(payload: Any) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "done"


async def leaves_a_timeout_behind(payload: Any) -> str:
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    except TimeoutError:
        return "done"
    return "never"


CANCELLING = {
    "cancel, return": (cancels_itself, None, "done"),
    "cancel, uncancel, return": (cancels_and_uncancels, None, "done"),
    "cancel, wait": (cancels_itself_and_waits, None, JobFailedError),
    "cancel, wait, swallow": (swallows_its_own_cancellation, None, "done"),
    "cancel, raise": (cancels_itself_and_raises, None, JobFailedError),
    "cancel, inline": (cancels_the_runner_inline, "inline", "done"),
    "asyncio.timeout": (leaves_a_timeout_behind, None, "done"),
}


@pytest.mark.parametrize("ahead", [False, True], ids=["dispatched later", "in line already"])
@pytest.mark.parametrize("kind", CANCELLING)
async def test_a_handler_that_cancels_its_task_does_not_hurt_the_next_job(kind: str, ahead: bool) -> None:
    """Runners are shared by jobs; one that was ever cancelled is replaced (DESIGN 2.10)."""
    registry = Registry()
    handle, executor, expected = CANCELLING[kind]
    canceller = registry.define_job("canceller", handle=handle, executor=executor)  # type: ignore[call-overload]
    waited: list[Any] = []

    async def waits(payload: Any) -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        waited.append(payload)
        return payload

    victim = registry.define_job("victim", handle=waits)
    async with Engine(registry=registry):
        first = await canceller.dispatch(None)
        if not ahead:
            await asyncio.wait((asyncio.ensure_future(first.result(timeout=20)),))
        seconds = [await victim.dispatch(number) for number in range(3)]
        if expected is JobFailedError:
            with pytest.raises(JobFailedError):
                await first.result(timeout=20)
        else:
            assert await first.result(timeout=20) == expected
        assert [await receipt.result(timeout=20) for receipt in seconds] == [0, 1, 2]
    assert waited == [0, 1, 2]


async def test_a_cancelled_handler_may_still_ask_an_async_backoff() -> None:
    """The cancellation that a handler left behind must not hit the custom backoff, which would cost the retries."""
    registry = Registry()
    tried: list[int] = []

    async def backoff(attempts_made: int, error: BaseException, job: Any) -> int:
        await asyncio.sleep(0)
        return 1

    async def handle(payload: Any, ctx: JobContext) -> str:
        tried.append(ctx.attempt)
        if ctx.attempt == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            raise ValueError("first attempt")
        return "second attempt"

    job = registry.define_job("job", handle=handle, attempts=2, backoff=backoff)
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        assert await receipt.result(timeout=20) == "second attempt"
    assert tried == [1, 2]


async def test_an_async_handler_past_its_timeout_has_failed() -> None:
    """The attempt is cancelled, the job fails with the timeout named, and the slot goes on."""
    registry = Registry()
    cleaned_up: list[str] = []

    async def sleeps(payload: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned_up.append("yes")

    async def fine(payload: Any) -> str:
        return "fine"

    job = registry.define_job("slow", handle=sleeps, timeout="20ms")
    good = registry.define_job("good", handle=fine)
    async with Engine(registry=registry):
        slow, following = await job.dispatch(None), await good.dispatch(None)
        with pytest.raises(JobFailedError, match="longer than its timeout of 20 ms"):
            await slow.result(timeout=20)
        assert await following.result(timeout=20) == "fine"
    assert cleaned_up == ["yes"]


async def test_a_handler_that_returns_when_its_timeout_cancels_it_has_failed_too() -> None:
    """Swallowing the cancellation in time does not make a late attempt a good one."""
    registry = Registry()

    async def swallows(payload: Any) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "too late"
        return "never"

    job = registry.define_job("slow", handle=swallows, timeout="20ms")
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        with pytest.raises(JobFailedError, match="timeout"):
            await receipt.result(timeout=20)


async def test_case_c103_a_handler_that_ignores_its_timeout_loses_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """It catches every cancellation: its job ends all the same, its slot is given on, its late result is dropped."""
    monkeypatch.setattr(worker_module, "CANCEL_GRACE_S", 0.02)
    registry = Registry()
    release = asyncio.Event()
    ended: list[str] = []

    async def ignores(payload: Any, ctx: JobContext) -> str:
        if payload == "well-behaved":
            return "fine"
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ctx.progress("too late")
        ended.append("came back")
        return "too late"

    job = registry.define_job("stubborn", handle=ignores, timeout="20ms")
    engine = Engine(registry=registry)
    async with engine:
        first = await job.dispatch("stubborn", job_id="one")
        with pytest.raises(JobFailedError, match="ignored it"):
            await first.result(timeout=20)
        second = await job.dispatch("well-behaved", job_id="one")
        assert second.created
        assert await second.result(timeout=20) == "fine"
        assert engine.health()["queues"]["default"]["abandoned"] == 1
        release.set()
        await until(lambda: engine.health()["queues"]["default"]["abandoned"] == 0)
        view = await job.find("one")
    assert ended == ["came back"]
    assert view is not None
    assert (view.state, view.result, view.progress) == (JobState.COMPLETED, "fine", 0)


async def test_case_c104_a_late_thread_does_not_touch_a_newer_job_with_its_id() -> None:
    """The thread of a job that timed out comes back while a newer job has the id: result, progress, log are dropped."""
    registry = Registry()
    release, second_runs, finish = threading.Event(), threading.Event(), threading.Event()
    came_back = threading.Event()

    def handle(payload: str, ctx: JobContext) -> str:
        if payload == "first":
            release.wait(20)
            ctx.progress("of the first")
            ctx.log("of the first")
            ctx.update_payload("of the first")
            came_back.set()
            return "of the first"
        second_runs.set()
        finish.wait(20)
        return "of the second"

    job = registry.define_job("job", handle=handle, timeout="200ms")
    engine = Engine(registry=registry)
    async with engine:
        first = await job.dispatch("first", job_id="one")
        with pytest.raises(JobFailedError, match="timeout"):
            await first.result(timeout=20)
        slow = registry.define_job("job", handle=handle)  # no timeout: the second may take its time
        second = await slow.dispatch("second", job_id="one")
        await until(second_runs.is_set)
        release.set()
        await until(came_back.is_set)
        finish.set()
        assert await second.result(timeout=20) == "of the second"
        view = await slow.find("one")
        assert engine.queue("default").logs("one") == []
    assert view is not None
    assert (view.payload, view.result, view.progress) == ("second", "of the second", 0)
    with pytest.raises(JobFailedError, match="timeout"):
        await first.result()


@pytest.mark.parametrize("form", ["async", "thread", "inline"])
@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"bytes", object(), {1: "key"}, ["\ud800"]])
async def test_a_result_that_cannot_be_stored_fails_without_a_retry(value: Any, form: str) -> None:
    """The work was done, so doing it again would be wrong, whatever `attempts` says (DESIGN 2.4)."""
    registry = Registry()
    runs: list[Any] = []

    async def in_loop(payload: Any) -> Any:
        runs.append(payload)
        return value

    def plain(payload: Any) -> Any:
        runs.append(payload)
        return value

    job = registry.define_job(
        "job", handle=in_loop if form == "async" else plain, executor=None if form == "async" else form, attempts=3
    )  # type: ignore[call-overload]
    async with Engine(registry=registry):
        receipt = await job.dispatch(None)
        with pytest.raises(JobFailedError, match="cannot be stored"):
            await receipt.result(timeout=20)
    assert len(runs) == 1


async def test_a_job_removed_by_force_while_it_runs_does_not_disturb_the_next() -> None:
    """`obliterate(force=True)` takes the record away under the handler; its slot and the engine go on."""
    registry = Registry()
    release = asyncio.Event()

    async def handle(payload: Any, ctx: JobContext) -> str:
        if payload == "removed":
            await release.wait()
            await ctx.log("nobody reads this")
            await ctx.progress(1)
        return "done"

    job = registry.define_job("job", handle=handle)
    engine = Engine(registry=registry)
    async with engine:
        await job.dispatch("removed")
        await until(lambda: engine.queue("default").counts()["active"])
        await engine.queue("default").obliterate(force=True)
        release.set()
        following = await job.dispatch("next")
        assert await following.result(timeout=20) == "done"
    assert engine.queue("default").counts()["active"] == 0
