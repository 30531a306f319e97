"""
The client: plays the recording over HTTP, each delivery at its time, as a payment provider and browsers would.

A delivery whose connection breaks is sent again, as those senders do. Whether the app had got it, nobody can tell; it
carries the same id, so it does no harm.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

SENT_AT_ONCE = 40  # more would only queue up in the pool of connections, which is slow with a long queue
TRIES, FIRST_PAUSE_S = 5, 0.2


class Delivery(NamedTuple):
    """One line of the recording."""

    at_ms: int
    id: str
    to: str
    body: dict[str, Any]


@dataclass
class Tally:
    """What the client has seen so far."""

    total: int
    created: int = 0
    refused: int = 0
    sent_again: int = 0  # since the connection broke
    duplicates: Counter[str] = field(default_factory=Counter)  # state of the job that had the id: how often
    response_ms: list[float] = field(default_factory=list)

    @property
    def received(self) -> int:
        """Deliveries that were answered, well or badly."""
        return len(self.response_ms)

    def percentile_ms(self, percent: float) -> float:
        """The time within which that many of the requests were answered."""
        ranked = sorted(self.response_ms)
        return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] if ranked else math.nan


def read_recording(path: Path, *, seconds: float = math.inf) -> list[Delivery]:
    """The deliveries of the first so many seconds, in order."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    deliveries = [Delivery(line["at"], line["id"], line["to"], line["body"]) for line in lines]
    return [one for one in deliveries if one.at_ms < seconds * 1_000]


async def answered(
    send: Callable[[], Awaitable[httpx2.Response]], again: Callable[[], object] = lambda: None
) -> httpx2.Response:
    """Send until an answer comes, whatever it says; `again` is called before each repetition."""
    pause_s = FIRST_PAUSE_S
    for _ in range(TRIES - 1):
        try:
            return await send()
        except httpx2.TransportError:
            await asyncio.sleep(pause_s)
            pause_s *= 2
            again()
    return await send()


async def post(http: httpx2.AsyncClient, delivery: Delivery, tally: Tally) -> None:
    """Deliver, and note the answer."""

    def note_repetition() -> None:
        tally.sent_again += 1

    started = time.perf_counter()
    response = await answered(
        lambda: http.post(delivery.to, json=delivery.body, headers={"X-Delivery-Id": delivery.id}), note_repetition
    )
    tally.response_ms.append((time.perf_counter() - started) * 1_000)
    if response.status_code != 202:
        tally.refused += 1
        return
    answer = response.json()
    if answer["duplicate"]:
        tally.duplicates[answer["state"]] += 1
    else:
        tally.created += 1


async def play(
    http: httpx2.AsyncClient, deliveries: list[Delivery], tally: Tally, *, last_moment: float = math.inf
) -> list[Delivery]:
    """
    Post every delivery at its time, without waiting for the answers of those before it.

    Returns:
        What was sent: less than everything if the machine is so slow that the last moment, in monotonic seconds, came.
    """
    sent: list[Delivery] = []
    started = time.perf_counter()
    free = asyncio.Semaphore(SENT_AT_ONCE)  # first come, first served

    async def post_in_turn(delivery: Delivery) -> None:
        async with free:
            if time.monotonic() < last_moment:
                sent.append(delivery)
                await post(http, delivery, tally)

    async with asyncio.TaskGroup() as group:
        for delivery in deliveries:
            early_s = delivery.at_ms / 1_000 - (time.perf_counter() - started)
            if early_s > 0:
                await asyncio.sleep(early_s)
            if time.monotonic() >= last_moment:
                break
            group.create_task(post_in_turn(delivery))
    return sent


async def status(http: httpx2.AsyncClient) -> dict[str, Any]:
    """How the app's queues stand."""
    answer: dict[str, Any] = (await answered(lambda: http.get("/status"))).raise_for_status().json()
    return answer


def unfinished(status: dict[str, Any]) -> int:
    """How many jobs are still to end."""
    states = ("waiting", "prioritized", "delayed", "active")
    return sum(queue.get(state, 0) for queue in status["queues"].values() for state in states)
