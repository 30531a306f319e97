"""What a user says about a snapshot: `RedisSnapshot`, `SqliteSnapshot`. Making one opens nothing."""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from inproc_jobs.core.durations import parse_ms
from inproc_jobs.errors import InvalidDurationError, InvalidOptionError, InvalidOptionTypeError

if TYPE_CHECKING:
    from inproc_jobs.snapshot.store import Store

__all__ = ["Mode", "OnHeld", "RedisSnapshot", "Snapshot", "SqliteSnapshot"]

Mode = Literal["periodic", "write_through"]
OnHeld = Literal["refuse", "wait"]
_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_Duration = str | timedelta
_MODES: Final[tuple[str, ...]] = get_args(Mode)
_ON_HELD: Final[tuple[str, ...]] = get_args(OnHeld)


class Snapshot:
    """
    What every snapshot has in common.

    Attributes:
        mode: "periodic": what has changed is written every `every_ms`. "write_through": an awaited dispatch returns once
            its job is stored.
        every_ms, timeout_ms, lease_ms: Interval of writes; patience with the store; how long it stays ours without a
            sign of life.
        on_held: "refuse" or "wait" when another engine owns the store.
        prefix: Start of all keys, by which jobs of a flow name each other.
    """

    prefix = "bull"

    def __init__(self, mode: Any, every: Any, timeout: Any, lease: Any, on_held: Any) -> None:
        if mode not in _MODES:
            raise InvalidOptionError(
                f"mode {mode!r} is not known; use one of {', '.join(_MODES)}", option="mode", value=mode
            )
        if on_held not in _ON_HELD:
            raise InvalidOptionError(
                f"on_held {on_held!r} is not known; use one of {', '.join(_ON_HELD)}", option="on_held", value=on_held
            )
        self.mode: Mode = mode
        self.on_held: OnHeld = on_held
        self.every_ms = _positive(every, "every")
        self.timeout_ms = _positive(timeout, "timeout")
        self.lease_ms = _positive(lease, "lease")

    def open_store(self) -> Store:
        """The store, not yet connected."""
        raise NotImplementedError


def _positive(value: Any, option: str) -> int:
    ms = parse_ms(value, option=option, bare="refuse")
    if ms == 0:
        raise InvalidDurationError(f"{option} must be more than 0", option=option, value=value)
    return ms


def _load(store: str) -> None:
    """
    Load what opening needs, at a moment at which there is most likely no loop yet that would wait for it.

    Later, and even in another thread, loading redis-py would hold up the host's loop for 50 ms.
    """
    importlib.import_module("inproc_jobs.snapshot.keeper")
    importlib.import_module(f"inproc_jobs.snapshot.{store}")


class RedisSnapshot(Snapshot):
    """
    A snapshot in Redis or Valkey (6.2 and newer), in BullMQ's own layout.

    Args:
        url_or_client: "redis://host:6379/0", "rediss://...", "unix://...", or a redis-py client.
        prefix: Start of all keys.
        mode: "periodic" (a crash loses at most `every`) or "write_through" (it loses nothing that was acknowledged).
        every: Interval of the writes.
        timeout: Patience with a single call.
        lease: How long the store is ours without a sign of life.
        on_held: What to do when another engine owns the store: "refuse", or "wait" for it to end.
    """

    def __init__(
        self,
        url_or_client: Any,
        *,
        prefix: str = "bull",
        mode: Mode = "periodic",
        every: _Duration = "1s",
        timeout: _Duration = "5s",
        lease: _Duration = "15s",
        on_held: OnHeld = "refuse",
    ) -> None:
        super().__init__(mode, every, timeout, lease, on_held)
        if type(prefix) is not str or not prefix:
            raise InvalidOptionTypeError(f"prefix must be text, got {prefix!r}", option="prefix", value=prefix)
        if isinstance(url_or_client, str):
            _check_url(url_or_client)
        elif not hasattr(url_or_client, "execute_command"):
            raise InvalidOptionTypeError(
                f"expected a URL or a redis-py client, got {type(url_or_client).__name__}", option="url_or_client"
            )
        self._url_or_client = url_or_client
        self.prefix = prefix
        _load("redis_store")

    def open_store(self) -> Store:
        """The store, not yet connected."""
        from inproc_jobs.snapshot.redis_store import RedisStore  # redis is loaded by those who ask for it

        return RedisStore(self._url_or_client, prefix=self.prefix, timeout_ms=self.timeout_ms, lease_ms=self.lease_ms)


def _check_url(url: str) -> None:
    """What is wrong with it, without the password that may be in it."""
    from urllib.parse import urlsplit  # slow to load, and only for those who give a URL

    if not url.startswith(_SCHEMES):
        raise InvalidOptionError("the URL must begin with redis://, rediss:// or unix://", option="url_or_client")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidOptionError(f"the URL cannot be read: {error}", option="url_or_client") from None
    database = parts.path.lstrip("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdigit()):
        # redis-py would take database 0.
        raise InvalidOptionError(f"the URL names database {database!r}, which is no number", option="url_or_client")
    if port == 0:
        raise InvalidOptionError("the URL has port 0, at which nobody listens", option="url_or_client")


class SqliteSnapshot(Snapshot):
    """
    A snapshot in one SQLite file, for a server that has nothing else; the same promises as `RedisSnapshot`.

    Args:
        path: The file; made when missing. A file lock beside it says who owns it.
        mode, every, timeout, lease, on_held: As for `RedisSnapshot`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "periodic",
        every: _Duration = "1s",
        timeout: _Duration = "5s",
        lease: _Duration = "15s",
        on_held: OnHeld = "refuse",
    ) -> None:
        super().__init__(mode, every, timeout, lease, on_held)
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise InvalidOptionTypeError(f"path must be text or a Path, got {path!r}", option="path", value=path)
        self._path = os.fspath(path)
        if not self._path or self._path == ":memory:" or "\0" in self._path:
            raise InvalidOptionError(f"path must name a file, got {path!r}", option="path", value=path)
        _load("sqlite_store")

    def open_store(self) -> Store:
        """The store, not yet opened."""
        from inproc_jobs.snapshot.sqlite_store import SqliteStore  # sqlite3 is loaded by those who ask for it

        return SqliteStore(self._path, timeout_ms=self.timeout_ms, lease_ms=self.lease_ms)
