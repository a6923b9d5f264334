"""Guardrails over the API: admins edit them and try them, members know of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.world import Api
from tests.postgres import ADMIN, OTHER

from .test_doors import NO_SECRETS, guard


async def test_an_admin_makes_changes_and_deletes_one(idle: Api) -> None:
    answer = await idle.call("POST", "/api/guardrails", NO_SECRETS, user=ADMIN, idempotency_key="k")
    made = answer.json()
    assert (answer.status_code, answer.headers["etag"], made["version"]) == (201, '"1"', 1)
    assert (made["kind"], made["spec"], made["active"]) == ("deny_pattern", NO_SECRETS["spec"], True)
    again = await idle.call("POST", "/api/guardrails", NO_SECRETS, user=ADMIN, idempotency_key="k")
    assert again.json()["id"] == made["id"]
    path = f"/api/guardrails/{made['id']}"
    change = {"name": "Short", "spec": {"kind": "max_length", "characters": 5}}
    assert (await idle.call("PATCH", path, change, user=ADMIN)).status_code == 428
    changed = await idle.call("PATCH", path, change, user=ADMIN, if_match='"1"')
    assert (changed.status_code, changed.headers["etag"], changed.json()["kind"]) == (200, '"2"', "max_length")
    assert (await idle.call("PATCH", path, change, user=ADMIN, if_match='"1"')).status_code == 412
    assert (await idle.call("DELETE", path, user=ADMIN, if_match='"1"')).status_code == 412
    assert (await idle.call("DELETE", path, user=ADMIN, if_match='"2"')).status_code == 204
    assert (await idle.call("GET", path, user=ADMIN)).status_code == 404
    log = [each["action"] for each in (await idle.get("/api/activity", user=ADMIN))["items"]]
    assert log == ["guardrail_deleted", "guardrail_changed", "guardrail_created"]


async def test_members_know_of_them_and_change_nothing(idle: Api) -> None:
    made = await guard(idle)
    path = f"/api/guardrails/{made['id']}"
    for found in (await idle.get(path), (await idle.get("/api/guardrails", user=OTHER))["items"][0]):
        assert (found["name"], found["kind"], found["active"], found["spec"]) == (
            "No secrets", "deny_pattern", True, None,
        )  # fmt: skip
    for method, to, body in (
        ("POST", "/api/guardrails", NO_SECRETS),
        ("POST", "/api/guardrails/try", {"text": "x"}),
        ("PATCH", path, {"active": False}),
        ("DELETE", path, None),
    ):
        answer = await idle.call(method, to, body, if_match="*")
        assert (answer.status_code, answer.json()["title"]) == (403, "Forbidden"), (method, to)
    assert (await idle.get(path, user=ADMIN))["version"] == 1


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"kind": "deny_pattern", "pattern": "("}, "spec.pattern"),
        ({"kind": "deny_pattern", "pattern": "x?"}, "spec.pattern"),
        ({"kind": "max_length", "characters": 0}, "spec.max_length.characters"),
        ({"kind": "allowed_hosts", "hosts": ["https://example.com/"]}, "spec.allowed_hosts.hosts.0"),
        ({"kind": "telepathy"}, "spec"),
    ],
)
async def test_what_can_not_work_is_refused_by_field(idle: Api, spec: Any, field: str) -> None:
    answer = await idle.call("POST", "/api/guardrails", {"name": "x", "spec": spec}, user=ADMIN)
    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == [field], answer.text


async def test_a_text_is_tried(idle: Api) -> None:
    await guard(idle)
    await guard(idle, name="Short calls", spec={"kind": "max_length", "characters": 5, "scope": "tools"})

    async def tried(**body: Any) -> Any:
        answer = await idle.call("POST", "/api/guardrails/try", body, user=ADMIN)
        assert answer.status_code == 200, answer.text
        return answer.json()

    goal = await tried(text="the Top  Secret, or the top secret")
    assert (goal["allowed"], [each["rule"] for each in goal["verdicts"]]) == (False, ["No secrets"])
    assert goal["verdicts"][0]["reason"] == "it holds what the pattern of this rule denies"
    assert (await tried(text="nothing"))["allowed"]
    call = await tried(text='{"to": "all"}', what="tool call")
    assert [(each["rule"], each["allowed"]) for each in call["verdicts"]] == [
        ("No secrets", True), ("Short calls", False),
    ]  # fmt: skip
    one = await tried(text="x", spec={"kind": "deny_pattern", "pattern": "x"})
    assert [(each["rule"], each["allowed"]) for each in one["verdicts"]] == [("this one", False)]
    assert (await idle.get("/api/activity", user=ADMIN))["items"][0]["action"] == "guardrail_created"
