"""The database fails: it restarts, refuses, fills up. What is paid for is recorded, or the run waits until it is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import LiteralString, cast
from uuid import UUID

import pytest
from psycopg import sql

from loopwright.core.errors import BudgetExceeded, StoreUnavailable
from loopwright.core.ports import Operation, Spender
from loopwright.core.wallet import Charge
from loopwright.service import executor as executors
from loopwright.service.engine import Engine
from loopwright.store.database import Database, connect_direct
from loopwright.store.embedded import EmbeddedServer
from loopwright.store.run_store import PgRunStore, take_run
from loopwright.store.runs import Submission

from ..postgres import OWNER, open_database
from ..postgres import _make_template as make_template  # pyright: ignore[reportPrivateUsage]
from .loops import KINDS
from .outside import Outside, outside
from .stage import Workers, Zygote, all_rows, insert_run, money_of, new_tag, outcome_of, until_finished, workers
from .worker import load

AWAY_SECONDS = float(os.environ.get("LOOPWRIGHT_TEST_AWAY_SECONDS", "5"))
"""How long the database stays away; 20 by hand."""


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Outside]:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    async with outside() as made:
        yield made


@asynccontextmanager
async def executing(database: Database, *runs: str) -> AsyncGenerator[Engine]:
    """An engine in this process that executes runs."""
    async with Engine(database=database, load=load, beat_seconds=0.2) as engine:
        for run in runs:
            await engine.submit(Submission(run, UUID(OWNER), 0))
        yield engine


async def break_inserts(database: Database, table: str, when: str, code: str = "53100") -> None:
    """Make inserts or updates of a table fail as on a full disk."""
    function = sql.SQL(
        "create function private.broken() returns trigger language plpgsql as $$ "
        "begin raise exception 'No space left on device' using errcode = {}; end $$"
    )
    trigger = sql.SQL(
        "create trigger broken before insert or update on public.{} for each row when ({}) "
        "execute function private.broken()"
    )
    async with await connect_direct(database.urls) as connection:
        await connection.execute(function.format(sql.Literal(code)))
        await connection.execute(trigger.format(sql.Identifier(table), sql.SQL(cast(LiteralString, when))))


async def mend(database: Database, table: str) -> None:
    async with await connect_direct(database.urls) as connection:
        await connection.execute(sql.SQL("drop trigger broken on public.{}").format(sql.Identifier(table)))


@pytest.mark.parametrize("type_", ["money_reserved", "money_settled", "candidate_produced", "iteration_finished"])
async def test_a_run_whose_events_cannot_be_recorded_stops_after_what_is_paid_is_booked(
    type_: str, database: Database, world: Outside
) -> None:
    tag = new_tag()
    run = await insert_run(database, KINDS["converging"](world.url, tag))
    await break_inserts(database, "run_events", f"new.seq >= 8 and new.type = '{type_}'")
    async with executing(database, run):
        await until_finished(database, [run])
    outcome, money = await outcome_of(database, run), await money_of(database, run)
    assert outcome.stop_reason == "error"
    assert "No space left on device" in (outcome.error or "")
    assert outcome.best[1] == 1  # the best so far is kept
    assert world.requests[tag] <= 2  # and nothing goes on
    assert world.billed[tag] == money.spent == money.usage == money.entries
    assert (money.reserved, money.still_open) == (0, 0)


async def test_a_run_whose_end_cannot_be_recorded_is_ended_when_there_is_room_again(
    database: Database, world: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "AGAIN_SECONDS", 0.05)
    tag = new_tag()
    run = await insert_run(database, KINDS["converging"](world.url, tag))
    await break_inserts(database, "loop_runs", "new.event_seq > 9 or new.status = 'finished'")
    async with executing(database, run) as engine:
        await world.asked(2)
        for _ in range(5):
            await asyncio.sleep(0.1)
            assert engine.running == 1
        assert world.requests[tag] == 2
        await mend(database, "loop_runs")
        await until_finished(database, [run])
    money = await money_of(database, run)
    assert (await outcome_of(database, run)).stop_reason == "error"
    assert world.billed[tag] <= money.spent == money.usage == money.entries
    assert (money.reserved, money.still_open) == (0, 0)


async def test_a_loop_that_cannot_be_made_ends_its_run_with_an_event(database: Database) -> None:
    spec = KINDS["plain"]("http://127.0.0.1:9", new_tag())
    run = await insert_run(database, {**spec, "agent": {"model": "nobody:knows"}})
    async with executing(database, run):
        await until_finished(database, [run])
    rows = await all_rows(database, "select data from public.run_events where run_id = %s order by seq", run)
    assert [(data["type"], data["stop_reason"]) for (data,) in rows] == [("run_finished", "error")]


async def test_a_reservation_that_is_cancelled_while_it_is_made_is_given_back(database: Database) -> None:
    run = await insert_run(database, KINDS["plain"]("http://127.0.0.1:9", new_tag()))
    store = await _taken(database, run)
    async with await connect_direct(database.urls) as holder, holder.transaction():
        await holder.execute("select from public.loop_runs where id = %s for update", (run,))
        reserving = asyncio.ensure_future(store.reserve(Spender(role="agent"), "m", Decimal("0.1")))
        await asyncio.sleep(0.2)
        reserving.cancel()
        await asyncio.sleep(0.1)
        assert not reserving.done()  # what the database was asked is not taken back halfway
    with pytest.raises(asyncio.CancelledError):
        await reserving
    assert await all_rows(database, "select basis, amount_usd from public.wallet_entries") == [("released", 0)]
    assert (await store.wallet()).reserved == 0
    assert (await money_of(database, run)).reserved == 0


async def test_attempts_on_one_wallet_and_runs_on_one_month_never_overspend_and_never_wait_for_ever(
    database: Database,
) -> None:
    """Twelve spenders on two runs: each reserves more than it needs, so that all must wait for others' change."""
    await all_rows(database, "update public.profiles set monthly_cap_usd = 0.7 where id = %s returning 1", OWNER)
    stores = [await _taken(database, await insert_run(database, KINDS["plain"]("http://x", new_tag()))) for _ in "ab"]
    refused, well_served = 0, 0

    async def spend(store: PgRunStore, attempt: int) -> None:
        nonlocal refused, well_served
        for iteration in range(1, 6):
            try:
                held = await store.reserve(
                    Spender(role="agent", attempt=attempt, iteration=iteration), "m", Decimal("0.2")
                )
            except BudgetExceeded:
                refused += 1
                return
            await asyncio.sleep(0.001 * attempt)
            await store.settle([Charge(reservation=held, amount=Decimal("0.03"), basis="usage")])
        well_served += 1

    async with asyncio.timeout(90):
        await asyncio.gather(*(spend(store, attempt) for store in stores for attempt in range(1, 7)))
    rows = await all_rows(database, "select spent_usd, reserved_usd from public.monthly_spend")
    runs = await all_rows(database, "select spent_usd, reserved_usd from public.loop_runs")
    assert sum(spent for spent, _ in runs) == rows[0][0]
    assert Decimal("0.5") < rows[0][0] <= Decimal("0.7")  # it waited for change rather than give up early
    assert [reserved for _, reserved in [*rows, *runs]] == [0, 0, 0]
    assert refused + well_served == 12
    assert refused >= 7  # at 0.15 each, no more than four can get all they ask for out of 0.7


