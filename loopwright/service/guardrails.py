"""Guardrails: admins edit them, everything that starts is checked by them, and anybody's text can be tried on them.

`clear` is the only maker of `Cleared`, without which no run is put into the queue. What needs a model is asked by the
run itself, on its own wallet, before anything else of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

import psycopg
from pydantic import JsonValue

from ..core.caller import Caller
from ..core.errors import (
    DatabaseAway,
    EgressRefused,
    GuardrailRefused,
    InvalidInput,
    NotAllowed,
    NotFound,
    Problem,
    Problems,
    UnknownPrice,
    VersionStale,
)
from ..core.guardrails import (
    PRACTICE,
    GuardrailSpec,
    LlmRule,
    Rule,
    Subject,
    Verdict,
    check_pattern,
    refusal,
    said,
    verdict,
)
from ..core.records import Guardrail, Page
from ..core.spec import LoopSpec, Price
from ..store import activity
from ..store import guardrails as store
from ..store.database import Connection, Database
from ..store.paging import page, read_cursor
from ..store.run_queries import Cleared, Extension, NewRun
from ..store.workspace import get_settings
from .changes import ANY_VERSION
from .checks import addresses
from .once import Once, do_once, replayed

_log = logging.getLogger(__name__)

ADMINS_ONLY = "only an admin edits guardrails; the page Guardrails shows which there are"


# --- checking ---


async def rules_in_force(database: Database) -> Sequence[Rule]:
    """The guardrails that are switched on. Where they can't be read, one that refuses everything.

    Raises:
        DatabaseAway: nothing can start at the moment anyway.
    """
    try:
        async with database.service_session() as connection:
            return [Rule.of(row) for row in await store.in_force(connection)]
    except DatabaseAway:
        raise
    except psycopg.Error as error:
        _log.exception("the guardrails can't be read, so nothing passes them")
        return [Rule(id="", name="all of them", version=0, spec=None, broken=f"the database says: {error}"[:300])]


async def clear(database: Database, caller: Caller, run: NewRun) -> Cleared[NewRun]:
    """Check a run that is about to be put into the queue.

    Raises:
        GuardrailRefused: a guardrail refuses its goal, its models or its hosts; the activity log has it.
        DatabaseAway: it can't be checked.
    """
    await _pass(database, caller, subject_of(LoopSpec.model_validate(run.spec), run.goal), loop=run.loop_name)
    return Cleared(run)


async def clear_extension(
    database: Database, caller: Caller, more: Extension, spec: LoopSpec, goal: str
) -> Cleared[Extension]:
    """Check a finished run that is about to go on: the guardrails may be others by now.

    Raises:
        GuardrailRefused, DatabaseAway: as `clear`.
    """
    await _pass(database, caller, subject_of(spec, goal), run=more.run_id)
    return Cleared(more)


async def check_message(database: Database, caller: Caller, text: str, spec: LoopSpec | None = None, **of: str) -> None:
    """Check what somebody writes to an assistant, before anything is sent to a model. Costs nothing: rules that need a
    model are for whoever has the wallet.

    Args:
        database: where the guardrails are.
        caller: who writes.
        text: the message.
        spec: what answers it: its models and hosts are checked, too.
        of: what the activity log says of a refusal beside the rule and its reason, e.g. `thread="…"`.

    Raises:
        GuardrailRefused: a guardrail refuses it; its text says which and why, and the activity log has it.
        DatabaseAway: it can't be checked.
    """
    subject = Subject(what="message", text=text) if spec is None else replace(subject_of(spec, text), what="message")
    await _pass(database, caller, subject, **of)


async def check_trial(
    database: Database, caller: Caller, spec: LoopSpec, tool: str, arguments: dict[str, JsonValue]
) -> None:
    """Check a tool that is called by hand, and where it lies. Without a name it is only looked at.

    Raises:
        GuardrailRefused: a guardrail refuses it, or would have to ask a model, which takes a run's budget.
        DatabaseAway: it can't be checked.
    """
    urls = [url for _, url in addresses(spec)]
    text = json.dumps(arguments, ensure_ascii=False) if tool else ""
    subject = Subject(what="tool call", text=text, tool=tool or None, addresses=urls)
    await _pass(database, caller, subject)
    for rule in await rules_in_force(database) if tool else ():
        if isinstance(rule.spec, LlmRule) and rule.looks_at("tools"):
            why = "it asks a model, which takes a run's budget, so have an agent call the tool instead"
            raise GuardrailRefused(said(rule, why).sentence(subject))


def subject_of(spec: LoopSpec, goal: str) -> Subject:
    """What is checked of a run before it begins."""
    from .assemble import model_names

    urls = [url for _, url in addresses(spec)]
    return Subject(what="goal", text=goal, models=model_names(spec), addresses=urls)


async def check_start(database: Database, caller: Caller, spec: LoopSpec) -> None:
    """Check what is tried without a run: the goal, the models and the hosts of a loop.

    Raises:
        GuardrailRefused, DatabaseAway: as `clear`.
    """
    await _pass(database, caller, subject_of(spec, spec.goal))


async def _pass(database: Database, caller: Caller, subject: Subject, **of: str) -> None:
    rules = await rules_in_force(database)
    if not rules:
        return
    refused = await asyncio.to_thread(refusal, rules, subject)
    if refused is None:
        return
    async with database.as_user(caller.user_id) as connection:
        await note_refusal(connection, caller, subject, refused, **of)
    raise GuardrailRefused(refused.sentence(subject))


async def note_refusal(connection: Connection, caller: Caller, subject: Subject, refused: Verdict, **of: str) -> None:
    """Write a refusal into the activity log. The text itself stays out of it."""
    detail = {"rule": refused.rule, "kind": refused.kind, "reason": refused.reason, "what": subject.what, **of}
    await activity.note(connection, caller.door, "guardrail_refused", f"guardrail:{refused.rule_id}", **detail)


# --- trying ---


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What the guardrails say of a text."""

    verdicts: Sequence[Verdict]
    """Of those that have a say in it, oldest first."""
    not_asked: Sequence[str]
    """Names of those that would ask a model, which costs money: a run asks them."""

    @property
    def allowed(self) -> bool:
        """Whether the text passes all that were asked."""
        return all(each.allowed for each in self.verdicts)


