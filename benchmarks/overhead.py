"""CPU time of an iteration: the whole runner beside pydantic-ai driven by hand.

Both sides use the same agent on the same model without latency, the same history policy and the same HTTP evaluator in
another process. The runner also keeps a wallet and a journal file. The CPU time of this process counts, nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
from pydantic_ai.messages import ModelMessage

from loopwright.builtins.loop_done import loop_done_toolset
from loopwright.core.models import Candidate, Feedback, Iteration
from loopwright.core.state import TRAIL, RunState
from loopwright.core.stop import MaxIterations
from loopwright.core.wallet import Wallet
from loopwright.runner.history import show
from loopwright.runner.plan import Plan

from .stage import GOAL, StubModel, Target, agent, arguments, evaluator_process, loop, verdict

BLOCK = 50
"""Iterations of a round in which both sides take turns."""
EDGE = 10
"""How many iterations make the beginning and the end of a long run."""


async def by_hand(url: str, iterations: int) -> float:
    """What one writes without a runner; gives CPU seconds per iteration."""
    plan = Plan(run_id="by-hand", name="by hand", goal=GOAL, stop=MaxIterations(iterations))
    state = RunState(started_at=datetime.now(UTC))
    asked = agent(StubModel())
    tools = [loop_done_toolset()]
    async with asked, httpx.AsyncClient() as client:
        began = time.process_time()
        for number in range(1, iterations + 1):
            started = datetime.now(UTC)
            answer = await asked.run(show(plan, state).messages[-1].text, toolsets=tools)
            scored = await client.post(url, json={"candidate": answer.output, "goal": GOAL, "iteration": number})
            scored.raise_for_status()
            feedback = Feedback.model_validate(scored.json())
            candidate = Candidate(text=answer.output)
            iteration = Iteration(number=number, candidate=candidate, feedback=feedback, started_at=started)
            state = state.after(iteration, Wallet(), datetime.now(UTC))
        return (time.process_time() - began) / iterations


async def by_loopwright(url: str, iterations: int, folder: Path) -> float:
    """The same by the whole runner; gives CPU seconds per iteration."""
    async with loop(StubModel(), url, iterations) as ready:
        began = time.process_time()
        result = await ready.run(GOAL, journal=folder / f"{began}.jsonl")
        spent = time.process_time() - began
    assert len(result.iterations) == iterations, result.sentence
    return spent / iterations


async def end_over_beginning(url: str, iterations: int, folder: Path) -> float:
    """What the last iterations of a long run cost, beside the first ones whose prompts have their full size."""
    marks: list[float] = []

    def mark(messages: Sequence[ModelMessage]) -> None:
        marks.append(time.process_time())

    async with loop(StubModel(on_request=mark), url, iterations) as ready:
        await ready.run(GOAL, journal=folder / f"{time.process_time()}.jsonl")
    costs = [after - before for before, after in pairwise(marks)]
    costs = costs[min(TRAIL, len(costs) - 1) :]
    return sum(costs[-EDGE:]) / sum(costs[:EDGE])


async def measure(iterations: int, rounds: int) -> list[Target]:
    """Both targets; the two sides take turns, so that what else the machine does meets them alike."""
    block = min(BLOCK, iterations)
    with evaluator_process() as url, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await by_hand(url, block)
        await by_loopwright(url, block, folder)
        pairs = [(await by_hand(url, block), await by_loopwright(url, block, folder)) for _ in range(rounds)]
        growth = [await end_over_beginning(url, iterations, folder) for _ in range(max(1, rounds // 3))]
    hand, ours = (median(side) * 1_000 for side in zip(*pairs, strict=True))
    ratios = [ours / hand for hand, ours in pairs]
    print(f"by hand {hand:.2f} ms, by Loopwright {ours:.2f} ms of CPU an iteration (medians of {rounds} rounds)")
    print(f"ratios of single rounds: {min(ratios):.2f} to {max(ratios):.2f}")
    print(f"end over beginning in single runs: {min(growth):.2f} to {max(growth):.2f}")
    return [
        Target("Loopwright over by hand", median(ratios), 1.5),
        Target(f"last {EDGE} of {iterations} iterations over the first {EDGE}", median(growth), 1.2),
    ]


def main() -> int:
    """Measure, print, judge."""
    options = arguments(__doc__, iterations=1_000, rounds=15).parse_args()
    return verdict(asyncio.run(measure(options.iterations, options.rounds)), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
