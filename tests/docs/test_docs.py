"""The pages are true: their code runs, their links lead somewhere, and no public name is missing."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import inproc_jobs
from inproc_jobs import Engine, JobDefinition, JobState, QueueView, Registry
from inproc_jobs.app import options
from inproc_jobs.core.events import EVENT_NAMES
from tests.docs.pages import PAGES, ROOT, headings, links, run_page, text_of

DOCS = ROOT / "docs"
REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# --- every page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    # CONTRIBUTING.md shows shapes, of a docstring and of a commit message, not programs.
    "page",
    [page for page in PAGES if page.name != "CONTRIBUTING.md"],
    ids=lambda page: page.name,
)
def test_its_code_prints_what_it_says(page: Path):
    """All Python blocks run one after the other; what they print stands below them, and nothing else does."""
    last = run_page(page)
    assert re.fullmatch(r"\d+ blocks ran", last)


@by_name
def test_its_blocks_are_of_known_kinds(page: Path):
    """A block with a misspelled language would never be run."""
    fences = re.findall(r"^```(\S*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(fences[::2]) <= {"python", "text", "console", "mermaid"}
    assert set(fences[1::2]) <= {""}


@by_name
def test_its_links_lead_somewhere(page: Path):
    """Each link to a file or a heading of this repository finds it."""
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in headings(target), f"{page.name} links to {link}"


@by_name
def test_its_make_targets_exist(page: Path):
    """`make demo` and the others are in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = re.findall(r"(?:\$ |`)make (?:PYTHON=\S+ )?([a-z-]+)", page.read_text(encoding="utf-8"))
    assert set(named) <= targets


@by_name
def test_its_files_exist(page: Path):
    """Files that a page names in backticks are there."""
    rooms = "core|app|runtime|observe|docs|tests|examples|benchmarks"
    for name in re.findall(rf"`((?:{rooms})/[\w/.-]*\.\w+)[`:]", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "inproc_jobs" / name).exists(), f"{page.name} names {name}"


def test_every_page_is_in_the_index():
    """Whoever starts at the index can get to each page."""
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= set(links(DOCS / "index.md"))


def test_the_index_sends_each_user_to_a_page():
    """A server app, a test suite and a command-line tool each have a row of their own."""
    index = text_of(DOCS / "index.md")
    for user in ("a server app", "a test suite", "a command-line tool"):
        assert re.search(rf"^\| {user}.*\]\(\S+\.md\)", index, flags=re.MULTILINE), user


# --- the reference ----------------------------------------------------------------------------------------------------


def section(title: str) -> str:
    """The part of the reference below a heading."""
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", REFERENCE, flags=re.DOTALL | re.MULTILINE)
    assert match is not None, f"the reference has no section {title}"
    return match[1]


@pytest.mark.parametrize("name", inproc_jobs.__all__)
def test_the_reference_has_every_public_name(name: str):
    """Each has a section of its own, or a row of a table that starts with it."""
    assert re.search(rf"^(## {name}$|\| `{name}\b|`{name}`)", REFERENCE, flags=re.MULTILINE), name


