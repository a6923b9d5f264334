"""The boundary to everybody's code: models, providers, tools. Each failure becomes one of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from pydantic_ai.exceptions import UserError

from ..core.errors import BudgetExceeded, InvalidInput, LoopwrightError, Problem, StaleEpoch, StoreUnavailable
from ..egress import named_values, without_secrets

E = TypeVar("E", bound=Exception)

TELLING = (StoreUnavailable, StaleEpoch, BudgetExceeded)
"""What says most about the run."""

MOST_TEXT = 2000
"""How many characters of somebody else's error are kept."""


def our_error(error: Exception, otherwise: Callable[[str], E]) -> LoopwrightError | E:
    """The error of ours inside an error of somebody else's; `otherwise` makes one of its text.

    What says most about the run goes first: that it can't be recorded, that its budget is used up.
    """
    inside = [each for each in _chain(error, hidden=False) if isinstance(each, LoopwrightError)]
    # A library that raises again what a tool raised tends to hide where that came from.
    hidden = [each for each in _chain(error, hidden=True) if isinstance(each, TELLING)]
    if inside or hidden:
        return min((*inside, *hidden), key=_rank)
    if isinstance(error, UserError):  # whoever built the agent made a mistake: the next turn would fail alike
        return InvalidInput(Problem(field="agent", message=_fit(error.message)))
    return otherwise(_fit(_text(error)))


_KEY_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD)(?:$|_)", re.IGNORECASE)
"""What the variables are called that hold API keys: `OPENAI_API_KEY`, `HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`, …"""
_key_names = set[str]()


def hide_key(name: str) -> None:
    """Keep the value of an environment variable out of failures' texts, whatever it is called: it holds an API key."""
    _key_names.add(name)


def without_keys(text: str) -> str:
    """Somebody else's text without API keys, which providers like to quote."""
    return without_secrets(text, {*_key_names, *filter(_KEY_NAME.search, named_values())})


def _fit(text: str) -> str:
    return _shortened(without_keys(text))


def _rank(error: LoopwrightError) -> int:
    return 0 if isinstance(error, StoreUnavailable | StaleEpoch) else 1 if isinstance(error, BudgetExceeded) else 2


def _text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return f"{error.message}: {'; '.join(map(_text, inner))}"
    return f"{type(error).__name__}: {error}"


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _chain(error: BaseException, *, hidden: bool) -> Iterator[BaseException]:
    """An error, what it groups and what it came from, each once; with `hidden`, also what `from None` put away."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if each.__cause__ is not None:
            waiting.append(each.__cause__)
        elif each.__context__ is not None and (hidden or not each.__suppress_context__):
            waiting.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", each).exceptions)
