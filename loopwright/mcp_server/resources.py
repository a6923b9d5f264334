"""Loops as files and the journals of runs, as resources that a client can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import Resource

from ..core.caller import Caller
from ..core.errors import LoopwrightError, NotFound
from ..service import loops, runs
from ..service.push import pull_loop
from .caller import me

if TYPE_CHECKING:
    from ..service.runtime import Runtime

LOOP = "loopwright://loops/{loop_id}"
JOURNAL = "loopwright://runs/{run_id}/journal{?after}"

LISTED = 50
"""How many loops and how many runs the list of resources shows."""

MOST_BYTES = 1_000_000
"""How much of a journal one reading gives, but for one event that alone is larger."""


@dataclass(frozen=True)
class Resources:
    """The resources of whoever asks."""

    runtime: Runtime

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add them to a server."""

        @server.resource(
            LOOP,
            name="loop",
            title="A loop as a loop file",
            description="The loop with its agent, evaluator and stop conditions.",
            mime_type="application/yaml",
        )
        async def loop_file(loop_id: str) -> str:
            try:
                return await pull_loop(self.runtime, me(), loop_id)
            except LoopwrightError as error:
                raise _refused(error) from None

        @server.resource(
            JOURNAL,
            name="journal",
            title="The journal of a run",
            description="One event a line, from the first after the sequence number `after`; each has its `seq`. A "
            "long journal comes in parts: read on with `after` set to the last `seq`.",
            mime_type="application/x-ndjson",
        )
        async def journal(run_id: str, after: str = "0") -> str:
            if not after.isascii() or not after.isdigit():
                raise ResourceError("`after` must be the `seq` of an event, or be left out")
            try:
                lines = await runs.export_run(self.runtime.database, me(), run_id, after=int(after))
            except LoopwrightError as error:
                raise _refused(error) from None
            return await _some(lines)

    async def listed(self, caller: Caller) -> list[Resource]:
        """The newest loops and runs that the caller may see."""
        some_loops = await loops.list_loops(self.runtime, caller, cursor=None, limit=LISTED)
        some_runs = await runs.list_runs(self.runtime.database, caller, limit=LISTED, mine=True)
        return [
            *(
                Resource(
                    uri=LOOP.format(loop_id=loop.id),
                    name=f"loop {loop.name}",
                    mime_type="application/yaml",
                )
                for loop in some_loops.items
            ),
            *(
                Resource(
                    uri=f"loopwright://runs/{run.id}/journal",
                    name=f"journal of {run.id} ({run.loop_name})",
                    mime_type="application/x-ndjson",
                )
                for run in some_runs.items
            ),
        ]


def _refused(error: LoopwrightError) -> ResourceError:
    return ResourceNotFoundError(str(error)) if isinstance(error, NotFound) else ResourceError(str(error))


async def _some(chunks: AsyncIterator[bytes]) -> str:
    """Whole lines, until it is enough."""
    found: list[bytes] = []
    size = 0
    async for chunk in chunks:
        for line in chunk.splitlines(keepends=True):
            if found and size + len(line) > MOST_BYTES:
                return b"".join(found).decode()
            found.append(line)
            size += len(line)
    return b"".join(found).decode()
