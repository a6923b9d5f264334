"""A run's record in Postgres: the durable twin of `memory.MemoryRunStore`.

Every write carries the epoch of this execution and is refused once another execution has taken the run. While it holds
the run, an execution is the only one that changes the wallet, so it can count along; the database decides all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow, class_row
from psycopg.types.json import Jsonb
from pydantic import JsonValue

from ..core.errors import BudgetExceeded, DatabaseAway, StaleEpoch, StoreUnavailable
from ..core.events import (
    EVENT,
    BoundOverrun,
    CandidateProduced,
    IterationFinished,
    IterationStarted,
    MoneyReserved,
    MoneySettled,
    RunEvent,
    RunFinished,
    TextDelta,
    WalletView,
)
from ..core.models import Cost, Direction, Iteration
from ..core.ports import Operation, Spender
from ..core.state import Past, RunState
from ..core.text import clean_json
from ..core.wallet import ZERO, Charge, Reservation, Role, Tokens, Wallet
from .database import Database
from .tally import Tallies

UNKNOWN_WALLET = WalletView(cap=None, spent=ZERO, reserved=ZERO)
"""In events on their way to the database, which fills in the wallet as it is when they are recorded."""

WAIT_SECONDS = 0.05
"""How long a reservation waits before it asks again whether what was in flight has settled."""


PATIENCE = (0.1, 0.2, 0.5, *(1.0 for _ in range(300)))
"""Seconds between tries while the database is away: five minutes in all, then the run is left to a later recovery."""


class PgRunStore:
    """One execution of a run; implements `core.ports.RunStore`. Made by `take_run`.

    Args:
        database: where the run is.
        run_id: the run.
        epoch: this execution.
        direction: which score is better.
        wallet: as it is now.
        on_text: gets text deltas, which are sent to viewers and not kept.
    """

    def __init__(
        self,
        database: Database,
        run_id: str,
        epoch: int,
        *,
        wallet: Wallet,
        started_at: datetime,
        direction: Direction = "maximize",
        on_text: Callable[[TextDelta], None] | None = None,
        patience: Sequence[float] = PATIENCE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.leaving = False
        """Set when the process is about to end: what is in flight is recorded, and nothing new begins."""
        self._database = database
        self._wallet = wallet
        self._on_text = on_text
        self._patience = patience
        self._sleep = sleep
        self._numbers = count(1)
        self._tallies = Tallies()
        self._dearest: dict[Role, Decimal] = {}
        self._recorded: dict[str, JsonValue] = {}
        self._announced: set[tuple[str, int, int]] = set()
        self._best = RunState(started_at=started_at, direction=direction)

    # --- The port ---

    async def wallet(self) -> Wallet:
        """The run's wallet as it is now."""
        return self._wallet

    async def reserve(
        self, spender: Spender, model: str, amount: Decimal, *, keep: Decimal = Decimal(0)
    ) -> Reservation:
        """See `core.ports.RunStore.reserve`."""
        reservation = Reservation(
            id=f"{self.run_id}/{self.epoch}/{next(self._numbers)}",
            amount=amount,
            role=spender.role,
            model=model,
            attempt=spender.attempt,
            iteration=spender.iteration,
        )
        if self.leaving:
            raise StaleEpoch("this worker is leaving; another one goes on with the run")
        events = _json([MoneyReserved(reservation=reservation, wallet=UNKNOWN_WALLET)])
        while True:
            row = await self._call(
                "select outcome, free from private.reserve(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
                reservation.id, amount, keep, spender.role, model, spender.attempt, spender.iteration, events,
            )  # fmt: skip
            outcome, free = row
            if outcome == "ok":
                # The monthly cap may be the tighter one, so the database's word is what counts; this one only follows.
                self._wallet = self._wallet.reserve(amount)
                self._dearest[spender.role] = max(self._dearest.get(spender.role, ZERO), amount)
                return reservation
            if outcome == "refused":
                raise BudgetExceeded(needed=amount, available=(free or ZERO) - keep)
            await self._sleep(WAIT_SECONDS)

    async def settle(
        self, charges: Sequence[Charge], *, operation: Operation | None = None, result: JsonValue = None
    ) -> None:
        """See `core.ports.RunStore.settle`."""
        result = clean_json(result)
        events: list[RunEvent] = []
        for charge in charges:
            events.append(MoneySettled(charge=charge, wallet=UNKNOWN_WALLET, response=result))
            if charge.overrun:
                events.append(BoundOverrun(charge=charge, by_usd=charge.overrun))
        booked = [
            {"id": c.reservation.id, "amount": f"{c.amount:f}", "basis": c.basis, "tokens": c.tokens.model_dump()}
            for c in charges
        ]
        place = (operation.attempt, operation.iteration) if operation else (0, 0)
        key = operation.key if operation else None
        settle = "select private.settle(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"
        try:
            await self._call(settle, Jsonb(booked), key, *place, Jsonb(result), _json(events))
        except DatabaseAway:
            raise
        except StoreUnavailable:
            # What it was paid for can't be recorded, so the run ends here; that it was paid for must be.
            await self._call(settle, Jsonb(booked), None, *place, Jsonb(None), "[]")
            raise
        for charge in charges:
            self._wallet = self._wallet.settle(charge.reservation.amount, charge.amount)
            self._tallies.add(charge)

    async def cost(self, attempt: int | None = None, iteration: int | None = None) -> Cost:
        """What was spent so far, by the run or by one iteration."""
        return self._tallies.cost(attempt, iteration)

    async def dearest(self, role: Role) -> Decimal:
        """The largest single reservation of this role so far, in USD."""
        return self._dearest.get(role, ZERO)

    async def find(self, operation: str) -> JsonValue | None:
        """What an earlier execution recorded of an operation, or `None`."""
        return self._recorded.get(operation)

    async def append(self, event: RunEvent) -> RunEvent:
        """Record an event; an iteration or the end of the run with all that belongs to it."""
        match event:
            case TextDelta():
                if self._on_text:
                    self._on_text(event.model_copy(update={"run_id": self.run_id}))
            case IterationFinished():
                await self._finish_iteration(event)
            case RunFinished():
                await self._call(
                    "select private.finish_run(%s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
                    event.stop_reason, event.sentence, event.error, _json([event]),
                )  # fmt: skip
            case IterationStarted() | CandidateProduced() if (
                event.type, event.attempt, event.number
            ) in self._announced:  # fmt: skip
                pass  # by an execution that died in this iteration
            case _:
                await self._call("select private.record(%s, %s, %s, %s, %s::jsonb)", _json([event]))
        return event

    async def _finish_iteration(self, event: IterationFinished) -> None:
        iteration = event.iteration
        is_run_best = self._best.improves(iteration)
        await self._call(
            "select private.finish_iteration(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s::jsonb)",
            iteration.model_dump_json().replace("\\u0000", "\\ufffd"),
            event.elapsed_seconds, event.is_best, is_run_best, _json([event]),
        )  # fmt: skip
        self._remember(iteration)

    def _remember(self, iteration: Iteration) -> None:
        if self._best.improves(iteration):
            self._best = self._best.after(iteration, self._wallet, self._best.started_at)

    async def _call(self, statement: LiteralString, *arguments: object) -> TupleRow:
        """Call one of the functions of `migrations/…_wallet.sql` for this run and epoch.

        While the database is away it is asked again: the call has a number, so that one that was applied before the
        connection broke is not applied twice.

        Raises:
            StaleEpoch: another execution has the run.
            StoreUnavailable: the database can't store what it was given, or stays away too long.
        """
        call, again = f"{self.epoch}/{next(self._numbers)}", False
        for pause in (*self._patience, None):
            try:
                async with self._database.service_session() as connection:
                    cursor = await connection.execute(statement, (self.run_id, self.epoch, call, again, *arguments))
                    return await cursor.fetchone() or ()
            except DatabaseAway:
                if pause is None:
                    raise
            except psycopg.Error as error:
                if error.sqlstate in ("LW001", "LW002"):
                    raise StaleEpoch() from error
                raise StoreUnavailable(f"the run can't be recorded: {error}") from error
            again = True
            await self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    # --- What earlier executions left ---

    async def load_past(self) -> Past:
        """Read what earlier executions recorded: finished iterations, what was spent, and the operations of iterations
        that did not finish, which are not done again."""
        run = (self.run_id,)
        async with self._database.service_session() as c:
            head = await c.cursor(row_factory=class_row(_Head)).execute(_HEAD, run)
            finished = await c.cursor(row_factory=class_row(_Finished)).execute(_FINISHED, run)
            spent = await c.cursor(row_factory=class_row(_Spent)).execute(_SPENT, run)
            dearest = await c.cursor(row_factory=class_row(_Dearest)).execute(_DEAREST, run)
            recorded = await c.cursor(row_factory=class_row(_Recorded)).execute(_RECORDED, run)
            announced = await c.cursor(row_factory=class_row(_Announced)).execute(_ANNOUNCED, run)
            known = await head.fetchone()
            rows = await finished.fetchall()
            for sums in await spent.fetchall():
                self._tallies.add_sum(
                    sums.attempt, sums.iteration, sums.role, sums.amount, sums.tokens(), requests=sums.requests
                )
            self._dearest = {row.role: row.most for row in await dearest.fetchall()}
            self._recorded = {row.operation: row.result for row in await recorded.fetchall()}
            self._announced = {(row.type, row.attempt, row.number) for row in await announced.fetchall()}
        if known is None:
            raise StaleEpoch(f"run {self.run_id} is gone")
        iterations = tuple(Iteration.model_validate(row.data) for row in rows)
        for iteration in iterations:
            self._remember(iteration)
        return Past(
            started_at=known.started_at,
            iterations=iterations,
            elapsed=tuple(row.elapsed_seconds for row in rows),
            resume_after=known.resume_after,
        )


