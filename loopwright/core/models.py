"""The nouns of a run: candidate, feedback, iteration, prompt, turn, result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from .money import Usd
from .text import Text
from .wallet import Role, Tokens

Direction = Literal["maximize", "minimize"]

StopReason = Literal[
    "cancelled", "error", "target_reached", "converged", "budget", "max_iterations", "time", "no_improvement"
]
"""Why a run is over."""


class Frozen(BaseModel):
    """Base of the immutable nouns: no unknown fields, no changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def finite_score(value: object) -> float:
    """Read a score: a finite JSON number and nothing that merely looks like one.

    `true`, `"0.9"`, `NaN`, `Infinity`, `None` and integers beyond the float range are refused; -0.0 is 0.0.

    Raises:
        ValueError: says what was found instead of a score.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"score must be a number, not {_describe(value)}")
    try:
        score = float(value)
    except OverflowError:
        raise ValueError("score is too large to be a number") from None
    if not math.isfinite(score):
        raise ValueError(f"score must be finite, not {score}")
    return score + 0.0  # -0.0 + 0.0 is 0.0


def _describe(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:60] + '…'}"


class Feedback(Frozen):
    """What an evaluator says about a candidate."""

    score: Annotated[float, BeforeValidator(finite_score)]
    detail: Text = ""
    """What the agent is told beside the score; whole here, shortened in the prompt."""
    cost_usd: Usd | None = None
    """What the evaluation cost, where the evaluator says so."""
    parts: tuple[PartScore, ...] = ()
    """Scores of the parts of a combined evaluator."""


class PartScore(Frozen):
    """One part's share in a combined score."""

    name: str
    weight: float
    score: float


class Candidate(Frozen):
    """What the agent produced in a turn."""

    text: Text
    """The text; for a loop with an output schema, the JSON as text."""
    data: JsonValue = None
    """The parsed JSON where the loop has an output schema."""


class ToolCall(Frozen):
    """A tool call that the agent made in a turn, for the transcript."""

    name: Text
    arguments: Text
    """As the model wrote them, JSON text."""
    result: Text = ""


class Iteration(Frozen):
    """One agent turn, its candidate and its feedback. A failure has no score: it is never recorded as 0."""

    number: int
    """1-based within its attempt."""
    attempt: int = 1
    candidate: Candidate | None = None
    feedback: Feedback | None = None
    holdout: Feedback | None = None
    holdout_failure: Text | None = None
    """Why there is no holdout score though one was asked for; this doesn't fail the iteration."""
    failure: Text | None = None
    """Why there is no candidate or no score."""
    interrupted: StopReason | None = None
    """Why the run could not go on after this iteration: it was cut short, or its error would come again."""
    done_reason: Text | None = None
    """What the agent gave as its reason when it called `loop_done`."""
    tool_calls: tuple[ToolCall, ...] = ()
    cost_usd: Usd = Decimal(0)
    """What this iteration spent, all roles."""
    tokens: Tokens = Tokens()
    started_at: datetime
    seconds: float = 0.0

    @property
    def score(self) -> float | None:
        """The visible score, `None` where there is none."""
        return self.feedback.score if self.feedback else None

    @property
    def text(self) -> str:
        """The candidate's text, empty where there is none."""
        return self.candidate.text if self.candidate else ""


class Message(Frozen):
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    text: str


class Prompt(Frozen):
    """What the agent is shown this iteration: the last message is the user's."""

    messages: tuple[Message, ...]


class Exchange(Frozen):
    """A message of a conversation, and what was answered."""

    message: Text
    answer: Text | None
    """`None` where it was not answered."""


class StartedRun(Frozen):
    """A run that the agent of a conversation has started."""

    run_id: str
    loop: Text


class Conversation(Frozen):
    """What an agent is shown in place of a goal when it answers a message."""

    message: Text
    """The message to answer."""
    earlier: tuple[Exchange, ...] = ()
    """What was said before, oldest first; perhaps only the last part of it."""
    left_out: int = 0
    """How many messages came before those."""
    runs: tuple[StartedRun, ...] = ()
    """The last runs that were started, so that a later message finds them."""


class Turn(Frozen):
    """What came of one agent turn."""

    candidate: Candidate
    done_reason: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class EvaluationRequest(Frozen):
    """What an evaluator is asked: one candidate of one iteration."""

    goal: str
    candidate: Candidate
    run_id: str
    attempt: int
    iteration: int
    holdout: bool = False

    @property
    def idempotency_key(self) -> str:
        """The same for every retry of this evaluation, different for any other."""
        return f"{self.run_id}/{self.attempt}/{self.iteration}" + ("/holdout" if self.holdout else "")


class Cost(Frozen):
    """What a run cost in USD."""

    total: Usd = Decimal(0)
    by_role: Mapping[Role, Usd] = Field(default_factory=dict[Role, Decimal])
    tokens: Tokens = Tokens()
    requests: int = 0
    """Model requests that were sent."""
