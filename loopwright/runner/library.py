"""`Loop`: the library's door to the loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

from ..core.errors import InvalidInput, Problem, UnknownPrice
from ..core.events import RunEvent, RunFinished
from ..core.models import Conversation, Direction, Feedback
from ..core.ports import AgentPort, AskModel, Clock, Evaluator, EvaluatorContext, Guard, RunStore, Viewers
from ..core.result import RunResult
from ..core.spec import HistorySpec, Price
from ..core.stop import Stop, budget_of, check_stop
from ..store.jsonl import JournalFile
from ..store.memory import MemoryRunStore, Sink
from .clock import SteadyClock
from .plan import Halt, Plan, Ports
from .run import run_loop
from .scoring import RETRY_DELAYS, Scorer

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.models import Model

    from ..agents.prices import PriceBook

Scored: TypeAlias = "float | int | tuple[float, str] | Mapping[str, object] | Feedback"
Evaluate: TypeAlias = "Callable[[Any], Scored | Awaitable[Scored]]"
"""What a library user may pass as an evaluator: it gets the candidate's text (its JSON where the agent has another
output than text, the whole `Candidate` where its parameter is annotated so) and returns a number, a
`(number, detail)` pair, a mapping `{score, detail, cost_usd}` or a `Feedback`."""


HOLDOUT_ALONE = "is a second opinion and needs an `evaluator` beside it"


class Loop:
    """An agent, an evaluator and stop conditions, ready to run on any goal.

    Args:
        agent: a pydantic-ai agent, a model string such as `"openai:gpt-4o-mini"`, or anything that takes turns.
        evaluate: a function that scores a candidate, or an `Evaluator`; without one the loop ends by `loop_done`
            or a limit, and the best candidate is the last.
        stop: when to stop, e.g. `Target(0.95) | MaxIterations(20) | Budget("0.50")`.
        holdout: a second evaluator that the agent never sees.
        direction: whether a higher or a lower score is better.
        attempts: how many dialogues run side by side on one wallet.
        history: what the agent is shown of earlier iterations.
        prices: USD per million tokens by model string, before the built-in list.
        deps: what the tools and instructions of a pydantic-ai agent find as `ctx.deps`.
        loop_done: whether a pydantic-ai agent may end the run by the builtin of this name; small models tend to call
            it at once.
        name: what people call the loop.

    Raises:
        InvalidInput: what can't work, and why: the stop condition, the direction, what is no evaluator.
    """

    def __init__(
        self,
        *,
        agent: AbstractAgent[Any, Any] | AgentPort | Wiring | str,
        evaluate: Evaluate | Evaluator | None = None,
        stop: Stop,
        holdout: Evaluate | Evaluator | None = None,
        direction: Direction = "maximize",
        attempts: int = 1,
        history: HistorySpec | None = None,
        prices: Mapping[str, Price] | None = None,
        deps: object = None,
        loop_done: bool = True,
        name: str = "loop",
    ) -> None:
        _check_arguments(direction, attempts, evaluate=evaluate, holdout=holdout)
        self.name = name
        self.stop = stop
        self.direction: Direction = direction
        self.attempts = attempts
        self.history = history or HistorySpec()
        self.wiring = Wiring.of(agent, prices or {}, deps, loop_done=loop_done)
        self._evaluator = _evaluator(evaluate)
        self._holdout = _evaluator(holdout)
        problems = check_stop(stop, has_evaluator=evaluate is not None, free_of_charge=self.wiring.free_of_charge)
        if holdout is not None and evaluate is None:
            problems.append(Problem(field="holdout", message=HOLDOUT_ALONE))
        if problems:
            raise InvalidInput(*problems)

    async def run(self, goal: str, *, journal: Path | None = None) -> RunResult:
        """Run the loop on a goal until a stop condition holds.

        Args:
            goal: what the agent should achieve.
            journal: a file to append the run's events to, one JSON line each.
        """
        return await self.start(goal, journal=journal)

    def run_sync(self, goal: str, *, journal: Path | None = None) -> RunResult:
        """`run` for code that isn't async."""
        return asyncio.run(self.run(goal, journal=journal))

    async def stream(self, goal: str, *, journal: Path | None = None) -> AsyncIterator[RunEvent]:
        """Run the loop and give its events as they happen; leaving the iteration stops the run."""
        run = self.start(goal, journal=journal)
        try:
            async for event in run.events():
                yield event
        finally:
            run.cancel()
            await run

    def start(self, goal: str, *, journal: Path | None = None, run_id: str | None = None) -> Run:
        """Start the loop in the background of the running event loop; await the returned `Run` for its result."""
        if not goal.strip():
            raise InvalidInput(Problem(field="goal", message="is empty; say what the agent should achieve"))
        return Run(self, goal, journal=journal, run_id=run_id or new_run_id())

    def ports(self, store: RunStore, clock: Clock, viewers: Viewers | None = None) -> Ports:
        """The loop's world around a store, a clock and those who watch."""
        scorer = None
        if self._evaluator:
            scorer = Scorer(evaluator=self._evaluator, holdout=self._holdout, retry_delays=self.wiring.retry_delays)
        context = EvaluatorContext(store=store, clock=clock, ask=self.wiring.ask(store) if self.wiring.ask else None)
        return Ports(
            agent=self.wiring.agent,
            scorer=scorer,
            store=store,
            clock=clock,
            evaluation=context,
            last_lap_usd=self.wiring.last_lap_usd,
            viewers=viewers,
            guard=self.wiring.guard(store) if self.wiring.guard else None,
            lifespan=self.wiring.lifespan,
        )

    def plan(self, goal: str, run_id: str) -> Plan:
        """The plan of one run of this loop."""
        return Plan(
            run_id=run_id,
            name=self.name,
            goal=goal,
            stop=self.stop,
            direction=self.direction,
            attempts=self.attempts,
            history=self.history,
            has_schema=self.wiring.has_schema,
            may_end=self.wiring.may_end,
            model=self.wiring.model,
            conversation=self.wiring.conversation,
        )