@dataclass(frozen=True)
class _Head:
    started_at: datetime
    resume_after: int


@dataclass(frozen=True)
class _Finished:
    data: dict[str, JsonValue]
    elapsed_seconds: float


@dataclass(frozen=True)
class _Spent:
    attempt: int
    iteration: int
    role: Role
    amount: Decimal
    requests: int
    tokens_in: Decimal
    tokens_out: Decimal
    tokens_cached: Decimal
    tokens_written: Decimal

    def tokens(self) -> Tokens:
        return Tokens(
            input=int(self.tokens_in),
            output=int(self.tokens_out),
            cached=int(self.tokens_cached),
            cache_write=int(self.tokens_written),
        )


@dataclass(frozen=True)
class _Dearest:
    role: Role
    most: Decimal


@dataclass(frozen=True)
class _Recorded:
    operation: str
    result: JsonValue


@dataclass(frozen=True)
class _Announced:
    type: str
    attempt: int
    number: int


_HEAD: LiteralString = "select started_at, resume_after from public.loop_runs where id = %s"
_FINISHED: LiteralString = (
    "select data, elapsed_seconds from public.loop_iterations where run_id = %s order by position"
)
_SPENT: LiteralString = """
select attempt, iteration, role, sum(cost_usd) as amount, count(*) filter (where role <> 'evaluator') as requests,
  sum(input_tokens) as tokens_in, sum(output_tokens) as tokens_out, sum(cached_tokens) as tokens_cached,
  sum(cache_write_tokens) as tokens_written
from public.usage_records where run_id = %s group by attempt, iteration, role
"""
_DEAREST: LiteralString = (
    "select role, max(reserved_usd) as most from public.wallet_entries where run_id = %s group by role"
)
_RECORDED: LiteralString = """
select j.operation, j.result from public.run_journal j
where j.run_id = %s and not exists (
  select from public.loop_iterations i
  where i.run_id = j.run_id and i.attempt = j.attempt and i.number = j.iteration)
"""
_ANNOUNCED: LiteralString = """
select e.type, (e.data ->> 'attempt')::int as attempt, (e.data ->> 'number')::int as number from public.run_events e
where e.run_id = %s and e.type in ('iteration_started', 'candidate_produced') and not exists (
  select from public.loop_iterations i
  where i.run_id = e.run_id and i.attempt = (e.data ->> 'attempt')::int and i.number = (e.data ->> 'number')::int)
"""


