"""The contract of a run's record, for every implementation of `core.ports.RunStore`.

Another implementation joins by a kind in `KINDS` and a branch in `store_factory`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.errors import BudgetExceeded, StoreUnavailable
from loopwright.core.events import (
    EVENT,
    BoundOverrun,
    CandidateProduced,
    IterationStarted,
    MoneyReserved,
    MoneySettled,
    RunEvent,
    TextDelta,
)
from loopwright.core.models import Cost
from loopwright.core.ports import Operation, RunStore, Spender
from loopwright.core.wallet import LONGEST_WAIT, Basis, Charge, Reservation, Role, Tokens
from loopwright.store.embedded import EmbeddedServer
from loopwright.store.memory import MemoryRunStore
from loopwright.store.run_store import PgRunStore, take_run
from loopwright.testing import FakeClock, MemoryJournal
from tests.durability.stage import insert_run
from tests.postgres import open_database

KINDS = ("memory", "postgres")

AGENT, JUDGE, EVALUATOR = Spender(role="agent"), Spender(role="judge"), Spender(role="evaluator")
SOON = 0.2
"""Seconds after which somebody who still waits is taken to wait for good; only ever a wait that must not end."""


@dataclass(frozen=True)
class Opened:
    """A run's record, the events that it has recorded so far, and the record as a later execution finds it."""

    store: RunStore
    events: Callable[[], Awaitable[list[RunEvent]]]
    later: Callable[[], Awaitable[RunStore]]


StoreFactory = Callable[..., Awaitable[Opened]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, EmbeddedServer | None]:
    return request.param, request.getfixturevalue("pg_server") if request.param == "postgres" else None


@pytest.fixture
async def store_factory(kind: tuple[str, EmbeddedServer | None]) -> AsyncGenerator[StoreFactory]:
    _, server = kind
    if server is None:

        async def in_memory(cap: str | None = "1", longest_wait: float = LONGEST_WAIT) -> Opened:
            return memory(cap, longest_wait)

        yield in_memory
        return
    async with open_database(server) as database:

        async def taken(run_id: str, longest_wait: float = LONGEST_WAIT) -> PgRunStore:
            run = await take_run(database, run_id, "tests")
            assert run
            started = run.started_at
            store = PgRunStore(
                database, run_id, run.epoch, wallet=run.wallet, started_at=started, longest_wait=longest_wait
            )
            await store.load_past()
            return store

        async def in_postgres(cap: str | None = "1", longest_wait: float = LONGEST_WAIT) -> Opened:
            spec = {"name": "n", "goal": "g", "stop": {"max_iterations": 1}, "agent": {"model": "practice"}}
            run_id = await insert_run(database, spec, cap=cap)

            async def events() -> list[RunEvent]:
                query = "select data, seq, at from public.run_events where run_id = %s order by seq"
                async with database.service_session() as connection:
                    rows = await (await connection.execute(query, (run_id,))).fetchall()
                return [EVENT.validate_python({**data, "seq": seq, "at": at}) for data, seq, at in rows]

            return Opened(await taken(run_id, longest_wait), events, lambda: taken(run_id))

        yield in_postgres


def memory(cap: str | None = "1", longest_wait: float = LONGEST_WAIT) -> Opened:
    journal = MemoryJournal()

    async def events() -> list[RunEvent]:
        return journal.events

    amount = None if cap is None else Decimal(cap)
    store = MemoryRunStore("r", cap=amount, clock=FakeClock(), sinks=[journal], longest_wait=longest_wait)

    async def later() -> RunStore:
        return store

    return Opened(store, events, later)


def charge(reservation: Reservation, amount: str | Decimal, basis: Basis = "usage", **fields: Any) -> Charge:
    return Charge(reservation=reservation, amount=Decimal(amount), basis=basis, **fields)


async def reserve(store: RunStore, amount: str, spender: Spender = AGENT, keep: str = "0") -> Reservation:
    return await store.reserve(spender, "m", Decimal(amount), keep=Decimal(keep))


async def settle(store: RunStore, *charges: Charge) -> None:
    await store.settle(charges)


# --- the wallet ---


