"""The loop file: what a person writes to bind an agent, a goal, an evaluator and stop conditions.

The descriptions of these fields are the published JSON schema, so editors show them.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from .described import Described
from .errors import InvalidInput
from .models import Direction
from .money import Usd
from .stop import Stop, parse_stop

ENV_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}` in a header stands for the environment variable NAME."""


class Spec(Described, BaseModel):
    """Base of everything in a loop file: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelChoice(Spec):
    """Which model to ask, and how."""

    model: str
    """A pydantic-ai model string such as `openai:gpt-4o-mini` or `anthropic:claude-sonnet-4-5`."""
    max_output_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = 4096
    """Most tokens one model request may produce; the worst case that is reserved counts all of them."""
    settings: dict[str, JsonValue] = {}
    """More pydantic-ai model settings: temperature, top_p, seed, thinking, timeout, …"""
    base_url: str | None = None
    """Address of an OpenAI-compatible server to use instead of the provider's own."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key, where it is not the provider's usual one."""


class HttpTool(Spec):
    """A tool that is one HTTP request."""

    kind: Literal["http"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    """What the model calls it."""
    description: str
    """What it does and when to use it; the model reads this."""
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    url: str
    """Where the request goes; `{argument}` in the path is replaced by that argument."""
    headers: dict[str, str] = {}
    """Sent with the request; `${NAME}` takes the environment variable NAME."""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {}}
    """JSON schema of the arguments. They are sent as the query (GET, DELETE) or as a JSON body."""
    timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 30.0


class McpTool(Spec):
    """The tools of an MCP server."""

    kind: Literal["mcp"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    """Identifies the server."""
    url: str | None = None
    """Address of a streamable HTTP server. Give this or `command`."""
    command: list[str] | None = None
    """Command line of a stdio server."""
    headers: dict[str, str] = {}
    """Sent to an HTTP server; `${NAME}` takes the environment variable NAME."""
    allow: list[str] | None = None
    """Names of the tools that the agent may use; all of them if absent."""


class PythonTool(Spec):
    """A Python function as a tool. Its signature and docstring describe it to the model."""

    kind: Literal["python"]
    function: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
    """`module:function`."""


class AgentTool(Spec):
    """Another agent that this one can ask; it spends from the same wallet."""

    kind: Literal["agent"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    """What the model calls it."""
    description: str
    """What to ask it; the model reads this."""
    agent: AgentSpec


ToolSpec = Annotated[HttpTool | McpTool | PythonTool | AgentTool, Field(discriminator="kind")]


class AgentSpec(ModelChoice):
    """Who does the work."""

    model: str
    """A pydantic-ai model string such as `openai:gpt-4o-mini` or `anthropic:claude-sonnet-4-5`; `practice` is the
    built-in deterministic search (not an LLM)."""
    fallback_models: list[str] = []
    """Models to try in this order when the one before fails."""
    instructions: str = ""
    """The system prompt."""
    tools: list[ToolSpec] = []
    """What the agent may use beside the builtin `loop_done`."""
    output_schema: dict[str, JsonValue] | None = None
    """JSON schema (an object) that the candidate must follow; without it the candidate is text."""
    max_requests: Annotated[int, Field(ge=1, le=1000)] = 20
    """Most model requests in one turn, so that a tool loop ends."""
    loop_done: bool = True
    """Whether the agent may end the run by calling the builtin `loop_done`. Small models tend to call it at once: say
    `false` for them."""


class HttpEvaluator(Spec):
    """POSTs the candidate to your endpoint, which answers `{"score": number, "detail": string}`."""

    kind: Literal["http"]
    url: str
    """Address of the endpoint."""
    headers: dict[str, str] = {}
    """Sent with the request; `${NAME}` takes the environment variable NAME."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    max_cost_usd: Usd = Decimal(0)
    """The most one evaluation may report as `cost_usd`: reserved before each call."""
    signing_secret_env: str | None = None
    """Name of the environment variable with a Standard Webhooks secret (`whsec_…`) to sign requests with."""


