"""Pages from templates: everything is escaped, a name that isn't there is an error, nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ..core.money import show_usd
from . import text
from .chart import spark

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STATIC = Path(__file__).parent / "static"

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What every page carries: scripts, styles and pictures of our own only, none of them inline."""

NAV = (
    ("/", "Loops", "repeat"),
    ("/runs", "Runs", "play"),
    ("/chat", "Chat", "message-circle"),
    ("/agents", "Agents", "bot"),
    ("/tools", "Tools", "wrench"),
    ("/evaluators", "Evaluators", "gauge"),
    ("/schedules", "Schedules", "list"),
    ("/usage", "Usage", "receipt"),
    ("/activity", "Activity", "history"),
    ("/settings", "Settings", "settings"),
)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Base of all pages' contexts."""

    title: str
    """What the browser's tab says."""
    nav: str = ""
    """Which part of the navigation the page belongs to."""
    note: str = ""
    """What just happened, in a sentence."""


def page(request: Request, template: str, context: Context, status: int = 200) -> HTMLResponse:
    """A page."""
    note = context.note or NOTES.get(request.query_params.get("note", ""), "")
    values = {**flat(context), "note": note, "path": request.url.path}
    html = environment().get_template(template).render(values)
    return HTMLResponse(html, status, headers=dict(HEADERS))


NOTES: Mapping[str, str] = {
    "saved": "Saved.",
    "deleted": "Deleted.",
    "archived": "Put away.",
    "revoked": "Revoked: it opens nothing any more.",
    "stopping": "Stopping: the best so far is kept.",
    "extended": "The run goes on.",
    "paused": "Paused: what is due meanwhile is not made up for.",
    "resumed": "It goes on from its next time.",
    "sent": "It is sent in a moment; reload to see what came of it.",
}
"""What pages can be told to say by their address: known sentences only."""


def flat(context: DataclassInstance) -> dict[str, Any]:
    """A context by its names; what is in it stays as it is."""
    return {each.name: getattr(context, each.name) for each in fields(context)}


@cache
def environment() -> Environment:
    """Where templates come from, and what they can use."""
    made = Environment(
        loader=PackageLoader("loopwright.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., object]] = {
        "usd": show_usd,
        "score": text.score,
        "duration": text.duration,
        "plain": text.plain,
        "line": text.one_line,
        "short": text.shortened,
        "words": text.words,
        "when": when,
    }
    names: dict[str, object] = {"nav_items": NAV, "static": static, "icon": icon, "spark": spark}
    made.filters.update(filters)  # pyright: ignore[reportUnknownMemberType] - untyped in Jinja
    made.globals.update(names)  # pyright: ignore[reportUnknownMemberType]
    return made


def when(moment: datetime | None) -> Markup:
    """A time; the script shows it in the viewer's zone, with the exact time on hover."""
    if moment is None:
        return Markup("–")
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(
        utc.isoformat(timespec="milliseconds"), utc.strftime("%Y-%m-%d %H:%M:%S"), utc.strftime("%d %b %H:%M")
    )


def icon(name: str) -> Markup:
    """A small picture that says nothing to screen readers: words stand beside it."""
    return Markup('<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"/></svg>').format(
        static("icons.svg"), name
    )


@cache
def static(name: str) -> str:
    """The address of a file that may be kept for ever: it changes with the file."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"
