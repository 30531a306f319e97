"""
Hypothesis strategies for payloads and options, for property tests of programs that dispatch jobs.

Whatever they draw, `dispatch` accepts. In a property test make a harness for each example (`with harness() as jobs:`):
the fixture `jobs` is made once for all of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from inproc_jobs.app.options import MAX_PRIORITY, Deduplication, check_job_id
from inproc_jobs.errors import InvalidJobIdError

__all__ = ["backoffs", "deduplications", "dispatch_options", "durations", "job_ids", "payloads", "retentions"]

# Lone surrogates are no text; everything else is, NUL included.
_characters = st.characters(codec="utf-8")
_text = st.text(_characters, max_size=20)


def payloads(*, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Any JSON value that a dispatch accepts."""
    atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text
    return st.recursive(
        atoms,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_text, inner, max_size=5),
        max_leaves=max_leaves,
    )


def job_ids() -> st.SearchStrategy[str]:
    """Any id that a dispatch accepts."""
    return st.text(_characters, min_size=1, max_size=30).filter(_is_accepted)


def _is_accepted(id: str) -> bool:
    try:
        check_job_id(id)
    except InvalidJobIdError:
        return False
    return True


def durations(*, min_ms: int = 0, max_ms: int = 86_400_000) -> st.SearchStrategy[str | int]:
    """A duration in one of its forms."""
    whole = st.integers(min_ms, max_ms)
    return whole | whole.map(lambda ms: f"{ms}ms") | st.integers(-(-min_ms // 1000), max_ms // 1000).map("{}s".format)


def backoffs() -> st.SearchStrategy[Any]:
    """A backoff in one of its forms."""
    table = st.fixed_dictionaries(
        {"type": st.sampled_from(("fixed", "exponential")), "delay": durations(max_ms=3_600_000)},
        optional={"jitter": st.floats(0, 1), "max_delay": durations().map(_with_unit)},
    )
    return durations(max_ms=3_600_000) | table


def _with_unit(duration: str | int) -> str:
    return duration if isinstance(duration, str) else f"{duration}ms"


def retentions() -> st.SearchStrategy[Any]:
    """What `remove_on_complete` and `remove_on_fail` take."""
    some = st.integers(0, 100)
    table = st.fixed_dictionaries({"count": some}) | st.fixed_dictionaries(
        {"age": st.integers(1, 86_400)}, optional={"count": some, "limit": st.integers(1, 100)}
    )
    return st.booleans() | some | table


def deduplications() -> st.SearchStrategy[Deduplication]:
    """One of the four kinds."""
    key = st.text(_characters, min_size=1, max_size=10)
    time = durations(min_ms=1, max_ms=3_600_000)
    return (
        st.builds(Deduplication.until_done, key)
        | st.builds(Deduplication.throttle, key, time)
        | st.builds(Deduplication.debounce, key, time)
        | st.builds(Deduplication.keep_last, key)
    )


def dispatch_options() -> st.SearchStrategy[dict[str, Any]]:
    """Options of one dispatch, each given or left out."""
    common: dict[str, st.SearchStrategy[Any]] = {
        "job_id": job_ids(),
        "priority": st.integers(0, MAX_PRIORITY),
        "attempts": st.integers(1, 10),
        "backoff": backoffs(),
        "lifo": st.booleans(),
        "deduplication": deduplications(),
        "remove_on_complete": retentions(),
        "remove_on_fail": retentions(),
        "keep_logs": st.integers(0, 100),
        "stack_trace_limit": st.integers(0, 10),
    }
    moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # as asked
    by_delay = st.fixed_dictionaries({}, optional={**common, "delay": durations()})
    by_moment = st.fixed_dictionaries({"run_at": moments}, optional=common)
    return by_delay | by_moment
