"""
A fuzzer against the real thing: random sequences on the core and on the real BullMQ, compared step by step.

    python -m tests.conformance.differential --count 20000 [--seed N] [--workers 2] [--save]

Each difference is made as small as it gets and printed as a scenario, ready for `data/found/`; with `--save` it goes
there, together with the trace that the real BullMQ left, and the test-suite replays it from then on. The last line says
how many sequences were run and how many differed. The exit code is 1 if any did.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.conformance.real import RealBullMQ, why_not
from tests.conformance.replay import differences
from tests.conformance.run import Run
from tests.conformance.sequences import Drawn, left_out, mutants, sequences, spoiled, trace_of

__all__ = ["Finding", "compare", "hunt", "main", "smallest"]

FOUND = Path(__file__).parent / "data" / "found"
CHUNK = 500
Scenario = dict[str, Any]


class Finding(NamedTuple):
    """A scenario, the trace that the real BullMQ left, and what the core does differently."""

    scenario: Scenario
    trace: dict[str, Any]
    differences: list[str]


# --- comparing --------------------------------------------------------------------------------------------------------


def core_trace(scenario: Scenario) -> dict[str, Any] | str | None:
    """What the core makes of a scenario: a trace, the text of a crash, or None if a step in it is left out."""
    run = Run(scenario)
    results = []
    for index, step in enumerate(scenario["steps"]):
        if left_out(run, step):
            return None
        try:
            results.append(run._run_step(index, step))
        except Exception as error:  # whatever it is, it is a finding
            return f"{type(error).__name__}: {error}"
        if spoiled(run):
            return None
    return trace_of(run, results)


def compare(real: RealBullMQ, scenario: Scenario) -> Finding | None:
    """Run a scenario on both; None if they agree, or if it has a step that is left out."""
    ours = core_trace(scenario)
    return None if ours is None else judge(scenario, real.trace(scenario), ours)


def judge(scenario: Scenario, trace: dict[str, Any], ours: dict[str, Any] | str) -> Finding | None:
    """What two traces of a scenario make of it."""
    if isinstance(ours, str):
        return Finding(scenario, trace, [f"crashed: {ours}"])
    found = differences(scenario, trace, ours)
    return Finding(scenario, trace, found) if found else None


# --- making small -----------------------------------------------------------------------------------------------------


def smallest(real: RealBullMQ, finding: Finding) -> Finding:
    """
    The same difference in as few steps and options as possible.

    By hand and not by Hypothesis: a scenario is plain data in which any step, and any option of it, may be missing, so
    that striking out is all it takes.
    """
    best = finding
    size = len(best.scenario["steps"])
    while size:
        for start in range(len(best.scenario["steps"]) - size, -1, -size):
            steps = best.scenario["steps"]
            best = _attempt(real, best, {**best.scenario, "steps": steps[:start] + steps[start + size :]})
        size = min(size // 2, len(best.scenario["steps"]))
    progress = True
    while progress:
        progress = False
        for smaller in _without_details(best.scenario):
            shrunk = _attempt(real, best, smaller)
            if shrunk is not best:
                best, progress = shrunk, True
                break
    return best


def _attempt(real: RealBullMQ, best: Finding, scenario: Scenario) -> Finding:
    try:
        found = compare(real, scenario)
    except (RuntimeError, LookupError, TypeError, AttributeError):  # what is left makes no sense
        return best
    return found if found is not None and kind_of(found) == kind_of(best) else best


def _without_details(scenario: Scenario) -> Iterator[Scenario]:
    """The scenario less one step, option, or item of a list each."""
    for path in _paths(scenario):
        if _is_needed(path):
            continue
        smaller = copy.deepcopy(scenario)
        inside: Any = smaller
        for key in path[:-1]:
            inside = inside[key]
        del inside[path[-1]]
        yield smaller


def _is_needed(path: tuple[Any, ...]) -> bool:
    """Whether a scenario without this part would be no scenario."""
    if path[0] in {"name", "area", "why", "queues"} or path == ("steps",) or path[-1] in _NEEDED:
        return True
    if path[0] == "steps" and len(path) == 3 and path[-1] in _NEEDED_IN_STEPS:
        return True
    if path[-2:] == ("backoff", "type"):
        return True
    return ("tree" in path or "trees" in path) and path[-1] in {"jobId", "name", "opts"}


_NEEDED = set("op id queueName queue maxDataPoints max duration every pattern steps odd nobody".split())
_NEEDED_IN_STEPS = set(
    "repeat jobs tree trees ms grace limit delayMs concurrency priorities method row progress message type delay "
    "state data".split()
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def kind_of(finding: Finding) -> str:
    """What tells one finding from another, roughly: the operation that differs first, or where else they differ."""
    words = finding.differences[0].split()
    if words[0] == "step":
        return f"result of {finding.scenario['steps'][int(words[1])]['op']}"
    if words[0] == "event":
        return "events"
    return words[0].split(".")[0]


# --- running ----------------------------------------------------------------------------------------------------------


def hunt(
    real: RealBullMQ, count: int, first_seed: int, tell: Callable[[Drawn], object] = lambda drawn: None
) -> list[Finding]:
    """Run so many random sequences; the differences as they are, not made small."""
    found: list[Finding] = []

    @seed(first_seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences() | mutants())
    def run(drawn: Drawn) -> None:
        tell(drawn)
        finding = judge(drawn.scenario, real.trace(drawn.scenario), drawn.trace or drawn.crash or "")
        if finding is not None:
            found.append(finding)

    run()
    return found


class Tally(NamedTuple):
    """What one chunk has told."""

    sequences: int
    steps: Counter[str]
    found: list[Finding]


def _work(chunk: tuple[int, int]) -> Tally:
    """One chunk in a process of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server and Node end with this process
    count, first_seed = chunk
    sequences_run = 0
    steps: Counter[str] = Counter()

    def tell(drawn: Drawn) -> None:
        nonlocal sequences_run
        sequences_run += 1
        steps.update(step["op"] for step in drawn.scenario["steps"])

    with RealBullMQ() as real:
        found: dict[str, Finding] = {}
        for finding in hunt(real, count, first_seed, tell):
            kind = kind_of(finding)
            known = found.get(kind)
            if known is None or len(finding.scenario["steps"]) < len(known.scenario["steps"]):
                found[kind] = finding
        return Tally(sequences_run, steps, [smallest(real, finding) for finding in found.values()])


