"""What it takes to build an evaluator from a loop file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.ports import Evaluator
from ..core.spec import EvaluatorSpec
from ..egress import EgressClient


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where an evaluator is built: what it may use and where it stands in the loop file."""

    egress: EgressClient
    """Carries the requests of `http` evaluators; closed by its owner."""
    folder: Path
    """The loop file's folder: where commands run and Python functions are found."""
    where: str = "evaluator"
    """Dotted path of the evaluator in the loop file, for error messages."""
    build: Callable[[EvaluatorSpec, Surroundings], Evaluator]
    """Builds the parts of an evaluator made of others."""

    def at(self, where: str) -> Surroundings:
        """The same surroundings for a part at `where`, a path below this one."""
        return replace(self, where=f"{self.where}.{where}")


Builder = Callable[[Any, Surroundings], Evaluator]
"""Builds one kind of evaluator from its own spec; raises `InvalidInput` where it can't work."""
