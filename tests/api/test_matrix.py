"""Every route of the OpenAPI document, also those that are added later: what is somebody else's does not exist, and no
body, however hostile, is a failure of the server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from loopwright.store.database import Urls
from tests.api.world import AGENT, SERVICE_KEY, Api, open_api
from tests.postgres import ADMIN, OTHER, OWNER

MEMBERS_OWN = {("put", "/api/secrets/{name}")}
"""Names that each caller has for itself: there is nothing of another's to find."""

WORKSPACES = {"user_id", "guardrail_id"}
"""What is the workspace's, and no member's: of these only ids of nothing are asked for, by an admin."""

TOOL = {"kind": "http", "name": "look", "description": "Looks.", "url": "https://example.com/look"}

GUARDRAIL = {"name": "g", "spec": {"kind": "deny_pattern", "pattern": "no-such-word", "scope": "both"}}

SQL = "'; drop table loop_runs; --"


@dataclass(frozen=True)
class Route:
    """An operation of the document."""

    method: str
    path: str
    parameters: tuple[str, ...]
    body: dict[str, Any] | None
    """The schema of its body."""
    document: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"

    def at(self, ids: dict[str, str]) -> str:
        """Its address with these ids."""
        return self.path.format(**{name: ids[name] for name in self.parameters})

    def sample(self, ids: dict[str, str], *, whole: bool = False) -> object:
        """A body that is right: what must be there, with `whole` all that may be."""
        return None if self.body is None else _sample(self.body, self.document, ids, whole=whole)


