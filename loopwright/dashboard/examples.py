"""Two small evaluators, so that the templates work as they are. They keep nothing and need no sign-in."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

router = APIRouter(prefix="/examples", include_in_schema=False)

CODE = "BEACH"


class Question(BaseModel):
    """What an evaluator is asked; it may know more than it looks at."""

    candidate: str


class Answer(BaseModel):
    """What an evaluator answers."""

    score: float
    detail: str


@router.post("/code")
async def code(question: Question) -> Answer:
    """Score a guess at the secret code."""
    guess = question.candidate.strip().upper()
    if len(guess) != len(CODE):
        return Answer(score=0, detail=f"The guess must be {len(CODE)} letters and nothing else.")
    in_place = sum(a == b for a, b in zip(guess, CODE, strict=True))
    elsewhere = sum((Counter(guess) & Counter(CODE)).values()) - in_place
    return Answer(score=(in_place + elsewhere / 2) / len(CODE), detail=f"{in_place} in place, {elsewhere} elsewhere")


@router.post("/words")
async def words(question: Question, want: Annotated[int, Query(ge=1, le=1000)] = 12) -> Answer:
    """Score a text by its number of words."""
    many = len(re.findall(r"[\w'\u2019-]+", question.candidate[:20_000]))
    return Answer(score=1 / (1 + abs(many - want)), detail=f"The text has {many} words, and {want} are wanted.")
