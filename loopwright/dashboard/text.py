"""Text from models and evaluators, made fit to be looked at: it is text whatever it holds."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # titles and links, with what they carry
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


def plain(text: str) -> str:
    """The text without terminal sequences. What would hide text or turn its direction is shown by its number."""
    text = _ESCAPE.sub("", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


def shortened(text: str, most: int) -> str:
    """The beginning of a text, at most so many characters."""
    return text if len(text) <= most else f"{text[:most]}…"


def one_line(text: str, most: int = 160) -> str:
    """The beginning of a text in one line."""
    start = " ".join(plain(text[: most * 4]).split())
    return f"{start[: most - 1]}…" if len(start) > most or len(text) > most * 4 else start


def duration(seconds: float) -> str:
    """A time span for people: `0.4 s`, `8 s`, `3 min 05 s`, `1 h 02 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def score(value: float | None) -> str:
    """A score in at most four digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"


def words(name: str) -> str:
    """An internal name as words: `target_reached` is `target reached`."""
    return name.replace("_", " ")
