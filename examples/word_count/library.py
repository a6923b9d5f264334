"""The same loop from Python: `python examples/word_count/library.py`, with OPENAI_API_KEY set."""

from __future__ import annotations

import asyncio
import sys

from evaluator import score

from loopwright import Budget, Loop, MaxIterations, Target
from loopwright.core.events import IterationFinished, RunFinished

GOAL = 'Write one sentence about the sea, of exactly 12 words. Don\'t use the word "blue".'


async def main(model: str) -> None:
    """Run the loop and print each iteration as it finishes."""
    loop = Loop(agent=model, evaluate=score, stop=Target(1) | MaxIterations(8) | Budget("0.02"))
    async for event in loop.stream(GOAL):
        match event:
            case IterationFinished(iteration=done):
                print(f"{done.number}  {done.score}  {done.text}")
            case RunFinished(sentence=sentence):
                print(sentence)
            case _:
                pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "openai:gpt-4o-mini"))
