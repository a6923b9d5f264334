"""Row-level security: for every table, what each kind of caller sees and may write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from loopwright.store.database import Connection, Database, connect_direct
from tests.postgres import ADMIN, OTHER, OWNER

TABLES = (
    "profiles", "secrets", "tools", "agents", "loops", "loop_runs", "loop_iterations", "run_events", "run_journal",
    "wallet_entries", "monthly_spend", "usage_records", "activity_log", "idempotency_keys", "workers",
    "workspace_settings",
    "api_keys",
    "sign_ins",
    "schedules", "schedule_firings", "webhooks", "webhook_messages", "webhook_rates",
    "guardrails",
    "assistant_threads", "assistant_messages",
    "endpoints", "deliveries", "delivery_attempts",
)  # fmt: skip

CALLERS = ("owner", "member", "admin", "stranger", "anon", "service", "nobody")
STRANGER = "00000000-0000-0000-0000-00000000000d"
"""Somebody with a valid token who is not of the workspace."""

DENIED = "denied"

# How many of the rows that `filled` makes each caller sees: one private and one shared set of the owner's.
SEEN: dict[str, tuple[int | str, ...]] = {
    #                    owner   member  admin   stranger anon    service nobody
    "profiles":         (3,      3,      3,      0,      DENIED, 3,      DENIED),
    "secrets":          (1,      0,      0,      0,      DENIED, 1,      DENIED),
    "tools":            (6,      5,      6,      0,      DENIED, 6,      DENIED),
    "agents":           (2,      1,      2,      0,      DENIED, 2,      DENIED),
    "loops":            (2,      1,      2,      0,      DENIED, 2,      DENIED),
    "loop_runs":        (2,      1,      2,      0,      DENIED, 2,      DENIED),
    "loop_iterations":  (2,      1,      2,      0,      DENIED, 2,      DENIED),
    "run_events":       (2,      1,      2,      0,      DENIED, 2,      DENIED),
    "run_journal":      (DENIED, DENIED, DENIED, DENIED, DENIED, 2,      DENIED),
    "wallet_entries":   (DENIED, DENIED, DENIED, DENIED, DENIED, 2,      DENIED),
    "monthly_spend":    (1,      0,      1,      0,      DENIED, 1,      DENIED),
    "usage_records":    (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "activity_log":     (1,      0,      1,      0,      DENIED, 1,      DENIED),
    "idempotency_keys": (1,      0,      0,      0,      DENIED, 1,      DENIED),
    "workers":          (DENIED, DENIED, DENIED, DENIED, DENIED, 1,      DENIED),
    "workspace_settings": (1,    1,      1,      0,      DENIED, 1,      DENIED),
    "api_keys":         (1,      0,      0,      0,      DENIED, 1,      DENIED),
    "sign_ins":         (DENIED, DENIED, DENIED, DENIED, DENIED, 1,      DENIED),
    "schedules":        (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "schedule_firings": (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "webhooks":         (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "webhook_messages": (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "guardrails":       (0,      0,      1,      0,      DENIED, 1,      DENIED),
    "assistant_threads": (2,     0,      0,      0,      DENIED, 2,      DENIED),
    "assistant_messages": (2,    0,      0,      0,      DENIED, 2,      DENIED),
    "webhook_rates":    (DENIED, DENIED, DENIED, DENIED, DENIED, 2,      DENIED),
    "endpoints":        (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "deliveries":       (2,      0,      2,      0,      DENIED, 2,      DENIED),
    "delivery_attempts": (2,     0,      2,      0,      DENIED, 2,      DENIED),
}  # fmt: skip

WRITABLE = {"secrets", "tools", "agents", "loops", "idempotency_keys", "schedules", "webhooks", "endpoints"}
"""Tables that callers write by themselves; all others only through functions, or not at all."""


@dataclass
class World:
    database: Database
    direct: Connection


@pytest.fixture
async def filled(database: Database) -> AsyncGenerator[World]:
    """Each table with one private and one shared row of the owner's."""
    async with await connect_direct(database.urls) as c:
        for number, visibility in ((1, "private"), (2, "workspace")):
            key = f"00000000-0000-4000-8000-00000000000{number}"
            run = f"run_{number}"
            values: dict[str, Any] = {"id": key, "owner": OWNER, "visibility": visibility, "run": run}
            for statement in _ROWS:
                await c.execute(statement, values)
        for statement in _ONCE:
            await c.execute(statement, {"owner": OWNER})
        yield World(database, c)


