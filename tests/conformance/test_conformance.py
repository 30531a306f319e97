"""The recorded behaviour of BullMQ 6.7.0, scenario by scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.replay import differences, main, pairs, replay
from tests.conformance.run import Run

DATA = Path(__file__).parent / "data"
RECORDED = [*pairs(DATA), *pairs(DATA / "more")]


@pytest.mark.parametrize(("scenario", "trace"), RECORDED, ids=[scenario["name"] for scenario, _ in RECORDED])
def test_scenario(scenario: dict[str, Any], trace: dict[str, Any]) -> None:
    """The core does, step by step, what the real BullMQ did."""
    assert replay(scenario, trace) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda trace: trace["results"].__setitem__(0, "nobody"),
        lambda trace: trace["events"]["main"].pop(),
        lambda trace: trace["events"]["main"][0].update(event="other"),
        lambda trace: trace["final"]["main"].update(paused=0),
        lambda trace: trace.update(workerErrors=[{"step": 0, "message": "x"}]),
    ],
    ids=["result", "event lost", "event renamed", "true is not 1", "worker error"],
)
def test_replayer_sees_differences(spoil: Any) -> None:
    """A trace that differs in one place is told apart, so that a green run means something."""
    scenario = next(scenario for scenario, _ in RECORDED if scenario["area"] == "lifecycle")
    ours, spoiled = Run(scenario).trace(), Run(scenario).trace()
    assert differences(scenario, ours, ours) == []
    spoil(spoiled)
    assert len(differences(scenario, spoiled, ours)) >= 1


def test_command_line_counts_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with the numbers, and with exit code 1 as soon as one scenario differs."""
    assert main([str(DATA), "--filter", "lifo"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed"
    for kind in ("scenarios", "traces"):
        (tmp_path / kind).mkdir()
        text = (DATA / kind / "lifo.json").read_text()
        (tmp_path / kind / "lifo.json").write_text(text.replace('"waiting"', '"gone"') if kind == "traces" else text)
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("4 failed")
