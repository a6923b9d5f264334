"""The journal file: one event a line, appended and flushed, so that a crash loses nothing that was paid for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from ..core.errors import InvalidInput, Problem
from ..core.events import EVENT, RunEvent, TextDelta


class JournalFile:
    """Appends a run's events to a file; an event is in the operating system's hands before the next step starts.

    Raises:
        OSError: the file can't be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab", buffering=0)

    def __call__(self, event: RunEvent) -> None:
        """Write one event.

        Raises:
            OSError: it can't be written, e.g. the disk is full.
        """
        if isinstance(event, TextDelta):
            return
        line = EVENT.dump_json(event) + b"\n"
        while line:  # a raw write may take only a part
            line = line[self._file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> JournalFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_journal(path: Path) -> Iterator[RunEvent]:
    """Read a journal's events. A last line that was cut off by a crash is left out.

    Raises:
        InvalidInput: a line is not an event.
        OSError: the file can't be read.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        try:
            yield EVENT.validate_json(line)
        except ValidationError as error:
            message = f"is not an event of a journal: {error.errors()[0]['msg']}"
            raise InvalidInput(Problem(field=str(path), message=message, line=number)) from None
