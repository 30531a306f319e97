"""
Random sequences of operations, drawn by Hypothesis, for `differential.py`.

Hypothesis draws the entropy of a whole sequence at once. Drawn choice by choice its sequences turned out to be mostly
repetitions of few steps (that helps its shrinking, which is not used here), and the fuzzer found less in more time.

Each step is drawn with an eye on the core, which runs it at once: so ids are mostly of jobs that exist and are in a state
in which the operation does something, and sleeps end exactly where something is due. What comes out is a plain scenario.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from inproc_jobs.core.states import JobState
from tests.conformance.replay import pairs
from tests.conformance.run import Run

__all__ = ["LEFT_OUT", "SPOILED", "Drawn", "left_out", "mutants", "sequences", "spoiled", "trace_of"]

T = TypeVar("T")
Step = dict[str, Any]

LETTERS = "abcdef"
DEDUPLICATION_IDS = ("x", "y")
SCHEDULER_IDS = ("s", "t")
SHORT_TIMES = (1, 50, 99, 100, 101, 500, 1000)


class Theme(NamedTuple):
    """What a sequence is mostly about: operations that make up half of it, and chances of options in percent."""

    ops: str
    odds: dict[str, int]


THEMES = {
    "anything": Theme("", {}),
    "deduplication": Theme(
        "add add add next complete fail sleep moveToDelayed remove promote",
        {"deduplication": 85, "jobId": 25, "delay": 45, "backoff": 20, "keepLastIfActive": 60},
    ),
    "retries": Theme(
        "add next fail fail work work sleep sleep retry retryJobs",
        {"attempts": 92, "backoff": 75, "backoffTable": 90, "maxStartedAttempts": 40, "delay": 10},
    ),
    "retention": Theme(
        "add add next complete fail work sleep clean",
        {"removeOnComplete": 75, "removeOnFail": 75, "jobId": 30, "delay": 5, "attempts": 10},
    ),
    "flows": Theme(
        "flow work work next complete fail fail jobRemove add sleep retry clean",
        {"removeOnComplete": 25, "removeOnFail": 30, "delay": 12, "priority": 12, "attempts": 15},
    ),
    "schedulers": Theme(
        "upsertJobScheduler upsertJobScheduler next work work sleep sleep promote clean",
        {"priority": 20, "delay": 5, "exactly": 75},
    ),
    "removed schedulers": Theme(
        "upsertJobScheduler upsertJobScheduler removeJobScheduler next complete fail work sleep retry "
        "retryJobs drain pause resume jobRemove promoteJobs changePriority",
        {"exactly": 80, "every": 85, "template": 30, "removeOnComplete": 10},
    ),
    "administration": Theme(
        "add addBulk flow next work fail drain clean clean promoteJobs retryJobs obliterate pause resume "
        "remove jobRemove sleep",
        {"delay": 35, "priority": 35, "deduplication": 30, "removeOnFail": 5},
    ),
    "limits": Theme(
        "add add next next work complete rateLimitTtl moveToWait sleep fail rateLimit setGlobalRateLimit "
        "setGlobalConcurrency removeGlobalRateLimit removeGlobalConcurrency",
        {"limiter": 85, "jobId": 15, "attempts": 50},
    ),
    "stalls": Theme(
        "add next next stalledCheck stalledCheck sleep extendLock work clean",
        {"lockDuration": 85, "stalledInterval": 90, "maxStalledCount": 60, "attempts": 50, "exactly": 40},
    ),
    "order": Theme(
        "add add addBulk next changePriority moveToWait promote changeDelay list sleep",
        {"priority": 65, "lifo": 30, "delay": 35, "attempts": 40},
    ),
}


class Drawn(NamedTuple):
    """A scenario with what the core made of it: its trace, or the text of the error with which it broke."""

    scenario: dict[str, Any]
    trace: dict[str, Any] | None
    crash: str | None


@st.composite
def sequences(draw: st.DrawFn, shortest: int = 10, longest: int = 60) -> Drawn:
    """A scenario of so many operations, plus those that look at what is left."""
    drawer = Drawer(random.Random(draw(st.binary(min_size=16, max_size=16))))
    scenario = drawer.setting()
    run = drawer.run = Run(scenario)
    length = shortest + drawer.number(longest - shortest + 1)
    return grown(run, scenario, (drawer.step() for _ in range(length)))


def grown(run: Run, scenario: dict[str, Any], steps: Iterable[Step]) -> Drawn:
    """Let a scenario grow by steps, of which each may depend on what the ones before have done to the run."""
    results: list[Any] = []
    try:
        for step in steps:
            results += run_one(run, scenario["steps"], step)
            if spoiled(run):
                # Go back to before the step that led here, and end.
                scenario["steps"].pop()
                run = Run(scenario)
                results = [run._run_step(index, step) for index, step in enumerate(scenario["steps"])]
                break
        for step in closing_steps(run):
            results += run_one(run, scenario["steps"], step)
        return Drawn(scenario, trace_of(run, results), None)
    except Exception as error:  # whatever it is, it is a finding
        return Drawn(scenario, None, f"{type(error).__name__}: {error}")


@st.composite
def mutants(draw: st.DrawFn) -> Drawn:
    """Up to three recorded scenarios interleaved: steps missing, repeated or changed, and some random ones between."""
    dice = random.Random(draw(st.binary(min_size=16, max_size=16)))
    drawer = Drawer(dice)
    parts = [dice.choice(_recorded()) for _ in range(1 + drawer.number(3))]
    scenario: dict[str, Any] = {**parts[0], "name": "found/unnamed", "area": "found", "why": "", "steps": []}
    scenario["queues"] = list(dict.fromkeys(name for part in parts for name in part.get("queues", ["main"])))
    workers = {name: opts for part in reversed(parts) for name, opts in part.get("workers", {}).items()}
    if workers:
        scenario["workers"] = workers
    drawer.run = Run(scenario)
    rest = [list(part["steps"]) for part in parts]
    steps: list[Step] = []
    while any(rest) and len(steps) < 60:
        steps.append(drawer.pick([part for part in rest if part]).pop(0))
    return grown(drawer.run, scenario, _mutated(drawer, steps))


@functools.cache
def _recorded() -> list[dict[str, Any]]:
    scenarios = (scenario for scenario, _ in pairs(Path(__file__).parent / "data"))
    return [scenario for scenario in scenarios if "jitter" not in json.dumps(scenario)]


def _mutated(drawer: Drawer, steps: list[Step]) -> Iterator[Step]:
    for index, step in enumerate(steps):
        if drawer.chance(12):
            yield drawer.step()
        if drawer.chance(12):
            yield drawer.pick(steps[: index + 1])
        if drawer.chance(92):
            yield drawer.tweaked(step) if drawer.chance(12) else step


def run_one(run: Run, steps: list[Step], step: Step) -> list[Any]:
    """Run a step on the core, unless it is one that is left out."""
    if left_out(run, step):
        return []
    steps.append(step)
    return [run._run_step(len(steps) - 1, step)]


def trace_of(run: Run, results: list[Any]) -> dict[str, Any]:
    """The trace of a run whose steps were run one by one."""
    run.scenario = {**run.scenario, "steps": []}
    return {**run.trace(), "results": results}


def closing_steps(run: Run) -> list[Step]:
    """Readings of all that the final state of a trace does not show."""
    steps: list[Step] = []
    for q in run.queue_names:
        queue = run.core.queue(q)
        for id, job in queue.index.items():
            steps += [{"op": "jobOpts", "q": q, "id": id}, {"op": "state", "q": q, "id": id}]
            if job.extra is not None and job.extra.children is not None:
                steps.append({"op": "dependencies", "q": q, "id": id})
            if job.extra is not None and job.extra.logs:
                steps.append({"op": "logs", "q": q, "id": id})
        steps += [{"op": "getDeduplicationJobId", "q": q, "id": id} for id in DEDUPLICATION_IDS]
        steps += [{"op": op, "q": q} for op in ("counts", "meta", "rateLimitTtl")]
        steps += [{"op": "metrics", "q": q, "type": type} for type in ("completed", "failed")]
        steps += [{"op": "next", "q": q}, {"op": "next", "q": q}, {"op": "add", "q": q}]
    return steps


# --- what is left out -------------------------------------------------------------------------------------------------

NOT_DRAWN = (
    "ids that start with `0:`, which BullMQ's fetch throws away as markers of old versions (the recorded traces have them)",
    "ids that are keys of the layout, which corrupt the queue",
    "fractions of a millisecond in delays: with due times less than 1 ms apart the earlier one may get the later score",
    "more than 4,096 jobs due in one millisecond, and due times after 2039, where scores lose their last bits",
    "more than 128 jobs that stall together, which a hash table lists in no order",
    "backoff with jitter, which is random",
    "a count of 0 for promoteJobs, retryJobs and obliterate, with which BullMQ goes round for ever",
)
"""What the strategies never make, with the reason."""

Before = Callable[[Run, Step], bool]
After = Callable[[Run], bool]

LEFT_OUT: dict[str, tuple[str, Before]] = {}
"""name -> (why, test): steps in which BullMQ does by accident what we don't copy; such a step is not taken."""
SPOILED: dict[str, tuple[str, After]] = {}
"""name -> (why, test): states after which BullMQ does by accident what we don't copy; a sequence ends before them."""


