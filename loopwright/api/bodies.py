"""The bodies of requests. What is in a `spec` is checked by the service, in the words of loop files."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ..core.caller import UserRole
from ..core.described import Described
from ..core.guardrails import GuardrailSpec
from ..core.money import usd
from ..core.records import Backfill, EventName, Overlap, Scope, Visibility
from ..core.spec import Price
from ..service.threads import DEFAULT_CAP, MOST_CHARACTERS
from .docs import AGENT_SPEC, EXAMPLE_AGENT, EXAMPLE_GUARDRAIL, EXAMPLE_LOOP, EXAMPLE_TOOL, LOOP_SPEC, TOOL_SPEC

Dollars = Annotated[
    Decimal,
    BeforeValidator(usd),
    Field(gt=0, le=1_000_000),
    WithJsonSchema(
        {
            "description": "US dollars, as text or as a number.",
            "anyOf": [
                {"type": "string", "pattern": r"^[1-9][0-9]{0,4}(\.[0-9]{1,6})?$"},
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1000000},
            ],
            "examples": ["0.50"],
        }
    ),
]
LoopName = Annotated[str, Field(min_length=1, max_length=200, examples=["Taglines"])]
LoopSettings = Annotated[dict[str, Any], WithJsonSchema(LOOP_SPEC), Field(examples=[EXAMPLE_LOOP])]
AgentSettings = Annotated[dict[str, Any], WithJsonSchema(AGENT_SPEC), Field(examples=[EXAMPLE_AGENT])]
ToolSettings = Annotated[dict[str, Any], WithJsonSchema(TOOL_SPEC), Field(examples=[EXAMPLE_TOOL])]
Ids = Annotated[list[UUID], Field(max_length=100)]


class Body(Described, BaseModel):
    """Base of all bodies: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NewTool(Body):
    """A tool to store. Its name is the one in its spec."""

    spec: ToolSettings
    active: bool = True
    """Whether new runs get it."""
    visibility: Visibility = "private"


class ToolPatch(Body):
    """What is to change of a tool; what is left out stays."""

    spec: ToolSettings | None = None
    active: bool | None = None
    visibility: Visibility | None = None


class NewAgent(Body):
    """An agent to store."""

    name: LoopName
    spec: AgentSettings
    tool_ids: Ids = []
    """Stored tools beside those in `spec.tools`."""
    visibility: Visibility = "private"


class AgentPatch(Body):
    """What is to change of an agent; what is left out stays."""

    name: LoopName | None = None
    spec: AgentSettings | None = None
    tool_ids: Ids | None = None
    visibility: Visibility | None = None


class NewLoop(Body):
    """A loop to store."""

    name: LoopName
    agent_id: UUID
    spec: LoopSettings
    visibility: Visibility = "private"


class LoopPatch(Body):
    """What is to change of a loop; what is left out stays."""

    name: LoopName | None = None
    agent_id: UUID | None = None
    spec: LoopSettings | None = None
    visibility: Visibility | None = None


class StartRun(Body):
    """What a run is to have otherwise than its loop."""

    goal: Annotated[str, Field(min_length=1)] | None = None
    """Another goal."""
    budget_usd: Dollars | None = None
    """Another cap, in US dollars."""
    max_iterations: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Another limit of iterations."""
    max_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """Another limit of time."""
    attempts: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many dialogues run side by side on the one budget."""
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Another model for the agent."""
    triggered_by: UUID | None = None
    """The user to act for. Heeded only with the service key."""


class ExtendRun(Body):
    """How much more a finished run gets, beside what it had."""

    budget_usd: Dollars | None = None
    """US dollars on top of its budget."""
    iterations: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Iterations on top of `max_iterations`."""
    seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """Seconds on top of `max_seconds`."""


class ForkRun(Body):
    """Where a new run begins, and what it is to have otherwise."""

    iteration: Annotated[int, Field(ge=1, le=1_000_000)]
    """How many of the run's finished iterations it begins from, in the order in which they finished."""
    goal: Annotated[str, Field(min_length=1)] | None = None
    budget_usd: Dollars | None = None
    max_iterations: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Counted with those that it begins from."""
    max_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class ScheduledRun(Body):
    """What scheduled runs are to have otherwise than their loop. An agent needs `goal` and `budget_usd`."""

    goal: Annotated[str, Field(min_length=1)] | None = None
    budget_usd: Dollars | None = None
    max_iterations: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    attempts: Annotated[int, Field(ge=1, le=64)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None


CronText = Annotated[str, Field(min_length=1, max_length=200, examples=["30 9 * * 1-5"])]
ZoneText = Annotated[str, Field(min_length=1, max_length=64, examples=["Europe/London"])]


class NewSchedule(Body):
    """A schedule to store: it starts runs of a loop, or turns of an agent, as its owner."""

    name: LoopName
    loop_id: UUID | None = None
    agent_id: UUID | None = None
    """Instead of a loop: one turn of this agent, on the budget in `wanted`."""
    cron: CronText
    """Five fields: minute, hour, day of the month, month, day of the week."""
    zone: ZoneText = "UTC"
    """The time zone on whose clock it is due."""
    jitter_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """Runs start up to so many seconds later than they are due, by chance."""
    backfill: Backfill = "one"
    overlap: Overlap = "skip"
    max_failures: Annotated[int, Field(ge=1, le=100)] = 5
    wanted: ScheduledRun = ScheduledRun()


class SchedulePatch(Body):
    """What is to change of a schedule; what is left out stays."""

    name: LoopName | None = None
    loop_id: UUID | None = None
    agent_id: UUID | None = None
    cron: CronText | None = None
    zone: ZoneText | None = None
    jitter_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    backfill: Backfill | None = None
    overlap: Overlap | None = None
    max_failures: Annotated[int, Field(ge=1, le=100)] | None = None
    wanted: ScheduledRun | None = None
    """Takes the place of all that it had."""


PerMinute = Annotated[int, Field(ge=1, le=6000)]


class NewWebhook(Body):
    """A webhook to store. Messages to `/hooks/{id}` start a run of a loop, or a turn of an agent, as its owner."""

    name: LoopName
    loop_id: UUID | None = None
    agent_id: UUID | None = None
    """Instead of a loop: one turn of this agent, on the budget in `wanted`."""
    wanted: ScheduledRun = ScheduledRun()
    allow_tools: bool = False
    """Whether the agent may call its tools, though a stranger's message stands in its goal."""
    per_minute: PerMinute = 60
    """How many messages it takes at once, and how many a minute after that."""
    active: bool = True


