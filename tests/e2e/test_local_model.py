"""Whole runs on a real small model, replayed from `cassettes/test_local_model/`.

The answers are those of Qwen2.5-Coder-1.5B-Instruct (Q4_K_M) on a llama.cpp server. To record them again, serve an
OpenAI-compatible model under that name on 127.0.0.1:8015, with its prompt cache off so that a seed gives the same text
each time, and run

    rm -r cassettes/test_local_model
    pytest tests/e2e/test_local_model.py --record-mode=once

Requests are matched by their bodies: whoever changes the prompt of a loop records again, and looks at the figures.
What a run costs is computed here by hand, from the tokens that the server counted.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopwright.core.events import EvaluationRetried, IterationFinished, MoneySettled, RunEvent
from loopwright.core.result import RunResult
from loopwright.core.spec import LoopSpec
from loopwright.egress import EgressClient
from loopwright.service.assemble import assemble

MODEL = {
    "model": "openai:qwen2.5-coder-1.5b",
    "base_url": "http://127.0.0.1:8015/v1",
    "loop_done": False,  # a model of this size calls it in its first turn
}
INPUT, OUTPUT = Decimal("0.15"), Decimal("0.60")
"""USD per million tokens."""

TWELVE_WORDS = '''
def score(text):
    n = len(text.split())
    if n == 12:
        return 1.0, "It has exactly 12 words."
    change = f"{n - 12} words too long: write a shorter" if n > 12 else f"{12 - n} words too short: write a longer"
    return max(0.0, 1 - abs(n - 12) / 12), f"The sentence is {change} sentence."

def depth_of(sea: str) -> str:
    """Looks up how deep a sea is.

    Args:
        sea: the name of the sea
    """
    return {"baltic": "459 m"}.get(sea.lower().removesuffix(" sea"), "unknown")

def names_the_depth(text):
    return (1.0, "Right.") if "459" in text else (0.0, "The number is missing.")

def is_short(poem):
    return 1.0 if len(poem["lines"]) == 2 else 0.5, f"{len(poem['lines'])} lines"
'''


@pytest.fixture(autouse=True)
def _recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through a transport that recordings can stand in for; the one of egress dials by itself."""

    def transport(egress: EgressClient) -> httpx2.AsyncHTTPTransport:
        return httpx2.AsyncHTTPTransport()

    monkeypatch.setattr("loopwright.agents.clients.EgressTransport", transport)


async def run(folder: Path, **fields: Any) -> tuple[RunResult, list[RunEvent]]:
    (folder / "lw_twelve.py").write_text(TWELVE_WORDS)
    prices = {"openai:qwen2.5-coder-1.5b": {"input": str(INPUT), "output": str(OUTPUT)}}
    spec = LoopSpec.model_validate({"name": "recorded", "prices": prices, **fields})
    running = assemble(spec, folder=folder).start(spec.goal)
    events = [event async for event in running.events()]
    return await running, events


def check_money(result: RunResult, events: list[RunEvent], cap: str) -> None:
    """Every cent follows from the tokens that the server counted, and none was spent beyond the cap."""
    charges = [event.charge for event in events if isinstance(event, MoneySettled)]
    assert {charge.basis for charge in charges} == {"usage"}
    for charge in charges:
        assert charge.amount == (charge.tokens.input * INPUT + charge.tokens.output * OUTPUT) / 1_000_000
        assert charge.amount <= charge.reservation.amount
    tokens = result.cost.tokens
    assert result.cost.total == (tokens.input * INPUT + tokens.output * OUTPUT) / 1_000_000 <= Decimal(cap)
    assert result.cost.total == sum(i.cost_usd for i in result.iterations)
    assert result.cost.requests == len(charges)


def twelve_words(seed: int) -> dict[str, Any]:
    return {
        "goal": "Write one English sentence about the sea that has exactly 12 words.",
        "agent": {
            **MODEL,
            "instructions": "You are a poet. Answer with one sentence and nothing else.",
            "max_output_tokens": 60,
            "settings": {"temperature": 1.0, "seed": seed},
        },
        "evaluator": {"kind": "python", "function": "lw_twelve:score"},
        "stop": {"target_score": 1, "max_iterations": 8, "budget_usd": "0.05"},
        "history": {"recent": 0, "max_tokens": 1000},
    }


@pytest.mark.vcr
async def test_it_gets_better_by_its_feedback(tmp_path: Path) -> None:
    result, events = await run(tmp_path, **twelve_words(seed=6))
    check_money(result, events, "0.05")
    assert [i.score for i in result.iterations] == [0.25, 1.0]
    assert result.stop_reason == "target_reached"
    assert result.best
    assert len(result.best.text.split()) == 12  # which is all that this evaluator asks for; the text shows it
    assert result.cost.total == Decimal("0.0000843")  # 390 tokens in, 43 out
    assert result.sentence == "Reached the target 1 in 2 iterations for $0.0000843 (best score 1)."


