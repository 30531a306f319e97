"""
Run the code of one Markdown page, as `python -m tests.docs.run_page PAGE`.

Its Python blocks run one after the other in one module, as in `python -m asyncio`: a block may `await` at its top level.
A `text` block is what the Python block before it prints (`...` stands for anything), and whatever a block prints has to
be shown so. A block that cannot run here is marked with a reason: `<!-- skip: next "needs a terminal" -->`.
"""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import sys
import types
from pathlib import Path
from unittest import SkipTest

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

__all__ = ["Page"]

_CHECKER = doctest.OutputChecker()


class Page:
    """A page that is being run."""

    def __init__(self, path: Path) -> None:
        parsers = [CodeBlockParser("python", self.run), CodeBlockParser("text", self.compare), SkipParser()]
        self.document = Sybil(parsers).parse(path)
        # A module of its own, so that annotations are looked up where the page defines them.
        self.module = sys.modules["page"] = types.ModuleType("page")
        self.printed: str | None = None
        self.where = ""

    def run_all(self) -> int:
        """Run every block; how many Python blocks ran."""
        count = 0
        with asyncio.Runner() as self.runner:
            for example in self.document.examples():
                try:
                    example.evaluate()
                except SkipTest:
                    continue
                count += self.where.endswith(f":{example.line}")
            self.expect_nothing_untold()
        return count

    def run(self, example: Example) -> None:
        """Run a Python block."""
        self.expect_nothing_untold()
        self.where = f"{example.path}:{example.line}"
        # Blank lines in front, so that a traceback names the line of the page.
        source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
        code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            waits = eval(code, self.module.__dict__)
            if inspect.iscoroutine(waits):
                self.runner.run(waits)
        self.printed = printed.getvalue()

    def compare(self, example: Example) -> None:
        """Compare a text block with what was printed."""
        if self.printed is None:
            raise AssertionError(f"{example.path}:{example.line}: a text block without a Python block before it")
        got, self.printed = self.printed, None
        if not _CHECKER.check_output(example.parsed, got, doctest.ELLIPSIS):
            raise AssertionError(f"{self.where} prints\n{got}\nand the page says\n{example.parsed}")

    def expect_nothing_untold(self) -> None:
        """What a block prints is shown below it."""
        if self.printed:
            raise AssertionError(f"{self.where} prints what the page does not show:\n{self.printed}")
        self.printed = None


if __name__ == "__main__":
    ran = Page(Path(sys.argv[1])).run_all()
    print(f"{ran} blocks ran")  # noqa: T201  # a script that reports
