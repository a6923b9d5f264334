"""Text from models and evaluators is text: whatever it holds, it can't move the cursor or change a colour."""

from __future__ import annotations

import re
from decimal import Decimal

from ..core.money import show_usd
from ..core.text import CONTROL

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # titles, links, device control strings, with what they carry
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)


def printable(text: object) -> str:
    """What may be printed: without terminal control sequences, other control characters as U+FFFD.

    Everything that comes from files, models and evaluators goes through here, names of files too.
    """
    text = _ESCAPE.sub("", str(text)).replace("\r\n", "\n").expandtabs(4)
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, most: int = 1000) -> str:
    """The beginning of a text in one line, at most so many characters."""
    start = " ".join(printable(text[: most * 2]).split())
    cut = len(start) > most or len(text) > most * 2
    return f"{start[: most - 1]}…" if cut else start


def duration(seconds: float) -> str:
    """A time span for people: `8 s`, `3 min 05 s`, `1 h 02 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def score_text(score: float | None) -> str:
    """A score in at most four digits; a dash where there is none."""
    return "-" if score is None else f"{score:.4g}"


def whole_text(whole: Decimal) -> str:
    """How much of a cost is no usage that somebody reported."""
    return f"{show_usd(whole)} of it are reservations charged whole: what those requests used is not known"
