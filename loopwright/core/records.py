"""The stored nouns, as they are shown to those who may see them: what the API answers, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from .caller import Door, UserRole
from .described import Described
from .models import Iteration, StopReason
from .spec import Price

Visibility = Literal["private", "workspace"]
"""Who may see something: its owner and admins, or every member of the workspace."""

Amount = Annotated[
    Decimal,
    PlainSerializer(lambda v: f"{v:f}", return_type=str, when_used="json"),
    Field(json_schema_extra={"type": "string", "examples": ["0.50"]}),
]
"""US dollars; text in JSON, so that no digit is lost."""

T = TypeVar("T")


class Record(Described, BaseModel):
    """Base of the stored nouns."""

    model_config = ConfigDict(frozen=True)


class Page(Record, Generic[T]):
    """A part of a list, newest first."""

    items: Sequence[T]
    next_cursor: str | None = None
    """Pass it as `cursor` for what comes after; null at the end."""


class Editable(Record):
    """What people edit. `version` is also the ETag."""

    id: UUID
    owner_id: UUID | None
    name: str
    version: int
    created_at: datetime
    updated_at: datetime


class Versioned(Editable):
    """What people make and share."""

    spec: dict[str, Any]
    visibility: Visibility


class Tool(Versioned):
    """Something that agents may use."""

    kind: Literal["http", "mcp", "builtin"]
    is_builtin: bool
    """Whether it comes with Loopwright; of those nothing changes but `active`, which is an admin's to set."""
    active: bool
    """Whether new runs get it."""


class Agent(Versioned):
    """Who does the work."""

    tool_ids: Sequence[UUID]
    """Stored tools beside those in `spec.tools`."""


class Loop(Versioned):
    """A feedback loop: an agent, a goal, an evaluator and stop conditions under a name."""

    agent_id: UUID
    worst_case_usd: Amount
    """What one iteration can cost at worst if each model is asked once, as computed when the loop was saved."""


RunStatus = Literal["queued", "running", "finished"]


class RunSummary(Record):
    """A run as a list shows it."""

    id: str
    loop_id: UUID | None
    """Null once the loop is gone."""
    loop_name: str
    agent_id: UUID | None
    owner_id: UUID
    door: Door
    """How it was started."""
    goal: str
    status: RunStatus
    stop_reason: StopReason | None
    sentence: str
    """Why it is over, in a sentence."""
    error: str | None
    cap_usd: Amount | None
    spent_usd: Amount
    reserved_usd: Amount
    """Set aside for requests in flight."""
    iterations: int
    best_attempt: int | None
    best_iteration: int | None
    best_score: float | None
    parent_run_id: str | None
    forked_from_iteration: int | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Run(RunSummary):
    """A run with what it was given and its best candidate so far."""

    spec: dict[str, Any]
    """The loop as it was when the run started; secrets stay references."""
    best: Iteration | None = None
    thread_id: UUID | None = None
    """The conversation that the run is, if it is one."""


class IterationRecord(Record):
    """A finished iteration of a run."""

    position: int
    """Order in which the iterations of all attempts finished, from 1."""
    is_best: bool
    """Whether it became the best of its attempt."""
    elapsed_seconds: float
    """Seconds from the run's start to its end."""
    data: Iteration


class Profile(Record):
    """A user of the workspace."""

    id: UUID
    role: UserRole
    display_name: str
    monthly_cap_usd: Amount | None
    """The most that the user's runs may spend in a calendar month (UTC); null for the workspace's, if it has one."""
    own_cap_usd: Amount | None
    """What the user allows the own runs below that; null for all of it."""
    created_at: datetime


class WorkspaceSettings(Record):
    """What an admin sets for the whole workspace. `version` is also the ETag."""

    allow_hosts: Sequence[str]
    """Hosts (`host` or `host:port`) that every loop may reach though they aren't public."""
    prices: Mapping[str, Price]
    """Prices of models by model string, in US dollars per million tokens: after a loop's own, before the built-in
    list."""
    monthly_cap_usd: Amount | None
    """The monthly cap of members who have none of their own; null for no cap."""
    version: int
    updated_at: datetime


