"""
A connection to Redis or Valkey, and what its failures mean. The only module that imports redis.

One client each for writing and for renewing the lease: a write that hangs must not cost the lease.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from inproc_jobs.errors import InvalidOptionTypeError, SnapshotLayoutError, SnapshotUnavailableError

__all__ = ["RedisLink"]

_PASSING: Final = re.compile(
    r"\b(LOADING|BUSY|MASTERDOWN|READONLY|OOM|MISCONF|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|UNKILLABLE|NOAUTH|WRONGPASS|NOPERM"
    r"|max number of clients)\b"
)
_PASSING_ERRORS: Final = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,  # MASTERDOWN is one of these
    redis.exceptions.TryAgainError,
    redis.exceptions.NoPermissionError,
)
"""redis-py takes the word away from the messages of these."""
_KEPT_SETTINGS: Final = (
    "host",
    "port",
    "db",
    "username",
    "password",
    "path",
    "client_name",
    "credential_provider",
    "health_check_interval",
    "socket_keepalive",
    "socket_keepalive_options",
)


class RedisLink:
    """
    One client of a server.

    Args:
        url_or_client: See `RedisStore`.
        timeout_s: Patience with a single call.

    Attributes:
        client: Of redis-py, synchronous, answering bytes.
        description: How to call the server in messages, without a password.
    """

    def __init__(self, url_or_client: Any, timeout_s: float) -> None:
        self.client, self.description = _connect(url_or_client, timeout_s)
        self._is_borrowed = self.client is url_or_client
        self._shas: dict[str, str] = {}

    def info(self) -> dict[str, Any]:
        """What the server says of itself; empty where we may not ask."""
        with self.trouble():
            try:
                answer: dict[str, Any] = {**self.client.info("server"), **self.client.info("memory")}
            except redis.exceptions.NoPermissionError:
                return {}
        return answer

    def close(self) -> None:
        """A client that was handed in stays open."""
        if not self._is_borrowed:
            self.client.close()

    def script(self, script: str, keys: list[str], arguments: list[Any]) -> list[Any]:
        """Run one, and answer text where it answers bytes; failures as in `trouble`."""
        with self.trouble():
            answer = self.evaluate(script, keys, arguments)
        return [
            item.decode(errors="replace")
            if isinstance(item, bytes)
            else [one.decode(errors="replace") if isinstance(one, bytes) else one for one in item]
            if isinstance(item, list)
            else item
            for item in answer
        ]

    def evaluate(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        """As `script`, with redis-py's own answers and errors."""
        sha = self._shas.get(script)
        if sha is not None:
            try:
                return self.client.evalsha(sha, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:
                pass
        self._shas[script] = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        return self.client.eval(script, len(keys), *keys, *arguments)

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """Tell what may pass from what may not."""
        try:
            yield
        except redis.exceptions.AuthenticationError as error:
            raise SnapshotUnavailableError(f"{self.description} refuses the password: {error}") from error
        except redis.exceptions.MovedError as error:
            raise SnapshotUnavailableError(
                f"{self.description} is not in charge of this prefix: that is {error.host}:{error.port} of its Cluster"
            ) from error
        except redis.exceptions.ClusterCrossSlotError as error:
            raise SnapshotLayoutError(
                f"{self.description} is part of a Cluster, which spreads keys by their names. Nothing was touched; put "
                'the prefix in braces, as prefix="{bull}", so that all keys stay together, and name the node they are on'
            ) from error
        except redis.exceptions.BusyLoadingError as error:
            raise SnapshotUnavailableError(f"{self.description} is still loading its data: {error}") from error
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            # redis-py says so in these words, and nothing else about where a call has broken off.
            early = any(words in str(error) for words in ("connecting to", "name resolution", "No master found"))
            outcome = "not written" if early else "unknown"
            raise SnapshotUnavailableError(f"{self.description} is not available: {error}", outcome=outcome) from error
        except redis.exceptions.ResponseError as error:
            if isinstance(error, _PASSING_ERRORS) or _PASSING.search(str(error)):
                raise SnapshotUnavailableError(f"{self.description} cannot do this now: {error}") from error
            raise SnapshotLayoutError(f"{self.description} refused: {error}") from error


def _connect(url_or_client: Any, timeout_s: float) -> tuple[Any, str]:
    """A synchronous client with our patience, and how to call it in messages (without a password)."""
    ours: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        # A lost answer must be told as such, not hidden by a second try; the snapshot tries again by itself.
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        # The older protocol has the same answers in every redis-py since 5.0.
        "protocol": 2,
    }
    if isinstance(url_or_client, str):
        client = redis.Redis.from_url(url_or_client, **ours)
        return client, _describe(client.connection_pool.connection_kwargs)
    pool = getattr(url_or_client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if pool is None or settings is None:
        if "Cluster" in type(url_or_client).__name__:
            raise InvalidOptionTypeError(
                "a client of a whole Cluster cannot write everything as one; give the URL of the node that has the "
                'prefix, and a prefix in braces, as prefix="{bull}"',
                option="url_or_client",
            )
        raise InvalidOptionTypeError(
            f"expected a URL or a redis-py client, got {type(url_or_client).__name__}", option="url_or_client"
        )
    if "Sentinel" in type(pool).__name__:
        if type(pool).__module__.startswith("redis.asyncio") or settings.get("decode_responses"):
            raise InvalidOptionTypeError(
                "a client of a Sentinel must be synchronous and made with decode_responses=False",
                option="url_or_client",
            )
        return url_or_client, f"Redis master {getattr(pool, 'service_name', '')}"
    kept = {name: settings[name] for name in _KEPT_SETTINGS if settings.get(name) is not None}
    kept |= {name: value for name, value in settings.items() if name.startswith("ssl_") and value is not None}
    return redis.Redis(connection_pool=redis.ConnectionPool(_connection_class(pool), **kept, **ours)), _describe(
        settings
    )


def _connection_class(pool: Any) -> Any:
    """The synchronous class for what a client, synchronous or not, connects by."""
    name = getattr(pool, "connection_class", redis.Connection).__name__
    if "Unix" in name:
        return redis.UnixDomainSocketConnection
    return redis.SSLConnection if "SSL" in name else redis.Connection


def _describe(settings: Mapping[str, Any]) -> str:
    number = settings.get("db") or 0
    if settings.get("path"):
        return f"Redis at {settings['path']}, database {number}"
    return f"Redis at {settings.get('host', 'localhost')}:{settings.get('port', 6379)}/{number}"