def leave_out(why: str) -> Callable[[Before], Before]:
    def register(test: Before) -> Before:
        LEFT_OUT[test.__name__] = (why, test)
        return test

    return register


def end_before(why: str) -> Callable[[After], After]:
    def register(test: After) -> After:
        SPOILED[test.__name__] = (why, test)
        return test

    return register


def left_out(run: Run, step: Mapping[str, Any]) -> str | None:
    """The name of the rule by which a step is left out at this moment of a run, or None."""
    return next((name for name, (_, test) in LEFT_OUT.items() if test(run, dict(step))), None)


def spoiled(run: Run) -> str | None:
    """The name of the rule by which a sequence ends before its last step, or None."""
    return next((name for name, (_, test) in SPOILED.items() if test(run)), None)


@leave_out(
    "drain trims the wait list by count: with a scheduler's iteration in it the wrong entries go and a dangling id stays "
    "(spec 10.2)"
)
def drain_around_an_iteration(run: Run, step: Step) -> bool:
    queue = run.queue(step)
    return step["op"] == "drain" and any(run.core.is_current_iteration(queue, job) for job in queue.wait)


@leave_out(
    "an upsert by pattern that replaces a pending iteration writes over another job of the same moment without looking "
    "at its state: it is listed twice then, with a mixture of both records"
)
def upsert_over_another_iteration(run: Run, step: Step) -> bool:
    if step["op"] != "upsertJobScheduler" or "pattern" not in step["repeat"]:
        return False
    queue = run.queue(step)
    scheduler = queue.schedulers.get(step["id"])
    pending = f"repeat:{step['id']}:{scheduler.next_ms}" if scheduler is not None else None
    moments = [id.rpartition(":")[2] for id in queue.index if id.startswith(f"repeat:{step['id']}:") and id != pending]
    return pending is not None and any(int(moment) >= run.now for moment in moments)


