"""Scores a guess at the secret code, and says what is right about it."""

from collections import Counter

CODE = "BEACH"


def score(candidate: str) -> tuple[float, str]:
    """Return a score from 0 to 1, and the remark that the agent is shown."""
    guess = candidate.strip().upper()
    if len(guess) != len(CODE):
        return 0.0, f"The guess must be {len(CODE)} letters and nothing else."
    in_place = sum(a == b for a, b in zip(guess, CODE, strict=True))
    elsewhere = sum((Counter(guess) & Counter(CODE)).values()) - in_place
    return (in_place + elsewhere / 2) / len(CODE), f"{in_place} in place, {elsewhere} elsewhere"