async def try_text(
    database: Database, caller: Caller, text: str, what: Literal["goal", "tool call"], spec: GuardrailSpec | None = None
) -> Trial:
    """What the guardrails that are in force say of a text, or one that isn't stored. Nothing is sent or kept.

    Raises:
        NotAllowed: the caller is no admin.
    """
    if not caller.is_admin:
        raise NotAllowed(ADMINS_ONLY)
    subject = Subject(what=what, text=text)
    if spec is not None:
        rules: Sequence[Rule] = [Rule(id="", name="this one", version=0, spec=spec)]
    else:
        rules = await rules_in_force(database)
    mine = [rule for rule in rules if rule.looks_at(subject.side)]
    found = await asyncio.to_thread(lambda: [verdict(rule, subject) for rule in mine])
    return Trial(
        verdicts=[each for each in found if each is not None],
        not_asked=[rule.name for rule in mine if isinstance(rule.spec, LlmRule)],
    )


# --- editing ---


@dataclass(frozen=True, kw_only=True)
class GuardrailChange:
    """A guardrail as it is to be; `None` leaves a part as it is."""

    name: str | None = None
    spec: GuardrailSpec | None = None
    active: bool | None = None


async def list_guardrails(database: Database, caller: Caller, *, cursor: str | None, limit: int) -> Page[Guardrail]:
    """The workspace's guardrails, newest first; for members without their specs.

    Raises:
        InvalidInput: the cursor is none.
    """
    place = read_cursor(cursor)
    async with database.as_user(caller.user_id) as connection:
        return page(await store.list_guardrails(connection, place, limit, whole=caller.is_admin), limit)


async def get_guardrail(database: Database, caller: Caller, guardrail_id: UUID) -> Guardrail:
    """A guardrail; for members without its spec.

    Raises:
        NotFound: there is none.
    """
    async with database.as_user(caller.user_id) as connection:
        if found := await store.get_guardrail(connection, guardrail_id, whole=caller.is_admin):
            return found
    raise NotFound


