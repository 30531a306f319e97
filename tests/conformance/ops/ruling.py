"""Deduplication, schedulers, limits."""

from __future__ import annotations

from typing import Any

from inproc_jobs.core.bullmq_options import parse_repeat
from inproc_jobs.core.turns import has_legacy_shape, legacy_error
from inproc_jobs.errors import InvalidOptionError
from tests.conformance.ops.registry import op
from tests.conformance.run import Run, Step, rounded_up
from tests.conformance.views import decode, encode, scheduler_view


# --- deduplication -------------------------------------------------------------------------------------------------
@op
def getDeduplicationJobId(run: Run, step: Step) -> str | None:  # noqa: N802
    return run.core.deduplication_owner(run.queue(step), step["id"], run.now)


@op
def removeDeduplicationKey(run: Run, step: Step) -> int:  # noqa: N802
    return int(run.core.remove_deduplication_key(run.queue(step), step["id"], run.now))


@op
def jobRemoveDeduplicationKey(run: Run, step: Step) -> bool:  # noqa: N802
    job = run.stored(step)
    id = job.extra.deduplication_id if job.extra is not None else None
    return id is not None and run.core.remove_deduplication_key(run.queue(step), id, run.now, owner=job.id)


# --- schedulers ----------------------------------------------------------------------------------------------------
@op
def upsertJobScheduler(run: Run, step: Step) -> Any:  # noqa: N802
    repeat = dict(step["repeat"])
    for key in ("startDate", "endDate"):
        if f"{key}InMs" in repeat:
            repeat[key] = run.now + repeat.pop(f"{key}InMs")
    template = step.get("template") or {}
    opts = {**run.default_opts(), **(template.get("opts") or {})}
    schedule = parse_repeat(repeat, opts, run.now)
    data = template.get("data")
    name = template.get("name")
    job = run.core.upsert_scheduler(
        run.queue(step),
        step["id"],
        step["id"] if name is None else name,
        encode({} if data is None else data),
        schedule.repeat,
        schedule.opts,
        run.now,
        next_match=run.worker(step).next_match,
        template=schedule.template,
    )
    if job is None:
        return None
    return {"id": job.id, "name": job.name, "data": decode(job.data), "delay": job.delay}


@op
def getJobScheduler(run: Run, step: Step) -> Any:  # noqa: N802
    scheduler = run.queue(step).schedulers.get(step["id"])
    if scheduler is None and has_legacy_shape(step["id"]):
        raise InvalidOptionError(legacy_error(step["id"]))
    return scheduler_view(scheduler)


@op
def getJobSchedulers(run: Run, step: Step) -> list[Any]:  # noqa: N802
    rows = run.core.schedulers(
        run.queue(step), step.get("start", 0), step.get("end", -1), ascending=step.get("asc", False)
    )
    return [scheduler_view(one) for one in rows]


@op
def getJobSchedulersCount(run: Run, step: Step) -> int:  # noqa: N802
    return len(run.queue(step).schedulers)


@op
def removeJobScheduler(run: Run, step: Step) -> bool:  # noqa: N802
    return run.core.remove_scheduler(run.queue(step), step["id"])


# --- limits --------------------------------------------------------------------------------------------------------
@op
def setGlobalConcurrency(run: Run, step: Step) -> None:  # noqa: N802
    run.queue(step).concurrency = step["concurrency"]


@op
def removeGlobalConcurrency(run: Run, step: Step) -> None:  # noqa: N802
    run.queue(step).concurrency = None


@op
def getGlobalConcurrency(run: Run, step: Step) -> int | None:  # noqa: N802
    return run.queue(step).concurrency


@op
def isMaxed(run: Run, step: Step) -> bool:  # noqa: N802
    queue = run.queue(step)
    return queue.concurrency is not None and len(queue.active) >= queue.concurrency


@op
def setGlobalRateLimit(run: Run, step: Step) -> None:  # noqa: N802
    queue = run.queue(step)
    queue.max, queue.duration = step["max"], step["duration"]


@op
def removeGlobalRateLimit(run: Run, step: Step) -> None:  # noqa: N802
    queue = run.queue(step)
    queue.max = queue.duration = None


@op
def getGlobalRateLimit(run: Run, step: Step) -> Any:  # noqa: N802
    queue = run.queue(step)
    return None if queue.max is None else {"max": queue.max, "duration": queue.duration}


@op
def rateLimit(run: Run, step: Step) -> None:  # noqa: N802
    run.core.rate_limit(run.queue(step), step["ms"], run.now)


@op
def rateLimitTtl(run: Run, step: Step) -> float:  # noqa: N802
    return rounded_up(run.core.rate_limit_ttl(run.queue(step), run.now, step.get("maxJobs")))


@op
def removeRateLimitKey(run: Run, step: Step) -> int:  # noqa: N802
    return int(run.core.remove_rate_limit(run.queue(step), run.now))
