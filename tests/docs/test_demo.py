"""The demo: its recording, its judge, and the whole of it, run and interrupted as people do."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDING = EXAMPLES / "data" / "deliveries.jsonl"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the demo, imported as its script imports them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from month_end import checks, client, screen

    class Parts:
        pass

    found = Parts()
    found.checks, found.client, found.screen = checks, client, screen
    return found


# --- the recording ---------------------------------------------------------------------------------------------------


def test_the_recording_is_made_by_its_script(tmp_path: Path) -> None:
    """Running the seeded script again gives the identical bytes."""
    again = tmp_path / "again.jsonl"
    subprocess.run([sys.executable, str(EXAMPLES / "data" / "make_deliveries.py"), str(again)], check=True)
    assert again.read_bytes() == RECORDING.read_bytes()


def test_the_recording_holds_what_it_promises() -> None:
    """About 2,000 deliveries, a third of them sent again: at once, seconds apart, and long after."""
    lines = [json.loads(line) for line in RECORDING.read_text(encoding="utf-8").splitlines()]
    assert 1_900 <= len(lines) <= 2_100
    assert RECORDING.stat().st_size < 700_000
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert lines[-1]["at"] <= 20_000

    clicks = "/forms/profile"
    sent = Counter(line["id"] for line in lines if line["to"] != clicks)
    assert 0.30 <= sum(times > 1 for times in sent.values()) / len(sent) <= 0.40
    assert max(sent.values()) >= 4
    assert max(Counter(line["id"] for line in lines if line["to"] == clicks).values()) == 1

    first_ms: dict[str, int] = {}
    gaps_ms = [line["at"] - first_ms.setdefault(line["id"], line["at"]) for line in lines]
    assert sum(0 < gap <= 3 for gap in gaps_ms) > 50, "at once"
    assert sum(100 < gap <= 1_000 for gap in gaps_ms) > 50, "while it runs"
    assert sum(gap > 4_000 for gap in gaps_ms) > 50, "after it has finished"


def test_deliveries_sent_again_have_the_same_body() -> None:
    """One delivery id, one path and body: a sender repeats itself word for word."""
    told: dict[str, tuple[str, Any]] = {}
    for line in map(json.loads, RECORDING.read_text(encoding="utf-8").splitlines()):
        assert told.setdefault(line["id"], (line["to"], line["body"])) == (line["to"], line["body"])


# --- the judge -------------------------------------------------------------------------------------------------------


def honest_ledger(parts: Any, deliveries: list[Any]) -> list[dict[str, Any]]:
    """What the outside world writes when all goes well."""
    ledger: list[dict[str, Any]] = []
    seen: set[str] = set()
    bursts: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for one in deliveries:
        if one.id in seen or one.to == "/forms/profile":
            continue
        seen.add(one.id)
        if one.to == "/hooks/invoices":
            invoice = one.body["data"]
            if invoice["customer"]["email"].endswith("@busy.example"):
                ledger += [{"what": "turned away", "invoice": invoice["invoice"]}] * 2
            ledger.append({"what": "invoice sent", "invoice": invoice["invoice"]})
        else:
            ledger.append({"what": "form taken", "id": one.id})
    for one in deliveries:  # a customer comes back after eleven seconds or more: a new burst
        if one.to == "/forms/profile":
            click = {"at_ms": one.at_ms, "what": "clicked"} | facts(one.body["profile"], one.body["revision"])
            burst = bursts.setdefault((one.body["profile"], one.at_ms > 10_000), [])
            burst.append(click)
    for clicks in bursts.values():
        ledger += [*clicks, saved(clicks[0], clicks[-1]["revision"])]
    return ledger


def facts(profile: str, revision: int) -> dict[str, Any]:
    return {"profile": profile, "revision": revision}


def saved(first: dict[str, Any], revision: int, *, after_ms: int = 3_010) -> dict[str, Any]:
    """The line of a run which the first click has asked for."""
    at_ms = first["at_ms"] + after_ms
    return {"at_ms": at_ms, "what": "profile saved", "asked_by": first["revision"]} | facts(first["profile"], revision)


def verdicts(parts: Any, ledger: list[dict[str, Any]], deliveries: list[Any], retries: int) -> list[bool]:
    return [check.good for check in parts.checks.judge(deliveries, ledger, retries)]


def test_the_judge_accepts_an_honest_ledger_and_no_other(parts: Any) -> None:
    """Anything that happened once too often or not at all is found, by the check that is about it."""
    deliveries = parts.client.read_recording(RECORDING)
    ledger = honest_ledger(parts, deliveries)
    retries = sum(line["what"] == "turned away" for line in ledger)
    assert retries > 100
    assert verdicts(parts, ledger, deliveries, retries) == [True, True, True, True]
    assert verdicts(parts, ledger, deliveries, retries - 1) == [True, True, True, False]

    for place, what in enumerate(["invoice sent", "form taken", "profile saved", "turned away"]):
        expected = [check != place for check in range(4)]
        line = next(line for line in ledger if line["what"] == what)
        assert verdicts(parts, [*ledger, line], deliveries, retries) == expected, f"{what} twice"
        without = [other for other in ledger if other is not line]
        if what != "turned away":  # the same line twice, so that leaving one out by identity drops both
            assert verdicts(parts, without, deliveries, retries) == expected, f"{what} never"


def clicked(at_ms: int, revision: int) -> dict[str, Any]:
    return {"at_ms": at_ms, "what": "clicked"} | facts("p", revision)


def judge_clicks(parts: Any, *ledger: dict[str, Any]) -> Any:
    clicks = [line for line in ledger if line["what"] == "clicked"]
    body = [{"profile": line["profile"], "revision": line["revision"]} for line in clicks]
    return parts.checks.check_clicks([parts.client.Delivery(0, "frm", "/forms/profile", one) for one in body], ledger)


def test_bursts_are_what_the_server_has_received(parts: Any) -> None:
    """However late the clicks come, one after the run begins a new burst, and one before it does not."""
    one, late, later = clicked(0, 1), clicked(3_200, 2), clicked(9_000, 3)
    quick = judge_clicks(parts, one, clicked(900, 2), saved(one, 2), later, saved(later, 3))
    assert (quick.problems, quick.text[:16]) == ([], "each of 2 bursts")
    split = judge_clicks(parts, one, saved(one, 1), late, saved(late, 2), later, saved(later, 3))
    assert (split.problems, split.text[:16]) == ([], "each of 3 bursts")
    run_was_late = judge_clicks(parts, one, late, saved(one, 2, after_ms=4_000))
    assert (run_was_late.problems, run_was_late.text[:16]) == ([], "each of 1 bursts")


def test_clicks_that_are_repeated_overtaken_or_come_during_the_run_are_no_fault(parts: Any) -> None:
    """The connection broke, the network swapped two, the row was being written: the newest revision is saved."""
    one, two = clicked(0, 1), clicked(100, 2)
    assert judge_clicks(parts, one, one, two, saved(one, 2)).good
    assert judge_clicks(parts, two, clicked(101, 1), saved(two, 2)).good
    assert judge_clicks(parts, one, clicked(3_005, 2), saved(one, 1), saved(one, 2, after_ms=3_020)).good


def test_a_wrong_engine_is_found_whatever_the_machine(parts: Any) -> None:
    """A run too many, too early, with a later payload, or none at all."""
    one, two = clicked(0, 1), clicked(900, 2)
    for wrong, ledger in {
        "p revision 2: saved again without a click": [one, two, saved(one, 2), saved(two, 2)],
        "p revision 2: asked for by click 2 instead of the first, 1": [one, two, saved(two, 2)],
        "p revision 1: saved 2,500 ms after the first click instead of 3,000": [one, saved(one, 1, after_ms=2_500)],
        "p: revision 2 was not saved": [one, two, saved(one, 1)],
        "p: revision 1 was not saved": [one],
    }.items():
        assert judge_clicks(parts, *ledger).problems == [wrong]
    sent = [parts.client.Delivery(0, "frm_1", "/forms/profile", {"profile": "p", "revision": 1})]
    assert parts.checks.check_clicks(sent, []).problems == ["p: the click of revision 1 never came"]


# --- the client ------------------------------------------------------------------------------------------------------


async def test_a_delivery_whose_connection_breaks_is_sent_again(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same id and body, until it is answered; the repetitions are counted."""
    import httpx2

    monkeypatch.setattr(parts.client, "FIRST_PAUSE_S", 0.0)
    came: list[tuple[str, bytes]] = []

    def app(request: httpx2.Request) -> httpx2.Response:
        came.append((request.headers["X-Delivery-Id"], request.content))
        if len(came) < 3:
            raise httpx2.ReadError("")
        return httpx2.Response(202, json={"duplicate": True, "state": "active"})

    tally = parts.client.Tally(1)
    delivery = parts.client.Delivery(0, "in_1", "/hooks/invoices", {"invoice": 1})
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(app), base_url="http://shop") as http:
        assert await parts.client.play(http, [delivery], tally) == [delivery]
    assert len(came) == 3
    assert len(set(came)) == 1
    assert (tally.sent_again, tally.received, tally.duplicates) == (2, 1, Counter(active=1))