class JudgeEvaluator(ModelChoice):
    """A model that scores the candidate by a rubric, paid from the run's wallet."""

    kind: Literal["judge"]
    rubric: str
    """What a good candidate is; what earns and what loses points."""
    scale: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score."""
    max_output_tokens: Annotated[int, Field(ge=64, le=1_000_000)] = 1024
    """Most tokens that one judgement may take."""


class CommandEvaluator(Spec):
    """Runs a command with the candidate on stdin and in the file that LOOPWRIGHT_CANDIDATE_FILE names."""

    kind: Literal["command"]
    run: Annotated[list[str], Field(min_length=1)]
    """The command line, run in the loop file's folder without a shell."""
    score_from: Literal["last_line", "exit_code"] = "last_line"
    """`last_line`: the last line of stdout is the JSON `{score, detail}`. `exit_code`: 0 scores 1.0, any other 0.0,
    and the output is the detail."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
    """After this the whole process group is killed."""
    max_output_bytes: Annotated[int, Field(ge=1024)] = 1_000_000
    """More output than this is an evaluator failure."""
    env: list[str] = []
    """Names of environment variables that the command gets beside PATH, HOME and the locale."""


class PythonEvaluator(Spec):
    """Calls a Python function, sync or async: `score(candidate: str) -> number | (number, detail) | dict`."""

    kind: Literal["python"]
    function: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
    """`module:function`; the loop file's folder is importable."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
    max_cost_usd: Usd = Decimal(0)
    """The most one evaluation may report as `cost_usd`: reserved before each call."""


class WeightedPart(Spec):
    """One evaluator in a combination."""

    name: str
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    evaluator: EvaluatorSpec


class CombinedEvaluator(Spec):
    """Several evaluators; the score is the weighted mean of theirs."""

    kind: Literal["combined"]
    parts: Annotated[list[WeightedPart], Field(min_length=1)]


EvaluatorSpec = Annotated[
    HttpEvaluator | JudgeEvaluator | CommandEvaluator | PythonEvaluator | CombinedEvaluator,
    Field(discriminator="kind"),
]


class HistorySpec(Spec):
    """What the agent is shown of earlier iterations."""

    policy: Literal["best", "full"] = "best"
    """`best`: goal, best candidate with its feedback, the last few attempts, one line for earlier ones; stays the
    same size however long the run. `full`: everything, appended; cache-friendly, for short runs."""
    recent: Annotated[int, Field(ge=0, le=20)] = 3
    """How many of the last attempts `best` shows in full."""
    max_tokens: Annotated[int, Field(ge=500)] = 12_000
    """Limit of the prompt that `best` builds, at an estimate of four bytes a token."""


class Price(Spec):
    """USD per million tokens."""

    input: Usd
    output: Usd
    cached_input: Usd | None = None
    """Tokens read from the provider's cache; the input price if absent."""
    cache_write: Usd | None = None
    """Tokens written to the provider's cache; the input price if absent."""


class LoopSpec(Spec):
    """A feedback loop: an agent, a goal, an evaluator and stop conditions under a name."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """What you call the loop."""
    goal: Annotated[str, Field(min_length=1)]
    """What the agent should achieve."""
    agent: AgentSpec
    evaluator: EvaluatorSpec | None = None
    """Scores each candidate. Without one the loop ends by `loop_done` or a limit, and the last candidate is
    the best."""
    holdout: EvaluatorSpec | None = None
    """A second opinion that the agent never sees: the result tells when the two scores part ways."""
    direction: Direction = "maximize"
    """Whether a higher or a lower score is better."""
    stop: dict[str, Any]
    """When to stop: `target_score`, `max_iterations`, `budget_usd`, `max_seconds`, `no_improvement`; several mean
    whichever comes first; `any` and `all` take lists of these."""
    attempts: Annotated[int, Field(ge=1, le=64)] = 1
    """How many dialogues run side by side on one wallet (best of K)."""
    history: HistorySpec = HistorySpec()
    prices: dict[str, Price] = {}
    """Prices of models, by model string; these go before the built-in price list."""
    allow_hosts: list[str] = []
    """Hosts beside those named in this file that tools and evaluators may reach though they aren't public."""

    @field_validator("stop")
    @classmethod
    def _readable_stop(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            parse_stop(value)
        except InvalidInput as error:
            raise ValueError("; ".join(str(p) for p in error.problems)) from None
        return value

    @property
    def stop_condition(self) -> Stop:
        """The stop condition as an object."""
        return parse_stop(self.stop)