class Guardrail(Record):
    """A check that runs, messages and tool calls of the workspace have to pass. `version` is also the ETag."""

    id: UUID
    name: str
    """What refusals call it."""
    kind: str
    """What it checks: `deny_pattern`, `max_length`, `allowed_models`, `allowed_hosts` or `llm`."""
    spec: dict[str, Any] | None
    """What exactly it looks for; null for members, to whom only admins could show it."""
    active: bool
    """Whether it is in force."""
    version: int
    created_at: datetime
    updated_at: datetime


class SecretName(Record):
    """A stored secret. Its value is never shown."""

    name: str
    created_at: datetime


class ApiKey(Record):
    """A personal API key, as it is listed."""

    id: UUID
    name: str
    prefix: str
    """How the key begins."""
    created_at: datetime
    last_used_at: datetime | None
    """To the minute; null for one that was never used."""


class NewApiKey(ApiKey):
    """A key that was just made."""

    token: str
    """The key itself: shown this once."""


class Activity(Record):
    """Something that somebody did."""

    id: int
    at: datetime
    user_id: UUID | None
    door: Door
    action: str
    subject: str
    """What it was done to, e.g. `loop:<id>`."""
    detail: dict[str, Any]


class Usage(Record):
    """What a group of paid requests came to."""

    group: str | None
    """The context, loop, model, user or day; null for what belongs to none any more."""
    label: str | None
    """The group's name, where it has one."""
    cost_usd: Amount
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int


class Month(Record):
    """What a user spent in a calendar month (UTC)."""

    owner_id: UUID
    month: date
    cap_usd: Amount | None
    """The user's own cap, else the workspace's; null where there is neither."""
    spent_usd: Amount
    reserved_usd: Amount


Backfill = Literal["no", "one", "all"]
"""What happens to due times that passed while nothing ran: nothing, one run for the last of them, or a run for each."""

Overlap = Literal["skip", "queue", "parallel"]
"""What happens to a due time while the run before it goes on: nothing, a run after it, or a run beside it."""

ScheduleStatus = Literal["active", "paused", "disabled"]


class Schedule(Editable):
    """Starts runs of a loop, or turns of an agent, by the clock of a zone; they are its owner's."""

    loop_id: UUID | None
    agent_id: UUID | None
    wanted: dict[str, Any]
    """What its runs have otherwise than the loop; for an agent, its goal and its budget."""
    cron: str
    zone: str
    jitter_seconds: int
    backfill: Backfill
    overlap: Overlap
    max_failures: int
    """After so many failures in a row it is disabled."""
    status: ScheduleStatus
    notice: str
    """Why it is disabled; empty where it isn't."""
    next_due_at: datetime | None


class ScheduleWithTimes(Schedule):
    """A schedule and when it is due next."""

    next_times: Sequence[datetime]
    """The next five times, in UTC; none while it is not active. Jitter comes on top."""


class Firing(Record):
    """A time at which a schedule was due, and what came of it."""

    schedule_id: UUID
    due_at: datetime
    start_at: datetime
    """When it may start: the due time and the jitter."""
    outcome: Literal["waiting", "started", "skipped", "missed", "failed"]
    reason: str
    run_id: str | None


class Webhook(Editable):
    """An address that others send messages to: each starts a run of a loop, or a turn of an agent, as its owner."""

    loop_id: UUID | None
    agent_id: UUID | None
    wanted: dict[str, Any]
    """What its runs have otherwise than the loop; for an agent, its goal and its budget."""
    allow_tools: bool
    """Whether the agent may call its tools, though a stranger's message stands in its goal."""
    per_minute: int
    """How many messages it takes at once, and how many a minute after that."""
    active: bool


class WebhookWithSecret(Webhook):
    """A webhook whose secret was just made."""

    secret: str | None
    """What messages are signed with; shown once, so null where the request was repeated."""


