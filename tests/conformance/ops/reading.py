"""Questions."""

from __future__ import annotations

from typing import Any

from tests.conformance.ops.registry import op
from tests.conformance.run import Run, Step
from tests.conformance.views import job_view, opts_view


@op
def state(run: Run, step: Step) -> str:
    return run.core.state_of(run.queue(step), step["id"])


@op
def isInState(run: Run, step: Step) -> bool:  # noqa: N802
    return run.core.state_of(run.queue(step), step["id"]) == {"wait": "waiting"}.get(step["state"], step["state"])


@op
def counts(run: Run, step: Step) -> dict[str, int]:
    return run.core.counts(run.queue(step), *step.get("types", ()))


@op
def count(run: Run, step: Step) -> int:
    types = ("waiting", "delayed", "prioritized", "waiting-children")
    return sum(run.core.counts(run.queue(step), *types).values())


@op
def delayedCount(run: Run, step: Step) -> int:  # noqa: N802
    before = run.now + step["beforeMs"] if "beforeMs" in step else None
    return run.core.delayed_count(run.queue(step), before)


@op
def job(run: Run, step: Step) -> Any:
    return job_view(run.core, run.core.job(run.queue(step), step["id"]))


@op
def jobOpts(run: Run, step: Step) -> Any:  # noqa: N802
    return opts_view(run.core.job(run.queue(step), step["id"]))


@op
def list_(run: Run, step: Step) -> list[str]:
    types = step.get("types") or ()
    types = [types] if isinstance(types, str) else types
    page = run.core.jobs(
        run.queue(step), types, step.get("start", 0), step.get("end", -1), ascending=step.get("asc", False)
    )
    return [job.id for job in page]


TYPED = {
    "getWaiting": ("waiting", True),
    "getActive": ("active", True),
    "getDelayed": ("delayed", True),
    "getPrioritized": ("prioritized", True),
    "getWaitingChildren": ("waiting-children", True),
    "getCompleted": ("completed", False),
    "getFailed": ("failed", False),
}


@op
def typed(run: Run, step: Step) -> list[str]:
    type, ascending = TYPED[step["method"]]
    page = run.core.jobs(run.queue(step), [type], step.get("start", 0), step.get("end", -1), ascending=ascending)
    return [job.id for job in page]


@op
def countsPerPriority(run: Run, step: Step) -> dict[str, int]:  # noqa: N802
    counted = run.core.counts_per_priority(run.queue(step), step["priorities"])
    return {str(priority): number for priority, number in counted.items()}


@op
def logs(run: Run, step: Step) -> dict[str, Any]:
    rows, number = run.core.logs(
        run.queue(step), step["id"], step.get("start", 0), step.get("end", -1), step.get("asc", True)
    )
    return {"logs": rows, "count": number}


@op
def meta(run: Run, step: Step) -> dict[str, Any]:
    queue = run.queue(step)
    limits = {"concurrency": queue.concurrency, "max": queue.max, "duration": queue.duration}
    return {"paused": queue.paused, **{key: value for key, value in limits.items() if value is not None}}


@op
def metrics(run: Run, step: Step) -> dict[str, Any]:
    record, data, number = run.core.metrics(run.queue(step), step["type"], step.get("start", 0), step.get("end", -1))
    collected = {"count": record.count, "prevTS": record.prev_ms, "prevCount": record.prev_count}
    return {"meta": collected, "data": data, "count": number}
