"""What somebody who isn't a person at the wheel may ask of a loop: less than it allows, never more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.errors import InvalidInput, Problem
from ..core.money import show_usd
from ..core.spec import LoopSpec
from ..core.stop import budget_of, iterations_of, seconds_of

if TYPE_CHECKING:
    from .start import Wanted

WAY_OUT = "ask for at most that, or have its owner raise it in the loop"


def refuse_above_caps(spec: LoopSpec, wanted: Wanted) -> None:
    """Refuse limits above those that the loop itself has. A loop without a limit takes any.

    Raises:
        InvalidInput: names each.
    """
    if found := list(_above(spec, wanted)):
        raise InvalidInput(*found)


def _above(spec: LoopSpec, wanted: Wanted) -> Iterator[Problem]:
    stop = spec.stop_condition
    budget, seconds, iterations = budget_of(stop), seconds_of(stop), iterations_of(stop)
    if budget is not None and wanted.budget_usd is not None and wanted.budget_usd > budget:
        yield Problem(field="budget_usd", message=f"is above the loop's budget of {show_usd(budget)}; {WAY_OUT}")
    if iterations is not None and wanted.max_iterations is not None and wanted.max_iterations > iterations:
        yield Problem(field="max_iterations", message=f"is above the loop's limit of {iterations}; {WAY_OUT}")
    if seconds is not None and wanted.max_seconds is not None and wanted.max_seconds > seconds:
        yield Problem(field="max_seconds", message=f"is above the loop's limit of {seconds:g}; {WAY_OUT}")
    if wanted.attempts is not None and wanted.attempts > spec.attempts:
        yield Problem(field="attempts", message=f"is above the loop's {spec.attempts}; {WAY_OUT}")
    if wanted.model is not None and wanted.model != spec.agent.model:
        yield Problem(field="model", message=f"the loop's model is {spec.agent.model}; leave `model` out")