@leave_out(
    "a fixed time in the hour that is skipped in spring: cron-parser shifts it (02:30 is run at 03:30), here it is run at "
    "the end of the gap (03:00), as most cron programs do"
)
def fixed_time_in_a_skipped_hour(run: Run, step: Step) -> bool:
    fixed = step["op"] == "upsertJobScheduler" and str(step["repeat"].get("pattern")).startswith("30 2")
    return fixed and datetime.fromtimestamp(run.now / 1000, UTC).month == 3


@end_before(
    "an add that is parked by keepLastIfActive keeps the id it was given: BullMQ writes over a job that has taken it "
    "meanwhile, here the parked one gets a number instead"
)
def parked_id_taken(run: Run) -> bool:
    return any(new.id in queue.index for queue in run.core.queues.values() for new in queue.parked.values())


@end_before("removing a job that is its own ancestor ends in a script error of BullMQ, half done")
def ring_of_parents(run: Run) -> bool:
    for queue in run.core.queues.values():
        for job in queue.index.values():
            if job.extra is None or job.extra.parent is None:
                continue
            seen, above = {id(job)}, run.core.parent_of(job)
            while above is not None:
                if id(above[1]) in seen:
                    return True
                seen.add(id(above[1]))
                above = run.core.parent_of(above[1])
    return False


@end_before(
    "a parent that is released into delayed gets the score of its millisecond without a look at who is there already, so "
    "that it overtakes those, or the ids decide (spec 3.1)"
)
def parent_due_with_others(run: Run) -> bool:
    for queue in run.core.queues.values():
        due = Counter(job.due_ms for job in queue.delayed)
        if len(due) < len(queue.delayed) and any(
            due[job.due_ms] > 1 and job.extra is not None and job.extra.children is not None for job in queue.delayed
        ):
            return True
    return False


# --- drawing ----------------------------------------------------------------------------------------------------------