@dataclass(frozen=True, kw_only=True)
class TakenRun:
    """A run that this process now executes."""

    id: str
    epoch: int
    owner_id: UUID
    door: str
    goal: str
    spec: dict[str, JsonValue]
    """The loop file as it was when the run started."""
    cap_usd: Decimal | None
    spent_usd: Decimal
    reserved_usd: Decimal
    overrun_usd: Decimal
    cancel_requested_at: datetime | None
    """When somebody asked to cancel it, perhaps before it was taken."""
    started_at: datetime
    event_seq: int
    """How many events earlier executions recorded."""

    @property
    def wallet(self) -> Wallet:
        """The run's wallet as it is now."""
        return Wallet(cap=self.cap_usd, spent=self.spent_usd, reserved=self.reserved_usd, overrun=self.overrun_usd)


_TAKEN: LiteralString = """
select id, epoch, owner_id, door, goal, spec, cap_usd, spent_usd, reserved_usd, overrun_usd, cancel_requested_at,
  started_at, event_seq
from public.loop_runs where id = %s
"""


async def take_run(database: Database, run_id: str, executor: str) -> TakenRun | None:
    """Take a run for execution: a new epoch, and what earlier executions left open is settled whole.

    Returns `None` for a run that is finished or gone.
    """
    async with database.service_session() as c, c.transaction():
        taken = await (await c.execute("select private.take_run(%s, %s)", (run_id, executor))).fetchone()
        if taken is None or taken[0] is None:
            return None
        await c.execute("select private.settle_left_open(%s, %s)", (run_id, taken[0]))
        return await (await c.cursor(row_factory=class_row(TakenRun)).execute(_TAKEN, (run_id,))).fetchone()


def _json(events: Sequence[RunEvent]) -> str:
    """Events as a JSON array for the database, which can't hold NUL."""
    return "[" + ",".join(EVENT.dump_json(event).decode().replace("\\u0000", "\\ufffd") for event in events) + "]"
