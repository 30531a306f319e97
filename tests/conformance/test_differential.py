"""The core against the real BullMQ, where Node can be run: recorded sequences, and random ones."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import differential
from tests.conformance.differential import Finding, compare, hunt, smallest
from tests.conformance.real import RealBullMQ, installed, why_not
from tests.conformance.replay import differences, pairs, replay
from tests.conformance.run import Run
from tests.conformance.sequences import LEFT_OUT, SPOILED, left_out, spoiled

DATA = Path(__file__).parent / "data"
FOUND = list(pairs(DATA / "found"))


@pytest.fixture(scope="module")
def real() -> Iterator[RealBullMQ]:
    reason = why_not()
    if reason is None:
        try:
            installed()
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"npm could not install the real BullMQ: {error}"
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI has to run the real BullMQ: {reason}")
        pytest.skip(reason)
    with RealBullMQ() as running:
        yield running


@pytest.mark.parametrize(("scenario", "trace"), FOUND, ids=[scenario["name"] for scenario, _ in FOUND])
def test_found(scenario: dict[str, Any], trace: dict[str, Any]) -> None:
    """What the fuzzer once found stays repaired."""
    assert replay(scenario, trace) == []


@pytest.mark.redis
def test_driver_leaves_the_recorded_traces(real: RealBullMQ) -> None:
    """Virtual time changes nothing: the driver gets from BullMQ what the recorder got in real time."""
    for scenario, trace in pairs(DATA):
        assert differences(scenario, trace, real.trace(scenario)) == [], scenario["name"]


@pytest.mark.redis
def test_random_sequences(real: RealBullMQ) -> None:
    """The core does what the real BullMQ does, in 200 random sequences of 10 to 60 operations."""
    lengths: list[int] = []
    found = hunt(real, 200, 0, lambda drawn: lengths.append(len(drawn.scenario["steps"])))
    assert len(lengths) == 200
    assert sum(lengths) > 200 * 30
    if found:
        least = smallest(real, found[0])
        lines = [json.dumps(least.scenario), *least.differences]
        pytest.fail(f"{len(found)} sequences differ; the first one made small:\n" + "\n".join(lines))


@pytest.mark.redis
def test_finding_is_made_small_and_kept(real: RealBullMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference in a long sequence comes down to the steps that it takes, and is kept as a scenario that fails."""
    monkeypatch.setattr(differential, "FOUND", tmp_path)
    monkeypatch.setattr("tests.conformance.ops.OPS", {**_ops(), "moveToWait": lambda run, step: 7})
    steps = [{"op": "add", "opts": {"attempts": 3, "jobId": id}} for id in "abc"]
    steps += [{"op": "counts"}, {"op": "next"}, {"op": "pause"}, {"op": "moveToWait", "id": "a"}, {"op": "meta"}]
    scenario = {"name": "found/long", "area": "found", "why": "", "queues": ["main"], "steps": steps}
    finding = compare(real, scenario)
    assert isinstance(finding, Finding)
    least = smallest(real, finding)
    assert [step["op"] for step in least.scenario["steps"]] == ["moveToWait"]
    differential.save(least, "found/short")
    (kept,) = pairs(tmp_path)
    assert kept[0]["name"] == kept[1]["name"] == "found/short"
    assert replay(*kept) != []
    monkeypatch.undo()
    assert replay(*kept) == []


def test_left_out_steps_are_recognized() -> None:
    """Steps in which BullMQ errs by accident are told apart by the state of the run, each with a reason."""
    run = Run({"name": "", "area": "", "steps": []})
    assert left_out(run, {"op": "drain"}) is None
    run._run_step(0, {"op": "upsertJobScheduler", "id": "s", "repeat": {"every": 1000}})
    assert left_out(run, {"op": "drain"}) == "drain_around_an_iteration"

    child = {"name": "job", "queueName": "main", "opts": {"jobId": "c"}}
    parent = {"name": "job", "queueName": "main", "opts": {"jobId": "p", "delay": 5}, "children": [child]}
    run = Run({"name": "", "area": "", "steps": []})
    for index, step in enumerate(({"op": "flow", "tree": parent}, {"op": "next"}, {"op": "add", "opts": {"delay": 5}})):
        run._run_step(index, step)
    assert spoiled(run) is None
    run._run_step(3, {"op": "complete", "id": "c"})
    assert spoiled(run) == "parent_due_with_others"
    assert all(why for why, _ in (*LEFT_OUT.values(), *SPOILED.values()))


def _ops() -> dict[str, Any]:
    from tests.conformance.ops import OPS

    return OPS
