"""Parents and children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inproc_jobs.core.reading import FlowView
from tests.conformance.ops.registry import op
from tests.conformance.run import Run, Step
from tests.conformance.views import decode


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
