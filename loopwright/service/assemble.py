"""From a loop file's spec to a loop that runs: the composition of agents, evaluators, prices and egress."""

from __future__ import annotations
