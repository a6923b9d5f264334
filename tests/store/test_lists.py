"""Lists: stable under inserts, cursors that can't be made up, and plans that don't look at everything."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest

from loopwright.core.errors import InvalidInput
from loopwright.store.database import Connection, Database, connect_direct
from loopwright.store.paging import Place, page, read_cursor
from loopwright.store.run_queries import RunFilter, list_runs
from tests.postgres import ADMIN, OTHER, OWNER

MANY = 100_000

FILL = """
insert into loop_runs (id, loop_id, loop_name, owner_id, door, spec, goal, created_at)
select 'run_' || lpad(n::text, 21, '0'), case when n %% 1000 = 0 then %(shared)s::uuid else %(private)s::uuid end, 'l',
  %(owner)s, 'api', '{}', 'goal', now() - make_interval(secs => n)
from generate_series(1, %(many)s) n
"""


async def _loops(c: Connection) -> tuple[str, str]:
    ids = ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002")
    for loop_id, visibility in zip(ids, ("private", "workspace"), strict=True):
        await c.execute(
            "insert into agents (id, owner_id, name, spec, visibility) values (%s, %s, 'a', '{}', %s)",
            (loop_id, OWNER, visibility),
        )
        await c.execute(
            "insert into loops (id, owner_id, name, agent_id, spec, worst_case_usd, visibility) "
            "values (%s, %s, 'l', %s, '{}', 0, %s)",
            (loop_id, OWNER, loop_id, visibility),
        )
    return ids


async def _read(database: Database, user: str, place: Place, only: RunFilter, limit: int = 50) -> Any:
    async with database.as_user(user) as c:
        return await list_runs(c, user, place, limit, only, everybody=user == ADMIN)


async def test_fifty_of_a_hundred_thousand_without_looking_at_all(database: Database) -> None:
    async with await connect_direct(database.urls) as c:
        private, shared = await _loops(c)
        await c.execute(FILL, {"private": private, "shared": shared, "owner": OWNER, "many": MANY})
        few = "update loop_runs set owner_id = %s, loop_id = null where id in (select id from loop_runs limit 3)"
        await c.execute(few, (OTHER,))
        await c.execute("analyze")
    for user, expected in ((OWNER, 51), (OTHER, 51), (ADMIN, 51)):
        for only in (RunFilter(), RunFilter(loop_id=None, status="queued")):
            rows = await _read(database, user, Place(), only)
            assert len(rows) == expected
            deep = Place(rows[-1].created_at.isoformat(), rows[-1].id)
            begun = time.perf_counter()
            assert len(await _read(database, user, deep, only)) == 51
            assert time.perf_counter() - begun < 0.5
            for place in (Place(), deep):
                plan = await _plan(database, user, place, only)
                scans = [node for node in _nodes(plan) if node.get("Relation Name") == "loop_runs"]
                assert scans, plan
                assert all(node["Node Type"] != "Seq Scan" for node in scans), (user, only)
                looked_at = sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans)
                assert looked_at < 1_000, (user, looked_at)
    # Somebody who has few runs and sees none of the others'.
    async with await connect_direct(database.urls) as c:
        await c.execute("update loops set visibility = 'private'")
    assert len(await _read(database, OTHER, Place(), RunFilter())) == 3
    plan = await _plan(database, OTHER, Place(), RunFilter())
    assert all(node["Node Type"] != "Seq Scan" for node in _nodes(plan) if node.get("Relation Name") == "loop_runs")


async def _plan(database: Database, user: str, place: Place, only: RunFilter) -> dict[str, Any]:
    """The plan of a list, as it is executed for this user."""

    class Explaining:
        """Stands for a connection whose cursors explain."""

        def __init__(self, connection: Connection) -> None:
            self.connection = connection
            self.plan: list[Any] = []

        def cursor(self, **_: object) -> Explaining:
            return self

        async def execute(self, query: str, parameters: dict[str, object]) -> None:
            explain = cast(Any, f"explain (analyze, format json) {query}")
            row = await (await self.connection.execute(explain, parameters)).fetchone()
            self.plan = row[0] if row else []

        async def fetchall(self) -> list[Any]:
            return []

    async with database.as_user(user) as c:
        explaining = Explaining(c)
        await list_runs(cast(Any, explaining), user, place, 50, only, everybody=user == ADMIN)
        return explaining.plan[0]["Plan"]


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", []) for node in _nodes(part))]


async def test_pages_are_stable_while_rows_are_added(database: Database) -> None:
    async with await connect_direct(database.urls) as c:
        private, shared = await _loops(c)
        fill = {"private": private, "shared": shared, "owner": OWNER, "many": 50}
        await c.execute(FILL, fill)
        # Several rows of one moment: the id decides.
        await c.execute("update loop_runs set created_at = now() - interval '1 hour' where id ~ '[34]$'")
        seen: list[str] = []
        place = Place()
        while True:
            rows = await _read(database, OWNER, place, RunFilter(), limit=7)
            shown = page(rows, 7)
            seen += [run.id for run in shown.items]
            await c.execute(
                "insert into loop_runs (id, loop_name, owner_id, door, spec, goal) "
                "values (%s, 'l', %s, 'api', '{}', 'g')",
                (f"run_new{len(seen)}", OWNER),
            )
            if shown.next_cursor is None:
                break
            place = read_cursor(shown.next_cursor, uuids=False)
    assert len(seen) == len(set(seen)) == 50
    assert not any(run.startswith("run_new") for run in seen)


@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "====", "MXww", "a" * 500, "\x00", "é", "MXwyMDI2LTExLTMwVDAwOjAwOjAwfHJ1bl8x", "1", "null", "'; --",
        Place("2026-11-30T00:00:00+00:00", "x|y").encode(), Place("never", "run_1").encode(),
        Place("2026-11-30T00:00:00+00:00", "run_1").encode() + "=",
        Place("2026-11-30T00:00:00+00:00", "run 1").encode(), Place("infinity", "run_1").encode(),
    ],
)  # fmt: skip
def test_cursors_that_nobody_gave_out(cursor: str) -> None:
    with pytest.raises(InvalidInput):
        read_cursor(cursor, uuids=False)
    with pytest.raises(InvalidInput):
        read_cursor(cursor)


def test_a_cursor_is_read_as_it_was_given() -> None:
    place = Place("2026-11-30T01:02:03.000004+00:00", "run_1")
    assert read_cursor(place.encode(), uuids=False) == place
    assert json.dumps(place.encode())
