"""
Build sdist and wheel, and use the wheel as its users will: in empty environments, away from the source tree.

Not a test for pytest, since it downloads packages; `make package` and CI run it. Two environments: one with the newest
versions of the required packages, one with the oldest that pyproject.toml allows. No extra is installed in either, so
an import that needs one without asking for it fails here.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Runs in the empty environments. -I: neither the current folder nor the caller's environment is on the path.
SMOKE_TEST = """
import importlib, pkgutil, sys
from importlib import metadata
import inproc_jobs
from inproc_jobs import Engine, define_job

assert "site-packages" in inproc_jobs.__file__, inproc_jobs.__file__
assert inproc_jobs.__version__ == metadata.version("inproc_jobs")
for name in inproc_jobs.__all__:
    getattr(inproc_jobs, name)

rooms_of_extras = ("inproc_jobs.bullmq", "inproc_jobs.cli", "inproc_jobs.dashboard", "inproc_jobs.testing")
extras = {"bullmq", "hypothesis", "opentelemetry", "prometheus_client", "pytest", "rich", "starlette", "typer"}
loaded = 0
for module in pkgutil.walk_packages(inproc_jobs.__path__, "inproc_jobs."):
    if module.name.startswith(rooms_of_extras) or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        loaded += 1
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in extras or not module.name.startswith("inproc_jobs.observe."):
            raise

@define_job("smoke.double")
async def double(payload: dict) -> int:
    return payload["number"] * 2

with Engine():
    assert double.dispatch_sync({"number": 21}).result_sync(timeout=10) == 42

required = [line.partition(">")[0] for line in metadata.requires("inproc_jobs") if "extra ==" not in line]
versions = [f"{name} {metadata.version(name)}" for name in sorted(required)]
print(f"  Python {sys.version.split()[0]}; {', '.join(versions)}: {loaded} modules loaded, one job run")
"""


def run(*command: str | Path) -> None:
    """Run a command, quiet unless it fails."""
    line = [str(part) for part in command]
    done = subprocess.run(line, cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
    if done.returncode:
        what = " ".join("(smoke test)" if part == SMOKE_TEST else part for part in line)
        sys.exit(f"failed: {what}\n{done.stdout}{done.stderr}")
    if SMOKE_TEST in line:
        print(done.stdout, end="")


def check_contents(sdist: Path, wheel: Path) -> None:
    """Nothing is missing from the archives, and the wheel holds the package alone."""
    in_tree = {path.relative_to(ROOT).as_posix() for path in source_files()}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    in_wheel = {name for name in names if ".dist-info/" not in name}
    expect_same("wheel", in_wheel, in_tree)
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        sys.exit("the wheel has no license file")
    with tarfile.open(sdist) as tarball:
        in_sdist = {name.partition("/")[2] for name in tarball.getnames()}
    expect_same("sdist", in_sdist & in_tree, in_tree)
    print(f"  {wheel.name} and {sdist.name} hold all {len(in_tree)} files of the package")


def source_files() -> Iterator[Path]:
    """The files of the package in the source tree."""
    for path in (ROOT / "inproc_jobs").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path


def expect_same(archive: str, found: set[str], wanted: set[str]) -> None:
    """Stop with the difference, if there is one."""
    if found != wanted:
        sys.exit(f"{archive}: missing {sorted(wanted - found)}, not expected {sorted(found - wanted)}")


def oldest_allowed(wheel: Path) -> list[str]:
    """The requirements of the wheel, each pinned to its lower bound."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    if unbounded := [line for line in required if ">=" not in line]:
        sys.exit(f"no lower bound: {unbounded}")
    return [line.replace(">=", "==") for line in required]


def try_in_empty_environment(folder: Path, *requirements: str | Path) -> None:
    """Install the requirements into a fresh environment and run the smoke test there."""
    venv.create(folder, with_pip=False)
    # The pip of this environment installs into the other one: no second pip to fetch, and the other stays empty.
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(sys.executable, "-m", "pip", "--python", python, "--quiet", "install", *requirements)
    run(python, "-I", "-W", "error", "-c", SMOKE_TEST)


def main() -> None:
    """Build, look inside, install, use."""
    with tempfile.TemporaryDirectory(prefix="inproc-jobs-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
        [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
        check_contents(sdist, wheel)
        try_in_empty_environment(folder / "newest", wheel)
        try_in_empty_environment(folder / "oldest", wheel, *oldest_allowed(wheel))
    print("package: sdist and wheel are fine")


if __name__ == "__main__":
    main()