def arguments(call: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    """Names and defaults; options that are typed as a dict are None unless they are given."""
    for parameter in list(inspect.signature(call).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            name = parameter.annotation.removeprefix("Unpack[").removesuffix("]")
            yield from ((option, None) for option in getattr(options, name).__annotations__)
        else:
            yield parameter.name, parameter.default


@pytest.mark.parametrize(
    ("title", "call"),
    [
        ("define_job", Registry.define_job),
        ("dispatch", JobDefinition.dispatch),
        ("Engine", Engine.__init__),
        ("schedule", Engine.schedule),
        ("RedisSnapshot", inproc_jobs.RedisSnapshot.__init__),
    ],
)
def test_the_reference_has_every_argument_with_its_default(title: str, call: Callable[..., Any]):
    """The first table of the section lists the arguments in their order, with their defaults."""
    table = section(title).split("\n\n| Member")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\|", table, flags=re.MULTILINE)
    wanted = [
        (name, "" if default is inspect.Parameter.empty else f"`{default!r}`") for name, default in arguments(call)
    ]
    order = [name for name, _ in wanted]
    assert sorted(rows, key=lambda row: order.index(row[0]) if row[0] in order else -1) == wanted


# The engine has many methods that only the rooms around the facade call; these are for users.
PUBLIC_OF_ENGINE = set(
    "astart astop events failed_jobs failed_jobs_sync flow flow_sync handover health lifespan on queue "
    "retry_failed_job retry_failed_job_sync run_forever run_until_idle schedule schedule_sync start stop".split()
)
INTERNAL = {
    "EngineEvent": {"fields_cache"},
    "JobLogFilter": {"filter"},
    "RedisSnapshot": {"open_store", "hands_over"},
    "ScheduleView": {"of"},
    "SqliteSnapshot": {"open_store", "hands_over"},
    "Deduplication": {"rule", "delay_ms"},
    "QueueView": {"record"},
    "Registry": {"serve", "newest", "engine_for", "engine_of"},
}
CLASSES = [
    name
    for name in inproc_jobs.__all__
    if inspect.isclass(thing := getattr(inproc_jobs, name)) and not issubclass(thing, (Exception, JobState))
]


@pytest.mark.parametrize("name", CLASSES)
def test_the_reference_has_every_member(name: str):
    """Methods and attributes of each public class are named in its section; a twin by the word `_sync`."""
    text = section(name)
    members = {member for member in dir(getattr(inproc_jobs, name)) if not member.startswith("_")}
    if name == "Engine":
        assert members >= PUBLIC_OF_ENGINE
        members = PUBLIC_OF_ENGINE
    if name == "FailedJob":  # what it inherits is in the section of JobView
        members -= set(dir(inproc_jobs.JobView))
    if name == "QueueView":
        members = {member.removesuffix("_sync") for member in members}
    missing = {member for member in members - INTERNAL.get(name, set()) if not re.search(rf"[`. ]{member}\b[^=]", text)}
    assert not missing, "tell it in docs/reference.md, or list it above as internal"


def test_queue_views_changes_have_twins():
    """The reference says so for all of them, so it must hold for all of them."""
    for name, member in vars(QueueView).items():
        if inspect.iscoroutinefunction(member):
            assert hasattr(QueueView, f"{name}_sync"), name


def test_every_state_is_in_the_reference():
    """By its word."""
    for state in JobState:
        assert f"`{state.value}`" in section("JobState")


def test_every_event_is_told():
    """The page on events names each of them."""
    page = (DOCS / "logging-and-events.md").read_text(encoding="utf-8")
    for name in EVENT_NAMES:
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", sorted(name for name in inproc_jobs.__all__ if name.endswith("Error")))
def test_errors_inherit_what_the_reference_says(name: str):
    """The column "Also a" lists the bases that callers would catch."""
    row = re.search(rf"^\| `{name}` \| ((?:`\w+`(?:, )?)+) \|", section("Errors"), flags=re.MULTILINE)
    for base in re.findall(r"`(\w+)`", row[1]) if row else []:
        builtin = __builtins__[base] if base in __builtins__ else getattr(inproc_jobs, base)
        assert issubclass(getattr(inproc_jobs, name), builtin)


# --- differences ------------------------------------------------------------------------------------------------------


def test_every_difference_has_its_test():
    """The last column names a test that exists."""
    page = text_of(DOCS / "differences-from-bullmq.md")
    rows = [row for row in re.findall(r"^\| .*\|$", page, flags=re.MULTILINE)[2:] if not row.startswith("| **")]
    assert len(rows) > 30
    for row in rows:
        match = re.fullmatch(r".*\| `(test_\w+)::(test_\w+)` \|", row)
        assert match is not None, f"no test in {row}"
        files = list((ROOT / "tests" / "unit").rglob(f"{match[1]}.py"))
        assert len(files) == 1, f"{match[1]} is not one file"
        assert re.search(rf"def {match[2]}\(", files[0].read_text(encoding="utf-8")), f"there is no {match[0]}"
