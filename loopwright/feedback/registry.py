"""The kinds of evaluators. A new kind is one file with a `build`, one line here and its spec in `core/spec.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.ports import Evaluator
from ..core.spec import EvaluatorSpec
from ..egress import EgressClient
from . import combined, command, http, judge, python
from .building import Builder, Surroundings

BUILDERS: Mapping[str, Builder] = {
    "http": http.build,
    "judge": judge.build,
    "command": command.build,
    "python": python.build,
    "combined": combined.build,
}


def build_evaluator(spec: EvaluatorSpec, *, egress: EgressClient, folder: Path, where: str = "evaluator") -> Evaluator:
    """Build the evaluator that `spec` describes.

    `folder` is the loop file's: commands run there, and `python` functions are found there. `where` is the
    evaluator's place in the loop file (`evaluator`, `holdout`), for messages.

    Raises:
        InvalidInput: it can't work: a URL of a wrong kind, a function that can't be imported. Nothing was sent.
    """
    return _build(spec, Surroundings(egress=egress, folder=folder, where=where, build=_build))


def _build(spec: EvaluatorSpec, surroundings: Surroundings) -> Evaluator:
    return BUILDERS[spec.kind](spec, surroundings)