async def test_a_call_whose_answer_was_lost_changes_nothing_when_it_is_repeated(database: Database) -> None:
    run = await insert_run(database, KINDS["plain"]("http://127.0.0.1:9", new_tag()))
    store = await _taken(database, run)
    reserve = (
        "select outcome from private.reserve(%s, %s, 'c1', %s, 'e1', 0.1, 0, 'agent', 'm', 1, 1, "
        """'[{"type": "money_reserved", "wallet": null}]')"""
    )
    settle = (
        "select private.settle(%s, %s, 'c2', %s, "
        """'[{"id": "e1", "amount": "0.02", "basis": "usage", "tokens": {}}]', """
        """'op', 1, 1, '{"b": 1.0, "a": 2}', '[{"type": "money_settled", "wallet": null}]')"""
    )
    for statement in (reserve, settle):
        for again in (False, True, True):
            await all_rows(database, statement, run, store.epoch, again)
    money = await money_of(database, run)
    assert (money.spent, money.usage, money.reserved) == (Decimal("0.02"), Decimal("0.02"), 0)
    assert await all_rows(database, "select count(*) from public.run_events") == [(2,)]
    rows = await all_rows(database, "select result::text, result from public.run_journal")
    assert rows == [('{"b": 1.0, "a": 2}', {"b": 1.0, "a": 2})]  # exactly as it was


