"""Packages from npm, as lock files pin them: installed once per lock file and shared by all runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["install", "why_no_node"]


def why_no_node() -> str | None:
    """Why the real BullMQ cannot be run here, as far as Node is concerned, or None if it can."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"the real BullMQ needs {program}, which is not on the PATH"
    return None


def install(source: Path, name: str) -> Path:
    """The folder with the packages of `source/package-lock.json`, installed there when first needed."""
    lock = (source / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "inproc_jobs" / f"{name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(source / file, made)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            subprocess.run(command, cwd=made, check=True, timeout=300)
            try:
                Path(made).rename(folder)
            except OSError:  # another process was faster
                assert folder.exists()
            else:
                Path(made).mkdir()  # which the context manager removes
    return folder
