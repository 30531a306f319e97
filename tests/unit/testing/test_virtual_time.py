"""Virtual time: everything that waits is virtual, and nothing jumps while something real goes on."""

import asyncio
import socket
import sys
import threading
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import anyio.to_thread
import pytest

from inproc_jobs import Deduplication, JobContext
from inproc_jobs.errors import InprocJobsError
from inproc_jobs.testing import TimeStuckError, VirtualClock, VirtualTime, harness
from inproc_jobs.testing import virtual_time as module

# --- what is virtual ----------------------------------------------------------------------------------------------


async def test_everything_that_waits_on_the_loop_is_virtual(kit):
    """`sleep`, `wait_for`, `timeout`, `call_later` and `call_at`: a month of them, from the first line of the test."""
    loop = asyncio.get_running_loop()
    began, fired = loop.time(), []
    await asyncio.sleep(86_400 * 30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 3600)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()
    loop.call_later(10, fired.append, "later")
    loop.call_at(loop.time() + 5, fired.append, "at")
    await asyncio.sleep(11)
    assert fired == ["at", "later"]
    assert loop.time() - began == pytest.approx(86_400 * 30 + 7200 + 11, abs=1e-3)
    assert kit.clock.now() == pytest.approx(datetime(2026, 2, 4, 11, 0, 11, tzinfo=UTC), abs=timedelta(milliseconds=1))


async def test_delays_of_centuries_keep_their_milliseconds(kit, define):
    """Whole microseconds inside: a float of seconds would have lost them."""
    due = datetime(2326, 1, 1, 0, 0, 0, 7000, tzinfo=UTC)
    seen = []

    @define("a")
    async def a(payload, ctx: JobContext):
        seen.append((ctx.scheduled_for, ctx.late_by_ms))

    await a.dispatch(None, run_at=due)
    await kit.run_until_idle()
    assert seen == [(due, 0)]


async def test_lifetimes_and_ages_are_virtual(kit, define):
    """A deduplication key lives its ttl, a finished job its age."""

    @define("a", remove_on_complete={"age": 3600})
    async def a(payload):
        return None

    throttle = Deduplication.throttle("k", "1h")
    assert (await a.dispatch(1, deduplication=throttle)).created
    assert (await a.dispatch(2, deduplication=throttle)).duplicate
    await kit.advance("1h")
    assert (await a.dispatch(3, deduplication=throttle, job_id="third")).created
    await kit.run_until_idle()
    assert await a.find("third") is not None
    await kit.advance("61m")
    await a.dispatch(4)
    await kit.run_until_idle()
    assert await a.find("third") is None


@pytest.mark.parametrize(
    ("start", "local"),
    [
        (datetime(2026, 3, 27, 12, tzinfo=UTC), ["02:30 +0100", "03:00 +0200", "02:30 +0200"]),
        (datetime(2026, 10, 23, 12, tzinfo=UTC), ["02:30 +0200", "02:30 +0200", "02:30 +0100"]),
    ],
)
async def test_daily_schedules_follow_the_clock_of_the_zone(registry, define, start, local):
    """Over both changes of the clock: what is skipped runs once at the shifted time, what is repeated runs once."""
    berlin = ZoneInfo("Europe/Berlin")
    seen = []

    @define("nightly")
    async def nightly(payload):
        seen.append(kit.clock.now().astimezone(berlin).strftime("%H:%M %z"))

    async with harness(registry=registry, start=start) as kit:
        await kit.engine.schedule("nightly", nightly, None, cron="30 2 * * *", tz="Europe/Berlin")
        await kit.advance("3d")
    assert seen == local


# --- what is real -------------------------------------------------------------------------------------------------


@pytest.fixture
def gate():
    """A thread that ends when the gate is opened."""

    class Gate(threading.Event):
        def work(self, result=None):
            assert self.wait(10)
            return result

    made = Gate()
    yield made
    made.set()


@pytest.mark.parametrize("how", ["to_thread", "executor", "anyio", "thread"])
async def test_time_stands_still_while_a_thread_works(how, kit, gate):
    """Whatever started it; the short sleep beside it does not end before the thread has answered."""
    loop = asyncio.get_running_loop()
    order = []

    async def sleeper():
        await asyncio.sleep(0.001)
        order.append("sleeper")

    async def real():
        if how == "to_thread":
            await asyncio.to_thread(gate.work)
        elif how == "executor":
            await loop.run_in_executor(None, gate.work)
        elif how == "anyio":
            await anyio.to_thread.run_sync(gate.work)
        else:
            done = loop.create_future()

            def work():
                gate.work()
                loop.call_soon_threadsafe(done.set_result, None)

            threading.Thread(target=work).start()
            await done
        order.append("thread")

    open_gate(gate)
    await asyncio.gather(sleeper(), real())
    assert order == ["thread", "sleeper"]


