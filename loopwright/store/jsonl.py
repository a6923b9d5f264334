"""The journal file: one event a line, appended and flushed, so that a crash loses nothing that was paid for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError
from pydantic_core import from_json

from ..core.errors import InvalidInput, Problem
from ..core.events import EVENT, RunEvent, RunResumed, RunStarted, TextDelta
from ..files import refuse_special


class JournalFile:
    """Appends a run's events to a file; an event is in the operating system's hands before the next step starts.

    Raises:
        OSError: the file can't be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        refuse_special(path, or_device=True)
        torn = _is_torn(path)
        self._file = path.open("ab", buffering=0)
        if torn:  # by a crash: what comes now begins on a line of its own
            self._write(b"\n")

    def __call__(self, event: RunEvent) -> None:
        """Write one event.

        Raises:
            OSError: it can't be written, e.g. the disk is full.
        """
        if isinstance(event, TextDelta):
            return
        self._write(EVENT.dump_json(event) + b"\n")

    def _write(self, data: bytes) -> None:
        while data:  # a raw write may take only a part
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> JournalFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _is_torn(path: Path) -> bool:
    """Whether a file doesn't end with the end of a line."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def read_journal(path: Path) -> Iterator[RunEvent]:
    """Read a journal's events. A line that was cut off by a crash is left out: the last one, or one before a new run.

    Raises:
        InvalidInput: a line is not an event.
        OSError: the file can't be read.
    """
    refuse_special(path)
    torn: InvalidInput | None = None
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            event = EVENT.validate_json(line)
        except ValidationError as error:
            if torn:
                raise torn from None
            message = f"is not an event of a journal: {error.errors()[0]['msg']}"
            torn = InvalidInput(Problem(field=str(path), message=message, line=number))
            if not line.lstrip().startswith(b"{") or _is_whole(line):
                raise torn from None
            continue
        if torn and not isinstance(event, RunStarted | RunResumed):
            raise torn
        torn = None
        yield event


def _is_whole(line: bytes) -> bool:
    """Whether a line is JSON from beginning to end: then it is no event, and not one that was cut off."""
    try:
        from_json(line)
    except ValueError:
        return False
    return True
