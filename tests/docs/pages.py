"""The pages that readers see, and how a test runs one."""

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["PAGES", "ROOT", "headings", "links", "run_page", "text_of"]

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def run_page(path: Path) -> str:
    """Run the code of a page in a process of its own, every warning an error; its last line."""
    environment = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "NO_COLOR"}}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.run_page", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout.splitlines()[-1]


def text_of(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", text_of(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links(path: Path) -> list[str]:
    """Links of a page to other files and places of this repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(path))
    return [target for target in targets if not target.startswith(("http:", "https:", "mailto:"))]
