"""The practice model: a deterministic search, not an LLM. It solves the code puzzle of the demo by its feedback.

It reads the prompt that any model would get, and nothing else: the candidates that it is shown, and what the evaluator
remarked on them. So a demo without a key runs the whole loop for real. `practice_text` has the few other tasks that it
knows. Its tokens are estimated, at four bytes each, and priced like those of a real model, so that the cost meter has
something to show.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from .practice_text import KNOWN, judge, write

PRACTICE = "practice"
"""Its name in loop files."""

PRICED_AS = "openai:gpt-4o"
"""The model at whose list prices its estimated tokens are counted."""

_PAIR = re.compile(r"~{3,} candidate\n([A-Z]+)\n~{3,}\s+The evaluator's remarks:\s+~{3,} remarks\n(.*?)\n~{3,}", re.S)
_REMARK = re.compile(r"(\d+) in place, (\d+) elsewhere")
_GOAL = re.compile(r"code of (\d+) letters from ([A-Z]) to ([A-Z])")

MOST_CODES = 1_000_000
"""It tries every code there is: a puzzle with more of them would keep it busy for minutes."""


def compare(guess: str, code: str) -> tuple[int, int]:
    """How many letters of a guess are in place, and how many more are in the code but elsewhere (Mastermind's rule)."""
    in_place = sum(a == b for a, b in zip(guess, code, strict=True))
    common = sum((Counter(guess) & Counter(code)).values())
    return in_place, common - in_place


def next_guess(prompt: str, turn: int) -> str:
    """The first code, in an order that depends on the turn, that agrees with every remark in the prompt."""
    goal = _GOAL.search(prompt)
    if goal is None:
        return write(prompt) or f"The practice model only knows {KNOWN}; set `model:` to a real one."
    length, letters = int(goal[1]), ord(goal[3]) - ord(goal[2]) + 1
    if letters < 1 or length > 20 or letters**length > MOST_CODES:
        return f"A code of {length} letters from {goal[2]} to {goal[3]} is not one that the practice model can search."
    known = [
        (guess, (int(r[1]), int(r[2])))
        for guess, text in _PAIR.findall(prompt)
        if len(guess) == length and (r := _REMARK.search(text))
    ]
    tried = {guess for guess, _ in known}
    for code in _codes(length, goal[2], goal[3], turn):
        if code not in tried and all(compare(guess, code) == remark for guess, remark in known):
            return code
    return "The remarks contradict each other: no code agrees with all of them."


def _codes(length: int, first: str, last: str, turn: int) -> Iterator[str]:
    """Every code once, in an order of the turn's own, so that a forgotten guess isn't made again for ever."""
    order = random.Random(turn)  # noqa: S311 - an order, not a secret
    letters = [chr(c) for c in range(ord(first), ord(last) + 1)]
    return ("".join(code) for code in product(*(order.sample(letters, len(letters)) for _ in range(length))))


class PracticeModel(Model):
    """Answers each prompt with `next_guess`, and judges by a rubric that can be counted.

    Args:
        pace: seconds to wait before each answer, so that a person can watch.
        answer: what to answer whatever is asked: the candidate with which an evaluator is tried.
    """

    def __init__(self, *, pace: float = 0.25, answer: str | None = None) -> None:
        super().__init__()
        self._pace = pace
        self._answer = answer

    @property
    def model_name(self) -> str:
        """`practice`."""
        return PRACTICE

    @property
    def system(self) -> str:
        """`practice`: no provider is behind it."""
        return PRACTICE

    @property
    def provider(self) -> None:
        """None: nothing leaves this process."""
        return

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Answer the last user prompt, or judge where an answer in a schema is asked for.

        Raises:
            ModelAPIError: it is asked for what it can't do.
        """
        await asyncio.sleep(self._pace)
        prompt = "\n".join(_user_texts(messages))
        if model_request_parameters.output_tools:
            answer = _judged(messages, prompt)
            part = ToolCallPart(model_request_parameters.output_tools[0].name, answer)
            return _response(part, prompt, str(answer))
        if self._answer is not None:
            return _response(TextPart(self._answer), prompt, self._answer)
        turns = re.findall(r"This is iteration (\d+)", prompt)
        text = next_guess(prompt, int(turns[-1]) if turns else 1)
        return _response(TextPart(text), prompt, text)


def _response(part: TextPart | ToolCallPart, prompt: str, answer: str) -> ModelResponse:
    usage = RequestUsage(input_tokens=len(prompt.encode()) // 4 + 1, output_tokens=len(answer) // 4 + 1)
    return ModelResponse(parts=[part], usage=usage, model_name=PRACTICE)


def _judged(messages: list[ModelMessage], prompt: str) -> dict[str, object]:
    instructions = "\n".join(each.instructions or "" for each in messages if isinstance(each, ModelRequest))
    try:
        answer = judge(instructions, prompt)
    except ValueError as error:
        raise ModelAPIError(PRACTICE, str(error)) from None
    if answer is None:
        raise ModelAPIError(PRACTICE, "the practice model can't answer in a schema; name a real model")
    return answer


def _user_texts(messages: list[ModelMessage]) -> Iterable[str]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart) and isinstance(part.content, str):
                yield part.content
