"""A forked child has neither the engine's threads nor its loop: it is told so, at once, instead of hanging."""

from tests.unit.app.real import posix, run_program

pytestmark = [posix]

HEAD = """
import asyncio, logging, os, sys, threading
from inproc_jobs import *

@define_job("job")
async def job(payload):
    await asyncio.sleep(0)
    return payload

@define_job("plain")
def plain(payload):
    return os.getpid()

def in_child(call):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = call() or 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
"""


def run(body: str) -> str:
    code, out, errors = run_program(HEAD + body)
    assert (code, errors) == (0, ""), errors
    return out


def test_every_call_in_the_child_is_refused() -> None:
    """EngineForkedError with the cure, for dispatch, find, changes, waiting, starting and stopping; none hangs."""
    out = run(
        """
engine = Engine()
engine.start()
receipt = job.dispatch_sync(1, delay="1h")
bound = job.on(engine)

def child():
    for call in (
        lambda: job.dispatch_sync(2),
        lambda: bound.dispatch_sync(2),
        lambda: asyncio.run(job.dispatch(2)),
        lambda: bound.find_sync("one"),
        lambda: engine.queue("default").pause_sync(),
        lambda: engine.retry_failed_job_sync("one"),
        lambda: receipt.result_sync(),
        lambda: engine.start(),
        lambda: engine.stop(),
        lambda: engine.run_until_idle(),
        lambda: engine.run_forever(),
        lambda: asyncio.run(engine.astart()),
        lambda: asyncio.run(engine.astop()),
        lambda: job.dispatch_many_sync([(1, None)]),
    ):
        try:
            call()
        except EngineForkedError as error:
            assert "new Engine in the child" in str(error) and "post_fork" in str(error), error
            assert str(os.getpid()) in str(error)
        else:
            raise AssertionError("no error")
    print("refused")

in_child(child)
logging.disable()  # the warning about the job that is lost
assert engine.stop().lost == 1
        """
    )
    assert out.strip() == "refused"


def test_the_parent_goes_on() -> None:
    """Its jobs, its threads and its stop are not touched by what the child does or how it ends."""
    out = run(
        """
engine = Engine()
engine.start()
assert plain.dispatch_sync(None).result_sync(5) == os.getpid()
in_child(lambda: None)
assert plain.dispatch_sync(None).result_sync(5) == os.getpid()
assert job.dispatch_sync("after").result_sync(5) == "after"
print(engine.stop())
        """
    )
    assert "lost=0" in out


def test_a_child_makes_an_engine_of_its_own() -> None:
    """As the error says; the parent's is no candidate for its dispatches."""
    out = run(
        """
parents = Engine()
parents.start()

def child():
    own = Engine()
    with own:
        assert job.dispatch_sync("child").result_sync(5) == "child"
        assert plain.dispatch_sync(None).result_sync(5) == os.getpid() != parent
    print("ran in the child")

parent = os.getpid()
in_child(child)
parents.stop()
        """
    )
    assert out.strip() == "ran in the child"


def test_an_engine_that_was_not_started_before_the_fork_works_in_the_child() -> None:
    """Made at import and started after the fork (gunicorn with preload): each process has its own."""
    out = run(
        """
engine = Engine()

def child():
    with engine:
        print(job.dispatch_sync("child").result_sync(5), flush=True)

in_child(child)
in_child(child)
with engine:
    print(job.dispatch_sync("parent").result_sync(5))
        """
    )
    assert out.split() == ["child", "child", "parent"]


def test_an_engine_that_was_stopped_before_the_fork_works_in_the_child() -> None:
    """It had let go of its threads and its loop."""
    out = run(
        """
engine = Engine()
with engine:
    assert plain.dispatch_sync(None).result_sync(5) == os.getpid()

def child():
    with engine:
        print(plain.dispatch_sync(None).result_sync(5) == os.getpid(), flush=True)

in_child(child)
        """
    )
    assert out.strip() == "True"


def test_a_fork_while_another_thread_holds_the_lock() -> None:
    """The lock would never be released in the child; it gets a new one, so that the error comes instead of a hang."""
    out = run(
        """
logging.disable()  # forks and threads together starve the loop now and then, which is logged
engine = Engine()
engine.start()
stop = threading.Event()

def hammer():
    while not stop.is_set():
        job.dispatch_sync(None)

threads = [threading.Thread(target=hammer) for _ in range(3)]
for thread in threads:
    thread.start()

def child():
    try:
        job.dispatch_sync(1)
    except EngineForkedError:
        engine.queue("default").counts()
        engine.health()
        return
    raise AssertionError("no error")

for _ in range(20):
    in_child(child)
stop.set()
for thread in threads:
    thread.join()
engine.stop(0, drain=False)
print("done")
        """
    )
    assert out.strip() == "done"


def test_a_fork_inside_the_loop_that_hosts_the_engine() -> None:
    """The child is told as well; the parent's loop goes on."""
    out = run(
        """
async def main():
    async with Engine() as engine:
        def child():
            try:
                job.dispatch_sync(1)
            except EngineForkedError:
                print("refused", flush=True)
        in_child(child)
        print(await (await job.dispatch("parent")).result(5))

asyncio.run(main())
        """
    )
    assert out.split() == ["refused", "parent"]


def test_a_child_that_ends_in_the_ordinary_way_does_not_stop_the_parents_engine() -> None:
    """`atexit` runs in a child that leaves by `sys.exit`: it must neither hang nor run the parent's jobs."""
    out = run(
        """
ran = []

@define_job("count")
def count(payload):
    ran.append(os.getpid())

engine = Engine()
engine.start()
engine.queue("default").pause_sync()
for number in range(3):
    count.dispatch_sync(number)
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
engine.queue("default").resume_sync()
engine.stop()
print(engine.queue("default").counts()["completed"])
        """
    )
    assert out.strip() == "3"
