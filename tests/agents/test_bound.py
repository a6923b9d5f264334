"""The input bound is strict: never below what is really sent."""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from loopwright.agents import exact
from loopwright.agents.bound import UnboundedRequest, innermost, input_bound, refuse_unbounded
from loopwright.agents.exact import exact_input

from .provider import Provider

PNG = b"\x89PNG\r\n" + bytes(300)


class Wire:
    """Takes what a model sends and answers nothing of use."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._take), timeout=60)

    def _take(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(request.content)
        return httpx2.Response(400, json={"error": {"message": "no", "code": 400, "status": "INVALID_ARGUMENT"}})

    def models(self) -> list[Model]:
        openai = OpenAIProvider(api_key="k", http_client=self.client)
        return [
            OpenAIChatModel("gpt-4o-mini", provider=openai),
            OpenAIResponsesModel("gpt-5-mini", provider=openai),
            AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="k", http_client=self.client)),
            GoogleModel("gemini-2.5-flash", provider=GoogleProvider(api_key="k", http_client=self.client)),
        ]


WIRE = Wire()
MODELS = WIRE.models()


def bound(model: Model, messages: Sequence[ModelMessage], params: ModelRequestParameters | None = None) -> int:
    _, prepared = model.prepare_request({"max_tokens": 100}, params or ModelRequestParameters())
    return input_bound(model, messages, prepared, output_limit=4096)


def user(*content: Any) -> list[ModelMessage]:
    return [ModelRequest(parts=[UserPromptPart(list(content) if len(content) != 1 else content[0])])]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b"]), JSON, max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> list[ModelMessage]:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[SystemPromptPart(draw(TEXT)), UserPromptPart(draw(TEXT) or "x")], instructions=draw(TEXT))
    ]
    for n in range(draw(st.integers(0, 3))):
        call = ToolCallPart("look_up", draw(ARGUMENTS), tool_call_id=f"call_{n}")
        messages.append(ModelResponse(parts=[TextPart(draw(TEXT) or "x"), call]))
        messages.append(ModelRequest(parts=[ToolReturnPart("look_up", draw(JSON), tool_call_id=f"call_{n}")]))
    return messages


@st.composite
def parameters(draw: st.DrawFn) -> ModelRequestParameters:
    names = ["look_up", *draw(st.lists(st.sampled_from(["x1", "x2", "x3"]), unique=True))]
    properties = {"a": {"type": "string", "description": draw(TEXT)}, "b": {"$ref": "#/$defs/B"}}
    schema = {
        "type": "object",
        "properties": properties,
        "$defs": {"B": {"type": "object", "properties": {"c": {"type": "integer", "title": draw(TEXT)}}}},
    }
    return ModelRequestParameters(
        function_tools=[ToolDefinition(name=n, description=draw(TEXT), parameters_json_schema=schema) for n in names],
        instruction_parts=[InstructionPart(content=draw(TEXT) or "x")],
    )


@settings(max_examples=25, deadline=None)
@given(messages=conversations(), params=parameters())
async def test_the_bound_is_never_below_what_is_sent(
    messages: list[ModelMessage], params: ModelRequestParameters
) -> None:
    for model in MODELS:
        prepared = model.prepare_messages(messages, params)
        with pytest.raises(Exception, match="400"):
            await model.request(prepared, {"max_tokens": 100, "max_retries": 0}, params)
        limit = bound(model, prepared, params)
        # The body has JSON around the texts that no tokenizer sees; still the bound isn't below it.
        body = json.dumps(json.loads(WIRE.bodies.pop()), ensure_ascii=False)
        assert limit >= len(body.encode())
        assert limit >= len(unicodedata.normalize("NFKC", body).encode())


def test_text_that_grows_under_normalization_counts_as_what_it_becomes() -> None:
    model = MODELS[0]
    plain, ligature = bound(model, user("x" * 3000)), bound(model, user("ﷺ" * 1000))  # 3 bytes each, 33 in NFKC
    assert ligature - plain >= 30_000


def test_instructions_count_once_however_many_messages_carry_them() -> None:
    model = MODELS[0]
    long = "i" * 10_000
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("x")], instructions=long) for _ in range(20)]
    assert 10_000 < bound(model, history) < 25_000


def test_an_output_schema_counts() -> None:
    model = MODELS[0]
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "d" * 5000}}}
    params = ModelRequestParameters(
        output_mode="native", allow_text_output=False, output_object=OutputObjectDefinition(json_schema=schema)
    )
    assert bound(model, user("x"), params) - bound(model, user("x")) > 5000


def test_reasoning_that_the_provider_keeps_counts() -> None:
    model = MODELS[1]
    usage = RequestUsage(input_tokens=1, output_tokens=50_000)
    thought = ModelResponse(parts=[ThinkingPart("", id="rs_1"), TextPart("x")], usage=usage)
    assert bound(model, [*user("x"), thought]) > 50_000
    unmeasured = ModelResponse(parts=[ThinkingPart("", id="rs_1"), TextPart("x")])
    assert bound(model, [*user("x"), unmeasured]) > 4096


# --- Media ---


@pytest.mark.parametrize("index", [0, 1, 2, 3])
@pytest.mark.parametrize("image", [ImageUrl("https://example.com/a.png"), BinaryContent(PNG, media_type="image/png")])
def test_an_image_counts_by_the_providers_formula(index: int, image: ImageUrl | BinaryContent) -> None:
    model = MODELS[index]
    extra = bound(model, user("x", image)) - bound(model, user("x", "y"))
    assert 4_700 < extra < 51_000
    large = BinaryContent(bytes(1_000_000), media_type="image/png")
    assert bound(model, user("x", large)) < 60_000  # its bytes don't count: providers scale it down


def test_an_image_that_a_tool_returned_counts() -> None:
    model = MODELS[2]
    returned = ToolReturnPart("t", ["see", BinaryContent(PNG, media_type="image/png")], tool_call_id="c")
    assert bound(model, [*user("x"), ModelRequest(parts=[returned])]) > 6_000


@pytest.mark.parametrize(
    "media",
    [
        AudioUrl("https://example.com/a.mp3"),
        VideoUrl("https://example.com/a.mp4"),
        DocumentUrl("https://example.com/a.pdf"),
        BinaryContent(b"%PDF", media_type="application/pdf"),
        BinaryContent(b"RIFF", media_type="audio/wav"),
    ],
)
def test_media_of_unknown_length_is_refused(media: Any) -> None:
    with pytest.raises(UnboundedRequest, match="nobody can say beforehand how many tokens"):
        bound(MODELS[0], user("x", media))


def test_an_image_for_a_model_without_a_known_formula_is_refused() -> None:
    model = OpenAIChatModel("gpt-6-astra", provider=OpenAIProvider(api_key="k"))
    with pytest.raises(UnboundedRequest, match=r"openai:gpt-6-astra .*image/png"):
        bound(model, user("x", BinaryContent(PNG, media_type="image/png")))


def test_a_text_file_is_text() -> None:
    assert bound(MODELS[0], user("x", BinaryContent(b"a" * 900, media_type="text/plain"))) > 900


# --- What has no bound ---


def refuse(
    model: Model, settings: dict[str, object] | None = None, params: ModelRequestParameters | None = None
) -> None:
    _, prepared = model.prepare_request(cast(ModelSettings, settings or {}), params or ModelRequestParameters())
    refuse_unbounded(model, user("x"), settings or {}, prepared)


def test_an_ordinary_request_is_not_refused() -> None:
    for model in MODELS:
        refuse(model, {"temperature": 0.3, "max_tokens": 5, "thinking": False})
    refuse(MODELS[0], {"extra_headers": {"X-Title": "loop", "User-Agent": "x"}})
    refuse(MODELS[0], {"bedrock_service_tier": {"type": "default"}, "google_cloud_service_tier": "on_demand"})
    refuse(MODELS[0], {"bedrock_performance_configuration": {"latency": "standard"}})
    refuse(MODELS[0], {"extra_body": {"top_k": 3, "chat_template_kwargs": {"enable_thinking": False}}})


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_provider_side_tool_is_refused(index: int) -> None:
    with pytest.raises(UnboundedRequest, match="provider-side tool 'web_search' has a price of its own"):
        refuse(MODELS[index], params=ModelRequestParameters(native_tools=[WebSearchTool()]))


@pytest.mark.parametrize(
    "settings",
    [
        {"openai_previous_response_id": "r1"},
        {"openai_conversation_id": "c1"},
        {"openai_background": True},
        {"openai_reasoning_mode": "pro"},
        {"extra_body": {"n": 5}},
        {"extra_body": {"max_completion_tokens": 10**6}},
        {"extra_body": "n=5"},
        {"xai_previous_response_id": "r1"},
        {"xai_agent_count": 16},
        {"bedrock_inference_profile": "arn:aws:bedrock:x"},
        {"bedrock_service_tier": {"type": "priority"}},
        {"bedrock_performance_configuration": {"latency": "optimized"}},
        {"google_cloud_service_tier": "pt_then_priority"},
        {"google_cloud_service_tier": "priority_only"},
        {"extra_headers": {"anthropic-beta": "fast-mode-2026-02-01"}},
        {"extra_headers": {"X-Title": "loop", "X-Vertex-AI-LLM-Shared-Request-Type": "priority"}},
        {"extra_headers": [("anthropic-beta", "x")]},
    ],
)
def test_a_setting_that_may_cost_anything_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UnboundedRequest, match="its cost has no limit"):
        refuse(MODELS[1], settings)


def test_a_provider_that_ignores_the_limit_or_resends_is_refused() -> None:
    class NoLimit(OpenAIChatModel):
        unsupported_settings = frozenset({"max_tokens"})

    class Resends(OpenAIChatModel):
        unsupported_settings = frozenset({"max_retries"})

    provider = OpenAIProvider(api_key="k")
    with pytest.raises(UnboundedRequest, match="limit the answer"):
        refuse(NoLimit("gpt-4o", provider=provider))
    with pytest.raises(UnboundedRequest, match="sends failed requests again by itself"):
        refuse(Resends("gpt-4o", provider=provider))


# --- Exact counts ---


async def counted(model: Model, messages: list[ModelMessage], params: ModelRequestParameters | None = None):
    params = params or ModelRequestParameters()
    _, prepared = model.prepare_request({}, params)
    return await exact_input(model, messages, {}, params, prepared, output_limit=100)


async def test_the_providers_own_count_is_taken_with_a_margin(provider: Provider) -> None:
    provider.count = 1000
    assert await counted(provider.anthropic(), user("x")) == 1000 + 50 + 16
    assert await counted(ConcurrencyLimitedModel(provider.responses(), 1), user("x")) == 1000 + 20 + 16
    assert provider.counted == 2 and provider.seen == 0


async def test_where_the_count_fails_the_byte_bound_stands(provider: Provider) -> None:
    assert await counted(provider.anthropic(), user("x")) is None
    assert await counted(provider.openai(), user("x")) is None
    dead = provider.anthropic(url="http://127.0.0.1:9")
    assert await counted(dead, user("x")) is None


async def test_what_google_does_not_count_is_added_in_bytes() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"totalTokens": 100})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), timeout=60) as client:
        model = GoogleModel("gemini-2.5-flash", provider=GoogleProvider(api_key="k", http_client=client))
        params = ModelRequestParameters(instruction_parts=[InstructionPart(content="i" * 3000)])
        plain, instructed = await counted(model, user("x")), await counted(model, user("x"), params)
    assert plain is not None and 100 < plain < 200
    assert instructed is not None and instructed > 3100


def _rank_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank file of single bytes and one word, under the name and the hash that are looked for."""
    words = [bytes([b]) for b in range(256)] + [b"he", b"hel", b"hell", b"hello", b" hello"]
    data = b"\n".join(base64.b64encode(word) + b" " + str(rank).encode() for rank, word in enumerate(words))
    address = exact.RANK_FILES["o200k_base"][0]
    (folder / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()).write_bytes(data)
    monkeypatch.setitem(exact.RANK_FILES, "o200k_base", (address, hashlib.sha256(data).hexdigest()))  # pyright: ignore[reportArgumentType]


