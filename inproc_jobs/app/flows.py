"""
Flows at the facade: a tree of jobs in which a parent runs once its children are done (spec section 12).

A tree is described by nodes (`job.node(...)`), checked whole, and added in one step. What the failure of a child does
is a choice that has no silent default here: on BullMQ a child without one leaves its parent waiting for ever, so the
facade's default fails the parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from inproc_jobs.core import options as core_options
from inproc_jobs.core.job import Job, ParentLink
from inproc_jobs.core.trees import NewJob
from inproc_jobs.errors import InvalidJobIdError, InvalidOptionError, InvalidOptionTypeError

if TYPE_CHECKING:
    from inproc_jobs.app.definition import JobDefinition
    from inproc_jobs.app.dispatching import DispatchingEngine, Prepared
    from inproc_jobs.app.receipt import DispatchedJob

__all__ = ["FlowNode", "FlowReceipt", "OnFailure", "PlannedFlow"]

OnFailure = Literal["fail_parent", "continue_parent", "ignore", "remove", "wait"]
"""What the final failure of a child does: its parent fails; runs at once; runs when the others are done, with or without
the reason in `ctx.ignored_failures()`; or goes on waiting until somebody retries the child."""
_POLICIES: Final = {"fail_parent": "fpof", "continue_parent": "cpof", "ignore": "idof", "remove": "rdof", "wait": ""}
_ON_FAILURES: Final[tuple[str, ...]] = get_args(OnFailure)


class FlowNode(msgspec.Struct, frozen=True):
    """One job of a flow, made by `JobDefinition.node`."""

    job: JobDefinition[Any, Any]
    payload: Any
    options: Mapping[str, Any]
    children: tuple[FlowNode, ...] = ()
    on_failure: OnFailure = "fail_parent"

    def __post_init__(self) -> None:
        if self.on_failure not in _ON_FAILURES:
            raise InvalidOptionError(
                f"on_failure {self.on_failure!r} is not known; use one of {', '.join(_ON_FAILURES)}",
                option="on_failure",
                value=self.on_failure,
            )
        for child in self.children:
            if not isinstance(child, FlowNode):
                raise InvalidOptionTypeError(
                    f"children must be nodes made by job.node(...), got {type(child).__name__}",
                    option="children",
                    value=child,
                )
        if self.options.get("deduplication") is not None:
            raise InvalidOptionError(
                "a job of a flow cannot have deduplication; dispatch it alone, or collapse by job_id",
                option="deduplication",
            )
        id = self.options.get("job_id")
        if isinstance(id, str) and ":" in id:
            raise InvalidJobIdError(
                f"job_id {id!r} has a colon, at which BullMQ splits the keys of flows; use a dash",
                option="job_id",
                value=id,
            )


class FlowReceipt(msgspec.Struct, frozen=True):
    """
    What `Engine.flow` answers: the receipt of a job, and those of the jobs below it.

    Attributes:
        job: The receipt; `await receipt.job.result()` waits for the whole tree below it.
        children: Of its children, in the order given.
    """

    job: DispatchedJob[Any]
    children: tuple[FlowReceipt, ...] = ()

    def __iter__(self) -> Iterator[DispatchedJob[Any]]:
        """All receipts, parents before their children."""
        yield self.job
        for child in self.children:
            yield from child


class _Planned(msgspec.Struct):
    node: FlowNode
    prepared: Prepared
    id: str
    children: list[_Planned] = []
    parent: _Planned | None = None


class PlannedFlow:
    """
    A tree, checked and encoded; `add` puts it into the core in one step.

    Raises:
        As a dispatch, for the first node that is wrong; nothing was added then.
    """

    def __init__(self, engine: DispatchingEngine, root: FlowNode, new_id: Any) -> None:
        if not isinstance(root, FlowNode):
            raise InvalidOptionTypeError(
                f"flow takes a node made by job.node(...), got {type(root).__name__}", option="flow", value=root
            )
        self._engine = engine
        self._new_id = new_id
        self._order: list[_Planned] = []
        self._root = self._check(root)
        # Level by level, parents before children: the order of BullMQ's events.
        level = [self._root]
        while level:
            self._order += level
            level = [child for planned in level for child in planned.children]

    def _check(self, node: FlowNode, parent: _Planned | None = None) -> _Planned:
        prepared = self._engine.prepare_with(node.job, node.payload, node.options)
        planned = _Planned(node, prepared, prepared[3] or self._new_id(), parent=parent)
        planned.children = [self._check(child, planned) for child in node.children]
        return planned

    def add(self) -> FlowReceipt:
        """Add all of it. Lock held."""
        engine = self._engine
        core = engine.runtime.core
        now_ms = engine.runtime.now_ms()
        for planned in self._order:
            plan = planned.prepared[0]
            engine.check_name_of(plan.queue, planned.id, plan.name)
            self._check_alive(planned)
        answers = core.add_flow([self._new_job(planned, now_ms) for planned in self._order], now_ms)
        for planned in self._order:
            engine.runtime.summon(planned.prepared[0].worker)
        receipts = {
            id(planned): engine.flow_receipt(answer, planned.prepared[0])
            for planned, answer in zip(self._order, answers, strict=True)
        }
        return self._receipt(self._root, receipts)

    def _check_alive(self, planned: _Planned) -> None:
        """A child that has another living parent would be left out silently, and its new parent would wait for ever."""
        core = self._engine.runtime.core
        known: Job | None = planned.prepared[0].queue.index.get(planned.id)
        if known is None or planned.parent is None or core.id_is_free(known):
            return
        found = core.parent_of(known)
        if found is not None and (found[0].name, found[1].id) != (
            planned.parent.prepared[0].queue.name,
            planned.parent.id,
        ):
            raise InvalidJobIdError(
                f"job {planned.id!r} belongs to another flow (parent {found[1].id!r}) and cannot be a child here",
                option="job_id",
                value=planned.id,
            )

    def _new_job(self, planned: _Planned, now_ms: int) -> NewJob:
        plan, data, opts, _, delay_ms, due, created, rank, flags, _, _ = planned.prepared
        parent = planned.parent
        policy = _POLICIES[planned.node.on_failure]
        return NewJob(
            queue=plan.queue.name,
            name=plan.name,
            data=data,
            opts=_with_policy(opts, policy),
            id=planned.id,
            delay=delay_ms if due is None else due - now_ms,
            priority=rank,
            timestamp=created,
            flags=flags | self._engine.hold,
            parent=None if parent is None else ParentLink(parent.id, parent.prepared[0].queue.name, policy),
            has_children=bool(planned.children),
        )

    def _receipt(self, planned: _Planned, receipts: Mapping[int, DispatchedJob[Any]]) -> FlowReceipt:
        children: Sequence[FlowReceipt] = [self._receipt(child, receipts) for child in planned.children]
        return FlowReceipt(receipts[id(planned)], tuple(children))


def _with_policy(opts: core_options.JobOptions, policy: str) -> core_options.JobOptions:
    """The child's own option says the same as its link, as on BullMQ; jobs without one share their options."""
    if not policy:
        return opts
    return msgspec.structs.replace(
        opts,
        fail_parent=policy == "fpof",
        continue_parent=policy == "cpof",
        ignore_dependency=policy == "idof",
        remove_dependency=policy == "rdof",
    )