class WebhookPatch(Body):
    """What is to change of a webhook; what is left out stays."""

    name: LoopName | None = None
    loop_id: UUID | None = None
    agent_id: UUID | None = None
    wanted: ScheduledRun | None = None
    """Takes the place of all that it had."""
    allow_tools: bool | None = None
    per_minute: PerMinute | None = None
    active: bool | None = None


GuardrailSettings = Annotated[GuardrailSpec, Field(examples=[EXAMPLE_GUARDRAIL])]


class NewGuardrail(Body):
    """A guardrail to store."""

    name: Annotated[str, Field(min_length=1, max_length=200, examples=["No card numbers"])]
    """What refusals call it."""
    spec: GuardrailSettings
    active: bool = True
    """Whether it is in force."""


class GuardrailPatch(Body):
    """What is to change of a guardrail; what is left out stays."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    spec: GuardrailSettings | None = None
    active: bool | None = None


class TryGuardrails(Body):
    """A text to try the guardrails on."""

    text: Annotated[str, Field(max_length=1_000_000, examples=["Pay with 4111 1111 1111 1111."])]
    what: Literal["goal", "tool call"] = "goal"
    """As what it is judged. A tool call's text is its arguments as JSON."""
    spec: GuardrailSettings | None = None
    """One that isn't stored, instead of those that are in force."""


class NewThread(Body):
    """A conversation to begin with an agent."""

    agent_id: UUID
    title: Annotated[str, Field(max_length=200)] = ""
    """What it is called; by default, by its first message."""
    cap_usd: Dollars = DEFAULT_CAP
    """What it may cost at most, with all runs that it starts."""


class ThreadPatch(Body):
    """What is to change of a conversation; what is left out stays."""

    title: Annotated[str, Field(max_length=200)] | None = None
    cap_usd: Dollars | None = None
    """Another cap: the whole, not what is added."""
    archived: bool | None = None
    """Whether it is put away."""


class NewMessage(Body):
    """A message to an agent."""

    text: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS, examples=["Which loops are there?"])]


Url = Annotated[str, Field(min_length=1, max_length=2000, examples=["https://example.com/loopwright"])]
Events = Annotated[list[EventName], Field(min_length=1, max_length=10)]


class NewEndpoint(Body):
    """An endpoint to store: an address elsewhere that is told when runs end."""

    name: LoopName
    url: Url
    """Messages are sent there by POST."""
    events: Events = ["run.finished"]
    loop_id: UUID | None = None
    """Only runs of this loop."""
    scope: Scope = "own"
    """Whose runs: yours, or everybody's, which is for admins."""
    active: bool = True


class EndpointPatch(Body):
    """What is to change of an endpoint; what is left out stays."""

    name: LoopName | None = None
    url: Url | None = None
    events: Events | None = None
    loop_id: UUID | None = None
    """Only runs of this loop; null for runs of all loops again."""
    scope: Scope | None = None
    active: bool | None = None


class PutSecret(Body):
    """A secret's value. It is sealed at once and never shown again."""

    value: Annotated[str, Field(min_length=1, max_length=65_536)]


Cap = Annotated[
    Decimal, BeforeValidator(usd), WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,6})?$"})
]


class NewKey(Body):
    """A key to make."""

    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"[!-~]", examples=["nightly script"])]
    """What it is for. You can have one key of a name."""


class PersonPatch(Body):
    """What is to change of a user; what is left out stays."""

    monthly_cap_usd: Cap | None = None
    """The most that the user's runs may spend in a calendar month (UTC); null for the workspace's, if it has one. For
    admins."""
    own_cap_usd: Cap | None = None
    """What you allow your own runs below that; null for all of it. For the user alone."""
    role: UserRole | None = None
    """What the user may do. For admins; the last one can't become a member."""


class SettingsPatch(Body):
    """What is to change of the workspace's settings; what is left out stays."""

    allow_hosts: Annotated[list[Annotated[str, Field(min_length=1, max_length=260)]], Field(max_length=200)] | None = (
        Field(default=None, examples=[["evaluator.internal:8443"]])
    )
    """Hosts (`host` or `host:port`) that every loop may reach though they aren't public; in place of those before."""
    prices: (
        Annotated[dict[Annotated[str, Field(min_length=1, max_length=200)], Price], Field(max_length=1000)] | None
    ) = Field(default=None, examples=[{"openai:my-model": {"input": "0.50", "output": "2"}}])
    """Prices of models by model string, in US dollars per million tokens; in place of those before."""
    monthly_cap_usd: Cap | None = None
    """The monthly cap of members who have none of their own; null for no cap."""