_ROWS = (
    "insert into tools (id, owner_id, name, kind, visibility) values (%(id)s, %(owner)s, 't', 'http', %(visibility)s)",
    "insert into agents (id, owner_id, name, spec, visibility) values (%(id)s, %(owner)s, 'a', '{}', %(visibility)s)",
    "insert into loops (id, owner_id, name, agent_id, spec, worst_case_usd, visibility) "
    "values (%(id)s, %(owner)s, 'l', %(id)s, '{}', 0, %(visibility)s)",
    "insert into loop_runs (id, loop_id, loop_name, owner_id, door, spec, goal) "
    "values (%(run)s, %(id)s, 'l', %(owner)s, 'api', '{}', 'g')",
    "insert into loop_iterations (run_id, attempt, number, position, cost_usd, elapsed_seconds, is_best, data) "
    "values (%(run)s, 1, 1, 1, 0, 0, true, '{}')",
    "insert into run_events (run_id, seq, type, data) values (%(run)s, 1, 'run_started', '{}')",
    "insert into run_journal (run_id, operation, attempt, iteration, result, epoch) "
    "values (%(run)s, 'o', 1, 1, '1', 1)",
    "insert into wallet_entries (id, run_id, owner_id, month, role, model, attempt, iteration, reserved_usd, epoch) "
    "values (%(run)s, %(run)s, %(owner)s, '2026-11-01', 'agent', 'm', 1, 1, 0, 1)",
    "insert into usage_records (context, owner_id, run_id, role, model, basis, cost_usd) "
    "values ('loop', %(owner)s, %(run)s, 'agent', 'm', 'usage', 0)",
    "insert into schedules (id, owner_id, name, loop_id, cron, zone) "
    "values (%(id)s, %(owner)s, 's', %(id)s, '@daily', 'UTC')",
    "insert into schedule_firings (schedule_id, due_at, start_at) values (%(id)s, '2026-11-30', '2026-11-30')",
    "insert into webhooks (id, owner_id, name, loop_id, nonce, sealed, key_id) "
    "values (%(id)s, %(owner)s, 'w', %(id)s, '123456789012', 'x', 'k')",
    "insert into webhook_messages (webhook_id, message_id) values (%(id)s, 'm')",
    "insert into webhook_rates (webhook_id, free_at) values (%(id)s, now())",
    "insert into assistant_threads (id, owner_id, agent_id, run_id) values (%(id)s, %(owner)s, %(id)s, %(run)s)",
    "insert into assistant_messages (thread_id, position, text, after_seq) values (%(id)s, 1, 'hello', 0)",
    "insert into endpoints (id, owner_id, name, url, nonce, sealed, key_id) "
    "values (%(id)s, %(owner)s, 'e', 'https://example.com', '123456789012', 'x', 'k')",
    "insert into deliveries (id, endpoint_id, owner_id, run_id, event, payload) "
    "values (%(id)s, %(id)s, %(owner)s, %(run)s, 'run.finished', '{}')",
    "insert into delivery_attempts (delivery_id, number, at, seconds) values (%(id)s, 1, now(), 1)",
)
_ONCE = (
    "insert into guardrails (id, name, kind, spec) values (%(owner)s, 'g', 'max_length', '{\"characters\": 5}')",
    "insert into secrets (owner_id, name, nonce, sealed, key_id) values (%(owner)s, 'S', '123456789012', 'x', 'k')",
    "insert into monthly_spend (owner_id, month) values (%(owner)s, '2026-11-01')",
    "insert into activity_log (user_id, door, action, subject) values (%(owner)s, 'api', 'a', 's')",
    "insert into idempotency_keys (owner_id, key, request_sha256) values (%(owner)s, 'k', 'x')",
    "insert into workers (executor, host, pid) values ('w', 'h', 1)",
    "insert into api_keys (owner_id, name, prefix, sha256) values (%(owner)s, 'k', 'lw_', sha256('k'))",
    "insert into sign_ins (id, user_id, nonce, sealed, key_id, fresh_until, ends_at) "
    "values (sha256('x'), %(owner)s, '123456789012', 'x', 'k', now(), now() + interval '1 day')",
    "insert into auth.users (id) values ('00000000-0000-0000-0000-00000000000d')",
    "delete from profiles where id = '00000000-0000-0000-0000-00000000000d'",
)


BECOME = "select set_config('role', 'authenticated', true), set_config('request.jwt.claims', %s, true)"


