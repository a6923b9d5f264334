"""A run's record in Postgres: the durable twin of `memory.MemoryRunStore`.

Every write carries the epoch of this execution and is refused once another execution has taken the run. While it holds
the run, an execution is the only one that changes the wallet, so it can count along; the database decides all the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import Literal, LiteralString, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow, class_row
from psycopg.types.json import Jsonb
from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json

from ..cancellation import whatever_happens
from ..core.caller import Door
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
from ..core.wallet import LONGEST_WAIT, ZERO, Charge, Reservation, Role, Tokens, Wallet
from .database import Database
from .run_queries import Cleared, NewRun
from .tally import Tallies

T = TypeVar("T")

UNKNOWN_WALLET = WalletView(cap=None, spent=ZERO, reserved=ZERO)
"""In events on their way to the database, which fills in the wallet as it is when they are recorded."""

WAIT_SECONDS = 0.05
"""How long a reservation waits before it asks again whether what was in flight has settled."""


PATIENCE = (0.1, 0.2, 0.5, *(1.0 for _ in range(3600)))
"""Seconds between tries while the database is away: an hour, since an answer that can't be recorded is paid for again.
Then the run is left to a later recovery."""

STALE = frozenset({"LW001", "LW002"})
"""Error codes of our functions: another execution has the run, or it is gone."""

PASSING = frozenset({"40001", "40P01", "55P03"})
"""Error codes after which the same statement may well succeed: conflicts with another transaction."""

PASSING_TRIES = 20


class PgRunStore:
    """One execution of a run; implements `core.ports.RunStore`. Made by `take_run`.

    Args:
        database: where the run is.
        run_id: the run.
        epoch: this execution.
        direction: which score is better.
        wallet: as it is now.
        longest_wait: seconds that a reservation waits while nothing settles.
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
        patience: Sequence[float] = PATIENCE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.leaving = False
        """Set when the process is about to end: what is in flight is recorded, and nothing new begins."""
        self._database = database
        self._wallet = wallet
        self._patience = patience
        self._sleep = sleep
        self._longest_wait = longest_wait
        self._settlements = 0
        self._numbers = count(1)
        self._tallies = Tallies()
        self._dearest: dict[Role, Decimal] = {}
        self._recorded: dict[str, JsonValue] = {}
        self._announced: set[tuple[str, int, int]] = set()
        self._held_back: list[RunEvent] = []
        """Events that travel with the next call, since nothing can happen between the two."""
        self._abandoned = False
        self._children: dict[str, bool] = {}
        """Runs on this wallet, and whether each is over and counted."""
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
        waits = _Waits(self._longest_wait)
        while True:
            # What an evaluator reports beyond what it declared is reserved after the fact, also by one who leaves.
            if self.leaving and (amount or spender.role != "evaluator"):
                raise StaleEpoch("this worker is leaving; another one goes on with the run")
            outcome, free = await self._try_to_reserve(reservation, keep)
            if outcome == "ok":
                return reservation
            if outcome == "refused" or waits.too_long((self._settlements, free)):
                raise BudgetExceeded(needed=amount, available=(free or ZERO) - keep, keep=keep)
            await self._sleep(WAIT_SECONDS)

    async def _try_to_reserve(self, reservation: Reservation, keep: Decimal) -> tuple[str, Decimal | None]:
        """Ask the database once. One who is cancelled meanwhile holds nothing afterwards."""
        made = asyncio.ensure_future(self._reserve(reservation, keep))
        try:
            return await whatever_happens(_result(made))
        except asyncio.CancelledError:
            if not made.cancelled() and made.exception() is None and made.result()[0] == "ok":
                why = "cancelled before it was sent"
                charge = Charge(reservation=reservation, amount=ZERO, basis="released", why=why)
                await whatever_happens(self.settle([charge]))
            raise

    async def _reserve(self, reservation: Reservation, keep: Decimal) -> tuple[str, Decimal | None]:
        held_back, self._held_back = self._held_back, []
        events = _json([*held_back, MoneyReserved(reservation=reservation, wallet=UNKNOWN_WALLET)])
        r = reservation
        row = await self._call(
            "select outcome, free from private.reserve(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
            r.id, r.amount, keep, r.role, r.model, r.attempt, r.iteration, events,
        )  # fmt: skip
        if row[0] == "ok":
            # The database has decided; this only follows, and answers may come in another order than they were given.
            self._wallet = replace(self._wallet, reserved=self._wallet.reserved + r.amount)
            self._dearest[r.role] = max(self._dearest.get(r.role, ZERO), r.amount)
        else:
            self._held_back = [*held_back, *self._held_back]
        return row[0], row[1]

    async def settle(
        self, charges: Sequence[Charge], *, operation: Operation | None = None, result: JsonValue = None
    ) -> None:
        """See `core.ports.RunStore.settle`."""
        events: list[RunEvent] = []
        for charge in charges:
            events.append(MoneySettled(charge=charge, wallet=UNKNOWN_WALLET))  # the database puts the result in
            if charge.overrun:
                events.append(BoundOverrun(charge=charge, by_usd=charge.overrun))
        booked = _dumped(
            [
                {"id": c.reservation.id, "amount": f"{c.amount:f}", "basis": c.basis, "tokens": c.tokens.model_dump()}
                for c in charges
            ]
        )
        place = (operation.attempt, operation.iteration) if operation else (0, 0)
        key = operation.key if operation else None
        settle = "select private.settle(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s::json, %s::jsonb)"
        try:
            await self._call(settle, booked, key, *place, _dumped(result), _json(events))
        except DatabaseAway:
            raise
        except StoreUnavailable:
            # What it was paid for can't be recorded, so the run ends here; that it was paid for must be.
            await self._call(settle, booked, None, *place, "null", "[]")
            self._count(charges)
            raise
        self._count(charges)

    def _count(self, charges: Sequence[Charge]) -> None:
        self._settlements += 1
        for charge in charges:
            self._wallet = self._wallet.settle(charge.reservation.amount, charge.amount)
            self._tallies.add(charge)

    async def start_child(
        self, cleared: Cleared[NewRun], operation: Operation, *, keep: Decimal, max_depth: int, max_starts: int
    ) -> ChildStart:
        """Start a run on this run's wallet, once for each operation; see `private.start_child`.

        Raises:
            StaleEpoch, StoreUnavailable: as all calls.
        """
        child = cleared.what
        start = self._call(
            "select outcome, run, free from private.start_child("
            "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            operation.key, child.id, child.loop_id, child.loop_name, child.agent_id, Jsonb(child.spec), child.goal,
            child.cap_usd, keep, child.folder, max_depth, max_starts, operation.attempt, operation.iteration,
        )  # fmt: skip
        outcome, run_id, free = await whatever_happens(start)
        await self.look_at_children()
        return ChildStart(outcome=outcome, run_id=run_id, free=free)

    async def look_at_children(self, *, first: bool = False) -> None:
        """Follow what runs on this wallet hold and came to: they change it from outside. At the `first` look the wallet
        has it all already."""
        async with self._database.service_session() as c:
            rows = await c.cursor(row_factory=class_row(_Child)).execute(_CHILDREN, (self.run_id,))
            found = await rows.fetchall()
        for row in found:
            if row.id not in self._children:
                self._children[row.id] = False
                if not first:
                    self._wallet = replace(self._wallet, reserved=self._wallet.reserved + row.reserved_usd)
            if row.amount_usd is not None and not self._children[row.id]:
                self._children[row.id] = True
                self._tallies.add_sum(row.attempt, row.iteration, "run", row.amount_usd, Tokens(), requests=0)
                if not first:
                    self._wallet = self._wallet.settle(row.reserved_usd, row.amount_usd)

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
        """Record an event; an iteration or the end of the run with all that belongs to it.

        That an iteration begins is recorded together with what comes next, and has no number before.
        """
        match event:
            case TextDelta():
                return event.model_copy(update={"run_id": self.run_id})  # viewers get it, the record does not
            case IterationStarted() | CandidateProduced() if self._is_announced(event):
                return event  # by an execution that died in this iteration
            case IterationStarted():
                self._held_back.append(event)
                return event
            case IterationFinished():
                seq = await self._finish_iteration(event)
            case RunFinished():
                row = await self._call(
                    "select private.finish_run(%s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
                    event.stop_reason, event.sentence, event.error, self._with_held_back(event),
                )  # fmt: skip
                seq = row[0]
            case _:
                record = self._call("select private.record(%s, %s, %s, %s, %s::jsonb)", self._with_held_back(event))
                seq = (await whatever_happens(record))[0]
        return event.model_copy(update={"run_id": self.run_id, "seq": seq})

    def _is_announced(self, event: IterationStarted | CandidateProduced) -> bool:
        return (event.type, event.attempt, event.number) in self._announced

    def _with_held_back(self, event: RunEvent) -> str:
        held_back, self._held_back = self._held_back, []
        return _json([*held_back, event])

    async def _finish_iteration(self, event: IterationFinished) -> int:
        iteration = event.iteration
        is_run_best = self._best.improves(iteration)
        row = await self._call(
            "select private.finish_iteration(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s::jsonb)",
            _storable(iteration.model_dump_json()),
            event.elapsed_seconds, event.is_best, is_run_best, self._with_held_back(event),
        )  # fmt: skip
        self._remember(iteration)
        return row[0]

    async def fail(self, error: str) -> None:
        """End the run as `error` without an event, since events may be what can't be recorded.

        Raises:
            StaleEpoch, StoreUnavailable: as all calls.
        """
        await self._call(
            "select private.finish_run(%s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
            "error", f"Stopped by an error: {error}", error, "[]",
        )  # fmt: skip

    def abandon(self) -> None:
        """Write nothing more: the process ends, and another worker has the run or will have it soon."""
        self.leaving = self._abandoned = True

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
        call, again, passing = f"{self.epoch}/{next(self._numbers)}", False, 0
        pauses = iter(self._patience)
        while True:
            if self._abandoned:
                raise StaleEpoch("this worker has left")
            try:
                async with self._database.service_session() as connection:
                    cursor = await connection.execute(statement, (self.run_id, self.epoch, call, again, *arguments))
                    return await cursor.fetchone() or ()
            except DatabaseAway:
                again = True
                if (pause := next(pauses, None)) is None:
                    raise
            except psycopg.Error as error:
                if error.sqlstate in STALE:
                    raise StaleEpoch from error
                passing += 1
                if error.sqlstate not in PASSING or passing > PASSING_TRIES:
                    raise StoreUnavailable(f"the run can't be recorded: {error}") from error
                pause = self._patience[0] if self._patience else 0
            await self._sleep(pause)

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
            self._tallies = Tallies()
            for sums in await spent.fetchall():
                self._tallies.add_sum(
                    sums.attempt, sums.iteration, sums.role, sums.amount, sums.tokens(), requests=sums.requests
                )
            self._children.clear()
            self._dearest = {row.role: row.most for row in await dearest.fetchall()}
            self._recorded = {row.operation: row.result for row in await recorded.fetchall()}
            self._announced = {(row.type, row.attempt, row.number) for row in await announced.fetchall()}
        if known is None:
            raise StaleEpoch(f"run {self.run_id} is gone")
        await self.look_at_children(first=True)
        iterations = tuple(Iteration.model_validate(row.data) for row in rows)
        for iteration in iterations:
            self._remember(iteration)
        return Past(
            started_at=known.started_at,
            iterations=iterations,
            elapsed=tuple(row.elapsed_seconds for row in rows),
            resume_after=known.resume_after,
        )


