"""How a command ends: exit codes, refused input in words, and errors that nobody foresaw."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import logs
from .text import printable

if TYPE_CHECKING:
    from ..core.errors import InvalidInput

_log = logging.getLogger(__name__)

REACHED, NOT_REACHED, REFUSED, ERROR, CANCELLED = 0, 1, 2, 3, 130
"""The exit codes, as `loopwright run --help` and docs/cli.md explain them."""


def refuse(error: InvalidInput, *, where: str) -> int:
    """Print refused input to standard error, one problem a line; `where` is the file it is about."""
    for problem in error.problems:
        place = f"{where}:{problem.line}: " if where and problem.line else f"{where}: " if where else ""
        field = f"{problem.field}: " if problem.field and problem.field != where else ""
        say(f"{place}{field}{problem.message}")
    if where and len(error.problems) > 1:
        say(f"\n{len(error.problems)} problems; nothing was sent, nothing was spent.")
    return REFUSED


def say(text: str) -> None:
    """Print a line to standard error, if anybody is there; into the log where that is JSON."""
    if logs.as_json():
        _log.error(text)
        return
    with suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def guarded(command: Callable[[], object]) -> None:
    """Run the program: no surprise ends it with the exit code of something else."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    try:
        command()
    except SystemExit:
        _flush()
        raise
    except Exception as error:  # noqa: BLE001 - the last line of defence
        _unforeseen(error)
        sys.exit(ERROR)


def _unforeseen(error: Exception) -> None:
    from ..core.errors import LoopwrightError

    if isinstance(error, LoopwrightError | OSError) and not os.environ.get("LOOPWRIGHT_DEBUG"):
        say(f"error: {error}")
        return
    if logs.as_json():
        _log.error("the program failed", exc_info=error)
        return
    import traceback

    with suppress(OSError, ValueError):
        traceback.print_exception(error)


def _flush() -> None:
    """Flush standard output; where its reader is gone, leave nothing for Python to complain about at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