@asynccontextmanager
async def acting(database: Database, caller: str) -> AsyncGenerator[Connection]:
    """A transaction as one of CALLERS, always rolled back."""
    users = {"owner": OWNER, "member": OTHER, "admin": ADMIN, "stranger": STRANGER}
    async with database.pool.connection() as c, c.transaction(force_rollback=True):
        if caller in users:
            claims = f'{{"sub": "{users[caller]}", "role": "authenticated"}}'
            await c.execute(BECOME, (claims,))
        elif caller != "nobody":
            role = {"anon": "anon", "service": "service_role"}[caller]
            await c.execute("select set_config('role', %s, true)", (role,))
        yield c


async def _count(c: Connection, table: str) -> int | str:
    column = "id" if table in ("secrets", "webhooks", "profiles", "api_keys", "endpoints") else "*"
    query = sql.SQL("select count({}) from public.{}").format(sql.SQL(cast(Any, column)), sql.Identifier(table))
    if table == "tools":
        query += sql.SQL(" where true")
    try:
        async with c.transaction():
            row = await (await c.execute(query)).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return DENIED
    return row[0] if row else 0


async def test_who_sees_what(filled: World) -> None:
    seen: dict[str, tuple[int | str, ...]] = {}
    for table in TABLES:
        found: list[int | str] = []
        for caller in CALLERS:
            async with acting(filled.database, caller) as c:
                found.append(await _count(c, table))
        seen[table] = tuple(found)
    # Every member sees the builtin beside the owner's own.
    assert seen == SEEN


async def test_the_table_lists_every_table(filled: World) -> None:
    rows = await filled.direct.execute("select tablename, rowsecurity from pg_tables where schemaname = 'public'")
    found = dict(cast("list[tuple[str, bool]]", await rows.fetchall()))
    assert set(found) == set(TABLES) == set(SEEN)
    assert all(found.values()), "row-level security is off somewhere"


async def test_nobody_deletes_or_changes_what_is_somebody_elses(filled: World) -> None:
    for table in TABLES:
        for caller in ("member", "stranger", "anon", "nobody"):
            async with acting(filled.database, caller) as c:
                for verb in ("delete from public.{}", "update public.{} set {} = {}"):
                    column = _any_column(table)
                    statement = sql.SQL(cast(Any, verb)).format(*(sql.Identifier(n) for n in (table, column, column)))
                    try:
                        async with c.transaction():
                            touched = (await c.execute(statement)).rowcount
                    except psycopg.errors.InsufficientPrivilege:
                        touched = 0
                    assert touched == 0, (table, caller, verb)


def _any_column(table: str) -> str:
    return {
        "secrets": "key_id",
        "loops": "name",
        "schedules": "name",
        "webhooks": "name",
        "endpoints": "name",
        "idempotency_keys": "status",
    }.get(table, _FIRST.get(table, "id"))


_FIRST = {
    "loop_iterations": "run_id", "run_events": "run_id", "run_journal": "run_id", "monthly_spend": "owner_id",
    "workers": "executor", "tools": "name", "agents": "name", "usage_records": "model", "activity_log": "action",
    "api_keys": "name",
    "schedule_firings": "outcome", "webhook_messages": "run_id", "assistant_messages": "text",
    "webhook_rates": "free_at", "deliveries": "state", "delivery_attempts": "answer",
}  # fmt: skip


async def test_owners_change_only_what_is_theirs_to_change(filled: World) -> None:
    for table in set(TABLES) - WRITABLE:
        async with acting(filled.database, "owner") as c:
            column = sql.Identifier(_any_column(table))
            statement = sql.SQL("update public.{} set {} = {}").format(sql.Identifier(table), column, column)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(statement)


