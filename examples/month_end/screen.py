"""What the demo shows: a live view in a terminal, plain lines when piped. Rich sees to `NO_COLOR` and narrow windows."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from month_end.checks import Check
from month_end.client import Tally

STATES = ("waiting", "delayed", "active", "completed", "failed")
SECONDS_BETWEEN_LINES = 2.0


class Screen:
    """Shows how far the demo is. Use it in a `with` block; `update` as often as you like."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._lines_only = not console.is_terminal or console.is_dumb_terminal
        self._next_line = 0.0
        self._bar = Progress(
            TextColumn("  deliveries"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._bar.add_task("deliveries", total=total)
        self._live = Live(self._bar, console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        if not self._lines_only:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._lines_only:
            self._live.stop()

    def update(self, tally: Tally, status: dict[str, Any]) -> None:
        """Show the newest figures."""
        if self._lines_only:
            self._print_line(tally, status)
            return
        self._bar.update(self._task, completed=tally.received)
        self._live.update(
            Group(self._bar, Padding(queues_table(tally, status), (1, 2, 0, 2), expand=False)), refresh=True
        )

    def _print_line(self, tally: Tally, status: dict[str, Any]) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + SECONDS_BETWEEN_LINES
        queues = status["queues"].values()
        states = ", ".join(f"{sum(queue.get(state, 0) for queue in queues)} {state}" for state in STATES[:3])
        print(
            f"{tally.received:>6,} of {tally.total:,} deliveries: {tally.created:,} jobs created, "
            f"{tally.duplicates.total():,} duplicates ignored, {status['retries']:,} retries; now {states}",
            flush=True,
        )


def queues_table(tally: Tally, status: dict[str, Any]) -> Group:
    """The queues with the number of jobs in each state, and the sums below."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("queue", style="bold")
    for state in STATES:
        table.add_column(state, justify="right", style={"failed": "red", "completed": "green"}.get(state, ""))
    for name, counts in status["queues"].items():
        table.add_row(name, *(f"{counts.get(state, 0):,}" for state in STATES))
    sums = Text.assemble(
        (f"{tally.created:,}", "bold green"),
        " jobs created   ",
        (f"{tally.duplicates.total():,}", "bold yellow"),
        " duplicates ignored   ",
        (f"{status['retries']:,}", "bold cyan"),
        " retries",
    )
    return Group(table, Text(), sums)


def summary_rows(tally: Tally, retries: int) -> list[tuple[str, str]]:
    """The figures of the summary, in order."""
    rows = [
        ("deliveries received", f"{tally.received:,}"),
        ("jobs created", f"{tally.created:,}"),
        ("duplicates ignored", f"{tally.duplicates.total():,}"),
    ]
    rows += [(f"  its job was {state}", f"{count:,}") for state, count in tally.duplicates.most_common()]
    rows += [
        ("retries", f"{retries:,}"),
        ("request to response, p50", f"{tally.percentile_ms(50):.1f} ms"),
        ("request to response, p99", f"{tally.percentile_ms(99):.1f} ms"),
    ]
    if tally.sent_again:
        rows.append(("sent again, connection broke", f"{tally.sent_again:,}"))
    if tally.refused:
        rows.append(("answered with an error", f"{tally.refused:,}"))
    return rows


def print_summary(console: Console, tally: Tally, retries: int, checks: list[Check]) -> None:
    """The table at the end, and below it what was checked."""
    rows = summary_rows(tally, retries)
    if not console.is_terminal:
        print()
        for name, value in rows:
            print(f"{name:<28}{value:>10}")
    else:
        console.print()
        table = Table(show_header=False, title="Summary", title_justify="left", title_style="bold")
        table.add_column()
        table.add_column(justify="right", style="bold")
        for name, value in rows:
            table.add_row(name, value, style="dim" if name.startswith(" ") else "")
        console.print(table)
    print_checks(console, checks)


def print_checks(console: Console, checks: list[Check]) -> None:
    """One line for each thing that was checked against the ledger; what is wrong is named, up to five each."""
    console.print()
    for check in checks:
        verdict = Text("ok     ", "bold green") if check.good else Text("WRONG  ", "bold red")
        console.print(Text.assemble(verdict, check.text), soft_wrap=True)
        for problem in check.problems[:5]:
            console.print(f"       {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
        if len(check.problems) > 5:
            console.print(f"       and {len(check.problems) - 5:,} more", style="red", soft_wrap=True)