async def create_guardrail(
    database: Database, caller: Caller, wanted: GuardrailChange, once: Once | None = None
) -> Guardrail:
    """Store a guardrail. It holds at once for all that starts; runs under way keep those that they began with.

    Raises:
        NotAllowed: the caller is no admin.
        InvalidInput: what is wrong with it.
    """
    if not caller.is_admin:
        raise NotAllowed(ADMINS_ONLY)
    if answer := await replayed(database, caller, once, Guardrail):
        return answer
    spec = await _checked(database, wanted.spec)

    async def insert(connection: Connection) -> Guardrail:
        made = _written(
            await store.insert_guardrail(
                connection,
                name=wanted.name or "",
                kind=spec["kind"],
                spec=spec,
                active=wanted.active is not False,
            )
        )
        await activity.note(connection, caller.door, "guardrail_created", f"guardrail:{made.id}", name=made.name)
        return made

    return (await do_once(database, caller, once, Guardrail, insert))[0]


async def change_guardrail(
    database: Database, caller: Caller, guardrail_id: UUID, version: int, wanted: GuardrailChange
) -> Guardrail:
    """Change a guardrail. Runs under way keep those that they began with.

    Raises:
        NotAllowed: the caller is no admin.
        NotFound: there is none.
        VersionStale: it was changed meanwhile.
        InvalidInput: what is wrong with the change.
    """
    found = await _editable(database, caller, guardrail_id, version)
    spec = found.spec or {} if wanted.spec is None else await _checked(database, wanted.spec)
    async with database.as_user(caller.user_id) as connection:
        changed = await store.update_guardrail(
            connection,
            found,
            name=found.name if wanted.name is None else wanted.name,
            kind=found.kind if wanted.spec is None else spec["kind"],
            spec=spec,
            active=found.active if wanted.active is None else wanted.active,
        )
        on = {} if wanted.active is None else {"active": wanted.active}
        await activity.note(
            connection, caller.door, "guardrail_changed", f"guardrail:{guardrail_id}", name=found.name, **on
        )
        return _written(changed)


async def delete_guardrail(database: Database, caller: Caller, guardrail_id: UUID, version: int) -> None:
    """Delete a guardrail. Runs under way keep those that they began with.

    Raises:
        NotAllowed: the caller is no admin.
        NotFound: there is none.
        VersionStale: it was changed meanwhile.
    """
    found = await _editable(database, caller, guardrail_id, version)
    async with database.as_user(caller.user_id) as connection:
        if not await store.delete_guardrail(connection, found):
            raise VersionStale
        await activity.note(connection, caller.door, "guardrail_deleted", f"guardrail:{guardrail_id}", name=found.name)


async def _editable(database: Database, caller: Caller, guardrail_id: UUID, version: int) -> Guardrail:
    if not caller.is_admin:
        raise NotAllowed(ADMINS_ONLY)
    found = await get_guardrail(database, caller, guardrail_id)
    if version not in (ANY_VERSION, found.version):
        raise VersionStale
    return found


async def _checked(database: Database, spec: GuardrailSpec | None) -> dict[str, Any]:
    """The spec as it is stored."""
    if spec is None:
        raise InvalidInput(Problem(field="spec", message="is missing; say what it checks"))
    if spec.kind == "deny_pattern":
        await asyncio.to_thread(check_pattern, spec.pattern)
    if spec.kind == "llm":
        async with database.service_session() as connection:
            _check_model(spec, (await get_settings(connection)).prices)
    return spec.model_dump(mode="json", exclude_unset=True)


def _check_model(spec: LlmRule, prices: Mapping[str, Price]) -> None:
    from ..agents.prices import PriceBook

    problems = Problems()
    if spec.model == PRACTICE:
        message = "`practice` is a search and can't judge a text; name a language model"
        problems.found.append(Problem(field="spec.model", message=message))
    else:
        try:
            PriceBook(prices).price_of_name(spec.model)
        except UnknownPrice:
            message = f"no price is known for {spec.model!r}; declare it in the workspace's prices first"
            problems.found.append(Problem(field="spec.model", message=message))
    if spec.base_url is not None:
        from ..egress import checked_url  # heavy, and seldom needed

        try:
            checked_url(spec.base_url)
        except EgressRefused as error:
            problems.found.append(Problem(field="spec.base_url", message=str(error)))
    problems.refuse()


def _written(row: Guardrail | None) -> Guardrail:
    if row is None:
        raise VersionStale
    return row
