"""The loops that are run and killed: each a loop file for the world outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .outside import MODEL, PRICES

CAP = "0.5"

WATCHED = "Somebody watches."
"""Stands in the goal of a run whose agent's text is told as it comes."""


def _loop(url: str, tag: str, **more: Any) -> dict[str, Any]:
    agent = {"model": MODEL, "base_url": f"{url}/v1", "max_output_tokens": 200, **more.pop("agent", {})}
    return {
        "name": "killed",
        "goal": f"{tag} Say something good. {more.pop('say', '')}",
        "agent": agent,
        "evaluator": {"kind": "http", "url": f"{url}/score"},
        "stop": {"max_iterations": 3, "budget_usd": CAP},
        "prices": {MODEL: PRICES},
        **more,
    }


def _judge(url: str) -> dict[str, Any]:
    rubric = {"kind": "judge", "model": MODEL, "base_url": f"{url}/v1", "rubric": "Good is good."}
    return {**rubric, "max_output_tokens": 100}


def plain(url: str, tag: str) -> dict[str, Any]:
    """Text and a score; the evaluator fails now and then."""
    return _loop(
        url, tag, evaluator={"kind": "http", "url": f"{url}/flaky"}, stop={"max_iterations": 5, "budget_usd": CAP}
    )


def tools(url: str, tag: str) -> dict[str, Any]:
    """Two tool calls side by side in each turn: one over HTTP, one another agent."""
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    lookup = {"kind": "http", "name": "lookup", "description": "Looks up.", "url": f"{url}/lookup"}
    helper = {"model": MODEL, "base_url": f"{url}/v1", "max_output_tokens": 100}
    return _loop(
        url,
        tag,
        agent={
            "tools": [
                {**lookup, "parameters": parameters},
                {"kind": "agent", "name": "helper", "description": "Helps.", "agent": helper},
            ]
        },
        stop={"max_iterations": 2, "budget_usd": CAP},
    )


def judged(url: str, tag: str) -> dict[str, Any]:
    """A judge, and a holdout that reports what it costs."""
    paid = {"kind": "http", "url": f"{url}/paid", "max_cost_usd": "0.001"}
    return _loop(url, tag, evaluator=_judge(url), holdout=paid)


def side_by_side(url: str, tag: str) -> dict[str, Any]:
    """Two attempts on one wallet."""
    return _loop(url, tag, attempts=2)


def combined(url: str, tag: str) -> dict[str, Any]:
    """A paid evaluator and a judge at once; the lowest score is the best; the whole history is shown."""
    paid = {"kind": "http", "url": f"{url}/paid", "max_cost_usd": "0.001"}
    parts = [{"name": "paid", "evaluator": paid}, {"name": "judge", "weight": 2, "evaluator": _judge(url)}]
    return _loop(
        url,
        tag,
        evaluator={"kind": "combined", "parts": parts},
        direction="minimize",
        history={"policy": "full"},
        stop={"max_iterations": 2, "budget_usd": CAP},
    )


def converging(url: str, tag: str) -> dict[str, Any]:
    """The agent says in its third iteration that it is done."""
    return _loop(url, tag, say="You may converge.", stop={"max_iterations": 9, "budget_usd": CAP})


def watched(url: str, tag: str) -> dict[str, Any]:
    """Somebody watches: the agent's requests are streamed, some to tools and some to text."""
    return {**tools(url, tag), "goal": f"{tag} {WATCHED}"}


KINDS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    each.__name__: each for each in (plain, tools, judged, side_by_side, combined, converging, watched)
}

IN_FLIGHT = {"side_by_side": 2}
"""How many paid model requests of a run can be in flight at once, where it isn't one."""
