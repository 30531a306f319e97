"""How the records of the core look in a trace: job views, schedulers, events, errors, as JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from inproc_jobs.core.bullmq_options import job_opts
from inproc_jobs.core.core import Core
from inproc_jobs.core.events import Event
from inproc_jobs.core.job import CUSTOM_ID, Job, JobExtra
from inproc_jobs.core.queue import Queue, Scheduler
from inproc_jobs.errors import InvalidOptionTypeError, JobHasFailedChildrenError

PREFIX = "bull"
STATES = ("active", "waiting", "prioritized", "delayed", "waiting-children", "completed", "failed")
_EMPTY = object()
_NO_EXTRA = JobExtra()


def encode(value: Any) -> bytes:
    """`JSON.stringify`; a value that is not given is stored as nothing."""
    if value is _EMPTY:
        return b""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def encode_field(step: Mapping[str, Any], field: str) -> bytes:
    return encode(step.get(field, _EMPTY))


def decode(text: bytes | None, empty: Any = None) -> Any:
    return json.loads(text) if text else empty


def job_view(core: Core, job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    extra = job.extra if job.extra is not None else _NO_EXTRA
    progress = decode(extra.progress)
    return {
        "id": job.id,
        "name": job.name,
        "data": decode(job.data, {}),
        "delay": math.trunc(job.delay),
        "priority": math.trunc(job.priority),
        "timestamp": math.trunc(job.timestamp),
        "progress": 0 if progress is None else progress,
        "attemptsMade": job.attempts_made,
        "attemptsStarted": job.attempts_started,
        "stalledCounter": extra.stalled_count,
        "returnvalue": decode(job.result),
        "failedReason": extra.failed_reason or None,
        "stacktraceLength": len(extra.stacktrace),
        "processedOn": job.processed_on,
        "finishedOn": job.finished_on,
        "deduplicationId": extra.deduplication_id,
        "repeatJobKey": extra.scheduler_id,
        "parent": _parent(core, job),
        "deferredFailure": extra.deferred_failure or None,
    }


def _parent(core: Core, job: Job) -> dict[str, Any] | None:
    link = job.extra.parent if job.extra is not None else None
    if link is None:
        return None
    policy = {link.policy: True} if link.policy else {}
    return {"id": link.id, "queueKey": f"{core.prefix}:{link.queue}", **policy}


def opts_view(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    more: dict[str, Any] = {}
    if job.extra is not None and job.extra.repeat is not None:
        moment = int(job.id.rpartition(":")[2])
        more = {"jobId": job.id, "delay": max(moment - job.timestamp, 0)}
    elif job.flags & CUSTOM_ID and not job.opts.given:
        more = {"jobId": job.id}
    return job_opts(job.opts.given or {}, **more)


def scheduler_view(scheduler: Scheduler | None) -> dict[str, Any] | None:
    if scheduler is None:
        return None
    repeat = scheduler.repeat
    view = {
        "key": scheduler.id,
        "name": scheduler.name,
        "next": scheduler.next_ms,
        "iterationCount": scheduler.iterations,
        "limit": _whole(repeat.limit),
        "startDate": _whole(repeat.start_ms or None),
        "endDate": _whole(repeat.end_ms or None),
        "tz": repeat.tz or None,
        "pattern": repeat.pattern,
        "every": _whole(repeat.every),
        "offset": scheduler.offset,
    }
    template: dict[str, Any] = {}
    if scheduler.data != b"{}":
        template["data"] = decode(scheduler.data)
    if scheduler.template:
        template["opts"] = dict(scheduler.template)
    if template:
        view["template"] = template
    return {key: value for key, value in view.items() if value is not None}


def _whole(number: float | None) -> int | None:
    return None if number is None else math.trunc(number)


def event_view(step: int, event: Event) -> dict[str, Any]:
    fields = {
        key: decode(value, "") if isinstance(value, bytes) else str(value) if isinstance(value, str) else value
        for key, value in event.fields.items()
    }
    return {"step": step, "event": event.name, **fields}


def error_view(error: Exception) -> dict[str, Any]:
    view: dict[str, Any] = {"message": " ".join(str(error).split())}
    code = getattr(error, "code", 0)
    if code:
        view["code"] = code
    if isinstance(error, (InvalidOptionTypeError, LookupError, TypeError)) and not code:
        view["name"] = "TypeError"
    elif isinstance(error, JobHasFailedChildrenError):
        view["name"] = "UnrecoverableError"
    return {"error": view}


def final_view(core: Core, queue: Queue) -> dict[str, Any]:
    states: dict[str, list[str]] = {}
    jobs: dict[str, Any] = {}
    for state in STATES:
        found = core.jobs(queue, [state], 0, -1, ascending=True)
        if found:
            states[state] = [job.id for job in found]
            jobs.update((job.id, job_view(core, job)) for job in found)
    schedulers = [scheduler_view(one) for one in core.schedulers(queue)]
    return {"paused": queue.paused, "states": states, "jobs": jobs, "schedulers": schedulers}
