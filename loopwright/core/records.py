"""The stored nouns, as they are shown to those who may see them: what the API answers, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from .caller import Door, UserRole
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


class Record(BaseModel):
    """Base of the stored nouns."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Page(Record, Generic[T]):
    """A part of a list, newest first."""

    items: Sequence[T]
    next_cursor: str | None = None
    """Pass it as `cursor` for what comes after; null at the end."""


class Versioned(Record):
    """What people edit. `version` is also the ETag."""

    id: UUID
    owner_id: UUID | None
    name: str
    spec: dict[str, Any]
    visibility: Visibility
    version: int
    created_at: datetime
    updated_at: datetime


class Tool(Versioned):
    """Something that agents may use."""

    kind: Literal["http", "mcp", "builtin"]
    is_builtin: bool
    """Whether it comes with Loopwright; those can't be edited."""
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
