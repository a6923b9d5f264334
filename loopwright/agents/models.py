"""From a model's name in a loop file to a pydantic-ai model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from ..core.errors import InvalidInput, Problem
from ..core.spec import ModelChoice
from .practice import PRACTICE, PracticeModel


def build_model(choice: ModelChoice, fallback_models: Sequence[str] = (), *, where: str = "agent") -> Model:
    """Make the model that a spec names; with fallbacks, one that tries them in order. `where` is its place in the file.

    Raises:
        InvalidInput: no such model, or its API key is missing; says which variable to set.
    """
    first = _build_one(choice, choice.model, where)
    if not fallback_models:
        return first
    from pydantic_ai.models.fallback import FallbackModel

    return FallbackModel(first, *(_build_one(choice, name, where) for name in fallback_models))


def model_settings(choice: ModelChoice) -> ModelSettings:
    """The model settings of a spec, with its limit of output tokens."""
    return cast(ModelSettings, {**choice.settings, "max_tokens": choice.max_output_tokens})


def _build_one(choice: ModelChoice, name: str, where: str) -> Model:
    if name == PRACTICE:
        pace = choice.settings.get("practice_pace", 0.25)
        return PracticeModel(pace=float(pace) if isinstance(pace, int | float) else 0.25)
    if name == "test":
        message = "`test` is pydantic-ai's stand-in; use `practice` to try things without a key"
        raise InvalidInput(Problem(field=f"{where}.model", message=message))

    def provider(kind: str) -> Provider[object]:
        options: dict[str, str] = {}
        if choice.base_url:
            options["base_url"] = choice.base_url
        if choice.api_key_env:
            key = os.environ.get(choice.api_key_env)
            if not key:
                message = f"the environment variable {choice.api_key_env} is not set; set it to the API key of {name!r}"
                raise InvalidInput(Problem(field=f"{where}.api_key_env", message=message))
            options["api_key"] = key
        elif choice.base_url:
            options["api_key"] = "none"  # a local server wants no key, and its client insists on one
        return infer_provider_class(kind)(**options)

    try:
        return infer_model(name, provider) if choice.base_url or choice.api_key_env else infer_model(name)
    except (UserError, ValueError) as error:
        raise InvalidInput(Problem(field=f"{where}.model", message=f"{name!r}: {error}")) from None
    except TypeError as error:
        message = f"the provider of {name!r} does not take base_url or api_key_env: {error}"
        raise InvalidInput(Problem(field=f"{where}.base_url", message=message)) from None
    except ImportError as error:
        raise InvalidInput(Problem(field=f"{where}.model", message=f"{name!r} needs a package: {error}")) from None