class Drawer:
    """Draws steps for a run."""

    run: Run

    def __init__(self, random: random.Random) -> None:
        self._random = random
        theme = self.pick(tuple(THEMES.values()))
        self.odds = theme.odds
        self._dice = [op for op, weight in WEIGHTS.items() for _ in range(weight)]
        themed = theme.ops.split()
        self._dice += themed * (len(self._dice) // len(themed) if themed else 0)

    def number(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.number(len(options))]

    def chance(self, percent: int) -> bool:
        return self.number(100) < percent

    def some(self, **options: tuple[int, Callable[[], Any]]) -> dict[str, Any]:
        """Each option with its own chance in percent, unless the theme of the sequence has another."""
        odds = self.odds
        return {name: value() for name, (percent, value) in options.items() if self.chance(odds.get(name, percent))}

    def of(self, *options: Any) -> Callable[[], Any]:
        return lambda: self.pick(options)

    def tweaked(self, step: Step) -> Step:
        """The step with one of its numbers changed, if it has any."""
        changed = copy.deepcopy(step)
        numbers: list[tuple[Any, Any]] = []
        stack: list[Any] = [changed]
        while stack:
            value = stack.pop()
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(item, (dict, list)):
                    stack.append(item)
                elif isinstance(item, int) and not isinstance(item, bool) and key not in {"count", "start", "end"}:
                    numbers.append((value, key))
        if numbers:
            inside, key = self.pick(numbers)
            least = int(key in {"ms", "duration"} and step["op"] != "sleep")  # as lifetimes Redis refuses 0
            inside[key] = max(self.pick((inside[key] - 1, inside[key] + 1, inside[key] * 2, 1, 0)), least)
        return changed

    # --- setting ------------------------------------------------------------------------------------------------

    def setting(self) -> dict[str, Any]:
        scenario: dict[str, Any] = {"name": "found/unnamed", "area": "found", "why": "", "steps": []}
        scenario["queues"] = self.pick((["main"], ["main", "other"]))
        if self.chance(15):
            scenario["t0"] = self.pick(
                # a round time; the hours in which Europe and the United States change their clocks
                (1_700_000_000_000, 1_711_845_000_000, 1_729_987_200_000, 1_710_054_000_000, 1_730_606_400_000)
            )
        if self.chance(15):
            scenario["queueOpts"] = {"defaultJobOptions": self.job_options(common=True)}
        workers = {name: self.worker() for name in ("w", "v") if self.chance(60)}
        if workers:
            scenario["workers"] = workers
        return scenario

    def worker(self) -> dict[str, Any]:
        return self.some(
            limiter=(20, lambda: {"max": self.pick((1, 2, 0)), "duration": self.pick((300, 1000))}),
            lockDuration=(30, self.of(500, 1000, 60_000)),
            stalledInterval=(30, self.of(500, 1000)),
            maxStalledCount=(30, self.of(0, 1, 2)),
            maxStartedAttempts=(15, self.of(1, 2, 0)),
            removeOnComplete=(12, self.keep_object),
            removeOnFail=(12, self.keep_object),
            metrics=(20, self.of({"maxDataPoints": 3})),
            name=(10, self.of("n")),
            backoffTable=(60, self.of({"steps": [100, 250, -1], "odd": [0, -5, 100], "nobody": [50]})),
        )

    # --- jobs ---------------------------------------------------------------------------------------------------

    def keep_object(self) -> dict[str, Any]:
        return self.some(
            count=(60, self.of(0, 1, 2, -1)), age=(60, self.of(0, 1, 0.1, 60)), limit=(30, self.of(1, 2, 1000))
        )

    def keep(self) -> Any:
        return self.keep_object() if self.chance(60) else self.pick((True, False, 0, 1, 2, -1))

    def backoff(self) -> Any:
        return self.pick(
            (
                0,
                100,
                -1,
                -5,
                {"type": "fixed", "delay": 100},
                {"type": "fixed"},
                {"type": "fixed", "delay": -5},
                {"type": "exponential", "delay": 50},
                {"type": "exponential"},
                {"type": "exponential", "delay": -7},
                {"type": "steps"},
                {"type": "odd"},
                {"type": "nobody"},
                {"type": "fixed", "delay": 100, "jitter": 0},
            )
        )

    def deduplication(self) -> dict[str, Any]:
        found = {
            "id": self.pick(DEDUPLICATION_IDS),
            **self.some(
                ttl=(50, self.of(100, 1000, 0)),
                extend=(40, self.of(True)),
                replace=(30, self.of(True)),
                reschedule=(30, self.of(True)),
                keepLastIfActive=(40, self.of(True)),
            ),
        }
        if self.chance(3):
            del found["id"]
        return found

    def delay(self) -> Any:
        return self.pick((0, 1, 100, 100, 500, 1000, 5000, -5))

    def job_options(self, *, common: bool = False, policies: bool = False) -> dict[str, Any]:
        """Options of an add; `common` leaves out those that only make sense for a single job."""
        opts = self.some(
            delay=(25, self.delay),
            priority=(25, self.of(0, 1, 1, 2, 3, 2_097_151, -1)),
            attempts=(40, self.of(0, 1, 2, 3, 3, 5, -1)),
            backoff=(40, self.backoff),
            lifo=(12, self.of(True, False)),
            removeOnComplete=(15, self.keep),
            removeOnFail=(15, self.keep),
            keepLogs=(5, self.of(0, 1, 2)),
            stackTraceLimit=(10, self.of(0, 1, 2)),
        )
        if common:
            return opts
        opts |= self.some(
            jobId=(50, self.of(*LETTERS)),
            timestamp=(6, lambda: self.run.now + self.pick((-1000, -1, 1, 1000, -self.run.now))),
            sizeLimit=(3, self.of(0, 5, 100)),
        )
        if self.chance(4 if policies else self.odds.get("deduplication", 15)):
            opts["deduplication"] = self.deduplication()
        if policies or self.chance(3):
            for _ in range(self.pick((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))):
                opts[self.pick(POLICIES)] = self.pick((True, True, True, True, True, False))
        if self.chance(4):
            opts[self.pick(sorted({*opts, "delay", "priority", "removeOnComplete", "attempts"} - {"jobId"}))] = None
        if self.chance(3):
            opts |= self.pick(WRONG)
        return opts

    def data(self) -> dict[str, Any]:
        return (
            {"data": self.pick(({}, {"n": 1}, None, "text", [], [1, {"a": None}], 0, False))} if self.chance(40) else {}
        )

    def entry(self, q: str) -> dict[str, Any]:
        """Name, data and options of one add."""
        entry = self.data()
        if self.chance(20):
            entry["name"] = self.pick(("job", "other"))
        if self.chance(85):
            with_parent = self.chance(12)
            entry["opts"] = self.job_options(policies=with_parent)
            if with_parent:
                entry["opts"] |= self.parent(entry["opts"].get("jobId"))
        return entry

    def parent(self, child: str | None) -> dict[str, Any]:
        """A parent with a smaller letter, so that no job ever becomes its own ancestor."""
        letters = LETTERS if child is None else LETTERS[: LETTERS.find(child)]
        if not letters:
            return {}
        q = self.pick(self.run.queue_names)
        alive = [id for id in letters if id in self.run.core.queue(q).index]
        return {"parent": {"id": self.pick(alive if alive and self.chance(85) else letters), "queue": q}}

    def tree(self, depth: int, letters: str) -> dict[str, Any]:
        """A flow of which all children have greater letters than their parents."""
        id = self.pick(letters[: max(len(letters) - depth, 1)])
        opts = self.job_options(policies=True)
        if depth and self.chance(97):
            opts.pop("deduplication", None)
        node: dict[str, Any] = {"name": "job", "queueName": self.pick(self.run.queue_names), **self.data()}
        node["opts"] = {**opts, "jobId": id}
        below = letters[letters.find(id) + 1 :]
        if depth and below:
            children = [self.tree(depth - 1 - self.number(depth), below) for _ in range(self.number(4))]
            node["children"] = children
        return node

    # --- ids ----------------------------------------------------------------------------------------------------

    def queue(self) -> str:
        return self.pick(self.run.queue_names)

    def id(self, q: str, *states: str) -> str:
        """Mostly of a job in one of these states, else of any job, seldom of none."""
        queue = self.run.core.queue(q)
        if self.chance(92):
            homes = [queue.containers[JobState(state)] for state in states]
            wanted = [job.id for home in homes for job in home]
            if wanted:
                return self.pick(wanted)
        if queue.index and self.chance(85):
            return self.pick(list(queue.index))
        return self.pick((*LETTERS, "1", "2", "3"))

    def held_id(self, q: str) -> str:
        """Mostly of a delivered job that is still active and locked."""
        core, queue = self.run.core, self.run.core.queue(q)
        held = [id for name, id in self.run.held if name == q]
        alive = [id for id in held if core.is_locked(queue, id, self.run.now)]
        if alive and self.chance(90):
            return self.pick(alive)
        return self.pick(held) if held and self.chance(70) else self.id(q, "active")

    def any_state(self) -> str:
        return self.pick(STATES)

    # --- steps --------------------------------------------------------------------------------------------------

    def step(self) -> Step:
        q = self.queue()
        kind = self.fitting(q, self.pick(self._dice))
        step: Step = {"op": kind}
        if q != self.run.queue_names[0]:
            step["q"] = q
        more = DRAWS.get(kind)
        if more is not None:
            step |= more(self, q)
        return step

    def fitting(self, q: str, kind: str) -> str:
        """Mostly another operation where this one would find nothing to do."""
        queue = self.run.core.queue(q)
        if kind in ENDINGS and not queue.locks and self.chance(85):
            kind = "next"
        if kind in {"retry", "retryJobs"} and not queue.completed and not queue.failed and self.chance(85):
            kind = "work"
        if kind in {"promote", "changeDelay", "promoteJobs"} and not queue.delayed and self.chance(85):
            kind = "add"
        if kind in {"next", "work"} and not queue.ready_count and not queue.delayed and self.chance(85):
            kind = self.pick(("add", "add", "add", "flow", "addBulk"))
        return kind

    def worker_name(self) -> Step:
        return {"worker": "v"} if self.chance(25) else {}

    def token(self) -> Step:
        return {"token": self.pick(("0", "wrong", "mine"))} if self.chance(5) else {}

    def sleep(self) -> int:
        """Often exactly to the moment where something happens, or 1 ms beside it."""
        if not self.chance(self.odds.get("exactly", 60)):
            return self.pick((*SHORT_TIMES, *SHORT_TIMES, 5000, 30_000, 60_000, 180_000, 3_600_000))
        now, queue = self.run.now, self.run.core.queue(self.queue())
        kinds = (
            [float(job.due_ms or 0) for job in queue.delayed],
            [key.until_ms for key in queue.deduplication.values() if key.until_ms is not None],
            [queue.limiter_until_ms],
            [*queue.lock_until_ms.values(), queue.stalled_check_until_ms],
            [(job.finished_on or 0) + 1000 for home in (queue.completed, queue.failed) for job in home],
        )
        kinds = [[end for end in ends if now < end < now + 40 * 86_400_000] for ends in kinds]
        kinds = [ends for ends in kinds if ends]
        if not kinds:
            return self.pick(SHORT_TIMES)
        ends = sorted(self.pick(kinds))
        end = ends[0] if self.chance(60) else self.pick(ends)
        return max(int(end - now) + self.pick((0, 0, 0, -1, 1)), 0)

    def bulk(self, q: str) -> Step:
        return {"jobs": [self.entry(q) for _ in range(self.number(4))]}

    def finish(self, q: str) -> Step:
        step: Step = {"id": self.held_id(q), **self.worker_name(), **self.token()}
        if self.chance(50):
            step["fetchNext"] = True
        return step

    def failure(self, q: str) -> Step:
        step = {"message": self.pick(("no", "no", "", "other"))}
        step |= self.some(unrecoverable=(8, self.of(True)), errorName=(8, self.of("TypeError", "UnrecoverableError")))
        return self.finish(q) | step

    def outcome(self, q: str) -> Step:
        outcome: Step = self.pick(
            (
                {},
                {},
                {"return": 1},
                {"return": {"a": []}},
                {"return": None},
                {"throw": "no"},
                {"throw": "no"},
                {"throw": "no"},
                {"throw": "", "unrecoverable": True},
                {"throw": "no", "errorName": "UnrecoverableError"},
                {"delayMs": 100},
                {"delayMs": 0},
                {"wait": True},
                {"waitChildren": True},
                {"waitChildren": True, "throw": "no"},
                {"waitChildren": True, "return": 2},
                {"rateLimitMs": 200},
            )
        )
        return {"outcome": dict(outcome), **self.worker_name(), **self.token()}

    def page(self) -> Step:
        return self.some(
            start=(40, self.of(0, 1, 2, -1, -2)), end=(40, self.of(0, 1, 2, -1, -2, 10)), asc=(50, self.of(True, False))
        )

    def scheduler(self, q: str) -> Step:
        repeat: dict[str, Any] = {"every": self.pick((100, 100, 100, 1000, 1000, 60_000, 7))}
        if not self.chance(self.odds.get("every", 65)):
            pattern = self.pick(
                ("* * * * * *", "*/5 * * * * *", "*/15 * * * *", "0 9 * * *", "30 2 * * 0", "0 0 29 2 *")
            )
            repeat = {"pattern": pattern, **self.some(tz=(40, self.of("Europe/Berlin", "America/New_York", "UTC")))}
        repeat |= self.some(
            limit=(25, self.of(1, 2, 3, 0)),
            offset=(15, self.of(10, 30, 0)),
            immediately=(12, self.of(True, False)),
            startDateInMs=(15, self.of(0, 50, 150, -100, 5000)),
            endDateInMs=(20, self.of(100, 250, 1000, 0, -5)),
        )
        step: Step = {"id": self.pick(SCHEDULER_IDS), "repeat": repeat}
        if self.chance(self.odds.get("template", 50)):
            template: dict[str, Any] = self.data() | self.some(name=(40, self.of("tick", "job")))
            if self.chance(60):
                template["opts"] = self.job_options(common=True)
                template["opts"].pop("delay", None)
                template["opts"] |= self.some(jobId=(5, self.of("a")))
                if self.chance(15):
                    template["opts"]["deduplication"] = {"id": self.pick(DEDUPLICATION_IDS)}
            step["template"] = template
        return step


POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)
WRONG: tuple[dict[str, Any], ...] = (
    {"priority": 1.5},
    {"priority": 2_097_152},
    {"jobId": "123"},
    {"jobId": "a:b"},
    {"backoff": {"type": "fixed", "delay": 1, "jitter": 2}},
    {"deduplication": {}},
    {"debounce": {"id": "x"}},
)
STATES = ("waiting", "active", "delayed", "prioritized", "completed", "failed", "waiting-children", "wait")

