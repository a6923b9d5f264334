"""From a model's name in a loop file to a pydantic-ai model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from ..core.errors import EgressRefused, InvalidInput, Problem, Problems
from ..core.spec import ModelChoice
from ..egress import EgressClient, checked_url, named_values
from .clients import model_client, takes_our_client
from .failures import hide_key
from .practice import PRACTICE, PracticeModel


def build_model(
    choice: ModelChoice,
    fallback_models: Sequence[str] = (),
    *,
    where: str = "agent",
    egress: EgressClient | None = None,
) -> Model:
    """Make the model that a spec names; with fallbacks, one that tries them in order.

    Args:
        choice: what the spec says.
        fallback_models: asked in this order where the one before fails.
        where: its place in the file.
        egress: carries the requests to a `base_url`. Without it they go there unchecked: for programs that choose their
            models themselves.

    Raises:
        InvalidInput: no such model, or its API key is missing; says which variable to set.
    """
    problems, models = Problems(), list[Model]()
    fields = [f"{where}.model", *(f"{where}.fallback_models.{number}" for number in range(len(fallback_models)))]
    for name, field in zip((choice.model, *fallback_models), fields, strict=True):
        with problems.collecting():
            models.append(_build_one(choice, name, where, field, egress))
    problems.refuse()
    if not fallback_models:
        return models[0]
    from pydantic_ai.models.fallback import FallbackModel

    return FallbackModel(models[0], *models[1:])


def model_settings(choice: ModelChoice) -> ModelSettings:
    """The model settings of a spec, with its limit of output tokens."""
    return cast(ModelSettings, {**choice.settings, "max_tokens": choice.max_output_tokens})


def _build_one(choice: ModelChoice, name: str, where: str, field: str, egress: EgressClient | None) -> Model:
    if name == PRACTICE:
        pace, answer = choice.settings.get("practice_pace", 0.25), choice.settings.get("practice_answer")
        return PracticeModel(
            pace=float(pace) if isinstance(pace, int | float) else 0.25,
            answer=answer if isinstance(answer, str) else None,
        )
    if name == "test":
        message = "`test` is pydantic-ai's stand-in; use `practice` to try things without a key"
        raise InvalidInput(Problem(field=field, message=message))
    # A fallback of another provider is asked at its own address with its own key: neither is for others to see.
    options = _options(choice, where) if _prefix(name) == _prefix(choice.model) else {}
    options = options or _stored_key(name)

    def provider(kind: str) -> Provider[object]:
        return _provider(kind, options, egress)

    try:
        return infer_model(_by_chat(name) if "base_url" in options else name, provider)
    except (UserError, ValueError) as error:
        raise InvalidInput(Problem(field=field, message=_in_our_words(name, str(error)))) from None
    except TypeError as error:
        message = f"the provider of {name!r} does not take base_url or api_key_env: {error}"
        raise InvalidInput(Problem(field=f"{where}.{_setting(options)}", message=message)) from None
    except ImportError as error:
        raise InvalidInput(Problem(field=field, message=f"{name!r} needs a package: {error}")) from None


def _provider(kind: str, options: dict[str, str], egress: EgressClient | None) -> Provider[object]:
    """A provider that sends its requests through a client of ours, where it takes one."""
    if kind.startswith("gateway/") and not options:
        return infer_provider(kind)
    made = cast("Callable[..., Provider[object]]", infer_provider_class(kind))
    aimed = "base_url" in options
    if takes_our_client(kind, made):
        return made(**options, http_client=model_client(kind, egress if aimed else None))
    if aimed and egress is not None:
        raise TypeError("its requests can't be checked before they are sent")
    return made(**options)


def _options(choice: ModelChoice, where: str) -> dict[str, str]:
    """What the provider of the spec's model is given."""
    options: dict[str, str] = {}
    if choice.base_url:
        try:
            checked_url(choice.base_url)
        except EgressRefused as error:
            raise InvalidInput(Problem(field=f"{where}.base_url", message=str(error))) from None
        # A local server wants no key, its client insists on one, and the provider's own isn't for others to see.
        options |= {"base_url": choice.base_url, "api_key": "none"}
    if choice.api_key_env:
        key = named_values().get(choice.api_key_env, "").strip()
        if not key:
            message = (
                f"there is no {choice.api_key_env}; set the environment variable to the API key, or store it as a "
                "secret of this name (Settings, or PUT /api/secrets)"
            )
            raise InvalidInput(Problem(field=f"{where}.api_key_env", message=message))
        hide_key(choice.api_key_env)
        options["api_key"] = key
    return options


USUAL_KEYS: Mapping[str, Sequence[str]] = {
    "openai-chat": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "google-gla": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
"""The names of providers' keys; of one that isn't here it is `<PROVIDER>_API_KEY`."""


def _stored_key(name: str) -> dict[str, str]:
    """A key that is stored under the provider's usual name: providers look for it among environment variables only."""
    prefix = _prefix(name)
    usual = USUAL_KEYS.get(prefix, (f"{prefix.upper().replace('-', '_')}_API_KEY",))
    keys = [(key, named_values().get(key, "").strip()) for key in usual]
    stored = [value for key, value in keys if value and value != os.environ.get(key)]
    return {"api_key": stored[0]} if stored else {}


def _prefix(name: str) -> str:
    return name.partition(":")[0]


def _by_chat(name: str) -> str:
    """The model string for another server than OpenAI's: `openai:` means its Responses API, which few others have."""
    return f"openai-chat:{name.partition(':')[2]}" if _prefix(name) == "openai" else name


def _setting(options: dict[str, str]) -> str:
    return "base_url" if "base_url" in options else "api_key_env"


def _in_our_words(name: str, error: str) -> str:
    """What is wrong with a model, with the way out that a loop file has."""
    if variable := re.search(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|TOKEN|KEY)\b", error):
        return (
            f"{name!r} needs a key: set the environment variable {variable[0]}, or store a secret of this name "
            "(Settings, or PUT /api/secrets), or name another one by `api_key_env`; "
            "`base_url` reaches a server of your own, and `practice` plays without a key"
        )
    return f"{name!r}: {error}"
