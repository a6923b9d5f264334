"""How many input tokens a request can come to at most: strict, or the promise of the wallet is a lie.

A byte-level tokenizer makes at most one token of a byte, and one that falls back to bytes does no worse. So the bound
is the UTF-8 bytes of everything that is sent, plus what providers put around it. It is some times too high, which
matters only near the end of a budget; `exact.exact_input` is for then.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
    is_multi_modal_content,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_core import to_json

from ..core.errors import LoopwrightError

BASE_TOKENS: Final = 1024
"""Around a request as a whole: start and end tokens, and pydantic-ai's own note on what its `<system>` tags mean
(under 900 bytes)."""
MESSAGE_TOKENS: Final = 16
"""Around a message: role and separators. OpenAI's cookbook counts 3 to 4; other chat templates stay under 10."""
PART_TOKENS: Final = 48
"""Around a part of a message: it may become a message of its own, or get a tag, an id or a JSON object around it."""
TOOL_TOKENS: Final = 64
"""Around a tool definition, beside its own JSON."""
HIDDEN_TOOL_PROMPT_TOKENS: Final = 1024
"""The system prompt that providers add once there are tools or an output schema. Anthropic documents 159 to 530 tokens
by model (docs: "Tool use pricing and tokens"); OpenAI and Google document none, and measure below 100."""

IMAGE_TOKENS: Final[tuple[tuple[str, str, int], ...]] = (
    ("openai", "gpt-4o-mini", 50_000),
    ("openai", "gpt-4o", 25_000),
    ("openai", "gpt-4.1", 25_000),
    ("openai", "gpt-4-turbo", 25_000),
    ("openai", "gpt-5", 25_000),
    ("openai", "o1", 25_000),
    ("openai", "o3", 25_000),
    ("openai", "o4", 25_000),
    ("anthropic", "claude-", 6_000),
    ("google", "gemini-", 8_192),
)
"""Most tokens of one image, whatever its size, by provider and the start of the model's name.

OpenAI ("Images and vision: calculating costs"): at most 8 tiles, so 2,833 + 8 * 5,667 = 48,169 for gpt-4o-mini and
1,445 for gpt-4o; elsewhere at most 10,000 patches times a multiplier of up to 2.46. Anthropic ("Vision"): scaled down
to at most 4,784 tokens. Google ("Media resolution", "Image understanding"): at most 2,240 tokens, or for older models
tiles of 258 tokens in 3072 x 3072 pixels, at most 26. Families without a known limit are not here: they are refused.
"""

UNBOUNDED_SETTINGS: Final[Mapping[str, str]] = {
    "openai_previous_response_id": "it adds messages that the provider keeps",
    "openai_conversation_id": "it adds messages that the provider keeps",
    "openai_background": "its answer is fetched later, outside the request that was paid for",
    "openai_prediction": "rejected predictions are billed beside the answer",
    "openai_context_management": "it makes the provider run more requests",
    "openai_reasoning_mode": "it makes the provider run several answers",
    "openai_native_tools": "the provider runs tools at its own price",
    "openai_transport": "its connection keeps messages at the provider",
    "anthropic_context_management": "it makes the provider run more requests",
    "anthropic_container": "the provider runs code at its own price",
    "google_cached_content": "it adds a cached prompt of unknown size",
    "openrouter_models": "another model with another price may answer",
    "openrouter_preset": "another model with another price may answer",
    "bedrock_guardrail_config": "guardrails have a price of their own",
    "bedrock_prompt_variables": "it adds a prompt that the provider keeps",
    "bedrock_additional_model_requests_fields": "it may hold anything",
    "bedrock_inference_profile": "another model with another price may answer",
    "xai_previous_response_id": "it adds messages that the provider keeps",
    "xai_agent_count": "it makes the provider run several answers",
}
"""Settings whose cost can't be bounded before the request, and why."""

PLAIN_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "bedrock_service_tier": frozenset({"default"}),
    "bedrock_performance_configuration": frozenset({"standard"}),
    "google_cloud_service_tier": frozenset({"pt_then_on_demand", "pt_only", "on_demand", "pt_then_flex", "flex_only"}),
}
"""Settings that choose a tier of service, with the values that cost no more than the listed price."""

HARMLESS_HEADERS: Final = frozenset(
    {
        "baggage",
        "http-referer",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-client-request-id",
        "x-request-id",
        "x-title",
    }
)
"""Headers in `extra_headers` that say who asks. Others may turn on what costs more: `anthropic-beta`, tiers, routes."""