async def test_money_is_reserved_and_then_spent(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    held = await reserve(store, "0.6")
    wallet = await store.wallet()
    assert (wallet.cap, wallet.spent, wallet.reserved, wallet.free) == (1, 0, Decimal("0.6"), Decimal("0.4"))
    await settle(store, charge(held, "0.25"))
    wallet = await store.wallet()
    assert (wallet.spent, wallet.reserved, wallet.free) == (Decimal("0.25"), 0, Decimal("0.75"))


async def test_what_doesnt_fit_is_refused_and_changes_nothing(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    await settle(store, charge(await reserve(store, "0.6"), "0.6"))
    with pytest.raises(BudgetExceeded) as refused:
        await reserve(store, "0.400001")
    assert (refused.value.needed, refused.value.available) == (Decimal("0.400001"), Decimal("0.4"))
    assert (await store.wallet()).reserved == 0
    await reserve(store, "0.4")


async def test_what_is_kept_stays_free(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    with pytest.raises(BudgetExceeded) as refused:
        await reserve(store, "0.8", keep="0.3")
    assert refused.value.available == Decimal("0.7")
    await reserve(store, "0.7", keep="0.3")
    await reserve(store, "0.3", JUDGE)


async def test_without_a_cap_everything_fits(store_factory: StoreFactory) -> None:
    store = (await store_factory(None)).store
    held = await reserve(store, "1000000", keep="5")
    await settle(store, charge(held, "12.5"))
    wallet = await store.wallet()
    assert (wallet.cap, wallet.spent, wallet.free) == (None, Decimal("12.5"), None)


async def test_one_who_waits_gets_what_a_cheaper_bill_leaves(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    held = await reserve(store, "0.8")
    waiting = asyncio.ensure_future(reserve(store, "0.5"))
    done, _ = await asyncio.wait([waiting], timeout=SOON)
    assert not done
    await settle(store, charge(held, "0.1"))
    assert (await asyncio.wait_for(waiting, 5)).amount == Decimal("0.5")
    assert (await store.wallet()).reserved == Decimal("0.5")


async def test_one_who_waits_is_refused_when_the_bill_leaves_too_little(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    held = await reserve(store, "0.8")
    waiting = asyncio.ensure_future(reserve(store, "0.5"))
    await asyncio.wait([waiting], timeout=SOON)
    await settle(store, charge(held, "0.7"))
    with pytest.raises(BudgetExceeded):
        await asyncio.wait_for(waiting, 5)


async def test_nobody_waits_for_what_can_never_fit(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    await reserve(store, "0.8")
    with pytest.raises(BudgetExceeded):
        await asyncio.wait_for(reserve(store, "1.1"), 5)
    with pytest.raises(BudgetExceeded):
        await asyncio.wait_for(reserve(store, "0.5", keep="0.6"), 5)


async def test_an_evaluator_that_asks_a_judge_doesnt_wait_for_itself(store_factory: StoreFactory) -> None:
    """Its own reservation stays until it is done, and it isn't done before the judge has answered."""
    store = (await store_factory("1")).store
    held = await reserve(store, "0.6", EVALUATOR)
    with pytest.raises(BudgetExceeded):
        await asyncio.wait_for(reserve(store, "0.5", JUDGE), 5)
    await settle(store, charge(held, "0", "released"))
    assert (await store.wallet()).free == 1


async def test_nobody_waits_for_ever_for_what_does_not_settle(store_factory: StoreFactory) -> None:
    """What is waited for may wait itself: a tool asks an agent while the stream that called it is open."""
    store = (await store_factory("1", longest_wait=0.6)).store
    held, other = await reserve(store, "0.7"), await reserve(store, "0.2")
    waiting = asyncio.ensure_future(reserve(store, "0.5"))
    await asyncio.wait([waiting], timeout=0.4)
    await settle(store, charge(other, "0.2"))  # something settles, so it is worth waiting on
    done, _ = await asyncio.wait([waiting], timeout=0.4)
    assert not done
    with pytest.raises(BudgetExceeded):
        await asyncio.wait_for(waiting, 5)
    await settle(store, charge(held, "0.1"))
    assert (await store.wallet()).reserved == 0
    assert (await reserve(store, "0.5")).amount == Decimal("0.5")


async def test_a_cancelled_wait_holds_nothing(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    held = await reserve(store, "0.8")
    waiting = asyncio.ensure_future(reserve(store, "0.5"))
    await asyncio.wait([waiting], timeout=SOON)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await settle(store, charge(held, "0.1"))
    wallet = await store.wallet()
    assert (wallet.reserved, wallet.free) == (0, Decimal("0.9"))


async def test_all_who_wait_are_answered(store_factory: StoreFactory) -> None:
    """Nobody is forgotten, the one who asks for much as little as those who ask for little."""
    store = (await store_factory("1")).store
    held = await reserve(store, "1")
    waiting = [asyncio.ensure_future(reserve(store, amount)) for amount in ("0.9", "0.2", "0.2", "0.2")]
    await asyncio.wait(waiting, timeout=SOON)
    await settle(store, charge(held, "0.05"))
    pending = set(waiting)
    refused = 0
    while pending:
        done, pending = await asyncio.wait(pending, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for each in done:
            if each.exception():
                assert isinstance(each.exception(), BudgetExceeded)
                refused += 1
            else:
                await settle(store, charge(each.result(), "0.01"))
    wallet = await store.wallet()
    assert (wallet.reserved, refused) == (0, 0)
    assert wallet.spent == Decimal("0.09")


async def test_more_than_was_reserved_is_booked_in_full(store_factory: StoreFactory) -> None:
    opened = await store_factory("1")
    held = await reserve(opened.store, "0.5")
    await settle(opened.store, charge(held, "0.7"))
    wallet = await opened.store.wallet()
    assert (wallet.spent, wallet.overrun, wallet.reserved) == (Decimal("0.7"), Decimal("0.2"), 0)
    (overrun,) = [e for e in await opened.events() if isinstance(e, BoundOverrun)]
    assert overrun.by_usd == Decimal("0.2")


# --- what it cost ---


async def test_cost_by_role_and_by_iteration(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    spenders: list[tuple[Role, int, int, str, Basis]] = [
        ("agent", 1, 1, "0.01", "usage"),
        ("subagent", 1, 1, "0.02", "reserved"),
        ("judge", 1, 2, "0.04", "usage"),
        ("evaluator", 2, 1, "0.08", "reported"),
        ("agent", 2, 1, "0", "released"),
    ]
    for role, attempt, number, amount, basis in spenders:
        held = await reserve(store, "0.1", Spender(role=role, attempt=attempt, iteration=number))
        tokens = Tokens(input=10, output=1, cached=2) if basis == "usage" else Tokens()
        await settle(store, charge(held, amount, basis, tokens=tokens))
    cost = await store.cost()
    assert cost.total == Decimal("0.15")
    assert dict(cost.by_role) == {
        "agent": Decimal("0.01"),
        "subagent": Decimal("0.02"),
        "judge": Decimal("0.04"),
        "evaluator": Decimal("0.08"),
    }
    assert cost.tokens == Tokens(input=20, output=2, cached=4)
    assert cost.requests == 3  # neither what was released nor an evaluator's own cost is a model request
    assert (await store.cost(1, 1)).total == Decimal("0.03")
    assert (await store.cost(1, 1)).requests == 2
    assert (await store.cost(2, 1)).by_role == {"evaluator": Decimal("0.08")}
    assert await store.cost(9, 9) == Cost()


async def test_the_dearest_reservation_of_a_role_is_remembered(store_factory: StoreFactory) -> None:
    store = (await store_factory("1")).store
    assert await store.dearest("judge") == 0
    for amount, spender in (("0.1", JUDGE), ("0.3", JUDGE), ("0.2", JUDGE), ("0.25", AGENT)):
        await settle(store, charge(await reserve(store, amount, spender), "0.001"))
    assert await store.dearest("judge") == Decimal("0.3")
    assert await store.dearest("agent") == Decimal("0.25")


# --- operations ---


async def test_an_operation_is_recorded_with_its_money(store_factory: StoreFactory) -> None:
    opened = await store_factory("1")
    operation = Operation(key="turn/1/1/request/1", attempt=1, iteration=1)
    assert await opened.store.find(operation.key) is None
    held = await reserve(opened.store, "0.5")
    await opened.store.settle([charge(held, "0.2")], operation=operation, result={"text": "the sea", "n": [1, None]})
    later = await opened.later()
    assert await later.find(operation.key) == {"text": "the sea", "n": [1, None]}
    assert await later.find("turn/1/1/request/2") is None
    assert (await later.wallet()).spent == Decimal("0.2")


async def test_an_operation_may_cost_nothing(store_factory: StoreFactory) -> None:
    opened = await store_factory("1")
    await opened.store.settle([], operation=Operation(key="tool", attempt=1, iteration=1), result="done")
    assert await (await opened.later()).find("tool") == "done"


# --- events ---


async def test_events_are_numbered_without_gaps_and_deltas_not_at_all(store_factory: StoreFactory) -> None:
    opened = await store_factory("1")
    store = opened.store
    await store.append(IterationStarted(attempt=1, number=1))
    delta = await store.append(TextDelta(attempt=1, number=1, text="th"))
    held = await reserve(store, "0.5")
    await settle(store, charge(held, "0.7"))
    last = await store.append(CandidateProduced(attempt=1, number=1, text="the sea"))
    kept = [e for e in await opened.events() if not isinstance(e, TextDelta)]
    assert [e.seq for e in kept] == list(range(1, len(kept) + 1))
    assert delta.seq == 0
    assert last.run_id == delta.run_id != ""
    money = [e for e in kept if isinstance(e, MoneyReserved | MoneySettled | BoundOverrun)]
    assert [e.type for e in money] == ["money_reserved", "money_settled", "bound_overrun"]
    assert isinstance(money[0], MoneyReserved)
    assert (money[0].wallet.reserved, money[0].wallet.cap) == (Decimal("0.5"), 1)
    assert isinstance(money[1], MoneySettled)
    assert (money[1].wallet.spent, money[1].wallet.reserved) == (Decimal("0.7"), 0)
    assert kept[-1].at >= kept[0].at


# --- in memory only: many tasks, a sink that fails ---


@settings(deadline=None, max_examples=80)
@given(seed=st.integers(0, 2**32), cents=st.integers(1, 200), tasks=st.integers(1, 30))
def test_many_spenders_never_hold_more_than_the_cap_and_nothing_leaks(seed: int, cents: int, tasks: int) -> None:
    asyncio.run(_many_spenders(random.Random(seed), Decimal(cents) / 100, tasks))


async def _many_spenders(dice: random.Random, cap: Decimal, tasks: int) -> None:
    opened = memory(str(cap))
    store = opened.store
    paid = Decimal(0)

    async def spend(number: int) -> None:
        nonlocal paid
        for _ in range(dice.randint(1, 4)):
            amount, keep = Decimal(dice.randint(0, 60)) / 100, Decimal(dice.choice([0, 0, 5])) / 100
            role: Role = dice.choice(["agent", "subagent", "judge"])
            try:
                held = await store.reserve(Spender(role=role, attempt=number), "m", amount, keep=keep)
            except BudgetExceeded:
                continue
            actual = Decimal(0)
            try:
                await asyncio.sleep(0)
                actual = amount * dice.randint(0, 100) / 100
            finally:  # as the wallet around a model does it: whatever happens, it is settled
                paid += actual
                await store.settle([charge(held, actual)])

    async def watch() -> None:
        while True:
            wallet = await store.wallet()
            assert wallet.spent + wallet.reserved <= cap
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    spending = [asyncio.ensure_future(spend(number)) for number in range(tasks)]
    for task in spending:
        if dice.random() < 0.3:
            for _ in range(dice.randint(0, 6)):
                await asyncio.sleep(0)
            task.cancel()
    ended = await asyncio.wait_for(asyncio.gather(*spending, return_exceptions=True), 10)
    assert not watching.done()
    watching.cancel()
    assert all(e is None or isinstance(e, asyncio.CancelledError) for e in ended)
    wallet = await store.wallet()
    assert (wallet.reserved, wallet.spent, wallet.overrun) == (0, paid, 0)
    assert (await store.cost()).total == paid
    if paid < cap:  # nothing leaked: what is left can be reserved to the last cent
        await store.reserve(AGENT, "m", cap - paid)
    events = await opened.events()
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    reserved = [e.reservation.id for e in events if isinstance(e, MoneyReserved)]
    assert len(set(reserved)) == len(reserved)


async def test_a_sink_that_fails_makes_the_store_unavailable() -> None:
    def full(event: RunEvent) -> None:
        raise OSError(28, "No space left on device")

    store = MemoryRunStore("r", cap=Decimal(1), clock=FakeClock(), sinks=[full])
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        await store.append(IterationStarted(attempt=1, number=1))
    with pytest.raises(StoreUnavailable):
        await reserve(store, "0.1")


async def test_sinks_get_each_event_in_order() -> None:
    first, second = MemoryJournal(), MemoryJournal()
    clock = FakeClock()
    store = MemoryRunStore("r", cap=None, clock=clock, sinks=[first, second])
    await store.append(IterationStarted(attempt=1, number=1))
    clock.advance(3)
    await store.append(IterationStarted(attempt=1, number=2))
    assert first.events == second.events
    assert [(e.seq, e.run_id) for e in first.events] == [(1, "r"), (2, "r")]
    assert (first.events[1].at - first.events[0].at).total_seconds() == 3
