"""Faults on demand: what a test has a handler do instead of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from inproc_jobs.app.definition import JobDefinition
from inproc_jobs.errors import InvalidOptionError

__all__ = ["Fault", "Faults", "name_of"]

AnyError = BaseException | type[BaseException]
AnyJob = JobDefinition[Any, Any] | str


@dataclass(slots=True)
class Fault:
    """An error to raise in place of a handler, or with None a handler that never comes back."""

    name: str
    error: AnyError | None
    times: int | None
    when: Callable[[Any], bool] | None = None

    def happen(self) -> Awaitable[Any]:
        """Take the handler's place."""
        if self.error is None:
            return _hang()
        raise self.error


async def _hang() -> None:
    await asyncio.Event().wait()


class Faults:
    """Which faults are still to come."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def fail_next(self, job: AnyJob, error: AnyError, *, times: int = 1) -> None:
        """Have the next runs of a job raise `error` instead of calling its handler."""
        self._faults.append(Fault(name_of(job), _checked(error), _checked_times(times)))

    def fail_when(self, job: AnyJob, predicate: Callable[[Any], bool], error: AnyError) -> None:
        """Have every run of a job raise `error` whose payload the predicate says yes to."""
        self._faults.append(Fault(name_of(job), _checked(error), None, predicate))

    def hang_next(self, job: AnyJob, *, times: int = 1) -> None:
        """
        Have the next runs of a job never come back, so that its `timeout` ends them, in virtual time.

        Without a `timeout` nothing can end them: draining says so with `TimeStuckError`.
        """
        self._faults.append(Fault(name_of(job), None, _checked_times(times)))

    def clear_faults(self) -> None:
        """Let handlers run undisturbed again."""
        self._faults.clear()

    def take_fault(self, name: str, payload: Any) -> Fault | None:
        """The fault for a run that begins, if there is one; those asked for first come first."""
        for fault in self._faults:
            if fault.name == name and fault.times != 0 and (fault.when is None or fault.when(payload)):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


def name_of(job: AnyJob) -> str:
    """The name of a job that is given as a definition or by name."""
    return job.name if isinstance(job, JobDefinition) else job


def _checked(error: Any) -> AnyError:
    if isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException)):
        return error
    raise InvalidOptionError(f"error must be an exception or its class, got {error!r}", option="error", value=error)


def _checked_times(times: Any) -> int:
    if type(times) is int and times >= 1:
        return times
    raise InvalidOptionError(f"times must be an int of at least 1, got {times!r}", option="times", value=times)
