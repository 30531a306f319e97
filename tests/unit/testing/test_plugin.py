"""The fixture `jobs` in inner sessions of pytest: every kind of test, and nothing that leaks from one to the next."""

import textwrap

import pytest

pytest_plugins = ["pytester"]

PROGRAM = """
    import asyncio
    from inproc_jobs import define_job

    ran = []

    @define_job("send", attempts=3, backoff="1d")
    async def send(payload):
        await asyncio.sleep(3600)
        ran.append(payload)

    async def sign_up(name):
        await asyncio.sleep(60)
        return await send.dispatch({"name": name}, job_id=f"welcome:{name}", delay="30s")
"""

COROUTINE_TESTS = """
    import asyncio

    import pytest
    from program import ran, send, sign_up

    MARK

    @pytest.mark.parametrize("number", range(5))
    async def test_everything_is_fresh(jobs, number):
        loop = asyncio.get_running_loop()
        began = loop.time()
        await sign_up("ada")
        assert 59 < loop.time() - began < 61
        jobs.assert_dispatched(send, {"name": "ada"}, job_id="welcome:ada", delay="30s")
        assert (await jobs.run_until_idle()).completed == 1
        assert round(jobs.clock.monotonic()) == 60 + 30 + 3600
        assert len(jobs.timeline()) > 3

    class TestInAClass:
        @pytest.mark.jobs(mode="inline")
        async def test_options_come_from_the_marker(self, jobs):
            await send.dispatch({"name": "inline"})
            assert ran[-1] == {"name": "inline"}

    @pytest.fixture
    def app(jobs):
        jobs.mode = "inline"
        return sign_up

    async def test_the_fixture_may_be_asked_for_by_another(app):
        await app("eve")
        await asyncio.sleep(86_400)

    async def test_without_the_fixture_time_is_real():
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(0.001)
        assert loop.time() - began < 5
        assert "time" not in vars(loop)
"""

ANYIO = """
    pytestmark = pytest.mark.anyio

    @pytest.fixture(scope="SCOPE")
    def anyio_backend():
        return "asyncio"
"""

PLAIN_TESTS = """
    import asyncio

    import pytest
    from program import ran, send, sign_up

    @pytest.mark.parametrize("number", range(5))
    def test_everything_is_fresh(jobs, number):
        assert send.dispatch_sync({"name": "bob"}, job_id="b").created
        assert send.dispatch_sync({"name": "bob"}, job_id="b").duplicate
        assert jobs.run_until_idle_sync().completed == 1
        assert round(jobs.clock.monotonic()) == 3600

    @pytest.mark.jobs(mode="inline")
    def test_inline(jobs):
        send.dispatch_sync("inline")
        assert ran[-1] == "inline"
"""


@pytest.fixture
def session(pytester: pytest.Pytester):
    """A folder with the program under test."""
    pytester.makepyfile(program=textwrap.dedent(PROGRAM))
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    return pytester


def run(session: pytest.Pytester, *arguments: str, apart: bool = False) -> pytest.RunResult:
    """An inner session; pytest-asyncio warns unless it is told a scope."""
    if "no:asyncio" not in arguments:
        arguments = ("-o", "asyncio_default_fixture_loop_scope=function", *arguments)
    return session.runpytest_subprocess(*arguments) if apart else session.runpytest_inprocess(*arguments)


def passed(result: pytest.RunResult, count: int) -> None:
    result.assert_outcomes(passed=count)


