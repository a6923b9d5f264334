"""Guardrails: what an admin lets no goal, no message and no tool call do, whoever asks for it.

Each check is pure: a rule and a subject in, a reason to refuse out. What can't be judged is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import regex
from pydantic import Field, TypeAdapter, ValidationError

from .errors import InvalidInput, Problem
from .models import Frozen
from .readings import readings
from .spec import ModelChoice, Spec
from .text import Text

PATTERN_SECONDS: Final = 0.3
"""How long one rule may look for its pattern in one text."""

MENDING: Final = "an admin mends it on the page Guardrails or with PATCH /api/guardrails/{id}"

PRACTICE: Final = "practice"
"""The built-in search: no model, so every loop may use it."""

Scope = Literal["goal", "tools", "both"]
"""What a rule looks at: goals and messages, tool calls, or both."""


class DenyPattern(Spec):
    """Refuses a text in which a pattern is found."""

    kind: Literal["deny_pattern"]
    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    """A regular expression, as Python's package `regex` reads it. It is looked for anywhere in the text, and letter
    case does not count."""
    scope: Scope = "both"


class MaxLength(Spec):
    """Refuses a text that is too long."""

    kind: Literal["max_length"]
    characters: Annotated[int, Field(ge=1, le=1_000_000)]
    """The most that may be."""
    scope: Scope = "both"


class AllowedModels(Spec):
    """Refuses runs of loops that name another model, for their agents or their judges."""

    kind: Literal["allowed_models"]
    models: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=200)]
    """Model strings; `*` stands for anything, as in `openai:*`."""


class AllowedHosts(Spec):
    """Refuses runs of loops, and tool calls, that name another host."""

    kind: Literal["allowed_hosts"]
    hosts: Annotated[
        list[Annotated[str, Field(pattern=r"^(\*\.)?[A-Za-z0-9._:\[\]-]+$", max_length=260)]],
        Field(min_length=1, max_length=200),
    ]
    """`host`, `host:port`, or `*.host` for all below it."""


class LlmRule(ModelChoice):
    """Asks a model whether a text may pass. The run pays for it."""

    kind: Literal["llm"]
    instruction: Annotated[str, Field(min_length=1, max_length=20_000)]
    """What may pass and what may not."""
    scope: Scope = "goal"
    max_output_tokens: Annotated[int, Field(ge=64, le=100_000)] = 512
    """Most tokens that one verdict may take."""


GuardrailSpec = Annotated[DenyPattern | MaxLength | AllowedModels | AllowedHosts | LlmRule, Field(discriminator="kind")]

_SPEC: Final[TypeAdapter[GuardrailSpec]] = TypeAdapter(GuardrailSpec)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A guardrail that is in force."""

    id: str
    name: str
    version: int
    spec: GuardrailSpec | None
    broken: str = ""
    """Why it can't be read; then it refuses everything."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Rule:
        """The rule of a stored row; whatever stands in it, there is one."""
        known: dict[str, Any] = {"id": str(row.get("id")), "name": str(row.get("name")), "version": row.get("version")}
        try:
            return cls(**known, spec=_SPEC.validate_python(row.get("spec")))
        except ValidationError as error:
            why = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            return cls(**known, spec=None, broken=why[:500])

    @property
    def kind(self) -> str:
        """What it checks."""
        return self.spec.kind if self.spec else "unknown"

    def looks_at(self, what: Literal["goal", "tools"]) -> bool:
        """Whether it has a say in goals and messages, or in tool calls. A broken one has it in all."""
        match self.spec:
            case AllowedModels():
                return what == "goal"
            case AllowedHosts() | None:
                return True
            case spec:
                return spec.scope in (what, "both")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be judged: the goal of a run, a message, or a tool call."""

    what: Literal["goal", "message", "tool call"]
    text: str
    """The goal or the message; of a tool call its arguments as JSON."""
    tool: str | None = None
    models: Sequence[str] = ()
    """What the loop names."""
    addresses: Sequence[str] = ()
    """URLs that the loop names."""

    @property
    def side(self) -> Literal["goal", "tools"]:
        """Which rules have a say in it."""
        return "tools" if self.what == "tool call" else "goal"


class Verdict(Frozen):
    """What a guardrail says."""

    rule: Text
    """Its name."""
    rule_id: str
    kind: str
    allowed: bool
    reason: Text = ""
    """Why it refuses; for a model's verdict, why it allows, too."""

    def sentence(self, subject: Subject) -> str:
        """A refusal for people and for models."""
        named = f" `{subject.tool}`" if subject.tool else ""
        return f"the guardrail {self.rule!r} refuses this {subject.what}{named}: {self.reason}"


def verdict(rule: Rule, subject: Subject) -> Verdict | None:
    """What a rule says of a subject by itself; `None` where a model has to be asked, or it has no say."""
    if not rule.looks_at(subject.side) or isinstance(rule.spec, LlmRule):
        return None
    return said(rule, _reason(rule, subject))


def said(rule: Rule, refusal: str | None, reason: str = "") -> Verdict:
    """A verdict: refused for a reason, or allowed."""
    known = {"rule": rule.name, "rule_id": rule.id, "kind": rule.kind}
    return Verdict(**known, allowed=refusal is None, reason=reason if refusal is None else refusal)


