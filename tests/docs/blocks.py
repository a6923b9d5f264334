"""Fenced blocks of the documentation, and how each is to be tested."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)
_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<how>[^\n]*?) -->\n)?^(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_HOW = re.compile(r"run|prints|syntax \(.+\)|replies = (?P<replies>\[.*\])")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    how: str
    text: str
    prints: str | None = None
    """What it must print: the text block after it, where that is marked so."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def replies(self) -> list[str]:
        """What the model answers."""
        found = _HOW.fullmatch(self.how)
        return json.loads(found["replies"]) if found and found["replies"] else []


def blocks() -> list[Block]:
    """Every block of every page, in order."""
    found: list[Block] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            block = Block(
                page=page,
                line=text.count("\n", 0, match.start("fence")) + 1,
                language=match["language"],
                how=match["how"] or "run",
                text=match["text"],
            )
            assert _HOW.fullmatch(block.how), f"{block}: {block.how!r} is no way to test a block"
            if block.how == "prints":
                before = found.pop()
                block = Block(**{**vars(before), "prints": block.text})
            found.append(block)
    return found