@pytest.mark.parametrize(
    ("mark", "arguments"),
    [
        ("", ["-o", "asyncio_mode=auto"]),
        ("pytestmark = pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
        ("pytestmark = pytest.mark.asyncio(loop_scope='module')", ["-o", "asyncio_mode=strict"]),
        (
            ANYIO.replace("SCOPE", "function"),
            ["-o", "asyncio_mode=strict"],
        ),
        (ANYIO.replace("SCOPE", "module"), ["-p", "no:asyncio"]),
    ],
    ids=["asyncio auto", "asyncio strict", "asyncio module loop", "anyio", "anyio module loop"],
)
def test_coroutine_tests(mark, arguments, session):
    """pytest-asyncio in both modes and anyio, with a loop per test and with one for all, in random order."""
    session.makepyfile(test_it=textwrap.dedent(COROUTINE_TESTS.replace("MARK", mark)))
    passed(run(session, *arguments), 8)


def test_plain_tests(session):
    """Functions without a loop."""
    session.makepyfile(test_it=textwrap.dedent(PLAIN_TESTS))
    passed(run(session, "-p", "no:asyncio"), 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_beside_each_other_in_random_order(seed, session):
    """xdist: tests of all kinds in two processes, shuffled; marked slow for the processes it starts."""
    session.makepyfile(test_a=textwrap.dedent(COROUTINE_TESTS.replace("MARK", "")), test_b=textwrap.dedent(PLAIN_TESTS))
    passed(run(session, "-n2", "-o", "asyncio_mode=auto", f"--randomly-seed={seed}", apart=True), 14)


def test_a_session_that_does_not_use_it_pays_nothing(session):
    """The plugin imports the kit only where a test asks for it."""
    session.makepyfile(
        test_it=textwrap.dedent("""
            import sys

            def test_nothing_is_loaded():
                assert "inproc_jobs.testing.plugin" in sys.modules
                rooms = {name.split(".")[1] for name in sys.modules if name.startswith("inproc_jobs.")}
                assert rooms <= {"_version", "testing"}
                assert "inproc_jobs.testing.kit" not in sys.modules
        """)
    )
    passed(run(session, "-p", "no:asyncio", "-p", "no:hypothesispytest", apart=True), 1)


def test_a_failing_test_leaks_nothing(session):
    """Jobs, faults, modes, clocks and definitions end with their test, however that ends."""
    session.makepyfile(
        test_it=textwrap.dedent("""
            import asyncio
            import pytest
            from inproc_jobs import define_job
            from program import ran, send

            async def test_1_leaves_a_mess(jobs):
                define_job("send", handle=lambda payload: 1 / 0)
                jobs.mode = "inline"
                jobs.fail_next(send, ValueError, times=100)
                await send.dispatch(1, delay="1d")
                await jobs.advance("1d")
                asyncio.create_task(asyncio.sleep(1e9))
                jobs.clock.step_wall("9d")
                assert False

            async def test_2_finds_nothing_of_it(jobs):
                assert jobs.mode == "manual"
                assert jobs.clock.now().isoformat() == "2026-01-05T09:00:00+00:00"
                assert jobs.dispatched() == jobs.timeline() == []
                await send.dispatch("clean")
                assert (await jobs.run_until_idle()).completed == 1
                assert ran == ["clean"]

            def test_3_nor_does_a_plain_one(jobs):
                assert jobs.run_until_idle_sync().completed == 0
        """)
    )
    result = run(session, "-o", "asyncio_mode=auto", "-p", "no:randomly")
    result.assert_outcomes(passed=2, failed=1)


def test_leftovers_on_request(session):
    """By setting for all tests, by marker for one; a test that failed for itself is not blamed twice."""
    session.makepyfile(
        test_it=textwrap.dedent("""
            import pytest
            from program import send

            def test_leaves_a_job(jobs):
                send.dispatch_sync(1)

            @pytest.mark.jobs(leftovers=True)
            def test_may_leave_one(jobs):
                send.dispatch_sync(1)

            def test_leaves_none(jobs):
                send.dispatch_sync(1)
                jobs.run_until_idle_sync()

            def test_fails(jobs):
                send.dispatch_sync(1)
                assert False

            @pytest.mark.jobs(leftovers=False)
            def test_asks_for_it_itself(jobs):
                send.dispatch_sync(1)
        """)
    )
    result = run(session, "-o", "jobs_no_leftovers=true")
    result.assert_outcomes(passed=4, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*AssertionError: jobs were left over:*"])
    run(session).assert_outcomes(passed=4, failed=1, errors=1)


def test_the_fixture_and_the_marker_are_announced(session):
    """`--fixtures` and `--markers` tell of them, and --strict-markers knows the marker."""
    run(session, "--markers").stdout.fnmatch_lines(["@pytest.mark.jobs(*options): *"])
    run(session, "--fixtures").stdout.fnmatch_lines(["jobs -- *plugin.py*", "*A fresh engine on virtual time*"])


def test_mistakes_in_the_marker(session):
    """They name what is wrong."""
    session.makepyfile(
        test_it=textwrap.dedent("""
            import pytest

            @pytest.mark.jobs("inline")
            def test_position(jobs):
                pass

            @pytest.mark.jobs(mode="eager")
            def test_value(jobs):
                pass
        """)
    )
    result = run(session, "-p", "no:randomly")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*takes keyword arguments only*", "*mode must be 'manual', 'inline' or 'record'*"])


def test_uvloop_gets_the_clear_error(session):
    """Its time cannot be made virtual."""
    pytest.importorskip("uvloop")
    session.makepyfile(
        test_it=textwrap.dedent("""
            import pytest

            pytestmark = pytest.mark.anyio

            @pytest.fixture
            def anyio_backend():
                return ("asyncio", {"use_uvloop": True})

            async def test_it(jobs):
                pass
        """)
    )
    result = run(session, "-p", "no:asyncio", "-W", "default")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*virtual time needs one of asyncio's own event loops*uvloop*"])


def test_unittest(session):
    """Without pytest's fixtures: plain test cases and isolated asyncio ones."""
    session.makepyfile(
        test_it=textwrap.dedent("""
            import asyncio
            import unittest

            from inproc_jobs.testing import harness
            from program import ran, send, sign_up

            class Plain(unittest.TestCase):
                def setUp(self):
                    self.jobs = self.enterContext(harness())

                def test_welcome(self):
                    send.dispatch_sync("plain")
                    self.assertEqual(self.jobs.run_until_idle_sync().completed, 1)

            class WithALoop(unittest.IsolatedAsyncioTestCase):
                async def asyncSetUp(self):
                    self.jobs = await self.enterAsyncContext(harness())

                async def test_welcome(self):
                    await sign_up("zoe")
                    self.jobs.assert_dispatched(send, {"name": "zoe"})
                    await self.jobs.run_until_idle()

                async def test_again(self):
                    self.assertEqual(self.jobs.dispatched(), [])

            if __name__ == "__main__":
                unittest.main()
        """)
    )
    passed(run(session, "-p", "no:asyncio"), 3)
    assert session.runpython(session.path / "test_it.py").ret == 0