class Wiring:
    """How a loop reaches models: made from a pydantic-ai agent here, from a loop file by the service."""

    def __init__(
        self,
        agent: AgentPort,
        *,
        model: str = "",
        has_schema: bool = False,
        may_end: bool = True,
        free_of_charge: bool = False,
        ask: Callable[[RunStore], AskModel] | None = None,
        last_lap_usd: Decimal = Decimal(0),
        retry_delays: Sequence[float] = RETRY_DELAYS,
        lifespan: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        conversation: Conversation | None = None,
        guard: Callable[[RunStore], Guard] | None = None,
    ) -> None:
        self.agent = agent
        self.model = model
        self.has_schema = has_schema
        self.may_end = may_end
        self.free_of_charge = free_of_charge
        self.ask = ask
        self.last_lap_usd = last_lap_usd
        self.retry_delays = retry_delays
        self.lifespan = lifespan
        """Entered for the length of each run: holds connections and tool servers open."""
        self.conversation = conversation
        """What was said, where the run answers a message."""
        self.guard = guard
        """Makes a run's guard, where there are guardrails: not in the library."""

    @classmethod
    def of(
        cls,
        agent: AbstractAgent[Any, Any] | AgentPort | Wiring | str,
        prices: Mapping[str, Price],
        deps: object = None,
        *,
        loop_done: bool = True,
    ) -> Wiring:
        """Wire an agent given in any of the library's ways."""
        if isinstance(agent, Wiring):
            return agent
        if hasattr(agent, "take_turn"):
            return cls(cast(AgentPort, agent))
        from pydantic_ai.models import Model

        from ..agents.ask import Asker, JudgeAgents
        from ..agents.clients import shared_connections
        from ..agents.prices import PriceBook
        from ..agents.turn import AgentRunner
        from ..builtins.loop_done import loop_done_toolset

        book, judges = PriceBook(prices), JudgeAgents()
        real = _agent_of(agent) if isinstance(agent, str) else cast("AbstractAgent[Any, Any]", agent)
        builtins = [loop_done_toolset()] if loop_done else []
        runner = AgentRunner(real, prices=book, toolsets=builtins, deps=deps)
        model = real.model
        free = isinstance(model, Model) and _is_free(book, model)
        name = model.model_id if isinstance(model, Model) else str(model or "")

        @asynccontextmanager
        async def lifespan() -> AsyncGenerator[None]:
            async with shared_connections(), real, judges.open():
                yield

        return cls(
            runner,
            model=name,
            has_schema=real.output_type is not str,
            may_end=loop_done,
            free_of_charge=free,
            ask=lambda store: Asker(store, book, judges),
            lifespan=lifespan,
        )


