"""The picture of a job's life is drawn from the transition table, and is the one on the page."""

import importlib.util
import re
from types import ModuleType

import pytest

from inproc_jobs.core.states import REMOVED, STATES, TRANSITIONS
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """The script `docs/draw_lifecycle.py`."""
    spec = importlib.util.spec_from_file_location("draw_lifecycle", ROOT / "docs" / "draw_lifecycle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(drawing: ModuleType):
    """After a change of the table the page must be drawn anew."""
    page = drawing.PAGE.read_text(encoding="utf-8")
    assert page == drawing.redrawn(page), "run: python docs/draw_lifecycle.py"


def test_every_transition_is_drawn(drawing: ModuleType):
    """No row of the table is missing, but triggers out of every state or into every state, which are told in words."""
    inside = {"ready": {"waiting", "prioritized"}}
    drawn = set()
    for line in drawing.diagram().splitlines():
        match = re.fullmatch(r"    (\S+) --> (\S+): (.+)", line)
        if match:
            for before in inside.get(match[1], {match[1]}):
                for after in inside.get(match[2], {match[2]}):
                    drawn |= {(trigger, before, after) for trigger in match[3].split(", ")}

    def node(state: str) -> str:
        return "[*]" if state == REMOVED else state.replace("-", "_")

    wanted = {
        (trigger.value, node(before), node(after))
        for trigger, rows in TRANSITIONS.items()
        if rows.keys() != set(STATES) and not any(after >= set(STATES) for after in rows.values())
        for before, afters in rows.items()
        for after in afters
    }
    assert drawn == wanted


def test_the_table_has_every_trigger(drawing: ModuleType):
    """Below the picture stands each trigger with the states before and after it."""
    rows = [row.split(" | ")[0].strip("| ") for row in drawing.table().splitlines()[2:]]
    assert set(rows) == {trigger.value for trigger in TRANSITIONS}
