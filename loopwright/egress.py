"""The one client for every outgoing HTTP call that a user or a model can aim.

It speaks to httpcore and not through `httpx.AsyncClient`: what that adds (cookies kept between unrelated requests,
redirects, proxies and netrc from the environment, unpacking of compressed bodies) is what must not happen here.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from types import TracebackType
from typing import cast

import httpcore
import httpx
import httpx2

from .core.errors import EgressRefused, InvalidInput, LoopwrightError, Problem
from .core.hosts import Address, literal_of, normal_host
from .core.spec import ENV_REFERENCE

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of (host, port), as text; raises `OSError` when there are none."""


CONNECT_SECONDS = 5.0
"""How long one of several addresses of a host may take before the next is tried."""
KEEPALIVE_SECONDS = 60.0
"""How long an idle connection is kept. One that the server closed meanwhile is seen before anything is sent on it."""

_METADATA = frozenset(
    ip_address(text)
    # 168.63.129.16 (Azure) is a public address by its number, so no general rule would catch it.
    for text in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254")
)
_SHARED = ip_network("100.64.0.0/10")
_SPECIAL = (ip_network("192.0.0.0/24"), ip_network("192.88.99.0/24"), ip_network("3fff::/20"))
"""Set apart by IANA though `ipaddress` calls (parts of) them global, depending on the Python version."""
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_EMBEDDED = "IPv4-in-IPv6"
_BY_NAME = frozenset({"loopback", "private", "carrier-grade NAT", _EMBEDDED})
"""What an allowed host *name* may resolve to. Anything worse must be allowed by its address: whoever controls the
name of an allowed public host must not be able to point it at the metadata service."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "accept-encoding", "expect", "upgrade"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


class EgressFailed(LoopwrightError):
    """The request got no usable answer."""

    def __init__(self, message: str | None = None, *, sent: bool = True) -> None:
        self.sent = sent
        """Whether any of the request may have reached the server; `False` only where it surely did not."""
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class EgressPolicy:
    """Where requests may go and how much they may take."""

    allow_hosts: frozenset[str] = frozenset()
    """Hosts that may be reached though they aren't public: `host` (any port) or `host:port`. A name may then resolve
    to a loopback or private address; a link-local or metadata address must itself be listed."""
    timeout_seconds: float = 30.0
    """From the call to the last byte of the answer."""
    max_response_bytes: int = 1_000_000
    """A larger body is a failure; no more than this is read."""
    max_connections: int = 100
    """Most connections at once; further requests wait, within their timeout."""


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer, whatever its status but for redirects."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; the last one where a name is repeated."""
    body: bytes = field(repr=False)


