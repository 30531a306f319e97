"""Answers from another thread: all arrive, by few wakes of the loop, and nobody who has left is a trouble."""

from __future__ import annotations

import asyncio
import threading

from inproc_jobs.app.answers import LoopAnswers


async def test_many_answers_take_one_wake(monkeypatch):
    """A thousand that are sent while the loop is busy wake it once."""
    loop = asyncio.get_running_loop()
    wakes = []
    plain = loop.call_soon_threadsafe

    def count(callback, *args, **more):
        wakes.append(callback)
        return plain(callback, *args, **more)

    answers = LoopAnswers(loop)
    waiting = [answers.new() for _ in range(1_000)]
    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    thread = threading.Thread(target=lambda: [one.set_result(None) for one in waiting])
    thread.start()
    thread.join()
    assert not waiting[0].arrival.done()
    await asyncio.gather(*(one.arrival for one in waiting))
    assert len(wakes) == 1
    assert all(one.error is None for one in waiting)


async def test_answers_that_cross_the_arrival_of_others_are_not_lost():
    """A thread that sends while the loop takes answers in has each of them arrive."""
    answers = LoopAnswers(asyncio.get_running_loop())
    waiting = [answers.new() for _ in range(5_000)]
    thread = threading.Thread(target=lambda: [one.set_result(None) for one in waiting])
    thread.start()
    async with asyncio.timeout(20):
        for one in waiting:
            await one.arrival
    thread.join()


async def test_error_arrives_beside_and_a_cancelled_waiter_is_left_alone():
    """The error is told by `error`; one who was cancelled meanwhile does not keep the others from their answers."""
    answers = LoopAnswers(asyncio.get_running_loop())
    gone, failed = answers.new(), answers.new()
    gone.arrival.cancel()
    gone.set_result(None)
    failed.set_exception(ValueError("no"))
    await failed.arrival
    assert repr(failed.error) == "ValueError('no')"


def test_loop_that_was_closed_is_no_trouble():
    """The snapshot's thread outlives a loop; telling it something is not to end that thread."""
    loop = asyncio.new_event_loop()
    one = LoopAnswers(loop).new()
    loop.close()
    one.set_result(None)
    assert not one.arrival.done()
