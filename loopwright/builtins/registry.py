"""Every builtin: the same for the agents of loops, chats, schedules and webhooks. One that isn't granted is never
registered with an agent."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai.toolsets import AbstractToolset

from ..core.ports import LoopDesk
from . import loop_done, loops

NAMES = frozenset({loop_done.NAME, *loops.NAMES})
"""All there are; each has a row in `tools`."""


@dataclass(frozen=True)
class Builtins:
    """What an agent is granted, and who does the work behind it."""

    granted: frozenset[str]
    desk: LoopDesk | None = None

    def toolsets(self, *, loop_done: bool) -> list[AbstractToolset[object]]:
        """The granted builtins as toolsets; `loop_done` only where the agent runs in a loop that it may end."""
        found: list[AbstractToolset[object]] = []
        if loop_done and DONE in self.granted:
            found.append(loop_done_toolset())
        if self.desk is not None and (names := self.granted & loops.NAMES):
            found.append(loops.loops_toolset(names, self.desk))
        return found


DONE = loop_done.NAME

loop_done_toolset = loop_done.loop_done_toolset

ALONE = Builtins(frozenset({DONE}))
"""What an agent has where there is no service: nothing that starts runs."""