@pytest.mark.vcr
async def test_the_best_is_kept_where_the_target_is_missed(tmp_path: Path) -> None:
    result, events = await run(tmp_path, **twelve_words(seed=7))
    check_money(result, events, "0.05")
    words = [len(i.text.split()) for i in result.iterations]
    assert [i.score for i in result.iterations] == [max(0, 1 - abs(n - 12) / 12) for n in words]
    assert words == [18, 18, 11, 19, 17, 18, 23, 11]
    assert [e.is_best for e in events if isinstance(e, IterationFinished)] == [n in (1, 3) for n in range(1, 9)]
    assert (result.stop_reason, len(result.iterations)) == ("max_iterations", 8)
    assert result.best
    assert (result.best.number, result.best.score) == (3, 1 - 1 / 12)  # the last is as good, and the earlier stays
    assert result.cost.total == Decimal("0.00039975")  # 1,969 tokens in, 174 out


@pytest.mark.vcr
async def test_it_follows_an_output_schema(tmp_path: Path) -> None:
    result, events = await run(
        tmp_path,
        goal="A poem of two short lines about the sea.",
        agent={
            **MODEL,
            "instructions": "You are a poet.",
            "max_output_tokens": 120,
            "settings": {"temperature": 0, "seed": 1},
            "output_schema": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "lines": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                },
                "required": ["title", "lines"],
                "additionalProperties": False,
            },
        },
        evaluator={"kind": "python", "function": "lw_twelve:is_short"},
        stop={"target_score": 1, "max_iterations": 3, "budget_usd": "0.05"},
        history={"recent": 0, "max_tokens": 1000},
    )
    check_money(result, events, "0.05")
    assert result.best
    assert result.best.candidate
    data = result.best.candidate.data
    sea = "The sea is vast and endless, a silent witness to the world's pulse."
    assert data == {"title": sea, "lines": [sea, sea]}  # not much of a poem, but as the schema has it
    assert (result.stop_reason, len(result.iterations), result.best.score) == ("target_reached", 1, 1.0)
    assert result.cost.total == Decimal("0.0000957")  # 342 tokens in, 74 out


@pytest.mark.vcr
async def test_a_rubric_is_judged_by_the_model(tmp_path: Path) -> None:
    result, events = await run(
        tmp_path,
        goal="Describe the sea in one sentence, without the word water.",
        agent={**MODEL, "max_output_tokens": 50, "settings": {"temperature": 0, "seed": 1}},
        evaluator={
            "kind": "judge",
            **{key: value for key, value in MODEL.items() if key != "loop_done"},
            "rubric": "10 for one vivid sentence without the word water; 0 if the word water is in it.",
            "scale": [0, 10],
            "max_output_tokens": 150,
            "settings": {"temperature": 0, "seed": 1},
        },
        stop={"max_iterations": 2, "budget_usd": "0.05"},
        history={"recent": 0, "max_tokens": 1000},
    )
    check_money(result, events, "0.05")
    assert result.cost.by_role.keys() == {"agent", "judge"}
    # The second try repeats itself and is cut off at its 50 tokens; the judge sees that, and the first stays the best.
    assert [i.score for i in result.iterations] == [8, 0]
    assert [e.is_best for e in events if isinstance(e, IterationFinished)] == [True, False]
    assert result.best
    assert result.best.text == "The vast expanse of ocean, a silent canvas of endless blue."
    assert result.best.feedback
    assert result.best.feedback.detail.startswith("The candidate's sentence is a vivid description of the sea")
    assert result.cost.by_role == {
        "agent": Decimal("0.00009735"),  # 153 + 236 tokens in, 15 + 50 out
        "judge": Decimal("0.00021195"),  # 405 + 440 tokens in, 72 + 70 out
    }
    assert not [e for e in events if isinstance(e, EvaluationRetried)]


@pytest.mark.vcr
async def test_it_calls_a_tool(tmp_path: Path) -> None:
    result, events = await run(
        tmp_path,
        goal="Say in one sentence how deep the Baltic Sea is. Look it up with the tool.",
        agent={
            **MODEL,
            "max_output_tokens": 80,
            "settings": {"temperature": 0, "seed": 1},
            "tools": [{"kind": "python", "function": "lw_twelve:depth_of"}],
        },
        evaluator={"kind": "python", "function": "lw_twelve:names_the_depth"},
        stop={"target_score": 1, "max_iterations": 2, "budget_usd": "0.05"},
        history={"recent": 0, "max_tokens": 1000},
    )
    check_money(result, events, "0.05")
    assert result.stop_reason == "target_reached"
    assert result.best
    assert [(c.name, c.result) for c in result.best.tool_calls] == [("depth_of", "459 m")]
    assert result.best.text == "The Baltic Sea is 459 meters deep."
    assert (len(result.iterations), result.cost.requests) == (1, 2)
    assert result.cost.total == Decimal("0.00013545")  # 342 + 417 tokens in, 24 + 12 out
