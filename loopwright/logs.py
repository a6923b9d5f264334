"""The log of `serve`, `worker` and `mcp`, on standard error: plain lines, or with LOOPWRIGHT_LOG=json an object a line.

Each line says which run it is about, and which request, wherever it was written. No line holds a secret: what looks
like one is masked, and so is each value that this process knows to be one, in whatever words a library puts it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

Form = Literal["text", "json"]

MASK = "[secret]"

SHORTEST = 8
"""Values shorter than this are not masked wherever they stand: half of the words would be."""

SECRET_NAMES = re.compile(r"(?i)key|token|secret|passw|credential")
"""Names of environment variables whose values are secrets."""

_NAMED = r"[\w-]*(?:api[_-]?key|token|secret|passw(?:or)?d|authorization|signature|cookie|credential)s?"
_IS = r"['\"]?\s*[:=]\s*b?['\"]?|['\"]\s*,\s*b?['\"]"
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Of an address, what stands before the host; and the query, in which people put keys.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@'\"]+@"), rf"\1{MASK}@"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s?'\"]+)\?[^\s'\"]*"), rf"\1?{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+"), rf"\1 {MASK}"),
    (re.compile(r"\bv1a?,[\w+/=-]{8,}"), f"v1,{MASK}"),  # a signature of Standard Webhooks
    # `x-api-key: …`, `password=…`, `{'token': '…'}`, `(b'authorization', b'…')`
    (re.compile(rf"(?i)\b({_NAMED})({_IS})(?!\s|{re.escape(MASK)})[^\s'\",;&}})]+"), rf"\1\2{MASK}"),
    # Tokens and keys by their form: JWTs, our own API keys, those of providers.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), MASK),
    (re.compile(r"\b(?:lw_|sk-|sk_|pk-|AIza|ghp_|whsec_|xox[abp]-)[\w-]{8,}"), MASK),
)

run: ContextVar[str | None] = ContextVar("loopwright_log_run", default=None)
"""The run that is executed here."""

request: ContextVar[str | None] = ContextVar("loopwright_log_request", default=None)
"""The request that is answered here."""

_hidden: set[str] = set()
_hidden_pattern: re.Pattern[str] | None = None
_form: Form | None = None


@contextmanager
def of_run(run_id: str) -> Generator[None]:
    """What is logged inside is about this run, and no more about the request that may have started it."""
    of, asked = run.set(run_id), request.set(None)
    try:
        yield
    finally:
        request.reset(asked)
        run.reset(of)


def hide(values: Iterable[str]) -> None:
    """Never show these values in the log of this process."""
    global _hidden_pattern  # noqa: PLW0603 - a process has one log
    fresh = {value for value in values if len(value) >= SHORTEST} - _hidden
    if fresh:
        _hidden.update(fresh)
        # The longest first: one may be part of another.
        _hidden_pattern = re.compile("|".join(re.escape(value) for value in sorted(_hidden, key=len, reverse=True)))


def masked(text: str) -> str:
    """A text without secrets."""
    if _hidden_pattern is not None:
        text = _hidden_pattern.sub(MASK, text)
    for pattern, instead in PATTERNS:
        text = pattern.sub(instead, text)
    return text


def as_json() -> bool:
    """Whether all that this process says is to be JSON."""
    return _form == "json"


def set_up(form: Form, environ: Mapping[str, str] = os.environ) -> None:
    """Write the log of this process to standard error.

    Args:
        form: of its lines.
        environ: its secrets are never shown.
    """
    global _form  # noqa: PLW0603 - a process has one log
    _form = form
    hide(value for name, value in environ.items() if SECRET_NAMES.search(name))
    hide(password for value in environ.values() if (password := _password_in(value)))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, PlainLines)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    calm = logging.INFO if form == "json" else logging.WARNING
    for name in ("loopwright", "uvicorn"):
        logging.getLogger(name).setLevel(calm)
    # Without a handler of its own DBOS makes one, with lines of another form.
    logging.getLogger("dbos").addHandler(logging.NullHandler())


def _password_in(value: str) -> str | None:
    if "://" not in value or "@" not in value:
        return None
    try:
        return urlsplit(value).password
    except ValueError:
        return None


class PlainLines(logging.Formatter):
    """Lines for people, without secrets."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """A record as it is written."""
        text = masked(super().format(_addressless(record)))
        return f"{text} [{of}]" if (of := run.get() or request.get()) else text


class JsonLines(PlainLines):
    """An object a line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as it is written."""
        record = _addressless(record)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        if of := run.get():
            line["run_id"] = of
        if asked := request.get():
            line["request_id"] = asked
        if record.exc_info:
            line["error"] = masked(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def _addressless(record: logging.LogRecord) -> logging.LogRecord:
    """An access line without what an address asks for: sign-in links and callbacks carry tokens there."""
    if record.name != "uvicorn.access" or not isinstance(record.args, tuple) or len(record.args) != 5:
        return record
    client, method, target, protocol, status = record.args
    bare = str(target).partition("?")[0]
    made = logging.makeLogRecord(record.__dict__)
    made.args = (client, method, bare, protocol, status)
    return made