DRAWS: dict[str, Callable[[Drawer, str], Step]] = {
    "sleep": lambda d, q: {"ms": d.sleep()},
    "add": lambda d, q: d.entry(q),
    "addBulk": lambda d, q: d.bulk(q),
    "flow": lambda d, q: {"tree": d.tree(1 + d.number(2), LETTERS)},
    "flowBulk": lambda d, q: {"trees": [d.tree(d.number(2), LETTERS) for _ in range(1 + d.number(2))]},
    "next": lambda d, q: {**d.worker_name(), **d.token()},
    "complete": lambda d, q: d.finish(q) | d.some(value=(50, d.of(1, "v", {"a": 1}, None, []))),
    "fail": lambda d, q: d.failure(q),
    "moveToDelayed": lambda d, q: {"id": d.held_id(q), "delayMs": d.pick((0, 100, 1000, -5)), **d.token()},
    "moveToWait": lambda d, q: {"id": d.held_id(q), **d.token()},
    "moveToWaitingChildren": lambda d, q: {
        "id": d.held_id(q),
        **d.some(child=(25, lambda: {"id": d.pick(LETTERS), "queue": d.queue()})),
        **d.token(),
    },
    "extendLock": lambda d, q: {"id": d.held_id(q), "duration": d.pick((100, 1000, 60_000)), **d.token()},
    "stalledCheck": lambda d, q: d.worker_name(),
    "work": lambda d, q: d.outcome(q),
    "state": lambda d, q: {"id": d.id(q)},
    "isInState": lambda d, q: {"id": d.id(q), "state": d.any_state()},
    "counts": lambda d, q: d.some(types=(50, lambda: [d.any_state(), d.any_state()])),
    "delayedCount": lambda d, q: d.some(beforeMs=(80, d.of(0, 1, 100, 101, 1000))),
    "job": lambda d, q: {"id": d.id(q)},
    "jobOpts": lambda d, q: {"id": d.id(q)},
    "list": lambda d, q: d.page() | d.some(types=(85, lambda: [d.any_state() for _ in range(1 + d.number(2))])),
    "typed": lambda d, q: {
        "method": d.pick(
            (
                "getWaiting",
                "getActive",
                "getDelayed",
                "getPrioritized",
                "getCompleted",
                "getFailed",
                "getWaitingChildren",
            )
        ),
        **d.some(start=(30, d.of(0, 1, -1)), end=(30, d.of(0, 1, -1, -2))),
    },
    "countsPerPriority": lambda d, q: {"priorities": d.pick(([0, 1], [1, 2, 3, 0], [2, 2], [2_097_151]))},
    "logs": lambda d, q: {"id": d.id(q), **d.page()},
    "metrics": lambda d, q: {
        "type": d.pick(("completed", "failed")),
        **d.some(start=(30, d.of(0, 1)), end=(30, d.of(0, -1))),
    },
    "remove": lambda d, q: {"id": d.id(q, *d.pick(HOMES)), **d.some(removeChildren=(40, d.of(False, True)))},
    "jobRemove": lambda d, q: {"id": d.id(q, *d.pick(HOMES)), **d.some(removeChildren=(40, d.of(False, True)))},
    "retry": lambda d, q: {
        "id": d.id(q, "failed", "completed"),
        **d.some(
            state=(40, d.of("failed", "completed")),
            opts=(40, lambda: d.some(resetAttemptsMade=(50, d.of(True)), resetAttemptsStarted=(50, d.of(True)))),
        ),
    },
    "promote": lambda d, q: {"id": d.id(q, "delayed")},
    "changeDelay": lambda d, q: {"id": d.id(q, "delayed"), "delay": d.pick((0, 1, 100, 1000, -5))},
    "changePriority": lambda d, q: {
        "id": d.id(q, "prioritized", "waiting", "delayed"),
        **d.some(priority=(85, d.of(0, 1, 1, 2, 3)), lifo=(40, d.of(True))),
    },
    "updateData": lambda d, q: {"id": d.id(q), "data": d.pick(({"new": 1}, None, 5))},
    "updateProgress": lambda d, q: {"id": d.id(q), "progress": d.pick((50, {"done": 1}, "half", True, None))},
    "log": lambda d, q: {"id": d.id(q), "row": d.pick(("one", "two", "")), **d.some(keep=(40, d.of(1, 2, 0)))},
    "jobLog": lambda d, q: {"id": d.id(q), "row": d.pick(("one", "two"))},
    "clearLogs": lambda d, q: {"id": d.id(q), **d.some(keep=(50, d.of(0, 1, 2)))},
    "drain": lambda d, q: d.some(delayed=(50, d.of(True, False))),
    "clean": lambda d, q: {
        "grace": d.pick((0, 0, 1, 100, 500, 1000)),
        "limit": d.pick((0, 0, 1, 2)),
        **d.some(type=(90, d.any_state)),
    },
    "obliterate": lambda d, q: d.some(force=(60, d.of(True)), count=(20, d.of(1, 2))),
    "promoteJobs": lambda d, q: d.some(count=(40, d.of(1, 2))),
    "retryJobs": lambda d, q: d.some(
        count=(40, d.of(1, 2)), state=(60, d.of("failed", "completed")), olderThanMs=(30, d.of(0, 1, 100, -100))
    ),
    "getDeduplicationJobId": lambda d, q: {"id": d.pick(DEDUPLICATION_IDS)},
    "removeDeduplicationKey": lambda d, q: {"id": d.pick(DEDUPLICATION_IDS)},
    "jobRemoveDeduplicationKey": lambda d, q: {"id": d.id(q)},
    "upsertJobScheduler": lambda d, q: d.scheduler(q),
    "getJobScheduler": lambda d, q: {"id": d.pick(SCHEDULER_IDS)},
    "getJobSchedulers": lambda d, q: d.page(),
    "removeJobScheduler": lambda d, q: {"id": d.pick(SCHEDULER_IDS)},
    "setGlobalConcurrency": lambda d, q: {"concurrency": d.pick((1, 2, 0))},
    "setGlobalRateLimit": lambda d, q: {"max": d.pick((1, 2, 0)), "duration": d.pick((200, 1000))},
    "rateLimit": lambda d, q: {"ms": d.pick((100, 1000))},
    "rateLimitTtl": lambda d, q: d.some(maxJobs=(40, d.of(1, 2, 0))),
    "getFlow": lambda d, q: {
        "id": d.id(q, "waiting-children"),
        **d.some(depth=(40, d.of(1, 2, 3)), maxChildren=(20, d.of(1, 2))),
    },
    "childrenValues": lambda d, q: {"id": d.id(q, "waiting-children")},
    "ignoredChildrenFailures": lambda d, q: {"id": d.id(q, "waiting-children")},
    "dependencies": lambda d, q: {
        "id": d.id(q, "waiting-children"),
        **d.some(
            opts=(30, d.of({"processed": {"count": 1}}, {"failed": {"cursor": 1, "count": 2}}, {"unprocessed": True}))
        ),
    },
    "dependenciesCount": lambda d, q: {
        "id": d.id(q, "waiting-children"),
        **d.some(opts=(40, d.of({"processed": True}, {"failed": True, "ignored": True}, {"unprocessed": True}))),
    },
    "removeChildDependency": lambda d, q: {"id": d.id(q)},
    "removeUnprocessedChildren": lambda d, q: {"id": d.id(q, "waiting-children")},
}
"""What an operation needs besides its name and queue."""

