"""
An exception as text, whatever the exception does to prevent it.

Only text is kept: an exception holds its frames and, through them, everything that the handler touched. Sizes are
bounded, since a job may fail a million times with a message of megabytes (cases C89, C106).
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Final

__all__ = ["MAX_REASON", "MAX_TRACE", "reason_of", "trace_of"]

MAX_REASON: Final = 8_192
"""Characters of a stored reason; the rest is cut with a note."""
MAX_TRACE: Final = 32_768
"""Characters of one stored stack trace; the middle is cut, since the ends tell most."""
_OWN_FOLDER: Final = os.path.dirname(__file__) + os.sep  # noqa: PTH120  # pathlib takes 5 ms to import
_MAX_CAUSES: Final = 10
_MAX_FRAMES: Final = 50


def reason_of(error: BaseException) -> str:
    """
    The message of an error: its text, or its type where it has none.

    What is not an `Exception` (SystemExit, KeyboardInterrupt, ...) is named by type, since its text alone ("3") would
    say nothing.
    """
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001  # user code: anything may come out of __str__
        text = f"<str() raised {type(broken).__name__}>"
        return f"{type(error).__name__}: {text}"
    if not isinstance(error, Exception):
        return _cut(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    return _cut(text) if text else type(error).__name__


def _cut(text: str) -> str:
    if len(text) > MAX_REASON:
        text = f"{text[:MAX_REASON]}... ({len(text):,} characters)"
    # Lone surrogates cannot be stored anywhere; a failure must always be recordable.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def trace_of(error: BaseException) -> str:
    """The stack trace of an error and of its causes, from the handler's own frame on."""
    try:
        text = "".join(_chain(error))
    except BaseException:  # noqa: BLE001  # user code: __str__, __cause__ and friends may raise anything
        text = "".join(traceback.format_tb(error.__traceback__, _MAX_FRAMES)) + f"{type(error).__name__}\n"
    if len(text) > MAX_TRACE:
        half = MAX_TRACE // 2
        text = f"{text[:half]}\n... ({len(text) - MAX_TRACE:,} characters left out)\n{text[-half:]}"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _chain(error: BaseException) -> list[str]:
    """The parts of the text, first cause first. Walked here: `traceback` formats a thousand causes if there are."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = _own_frames_off(current.__traceback__)
        block = ["Traceback (most recent call last):\n", *traceback.format_tb(frames, -_MAX_FRAMES)] if frames else []
        block.append(f"{type(current).__name__}: {reason_of(current)}\n")
        cause = current.__cause__
        if cause is not None:
            block.insert(0, "\nThe above exception was the direct cause of the following exception:\n\n")
        elif current.__context__ is not None and not current.__suppress_context__:
            cause = current.__context__
            block.insert(0, "\nDuring handling of the above exception, another exception occurred:\n\n")
        parts[:0] = block
        current = cause
        if current is not None and len(seen) >= _MAX_CAUSES:
            parts.insert(0, "... (more causes left out)\n")
            break
    return parts


def _own_frames_off(frames: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of the engine above the handler's first."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frames = frames.tb_next
    return frames
