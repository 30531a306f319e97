"""
Replay recorded scenarios on the core and compare with what the real BullMQ did.

    python -m tests.conformance.replay DIR [--filter AREA] [--verbose]

DIR has `scenarios/AREA.json` and `traces/AREA.json` (`data/README.md` says what is in them). Every difference is told
with its step; the last line says how many scenarios passed. The exit code is 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.run import Run

__all__ = ["differences", "main", "pairs", "replay"]

MISSING = "(nothing)"


def pairs(directory: Path, area: str | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each scenario of a directory with its trace; with `area` only those of that area, or the one of that name."""
    for path in sorted((directory / "scenarios").glob("*.json")):
        scenarios = json.loads(path.read_text())
        traces = {trace["name"]: trace for trace in json.loads((directory / "traces" / path.name).read_text())}
        for scenario in scenarios:
            if area is None or area in {scenario.get("area"), path.stem, scenario["name"]}:
                yield scenario, traces[scenario["name"]]


def replay(scenario: Mapping[str, Any], trace: Mapping[str, Any]) -> list[str]:
    """Run one scenario; the differences from its trace, none if it passed."""
    try:
        ours = Run(scenario).trace()
    except Exception as error:  # a crash is told like a difference, and the others still run
        return [f"crashed: {type(error).__name__}: {error}"]
    return differences(scenario, trace, ours)


def differences(scenario: Mapping[str, Any], wanted: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Every difference between two traces, in words."""
    found = []
    for index, step in enumerate(scenario["steps"]):
        got, want = ours["results"][index], wanted["results"][index]
        if not same(got, want) and not _both_type_errors(step, got, want):
            found.append(f"step {index} {json.dumps(step)}\n    BullMQ: {_short(want)}\n    ours:   {_short(got)}")
    for name in sorted({*wanted["events"], *ours["events"]}):
        found += _event_differences(name, wanted["events"].get(name, []), ours["events"].get(name, []))
    got, want = ours.get("workerErrors", []), wanted.get("workerErrors", [])
    if not same(got, want):
        found.append(f"worker errors\n    BullMQ: {_short(want)}\n    ours:   {_short(got)}")
    for path, want, got in _walk("final", wanted["final"], ours["final"]):
        found.append(f"{path}\n    BullMQ: {_short(want)}\n    ours:   {_short(got)}")
    return found


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return (type(one) in _NUMBERS and type(other) in _NUMBERS and one == other) or (
        type(one) is type(other) and one == other
    )


_NUMBERS = (int, float)


def _both_type_errors(step: Mapping[str, Any], got: Any, want: Any) -> bool:
    """Of a TypeError, and of an error of the cron parser, only the fact counts."""
    if not (isinstance(got, Mapping) and isinstance(want, Mapping) and "error" in got and "error" in want):
        return False
    if want["error"].get("name") == "TypeError":
        return True
    return step["op"] == "upsertJobScheduler" and "cron pattern" in got["error"]["message"]


def _event_differences(queue: str, want: list[Any], got: list[Any]) -> list[str]:
    """The first event that differs: all that follow are out of step anyway."""
    for index in range(max(len(want), len(got))):
        theirs = want[index] if index < len(want) else MISSING
        mine = got[index] if index < len(got) else MISSING
        if not same(theirs, mine):
            return [f"event {index} of {queue!r}\n    BullMQ: {_short(theirs)}\n    ours:   {_short(mine)}"]
    return []


def _walk(path: str, want: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost parts in which two values differ."""
    if isinstance(want, Mapping) and isinstance(got, Mapping):
        for key in {**want, **got}:
            yield from _walk(f"{path}.{key}", want.get(key, MISSING), got.get(key, MISSING))
    elif not same(want, got):
        yield path, want, got


def _short(value: Any) -> str:
    text = value if value is MISSING else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 600 else f"{text[:600]} ..."


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.replay", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--filter", metavar="AREA", help="only this area, or this scenario")
    parser.add_argument("--verbose", action="store_true", help="name the scenarios that passed too")
    options = parser.parse_args(arguments)
    passed = failed = 0
    for scenario, trace in pairs(options.directory, options.filter):
        found = replay(scenario, trace)
        if found:
            failed += 1
            print(f"FAILED {scenario['name']}: {scenario.get('why', '')}")  # noqa: T201  # a command-line tool
            print("\n".join(f"  {line}" for difference in found for line in difference.splitlines()))  # noqa: T201
        else:
            passed += 1
            if options.verbose:
                print(f"passed {scenario['name']}")  # noqa: T201
    print(f"{passed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
