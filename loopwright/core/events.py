"""What happens in a run, as a discriminated union. The journal, the live view and the API all speak these."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue, TypeAdapter

from .models import Cost, Direction, Frozen, Iteration
from .money import Usd
from .stop import StopReason
from .text import Text
from .wallet import Charge, Reservation


class WalletView(Frozen):
    """The wallet as shown to people, in USD."""

    cap: Usd | None
    spent: Usd
    reserved: Usd


UNSTAMPED = datetime(1, 1, 1, tzinfo=UTC)


class Event(Frozen):
    """Base of all events. The store that records an event stamps it."""

    seq: int = 0
    """Position in the run's events, from 1; 0 for events that are not kept (text deltas)."""
    at: AwareDatetime = UNSTAMPED
    """When it was recorded."""
    run_id: str = ""


class ForkedFrom(Frozen):
    """Where the first iterations of a forked run come from."""

    run_id: str
    iteration: int
    """How many of that run's iterations it begins from, in the order in which they finished."""


class RunStarted(Event):
    type: Literal["run_started"] = "run_started"
    loop: str
    goal: Text
    stop: dict[str, JsonValue]
    direction: Direction = "maximize"
    attempts: int = 1
    model: str = ""
    evaluator: str | None = None
    version: str = ""
    forked_from: ForkedFrom | None = None


class RunResumed(Event):
    """A worker goes on with a run that another one left, or that was given more."""

    type: Literal["run_resumed"] = "run_resumed"
    why: Literal["recovered", "extended"]


class IterationStarted(Event):
    type: Literal["iteration_started"] = "iteration_started"
    attempt: int
    number: int


class MoneyReserved(Event):
    """A paid request is about to be sent; if nothing follows, it counts as spent in full."""

    type: Literal["money_reserved"] = "money_reserved"
    reservation: Reservation
    wallet: WalletView


class MoneySettled(Event):
    """A paid request is over. `response` is what was paid for, so that a crash after this line loses nothing."""

    type: Literal["money_settled"] = "money_settled"
    charge: Charge
    wallet: WalletView
    response: JsonValue = None


class BoundOverrun(Event):
    """A request cost more than was reserved for it: a bug in the bound, booked in full."""

    type: Literal["bound_overrun"] = "bound_overrun"
    charge: Charge
    by_usd: Usd


class ToolCalled(Event):
    type: Literal["tool_called"] = "tool_called"
    attempt: int
    number: int
    name: Text
    arguments: Text
    result: Text = ""


class GuardrailRefusal(Event):
    """A guardrail refused what the run is asked to do, so that it ends, or a tool call, which was not made."""

    type: Literal["guardrail_refused"] = "guardrail_refused"
    attempt: int
    number: int
    """The iteration; 0 before the first one."""
    rule: Text
    """The guardrail's name."""
    rule_id: str
    kind: str
    what: Literal["goal", "message", "tool call"]
    reason: Text
    sentence: Text
    """All of it in words, as the model is told."""
    tool: Text | None = None
    arguments: Text = ""


class TextDelta(Event):
    """A piece of the agent's text as it comes; sent to viewers and not kept."""

    type: Literal["text_delta"] = "text_delta"
    attempt: int
    number: int
    text: Text


class CandidateProduced(Event):
    """The agent's turn is over; the candidate is about to be scored."""

    type: Literal["candidate_produced"] = "candidate_produced"
    attempt: int
    number: int
    text: Text


class EvaluationRetried(Event):
    type: Literal["evaluation_retried"] = "evaluation_retried"
    attempt: int
    number: int
    why: Text


class IterationFinished(Event):
    type: Literal["iteration_finished"] = "iteration_finished"
    iteration: Iteration
    is_best: bool
    best_score: float | None
    """The best score of the attempt so far."""
    elapsed_seconds: float = 0.0
    """Seconds from the run's start to the end of the iteration."""
    wallet: WalletView


class RunFinished(Event):
    type: Literal["run_finished"] = "run_finished"
    stop_reason: StopReason
    sentence: Text
    best: Iteration | None
    cost: Cost
    iterations: int
    """Finished iterations of all attempts."""
    seconds: float
    error: Text | None = None


RunEvent = Annotated[
    RunStarted
    | RunResumed
    | IterationStarted
    | MoneyReserved
    | MoneySettled
    | BoundOverrun
    | ToolCalled
    | GuardrailRefusal
    | TextDelta
    | CandidateProduced
    | EvaluationRetried
    | IterationFinished
    | RunFinished,
    Field(discriminator="type"),
]
"""Any event of a run."""

EVENT: TypeAdapter[RunEvent] = TypeAdapter(RunEvent)
"""Reads and writes events: `EVENT.validate_json(line)`, `EVENT.dump_json(event)`."""
