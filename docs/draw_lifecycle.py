"""
Draw the life of a job from the transition table into `life-of-a-job.md`.

    python docs/draw_lifecycle.py            write the page's generated part anew
    python docs/draw_lifecycle.py --check    exit code 1 if it is out of date

Nothing about transitions is written here; the table is `inproc_jobs.core.states.TRANSITIONS`. To keep the drawing
readable, waiting and prioritized stand in one box where a trigger treats them alike, and triggers that lead out of every
state, or into every one, are told below it.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from inproc_jobs.core.states import PRIORITIZED, REMOVED, STATES, TRANSITIONS, WAITING, JobState, Trigger

PAGE = Path(__file__).with_name("life-of-a-job.md")
START, END = "<!-- drawn by draw_lifecycle.py: start -->", "<!-- drawn by draw_lifecycle.py: end -->"
READY = frozenset((WAITING, PRIORITIZED))


def arrows() -> dict[tuple[str, str], list[str]]:
    """(from, to) -> its triggers, as nodes of the diagram."""
    found: dict[tuple[str, str], list[str]] = {}
    for trigger, rows in TRANSITIONS.items():
        if _leads_out_of_every_state(trigger) or _leads_into_every_state(trigger):
            continue
        # Both ready states in one go when the trigger treats them alike, else each for itself.
        alike = rows.keys() >= READY and rows[WAITING] == rows[PRIORITIZED]
        for before, after in rows.items():
            source = "ready" if alike and before in READY else _node(before, "[*]")
            for target in _grouped(after):
                triggers = found.setdefault((source, target), [])
                if trigger.value not in triggers:
                    triggers.append(trigger.value)
    return found


def _leads_out_of_every_state(trigger: Trigger) -> bool:
    return TRANSITIONS[trigger].keys() == set(STATES)


def _leads_into_every_state(trigger: Trigger) -> bool:
    return any(after >= set(STATES) for after in TRANSITIONS[trigger].values())


def _grouped(states: Iterable[JobState]) -> list[str]:
    after = set(states)
    nodes = ["ready"] if after >= READY else []
    return nodes + sorted(_node(state, "[*]") for state in (after - READY if nodes else after))


def _node(state: JobState, outside: str) -> str:
    return outside if state is REMOVED else state.value.replace("-", "_")


def diagram() -> str:
    """The drawing, in Mermaid."""
    lines = ["stateDiagram-v2", "    state ready {", "        waiting", "        prioritized", "    }"]
    lines += [f'    state "{state.value}" as {_node(state, "")}' for state in STATES if _node(state, "") != state.value]
    lines += [f"    {before} --> {after}: {', '.join(triggers)}" for (before, after), triggers in arrows().items()]
    return "\n".join(lines)


def table() -> str:
    """Every row of the transition table."""
    lines = ["| Trigger | From | To |", "| --- | --- | --- |"]
    for trigger, rows in TRANSITIONS.items():
        groups: dict[frozenset[JobState], list[JobState]] = {}
        for before, after in rows.items():
            groups.setdefault(after, []).append(before)
        for after, befores in groups.items():
            lines.append(f"| {trigger.value} | {_words(befores)} | {_words(after)} |")
    return "\n".join(lines)


def _words(states: Iterable[JobState]) -> str:
    given = set(states)
    if given == {REMOVED}:
        return "(not in the queue)"
    if given == set(STATES):
        return "every state"
    return ", ".join(state.value for state in JobState if state in given)


def generated() -> str:
    """What stands between the markers."""
    out = ", ".join(trigger.value for trigger in TRANSITIONS if _leads_out_of_every_state(trigger))
    into = ", ".join(trigger.value for trigger in TRANSITIONS if _leads_into_every_state(trigger))
    undrawn = f"Not drawn: {out} (out of every state)" + (f", {into} (into every state)" if into else "")
    return f"{START}\n\n```mermaid\n{diagram()}\n```\n\n{undrawn}.\n\n{table()}\n\n{END}"


def redrawn(page: str) -> str:
    """The page with its generated part made anew."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{generated()}{after}"


def main() -> int:
    """Write the page, or only compare."""
    page = PAGE.read_text(encoding="utf-8")
    new = redrawn(page)
    if "--check" in sys.argv[1:]:
        return int(page != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
