"""The pages and the example about testing do what they say."""

import asyncio
import os
import re
import subprocess
import sys
import unittest

import pytest

from tests.docs.pages import ROOT
from tests.docs.run_page import Page

SUITE = ROOT / "examples" / "testing"


def test_the_tests_on_the_page_pass() -> None:
    """Not only the code at the top level of the page, which runs with all pages: its test cases too."""
    page = Page(ROOT / "docs" / "testing.md")
    page.run_all()
    names = vars(page.module)
    cases = [value for value in names.values() if isinstance(value, type) and issubclass(value, unittest.TestCase)]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    result = unittest.TestResult()
    suite.run(result)
    asyncio.set_event_loop(None)
    assert (result.testsRun, result.errors, result.failures) == (2, [], [])
    names["test_payloads_arrive_as_they_were_sent"]()


def test_every_call_that_the_pages_name_exists() -> None:
    """A renamed method would otherwise stay in a table for ever."""
    from inproc_jobs.testing import Harness

    for page in ("testing.md", "coming-from.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        named = set(re.findall(r"\bjobs\.(\w+)", text)) - {"mode", "clock", "engine"}
        assert named, page
        assert {name for name in named if not hasattr(Harness, name)} == set(), page


@pytest.mark.slow
def test_the_example_suite_passes_in_no_time() -> None:
    """At least fifteen tests over weeks of virtual time, in less than two seconds of the machine's."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", str(SUITE), "-c", os.devnull, "--rootdir", str(SUITE), "-q", "-n0", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    found = re.search(r"(\d+) passed in ([\d.]+)s", ended.stdout)
    assert ended.returncode == 0, ended.stdout
    assert found
    assert int(found[1]) >= 15
    # Of wall time, on machines that do other things as well; alone it is under two.
    assert float(found[2]) < 10