def _damage(folder: Path) -> None:
    next(iter(folder.iterdir())).write_bytes(b"damaged")


async def test_tiktoken_counts_where_its_rank_file_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiktoken

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    model = OpenAIChatModel("gpt-4o-mini-2024-07-18", provider=OpenAIProvider(api_key="k"))
    assert await counted(model, user("x")) is None  # and no download: the file isn't here
    exact._load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    _rank_file(tmp_path, monkeypatch)
    ranks = {bytes([b]): b for b in range(256)} | {b"he": 256, b"hel": 257, b"hell": 258, b"hello": 259, b" hello": 260}
    fake = tiktoken.Encoding("fake", pat_str=r" ?\w+", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: fake)  # pyright: ignore[reportUnknownLambdaType]
    found = await counted(model, user("hello " * 1000))
    exact._load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert found is not None
    saved = bound(model, user("hello " * 1000)) - found
    assert 4900 < saved < 5100  # 6,000 bytes are some 1,000 tokens
    # An unknown name, another host, a damaged file: the bytes stand.
    unknown = OpenAIChatModel("gpt-4o-mini-foo", provider=OpenAIProvider(api_key="k"))
    assert await counted(unknown, user("x")) is None
    elsewhere = OpenAIProvider(base_url="http://127.0.0.1:9/v1", api_key="k")
    assert await counted(OpenAIChatModel("gpt-4o-mini", provider=elsewhere), user("x")) is None
    _damage(tmp_path)
    assert await counted(model, user("x")) is None
    exact._load.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_innermost_goes_through_all_wrappers() -> None:
    model = MODELS[0]
    assert innermost(ConcurrencyLimitedModel(ConcurrencyLimitedModel(model, 1), 1)) is model
