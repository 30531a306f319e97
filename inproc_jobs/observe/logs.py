"""
The engine's log.

Lines go through structlog where the host has configured it, else to the stdlib logger `inproc_jobs`: unconfigured
structlog prints every level to standard output, which no library may do to its host. structlog is not even imported
before the host has done so.
"""

from __future__ import annotations

import logging
import sys
from contextvars import copy_context
from typing import Any, Final

__all__ = ["LOGGER_NAME", "EngineLog", "JobLogFilter"]

LOGGER_NAME: Final = "inproc_jobs"
_PREFIX: Final = "structlog_"
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class EngineLog:
    """Writes a fixed text and its fields at a level. Logging never raises into the engine."""

    def __init__(self) -> None:
        self._stdlib = logging.getLogger(LOGGER_NAME)

    def debug(self, event: str, **fields: Any) -> None:
        """For those who look for a fault of the engine itself."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Worth knowing, nothing to do: an attempt that will be retried."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Somebody should look: a handler that blocks the loop, jobs that nothing keeps."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Work was not done: a job has failed for good."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        try:
            if structlog is not None and structlog.is_configured():
                getattr(structlog.get_logger(LOGGER_NAME), level)(event, **fields)
            elif self._stdlib.isEnabledFor(_LEVELS[level]):
                self._to_stdlib(_LEVELS[level], event, fields)
        except Exception:  # noqa: BLE001  # a broken processor of the host must not end a job
            self._stdlib.exception("a log line could not be written: %s", event)

    def _to_stdlib(self, level: int, event: str, fields: dict[str, Any]) -> None:
        stack = fields.pop("stack", None)
        text = " ".join(f"{key}={value!r}" for key, value in fields.items() if value is not None)
        message = f"{event}: {text}" if text else event
        # Fields also go into the record, for formatters that print them (JSON); names of the record itself may not.
        extra = {f"job_{key}" if key in ("name", "message") else key: value for key, value in fields.items()}
        self._stdlib.log(level, "%s", f"{message}\n{stack}" if stack else message, extra=extra)


class JobLogFilter(logging.Filter):
    """
    Puts `job_id`, `job_name`, `queue` and `attempt` on the records of the stdlib logging, None outside of a job.

    Add it to a handler: `handler.addFilter(JobLogFilter())`. With structlog nothing is needed: `merge_contextvars`,
    which is among its default processors, finds them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        # The runtime sets context variables of these names for each run, which is where structlog finds them too.
        bound = {var.name: value for var, value in copy_context().items() if var.name.startswith(_PREFIX)}
        for key in ("job_id", "job_name", "queue", "attempt"):
            if not hasattr(record, key):
                setattr(record, key, bound.get(_PREFIX + key))
        return True
