"""What was paid, by whom and for what; caps by the month; and who did what."""

from __future__ import annotations

import csv
import io

from tests.api.world import Api
from tests.postgres import ADMIN, OTHER, OWNER


async def test_usage_by_every_grouping(api: Api) -> None:
    loop = await api.make_loop(name="=HYPERLINK(1)")
    run = await api.finished(await api.start(loop))
    for group_by, group in (
        ("context", "loop"), ("loop", loop["id"]), ("model", "practice"), ("user", OWNER), ("day", None),
    ):  # fmt: skip
        rows = await api.get(f"/api/usage?group_by={group_by}")
        assert len(rows) == 1
        assert group is None or rows[0]["group"] == group
        assert (float(rows[0]["cost_usd"]), rows[0]["requests"]) == (float(run["spent_usd"]), 3)
        assert (await api.get(f"/api/usage?group_by={group_by}", user=OTHER)) == []
        assert len(await api.get(f"/api/usage?group_by={group_by}", user=ADMIN)) == 1
    table = await api.call("GET", "/api/usage?group_by=loop&format=csv")
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(table.text)))
    assert rows[0][:3] == ["group", "label", "cost_usd"]
    assert rows[1][1] == "'=HYPERLINK(1)"  # a spreadsheet must not take it for a formula
    assert (await api.get("/api/usage?since=2100-01-01T00:00:00Z")) == []
    for query in ("since=2026-01-01T00:00:00", "since=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z", "group_by=x"):
        assert (await api.call("GET", f"/api/usage?{query}")).status_code == 422


async def test_of_an_own_cap_and_that_of_an_admin_the_lower_one_holds(api: Api) -> None:
    path, loop = f"/api/people/{OWNER}", await api.make_loop()

    async def stopped_by(expected: str) -> str:
        run = await api.finished(await api.start(loop))
        (month,) = await api.get("/api/usage/month")
        assert month["cap_usd"] == expected
        return run["stop_reason"]

    assert (await api.call("PATCH", path, {"own_cap_usd": "0.00001"})).json()["own_cap_usd"] == "0.00001"
    assert await stopped_by("0.00001") == "budget"
    assert (await api.call("PATCH", path, {"own_cap_usd": "1"}, user=ADMIN)).status_code == 403  # the user's alone
    await api.call("PATCH", "/api/settings", {"monthly_cap_usd": "2"}, user=ADMIN, if_match="*")
    above = await api.call("PATCH", path, {"own_cap_usd": "3"})
    assert above.status_code == 422 and "above the $2.00 that an admin set" in above.text
    assert (await api.call("PATCH", path, {"own_cap_usd": "2"})).status_code == 200
    assert await stopped_by("2") == "max_iterations"
    await api.call("PATCH", path, {"monthly_cap_usd": "0.00002"}, user=ADMIN)  # lowered afterwards: it holds
    assert await stopped_by("0.00002") == "budget"


async def test_a_months_cap_holds_beside_the_runs(api: Api) -> None:
    path = f"/api/people/{OWNER}"
    assert (await api.call("PATCH", path, {"monthly_cap_usd": "0.00001"})).status_code == 403
    capped = await api.call("PATCH", path, {"monthly_cap_usd": "0.00001"}, user=ADMIN)
    assert capped.json()["monthly_cap_usd"] == "0.00001"
    run = await api.finished(await api.start(await api.make_loop()))
    assert (run["stop_reason"], float(run["spent_usd"])) == ("budget", 0)
    month = await api.get("/api/usage/month")
    assert [(each["owner_id"], each["cap_usd"]) for each in month] == [(OWNER, "0.00001")]
    assert len(await api.get("/api/usage/month", user=ADMIN)) == 3
    await api.call("PATCH", path, {"monthly_cap_usd": None}, user=ADMIN)
    run = await api.finished(await api.start(await api.make_loop()))
    assert run["stop_reason"] == "max_iterations"
    nobody = "/api/people/00000000-0000-4000-8000-0000000000ff"
    assert (await api.call("PATCH", nobody, {"monthly_cap_usd": "1"}, user=ADMIN)).status_code == 404
    assert len(await api.get("/api/people")) == 3


async def test_activity_is_ones_own_and_everybodys_for_an_admin(idle: Api) -> None:
    for _ in range(3):
        await idle.make_loop()
    await idle.make_loop(user=OTHER)
    assert {each["user_id"] for each in (await idle.get("/api/activity", user=OTHER))["items"]} == {OTHER}
    everybody = await idle.get("/api/activity", user=ADMIN)
    assert {each["user_id"] for each in everybody["items"]} == {OWNER, OTHER}
    pages, cursor = list[int](), ""
    while True:
        page = await idle.get(f"/api/activity?limit=2{cursor}", user=ADMIN)
        pages += [each["id"] for each in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert pages == [each["id"] for each in everybody["items"]]
