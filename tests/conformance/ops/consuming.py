"""Taking jobs and ending them by hand, and whole turns of a worker."""

from __future__ import annotations

from typing import Any

from inproc_jobs.core.turns import MOVED, RATE_LIMITED, Failure, Held, Turn, as_failure
from inproc_jobs.errors import InprocJobsError
from tests.conformance.ops.registry import op
from tests.conformance.run import Run, Step, failure_of, rounded_up
from tests.conformance.views import PREFIX, encode


@op
def next_(run: Run, step: Step) -> Any:
    held = run.worker(step).next(run.now, run.token(step))
    return None if held is None else run.hold(step, held)


@op
def complete(run: Run, step: Step) -> Any:
    held, ender = run.held_or_stored(step), run.ender(step)
    taker = run.worker(step) if step.get("fetchNext") else None
    following = ender.complete(held, encode(step.get("value")), run.now, step.get("token", held.token), taker=taker)
    return None if following is None else run.hold(step, following)


@op
def fail(run: Run, step: Step) -> Any:
    held, ender = run.held_or_stored(step), run.ender(step)
    taker = run.worker(step) if step.get("fetchNext") else None
    failure = failure_of(step, step.get("message", ""))
    following = ender.fail(held, failure, run.now, step.get("token", held.token), taker=taker)
    return None if following is None else run.hold(step, following)


@op
def moveToDelayed(run: Run, step: Step) -> None:  # noqa: N802
    token = step.get("token", run.held_or_stored(step).token)
    run.core.move_to_delayed(run.queue(step), step["id"], step["delayMs"], run.now, token)


@op
def moveToWait(run: Run, step: Step) -> float:  # noqa: N802
    token = step.get("token", run.held_or_stored(step).token)
    return rounded_up(run.core.move_to_wait(run.queue(step), step["id"], run.now, token))


@op
def moveToWaitingChildren(run: Run, step: Step) -> bool:  # noqa: N802
    token = step.get("token", run.held_or_stored(step).token)
    child = step.get("child")
    key = f"{PREFIX}:{child.get('queue', run.queue_name(step))}:{child['id']}" if child else None
    return run.core.move_to_waiting_children(run.queue(step), step["id"], run.now, token, child=key)


@op
def extendLock(run: Run, step: Step) -> int:  # noqa: N802
    token = step.get("token", run.held_or_stored(step).token)
    return int(run.core.extend_lock(run.queue(step), step["id"], token, step["duration"], run.now))


@op
def stalledCheck(run: Run, step: Step) -> list[str]:  # noqa: N802
    return sorted(run.core.stalled_check(run.queue(step), run.now, run.worker(step).options))


@op
def work(run: Run, step: Step) -> Any:
    report = run.worker(step).work(run.now, run.token(step), lambda held: turn(run, step, held))
    if report is None:
        return None
    run.hold(step, report.held)
    return {"id": report.held.job.id, "processorRan": report.processor_ran, "emitted": report.emitted}


def turn(run: Run, step: Step, held: Held) -> Turn:
    """What comes of a processor that lets errors of the queue pass."""
    try:
        return process(run, step, held)
    except InprocJobsError as error:
        return Turn(failure=as_failure(error))


def process(run: Run, step: Step, held: Held) -> Turn:
    """A processor that does what the step's outcome says."""
    core, queue, id, outcome = run.core, run.queue(step), held.job.id, step.get("outcome") or {}
    if "delayMs" in outcome:
        core.move_to_delayed(queue, id, outcome["delayMs"], run.now, held.token)
        return Turn(failure=moved("DelayedError"))
    if outcome.get("wait"):
        core.move_to_wait(queue, id, run.now, held.token)
        return Turn(failure=moved("WaitingError"))
    if outcome.get("waitChildren") and core.move_to_waiting_children(queue, id, run.now, held.token):
        return Turn(failure=moved("WaitingChildrenError"))
    if "rateLimitMs" in outcome:
        core.rate_limit(queue, outcome["rateLimitMs"], run.now)
        return Turn(failure=Failure(RATE_LIMITED, "RateLimitError", RATE_LIMITED))
    if "throw" in outcome:
        return Turn(failure=failure_of(outcome, outcome["throw"]))
    return Turn(encode(outcome.get("return")))


def moved(name: str) -> Failure:
    assert name in MOVED
    return Failure(name, name, name)
