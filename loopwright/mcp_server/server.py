"""The MCP server: tools that start, follow and stop runs; loops and journals as resources; prompts to write loops."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import BeforeValidator, Field
from pydantic_core import to_json

from ..core.caller import Caller
from ..core.errors import LoopwrightError, NotFound, StoreUnavailable
from ..core.events import IterationFinished
from ..core.money import usd
from ..core.records import Run
from ..core.stop import iterations_of, parse_stop
from ..service import loops, runs
from ..service.cancel import cancel_run as cancel
from ..service.follow import follow
from ..service.once import Once
from ..service.start import Wanted, start_run
from .answers import Best, LoopInfo, LoopList, RunInfo, RunList, RunReport
from .caller import KnowsCaller, me
from .prompts import add_prompts
from .resources import Resources

if TYPE_CHECKING:
    from ..service.runtime import Runtime

INSTRUCTIONS = """\
Loopwright runs an agent in a feedback loop: the agent proposes, an evaluator scores, until a stop condition holds. \
The result is the best candidate. Runs cost money, at most their budget. Use list_loops to see what there is, run_loop \
to start a run, check_run to follow it and get_best for its result. A run goes on when you leave; list_runs finds it."""

WAIT_SECONDS = 45.0
"""How long `run_loop` waits unless told otherwise: many clients give up on a call after a minute."""

MOST_WAIT_SECONDS = 3600.0

LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)

Loop = Annotated[str, Field(min_length=1, max_length=200, description="The loop's name or id.")]
RunId = Annotated[str, Field(pattern=r"^run_[0-9a-f]{8,40}$", description="The run's id, as run_loop gave it.")]
Dollars = Annotated[str, BeforeValidator(lambda value: None if value is None else f"{usd(value):f}")]
Cursor = Annotated[str | None, Field(max_length=160, description="`next_cursor` of the page before.")]
Limit = Annotated[int, Field(ge=1, le=100, description="The most items of a page.")]
Wait = Annotated[
    float,
    Field(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for the end of the run; 0 answers at once."),
]


class LoopwrightMCP(MCPServer[dict[str, Any]]):
    """The server, as the service sees it: errors of ours are said to the model, lists are the caller's own."""

    def __init__(self, runtime: Runtime, owner: Caller | None) -> None:
        with _logging_left_alone():
            super().__init__(
                "loopwright",
                title="Loopwright",
                instructions=INSTRUCTIONS,
                version=version("loopwright"),
                middleware=[KnowsCaller(owner)],
            )
        self.runtime = runtime
        self.loops_and_journals = Resources(runtime)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[dict[str, Any], Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. What is refused is an answer that the model can act on.

        Raises:
            ToolError: says what is wrong, and the way out.
        """
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, LoopwrightError):
                raise ToolError(in_words(error.__cause__)) from error
            raise

    async def list_resources(self) -> list[Any]:
        """The loops that the caller may see, and the journals of its last runs."""
        return [*await super().list_resources(), *await self.loops_and_journals.listed(me())]


def in_words(error: LoopwrightError) -> str:
    """What a model is told of an error."""
    if isinstance(error, StoreUnavailable):
        return "the database is away at the moment; nothing was changed, so try again in a few seconds"
    return str(error)


@contextmanager
def _logging_left_alone() -> Generator[None]:
    """The package sets up the log of the whole process unless somebody has; whoever runs the process does that."""
    root, here = logging.getLogger(), logging.NullHandler()
    root.addHandler(here)
    try:
        yield
    finally:
        root.removeHandler(here)


def build_server(runtime: Runtime, *, owner: Caller | None = None) -> LoopwrightMCP:
    """Make the server.

    Args:
        runtime: what the use cases need.
        owner: who speaks where no HTTP request says it: on stdio.
    """
    server = LoopwrightMCP(runtime, owner)
    _add_run_loop(server, runtime)
    _add_looking(server, runtime)
    server.loops_and_journals.add_to(server)
    add_prompts(server, runtime)
    return server


def _add_run_loop(server: LoopwrightMCP, runtime: Runtime) -> None:
    @server.tool(
        title="Run a loop (costs money)",
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
        ),
        meta={"loopwright/costs_money": True},
    )
    async def run_loop(
        ctx: Context[dict[str, Any], Any],
        loop: Loop,
        goal: Annotated[str | None, Field(min_length=1, description="Another goal than the loop's.")] = None,
        budget_usd: Annotated[
            Dollars | None, Field(description="A smaller budget than the loop's, in US dollars.")
        ] = None,
        max_iterations: Annotated[int | None, Field(ge=1, description="Fewer iterations than the loop's.")] = None,
        max_seconds: Annotated[float | None, Field(gt=0, description="Less time than the loop's, in seconds.")] = None,
        wait_seconds: Wait = WAIT_SECONDS,
        idempotency_key: Annotated[
            str | None,
            Field(
                pattern=r"^[!-~]{1,180}$",
                description="A text of your own for this request: called again with it, the tool starts no second run "
                "and reports the first one.",
            ),
        ] = None,
    ) -> RunReport:
        """Start a run of a stored loop and wait for its end. It costs money, at most its budget (see list_loops).

        If the run isn't over after `wait_seconds`, it goes on by itself: follow it with check_run.
        """
        wanted = Wanted(
            goal=goal,
            budget_usd=None if budget_usd is None else usd(budget_usd),
            max_iterations=max_iterations,
            max_seconds=max_seconds,
        )
        found = await loops.find_loop(runtime, me(), loop)
        once = _once(idempotency_key, [str(found.id), goal, budget_usd, max_iterations, max_seconds])
        started = await start_run(runtime, me(), found.id, wanted, once, within_caps=True)
        return await _report(ctx, runtime, started.run_id, wait_seconds)


def _add_looking(server: LoopwrightMCP, runtime: Runtime) -> None:
    @server.tool(title="Check a run", annotations=LOOKS)
    async def check_run(ctx: Context[dict[str, Any], Any], run_id: RunId, wait_seconds: Wait = 0.0) -> RunReport:
        """Say how a run stands, at once or when it is over."""
        return await _report(ctx, runtime, run_id, wait_seconds)

    @server.tool(title="The best candidate of a run", annotations=LOOKS)
    async def get_best(run_id: RunId) -> Best:
        """Give the best candidate of a run so far, whole, with what its evaluator said of it."""
        run = await _run(runtime, run_id)
        if run.best is None:
            raise NotFound(f"{run_id} has no candidate yet; ask check_run how it stands")
        return Best(
            run_id=run.id,
            status=run.status,
            iteration=run.best.number,
            score=run.best.score,
            detail=run.best.feedback.detail if run.best.feedback else "",
            text=run.best.text,
        )

    @server.tool(
        title="Cancel a run",
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )
    async def cancel_run(run_id: RunId) -> RunReport:
        """Stop a run. Its best candidate so far is kept. Doing it twice is doing it once."""
        await _run(runtime, run_id)
        await cancel(runtime, me(), run_id)
        return RunReport.of(await follow(runtime, me(), run_id, seconds=5))

    @server.tool(title="List loops", annotations=LOOKS)
    async def list_loops(cursor: Cursor = None, limit: Limit = 20) -> LoopList:
        """List the loops that you may run, newest first, with what a run of each can cost."""
        page = await loops.list_loops(runtime, me(), cursor=cursor, limit=limit)
        return LoopList(loops=[LoopInfo.of(loop) for loop in page.items], next_cursor=page.next_cursor)

    @server.tool(title="List runs", annotations=LOOKS)
    async def list_runs(cursor: Cursor = None, limit: Limit = 20) -> RunList:
        """List your own runs, newest first: a run that you lost sight of is here."""
        page = await runs.list_runs(runtime.database, me(), cursor=cursor, limit=limit, mine=True)
        return RunList(runs=[RunInfo.of(run) for run in page.items], next_cursor=page.next_cursor)


def _once(key: str | None, asked: list[object]) -> Once | None:
    if key is None:
        return None
    return Once(key=f"mcp:{key}", sha256=hashlib.sha256(to_json(["run_loop", *asked])).digest())


async def _run(runtime: Runtime, run_id: str) -> Run:
    try:
        return await runs.get_run(runtime.database, me(), run_id)
    except NotFound:
        raise NotFound(f"there is no run {run_id} that you may see; list_runs shows yours") from None


async def _report(ctx: Context[dict[str, Any], Any], runtime: Runtime, run_id: str, seconds: float) -> RunReport:
    """How a run stands after a while; tells of each iteration meanwhile."""
    run = await _run(runtime, run_id)
    limit = iterations_of(parse_stop(run.spec["stop"]))
    total = None if limit is None else limit * int(run.spec.get("attempts", 1))

    async def tell(event: IterationFinished, finished: int) -> None:
        score = "failed" if event.iteration.score is None else f"score {event.iteration.score:g}"
        best = "" if event.best_score is None else f", best {event.best_score:g}"
        message = f"iteration {finished}: {score}{best}, ${event.wallet.spent:f} spent"
        await ctx.report_progress(finished, total, message)

    return RunReport.of(await follow(runtime, me(), run_id, seconds=seconds, tell=tell))
