"""An exclusive lock on a file: held by one process at a time, and gone with the process, however it ends."""

from __future__ import annotations

import os
import sys
import time
import weakref
from pathlib import Path
from typing import Final

import msgspec

from inproc_jobs.errors import SnapshotUnavailableError
from inproc_jobs.snapshot.store import Owner

__all__ = ["FileLock"]

UNKNOWN_OWNER: Final = Owner("unknown host", 0, 0)


class FileLock:
    """The lock beside a snapshot file; its content says who holds it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        _LOCKS.add(self)

    def acquire(self, owner: Owner) -> Owner | None:
        """
        Take the lock.

        Returns:
            None when it is ours now, else who holds it (an `Owner` with pid 0 if that cannot be read).

        Raises:
            SnapshotUnavailableError: The file cannot be made or opened.
        """
        while True:
            fd = self._open()
            if not _try_lock(fd):
                holder = _read_owner(fd)
                os.close(fd)
                return holder
            if self._is_there(fd):
                break
            # Deleted between our opening and our locking it: others lock the one that is there now.
            os.close(fd)
        try:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, msgspec.json.encode(owner))
        except OSError:
            # A full disk: it is locked all the same, others just cannot read by whom.
            pass
        self._fd = fd
        return None

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise SnapshotUnavailableError(f"lock file {self._path} cannot be opened: {error.strerror}") from error

    def _is_there(self, fd: int) -> bool:
        try:
            there, held = Path(self._path).stat(), os.fstat(fd)
        except OSError:
            return False
        return (there.st_ino, there.st_dev) == (held.st_ino, held.st_dev)

    def is_ours(self) -> bool:
        """Whether the file that we have locked is still the one at that path: somebody may have deleted it."""
        return self._fd is not None and self._is_there(self._fd)

    def release(self) -> None:
        """Let go. The file stays: deleting it would let two others lock two files of the same name."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


_LOCKS: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


def _after_fork() -> None:
    """A child shares the lock of its parent: it would keep it alive after the parent's death, so it lets its copy go."""
    for lock in list(_LOCKS):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read_owner(fd: int) -> Owner:
    """Who has written it; one that has locked it a moment ago has perhaps not written it yet."""
    for _ in range(20):
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            return msgspec.json.decode(os.read(fd, 4096), type=Owner)
        except OSError:
            break
        except msgspec.DecodeError:
            time.sleep(0.005)
    return UNKNOWN_OWNER


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