HARMLESS_BODY: Final = frozenset(
    {
        "chat_template_kwargs",
        "enable_thinking",
        "frequency_penalty",
        "min_p",
        "mirostat",
        "presence_penalty",
        "reasoning",
        "reasoning_effort",
        "reasoning_format",
        "repetition_penalty",
        "seed",
        "stop",
        "temperature",
        "thinking",
        "top_a",
        "top_k",
        "top_p",
        "user",
        "verbosity",
    }
)
"""Keys of `extra_body` that can't raise what a request costs beyond its `max_tokens`. Others could: `n`, `models`,
`plugins`, `max_tokens` itself."""

_NOT_SENT: Final = frozenset(
    {"instructions", "timestamp", "run_id", "conversation_id", "metadata", "usage", "provider_url", "failed_attempts"}
)
"""Fields of a message that never reach a provider; instructions are counted apart, once."""


class UnboundedRequest(LoopwrightError):
    """The request's cost can't be bounded beforehand, so it was not sent."""


def innermost(model: Model) -> Model:
    """The model under all wrappers."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


def refuse_unbounded(
    model: Model, messages: Sequence[ModelMessage], settings: Mapping[str, object], prepared: ModelRequestParameters
) -> None:
    """Refuse what no token count bounds. `prepared` are the request parameters as `Model.prepare_request` returns them.

    Raises:
        UnboundedRequest: names what it is, and the way out.
    """
    for reason in _unbounded(innermost(model), messages, settings, prepared):
        raise UnboundedRequest(f"a request to {model.model_id} was not sent, because its cost has no limit: {reason}")


def _unbounded(
    model: Model, messages: Sequence[ModelMessage], settings: Mapping[str, object], prepared: ModelRequestParameters
) -> Iterator[str]:
    for tool in prepared.native_tools:
        yield f"the provider-side tool {tool.kind!r} has a price of its own; give the agent a tool that runs here"
    for name in UNBOUNDED_SETTINGS.keys() & {key for key, value in settings.items() if value}:
        yield f"the model setting {name!r} is on, and {UNBOUNDED_SETTINGS[name]}; take it out"
    yield from _unbounded_values(settings)
    body = settings.get("extra_body")
    if isinstance(body, Mapping):
        for key in cast(Mapping[str, object], body).keys() - HARMLESS_BODY:
            yield f"the setting extra_body has {key!r}, which may cost anything; take it out"
    elif body is not None:
        yield "the setting extra_body is not a mapping"
    ignored = {*model.unsupported_settings, *_ignored_by_profile(model)}
    if "max_tokens" in ignored:
        yield "the provider does not let callers limit the answer (`max_tokens`)"
    if "max_retries" in ignored and not _never_resends(model):
        yield (
            "the provider's SDK sends failed requests again by itself; give its client no retries "
            "(for Bedrock: Config(retries={'total_max_attempts': 1}))"
        )
    if prepared.allow_image_output:
        yield "the model may answer with images, whose size `max_tokens` does not limit"
    last = messages[-1] if messages else None
    if isinstance(last, ModelResponse) and last.state == "suspended":
        yield "it continues an answer that the provider suspended"


def _unbounded_values(settings: Mapping[str, object]) -> Iterator[str]:
    for name, plain in PLAIN_VALUES.items():
        value = settings.get(name)
        chosen = [*cast(Mapping[str, object], value).values()] if isinstance(value, Mapping) else [value]
        if value and not plain.issuperset(map(str, chosen)):
            yield f"the model setting {name!r} is {', '.join(map(str, chosen))}, at a price of its own; take it out"
    headers = settings.get("extra_headers")
    if isinstance(headers, Mapping):
        for name in cast(Mapping[str, object], headers):
            if name.lower() not in HARMLESS_HEADERS:
                yield f"the setting extra_headers has {name!r}, which may cost anything; take it out"
    elif headers:
        yield "the setting extra_headers is not a mapping"


def _ignored_by_profile(model: Model) -> Sequence[str]:
    ignored = cast(Mapping[str, object], model.profile).get("openai_unsupported_model_settings", ())
    return cast(Sequence[str], ignored)


def _never_resends(model: Model) -> bool:
    """Whether a model whose SDK pydantic-ai can't tell to stop retrying doesn't retry anyway."""
    if model.system == "huggingface":  # `AsyncInferenceClient` sends once
        return True
    retries = getattr(getattr(getattr(getattr(model, "client", None), "meta", None), "config", None), "retries", None)
    return isinstance(retries, Mapping) and cast(Mapping[str, object], retries).get("total_max_attempts") == 1


def input_bound(
    model: Model, messages: Sequence[ModelMessage], prepared: ModelRequestParameters, *, output_limit: int
) -> int:
    """The most input tokens that the request can be billed for.

    Args:
        model: what is asked.
        messages: as they are handed to the model.
        prepared: the request parameters as `Model.prepare_request` returns them: tool schemas as they are sent.
        output_limit: most tokens that an earlier answer without usage may have had.

    Raises:
        UnboundedRequest: there is media whose tokens can't be known.
    """
    return (
        BASE_TOKENS
        + text_tokens(messages_json(messages))
        + text_tokens(definitions_json(prepared, messages))
        + framing(messages, prepared)
        + _unseen_reasoning(messages, output_limit)
        + sum(_media_tokens(innermost(model), media) for media in _media(messages))
    )


def messages_json(messages: Sequence[ModelMessage]) -> bytes:
    """The messages without what never reaches a provider."""
    return ModelMessagesTypeAdapter.dump_json(list(messages), exclude={"__all__": set(_NOT_SENT)})


def definitions_json(prepared: ModelRequestParameters, messages: Sequence[ModelMessage]) -> bytes:
    """Tools, output schema and instructions."""
    tools = [*prepared.function_tools, *prepared.output_tools]
    instructions = prepared.instruction_parts or [m.instructions for m in messages if isinstance(m, ModelRequest)][-1:]
    return to_json([tools, prepared.output_object, instructions], fallback=str)


def text_tokens(data: bytes) -> int:
    """Bytes of a text, or of its compatibility form (NFKC) where that is longer: some tokenizers begin with it."""
    if data.isascii():
        return len(data)
    return max(len(data), len(unicodedata.normalize("NFKC", data.decode()).encode()))


def framing(messages: Sequence[ModelMessage], prepared: ModelRequestParameters) -> int:
    """Tokens that providers put around messages, parts and tools."""
    tools = len(prepared.function_tools) + len(prepared.output_tools)
    parts = sum(len(message.parts) for message in messages) + len(prepared.instruction_parts or ())
    hidden = HIDDEN_TOOL_PROMPT_TOKENS if tools or prepared.output_object else 0
    return MESSAGE_TOKENS * len(messages) + PART_TOKENS * parts + TOOL_TOKENS * tools + hidden


def _unseen_reasoning(messages: Sequence[ModelMessage], output_limit: int) -> int:
    """Reasoning of earlier answers that the provider keeps, and adds to the input by a reference."""
    unseen = 0
    for message in messages:
        if not isinstance(message, ModelResponse):
            continue
        usage = message.usage
        if usage.output_reasoning_tokens or any(isinstance(part, ThinkingPart) for part in message.parts):
            unseen += usage.output_tokens or output_limit
    return unseen


# --- Media ---


def _media(messages: Sequence[ModelMessage]) -> Iterator[object]:
    """Files, sent or answered; text files are text like any other."""
    for message in messages:
        for part in message.parts:
            for item in _items(part):
                if is_multi_modal_content(item) and not _is_text(item):
                    yield item


def _items(part: object) -> Sequence[object]:
    match part:
        case UserPromptPart(content=list() | tuple() as items):
            return cast(Sequence[object], items)
        case ToolReturnPart():
            return part.files
        case FilePart():
            return [part.content]
        case _:
            return []


def _is_text(item: object) -> bool:
    kind = item.media_type if isinstance(item, BinaryContent) else ""
    return kind.startswith("text/") or kind in {"application/json", "application/xml", "application/x-yaml"}


def _media_tokens(model: Model, item: object) -> int:
    """Tokens of one file at most; of an image in the request, less the bytes that were counted as text."""
    if isinstance(item, ImageUrl) or (isinstance(item, BinaryContent) and item.is_image):
        for system, start, tokens in IMAGE_TOKENS:
            if model.system.startswith(system) and model.model_name.startswith(start):
                counted = 4 * -(-len(item.data) // 3) if isinstance(item, BinaryContent) else 0
                return tokens - counted
    kind = getattr(item, "media_type", None) if isinstance(item, BinaryContent) else getattr(item, "kind", None)
    raise UnboundedRequest(
        f"a request to {model.model_id} was not sent: nobody can say beforehand how many tokens it makes of a file of "
        f"kind {kind or type(item).__name__}; send text, or an image to a model whose image tokens are known"
    )
