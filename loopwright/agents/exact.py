"""Tighter counts of a request's input than its bytes, for when the bytes don't fit into what is left of a budget.

Only exact ones: the provider's own count, or OpenAI's tokenizer where its rank file already lies on this machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httpx
import httpx2
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelMessage, SystemPromptPart, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_core import to_json

from .bound import MESSAGE_TOKENS, definitions_json, framing, innermost, input_bound, text_tokens
from .prices import VERSION

COUNT_SECONDS: Final = 10.0
"""How long to wait for a provider to count tokens."""

COUNTING_SYSTEMS: Final[Mapping[str, int]] = {"anthropic": 20, "google": 50, "google-cloud": 50, "openai": 50}
"""Providers whose count is worth asking for, and which part of it is added on top, in case they count a little less
than they bill (Anthropic, "Token counting": the actual number may differ by a small amount)."""

ENCODINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"), "o200k_base"),
    **dict.fromkeys(("gpt-5", "gpt-5-mini", "gpt-5-nano", "o1", "o3", "o3-mini", "o4-mini"), "o200k_base"),
    **dict.fromkeys(("gpt-4", "gpt-4-turbo", "gpt-3.5-turbo"), "cl100k_base"),
}
"""Encodings of models (`tiktoken/model.py`), by full name: tiktoken itself takes any name that begins like one."""

RANK_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "cl100k_base": (
        "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}
"""Address and SHA-256 of rank files (`tiktoken_ext/openai_public.py`)."""

Counter = Callable[[str], int]
"""Counts the tokens of a text."""


async def exact_input(
    model: Model,
    messages: Sequence[ModelMessage],
    settings: ModelSettings,
    params: ModelRequestParameters,
    prepared: ModelRequestParameters,
    *,
    output_limit: int,
) -> int | None:
    """A tighter bound than the bytes; `None` where there is none.

    Args:
        model: what is asked.
        messages: as they are handed to the model.
        settings: the settings of the request.
        params: the request parameters as they are handed to the model.
        prepared: the same as `Model.prepare_request` returns them.
        output_limit: most tokens that an earlier answer without usage may have had.
    """
    inner = innermost(model)
    part = COUNTING_SYSTEMS.get(inner.system)
    if part is not None and type(inner).count_tokens is not Model.count_tokens:
        counted = await _provider_count(inner, list(messages), settings, params)
        if counted is not None:
            return counted + counted // part + MESSAGE_TOKENS + _uncounted_by_google(inner, messages, prepared)
    if (counter := await asyncio.to_thread(local_counter, inner)) is None:
        return None
    pieces = list(_texts(messages, prepared))
    as_bytes = sum(len(to_json(piece)) for piece in pieces)
    as_tokens = await asyncio.to_thread(lambda: sum(map(counter, pieces)))
    return input_bound(model, messages, prepared, output_limit=output_limit) - as_bytes + as_tokens


async def _provider_count(
    model: Model, messages: list[ModelMessage], settings: ModelSettings, params: ModelRequestParameters
) -> int | None:
    asking = cast(ModelSettings, {**settings, "max_retries": 0, "timeout": COUNT_SECONDS})
    try:
        async with asyncio.timeout(COUNT_SECONDS):
            usage = await model.count_tokens(messages, asking, params)
    except (NotImplementedError, AgentRunError, UserError, OSError, httpx.HTTPError, httpx2.HTTPError):
        return None  # the byte bound stands; `TimeoutError` is an `OSError`
    return usage.input_tokens or None


def _uncounted_by_google(model: Model, messages: Sequence[ModelMessage], prepared: ModelRequestParameters) -> int:
    """What the Gemini API leaves out of its count (Google Cloud doesn't): instructions, tools and schemas, in bytes."""
    if model.system != "google":
        return 0
    system = "".join(p.content for m in messages for p in m.parts if isinstance(p, SystemPromptPart))
    return text_tokens(definitions_json(prepared, messages)) + text_tokens(system.encode()) + framing([], prepared)


def _texts(messages: Sequence[ModelMessage], prepared: ModelRequestParameters) -> Iterator[str]:
    """The texts of which a request mostly consists. What isn't here is counted in bytes."""
    for instruction in prepared.instruction_parts or ():
        yield instruction.content
    for message in messages:
        for part in message.parts:
            match part:
                case SystemPromptPart(content=text) | TextPart(content=text) | UserPromptPart(content=str() as text):
                    yield text
                case ToolReturnPart(content=str() as text):
                    yield text
                case _:
                    pass


def local_counter(model: Model) -> Counter | None:
    """OpenAI's tokenizer for a model of OpenAI's own, if it can be had without waiting for the network."""
    host = urlsplit(model.base_url or "").hostname
    name = ENCODINGS.get(VERSION.sub("", model.model_name))
    if model.system != "openai" or host != "api.openai.com" or name is None:
        return None
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir()) / "data-gym-cache")  # where tiktoken looks
    return _load(name, folder) if folder else None


@cache
def _load(name: str, folder: str) -> Counter | None:
    """The tokenizer, if its rank file is there and whole: else tiktoken would download it."""
    address, expected = RANK_FILES[name]
    path = Path(folder) / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() != expected:
        return None
    import tiktoken

    encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode_ordinary(text))
