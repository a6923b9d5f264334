"""What changed between two texts, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

MOST_WORDS = 3_000
"""Longer texts are compared line by line, and only so many lines of them: comparing takes the square of the length."""


@dataclass(frozen=True)
class Part:
    """A piece of a text, and whether it is in both, or in one of them only."""

    kind: Literal["same", "added", "removed"]
    text: str


def diff(before: str, after: str) -> Sequence[Part]:
    """The parts of which both texts are made, in reading order."""
    pieces = (
        _lines
        if max(before.count(" ") + len(before) // 40, after.count(" ") + len(after) // 40) > MOST_WORDS
        else _words
    )
    old, new = pieces(before), pieces(after)
    parts: list[Part] = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            parts.append(Part("same", "".join(old[i:j])))
            continue
        if i < j:
            parts.append(Part("removed", "".join(old[i:j])))
        if k < m:
            parts.append(Part("added", "".join(new[k:m])))
    return parts


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)[: MOST_WORDS * 2]


def _lines(text: str) -> list[str]:
    return [line[:2_000] for line in text.splitlines(keepends=True)[: MOST_WORDS // 2]]