async def test_rows_can_not_be_given_to_somebody_else_or_made_for_them(filled: World) -> None:
    async with acting(filled.database, "member") as c:
        for statement in (
            "insert into agents (owner_id, name, spec) values (%s, 'x', '{}')",
            "insert into tools (owner_id, name, kind) values (%s, 'x', 'http')",
            "insert into secrets (owner_id, name, nonce, sealed, key_id) values (%s, 'X', '123456789012', 'x', 'k')",
            "insert into idempotency_keys (owner_id, key, request_sha256) values (%s, 'x', 'x')",
            "insert into api_keys (owner_id, name, prefix, sha256) values (%s, 'x', 'lw_', sha256('x'))",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with c.transaction():
                    await c.execute(statement, (OWNER,))
    async with acting(filled.database, "owner") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("update agents set owner_id = %s", (OTHER,))


async def test_the_settings_of_the_workspace_are_for_admins_to_change(filled: World) -> None:
    for caller, rows in (("owner", 0), ("member", 0), ("stranger", 0), ("admin", 1)):
        async with acting(filled.database, caller) as c:
            assert (await c.execute("update workspace_settings set allow_hosts = '{x}'")).rowcount == rows
    for statement in ("insert into workspace_settings default values", "delete from workspace_settings"):
        async with acting(filled.database, "admin") as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(cast(Any, statement))


async def test_guardrails_are_for_admins_to_write_and_for_members_to_know_of(filled: World) -> None:
    insert = "insert into guardrails (name, kind, spec) values ('x', 'max_length', '{}')"
    names = "select name, kind, active from private.guardrail_names()"
    for caller, changed, seen in (("owner", 0, 1), ("member", 0, 1), ("stranger", 0, 0), ("admin", 1, 1)):
        async with acting(filled.database, caller) as c:
            for statement in ("update guardrails set active = false", "delete from guardrails"):
                async with c.transaction(force_rollback=True):
                    assert (await c.execute(cast(Any, statement))).rowcount == changed, (caller, statement)
            rows = await (await c.execute(names)).fetchall()
            assert rows == [("g", "max_length", True)][:seen], caller
            if caller == "admin":
                await c.execute(insert)
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(insert)
    for caller in ("anon", "nobody", "service"):
        async with acting(filled.database, caller) as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(names)
    async with acting(filled.database, "admin") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("update guardrails set version = 9")


async def test_a_loop_can_not_be_made_with_somebody_elses_private_agent(filled: World) -> None:
    insert = "insert into loops (name, agent_id, spec, worst_case_usd) values ('x', %s, '{}', 0)"
    async with acting(filled.database, "member") as c:
        await c.execute(insert, ("00000000-0000-4000-8000-000000000002",))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute(insert, ("00000000-0000-4000-8000-000000000001",))


async def test_a_schedule_starts_only_what_its_writer_can_see(filled: World) -> None:
    insert = "insert into schedules (name, loop_id, cron, zone) values ('x', %s, '@daily', 'UTC')"
    async with acting(filled.database, "member") as c:
        await c.execute(insert, ("00000000-0000-4000-8000-000000000002",))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute(insert, ("00000000-0000-4000-8000-000000000001",))
    async with acting(filled.database, "owner") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("update schedules set owner_id = %s", (OTHER,))
    async with acting(filled.database, "stranger") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("insert into schedules (name, cron, zone, status) values ('x', '@daily', 'UTC', 'paused')")


async def test_a_webhook_takes_messages_for_its_owner_alone(filled: World) -> None:
    key = "00000000-0000-4000-8000-000000000001"
    insert = "insert into webhook_messages (webhook_id, message_id) values (%s, 'x')"
    for caller in ("member", "admin", "stranger"):
        async with acting(filled.database, caller) as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(insert, (key,))
    async with acting(filled.database, "owner") as c:
        await c.execute(insert, (key,))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("select sealed from webhooks")


async def test_an_endpoint_for_everybody_is_an_admins_and_its_deliveries_are_nobodys_to_write(filled: World) -> None:
    insert = (
        "insert into endpoints (id, name, url, scope, nonce, sealed, key_id) "
        "values (gen_random_uuid(), 'x', 'https://example.com', %s, '123456789012', 'x', 'k')"
    )
    for caller, scope, may in (
        ("owner", "own", True), ("owner", "workspace", False), ("admin", "workspace", True), ("stranger", "own", False),
    ):  # fmt: skip
        async with acting(filled.database, caller) as c:
            if may:
                await c.execute(insert, (scope,))
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(insert, (scope,))
    for statement in (
        "update endpoints set scope = 'workspace'",
        "update endpoints set owner_id = '00000000-0000-0000-0000-00000000000b'",
        "select sealed from endpoints",
        "select old_sealed from endpoints",
        "update deliveries set state = 'waiting', next_at = now()",
        "insert into delivery_attempts (delivery_id, number, at, seconds) select id, 2, now(), 1 from deliveries",
        "select private.may_listen(auth.uid(), 'own')",
    ):
        async with acting(filled.database, "owner") as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(cast(Any, statement))
    key = "00000000-0000-4000-8000-000000000001"
    for caller, may in (("owner", True), ("admin", True), ("member", False), ("stranger", False)):
        async with acting(filled.database, caller) as c:
            again = await (await c.execute("select private.send_again(%s)", (key,))).fetchone()
            test = await (await c.execute("select private.send_test(%s) is not null", (key,))).fetchone()
            assert (again, test) == ((may,), (may,)), caller
            await c.execute("select private.renew_endpoint_secret(%s, '210987654321', 'y', 'k', 60)", (key,))
            changed = await c.execute("select 1 from endpoints where id = %s and old_until > now()", (key,))
            assert bool(await changed.fetchone()) == may, caller


async def test_sealed_values_are_for_the_service_alone(filled: World) -> None:
    for caller in ("owner", "admin"):
        async with acting(filled.database, caller) as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute("select sealed from secrets")


async def test_the_hash_of_a_key_is_for_the_service_alone(filled: World) -> None:
    for caller in ("owner", "admin"):
        for statement in ("select sha256 from api_keys", "select private.owner_of_key(sha256('k'))"):
            async with acting(filled.database, caller) as c:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await c.execute(cast(Any, statement))
    async with acting(filled.database, "service") as c:
        row = await (await c.execute("select private.owner_of_key(sha256('k'))")).fetchone()
        assert row is not None and str(row[0]) == OWNER
    async with acting(filled.database, "stranger") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("insert into api_keys (name, prefix, sha256) values ('x', 'lw_', sha256('x'))")


async def test_roles_are_set_by_admins_and_one_stays(filled: World) -> None:
    give = "select private.set_role(%s, %s)"
    for caller in ("owner", "member", "stranger"):
        async with acting(filled.database, caller) as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(give, (OTHER, "admin"))
    async with acting(filled.database, "admin") as c:
        for user, role, outcome in ((ADMIN, "member", "last"), (OTHER, "admin", "ok"), (ADMIN, "member", "ok")):
            row = await (await c.execute(give, (user, role))).fetchone()
            assert row == (outcome,)


async def test_an_own_cap_is_the_users_alone_and_all_of_a_profile_that_a_user_changes(filled: World) -> None:
    for caller, rows in (("owner", 1), ("member", 1), ("admin", 1), ("stranger", 0)):
        async with acting(filled.database, caller) as c:
            assert (await c.execute("update profiles set own_cap_usd = 1")).rowcount == rows  # the own row
    for statement in ("update profiles set monthly_cap_usd = 9", "update profiles set role = 'admin'"):
        async with acting(filled.database, "owner") as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(cast(Any, statement))


async def test_two_admins_who_demote_each_other_leave_one(filled: World) -> None:
    await filled.direct.execute("update profiles set role = 'admin' where id = %s", (OWNER,))

    async def demote(by: str, whom: str) -> str | None:
        try:
            async with filled.database.as_user(by) as c:
                row = await (await c.execute("select private.set_role(%s, 'member')", (whom,))).fetchone()
                await asyncio.sleep(0.05)
                return str(row[0]) if row else None
        except psycopg.errors.InsufficientPrivilege:
            return None

    outcomes = await asyncio.gather(demote(OWNER, ADMIN), demote(ADMIN, OWNER))
    assert sorted(map(str, outcomes)) == ["None", "ok"]


async def test_the_folder_of_a_loop_is_not_for_people_to_choose(filled: World) -> None:
    async with acting(filled.database, "owner") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("update loops set folder = '/'")


async def test_what_the_engine_calls_is_not_for_callers(filled: World) -> None:
    for statement in (
        "select private.take_run('run_2', 'me', null, null)",
        "select private.add_events('run_2', '[]', null)",
        "select private.lock_run('run_2')",
        "select private.start_child('run_2', 0, '', false, '', 'r', null, '', null, '{}', '', 1, 0, null, 9, 9, 1, 1)",
        "select private.switch_builtin((select id from tools where name = 'start_loop'), false)",
        "select private.builtins_of(null)",
        "select private.can_see_run('run_2')",
    ):
        async with acting(filled.database, "owner") as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await c.execute(cast(Any, statement))


async def test_who_was_banned_or_deleted_or_is_anonymous_is_no_member(filled: World) -> None:
    for change in ("banned_until = now() + interval '1 day'", "deleted_at = now()"):
        await filled.direct.execute(cast(Any, f"update auth.users set {change} where id = %s"), (OTHER,))
        await filled.direct.execute(cast(Any, f"update auth.users set {change} where id = %s"), (ADMIN,))
        for caller in ("member", "admin"):
            async with acting(filled.database, caller) as c:
                for table in ("profiles", "loops", "agents", "loop_runs", "run_events", "usage_records"):
                    assert await _count(c, table) == 0, (change, caller, table)
        await filled.direct.execute("update auth.users set banned_until = now() - interval '1 s', deleted_at = null")
        async with acting(filled.database, "member") as c:
            assert await _count(c, "loops") == 1  # a ban that is over
    await filled.direct.execute("insert into auth.users (id, is_anonymous) values (gen_random_uuid(), true)")
    rows = await filled.direct.execute("select count(*) from profiles")
    assert await rows.fetchone() == (3,)


async def test_who_is_no_member_has_nothing_not_even_its_own(filled: World) -> None:
    """Whichever way it comes: by the address of the database that Supabase gives to the world, too."""
    rows = await filled.direct.execute(
        "select distinct p.tablename::text from pg_policies p where p.schemaname = 'public' "
        "and 'authenticated' = any(p.roles) and not exists (select from pg_policies r "
        "where r.tablename = p.tablename and r.policyname = 'members_only' and r.permissive = 'RESTRICTIVE')"
    )
    assert await rows.fetchall() == [], "these have no policy `members_only`"
    await filled.direct.execute("delete from profiles where id = %s", (OWNER,))
    for table in TABLES:
        async with acting(filled.database, "owner") as c:
            assert await _count(c, table) in (0, DENIED), table
    async with acting(filled.database, "owner") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("insert into agents (name, spec) values ('x', '{}')")


async def test_an_agent_of_an_admin_sees_what_a_member_sees(filled: World) -> None:
    agents = filled.database.for_agents()
    for table in ("loops", "agents", "loop_runs", "tools"):
        async with agents.as_user(ADMIN) as as_agent, acting(filled.database, "member") as as_member:
            assert await _count(as_agent, table) == await _count(as_member, table), table
    async with agents.as_user(ADMIN) as c:
        row = await (await c.execute("select private.is_admin(), private.is_member()")).fetchone()
        assert row == (False, True)
    async with filled.database.as_user(ADMIN) as c:
        assert await (await c.execute("select private.is_admin()")).fetchone() == (True,)


async def test_steering_is_for_the_owner_and_admins(filled: World) -> None:
    for caller, may in (("owner", True), ("admin", True), ("member", False), ("stranger", False)):
        for call in ("private.cancel_run('run_2')", "private.extend_run('run_2', '{}', null)"):
            async with acting(filled.database, caller) as c:
                if may:
                    await c.execute(cast(Any, f"select {call}"))
                    continue
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await c.execute(cast(Any, f"select {call}"))


THREAD = "00000000-0000-4000-8000-000000000002"


async def test_a_conversation_is_its_owners_alone(filled: World) -> None:
    await filled.direct.execute("update loop_runs set is_thread = true, loop_id = null where id = 'run_2'")
    for caller, seen in (("owner", 1), ("admin", 0), ("member", 0), ("stranger", 0)):
        async with acting(filled.database, caller) as c:
            for table in ("loop_runs", "loop_iterations", "run_events"):
                column = "id" if table == "loop_runs" else "run_id"
                rows = await c.execute(cast(Any, f"select count(*) from {table} where {column} = 'run_2'"))
                assert await rows.fetchone() == (seen,), (caller, table)
            if caller != "owner":
                change = f"select private.change_thread('{THREAD}', 'mine', 1000, null)"
                assert await (await c.execute(cast(Any, change))).fetchone() == ("gone",)
                post = f"select outcome from private.post_message('{THREAD}', 'x', '{{}}', 'x')"
                assert await (await c.execute(cast(Any, post))).fetchone() == ("gone",)
    async with acting(filled.database, "stranger") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute(cast(Any, f"select private.open_thread('{THREAD}', 'r', null, 'a', '', 1)"))
    async with acting(filled.database, "owner") as c:
        row = await (await c.execute("select private.extend_run('run_2', '{}', 1000)")).fetchone()
        assert row == (None,)


async def test_a_stranger_starts_nothing(filled: World) -> None:
    start = "select private.start_run('run_9', null, 'l', null, 'api', '{}', 'g', null, null, null, null)"
    async with acting(filled.database, "stranger") as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute(start)


async def test_the_activity_log_is_append_only(filled: World) -> None:
    for statement in ("update activity_log set action = 'x'", "delete from activity_log"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await filled.direct.execute(cast(Any, statement))


async def test_claims_end_with_their_transaction(filled: World) -> None:
    async with filled.database.as_user(OWNER) as c:
        await c.execute("select 1 from loops")
    async with filled.database.pool.connection() as c:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await c.execute("select 1 from loops")
