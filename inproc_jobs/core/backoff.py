"""Pure decisions about a failed attempt: retry or not, and after how long (spec section 6.2)."""

from __future__ import annotations

import math
from typing import Final

from inproc_jobs.core.options import Backoff, JobOptions

__all__ = ["BUILTIN_BACKOFFS", "NO_RETRY", "next_delay_ms", "wants_retry"]

BUILTIN_BACKOFFS: Final = frozenset(("fixed", "exponential"))
NO_RETRY: Final = -1
"""The delay with which a strategy says: do not retry."""


def wants_retry(
    opts: JobOptions, attempts_made: int, attempts_started: int, max_started: int | None, unrecoverable: bool
) -> bool:
    """
    Whether attempts are left after a failure.

    Args:
        attempts_made: Attempts that had ended BEFORE this failure.
        max_started: The worker's bound on starts, None for no bound.

    Cost: O(1). Source: spec section 6.2.

    >>> wants_retry(JobOptions(attempts=3), 1, 2, None, unrecoverable=False)
    True
    >>> wants_retry(JobOptions(attempts=3), 2, 3, None, unrecoverable=False)
    False
    """
    if unrecoverable or attempts_made + 1 >= opts.attempts:
        return False
    return not (max_started and attempts_started >= max_started)


def next_delay_ms(backoff: Backoff, attempts_made: int, draw: float) -> float:
    """
    How long a failed job waits before its next attempt, by a built-in policy.

    Args:
        backoff: Policy of type "fixed" or "exponential".
        attempts_made: Attempts that have ended, this one included, >= 1.
        draw: Uniform number in [0, 1) from the runtime; unused without jitter.

    Returns:
        Milliseconds; NaN for an exponential policy without a delay, as in BullMQ; -1 means no retry.

    Cost: O(1). Source: spec section 6.2; differs: capped at `max_delay_ms` where one is set (BullMQ has no cap, and a
    delay that overflows leaves its job delayed for ever).

    >>> next_delay_ms(Backoff(type="exponential", delay_ms=1_000), attempts_made=3, draw=0.0)
    4000
    >>> next_delay_ms(Backoff(delay_ms=1_000, jitter=0.5), attempts_made=1, draw=0.0)
    500
    >>> next_delay_ms(Backoff(type="exponential", delay_ms=1_000, max_delay_ms=60_000), attempts_made=1200, draw=0.0)
    60000
    """
    base = backoff.delay_ms
    if base is None:
        return math.nan if backoff.type == "exponential" else 0
    if backoff.type == "exponential":
        # An exponent of 64 is beyond any time that can be stored; floats would overflow near 1,024.
        base = math.floor(2.0 ** min(attempts_made - 1, 64) * base + 0.5) if base else base
    if backoff.jitter > 0:
        drawn = math.floor(draw * base * backoff.jitter + base * (1 - backoff.jitter))
        # The largest draws round up to the delay itself, of which something is to be taken off.
        base = min(drawn, math.ceil(base) - 1) if base > 0 else drawn
    if backoff.max_delay_ms is not None:
        base = min(base, backoff.max_delay_ms)
    return base