@dataclass(frozen=True, kw_only=True)
class ChildStart:
    """What came of asking for a run on another one's wallet."""

    outcome: Literal["ok", "off", "deep", "many", "refused"]
    run_id: str | None
    free: Decimal | None
    """USD that it might have taken; `None` for no limit."""


@dataclass(frozen=True)
class _Child:
    id: str
    attempt: int
    iteration: int
    reserved_usd: Decimal
    amount_usd: Decimal | None


_CHILDREN: LiteralString = """
select id, attempt, iteration, reserved_usd, amount_usd from public.wallet_entries where run_id = %s and role = 'run'
"""


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
    door: Door
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
    is_thread: bool
    """Whether it is a conversation."""

    @property
    def direction(self) -> Direction:
        """Which score is better."""
        return "minimize" if self.spec.get("direction") == "minimize" else "maximize"

    @property
    def wallet(self) -> Wallet:
        """The run's wallet as it was when it was taken."""
        return Wallet(cap=self.cap_usd, spent=self.spent_usd, reserved=self.reserved_usd, overrun=self.overrun_usd)


_LOCK_QUEUED: LiteralString = "select from public.loop_runs where id = %s and status = 'queued' for update"
_TAKEN: LiteralString = """
select id, epoch, owner_id, door, goal, spec, cap_usd, spent_usd, reserved_usd, overrun_usd, cancel_requested_at,
  started_at, event_seq, is_thread
from public.loop_runs where id = %s
"""


