"""Tiers of service and speeds: what a request asks for must be on the price list, or its worst case is not one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic_ai.models import Model

from .bound import UnboundedRequest, innermost
from .prices import ModelRate

NOT_DEARER: Final = frozenset({"auto", "default", "standard", "standard_only", "flex"})
"""Values that ask for no dearer service than the plain one: the provider's own choice, the plain one, a slower one."""


def asked_for(model: Model, settings: Mapping[str, object]) -> dict[str, str]:
    """What the settings ask of `model`, as the price list has it: `service_tier`, `speed`."""
    sender = innermost(model)
    if sender.system == "anthropic":  # its tiers are bought beforehand; only speed has a price
        names = {"speed": ("anthropic_speed",)}
    elif sender.system.startswith(("google", "bedrock")):
        names = {"service_tier": ("service_tier",)}
    else:
        names = {"service_tier": ("openai_service_tier", "service_tier")}
    values = {key: next((settings[n] for n in either if settings.get(n)), None) for key, either in names.items()}
    ignored = sender.unsupported_settings
    return {k: v for k, v in values.items() if isinstance(v, str) and v != "auto" and k not in ignored}


def refuse_unlisted(model: Model, rate: ModelRate, settings: Mapping[str, object]) -> None:
    """Refuse a dearer tier of service for which no price is known.

    Raises:
        UnboundedRequest: names it, and the way out.
    """
    for key, value in asked_for(model, settings).items():
        if value not in NOT_DEARER and not rate.lists(key, value):
            raise UnboundedRequest(
                f"a request to {rate.name} was not sent, because its cost has no limit: the price list has no price "
                f"for the {key.replace('_', ' ')} {value!r}; take the setting out, or declare the model's price"
            )