class EgressClient:
    """Sends HTTP requests where the policy lets them go. Keeps connections open; belongs to one event loop."""

    def __init__(self, policy: EgressPolicy | None = None, *, resolve: Resolver | None = None) -> None:
        self.policy = policy or EgressPolicy()
        self._backend = _CheckedBackend(self.policy.allow_hosts, resolve or _system_resolve)
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        timeout_seconds: float | None = None,
        max_response_bytes: int | None = None,
        cut: bool = False,
    ) -> Response:
        """Send one request, once, and read the whole answer.

        `timeout_seconds` and `max_response_bytes` take the place of the policy's. Header values are sent as they
        are: see `resolve_headers` for secrets. With `cut`, for who wants the status, a larger body is no failure: it is
        read no further; nor is a compressed one.

        Raises:
            EgressRefused: the policy does not let the request go there; nothing was sent.
            EgressFailed: no answer in time, a redirect, too large a body, a broken connection or no such host.
            InvalidInput: a header that can't be sent; its value is not shown.
        """
        target = checked_url(url)
        length = len(content) if content or method not in ("GET", "DELETE") else None
        request = httpcore.Request(
            method, _core_url(target), headers=_wire_headers(target, headers or {}, length), content=content
        )
        seconds = self.policy.timeout_seconds if timeout_seconds is None else timeout_seconds
        limit = self.policy.max_response_bytes if max_response_bytes is None else max_response_bytes
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(request, limit, shown_url(url), cut=cut)
        except TimeoutError:
            raise EgressFailed(f"no complete answer from {shown_url(url)} within {seconds:g} s") from None

    async def check(self, url: str) -> None:
        """Say whether the policy lets requests go to a URL, as its host resolves now.

        Raises:
            EgressRefused: it does not.
            EgressFailed: the host can't be found.
        """
        target = checked_url(url)
        await self._backend.checked_addresses(target.host, port_of(target))

    async def _exchange(self, request: httpcore.Request, limit: int, shown: str, *, cut: bool) -> Response:
        pool = self.pool(request.url.scheme.decode())
        try:
            answer = await pool.handle_async_request(request)
            try:
                return await _read(answer, limit, shown, cut=cut)
            finally:
                await answer.aclose()
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise EgressFailed(f"can't connect to {shown}: {_reason(error)}", sent=False) from None
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise EgressFailed(f"the connection to {shown} broke: {_reason(error)}") from None

    def pool(self, scheme: str) -> httpcore.AsyncConnectionPool:
        """The connections of a scheme, each to a checked address: for who reads answers as they come."""
        # One pool for each scheme, since plain HTTP needs no certificates.
        if scheme not in self._pools:
            self._pools[scheme] = httpcore.AsyncConnectionPool(
                ssl_context=ssl_context() if scheme == "https" else None,
                max_connections=self.policy.max_connections,
                keepalive_expiry=KEEPALIVE_SECONDS,
                network_backend=self._backend,
            )
        return self._pools[scheme]

    async def aclose(self) -> None:
        """Close all connections. The client can be used again afterwards, in another event loop too."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    async def __aenter__(self) -> EgressClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@cache
def ssl_context() -> ssl.SSLContext:
    """What all connections of this process are checked against: the system's certificates, those that SSL_CERT_FILE or
    SSL_CERT_DIR name, or Mozilla's where the system has none. Loading them takes longer than many a whole run, so it is
    done once."""
    context = httpx2.create_ssl_context()
    has_none = platform.system() not in ("Windows", "Darwin") and not context.get_ca_certs()
    return httpx.create_ssl_context() if has_none else context


async def _read(answer: httpcore.Response, limit: int, shown: str, *, cut: bool) -> Response:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    if answer.status in _REDIRECTS:
        # Not shortened to a few words, as it may end in a secret: half of one would not be found by `without_secrets`.
        where = _printable(headers.get("location", "nowhere").partition("?")[0], 4000)
        raise EgressFailed(f"{shown} redirects to {where} (HTTP {answer.status}); redirects aren't followed")
    if not cut and headers.get("content-encoding", "identity").lower() != "identity":
        raise EgressFailed(f"{shown} sent a compressed body though none was asked for")
    too_large = EgressFailed(f"the answer from {shown} is larger than {limit:,} bytes")
    declared = headers.get("content-length", "")
    if not cut and declared.isdecimal() and int(declared) > limit:
        raise too_large
    body = bytearray()
    async for chunk in answer.aiter_stream():
        body += chunk
        if len(body) > limit:
            if cut:
                break
            raise too_large
    return Response(status=answer.status, headers=headers, body=bytes(body[:limit]))


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves a host, checks every address and connects to a checked one, so that no second look-up can differ."""

    def __init__(self, allow_hosts: Iterable[str], resolve: Resolver) -> None:
        self._allowed = frozenset(_split_host(entry) for entry in allow_hosts)
        self._resolve = resolve
        # The cast is for pyright, which also sees httpcore's stand-in for a missing anyio.
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self.checked_addresses(host, port)
        for address in addresses[:-1]:
            try:
                return await self._network.connect_tcp(str(address), port, timeout=CONNECT_SECONDS)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue  # e.g. a host with an IPv6 address on a network without IPv6
        return await self._network.connect_tcp(str(addresses[-1]), port, timeout=timeout)

    async def checked_addresses(self, host: str, port: int) -> Sequence[Address]:
        """The addresses of a host, each of which the policy allows."""
        addresses = await self._addresses(host, port)
        for address in addresses:
            self._check(host, port, address)
        return addresses

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        literal = literal_of(host)
        if literal is not None:
            return [literal]
        try:
            found = [ip_address(text) for text in await self._resolve(host, port)]
        except (OSError, UnicodeError) as error:
            raise EgressFailed(f"can't find the host {host!r}: {_reason(error)}", sent=False) from None
        if not found:
            raise EgressFailed(f"the host {host!r} has no address", sent=False)
        return list(dict.fromkeys(found))

    def _check(self, host: str, port: int, address: Address) -> None:
        kind = _kind(address)
        if kind is None or (kind in _BY_NAME and self._lists(host, port)) or self._lists(str(address), port):
            return
        what = f"{host} is" if literal_of(host) else f"{host} resolves to {address},"
        way_out = host if kind in _BY_NAME else str(address)
        raise EgressRefused(
            f"{what} a {kind} address and not a public one, so nothing was sent; "
            f"if it is meant, add {way_out!r} to `allow_hosts`"
        )

    def _lists(self, host: str, port: int) -> bool:
        name = normal_host(host)
        return (name, None) in self._allowed or (name, port) in self._allowed


