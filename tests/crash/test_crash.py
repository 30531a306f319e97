"""Two hundred kills at random moments; thousands by hand: `python -m tests.crash --kills 5000`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.redis.server import why_not

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform == "win32", reason="kills and forks of POSIX"),
]


def play(store: str, mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash", "--kills", "50", "--life", "0.3", "--store", store, "--mode", mode],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=390,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["write_through", "periodic"])
def test_kills_on_a_file(mode):
    """`write_through` loses nothing acknowledged, `periodic` nothing older than its interval; nothing runs too often."""
    play("sqlite", mode)


@pytest.mark.redis
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("mode", ["write_through", "periodic"])
def test_kills_on_redis(mode):
    """The same, with the server itself killed and started again in some rounds."""
    play("redis", mode)
