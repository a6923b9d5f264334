"""Forms: how they get past the guard, and how their fields are read.

The guard checks that every body is sound, small JSON. Browsers send forms otherwise; so a form is turned into JSON in
front of it, `{"field": ["value", …]}`, and every check of the guard holds for forms too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import InvalidInput, Problem, Problems
from ..core.money import usd

FORM = "application/x-www-form-urlencoded"

MOST_FIELDS = 200

T = TypeVar("T")


class FormsAsJson:
    """ASGI middleware: the forms of pages as JSON. The API's addresses are left alone: they take JSON only."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Turn a form into JSON, and pass everything else on."""
        if not _is_form(scope):
            await self.app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > self.max_body_bytes:
                refusal = PlainTextResponse(f"the form is larger than {self.max_body_bytes:,} bytes", 413)
                await refusal(scope, receive, send)
                return
            if not message.get("more_body"):
                break
        try:
            data = _as_json(bytes(body))
        except ValueError as error:
            await PlainTextResponse(f"the form can't be read: {error}", 400)(scope, receive, send)
            return
        headers = MutableHeaders(raw=list(scope["headers"]))
        headers["content-type"], headers["content-length"] = "application/json", str(len(data))
        del headers["transfer-encoding"]
        await self.app({**scope, "headers": headers.raw}, _once(data, receive), send)


def _is_form(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].startswith(("/api", "/mcp", "/hooks")):
        return False
    return Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower() == FORM


def _as_json(body: bytes) -> bytes:
    found = parse_qs(
        body.decode(), keep_blank_values=True, strict_parsing=bool(body), errors="strict", max_num_fields=MOST_FIELDS
    )
    lines = {name: [value.replace("\r\n", "\n") for value in values] for name, values in found.items()}
    return json.dumps(lines).encode()


def _once(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


@dataclass(frozen=True)
class Fields:
    """What was typed into a form. Reading collects what is wrong, so that all of it is shown at once."""

    values: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    problems: Problems = field(default_factory=Problems)

    @classmethod
    async def of(cls, request: Request) -> Fields:
        """The fields of a request's form."""
        data: Any = json.loads(await request.body() or b"{}")
        if not isinstance(data, dict):
            return cls()
        return cls(
            {
                name: [str(value) for value in cast("list[Any]", values)]
                for name, values in cast("dict[str, Any]", data).items()
                if isinstance(values, list)
            }
        )

    def text(self, name: str) -> str:
        """A field as it was typed; empty where it is missing."""
        values = self.values.get(name) or ("",)
        return values[-1]

    def short(self, name: str) -> str:
        """A field of one line, without spaces around it."""
        return self.text(name).strip()

    def all(self, name: str) -> Sequence[str]:
        """All values of a field that may be given several times."""
        return [value for value in self.values.get(name, ()) if value]

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return bool(self.short(name))

    def whole(self, name: str, *, least: int = 1, most: int = 1_000_000) -> int | None:
        """A whole number, or `None` where nothing was typed."""
        text = self.short(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            self._wrong(name, f"must be a whole number from {least:,} to {most:,}")
            return None
        return int(text)

    def number(self, name: str) -> float | None:
        """A number, or `None` where nothing was typed."""
        text = self.short(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not math.isfinite(value):
            self._wrong(name, "must be a number such as 0.9")
            return None
        return value

    def money(self, name: str, *, zero: bool = False) -> Decimal | None:
        """An amount of US dollars, or `None` where nothing was typed."""
        text = self.short(name)
        if not text:
            return None
        try:
            amount = usd(text)
        except ValueError as error:
            self._wrong(name, str(error))
            return None
        if amount > 1_000_000 or (amount == 0 and not zero):
            self._wrong(name, "must be more than 0 and at most 1,000,000 dollars")
            return None
        return amount

    def _wrong(self, name: str, message: str) -> None:
        self.problems.found.append(Problem(field=name, message=message))

    def refuse(self) -> None:
        """Raise what was wrong with the fields that were read.

        Raises:
            InvalidInput: all of it.
        """
        self.problems.refuse()


Wrong = Mapping[str, str]
"""What is wrong with a form, by its fields; under the empty name what belongs to none of them."""


def wrong_of(error: InvalidInput, fields: Sequence[str]) -> dict[str, str]:
    """What is wrong by the names of a form's fields; a problem of another field stands above the form."""
    found: dict[str, list[str]] = {}
    for problem in error.problems:
        name = field_of(problem.field)
        message = problem.message if name in fields or not problem.field else f"{problem.field}: {problem.message}"
        found.setdefault(name if name in fields else "", []).append(message)
    return {name: "; ".join(messages) for name, messages in found.items()}


def field_of(path: str) -> str:
    """The field of a form that shows a place in a loop's data: `spec.stop.budget_usd` is `budget_usd`."""
    path = path.removeprefix("spec.").removeprefix("--").replace("-", "_")
    for prefix, name in PLACES:
        if path == prefix or path.startswith(f"{prefix}."):
            return name
    return path


PLACES: Sequence[tuple[str, str]] = (
    ("stop.no_improvement", "no_improvement"),
    ("stop.target_score", "target_score"),
    ("stop.max_iterations", "max_iterations"),
    ("stop.budget_usd", "budget_usd"),
    ("stop.max_seconds", "max_seconds"),
    ("budget", "budget_usd"),
    ("evaluator.url", "evaluator_url"),
    ("evaluator.headers", "evaluator_headers"),
    ("evaluator.timeout_seconds", "evaluator_timeout"),
    ("evaluator.model", "judge_model"),
    ("evaluator.api_key_env", "judge_model"),
    ("evaluator.rubric", "rubric"),
    ("evaluator.scale", "scale_low"),
    ("agent.model", "model"),
    ("agent.instructions", "instructions"),
)
