"""Who asks, and through which door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Door = Literal["ui", "api", "cli", "mcp", "schedule", "webhook", "chat"]
"""How a request came in."""

UserRole = Literal["member", "admin"]
"""What a user may do in the workspace."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A user who asks for something. Row-level security decides what it may see; the role only chooses a query."""

    user_id: str
    role: UserRole
    door: Door

    @property
    def is_admin(self) -> bool:
        """Whether it sees what everybody has."""
        return self.role == "admin"