def save(finding: Finding, name: str) -> None:
    """Keep a finding with the traces that the test-suite replays."""
    for folder, kept in (("scenarios", finding.scenario), ("traces", finding.trace)):
        path = FOUND / folder / "found.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = json.loads(path.read_text()) if path.exists() else []
        rows.append({**kept, "name": name})
        path.write_text(json.dumps(rows, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many sequences (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="where to begin (default 0)")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side (default 1)")
    parser.add_argument("--save", action="store_true", help="keep what differs under data/found")
    parser.add_argument("--verbose", action="store_true", help="tell how often each operation was run")
    options = parser.parse_args(arguments)
    reason = why_not()
    if reason is not None:
        parser.error(reason)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    chunks = [(min(CHUNK, options.count - done), options.seed + done) for done in range(0, options.count, CHUNK)]
    total, steps, kinds, differing = 0, Counter[str](), set[str](), 0
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for tally in pool.imap_unordered(_work, chunks):
            total += tally.sequences
            steps += tally.steps
            for finding in tally.found:
                differing += 1
                kind = json.dumps(sorted(step["op"] for step in finding.scenario["steps"]))
                if kind in kinds:
                    continue
                kinds.add(kind)
                _print(finding)
                if options.save:
                    save(finding, f"found/{int(time.time())}-{len(kinds)}")
    took = time.monotonic() - began
    if options.verbose:
        print(" ".join(f"{op}:{number}" for op, number in steps.most_common()))  # noqa: T201
    print(  # noqa: T201
        f"{total} sequences with {sum(steps.values())} steps in {took:.0f} s ({total / took:.0f} per second), "
        f"{len(kinds)} kinds of differences"
    )
    return 1 if kinds else 0


def _print(finding: Finding) -> None:
    print(json.dumps(finding.scenario))  # noqa: T201
    print("\n".join(f"    {line}" for difference in finding.differences[:3] for line in difference.splitlines()))  # noqa: T201
    print(flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
