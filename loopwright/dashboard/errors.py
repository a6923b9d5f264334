"""Errors as pages. Whoever isn't signed in is sent to sign in, and comes back to the same page.

What was typed into a form is never lost with it: the page that says what went wrong shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse

from ..core.errors import LoopwrightError, NotSignedIn, SignInUnavailable
from .deps import wiring
from .forms import Fields
from .render import Context, page

_log = logging.getLogger(__name__)

HEADINGS = {
    403: "Not yours to do",
    404: "Nothing here",
    405: "Not this way",
    409: "That doesn't fit",
    412: "Changed meanwhile",
    422: "Something is wrong with that",
    503: "The database is away",
}

NOTHING = "There is nothing at this address that you may see. It may have been deleted, or be somebody else's."


Sent = Sequence[tuple[str, str]]
"""The fields of a form by their names, a name for each of its values."""

UNTYPED = frozenset({"once", "version", "iteration", "loop_id"})
"""Fields that forms fill in by themselves."""

UNSEEN = frozenset({"value", "password", "token", "code"})
"""Fields that no page shows again: they are typed again."""


@dataclass(frozen=True, kw_only=True)
class ErrorContext(Context):
    """A page that says what went wrong."""

    status: int
    heading: str
    detail: str
    sent: Sent
    """What the form held; empty where nothing was typed into it."""
    again: bool
    """Whether the same form can be sent again."""
    sign_in: str
    """Where to sign in before that; empty where that isn't what is missing."""
    untyped: frozenset[str] = UNTYPED
    unseen: frozenset[str] = UNSEEN


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, with errors made pages."""
        handle = super().get_route_handler()

        async def handle_or_explain(request: Request) -> Response:
            try:
                return await handle(request)
            except NotSignedIn:
                return _sign_in(request, await _sent(request))
            except LoopwrightError as error:
                heading = "Signing in does not work" if isinstance(error, SignInUnavailable) else None
                status = wiring(request).status_of(error)
                return explain(request, status, str(error), heading, sent=await _sent(request))
            except RequestValidationError:
                return explain(request, 404, NOTHING)
            except HTTPException as error:
                return explain(request, error.status_code, str(error.detail))
            except Exception:  # noqa: BLE001 - a page says so, and the log says what
                _log.exception("%s %s failed", request.method, request.url.path)
                detail = "Something went wrong in the server; its log says what."
                return explain(request, 500, detail, sent=await _sent(request))

        return handle_or_explain


async def _sent(request: Request) -> Sent:
    """What a form held that came with a request, if anything was typed into it."""
    if request.method != "POST" or request.url.path.startswith(("/sign-in", "/auth", "/logout")):
        return ()
    form = await Fields.of(request)
    sent = [(name, value) for name, values in form.values.items() for value in values]
    return sent if any(value.strip() for name, value in sent if name not in UNTYPED) else ()


def explain(
    request: Request, status: int, detail: str, heading: str | None = None, *, sent: Sent = (), sign_in: str = ""
) -> Response:
    """A page that says what went wrong."""
    if status == 404:
        detail = NOTHING
    if status == 503 and heading is None:
        detail = "Nothing was changed. It is tried again every few seconds; reload this page then."
    heading = heading or HEADINGS.get(status, "Something went wrong")
    context = ErrorContext(
        title=heading, status=status, heading=heading, detail=detail, sent=sent, again=status in (401, 503),
        sign_in=sign_in,
    )  # fmt: skip
    return page(request, "error.html", context, status)


SIGNED_OUT = "Nothing was saved, and nothing is lost: sign in in another tab, come back to this one and send it again."


def _sign_in(request: Request, sent: Sent) -> Response:
    if request.headers.get("sec-fetch-dest") == "empty":  # the page's own script: it goes to sign in itself
        return PlainTextResponse("sign in", 401)
    back = _with_query(request.url.path, request.url.query) if request.method == "GET" else _form_page(request)
    address = f"/sign-in?next={quote(back, safe='')}"
    if sent:
        return explain(request, 401, SIGNED_OUT, "You were signed out", sent=sent, sign_in=address)
    return RedirectResponse(address, 303, headers={"Cache-Control": "no-store"})


def _form_page(request: Request) -> str:
    """The page on which a form stands that was sent."""
    try:
        came = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return "/"
    return _with_query(came.path or "/", came.query) if came.netloc == request.url.netloc else "/"


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


Handler = Callable[[Request, Exception], Awaitable[Response] | Response]


def for_browsers(otherwise: Handler) -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler that answers browsers with a page, and everybody else as before."""

    async def handle(request: Request, error: Exception) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        if isinstance(error, HTTPException) and wants_page and not request.url.path.startswith("/api"):
            return explain(request, error.status_code, "This address does not take that.")
        answer = otherwise(request, error)
        return answer if isinstance(answer, Response) else await answer

    return handle
