"""What `run_until_idle(progress=True)` shows: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Self

    from inproc_jobs.runtime.runtime import Runtime

__all__ = ["Progress"]

_EVERY_S: Final = 0.1
_LINE_EVERY: Final = 20


class Progress:
    """
    Follows an engine from a thread of its own, so that a handler that blocks the loop does not stop the display.

    The bar is rich's where rich is installed (extra `cli`) and standard error is a terminal.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = (runtime.completed, runtime.failed, runtime.retried)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _rich_bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("jobs", total=None, failed=0, retried=0)
        self._thread = threading.Thread(target=self._follow, name="inproc_jobs progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._show(last=True)
        if self._bar is not None:
            self._bar.stop()

    def _follow(self) -> None:
        turn = 0
        while not self._stop.wait(_EVERY_S):
            turn += 1
            if self._bar is not None or turn % _LINE_EVERY == 0:
                self._show(last=False)

    def _counts(self) -> tuple[int, int]:
        """(ended, known) since the start."""
        runtime = self._runtime
        with runtime.lock:
            left = sum(queue.waiting_count + len(queue.active) for queue in runtime.core.queues.values())
        ended = runtime.completed + runtime.failed - self._before[0] - self._before[1]
        return ended, ended + left

    def _show(self, *, last: bool) -> None:
        ended, known = self._counts()
        failed, retried = self._runtime.failed - self._before[1], self._runtime.retried - self._before[2]
        if self._bar is not None:
            self._bar.update(self._task, completed=ended, total=known, failed=failed, retried=retried)
            return
        note = "running" if not last else "done" if ended == known else "stopped"
        sys.stderr.write(f"jobs: {ended}/{known} {note}, {failed} failed, {retried} retried\n")
        sys.stderr.flush()


def _rich_bar() -> Any:
    """Rich's progress bar, None where rich is not installed."""
    try:
        progress = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console")
    except ImportError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=30),
        progress.MofNCompleteColumn(),
        progress.TextColumn("[red]{task.fields[failed]} failed[/] [yellow]{task.fields[retried]} retried[/]"),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
    )