def open_gate(gate):
    """Open it from outside, once the loop has had some turns in which it could have jumped."""
    opener = threading.Timer(0.02, gate.set)
    opener.daemon = True
    opener.start()


async def test_time_stands_still_while_a_connection_is_open(kit):
    """A server that answers after a moment; the client's own timeout of a millisecond does not strike first."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    answer = threading.Timer(0.02, theirs.sendall, (b"pong\n",))
    answer.daemon = True
    answer.start()
    assert await asyncio.wait_for(reader.readline(), 0.001) == b"pong\n"
    writer.close()
    await writer.wait_closed()
    theirs.close()


async def test_a_listening_socket_is_no_reason_to_wait(kit):
    """It waits for others, not for anything that was asked for."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    await asyncio.sleep(3600)
    server.close()


async def test_time_stands_still_while_a_child_process_runs(kit):
    """Until it has ended, however long that takes."""
    code = "import sys; print('out')"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(child.communicate(), 0.001)
    assert (out.strip(), child.returncode) == (b"out", 0)


async def test_a_thread_that_never_ends_is_named(kit):
    """After the patience is over, with the cure."""
    ended = threading.Event()
    server = threading.Thread(target=ended.wait, args=(10,), name="my server")
    server.start()
    kit.time.patience_s = 0.02
    with pytest.raises(
        TimeStuckError, match="the thread 'my server'; if it is to run beside the test, make it a daemon"
    ):
        await kit.advance("1s")
    ended.set()
    server.join()


async def test_idle_threads_hold_nothing_up(kit):
    """Pools keep their threads; an idle one is no work."""
    await asyncio.to_thread(int)
    await anyio.to_thread.run_sync(int)
    await asyncio.sleep(3600)
    assert kit.clock.monotonic() >= 3600


async def test_a_connection_that_stays_silent_is_named(registry):
    """After the patience is over, with the cure; real_io="ignore" lets time go on."""
    ours, theirs = socket.socketpair()
    async with harness(registry=registry) as kit:
        _, writer = await asyncio.open_connection(sock=ours)
        kit.time.patience_s = 0.02
        with pytest.raises(
            TimeStuckError, match=r"an open connection or pipe \(fd \d+\); if it may stay open, ask for real_io"
        ):
            await kit.advance("1s")
    async with harness(registry=registry, real_io="ignore") as kit:
        await kit.advance("1h")
        assert kit.clock.monotonic() >= 3600
    writer.close()
    await writer.wait_closed()
    theirs.close()


# --- stuck --------------------------------------------------------------------------------------------------------


def test_a_test_that_waits_for_nothing_ends(registry):
    """Without a timer, a thread or a socket nothing can come; the loop says so instead of hanging."""

    async def test():
        async with harness(registry=registry) as kit:
            kit.time.patience_s = 0.01
            await asyncio.Event().wait()

    with pytest.raises(TimeStuckError, match="something that nobody is going to do"):
        asyncio.run(test())


async def test_a_ticker_is_no_progress(kit, define, monkeypatch):
    """A loop that sleeps for ever would let a waiting test spin through the centuries."""
    monkeypatch.setattr(module, "MAX_JUMPS", 100)

    @define("a")
    async def a(payload):
        await asyncio.Event().wait()

    async def ticker():
        while True:
            await asyncio.sleep(60)

    ticking = asyncio.create_task(ticker())
    await a.dispatch(None)
    with pytest.raises(TimeStuckError, match="the clock has jumped 100 times, to 2026-01-05 10:40"):
        await kit.run_until_idle()
    ticking.cancel()


# --- clocks -------------------------------------------------------------------------------------------------------


def test_the_wall_clock_steps_without_the_monotonic_one():
    """In both directions, by ms or by a duration."""
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.step_wall("1h")
    clock.step_wall(-30 * 60_000)
    assert clock.now() == datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
    assert clock.monotonic() == 0


