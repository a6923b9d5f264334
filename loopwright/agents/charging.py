"""What a request is charged, whatever came of it: a response, a stream, a failure. Nothing here raises."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import httpx
import httpx2
from pydantic import JsonValue
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, ModelQuotaExceededError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from ..core.errors import EgressRefused
from ..core.wallet import Charge, Reservation, Tokens
from .failures import without_keys
from .journal import response_json
from .prices import MOST_TOKENS, ModelRate

NOT_PROCESSED: Final = frozenset(range(400, 500)) - {408, 409, 424, 499} | {503, 529}
"""HTTP statuses of requests that the provider did not process, and so does not bill: refused ones, and those for
which it was too busy. A 408, 409, 424 or 499 may come after work was done, like a 500, 502 or 504."""
BUSY: Final = frozenset({429, 503, 529})
"""Statuses after which asking again helps."""
BILLED_400: Final = frozenset({"azure", "azure-responses"})
"""Providers that bill requests which they answer with a 400: Azure does where a filter or the input limit refused."""
LONGEST_WHY: Final = 500


def response_charge(
    rate: ModelRate, reservation: Reservation, response: ModelResponse, asked: Mapping[str, str]
) -> tuple[Charge, JsonValue]:
    """The charge for a response, and the response as the journal keeps it.

    What can't be priced or kept costs its whole reservation and isn't kept.
    """
    try:
        charge = _priced(rate, reservation, response, asked)
        return charge, response_json(response)
    except Exception as error:  # noqa: BLE001 - a provider may send anything, and nothing may be left unsettled
        return whole(reservation, f"the response can't be priced: {told(error)}"), None


def stream_charge(
    rate: ModelRate, reservation: Reservation, stream: StreamedResponse, asked: Mapping[str, str]
) -> tuple[Charge, JsonValue]:
    """The charge for a stream that was left, and its response as the journal keeps it, if it had come to its end."""
    try:
        response = stream.get()
        state = response.state
    except Exception as error:  # noqa: BLE001 - as above
        return whole(reservation, f"the stream can't be read: {told(error)}"), None
    if state == "complete":
        return response_charge(rate, reservation, response, asked)
    return whole(reservation, f"the stream was left before its end ({state})"), None


def failure_charge(reservation: Reservation, error: BaseException, system: str) -> Charge:
    """The charge for a request to `system` that raised `error`."""
    if surely_unbilled(error, system):
        return Charge(reservation=reservation, amount=Decimal(0), basis="released", why=told(error))
    return whole(reservation, told(error))


def whole(reservation: Reservation, why: str) -> Charge:
    """The charge for a request of which nobody can say what it cost."""
    return Charge(reservation=reservation, amount=reservation.amount, basis="reserved", why=why[:LONGEST_WHY])


def told(error: BaseException) -> str:
    """An error in words without API keys, also one that can't be put into words itself."""
    if isinstance(error, asyncio.CancelledError):
        return "it was cut off while it was under way"
    try:
        return without_keys(f"{type(error).__name__}: {error}")[:LONGEST_WHY]
    except Exception:  # noqa: BLE001 - somebody else's `__str__`
        return type(error).__name__


def _priced(rate: ModelRate, reservation: Reservation, response: ModelResponse, asked: Mapping[str, str]) -> Charge:
    if response.state == "suspended":
        return whole(reservation, "the answer was put off")
    usage, tokens = response.usage, _tokens(response.usage)
    if (cost := rate.cost(usage, response, asked=asked)) is None:
        return whole(reservation, "the response does not say how many tokens it used")
    charge = Charge(reservation=reservation, amount=cost, basis="usage", tokens=tokens)
    usage.cost = cost  # the agent's own figures say the same, and pydantic-ai needn't work it out again
    return charge


def _tokens(usage: RequestUsage) -> Tokens:
    tokens = Tokens(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cached=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
    )
    if any(abs(count) > MOST_TOKENS for count in (tokens.input, tokens.output, tokens.cached, tokens.cache_write)):
        raise ValueError("no request has that many tokens")
    return tokens


# --- Failures ---


def surely_unbilled(error: BaseException, system: str) -> bool:
    """Whether the request behind an error was surely not processed, and so not billed."""
    if not isinstance(error, ModelHTTPError):
        return _never_sent(error)
    if error.status_code == 400 and system in BILLED_400:
        return False
    if system == "openrouter" and error.__cause__ is None:
        return False  # an error object in a response with HTTP status 200, after the model may have worked
    # An error in a stream comes after the provider began to work.
    return error.status_code in NOT_PROCESSED and not error.in_stream


def _never_sent(error: BaseException) -> bool:
    """Whether there was no connection over which the request could have gone."""
    if _came_from(error, EgressRefused):
        return True
    if isinstance(error, ModelConnectionError) and error.phase is not None:
        return error.phase in ("pool", "connect") and not error.in_stream
    return _came_from(error, *_CONNECTING)


def _came_from(error: BaseException, *kinds: type[Exception]) -> bool:
    seen: BaseException | None = error if isinstance(error, Exception) else None
    while seen is not None:
        if isinstance(seen, kinds):
            return True
        seen = seen.__cause__
    return False


_CONNECTING = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
)


def worth_retrying(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(error, ModelQuotaExceededError):  # a 429 too, but waiting won't help
        return False
    if isinstance(error, ModelHTTPError):
        return error.status_code in BUSY and not error.in_stream
    return _never_sent(error) and not _came_from(error, EgressRefused)