async def take_run(
    database: Database,
    run_id: str,
    executor: str,
    *,
    only_queued: bool = False,
    submission: int | None = None,
    format_number: int | None = None,
) -> TakenRun | None:
    """Take a run for execution: a new epoch, and what earlier executions left open is settled whole.

    Args:
        database: where the run is.
        run_id: the run.
        executor: who takes it.
        only_queued: whether to leave a run alone, too, that the same executor has.
        submission: the one that the run was given to the engine by; a run that was submitted again is left alone.
        format_number: of the executor's code; a run that code of another format began is left alone.

    Returns `None` for a run that is finished or gone, or that another living worker executes.
    """
    async with database.service_session() as c, c.transaction():
        if only_queued and not (await c.execute(_LOCK_QUEUED, (run_id,))).rowcount:
            return None
        take = "select private.take_run(%s, %s, %s, %s)"
        taken = await (await c.execute(take, (run_id, executor, submission, format_number))).fetchone()
        if taken is None or taken[0] is None:
            return None
        await c.execute("select private.settle_left_open(%s, %s)", (run_id, taken[0]))
        return await (await c.cursor(row_factory=class_row(TakenRun)).execute(_TAKEN, (run_id,))).fetchone()


async def _result(made: asyncio.Future[T]) -> T:
    return await made


class _Waits:
    """Says when somebody has waited too long for anything to change."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._seen: object = None
        self._since = 0.0

    def too_long(self, state: object) -> bool:
        now = asyncio.get_running_loop().time()
        if state != self._seen:
            self._seen, self._since = state, now
        return now - self._since > self._longest


def _json(events: Sequence[RunEvent]) -> str:
    """Events as a JSON array."""
    return "[" + ",".join([_storable(EVENT.dump_json(event).decode()) for event in events]) + "]"


def _storable(text: str) -> str:
    """JSON without NUL, which the database can't hold."""
    return _dumped(json.loads(text)) if "\\u0000" in text else text


def _dumped(value: JsonValue) -> str:
    """A value as JSON that the database can hold; the slow way only where that changes something."""
    try:
        text = to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:  # lone surrogates
        text = b"\\u0000"
    return (to_json(clean_json(value), inf_nan_mode="null") if b"\\u0000" in text else text).decode()