class Run:
    """A run in progress: await it for its result, iterate `events()` to watch, `cancel()` to stop it cleanly."""

    def __init__(self, loop: Loop, goal: str, *, journal: Path | None, run_id: str) -> None:
        self.id = run_id
        self._halt = Halt()
        self._watchers: list[asyncio.Queue[RunEvent | None]] = []
        """A queue for each; `None` says that no event will come any more."""
        self._files = ExitStack()
        sinks: list[Sink] = [self._publish]
        if journal is not None:
            sinks.insert(0, self._files.enter_context(JournalFile(journal)))
        clock = SteadyClock()
        store = MemoryRunStore(run_id, cap=budget_of(loop.stop), clock=clock, sinks=sinks)
        self._task = asyncio.ensure_future(run_loop(loop.plan(goal, run_id), loop.ports(store, clock), self._halt))
        self._task.add_done_callback(lambda _: self._ended())

    def cancel(self) -> None:
        """Stop the run: what is in flight is cancelled, what is paid for is kept. Await the run for its result."""
        self._halt("cancelled")

    async def events(self) -> AsyncIterator[RunEvent]:
        """The run's events from now on, to its last one. Leaving the iteration doesn't stop the run."""
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        self._watchers.append(queue)
        if self._task.done():
            queue.put_nowait(None)
        try:
            while (event := await queue.get()) is not None:
                yield event
                if isinstance(event, RunFinished):
                    return
        finally:
            self._watchers.remove(queue)

    def __await__(self) -> Generator[object, None, RunResult]:
        return self._task.__await__()

    def _ended(self) -> None:
        self._files.close()
        self._publish(None)

    def _publish(self, event: RunEvent | None) -> None:
        for queue in self._watchers:
            queue.put_nowait(event)


def new_run_id() -> str:
    """A new run's id: sorts by time of creation, unique everywhere."""
    import time

    return f"run_{int(time.time() * 1000):011x}{uuid.uuid4().hex[:10]}"


def _check_arguments(direction: str, attempts: int, **evaluators: object) -> None:
    """Refuse what a type checker would, for those who have none, before anything is paid for."""
    problems: list[Problem] = []
    if direction not in get_args(Direction):
        problems.append(Problem(field="direction", message=f"must be maximize or minimize, not {direction!r}"))
    if attempts < 1:
        problems.append(Problem(field="attempts", message=f"must be 1 or more, not {attempts}"))
    for name, given in evaluators.items():
        if not (given is None or callable(given) or hasattr(given, "evaluate")):
            message = f"must be a function of the candidate, or an Evaluator, not {type(given).__name__}"
            problems.append(Problem(field=name, message=message))
    if problems:
        raise InvalidInput(*problems)


def _evaluator(evaluate: Evaluate | Evaluator | None) -> Evaluator | None:
    if evaluate is None or hasattr(evaluate, "evaluate"):
        return cast("Evaluator | None", evaluate)
    from ..feedback.python import CallableEvaluator

    return CallableEvaluator(function=cast("Evaluate", evaluate))


def _agent_of(name: str) -> AbstractAgent[object, object]:
    from ..agents.build import build_agent
    from ..core.spec import AgentSpec
    from ..egress import EgressClient

    return build_agent(AgentSpec(model=name), egress=EgressClient(), folder=Path.cwd())


def _is_free(book: PriceBook, model: Model) -> bool:
    try:
        return book.price_of(model).is_free
    except UnknownPrice:  # refused before the first request, with the way out
        return False
