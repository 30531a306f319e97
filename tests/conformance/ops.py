"""Every operation of a scenario, in terms of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from inproc_jobs.core.bullmq_options import check_new_id, merge, parse_flows, parse_job, parse_repeat
from inproc_jobs.core.job import Duplicate, Job
from inproc_jobs.core.reading import FlowView
from inproc_jobs.core.trees import NewJob
from inproc_jobs.core.turns import MOVED, RATE_LIMITED, Failure, Held, Turn, as_failure, has_legacy_shape, legacy_error
from inproc_jobs.errors import InprocJobsError, InvalidOptionError, JobLockedError, ParentJobError
from tests.conformance.run import Run, Step, failure_of, rounded_up
from tests.conformance.views import (
    PREFIX,
    decode,
    encode,
    encode_field,
    job_view,
    opts_view,
    scheduler_view,
)

Op: TypeAlias = Callable[[Run, Step], Any]
OPS: dict[str, Op] = {}


def op(function: Op) -> Op:
    """Register an operation under its name, which has no underscore at the end."""
    OPS[function.__name__.rstrip("_")] = function
    return function


# --- time and producing -------------------------------------------------------------------------------------------


@op
def sleep(run: Run, step: Step) -> None:
    run.now += step["ms"]


def new_job(run: Run, step: Step, entry: Mapping[str, Any]) -> NewJob:
    opts = qualified(merge(run.default_opts(), entry.get("opts")))
    data = encode(entry["data"]) if "data" in entry else b"{}"
    return parse_job(run.queue_name(step), entry.get("name", "job"), data, opts, run.now, prefix=PREFIX)


def qualified(opts: Mapping[str, Any]) -> dict[str, Any]:
    """The same options with the parent's queue as BullMQ wants it."""
    parent = opts.get("parent")
    if not parent or not parent.get("queue"):
        return dict(opts)
    return {**opts, "parent": {**parent, "queue": f"{PREFIX}:{parent['queue']}"}}


@op
def add(run: Run, step: Step) -> str:
    check_new_id(step.get("opts") or {})
    return run.core.add_new(new_job(run, step, step), run.now).id


@op
def addBulk(run: Run, step: Step) -> list[Any]:  # noqa: N802  # the scenario's name
    jobs = [new_job(run, step, entry) for entry in step["jobs"]]
    return [id_or_code(run, job) for job in jobs]


def id_or_code(run: Run, job: NewJob) -> str | int:
    try:
        return run.core.add_new(job, run.now).id
    except ParentJobError as error:
        return error.code


def grow(run: Run, trees: list[Mapping[str, Any]], defaults: Mapping[str, Any] | None) -> list[Any]:
    """Add trees; what came of each root."""
    jobs = parse_flows(
        [in_bullmq_words(tree) for tree in trees],
        run.now,
        prefix=PREFIX,
        defaults=defaults,
        encode=lambda node: encode(node["data"]) if "data" in node else b"{}",
        new_id=lambda: f"uuid-{next(run.tokens)}",
    )
    for job in jobs:
        run.events.setdefault(job.queue, [])
    return run.core.add_flow(jobs, run.now)[: len(trees)]


def in_bullmq_words(node: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(node)
    if node.get("opts"):
        result["opts"] = qualified(node["opts"])
    if node.get("children"):
        result["children"] = [in_bullmq_words(child) for child in node["children"]]
    return result


def tree_ids(node: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
    view = {"id": id or node["opts"]["jobId"], "queue": node["queueName"]}
    if node.get("children"):
        view["children"] = [tree_ids(child) for child in node["children"]]
    return view


@op
def flow(run: Run, step: Step) -> dict[str, Any]:
    root = grow(run, [step["tree"]], step.get("queuesOptions"))[0]
    if isinstance(root, Exception):
        raise root
    return tree_ids(step["tree"], root.id)


@op
def flowBulk(run: Run, step: Step) -> list[Any]:  # noqa: N802
    roots = grow(run, step["trees"], None)
    return [
        tree_ids(tree, root.id if isinstance(root, (Job, Duplicate)) else None)
        for tree, root in zip(step["trees"], roots, strict=True)
    ]


# --- consuming ----------------------------------------------------------------------------------------------------


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


# --- reading ------------------------------------------------------------------------------------------------------


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


# --- changing one job ---------------------------------------------------------------------------------------------


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


# --- changing the queue -------------------------------------------------------------------------------------------


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


# --- deduplication ------------------------------------------------------------------------------------------------


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


# --- schedulers ---------------------------------------------------------------------------------------------------


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


# --- limits -------------------------------------------------------------------------------------------------------


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


# --- flows --------------------------------------------------------------------------------------------------------


@op
def getFlow(run: Run, step: Step) -> Any:  # noqa: N802
    tree = run.core.flow(run.queue(step), step["id"], step.get("depth", 10), step.get("maxChildren", 20))
    return None if tree is None else flow_view(tree)


def flow_view(tree: FlowView) -> dict[str, Any]:
    view: dict[str, Any] = {"id": tree.job.id, "queue": tree.queue}
    if tree.children is not None:
        children = [flow_view(child) for child in tree.children]
        view["children"] = sorted(children, key=lambda child: f"{child['queue']} {child['id']}")
    return view


@op
def childrenValues(run: Run, step: Step) -> dict[str, Any]:  # noqa: N802
    processed = run.core.children_of(run.queue(step), step["id"]).processed
    return {key: decode(value) for key, value in processed.items()}


@op
def ignoredChildrenFailures(run: Run, step: Step) -> dict[str, str]:  # noqa: N802
    return dict(run.core.children_of(run.queue(step), step["id"]).ignored)


@op
def dependencies(run: Run, step: Step) -> dict[str, Any]:
    links = run.core.children_of(run.queue(step), step["id"])
    failed = sorted(links.unsuccessful, key=lambda key: (links.unsuccessful[key], key))
    everything: dict[str, Any] = {
        "processed": {key: decode(value) for key, value in links.processed.items()},
        "unprocessed": sorted(links.pending),
        "failed": failed,
        "ignored": dict(links.ignored),
    }
    opts = {kind: wanted for kind, wanted in (step.get("opts") or {}).items() if wanted}
    if not opts:
        return everything
    result: dict[str, Any] = {}
    for kind, wanted in opts.items():
        size = {"cursor": 0, "count": 20, **(wanted if isinstance(wanted, Mapping) else {})}
        result[kind] = everything[kind]
        cursor = 0
        if kind == "failed":
            # The page ends at index count - 1 whatever its start is.
            cursor = size["cursor"] + size["count"]
            result[kind] = failed[size["cursor"] : size["count"]]
        result[f"next{kind.capitalize()}Cursor"] = cursor
    return result


@op
def dependenciesCount(run: Run, step: Step) -> dict[str, int]:  # noqa: N802
    links = run.core.children_of(run.queue(step), step["id"])
    numbers = {
        "processed": len(links.processed),
        "unprocessed": len(links.pending),
        "ignored": len(links.ignored),
        "failed": len(links.unsuccessful),
    }
    wanted = [kind for kind, chosen in (step.get("opts") or {}).items() if chosen]
    # An unknown word counts what has failed, as in BullMQ's script.
    return {kind: numbers.get(kind, numbers["failed"]) for kind in wanted or numbers}


@op
def removeChildDependency(run: Run, step: Step) -> bool:  # noqa: N802
    return run.core.remove_child_dependency(run.queue(step), step["id"])


@op
def removeUnprocessedChildren(run: Run, step: Step) -> None:  # noqa: N802
    run.core.remove_unprocessed_children(run.queue(step), step["id"], run.now)