async def test_the_client_gives_up_on_a_server_that_is_gone(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tries, then the error of the last; it does not go on for ever."""
    import httpx2

    monkeypatch.setattr(parts.client, "FIRST_PAUSE_S", 0.0)
    tries = []

    def app(request: httpx2.Request) -> httpx2.Response:
        tries.append(request)
        raise httpx2.ConnectError("refused")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(app), base_url="http://shop") as http:
        with pytest.raises(httpx2.ConnectError):
            await parts.client.status(http)
    assert len(tries) == 5


async def test_what_could_not_be_sent_in_time_is_left_out(parts: Any) -> None:
    """After the last moment nothing is sent, and the answer says what was."""
    import httpx2

    def app(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(202, json={"duplicate": False, "state": "waiting"})

    deliveries = [parts.client.Delivery(at_ms, f"in_{at_ms}", "/hooks/invoices", {}) for at_ms in (0, 150)]
    tally = parts.client.Tally(2)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(app), base_url="http://shop") as http:
        started = time.monotonic()
        later = [*deliveries, parts.client.Delivery(60_000, "in_4", "/", {})]
        assert await parts.client.play(http, later, tally, last_moment=started - 1) == []
        assert time.monotonic() - started < 30, "nothing is waited for that will not be sent"
        assert tally.received == 0
        assert await parts.client.play(http, deliveries, tally) == deliveries


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_the_summary_fits_a_terminal_and_names_what_is_wrong(parts: Any) -> None:
    """80 columns are enough, NO_COLOR leaves no color, and a failed check is spelled out."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, force_terminal=True, width=80, no_color=True, highlight=False)
    tally = parts.client.Tally(3, created=1, duplicates=Counter(active=2), response_ms=[1.0, 2.0, 30.0])
    problems = [f"in_{number}: 2 times instead of 1" for number in range(7)]
    parts.screen.print_summary(console, tally, 4, [parts.checks.Check("each invoice was sent once", problems)])
    shown = re.sub(r"\x1b\[[012;]*m", "", out.getvalue())  # bold and dim are not colors
    assert "\x1b" not in shown, "color in spite of NO_COLOR"
    assert max(map(len, shown.splitlines())) <= 80
    for row in ("deliveries received .* 3 ", "jobs created .* 1 ", "duplicates ignored .* 2 ", "job was active .* 2 "):
        assert re.search(row, shown), row
    assert re.search("p50 .* 2.0 ms", shown)
    assert re.search("p99 .* 30.0 ms", shown)
    assert "WRONG  each invoice was sent once" in shown
    assert "in_4: 2 times instead of 1" in shown
    assert "and 2 more" in shown
    assert "sent again" not in shown


def test_the_summary_counts_what_was_sent_again(parts: Any) -> None:
    """Broken connections are no secret."""
    rows = dict(parts.screen.summary_rows(parts.client.Tally(3, sent_again=2), 0))
    assert rows["sent again, connection broke"] == "2"


# --- the whole -------------------------------------------------------------------------------------------------------

unix_only = pytest.mark.skipif(sys.platform == "win32", reason="process groups")


def alive(group: int) -> bool:
    """Whether any process of the group is left: the demo is its leader, and its server is in it."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def demo(folder: Path, *arguments: str, examples: Path = EXAMPLES) -> Iterator[subprocess.Popen[str]]:
    """Start the demo in a process group of its own, piped; its files go into the folder."""
    process = subprocess.Popen(
        [sys.executable, str(examples / "demo.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    try:
        yield process
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@unix_only
def test_demo_runs_by_itself_and_everything_is_done_once(tmp_path: Path) -> None:
    """All deliveries, within a minute: plain lines in a pipe, the summary, exit code 0, no process left."""
    with demo(tmp_path) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
        assert not alive(process.pid)
    assert err == ""
    assert "\x1b" not in out
    assert "\r" not in out

    figures = dict(re.findall(r"^ *([^\d\n]+?) {2,}(\d+)$", out.replace(",", ""), re.MULTILINE))
    received, created, ignored = (
        int(figures[name]) for name in ("deliveries received", "jobs created", "duplicates ignored")
    )
    total = len(RECORDING.read_text(encoding="utf-8").splitlines())
    assert received == total == created + ignored
    assert int(figures["retries"]) == 126
    assert int(figures["its job was completed"]) > 100, "deliveries that come long after"
    assert int(figures["its job was active"]) > 20, "deliveries that come while the first is running"
    assert int(figures["its job was delayed"]) > 200, "clicks, and deliveries between two attempts"
    assert re.search(r"^request to response, p50 +[\d.]+ ms$", out, re.MULTILINE)
    assert re.search(r"^request to response, p99 +[\d.]+ ms$", out, re.MULTILINE)
    assert "ok     each of 900 invoices was sent once" in out
    assert len(re.findall("^ok ", out, re.MULTILINE)) == 5
    assert len(re.findall(r"of 2,041 deliveries: [\d,]+ jobs created", out)) >= 5


def spoiled_copy(folder: Path, pattern: str, replacement: str, places: int) -> Path:
    """The examples with a mistake in the app."""
    for source in EXAMPLES.rglob("*"):
        if source.is_file() and "__pycache__" not in source.parts:
            target = folder / source.relative_to(EXAMPLES)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    app = folder / "month_end" / "app.py"
    spoiled, found = re.subn(pattern, replacement, app.read_text(encoding="utf-8"))
    assert found == places
    app.write_text(spoiled, encoding="utf-8")
    return folder


@pytest.mark.slow
@unix_only
@pytest.mark.parametrize(
    ("pattern", "replacement", "places", "verdict"),
    [
        pytest.param(
            r'remove_on_complete=\{"age": DAY_S\},?',
            "",
            2,
            r"each of \d+ invoices was sent once\n {7}in_\d+: [2-9] times instead of 1",
            id="late deliveries send invoices again",
        ),
        pytest.param(
            r'job_id=f"profile:{post.profile}"',
            'job_id=f"profile:{post.profile}:{post.revision}"',
            1,
            r"each of \d+ bursts .*(?:\n {7}.*)*?\n {7}pro_\w+ revision \d+: saved again without a click",
            id="each click has its own run",
        ),
        pytest.param(
            'delay="3s"',
            'delay="2s"',
            1,
            r"each of \d+ bursts .*(?:\n {7}.*)*?\n {7}pro_\w+ revision \d+: saved 2,\d+ ms after the first click instead of 3,000",
            id="runs come too early",
        ),
    ],
)
def test_demo_can_fail(tmp_path: Path, pattern: str, replacement: str, places: int, verdict: str) -> None:
    """With a mistake in the app, the demo says what was done wrong and exits with 1."""
    examples = spoiled_copy(tmp_path, pattern, replacement, places)
    with demo(tmp_path, "--seconds", "5", examples=examples) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert re.search(rf"^WRONG  {verdict}$", out, re.MULTILINE), out


@pytest.mark.slow
@unix_only
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_demo_cleans_up_when_stopped(kind: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C or kill: exit code 130, no traceback, and the server is down as well, so its port is free."""
    with demo(tmp_path) as process:
        assert process.stdout is not None
        while "deliveries: " not in process.stdout.readline():
            assert process.poll() is None, process.communicate()
        process.send_signal(kind)  # to the demo alone, not to the server
        _, err = process.communicate(timeout=15)
        assert not alive(process.pid)
    assert process.returncode == 130
    assert err == "\nStopped; the server is down as well.\n"
    assert not list(tmp_path.iterdir()), "files left behind"


@pytest.mark.slow
@unix_only
def test_the_server_does_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    """SIGKILL leaves the demo no chance to clean up; the server notices and ends by itself."""
    with demo(tmp_path) as process:
        assert process.stdout is not None
        while "deliveries: " not in process.stdout.readline():
            assert process.poll() is None, process.communicate()
        process.kill()
        process.wait(5)
        deadline = time.monotonic() + 15
        while alive(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(process.pid)