def routes(api: Api) -> list[Route]:
    document = api.app.openapi()
    return [
        Route(
            method,
            path,
            tuple(each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"),
            operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema"),
            document,
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _sample(schema: dict[str, Any], document: dict[str, Any], ids: dict[str, str], *, whole: bool) -> Any:
    schema = _resolved(schema, document)
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "default" in schema and not whole:
        return schema["default"]
    if schema.get("type") == "object":
        must = set(schema.get("required", ()))
        return {
            name: ids[name] if name in ids else _sample(part, document, ids, whole=whole)
            for name, part in schema.get("properties", {}).items()
            if whole or name in must
        }
    plain: dict[str, Any] = {"string": "text", "integer": 1, "number": 1, "boolean": True, "array": []}
    return plain.get(str(schema.get("type")))


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        target: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return _resolved(target, document)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema and "examples" not in schema:
            first = next(part for part in schema[choice] if part.get("type") != "null")
            return _resolved({**first, **{key: value for key, value in schema.items() if key != choice}}, document)
    return schema


@pytest.fixture
async def site(urls: Urls, tmp_path: Path) -> AsyncGenerator[Api]:
    async with open_api(urls, tmp_path, engine=False) as opened:
        yield opened


async def made_by(api: Api, user: str) -> dict[str, str]:
    """One of everything, by the name of the parameter that asks for it."""
    agent = await api.make("/api/agents", {"name": "a", "spec": AGENT}, user=user)
    tool = await api.make("/api/tools", {"spec": TOOL}, user=user)
    loop = await api.make_loop(user=user)
    run = await api.start(loop, user=user)
    await api.call("POST", f"/api/runs/{run}/cancel", user=user)
    schedule = {"name": "s", "loop_id": loop["id"], "cron": "0 3 * * *", "zone": "Europe/London"}
    webhook = {"name": "w", "loop_id": loop["id"]}
    endpoint = await api.make("/api/endpoints", {"name": "e", "url": "https://example.com/told"}, user=user)
    delivery = await api.make(f"/api/endpoints/{endpoint['id']}/test", None, user=user)
    guardrail = await api.make("/api/guardrails", GUARDRAIL, user=ADMIN)
    key = await api.make("/api/keys", {"name": "k"}, user=user)
    assert (await api.call("PUT", "/api/secrets/MINE", {"value": "hidden"}, user=user)).status_code == 204
    return {
        "agent_id": agent["id"],
        "tool_id": tool["id"],
        "loop_id": loop["id"],
        "run_id": run,
        "schedule_id": (await api.make("/api/schedules", schedule, user=user))["id"],
        "webhook_id": (await api.make("/api/webhooks", webhook, user=user))["id"],
        "endpoint_id": endpoint["id"],
        "delivery_id": delivery["id"],
        "key_id": key["id"],
        "thread_id": (await api.make("/api/threads", {"agent_id": agent["id"]}, user=user))["id"],
        "name": "MINE",
        "guardrail_id": guardrail["id"],
        "user_id": user,
    }


def unknown(ids: dict[str, str]) -> dict[str, str]:
    """Ids of the same form, of nothing."""
    nothing = "00000000-0000-4000-8000-0000000000ff"
    return dict.fromkeys(ids, nothing) | {"run_id": f"run_{'0' * 21}", "name": "NOBODYS"}


_asked: ContextVar[list[str] | None] = ContextVar("asked", default=None)


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """What the database is asked by the request that is made inside, and by nothing else."""
    found = list[str]()
    real = AsyncCursor[TupleRow].execute

    async def execute(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if (asked := _asked.get()) is not None:
            asked.append(str(query))
        return await real(self, query, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(AsyncCursor, "execute", execute)
        token = _asked.set(found)
        try:
            yield found
        finally:
            _asked.reset(token)


async def test_what_is_somebody_elses_answers_like_what_is_not_there(
    site: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mine = await made_by(site, OWNER), await made_by(site, OTHER)
    nobodys, walked = unknown(theirs), 0
    for route in routes(site):
        if not route.parameters or (route.method, route.path) in MEMBERS_OWN:
            continue
        missing = set(route.parameters) - set(theirs)
        assert not missing, f"{route}: say in `made_by` how one of {missing} is made"
        who = ADMIN if WORKSPACES & set(route.parameters) else OTHER
        pairs = [nobodys] if who == ADMIN else [theirs, nobodys]
        seen = list[tuple[Any, ...]]()
        for ids in pairs:
            # Under the caller's own names there is nothing of another's, so another's secret is none.
            address = route.at({**ids, "name": "THEIRS" if ids is theirs else "NOBODYS"})
            with statements(monkeypatch) as asked:
                answer = await site.call(route.method.upper(), address, route.sample(mine), user=who, if_match='"1"')
            assert answer.status_code == 404, (str(route), address, answer.status_code, answer.text)
            assert len(asked) > 1, route
            headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
            seen.append((answer.content, headers, asked))
        assert all(each == seen[0] for each in seen), route  # the same words, and the same work for them
        walked += 1
    assert walked >= 25


def hostile(sample: object) -> Iterator[tuple[str, bytes, str]]:
    """Bodies that are none, each with its name and content type."""
    right = json.dumps(sample).encode()
    yield "SQL", SQL.encode(), "application/json"
    yield "SQL as text", json.dumps(SQL).encode(), "application/json"
    yield "NUL", b'{"a": "\\u0000"}', "application/json"
    yield "NUL in a name", b'{"\\u0000": 1}', "application/json"
    yield "bare NUL", b"\x00" + right, "application/json"
    yield "10 MB", b'{"a": "' + b"a" * 10_000_000 + b'"}', "application/json"
    yield "deep lists", b"[" * 100_000 + b"]" * 100_000, "application/json"
    yield "deep objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "application/json"
    yield "deep and open", b"[" * 100_000, "application/json"
    yield "Latin-1", '{"name": "Käse"}'.encode("latin-1"), "application/json"
    yield "UTF-16", right.decode().encode("utf-16"), "application/json"
    yield "UTF-7", b"+AHsAfQ-", "application/json; charset=utf-7"
    yield "cut off", right[:-1] or b"{", "application/json"
    yield "two", right + right, "application/json"
    yield "NaN", b'{"a": NaN}', "application/json"
    yield "huge number", b'{"a": 1' + b"0" * 5_000 + b"}", "application/json"
    yield "lone surrogate", b'{"a": "\\ud800"}', "application/json"
    yield "null", b"null", "application/json"
    yield "number", b"1", "application/json"
    yield "list", b"[]", "application/json"
    yield "text", right, "text/plain"
    yield "XML", b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><x>&a;</x>", "application/xml"
    yield "form", b"a=1", "application/x-www-form-urlencoded"
    yield "no type", right, ""
    yield "gzip", b"\x1f\x8b\x08\x00", "application/json"


def with_texts(sample: object, text: str) -> Iterator[object]:
    """The body once for each text in it, with that one replaced."""
    if isinstance(sample, str):
        yield text
    elif isinstance(sample, dict):
        group = cast("dict[str, object]", sample)
        for name, value in group.items():
            for other in with_texts(value, text):
                yield {**group, name: other}
        yield {**group, text: text}
    elif isinstance(sample, list):
        items = cast("list[object]", sample)
        for at, value in enumerate(items):
            for other in with_texts(value, text):
                yield [*items[:at], other, *items[at + 1 :]]


MAY_BE_EMPTY = {"null"}
"""Where a body may be left out, saying so is no error."""


async def test_no_body_makes_the_server_fail(site: Api) -> None:
    ids, walked = await made_by(site, OWNER), 0
    signed = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": ADMIN, "if-match": "*"}
    for route in routes(site):
        if route.method in ("get", "head"):
            continue
        if route.body is None and route.method != "post":
            continue  # DELETE, whose body nobody reads
        walked += 1
        for name, content, kind in hostile(route.sample(ids, whole=True) or {}):
            headers = {**signed, **({"content-type": kind} if kind else {})}
            answer = await site.http.request(route.method.upper(), route.at(ids), content=content, headers=headers)
            least = 200 if name in MAY_BE_EMPTY or route.body is None else 400
            assert least <= answer.status_code < 500, (str(route), name, answer.status_code, answer.text)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json", (str(route), name)
    assert walked >= 15


async def test_words_of_sql_are_words(site: Api) -> None:
    ids = await made_by(site, OWNER)
    for route in routes(site):
        if route.body is None:
            continue
        for body in with_texts(route.sample(ids, whole=True), SQL):
            answer = await site.call(route.method.upper(), route.at(ids), body, user=ADMIN, if_match="*")
            assert answer.status_code < 500, (str(route), body, answer.text)
    for route in routes(site):
        if route.method == "get" and route.parameters:
            address = route.at(dict.fromkeys(ids, "'%3B drop table loop_runs%3B --"))
            answer = await site.call("GET", address)
            assert answer.status_code in (404, 422), (str(route), answer.text)
    assert (await site.get("/api/runs"))["items"]


async def test_an_address_of_a_webhook_takes_no_hostile_body(site: Api) -> None:
    """It is not in the document, since it is for other programs."""
    ids = await made_by(site, OWNER)
    for at in (ids["webhook_id"], unknown(ids)["webhook_id"]):
        for name, content, kind in hostile({"a": "b"}):
            answer = await site.http.post(
                f"/hooks/{at}", content=content, headers={"content-type": kind} if kind else {}
            )
            assert 400 <= answer.status_code < 500, (name, answer.status_code, answer.text)