async def _system_resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _kind(address: Address) -> str | None:
    """What sort of non-public address this is; `None` for a public one."""
    inner = _embedded_v4(address) if isinstance(address, IPv6Address) else None
    if inner is not None:
        kind = _kind(inner)
        return _EMBEDDED if kind is None or kind in _BY_NAME else kind
    found = (
        ("metadata", address in _METADATA),
        ("unspecified", address.is_unspecified),
        ("loopback", address.is_loopback),
        ("link-local", address.is_link_local),
        ("multicast", address.is_multicast),
        ("carrier-grade NAT", address in _SHARED),
        ("reserved", address.is_reserved or any(address in network for network in _SPECIAL)),
        ("private", not address.is_global),
        ("reserved", isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST),
    )
    return next((kind for kind, holds in found if holds), None)


def _embedded_v4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a translator or tunnel would really send to."""
    if any(address in network for network in _NAT64) or (0x1_0000 <= int(address) < 1 << 32):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])


def _split_host(entry: str) -> tuple[str, int | None]:
    """Split an entry of `allow_hosts` into host and port.

    Raises:
        InvalidInput: it is neither `host` nor `host:port`.
    """
    host, colon, port = entry.strip().rpartition(":")
    if not colon or literal_of(entry.strip()) or entry.strip().endswith("]"):
        host, port = entry.strip(), ""
    if not host or re.search(r"[/@\s]", host) or (colon and port and not port.isdecimal()):
        raise InvalidInput(Problem(field="allow_hosts", message=f"{entry!r} is not a host or host:port"))
    return normal_host(host), int(port) if port else None


def checked_url(url: str) -> httpx.URL:
    """Parse a URL that may be sent to: http or https, with a host and no user name or password.

    Raises:
        EgressRefused: it is something else. A password in it is not shown.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise EgressRefused(f"{shown_url(url)} is not a URL: {_printable(str(error))}") from None
    if parsed.scheme not in _PORTS:
        raise EgressRefused(f"{shown_url(url)} is not reached: only http and https URLs are")
    if parsed.userinfo:
        raise EgressRefused(
            f"{shown_url(url)} holds a user name or password; "
            "send it as the header `Authorization: ${NAME}` with the value in the environment instead"
        )
    if not parsed.host or not 0 < port_of(parsed) <= 65535:
        raise EgressRefused(f"{shown_url(url)} names no host and port that can be reached")
    return parsed


def port_of(url: httpx.URL) -> int:
    """The port of an http or https URL, its scheme's own where it names none."""
    return _PORTS[url.scheme] if url.port is None else url.port


def host_and_port(url: str) -> str:
    """`host:port` of a URL, as `allow_hosts` takes it.

    Raises:
        EgressRefused: not a URL that may be sent to.
    """
    parsed = checked_url(url)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.raw_host.decode("ascii")
    return f"{host}:{port_of(parsed)}"


def shown_url(url: str) -> str:
    """A URL for people and logs: without user name, password, query and fragment, where secrets may stand."""
    bare = re.split(r"[?#]", url, maxsplit=1)[0]
    return _printable(re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*:)?//[^/]*@", r"\1//", bare))


_named: ContextVar[Mapping[str, str]] = ContextVar("_named")


def named_values() -> Mapping[str, str]:
    """What `${NAME}` stands for here: environment variables, or in the service the secrets of a run's owner."""
    return _named.get(os.environ)


@contextmanager
def naming(values: Mapping[str, str]) -> Generator[None]:
    """Inside, in this task and those that it starts, `${NAME}` stands for these values."""
    token = _named.set(values)
    try:
        yield
    finally:
        _named.reset(token)


def resolve_headers(
    headers: Mapping[str, str], environ: Mapping[str, str] | None = None, *, where: str = "headers"
) -> dict[str, str]:
    """Replace each `${NAME}` in header values by the environment variable NAME, at the time of sending.

    Line breaks around a variable's value are dropped: files that secrets are read from tend to end in one.

    Raises:
        InvalidInput: variables that aren't set, all at once, each with the header (`where` before it) that names it.
    """
    environ = named_values() if environ is None else environ
    problems = tuple(
        Problem(
            field=f"{where}.{name}", message=f"the environment variable {variable} is not set; set it and try again"
        )
        for name, value in headers.items()
        for variable in ENV_REFERENCE.findall(value)
        if variable not in environ
    )
    if problems:
        raise InvalidInput(*problems)

    def value_of(reference: re.Match[str]) -> str:
        return environ[reference[1]].strip()

    return {name: ENV_REFERENCE.sub(value_of, value) for name, value in headers.items()}


