"""Errors as RFC 9457 problem details: the one place where an error becomes a status."""

from __future__ import annotations

import http
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from .. import logs
from ..core import errors
from ..core.described import Described
from .numbered import HEADER

_log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class FieldProblem(Described):
    """One thing that is wrong with a request."""

    field: str
    """Dotted path of the field; empty for the request as a whole."""
    message: str
    """What is wrong, and what to do instead."""


class ProblemDetails(Described, BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Unprocessable Entity",
                    "status": 422,
                    "detail": "spec.stop: is missing; add it",
                    "errors": [{"field": "spec.stop", "message": "is missing; add it"}],
                }
            ]
        },
    )
    type: str = "about:blank"
    title: str
    """The status in words."""
    status: int
    detail: str
    """What went wrong here, and the way out."""
    errors: list[FieldProblem] = []
    """The problems one by one, where fields are to blame."""


STATUS: Mapping[type[Exception], int] = {
    errors.NotSignedIn: 401,
    errors.NotAllowed: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.VersionStale: 412,
    errors.TooLarge: 413,
    errors.VersionMissing: 428,
    errors.TooMany: 429,
    errors.InvalidInput: 422,
    errors.UnknownPrice: 422,
    errors.EgressRefused: 422,
    errors.StoreUnavailable: 503,
    errors.NotReady: 503,
    errors.SignInUnavailable: 503,
}
"""The status of each error; of its nearest base class where it has none of its own."""

RETRY_SECONDS = "2"
"""When to try again while the database is away."""

HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": RETRY_SECONDS},
}

AWAY = "the database is away at the moment; nothing was changed, so try again in a few seconds"


class ProblemResponse(JSONResponse):
    """A problem as a response."""

    media_type = MEDIA_TYPE


def problem(
    status: int,
    detail: str,
    found: Sequence[errors.Problem] = (),
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    """A response that says what went wrong."""
    content = ProblemDetails(
        title=http.HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        errors=[FieldProblem(field=each.field, message=each.message) for each in found],
    )
    return ProblemResponse(
        content.model_dump(), status_code=status, headers={**HEADERS.get(status, {}), **(headers or {})}
    )


def install(app: FastAPI) -> None:
    """Make an app answer every error as a problem."""
    app.add_exception_handler(errors.LoopwrightError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


def status_of(error: Exception) -> int:
    """The status of an error; 500 for those that nobody maps."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


async def _ours(request: Request, error: Exception) -> ProblemResponse:
    status = status_of(error)
    if status == 500:
        return await _unforeseen(request, error)
    if isinstance(error, errors.NotReady | errors.SignInUnavailable):
        return problem(status, str(error))
    if status == 503:
        _log.warning("answered 503: %s", error)
        return problem(status, AWAY)
    if isinstance(error, errors.TooMany):
        return problem(status, str(error), headers={"Retry-After": str(math.ceil(error.retry_seconds))})
    return problem(status, str(error), error.problems if isinstance(error, errors.InvalidInput) else ())


async def _invalid(_: Request, error: Exception) -> ProblemResponse:
    details = error.errors() if isinstance(error, RequestValidationError) else ()
    found = [errors.Problem(field=_field(each["loc"]), message=_message(each)) for each in details]
    return problem(422, "; ".join(str(each) for each in found), found)


def _field(place: Sequence[Any]) -> str:
    """A field by its place, without where in the request it stands."""
    steps = place[1:] if place and place[0] in ("body", "query", "path", "header", "cookie") else place
    return ".".join(str(step) for step in steps)


def _message(details: Mapping[str, Any]) -> str:
    message = str(details["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


async def _http(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
    words = {404: "there is nothing at this address", 405: "this address does not take this method"}
    return problem(error.status_code, words.get(error.status_code, str(error.detail)), headers=error.headers)


async def _unforeseen(request: Request, error: Exception) -> ProblemResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    number = {HEADER: asked} if (asked := logs.request.get()) else None  # this answer goes past the middleware
    return problem(500, "something went wrong in the server; its log says what", headers=number)
