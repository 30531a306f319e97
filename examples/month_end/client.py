"""The client: plays the recording over HTTP, each delivery at its time, as a payment provider and browsers would."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2


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


async def post(http: httpx2.AsyncClient, delivery: Delivery, tally: Tally) -> None:
    """Deliver once, and note the answer."""
    started = time.perf_counter()
    response = await http.post(delivery.to, json=delivery.body, headers={"X-Delivery-Id": delivery.id})
    tally.response_ms.append((time.perf_counter() - started) * 1_000)
    if response.status_code != 202:
        tally.refused += 1
        return
    answer = response.json()
    if answer["duplicate"]:
        tally.duplicates[answer["state"]] += 1
    else:
        tally.created += 1


async def play(http: httpx2.AsyncClient, deliveries: list[Delivery], tally: Tally) -> None:
    """Post every delivery at its time, without waiting for the answers of those before it."""
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for delivery in deliveries:
            early_s = delivery.at_ms / 1_000 - (time.perf_counter() - started)
            if early_s > 0:
                await asyncio.sleep(early_s)
            group.create_task(post(http, delivery, tally))


async def status(http: httpx2.AsyncClient) -> dict[str, Any]:
    """How the app's queues stand."""
    answer: dict[str, Any] = (await http.get("/status")).raise_for_status().json()
    return answer


def unfinished(status: dict[str, Any]) -> int:
    """How many jobs are still to end."""
    states = ("waiting", "prioritized", "delayed", "active")
    return sum(queue.get(state, 0) for queue in status["queues"].values() for state in states)
