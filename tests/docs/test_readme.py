"""What a stranger reads first is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, run_page

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_its_code_prints_what_it_says():
    """The blocks of README.md run, and print what stands below them."""
    assert run_page(README) == "1 blocks ran"


def test_its_code_is_a_program(tmp_path: Path):
    """The first block can be put into a file and run as it is, without a word of warning."""
    code, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)[:2]
    (tmp_path / "first.py").write_text(code, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-W", "error", "first.py"],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        check=True,
    )
    assert ended.stdout == printed
    assert not ended.stderr


def test_code_comes_within_25_lines():
    """Who opens the page sees runnable code without scrolling, and what it is in the first two lines of text."""
    lines = TEXT.splitlines()
    assert lines.index("```python") < 10
    assert any("asyncio.run(" in line for line in lines[:25])
    assert lines[0] == "# inproc_jobs"
    assert lines[4] == ""


@pytest.mark.parametrize("heading", ["What it is not", "Two commands", "Where next"])
def test_it_has_the_parts_that_readers_look_for(heading: str):
    """What it is not, how to try it, where to go on."""
    assert f"## {heading}" in TEXT


@pytest.mark.slow
def test_its_claim_can_be_checked_as_it_says():
    """The command below "Identical to BullMQ" runs from the top folder and ends with 0 failed."""
    [command] = re.findall(r"^\$ python (-m tests\.conformance\.replay .*)$", TEXT, flags=re.MULTILINE)
    ended = subprocess.run(
        [sys.executable, *command.split()], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert ended.returncode == 0, ended.stdout
    assert re.fullmatch(r"\d{3,} passed, 0 failed", ended.stdout.splitlines()[-1])
