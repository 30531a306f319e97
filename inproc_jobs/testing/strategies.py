"""Hypothesis strategies for payloads and options, for property tests of programs that dispatch jobs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from inproc_jobs.app.options import MAX_PRIORITY, check_job_id
from inproc_jobs.errors import InvalidJobIdError

__all__ = ["backoffs", "dispatch_options", "durations", "job_ids", "payloads"]

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


def durations(*, max_ms: int = 86_400_000) -> st.SearchStrategy[str | int]:
    """A duration in one of its forms, up to `max_ms`."""
    whole = st.integers(0, max_ms)
    return whole | whole.map(lambda ms: f"{ms}ms") | st.integers(0, max_ms // 1000).map(lambda s: f"{s}s")


def backoffs() -> st.SearchStrategy[Any]:
    """A backoff in one of its forms."""
    table = st.fixed_dictionaries(
        {"type": st.sampled_from(("fixed", "exponential")), "delay": durations(max_ms=3_600_000)},
        optional={"jitter": st.floats(0, 1), "max_delay": durations(max_ms=86_400_000).map(_with_unit)},
    )
    return durations(max_ms=3_600_000) | table


def _with_unit(duration: str | int) -> str:
    return duration if isinstance(duration, str) else f"{duration}ms"


def dispatch_options() -> st.SearchStrategy[dict[str, Any]]:
    """Options of one dispatch, each given or left out."""
    return st.fixed_dictionaries(
        {},
        optional={
            "job_id": job_ids(),
            "delay": durations(),
            "priority": st.integers(0, MAX_PRIORITY),
            "attempts": st.integers(1, 10),
            "backoff": backoffs(),
            "lifo": st.booleans(),
            "remove_on_complete": st.booleans() | st.integers(0, 100),
            "remove_on_fail": st.booleans() | st.integers(0, 100),
            "keep_logs": st.integers(0, 100),
            "stack_trace_limit": st.integers(0, 10),
        },
    )
