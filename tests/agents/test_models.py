"""Models with keys that are stored rather than set in the environment."""

from __future__ import annotations

import pytest

from loopwright.agents.models import build_model
from loopwright.core.errors import InvalidInput
from loopwright.core.spec import ModelChoice
from loopwright.egress import naming


def key_of(name: str, *fallbacks: str, **options: str) -> list[str]:
    model = build_model(ModelChoice(model=name, **options), fallbacks)  # pyright: ignore[reportArgumentType]
    return [each.client.api_key for each in getattr(model, "models", [model])]


def test_a_key_that_is_stored_under_its_usual_name_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY"):
        key_of("openai:gpt-4o-mini")
    with naming({"OPENAI_API_KEY": "sk-stored-1", "ANTHROPIC_API_KEY": "sk-ant-2", "MINE": "sk-mine-3"}):
        assert key_of("openai:gpt-4o-mini") == ["sk-stored-1"]
        assert key_of("openai:gpt-4o-mini", "anthropic:claude-haiku-4-5") == ["sk-stored-1", "sk-ant-2"]
        assert key_of("openai:gpt-4o-mini", api_key_env="MINE") == ["sk-mine-3"]
        # Another server is not shown it.
        assert key_of("openai:gpt-4o-mini", base_url="http://127.0.0.1:1/v1") == ["none"]


def test_what_is_stored_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-server")
    assert key_of("openai:gpt-4o-mini") == ["sk-of-the-server"]
    with naming({"OPENAI_API_KEY": "sk-stored-1"}):
        assert key_of("openai:gpt-4o-mini") == ["sk-stored-1"]
