"""Flow trees in BullMQ's words, read with BullMQ's own rules (spec section 12.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inproc_jobs.core.bullmq_options import parse_job
from inproc_jobs.core.javascript import truthy
from inproc_jobs.core.trees import NewJob
from inproc_jobs.errors import InvalidOptionError

__all__ = ["parse_flows"]


def parse_flows(
    trees: Sequence[Mapping[str, Any]],
    now_ms: int,
    *,
    prefix: str = "bull",
    defaults: Mapping[str, Any] | None = None,
    encode: Callable[[Mapping[str, Any]], bytes],
    new_id: Callable[[], str],
) -> list[NewJob]:
    """
    Read whole trees of flow nodes, level by level, parents before children.

    Args:
        trees: `{name, queueName, data, opts, children}`.
        defaults: `queuesOptions`: queue name -> `{defaultJobOptions}`.
        encode: The payload of a node as JSON text.
        new_id: Makes the id of a node that gives none.

    Raises:
        InvalidOptionError: With BullMQ's words. Nothing has changed.
    """
    _check_parents(trees)
    level: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = [
        (tree, (tree.get("opts") or {}).get("parent")) for tree in trees
    ]
    jobs: list[NewJob] = []
    while level:
        below: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = []
        for node, parent in level:
            job = _parse_node(node, parent, now_ms, prefix, defaults or {}, encode, new_id)
            jobs.append(job)
            link = {"id": job.id, "queue": f"{prefix}:{job.queue}"}
            below += [(child, link) for child in node.get("children") or ()]
        level = below
    return jobs


def _parse_node(
    node: Mapping[str, Any],
    parent: Mapping[str, Any] | None,
    now_ms: int,
    prefix: str,
    defaults: Mapping[str, Any],
    encode: Callable[[Mapping[str, Any]], bytes],
    new_id: Callable[[], str],
) -> NewJob:
    queue = node["queueName"]
    own = (defaults.get(queue) or {}).get("defaultJobOptions") or {}
    opts = {**own, **(node.get("opts") or {})}
    opts.pop("parent", None)
    if parent:
        opts["parent"] = parent
        deduplication = opts.get("deduplication")
        if isinstance(deduplication, Mapping) and truthy(deduplication.get("keepLastIfActive")):
            raise InvalidOptionError("keepLastIfActive deduplication cannot be used on flow nodes with a parent")
    job = parse_job(queue, node["name"], encode(node), opts, now_ms, prefix=prefix)
    job.id = (node.get("opts") or {}).get("jobId") or new_id()
    job.has_children = bool(node.get("children"))
    return job


def _check_parents(trees: Sequence[Mapping[str, Any]]) -> None:
    for node in trees:
        children = node.get("children")
        if children:
            if truthy((node.get("opts") or {}).get("deduplication")):
                raise InvalidOptionError("Deduplication options cannot be used on flow nodes with children")
            _check_parents(children)