class WebhookMessage(Record):
    """A message that started a run."""

    message_id: str
    run_id: str | None
    received_at: datetime


ThreadStatus = Literal["waiting", "answering"]
"""Whether a conversation waits for its next message, or answers one."""

MessageStatus = Literal["answering", "answered", "failed", "stopped"]


class Thread(Record):
    """A conversation with an agent. What it and the runs that it starts cost comes out of its cap."""

    id: UUID
    agent_id: UUID | None
    """Null once the agent is gone: then the conversation can be read and not gone on with."""
    run_id: str
    """The run that answers; its events are the conversation's."""
    title: str
    status: ThreadStatus
    messages: int
    """How many there are."""
    cap_usd: Amount
    spent_usd: Amount
    """With what the runs that it started have spent."""
    reserved_usd: Amount
    """Set aside for requests in flight, and for runs that it started and that are not over."""
    archived_at: datetime | None
    created_at: datetime
    updated_at: datetime
    """When it was last written to."""


class ThreadRun(Record):
    """A run that was started in a conversation."""

    run_id: str
    loop_name: str
    status: RunStatus
    stop_reason: StopReason | None
    cap_usd: Amount | None
    """What it may cost at most."""
    spent_usd: Amount
    best_score: float | None


class ThreadMessage(Record):
    """A message of a conversation, and its answer."""

    position: int
    """Its place in the conversation, from 1."""
    text: str
    status: MessageStatus
    answer: str | None
    notice: str
    """Why it has no answer, and the way out, in a sentence; empty where it has one."""
    iteration: int | None
    """The iteration of the conversation's run that answered it."""
    cost_usd: Amount
    """What answering cost, without the runs that were started for it."""
    runs: Sequence[ThreadRun]
    """What was started for it."""
    after_seq: int
    """Events of the conversation's run after this number belong to it."""
    created_at: datetime
    answered_at: datetime | None


class WholeThread(Thread):
    """A conversation with its last messages."""

    items: Sequence[ThreadMessage]
    """The messages, oldest first."""
    earlier: bool
    """Whether there are messages before these; ask with `before`."""


Scope = Literal["own", "workspace"]
"""Whose runs an endpoint is told of: its owner's, or everybody's, which is for admins."""

EventName = Literal["run.finished"]
"""What an endpoint can be told of."""


class Endpoint(Editable):
    """An address elsewhere that is told when runs end."""

    url: str
    events: Sequence[EventName]
    loop_id: UUID | None
    """Only runs of this loop; null for all."""
    scope: Scope
    active: bool
    notice: str
    """Why it was switched off by itself; empty where it wasn't."""
    old_until: datetime | None
    """Until when messages are signed with the secret before this one, too."""


class EndpointWithSecret(Endpoint):
    """An endpoint whose secret was just made."""

    secret: str | None
    """What messages are signed with; shown once, so null where the request was repeated."""


DeliveryState = Literal["waiting", "delivered", "failed"]


class DeliveryAttempt(Record):
    """One attempt to deliver a message."""

    number: int
    at: datetime
    seconds: float
    """How long it took."""
    status: int | None
    """Of the answer; null where none came."""
    answer: str
    """How the answer begins: 2,000 bytes at most."""
    error: str
    """Why it failed, where no answer says so."""


class Delivery(Record):
    """A message to an endpoint, and how far it came."""

    id: UUID
    """Its `webhook-id` is `msg_` and this id without dashes; it stays the same however often it is sent."""
    endpoint_id: UUID
    event: str
    run_id: str | None
    state: DeliveryState
    attempts: int
    next_at: datetime | None
    """When it is tried next; null where it isn't."""
    created_at: datetime
    last: DeliveryAttempt | None
    """The last attempt that is over."""


class DeliveryDetails(Delivery):
    """A message to an endpoint with what it says and all attempts."""

    payload: str
    """The body, to the letter."""
    log: Sequence[DeliveryAttempt]
    """Oldest first."""