SHORTEST_SECRET = 8
"""A shorter value is not looked for in what comes back: `1` stands in most answers, and rightly."""


def without_secrets(text: str, names: Iterable[str]) -> str:
    """The text with `${NAME}` in place of the values that these names stand for.

    Whoever echoes a request must not carry a secret into a message, a prompt or the journal. A value is found in the
    usual spellings too: escaped as in JSON, in Python and in URLs.
    """
    values = named_values()
    known = {secret: name for name in names if len(secret := values.get(name, "").strip()) >= SHORTEST_SECRET}
    for secret in sorted(known, key=len, reverse=True):  # one may be a part of another
        text = _spellings(secret).sub(lambda _, name=known[secret]: f"${{{name}}}", text)
    return text


def data_without_secrets(value: object, names: Collection[str]) -> object:
    """`without_secrets` for every text in plain data; what is no plain data stays as it is."""
    match value:
        case str():
            return without_secrets(value, names)
        case list():
            return [data_without_secrets(item, names) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[object, object]", value).items()
            return {data_without_secrets(key, names): data_without_secrets(item, names) for key, item in items}
        case _:
            return value


def referred_to(headers: Mapping[str, str]) -> frozenset[str]:
    """The names that stand as `${NAME}` in header values."""
    return frozenset(name for value in headers.values() for name in ENV_REFERENCE.findall(value))


@lru_cache(maxsize=256)
def _spellings(secret: str) -> re.Pattern[str]:
    return re.compile("".join(map(_spellings_of_one, secret)))


def _spellings_of_one(character: str) -> str:
    encoded = character.encode("utf-8", "surrogatepass")
    units = character.encode("utf-16-be", "surrogatepass")
    json_escape = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
    percent = "".join(f"%{byte:02x}" for byte in encoded)
    escaped = "|".join(f"(?i:{re.escape(text)})" for text in (json_escape, percent))
    python = {repr(character)[1:-1], repr(encoded)[2:-1]} - {character}
    others = "".join(f"|{re.escape(text)}" for text in sorted(python))
    slash = f"|{re.escape(chr(92) + character)}" if character in '\\"/' else ""
    return f"(?:{escaped}{slash}{others}|{re.escape(character)})"


def check_headers(headers: Mapping[str, str], *, where: str = "headers") -> None:
    """Refuse headers that can't be sent. Others' own errors quote the value, which may be a secret.

    Raises:
        InvalidInput: says which header (`where` before it), and never its value.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING:
            raise InvalidInput(Problem(field=f"{where}.{_printable(name)}", message="this header can't be set"))
        if not _HEADER_VALUE.fullmatch(value):
            message = "its value holds control characters and can't be sent"
            raise InvalidInput(Problem(field=f"{where}.{name}", message=message))


def _wire_headers(target: httpx.URL, headers: Mapping[str, str], length: int | None) -> list[tuple[bytes, bytes]]:
    check_headers(headers)
    given = {name.lower() for name in headers}
    default_port = target.port is None or target.port == _PORTS[target.scheme]
    host = target.netloc if not default_port else target.netloc.removesuffix(f":{target.port}".encode())
    own = {
        "Host": host,
        "User-Agent": _user_agent(),
        "Accept": b"*/*",
        "Accept-Encoding": b"identity",  # a small compressed body can unpack to gigabytes
    }
    if length is not None:
        own["Content-Length"] = str(length).encode()
    lines = [(name.encode("ascii"), value) for name, value in own.items() if name.lower() not in given]
    return lines + [(name.encode("ascii"), value.strip().encode()) for name, value in headers.items()]


def _core_url(target: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=target.raw_scheme, host=target.raw_host, port=port_of(target), target=target.raw_path)


@cache
def _user_agent() -> bytes:
    try:
        return f"loopwright/{metadata.version('loopwright')}".encode()
    except metadata.PackageNotFoundError:
        return b"loopwright"


def _reason(error: BaseException) -> str:
    return _printable(str(error)) or type(error).__name__


def _printable(text: str, limit: int = 200) -> str:
    shortened = text if len(text) <= limit else text[:limit] + "…"
    if shortened.isprintable():
        return shortened
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shortened)
