"""Scores a sentence by its number of words."""

from __future__ import annotations

import re

WORDS = 12


def score(candidate: str) -> tuple[float, str]:
    """Return a score from 0 to 1, and the remark that the agent is shown."""
    words = re.findall(r"[\w'\u2019-]+", candidate)
    if "blue" in (word.lower() for word in words):
        return 0.0, 'The word "blue" is not allowed.'
    off = abs(len(words) - WORDS)
    return 1 / (1 + off), f"The sentence has {len(words)} words, and {WORDS} are wanted."
