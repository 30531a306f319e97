"""What a user may say about a snapshot, and that saying it opens nothing."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from inproc_jobs import Engine, RedisSnapshot, SqliteSnapshot
from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError


def test_making_one_opens_nothing(tmp_path):
    """Neither a file nor a connection."""
    snapshot = SqliteSnapshot(tmp_path / "jobs.db")
    Engine(snapshot=snapshot)
    assert list(tmp_path.iterdir()) == []
    RedisSnapshot("redis://192.0.2.1:1")


@pytest.mark.parametrize(
    ("made", "loaded"), [("0", set()), ("SqliteSnapshot('a')", {"sqlite3"}), ("RedisSnapshot('redis://a')", {"redis"})]
)
def test_only_what_is_used_is_loaded(made, loaded):
    """Neither library for who has no snapshot, and never both; before a loop runs, which would stand still meanwhile."""
    code = (
        f"import sys; from inproc_jobs import Engine, RedisSnapshot, SqliteSnapshot; {made}; "
        "print(*{'redis', 'sqlite3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == loaded


@pytest.mark.parametrize(
    "make", [lambda **more: SqliteSnapshot("a", **more), lambda **more: RedisSnapshot("redis://a", **more)]
)
@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("mode", "sometimes", InvalidOptionError),
        ("mode", None, InvalidOptionError),
        ("on_held", "fight", InvalidOptionError),
        ("every", 1000, InvalidDurationError),
        ("every", "0s", InvalidDurationError),
        ("every", "-1s", InvalidDurationError),
        ("timeout", 5, InvalidDurationError),
        ("timeout", None, InvalidDurationError),
        ("lease", "soon", InvalidDurationError),
        ("lease", timedelta(0), InvalidDurationError),
    ],
)
def test_refused(make, option, value, error):
    """What is not known or not a duration is refused, by name."""
    with pytest.raises(error) as caught:
        make(**{option: value})
    assert option in str(caught.value)


def test_durations():
    """Text and timedelta."""
    snapshot = SqliteSnapshot("a", every="250ms", timeout=timedelta(seconds=2), lease="1m")
    assert (snapshot.every_ms, snapshot.timeout_ms, snapshot.lease_ms) == (250, 2_000, 60_000)
    assert (snapshot.mode, snapshot.on_held) == ("periodic", "refuse")


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
def test_paths_that_name_no_file(path):
    """A database in memory would be none."""
    with pytest.raises(InvalidOptionError, match="path"):
        SqliteSnapshot(path)


@pytest.mark.parametrize("path", [None, 5, b"jobs.db"])
def test_paths_of_other_types(path):
    """Text or a Path."""
    with pytest.raises(InvalidOptionTypeError, match="path"):
        SqliteSnapshot(path)


def test_path_objects():
    """A Path is a path."""
    SqliteSnapshot(Path("jobs.db"))


@pytest.mark.parametrize("url", ["localhost:6379", "", "redis", "http://a"])
def test_urls(url):
    """A host alone is no URL, and not every URL is one of Redis."""
    with pytest.raises(InvalidOptionError, match="redis://"):
        RedisSnapshot(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@a:notaport/0",
        "redis://:s3cret@a:70000",
        "redis://:s3cret@a:0",
        "redis://[",
        "redis://a/abc",
        "redis://a/-1",
    ],
)
def test_urls_that_cannot_be_read(url):
    """They are refused where they are written; the password is not told."""
    with pytest.raises(InvalidOptionError, match="URL") as caught:
        RedisSnapshot(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("client", [5, None, b"redis://a", object()])
def test_what_is_neither_url_nor_client(client):
    """It is refused where it is written, not at the start."""
    with pytest.raises(InvalidOptionTypeError, match="client"):
        RedisSnapshot(client)


@pytest.mark.parametrize("prefix", ["", None, 5])
def test_prefixes(prefix):
    """Some text."""
    with pytest.raises(InvalidOptionTypeError, match="prefix"):
        RedisSnapshot("redis://a", prefix=prefix)


@pytest.mark.parametrize("snapshot", ["redis://localhost", "jobs.db", object()])
def test_engine_takes_snapshots_only(snapshot):
    """A URL or a path alone is not enough: nobody could tell what was meant."""
    with pytest.raises(InvalidOptionTypeError, match="RedisSnapshot or a SqliteSnapshot"):
        Engine(snapshot=snapshot)
