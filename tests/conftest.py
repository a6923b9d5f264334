"""What all tests share: recorded answers of a real model, and a network that ends at this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test fails because the machine is busy.
settings.register_profile("loopwright", deadline=None)
settings.load_profile("loopwright")

CASSETTES = Path(__file__).parent.parent / "cassettes"

KEPT_HEADERS = {"content-type"}
"""All other headers are noise in a recording, or secrets."""


@pytest.fixture(scope="module")
def vcr_cassette_dir(request: pytest.FixtureRequest) -> str:
    """`cassettes/<module>/<test>.yaml`."""
    return str(CASSETTES / request.path.stem)


@pytest.fixture
def vcr_config() -> dict[str, Any]:
    """A request is matched by its body, too: a changed prompt can't be answered by an old recording."""
    return {
        "match_on": ["method", "path", "body"],
        "filter_headers": ["authorization", "x-api-key", "cookie", "user-agent"],
        "before_record_request": _without_noise,
        "before_record_response": _answer_without_noise,
        "decode_compressed_response": True,
        "allowed_hosts": [r"127\.0\.0\.1", "::1", "localhost"],  # servers of the tests' own
    }


def _without_noise(request: Any) -> Any:
    request.headers = {name: value for name, value in request.headers.items() if name.lower() in KEPT_HEADERS}
    return request


def _answer_without_noise(response: dict[str, Any]) -> dict[str, Any]:
    response["headers"] = {name: value for name, value in response["headers"].items() if name.lower() in KEPT_HEADERS}
    return {**response, "body": {**response["body"], "string": _without_timings(response["body"]["string"])}}


def _without_timings(body: bytes | str) -> bytes | str:
    """An answer without what differs each time it is recorded though nothing else does."""
    try:
        answer = json.loads(body)
    except ValueError:
        return body
    kept = {name: value for name, value in answer.items() if name not in ("timings", "system_fingerprint")}
    return json.dumps(kept | ({"created": 1, "id": "x"} if "created" in kept else {}), ensure_ascii=False).encode()
