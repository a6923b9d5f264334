"""What routes ask for: the runtime, the caller, and the headers that make requests safe to repeat."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from fastapi import Depends, Header, Query, Request, Response

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem, VersionMissing
from ..core.records import Editable, Guardrail, WorkspaceSettings
from ..service.changes import ANY_VERSION
from ..service.once import Once
from ..service.runtime import Runtime
from .auth import Gate

_ETAG = re.compile(r'"([1-9][0-9]{0,8})"')


def _runtime(request: Request) -> Runtime:
    return request.app.state.runtime


def _gate(request: Request) -> Gate:
    return request.app.state.gate


async def _caller(request: Request, gate: Annotated[Gate, Depends(_gate)]) -> Caller:
    return await gate.caller(request)


async def _once(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            pattern=r"^[!-~]{1,200}$",
            description="A text of your own for this request. Sent again with it within a week, the request does "
            "nothing and gets the same answer.",
            examples=["7f8a2c1e-start"],
        ),
    ] = None,
) -> Once | None:
    if idempotency_key is None:
        return None
    asked = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return Once(key=idempotency_key, sha256=hashlib.sha256(asked).digest())


def _version(
    if_match: Annotated[
        str | None, Header(description="The `ETag` of the version that you have read.", examples=['"1"'])
    ] = None,
) -> int:
    if if_match is None:
        raise VersionMissing
    return _read_version(if_match)


def _version_or_any(
    if_match: Annotated[
        str | None, Header(description="Delete only this version, given by its `ETag`.", examples=['"1"'])
    ] = None,
) -> int:
    return ANY_VERSION if if_match is None else _read_version(if_match)


def _read_version(if_match: str) -> int:
    if if_match.strip() == "*":
        return ANY_VERSION
    if match := _ETAG.fullmatch(if_match.strip()):
        return int(match[1])
    raise InvalidInput(Problem(field="If-Match", message='must be an ETag as it was given, such as "3", or *'))


def tagged(response: Response, record: Editable | Guardrail | WorkspaceSettings) -> None:
    """Say which version is answered."""
    response.headers["ETag"] = f'"{record.version}"'


Rt = Annotated[Runtime, Depends(_runtime)]
TheGate = Annotated[Gate, Depends(_gate)]
Me = Annotated[Caller, Depends(_caller)]
OnceKey = Annotated[Once | None, Depends(_once)]
Version = Annotated[int, Depends(_version)]
VersionOrAny = Annotated[int, Depends(_version_or_any)]
Cursor = Annotated[
    str | None, Query(max_length=160, description="`next_cursor` of the page before; leave it out for the first page.")
]
Limit = Annotated[int, Query(ge=1, le=200, description="The most items of a page.")]
