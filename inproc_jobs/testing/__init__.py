"""
The test kit: the real engine on virtual time, assertions, faults on demand.

With pytest use the fixture `jobs` (no import needed); elsewhere `harness()`, a context manager for both kinds of code.
It contains no rule about jobs: only the clock, and where plain functions run, are replaced. Names are loaded on first
use, since pytest loads the plugin in every run.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inproc_jobs.testing.assertions import ANY, Dispatched, exactly
    from inproc_jobs.testing.kit import DrainLimitError, Harness, harness
    from inproc_jobs.testing.ledger import TimelineEntry
    from inproc_jobs.testing.memory_store import MemorySnapshot
    from inproc_jobs.testing.virtual_time import TimeStuckError, VirtualClock, VirtualTime

__all__ = [
    "ANY",
    "Dispatched",
    "DrainLimitError",
    "Harness",
    "MemorySnapshot",
    "TimeStuckError",
    "TimelineEntry",
    "VirtualClock",
    "VirtualTime",
    "exactly",
    "harness",
]

_HOME_OF = {
    "ANY": "assertions",
    "Dispatched": "assertions",
    "DrainLimitError": "kit",
    "Harness": "kit",
    "MemorySnapshot": "memory_store",
    "TimeStuckError": "virtual_time",
    "TimelineEntry": "ledger",
    "VirtualClock": "virtual_time",
    "VirtualTime": "virtual_time",
    "exactly": "assertions",
    "harness": "kit",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a name from the module that defines it."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
