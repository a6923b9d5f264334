"""Prompt tokens of an iteration under the history policy `best`: flat, however long the run; beside `full`.

Tokens are estimated at four bytes each; where the model's own tokenizer is at hand offline, it counts them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from loopwright.agents.exact import local_counter
from loopwright.core.models import Candidate, Feedback, Iteration
from loopwright.core.spec import HistorySpec
from loopwright.core.state import RunState
from loopwright.core.stop import MaxIterations
from loopwright.core.wallet import Wallet
from loopwright.runner.history import BYTES_A_TOKEN, show
from loopwright.runner.plan import Plan

from .endpoint import score
from .stage import GOAL, SENTENCE, StubModel, Target, arguments, verdict

START = datetime(2026, 1, 1, tzinfo=UTC)
CANDIDATE = SENTENCE * 40
"""Some 2 KB."""
FULL = 10
"""From this iteration on a prompt of `best` has all its parts."""


def prompt_tokens(policy: Literal["best", "full"], iterations: int, count: Callable[[str], int]) -> list[int]:
    """Tokens of each iteration's prompt, by the policy alone: no model, no network."""
    history = HistorySpec(policy=policy)
    plan = Plan(run_id="tokens", name="tokens", goal=GOAL, stop=MaxIterations(iterations), history=history)
    state = RunState(started_at=START, keep=None if policy == "full" else history.recent)
    known: dict[str, int] = {}  # the messages of `full` come again in every iteration
    tokens: list[int] = []
    for number in range(1, iterations + 1):
        texts = [message.text for message in show(plan, state).messages]
        known |= {text: count(text) for text in texts if text not in known}
        tokens.append(sum(known[text] for text in texts))
        candidate = Candidate(text=f"{number:05}. {CANDIDATE}")
        feedback = Feedback.model_validate(score(candidate.text))
        done = Iteration(number=number, candidate=candidate, feedback=feedback, started_at=START)
        state = state.after(done, Wallet(), START + timedelta(seconds=number))
    return tokens


def table(best: Sequence[int], full: Sequence[int]) -> str:
    """Tokens by iteration and in total."""
    shown = sorted(
        {number for number in (1, 2, 5, FULL, 20, 50, 100, 200, 500, 1_000, len(best)) if number <= len(best)}
    )
    lines = [f"{'iteration':>10} {'best':>12} {'full':>12}"]
    lines += [f"{number:>10} {best[number - 1]:>12,} {full[number - 1]:>12,}" for number in shown]
    lines += [f"{'total':>10} {sum(best):>12,} {sum(full):>12,}"]
    return "\n".join(lines)


def main() -> int:
    """Count, print, judge."""
    options = arguments(__doc__, iterations=1_000).parse_args()
    counter = local_counter(StubModel())
    print("tokens by tiktoken" if counter else f"tokens estimated at {BYTES_A_TOKEN} bytes each")
    count = counter or (lambda text: -(-len(text.encode()) // BYTES_A_TOKEN))
    best, full = (prompt_tokens(policy, options.iterations, count) for policy in ("best", "full"))
    print(table(best, full))
    print(f"over the run, full is {sum(full) / sum(best):.1f} times best")
    steady = best[FULL - 1 :] or best
    tenth = max(1, len(steady) // 10)
    # The largest of each, since a prompt is smaller while the best is one of the last attempts.
    growth = max(steady[-tenth:]) / max(steady[:tenth])
    name = f"largest prompt of the last {tenth} iterations over that of the first {tenth} from {FULL} on"
    return verdict([Target(name, growth, 1.02)], check=options.check)


if __name__ == "__main__":
    sys.exit(main())
