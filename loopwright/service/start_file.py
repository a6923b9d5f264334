"""Starting a run of a loop file, in the process that executes it: what `loopwright run` does."""

from __future__ import annotations

from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput
from ..core.records import Loop
from ..core.stop import budget_of
from ..store import activity, loops, run_queries
from ..store.database import Connection
from ..store.run_queries import NewRun
from .checks import check_loop
from .guardrails import clear
from .loop_files import LoopFile
from .runtime import Runtime


async def check_file(runtime: Runtime, caller: Caller, file: LoopFile) -> None:
    """Check what reading a loop file doesn't: prices, keys, functions.

    Raises:
        InvalidInput: everything that is wrong, with the file's lines.
    """
    world = await runtime.world(caller.user_id, _folder(file))
    try:
        await check_loop(file.spec.model_dump(mode="json", exclude_unset=True), world)
    except InvalidInput as error:
        raise file.located(error) from None


async def insert_run_of_file(runtime: Runtime, caller: Caller, file: LoopFile, run_id: str) -> None:
    """Record a run of a loop file that was checked. Nobody executes it yet: who inserts it does so at once.

    It keeps the file's contents and its folder, and nothing is stored as a loop. Where the file was pushed before, the
    run is one of the stored loop's.

    Raises:
        GuardrailRefused: a guardrail refuses it.
    """
    spec, folder = file.spec, _folder(file)
    async with runtime.database.as_user(caller.user_id) as connection:
        stored = await _pushed(connection, caller, spec.name, folder)
        run = NewRun(
            id=run_id,
            loop_id=stored.id if stored else None,
            loop_name=spec.name,
            agent_id=stored.agent_id if stored else None,
            door=caller.door,
            spec=spec.model_dump(mode="json", exclude_unset=True),
            goal=spec.goal,
            cap_usd=budget_of(spec.stop_condition),
            folder=folder,
        )
    cleared = await clear(runtime.database, caller, run)
    async with runtime.database.as_user(caller.user_id) as connection:
        await run_queries.insert_run(connection, cleared)
        await activity.note(connection, caller.door, "run_started", f"run:{run_id}", file=str(file.path))


def _folder(file: LoopFile) -> str:
    return str(file.path.parent.resolve())


async def _pushed(connection: Connection, caller: Caller, name: str, folder: str) -> Loop | None:
    """The stored loop that was pushed from a folder under a name."""
    loop = await loops.find_loop(connection, caller.user_id, name)
    return loop if loop and await loops.folder_of(connection, UUID(str(loop.id))) == folder else None
