"""Answers from the snapshot's thread to coroutines: many at once, with one wake of the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

__all__ = ["LoopAnswer", "LoopAnswers"]


class LoopAnswer:
    """
    What one coroutine waits for: await `arrival`, then look at `error`. `set_result` and `set_exception` are for any thread, once.

    A `concurrent.futures.Future` behind `asyncio.wrap_future` does the same, with a lock and a wake of the loop, which is
    a system call, for each of them; under load that was a third of the cost of a dispatch that waits for the store.
    The error is no exception of `arrival`, since asyncio complains of those that nobody fetches, and whoever waits for
    many jobs leaves with the first error.
    """

    __slots__ = ("_answers", "arrival", "error")

    def __init__(self, answers: LoopAnswers, arrival: asyncio.Future[None]) -> None:
        self._answers = answers
        self.arrival = arrival
        self.error: BaseException | None = None

    def set_result(self, result: None) -> None:
        """It is stored."""
        self._answers.send(self)

    def set_exception(self, error: BaseException) -> None:
        """It is not."""
        self.error = error
        self._answers.send(self)


class LoopAnswers:
    """The way of the answers to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._sent: deque[LoopAnswer] = deque()
        self._is_coming = False

    def new(self) -> LoopAnswer:
        """One more to wait for, on the loop."""
        return LoopAnswer(self, self.loop.create_future())

    def send(self, answer: LoopAnswer) -> None:
        """Any thread."""
        self._sent.append(answer)
        if not self._is_coming:
            self._is_coming = True
            # A loop that was closed has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        # First this: what is sent from now on asks for another call, or is found below.
        self._is_coming = False
        while self._sent:
            answer = self._sent.popleft()
            if not answer.arrival.done():  # unless whoever waited was cancelled
                answer.arrival.set_result(None)
