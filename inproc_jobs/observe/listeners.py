"""Who wants the events of an engine: callbacks and bounded streams."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from inproc_jobs.core.events import EVENT_NAMES, Event
from inproc_jobs.core.json_values import decode_json
from inproc_jobs.errors import InvalidOptionError, InvalidOptionTypeError
from inproc_jobs.observe.logs import EngineLog

__all__ = ["EngineEvent", "EventStream", "Listener", "ListenerHub"]

Listener = Callable[["EngineEvent"], object]
"""Called with each event; may be async."""
_JSON_FIELDS = frozenset(("returnvalue", "data"))


class EngineEvent:
    """
    One fact about a queue, with BullMQ's names.

    Attributes:
        name: "added", "waiting", "active", "completed", "failed", ... (spec section 13).
        queue: Name of the queue.
        job_id: The job, None for events of a queue.
        fields: BullMQ's fields: `jobId`, `prev`, `returnvalue`, ...; `event["prev"]` is short for `event.fields["prev"]`.
        missed: How many events a stream had to drop before this one.
    """

    __slots__ = ("_raw", "fields_cache", "missed", "name", "queue")

    def __init__(self, event: Event) -> None:
        self.name = event.name
        self.queue = event.queue
        self.missed = 0
        self._raw = event.fields
        self.fields_cache: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<EngineEvent {self.name} in {self.queue!r}: {self.fields}>"

    @property
    def job_id(self) -> str | None:
        """Id of the job, None for events of a queue."""
        return self._raw.get("jobId")

    @property
    def fields(self) -> dict[str, Any]:
        """BullMQ's fields; JSON values decoded, once."""
        if self.fields_cache is None:
            self.fields_cache = {
                key: decode_json(value) if key in _JSON_FIELDS and isinstance(value, bytes) else value
                for key, value in self._raw.items()
            }
        return self.fields_cache

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]


class EventStream:
    """Events that wait to be read by one `async for`; the oldest go when there are too many."""

    def __init__(self, hub: ListenerHub, names: frozenset[str], maxsize: int) -> None:
        self._hub = hub
        self._names = names
        self._events: deque[EngineEvent] = deque()
        self._maxsize = maxsize
        self._missed = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: EngineEvent) -> None:
        """Take an event in; on the engine's loop."""
        if self._names and event.name not in self._names:
            return
        if len(self._events) >= self._maxsize:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self._tell()

    def _tell(self) -> None:
        """Wake the reader, if there is one."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            try:
                # The reader may live in another loop than the engine.
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)
            except RuntimeError:
                # Its loop was closed before it could close the stream, so nobody reads any more.
                self.close()

    async def get(self) -> EngineEvent | None:
        """The next event; waits for one. None when there will be no more."""
        while not self._events:
            if self._ended:
                return None
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            if self._events or self._ended:
                continue
            await waiter
        event = self._events.popleft()
        event.missed, self._missed = self._missed, 0
        return event

    def end(self) -> None:
        """There will be no more events. Any thread."""
        self._ended = True
        self._tell()

    def close(self) -> None:
        """No more events are wanted."""
        self._hub.drop(self)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _safe_repr(value: object) -> str:
    """What the log says about something of the user's, whose `repr` may raise."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # user code
        return f"<{type(value).__name__}>"


class ListenerHub:
    """All listeners and streams of one engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, list[Listener]] = {}
        self._streams: list[EventStream] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._log = EngineLog()

    def __bool__(self) -> bool:
        return bool(self._listeners or self._streams)

    def add(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` for events of that name, "*" for all; the answer unsubscribes."""
        if event != "*" and event not in EVENT_NAMES:
            raise InvalidOptionError(
                f"there is no event {event!r}; use '*' or one of {', '.join(sorted(EVENT_NAMES))}",
                option="event",
                value=event,
            )
        if not callable(listener):
            raise InvalidOptionTypeError(
                f"listener must be callable, got {listener!r}", option="listener", value=listener
            )
        with self._lock:
            self._listeners.setdefault(event, []).append(listener)

        subscribed = True

        def unsubscribe() -> None:
            nonlocal subscribed
            with self._lock:
                # Once: the same function may have been subscribed a second time, by somebody else.
                if not subscribed:
                    return
                subscribed = False
                listeners = self._listeners[event]
                listeners.remove(listener)
                if not listeners:
                    del self._listeners[event]

        return unsubscribe

    def stream(self, names: Sequence[str], maxsize: int) -> EventStream:
        """A stream of the events of those names, of all when there are none."""
        for name in names:
            if name not in EVENT_NAMES:
                raise InvalidOptionError(f"there is no event {name!r}", option="names", value=name)
        if type(maxsize) is not int or maxsize < 1:
            raise InvalidOptionError(f"maxsize must be a whole number, 1 or more, got {maxsize!r}", option="maxsize")
        stream = EventStream(self, frozenset(names), maxsize)
        with self._lock:
            self._streams.append(stream)
        return stream

    def close(self) -> None:
        """The engine has stopped: streams end once they are read empty; listeners stay for the next start."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.end()

    def drop(self, stream: EventStream) -> None:
        """Forget a stream."""
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)

    def deliver(self, events: Sequence[Event]) -> None:
        """Hand events out, in order; on the engine's loop, outside its lock."""
        with self._lock:
            streams = list(self._streams)
            listeners = {name: list(some) for name, some in self._listeners.items()}
        for raw in events:
            event = EngineEvent(raw)
            for listener in (*listeners.get(event.name, ()), *listeners.get("*", ())):
                self._call(listener, event)
            for stream in streams:
                stream.put(event if len(streams) == 1 else EngineEvent(raw))

    def _call(self, listener: Listener, event: EngineEvent) -> None:
        try:
            answer = listener(event)
            if isinstance(answer, Awaitable):
                task = asyncio.ensure_future(self._await(listener, event, answer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except KeyboardInterrupt:
            raise  # Ctrl-C that has struck here
        except BaseException as error:  # noqa: BLE001  # user code, and the next listener must hear of the event too
            self._failed(listener, event, error)

    async def _await(self, listener: Listener, event: EngineEvent, answer: Awaitable[object]) -> None:
        """An async listener; its SystemExit would end the host's loop, so it does not get out of here."""
        try:
            await answer
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # user code
            self._failed(listener, event, error)

    def _failed(self, listener: Listener, event: EngineEvent, error: BaseException) -> None:
        self._log.error(
            "listener failed", listener=_safe_repr(listener), event_name=event.name, error=_safe_repr(error)
        )
