"""Changes to one job, and to the queue."""

from __future__ import annotations

from inproc_jobs.errors import JobLockedError
from tests.conformance.ops.registry import op
from tests.conformance.run import Run, Step
from tests.conformance.views import encode_field


# --- changing one job ----------------------------------------------------------------------------------------------
@op
def remove(run: Run, step: Step) -> int:
    return int(run.core.remove(run.queue(step), step["id"], run.now, remove_children=step.get("removeChildren", True)))


@op
def jobRemove(run: Run, step: Step) -> None:  # noqa: N802
    if not remove(run, step):
        raise JobLockedError(f"Job {step['id']} could not be removed because it is locked by another worker")


@op
def retry(run: Run, step: Step) -> None:
    opts = step.get("opts") or {}
    run.core.retry(
        run.queue(step),
        step["id"],
        run.now,
        state=step.get("state", "failed"),
        reset_attempts_made=bool(opts.get("resetAttemptsMade")),
        reset_attempts_started=bool(opts.get("resetAttemptsStarted")),
    )


@op
def promote(run: Run, step: Step) -> None:
    run.core.promote(run.queue(step), step["id"], run.now)


@op
def changeDelay(run: Run, step: Step) -> None:  # noqa: N802
    run.core.change_delay(run.queue(step), step["id"], step["delay"], run.now)


@op
def changePriority(run: Run, step: Step) -> None:  # noqa: N802
    run.core.change_priority(
        run.queue(step), step["id"], step.get("priority", 0), run.now, lifo=step.get("lifo", False)
    )


@op
def updateData(run: Run, step: Step) -> None:  # noqa: N802
    run.core.update_data(run.queue(step), step["id"], encode_field(step, "data"))


@op
def updateProgress(run: Run, step: Step) -> None:  # noqa: N802
    run.core.update_progress(run.queue(step), step["id"], encode_field(step, "progress"))


@op
def log(run: Run, step: Step) -> int:
    return run.core.add_log(run.queue(step), step["id"], step["row"], step.get("keep"))


@op
def jobLog(run: Run, step: Step) -> int:  # noqa: N802
    return run.core.add_log(run.queue(step), step["id"], step["row"], run.stored(step).opts.keep_logs)


@op
def clearLogs(run: Run, step: Step) -> None:  # noqa: N802
    run.core.clear_logs(run.queue(step), step["id"], step.get("keep") or 0)


# --- changing the queue --------------------------------------------------------------------------------------------
@op
def pause(run: Run, step: Step) -> None:
    run.core.pause(run.queue(step))


@op
def resume(run: Run, step: Step) -> None:
    run.core.resume(run.queue(step), run.now)


@op
def isPaused(run: Run, step: Step) -> bool:  # noqa: N802
    return run.queue(step).paused


@op
def drain(run: Run, step: Step) -> None:
    run.core.drain(run.queue(step), run.now, delayed=step.get("delayed", False))


@op
def clean(run: Run, step: Step) -> list[str]:
    return run.core.clean(run.queue(step), step["grace"], step.get("limit", 0), step.get("type", "completed"), run.now)


@op
def obliterate(run: Run, step: Step) -> None:
    run.core.obliterate(run.queue(step), run.now, force=step.get("force", False), count=step.get("count", 1000))


@op
def promoteJobs(run: Run, step: Step) -> None:  # noqa: N802
    run.core.promote_jobs(run.queue(step), step.get("count", 1000), run.now)


@op
def retryJobs(run: Run, step: Step) -> None:  # noqa: N802
    run.core.retry_jobs(
        run.queue(step),
        step.get("state", "failed"),
        step.get("count", 1000),
        run.now - step.get("olderThanMs", 0),
        run.now,
    )