def broken(rule: Rule, why: str) -> str:
    """Why a rule that can't be applied refuses, and who can mend it."""
    return f"it can't be applied, so nothing passes ({why}); {MENDING.format(id=rule.id)}"


def refusal(rules: Iterable[Rule], subject: Subject) -> Verdict | None:
    """The first rule that refuses by itself; `None` if none does. Takes long on purpose of nobody: call it in a thread,
    since patterns are looked for here."""
    for rule in rules:
        found = verdict(rule, subject)
        if found is not None and not found.allowed:
            return found
    return None


def _reason(rule: Rule, subject: Subject) -> str | None:
    try:
        match rule.spec:
            case DenyPattern() as spec:
                return _denied(rule, spec, subject)
            case MaxLength(characters=most):
                many = len(subject.text)
                return f"it has {many:,} characters, and {most:,} are allowed" if many > most else None
            case AllowedModels(models=allowed):
                return _other_model(allowed, subject.models)
            case AllowedHosts(hosts=allowed):
                return _other_host(allowed, subject)
            case _:
                return broken(rule, rule.broken)
    except Exception as error:  # noqa: BLE001 - whatever it is, a rule that can't be applied lets nothing pass
        return broken(rule, f"{type(error).__name__}: {error}"[:300])


# --- patterns ---


@lru_cache(maxsize=256)
def compiled(pattern: str) -> regex.Pattern[str]:
    """A pattern, ready to be looked for.

    Raises:
        regex.error: it is none.
    """
    return regex.compile(pattern, regex.IGNORECASE)


def _denied(rule: Rule, spec: DenyPattern, subject: Subject) -> str | None:
    try:
        pattern = compiled(spec.pattern)
    except regex.error as error:
        return broken(rule, f"its pattern is none: {error}")
    until = time.monotonic() + PATTERN_SECONDS
    texts = (*readings(subject.text), *(readings(subject.tool) if subject.tool else ()))
    try:
        for text in texts:
            if pattern.search(text, timeout=max(until - time.monotonic(), 0.001), concurrent=True):
                return "it holds what the pattern of this rule denies"
    except TimeoutError:
        return f"its pattern was not done with this text in {PATTERN_SECONDS:g} s, so it can't pass; {MENDING}".format(
            id=rule.id
        )
    return None


def check_pattern(pattern: str) -> None:
    """Check a pattern before it is stored.

    Raises:
        InvalidInput: it is none, or it is found in everything.
    """
    try:
        finds_nothing = compiled(pattern).search("", timeout=PATTERN_SECONDS)
    except regex.error as error:
        raise InvalidInput(Problem(field="spec.pattern", message=f"is no regular expression: {error}")) from None
    except TimeoutError:
        finds_nothing = None
    if finds_nothing:
        message = "is found in every text, even in an empty one, so nothing could pass; say what is denied"
        raise InvalidInput(Problem(field="spec.pattern", message=message))


# --- models and hosts ---


def _other_model(allowed: Sequence[str], models: Sequence[str]) -> str | None:
    for model in models:
        if model != PRACTICE and not any(fnmatchcase(model, each) for each in allowed):
            return f"the model {model!r:.200} is not among those that are allowed: {', '.join(allowed)}"
    return None


_WEB: Final = r"(?:https?|wss?|ftp):[/\\]*"
"""How an address may begin for who reads it as browsers do: with any number of slashes, also none."""

_ADDRESS: Final = re.compile(rf"(?:{_WEB}(?=[^\s\"'<>`])|[a-z][a-z0-9+.-]*:[/\\]{{2}})[^\s\"'<>`]*", re.IGNORECASE)
_BEGINNING: Final = re.compile(rf"^{_WEB}", re.IGNORECASE)


def _other_host(allowed: Sequence[str], subject: Subject) -> str | None:
    found = list(subject.addresses)
    if subject.side == "tools":
        found += [address for text in readings(subject.text) for address in _ADDRESS.findall(text)]
    plain = [_BEGINNING.sub(lambda start: f"{start[0].partition(':')[0]}://", each) for each in found]
    # Not all agree on what a backslash means in an address, so both hosts have to be allowed.
    for address in (form for each in plain for form in dict.fromkeys((each, each.replace("\\", "/")))):
        host, port = _host_of(address)
        if not any(_is_host(each, host, port) for each in allowed):
            return f"the host {host or address!r:.200} is not among those that are allowed: {', '.join(allowed)}"
    return None


def _host_of(address: str) -> tuple[str, int | None]:
    """The host and the port of a URL; no host where it can't be read, and so none that is allowed."""
    try:
        parts = urlsplit(address)
        host, port = (parts.hostname or "").rstrip("."), parts.port
        ascii_host = host if ":" in host else host.encode("idna").decode()
    except (ValueError, UnicodeError):
        return "", None
    return ascii_host.lower(), port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_host(allowed: str, host: str, port: int | None) -> bool:
    name, colon, number = allowed.lower().rpartition(":")
    if not colon or not number.isdigit() or name.endswith(":"):
        name, number = allowed.lower(), ""
    name = name.strip("[]")
    if number and int(number) != port:
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else bool(host) and host == name
