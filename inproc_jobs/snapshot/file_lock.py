"""An exclusive lock on a file: held by one process at a time, and gone with the process, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from inproc_jobs.errors import SnapshotUnavailableError
from inproc_jobs.snapshot.store import Owner

__all__ = ["FileLock"]


class FileLock:
    """The lock beside a snapshot file; its content says who holds it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self, owner: Owner) -> Owner | None:
        """
        Take the lock.

        Returns:
            None when it is ours now, else who holds it (an `Owner` with pid 0 if that cannot be read).

        Raises:
            SnapshotUnavailableError: The file cannot be made or opened.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SnapshotUnavailableError(f"lock file {self._path} cannot be opened: {error.strerror}") from error
        if not _try_lock(fd):
            holder = _read_owner(fd)
            os.close(fd)
            return holder
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, msgspec.json.encode(owner))
        self._fd = fd
        return None

    def is_ours(self) -> bool:
        """Whether the file that we have locked is still the one at that path: somebody may have deleted it."""
        if self._fd is None:
            return False
        try:
            there, held = Path(self._path).stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_ino, there.st_dev) == (held.st_ino, held.st_dev)

    def release(self) -> None:
        """Let go. The file stays: deleting it would let two others lock two files of the same name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _read_owner(fd: int) -> Owner:
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        return msgspec.json.decode(os.read(fd, 4096), type=Owner)
    except (OSError, msgspec.DecodeError):
        return Owner("unknown host", 0, 0)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> bool:
        try:
            # A byte far behind the content, which others must be able to read.
            os.lseek(fd, 1 << 20, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(fd, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