async def test_what_no_database_can_hold_is_recorded_without_it(database: Database) -> None:
    run = await insert_run(database, KINDS["plain"]("http://127.0.0.1:9", new_tag()))
    store = await _taken(database, run)
    operation = Operation(key="op", attempt=1, iteration=1)
    await store.settle((), operation=operation, result={"a\0": ["\ud800", float("nan"), "\\u0000"]})
    rows = await all_rows(database, "select result from public.run_journal")
    assert rows == [({"a\ufffd": ["\ufffd", None, "\\u0000"]},)]


async def _taken(database: Database, run_id: str) -> PgRunStore:
    run = await take_run(database, run_id, "test")
    assert run
    return PgRunStore(database, run.id, run.epoch, wallet=run.wallet, started_at=run.started_at)


@pytest.fixture
def own_server() -> Generator[EmbeddedServer]:
    """A server that may be stopped. Its folder's path is short, since its socket lies in it."""
    with TemporaryDirectory(prefix="lwd") as folder, EmbeddedServer(Path(folder) / "h") as server:
        yield server


async def test_the_database_restarts_and_the_run_goes_on(
    own_server: EmbeddedServer, zygote: Zygote, tmp_path: Path
) -> None:
    """Stopped at once in the middle of everything, and away for a while: nothing is lost, nothing is paid twice."""
    await make_template(own_server)
    async with open_database(own_server) as database, outside() as world:
        with workers(zygote, database.urls, tmp_path) as crew:
            await _restart_under(own_server, database, world, crew)


async def _restart_under(server: EmbeddedServer, database: Database, world: Outside, crew: Workers) -> None:
    kinds = list(KINDS)
    tags, again = {kind: new_tag() for kind in kinds}, {kind: new_tag() for kind in kinds}
    pid = crew.start(engine={"beat_seconds": 0.2, "dead_after_seconds": 2.0})
    undisturbed = {kind: await insert_run(database, KINDS[kind](world.url, tags[kind])) for kind in kinds}
    await until_finished(database, list(undisturbed.values()))
    runs = {kind: await insert_run(database, KINDS[kind](world.url, again[kind])) for kind in kinds}
    world.open.clear()
    await world.asked(world.requests.total() + len(kinds))
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    world.open.set()  # the answers come while the database goes
    os.kill(postmaster, signal.SIGQUIT)
    await asyncio.sleep(AWAY_SECONDS)
    await asyncio.to_thread(server._start)  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(120):
        while True:
            try:
                await until_finished(database, list(runs.values()), seconds=110)
                break
            except StoreUnavailable:  # this test's own connections
                await asyncio.sleep(0.2)
    for kind in kinds:
        assert await outcome_of(database, runs[kind]) == await outcome_of(database, undisturbed[kind])
        assert world.requests[again[kind]] == world.requests[tags[kind]]
        assert (await money_of(database, runs[kind])).spent == (await money_of(database, undisturbed[kind])).spent
    assert pid in crew.alive
