"""Text from models and evaluators, made fit to be stored anywhere."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, JsonValue

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Control characters but for tab and line feed, and those that hide text or change its direction. Joiners (U+200C,
U+200D) aren't here, since writing systems and emoji need them."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace what no database and no UTF-8 file can hold, NUL and lone surrogates, by U+FFFD; keep all the rest."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_json(value: JsonValue) -> JsonValue:
    """`clean` for every text in a JSON value."""
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_json(item) for item in value]
        case dict():
            return {clean(key): clean_json(item) for key, item in value.items()}
        case _:
            return value


def fence(text: str) -> str:
    """A line of tildes that is longer than any run of tildes in the text, so that it can't end its fence."""
    return "~" * max(3, max(map(len, re.findall("~+", text)), default=0) + 1)


def fenced(label: str, text: str) -> str:
    """Text that is not ours between two fences, the first with a label."""
    line = fence(text)
    return f"{line} {label}\n{text}\n{line}"


def shorten(text: str, most: int, hidden: int = 0) -> str:
    """Keep the beginning and the end of a text that is longer than `most` UTF-8 bytes, and say how much is left out.

    `hidden` is how many bytes of its middle were left out before.
    """
    raw = text.encode(errors="replace")
    if len(raw) <= most and not hidden:
        return text
    head, tail = most * 2 // 3, most // 3
    start, end = raw[:head].decode(errors="ignore"), raw[len(raw) - tail :].decode(errors="ignore")
    return f"{start}\n[… {len(raw) - head - tail + hidden:,} bytes left out …]\n{end}"


def _clean_if_text(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_clean_if_text)]
"""A pydantic field for text from outside."""
