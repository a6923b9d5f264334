"""Runs an agent in a feedback loop on a budget that can't be exceeded, and gives back the best candidate.

loop = Loop(agent=agent, evaluate=score, stop=Target(0.95) | MaxIterations(20) | Budget("0.50"))
result = await loop.run("Write a 12-word sentence about the sea")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agents.wallet_model import Metered
    from .core.errors import InvalidInput, LoopwrightError, UnknownPrice
    from .core.models import Candidate, Feedback, Iteration
    from .core.result import RunResult
    from .core.spec import Price
    from .core.stop import Budget, MaxIterations, MaxSeconds, NoImprovement, Target
    from .runner.library import Loop, Run

_HOMES = {
    "Budget": "core.stop",
    "Candidate": "core.models",
    "Feedback": "core.models",
    "InvalidInput": "core.errors",
    "Iteration": "core.models",
    "Loop": "runner.library",
    "LoopwrightError": "core.errors",
    "MaxIterations": "core.stop",
    "MaxSeconds": "core.stop",
    "Metered": "agents.wallet_model",
    "NoImprovement": "core.stop",
    "Price": "core.spec",
    "Run": "runner.library",
    "RunResult": "core.result",
    "Target": "core.stop",
    "UnknownPrice": "core.errors",
}

__all__ = [
    "Budget",
    "Candidate",
    "Feedback",
    "InvalidInput",
    "Iteration",
    "Loop",
    "LoopwrightError",
    "MaxIterations",
    "MaxSeconds",
    "Metered",
    "NoImprovement",
    "Price",
    "Run",
    "RunResult",
    "Target",
    "UnknownPrice",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import loopwright` costs next to nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