async def test_a_step_back_does_not_make_delays_longer(kit, define):
    """DESIGN 2.7: a delay is a duration; `run_at` is a moment and stays."""
    ran = {}

    @define("a")
    async def a(payload):
        ran[payload] = round(kit.clock.monotonic())

    await a.dispatch("delay", delay="1h")
    await a.dispatch("run_at", run_at=kit.clock.now() + timedelta(hours=1))
    await kit.advance("30m")
    kit.clock.step_wall(-3_600_000)
    await kit.run_until_idle()
    assert ran == {"delay": 3600, "run_at": 7200}


async def test_a_step_forward_makes_due_what_it_passes(kit, define):
    """Within the seconds in which production notices, also in the middle of an advance."""
    ran = []

    @define("a")
    async def a(payload):
        ran.append(round(kit.clock.monotonic()))

    await a.dispatch(None, delay="1h")
    asyncio.get_running_loop().call_later(60, kit.clock.step_wall, "2h")
    await kit.advance("5m")
    assert ran == [70]


async def test_followers_see_the_time_of_the_test(kit):
    """At once, after each jump and after each step."""
    seen = []
    kit.clock.follow(seen.append)
    await asyncio.sleep(1)
    kit.clock.step_wall("1h")
    assert [moment.strftime("%H:%M:%S") for moment in seen] == ["09:00:00", "09:00:01", "10:00:01"]


# --- attaching ----------------------------------------------------------------------------------------------------


async def test_the_loop_gets_its_own_time_back(registry):
    """After the harness everything is as before, and a real millisecond is one."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with harness(registry=registry):
        await asyncio.sleep(1e6)
    assert loop.time() - before < 100
    assert not {"time", "run_in_executor"} & set(vars(loop))
    assert loop._clock_resolution < 1e-6
    await asyncio.sleep(0.001)


async def test_two_harnesses_cannot_share_a_loop(registry):
    """Two clocks for one loop would be none."""
    async with harness(registry=registry):
        with pytest.raises(InprocJobsError, match="two harnesses cannot share a loop"):
            async with harness():
                pass


def test_uvloop_says_what_to_do(registry, define):
    """Its time is out of reach; the error comes at once and names the way out. Recording needs no time."""
    uvloop = pytest.importorskip("uvloop")

    @define("a")
    async def a(payload):
        return 1

    async def test(**options):
        async with harness(registry=registry, **options) as kit:
            await a.dispatch(1)
            kit.assert_dispatched(a)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        with pytest.raises(
            InprocJobsError, match=r"needs one of asyncio's own event loops, and this test runs on uvloop"
        ):
            runner.run(test())
        runner.run(test(mode="record"))


def test_without_asyncio_the_error_says_so(registry):
    """Under trio a coroutine has no asyncio loop."""

    async def test():
        async with harness(registry=registry):
            pass

    with pytest.raises(InprocJobsError, match="needs asyncio"):
        test().send(None)


def test_a_loop_that_is_not_made_of_selectors():
    """Windows' proactor has no map of sockets; operations in flight are what counts there."""

    class Proactor:
        def __init__(self):
            self._cache = {}

        def select(self, timeout):
            return []

    loop = asyncio.new_event_loop()
    selector, loop._selector = loop._selector, Proactor()
    loop._self_reading_future = object()
    virtual = VirtualTime(VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    try:
        virtual.attach(loop)
        loop._selector._cache[1] = (loop._self_reading_future, None, 0, None)
        assert virtual._real_work(loop._selector) == ""
        loop._selector._cache[2] = (object(), None, 0, None)
        assert virtual._real_work(loop._selector) == "an operation on a socket or pipe"
        virtual.detach()
    finally:
        loop._selector = selector
        loop.close()


def test_runs_do_not_move_between_loops(registry, define):
    """A handler that is asleep on one loop cannot wake up on another."""

    @define("slow")
    async def slow(payload):
        await asyncio.sleep(3600)

    with harness(registry=registry) as kit:
        slow.dispatch_sync(None)
        kit.advance_sync("1m")

        async def elsewhere():
            await kit.advance("1m")

        with pytest.raises(InprocJobsError, match="still running on another event loop"):
            asyncio.run(elsewhere())
        assert kit.run_until_idle_sync().completed == 1
        asyncio.run(elsewhere())


async def test_a_jump_always_arrives(kit):
    """However far the moment, and however coarse a float of that many seconds is."""
    for seconds in (2306805080.003, 1e9 + 1e-7, 7.3e9, 3e10, 0.1, 1e-9):
        await asyncio.sleep(seconds)
    assert kit.clock.now().year > 3000
