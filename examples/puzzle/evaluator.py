"""Scores guesses at a secret code, over HTTP. It is the evaluator of `make demo`.

python examples/puzzle/evaluator.py            a secret of its own, on port 8765
python examples/puzzle/evaluator.py BEACH      with this code
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

LETTERS = "ABCDEFGH"
LENGTH = 5
PORT = 8765


class Question(BaseModel):
    """What Loopwright sends; it sends more, see docs/write-an-evaluator.md."""

    candidate: str


class Answer(BaseModel):
    """What Loopwright wants to know."""

    score: float
    detail: str


def new_code() -> str:
    """A secret."""
    return "".join(random.choices(LETTERS, k=LENGTH))  # noqa: S311 - a puzzle


def judge(candidate: str, code: str) -> Answer:
    """A letter in place counts twice as much as one that is elsewhere."""
    guesses = re.findall(rf"\b[{LETTERS}]{{{LENGTH}}}\b", candidate.upper())
    if not guesses:
        return Answer(score=0.0, detail=f"Answer with {LENGTH} letters from A to H and nothing else.")
    guess = guesses[-1]
    in_place = sum(a == b for a, b in zip(guess, code, strict=True))
    elsewhere = sum((Counter(guess) & Counter(code)).values()) - in_place
    score = (2 * in_place + elsewhere) / (2 * LENGTH)
    return Answer(score=score, detail=f"{in_place} in place, {elsewhere} elsewhere")


def make_app(code: str) -> FastAPI:
    """The evaluator of one secret code."""
    app = FastAPI()

    @app.post("/score")
    def score(question: Question) -> Answer:  # pyright: ignore[reportUnusedFunction]
        return judge(question.candidate, code)

    return app


if __name__ == "__main__":
    secret = sys.argv[1].upper() if len(sys.argv) > 1 else new_code()
    uvicorn.run(make_app(secret), host="127.0.0.1", port=PORT, log_level="warning")
