"""What a loop may reach: hosts, named values, code of its operator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.guardrails import Rule
from ..core.spec import ENV_REFERENCE, Price


@dataclass(frozen=True, kw_only=True)
class World:
    """The surroundings that a loop is built for."""

    folder: Path
    """Where commands run, and where Python functions are found."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    """What `${NAME}` and names of API keys stand for."""
    allow_hosts: frozenset[str] = frozenset()
    """What the operator lets every loop reach though it isn't public."""
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """What models cost here: after a loop's own prices, before the built-in list."""
    rules: Sequence[Rule] = ()
    """The workspace's guardrails; none for loop files that run without the service, and in the library."""
    trusts_writer: bool = True
    """Whether the loop's writer is the operator: then the hosts that it names may be reached wherever they are."""
    trusts_loopback: bool = False
    """Whether a named loopback host may be reached though the writer isn't trusted otherwise."""
    local_code: bool = True
    """Whether it may run commands and Python functions."""

    def missing(self, text: str) -> list[str]:
        """The names in a text that stand for nothing."""
        return [name for name in ENV_REFERENCE.findall(text) if not self.environ.get(name)]