ENDINGS = {"complete", "fail", "moveToDelayed", "moveToWait", "moveToWaitingChildren", "extendLock"}
HOMES = (("waiting", "delayed", "prioritized"), ("completed", "failed"), ("active",), ("waiting-children",))

WEIGHTS = {
    "sleep": 14,
    "add": 26,
    "addBulk": 4,
    "flow": 7,
    "flowBulk": 2,
    "next": 18,
    "complete": 12,
    "fail": 12,
    "moveToDelayed": 3,
    "moveToWait": 4,
    "moveToWaitingChildren": 3,
    "extendLock": 3,
    "stalledCheck": 5,
    "work": 16,
    "retry": 4,
    "promote": 3,
    "changeDelay": 3,
    "changePriority": 4,
    "upsertJobScheduler": 7,
    "clean": 6,
    "remove": 4,
    "jobRemove": 3,
    "list": 3,
    "removeJobScheduler": 2,
    "removeChildDependency": 2,
    "removeUnprocessedChildren": 2,
    "pause": 2,
    "resume": 3,
    "drain": 3,
    "obliterate": 1,
    "promoteJobs": 2,
    "retryJobs": 4,
    "setGlobalConcurrency": 1,
    "removeGlobalConcurrency": 2,
    "setGlobalRateLimit": 1,
    "removeGlobalRateLimit": 2,
    "rateLimit": 1,
    "removeRateLimitKey": 1,
    "removeDeduplicationKey": 1,
    "jobRemoveDeduplicationKey": 1,
    **dict.fromkeys(
        (
            "state",
            "isInState",
            "counts",
            "count",
            "delayedCount",
            "job",
            "jobOpts",
            "typed",
            "countsPerPriority",
            "logs",
            "meta",
            "metrics",
            "updateData",
            "updateProgress",
            "log",
            "jobLog",
            "clearLogs",
            "isPaused",
            "getDeduplicationJobId",
            "getJobScheduler",
            "getJobSchedulers",
            "getJobSchedulersCount",
            "getGlobalConcurrency",
            "isMaxed",
            "getGlobalRateLimit",
            "rateLimitTtl",
            "getFlow",
            "childrenValues",
            "ignoredChildrenFailures",
            "dependencies",
            "dependenciesCount",
        ),
        1,
    ),
}
"""How often each operation is drawn: those that change much, and those that the recorded traces hardly pin, more often."""
