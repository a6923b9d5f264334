"""What the loop needs from the world. Rooms above implement these; the loop knows nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, Protocol

from pydantic import JsonValue

from .events import RunEvent, TextDelta
from .models import Cost, EvaluationRequest, Feedback, Prompt, Turn
from .spec import ModelChoice
from .wallet import Charge, Reservation, Role, Wallet


class Clock(Protocol):
    """Tells the time. It may stand still, but is expected not to be set back."""

    def now(self) -> datetime:
        """The time, with a zone."""
        ...


@dataclass(frozen=True, kw_only=True)
class Spender:
    """Who is about to spend: the part of a reservation that its owner knows."""

    role: Role
    attempt: int = 1
    iteration: int = 0


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One outside operation of a run: a model request, a tool call, an evaluation."""

    key: str
    """Names it within its run; the same when the iteration is played again after a crash."""
    attempt: int
    iteration: int


class RunStore(Protocol):
    """A run's record: its wallet, its finished outside operations and its events.

    An implementation that can't record raises `StoreUnavailable`; then nothing goes on.
    """

    async def wallet(self) -> Wallet:
        """The run's wallet as it is now, shared by all attempts."""
        ...

    async def reserve(
        self, spender: Spender, model: str, amount: Decimal, *, keep: Decimal = Decimal(0)
    ) -> Reservation:
        """Set `amount` USD aside in one atomic step, leaving at least `keep` free.

        Where it does not fit only because other requests are in flight, wait for them to settle.

        Raises:
            BudgetExceeded: it does not fit, and nothing in flight could change that.
        """
        ...

    async def settle(
        self, charges: Sequence[Charge], *, operation: Operation | None = None, result: JsonValue = None
    ) -> None:
        """Book what reserved requests came to; with `operation`, record its result in the same step.

        `result` is what was paid for; it goes into the event of the charges too.
        """
        ...

    async def cost(self, attempt: int | None = None, iteration: int | None = None) -> Cost:
        """What was spent so far: by the run, or by one iteration of an attempt."""
        ...

    async def dearest(self, role: Role) -> Decimal:
        """The largest amount in USD that was reserved so far for one request of this role; 0 before the first."""
        ...

    async def find(self, operation: str) -> JsonValue | None:
        """The recorded result of an operation, by its key, while its iteration isn't finished; else `None`."""
        ...

    async def append(self, event: RunEvent) -> RunEvent:
        """Record an event and send it to viewers; returns it with its sequence number."""
        ...


class Guard(Protocol):
    """The guardrails of a run. Each refusal is recorded as an event; what can't be judged is refused."""

    async def judge(self, what: Literal["goal", "message"], text: str) -> None:
        """Judge what the run is asked to do, before anything else of it: its goal, or a message in a conversation.

        Raises:
            GuardrailRefused: which guardrail refuses, and why.
            StaleEpoch, StoreUnavailable: the run goes on elsewhere, or can't be recorded.
        """
        ...

    async def call(self, operation: Operation, tool: str, arguments: JsonValue, *, keep: Decimal) -> str | None:
        """Judge a tool call that is about to be made; returns which guardrail refuses and why, or `None`.

        A refusal is recorded as the operation's result. `keep` is what checks must leave free, in USD.

        Raises:
            StaleEpoch, StoreUnavailable: the run goes on elsewhere, or can't be recorded.
        """
        ...


class Viewers(Protocol):
    """Who watches runs as they go."""

    def watched(self, run_id: str) -> bool:
        """Whether somebody watches a run now."""
        ...

    def say(self, delta: TextDelta) -> None:
        """Show a piece of an agent's text to those who watch its run; it is kept nowhere. Returns at once."""
        ...


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    """What a turn knows of its run."""

    run_id: str
    attempt: int
    number: int
    store: RunStore
    clock: Clock
    keep: Decimal = Decimal(0)
    """USD that the turn must leave free: enough to score its candidate."""
    viewers: Viewers | None = None
    """Who gets the agent's text as it comes."""
    guard: Guard | None = None
    """Judges tool calls before they are made."""


class AgentPort(Protocol):
    """Takes one agent turn."""

    async def take_turn(self, prompt: Prompt, context: TurnContext) -> Turn:
        """Ask the agent for a candidate.

        Raises:
            AgentFailed: the turn failed; what it cost is booked.
            BudgetExceeded: a request of the turn did not fit into the wallet.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class EvaluatorContext:
    """What an evaluation may use."""

    store: RunStore
    clock: Clock
    ask: AskModel | None = None
    """Asks a model on the run's wallet; the judge needs it."""
    spender: Spender = Spender(role="evaluator")


class Evaluator(Protocol):
    """Scores a candidate."""

    @property
    def name(self) -> str:
        """What people call it, e.g. `http score.example.com`."""
        ...

    @property
    def max_cost_usd(self) -> Decimal:
        """The most that one call may report as its own cost: reserved before the call."""
        ...

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        """Score one candidate, once; retries are the caller's.

        Raises:
            EvaluatorFailed: there is no valid score.
            BudgetExceeded: the evaluation does not fit into the wallet.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LoopOrder:
    """What an agent wants to have started."""

    loop: str
    """Its name or id."""
    goal: str | None = None
    budget_usd: Decimal | None = None
    max_iterations: int | None = None


class LoopDesk(Protocol):
    """Where an agent's builtins have loops started, on behalf of whoever owns the agent's run."""

    async def list_loops(self) -> dict[str, JsonValue]:
        """The loops that may be started, and what they can cost."""
        ...

    async def start_loop(
        self, order: LoopOrder, payer: RunStore, operation: Operation, *, keep: Decimal
    ) -> dict[str, JsonValue]:
        """Start a run on the payer's wallet; for the same operation only once.

        Raises:
            Refused, InvalidInput: it may not be started, and why.
        """
        ...

    async def check_loop(self, run_id: str, payer: RunStore, *, wait_seconds: float) -> dict[str, JsonValue]:
        """How a run stands that the payer has started, now or when it is over.

        Raises:
            NotFound: the payer has started no such run.
        """
        ...


class AskModel(Protocol):
    """Asks a model one question for an answer in a JSON schema, metered by the run's wallet."""

    async def __call__(
        self,
        *,
        model: ModelChoice,
        instructions: str,
        question: str,
        schema: dict[str, JsonValue],
        spender: Spender,
        purpose: str,
    ) -> dict[str, JsonValue]:
        """The answer, validated against `schema`.

        `purpose` tells apart the questions of one iteration in the run's journal; it is the same when the iteration is
        played again after a crash.

        Raises:
            EvaluatorFailed: the model gave no valid answer.
            BudgetExceeded: the question does not fit into the wallet.
        """
        ...
