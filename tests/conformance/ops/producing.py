"""Time, and how jobs come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inproc_jobs.core.bullmq_flows import parse_flows
from inproc_jobs.core.bullmq_options import check_new_id, merge, parse_job
from inproc_jobs.core.job import Duplicate, Job
from inproc_jobs.core.trees import NewJob
from inproc_jobs.errors import ParentJobError
from tests.conformance.ops.registry import op
from tests.conformance.run import Run, Step
from tests.conformance.views import PREFIX, encode


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
