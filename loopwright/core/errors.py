"""The errors of the product. An error's docstring is its default message."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal


class LoopwrightError(Exception):
    """Something in Loopwright went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with an input: where it is, what it is and the way out."""

    field: str
    """Dotted path of the field, e.g. `agent.model`; empty for the document as a whole."""
    message: str
    """What is wrong, and what to do instead, in one sentence."""
    line: int | None = None
    """1-based line in the loop file, where it is known."""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.field}: {self.message}" if self.field else f"{where}{self.message}"


class InvalidInput(LoopwrightError):
    """The input is refused; nothing was sent and nothing was spent."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems) or None)


@dataclass
class Problems:
    """Collects what is wrong with an input, so that all of it is reported at once."""

    found: list[Problem] = field(default_factory=list[Problem])

    @contextmanager
    def collecting(self) -> Generator[None]:
        """Keep the problems of an `InvalidInput` that is raised inside, and go on."""
        try:
            yield
        except InvalidInput as error:
            self.found += error.problems

    def refuse(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            InvalidInput: everything that was collected.
        """
        if self.found:
            raise InvalidInput(*self.found)


class UnknownPrice(LoopwrightError):
    """The model has no known price, so its requests can't be checked against the budget."""

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"no price is known for the model {model!r}, so its requests can't be checked against the budget; "
            f"declare it under `prices:` as {{{model!r}: {{input: …, output: …}}}} in USD per million tokens "
            "(0 for a model that costs nothing)"
        )


class BudgetExceeded(LoopwrightError):
    """The request does not fit into what is left of the budget; it was not sent."""

    def __init__(
        self, *, needed: Decimal, available: Decimal, keep: Decimal = Decimal(0), what: str = "one request"
    ) -> None:
        self.needed = needed
        """What it may cost, in USD."""
        self.available = available
        """What it may take, in USD: what is free but for what is kept."""
        free = max(available + keep, Decimal(0))
        scoring = f", ${_plain(keep)} more is kept to score what comes of it," if keep else ""
        super().__init__(
            f"{what} may cost up to ${_plain(needed)}{scoring} and ${_plain(free)} of the budget is free; "
            "it was not sent"
        )


def _plain(amount: Decimal) -> str:
    """Digits without trailing zeros: here each digit counts, since people raise a budget by what they read."""
    return f"{amount.normalize():f}"


class AgentFailed(LoopwrightError):
    """The agent's turn failed."""


class EvaluatorFailed(LoopwrightError):
    """The evaluator gave no valid score."""

    def __init__(self, message: str | None = None, *, transient: bool = False, cost_usd: Decimal | None = None) -> None:
        self.transient = transient
        """Whether asking again with the same idempotency key may help."""
        self.cost_usd = cost_usd
        """What the failed call cost in USD, where the evaluator said so."""
        super().__init__(message)


class EgressRefused(LoopwrightError):
    """The address is not one that this process may reach."""


class UnmeteredRequests(LoopwrightError):
    """Model requests were made outside the run's wallet."""


class StoreUnavailable(LoopwrightError):
    """What happened can't be recorded, so nothing may go on."""


class DatabaseAway(StoreUnavailable):
    """The database can't be reached at the moment."""


class NotReady(LoopwrightError):
    """The service answers, and its engine is not up yet: runs that are started now begin in a moment."""


class SignInUnavailable(LoopwrightError):
    """The sign-in service can't be reached at the moment; try again in a few seconds."""


class StaleEpoch(LoopwrightError):
    """Another worker has taken over this run, so this one may not write to it any more."""


# --- Requests that are refused; `api/errors.py` maps each to a status ---


class Refused(LoopwrightError):
    """The request is refused as it stands."""


class NotSignedIn(Refused):
    """Nobody is signed in: send `Authorization: Bearer <token>`, or open the address that `loopwright serve` prints."""


class NotAllowed(Refused):
    """You may not do this."""


class GuardrailRefused(NotAllowed):
    """A guardrail of this workspace refuses this."""


class NotMember(NotAllowed):
    """You are not a member of this workspace: ask one of its admins to add you."""


class NotFound(Refused):
    """There is nothing with this id that you may see."""


class Conflict(Refused):
    """This doesn't fit the state that things are in."""


class TooLarge(Refused):
    """This is larger than what is taken."""


class TooMany(Refused):
    """More come than are taken; try again a little later."""

    def __init__(self, message: str | None = None, *, retry_seconds: float = 1.0) -> None:
        self.retry_seconds = retry_seconds
        """In how many seconds there is room again."""
        super().__init__(message)


class VersionMissing(Refused):
    """Send `If-Match` with the `ETag` of the version that you have read, so that nobody's change is overwritten."""


class VersionStale(Refused):
    """Somebody changed this meanwhile: read it again and repeat your change on the newer version."""
