"""What pip and type checkers read about the package is true."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import inproc_jobs

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_installed_one():
    """`inproc_jobs.__version__` and what pip shows are the same."""
    assert inproc_jobs.__version__ == metadata.version("inproc_jobs")


def test_the_version_is_written_in_one_place():
    """No second version that could be forgotten: pyproject.toml takes it from `_version.py`."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in pyproject["project"]
    assert "version" in pyproject["project"]["dynamic"]


def test_the_readme_is_the_page_on_the_package_index():
    """A README.md in the tree is named in pyproject.toml, where the build would not miss it by itself."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = "README.md" if (ROOT / "README.md").exists() else None
    assert pyproject["project"].get("readme") == wanted


def test_the_changelog_has_a_place_for_what_comes_next():
    """CHANGELOG.md keeps Unreleased on top."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", changelog, flags=re.MULTILINE)[0].strip("[]") == "Unreleased"


def test_the_package_says_that_it_is_typed():
    """Type checkers read the annotations of a package only beside a `py.typed`."""
    assert (Path(inproc_jobs.__file__).parent / "py.typed").is_file()


def test_no_package_is_required_by_accident():
    """Everything else is an extra: who installs the engine gets no web framework and no metrics client."""
    required = {
        re.match(r"[\w.-]+", line)[0] for line in metadata.requires("inproc_jobs") or [] if "extra ==" not in line
    }
    assert required == {"cronsim", "msgspec", "redis", "sortedcontainers", "structlog"}
