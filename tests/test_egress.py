from __future__ import annotations

import asyncio
import json
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpcore
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from loopwright.core.errors import EgressRefused, InvalidInput
from loopwright.egress import (
    EgressClient,
    EgressFailed,
    EgressPolicy,
    checked_url,
    data_without_secrets,
    host_and_port,
    naming,
    resolve_headers,
    shown_url,
    ssl_context,
    without_secrets,
)
from tests.feedback.endpoint import (
    Endpoint,
    disconnect,
    drip,
    fifty_megabytes,
    hang,
    reply,
    running_endpoint,
    then_close,
)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with running_endpoint() as running:
        yield running


@pytest.fixture
async def client(endpoint: Endpoint) -> AsyncIterator[EgressClient]:
    async with client_allowing(endpoint.host) as client:
        yield client


def client_allowing(*hosts: str, **policy: float) -> EgressClient:
    return EgressClient(EgressPolicy(allow_hosts=frozenset(hosts), **policy))  # pyright: ignore[reportArgumentType]


class Network(httpcore.AsyncNetworkBackend):
    """Notes where a connection would go, and makes none."""

    def __init__(self) -> None:
        self.connected: list[str] = []

    async def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        self.connected.append(host)
        raise httpcore.ConnectError("no network in tests")


class Names:
    """A resolver that gives one answer after the other; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def unplugged(names: Names, *allow: str) -> tuple[EgressClient, Network]:
    client = EgressClient(EgressPolicy(allow_hosts=frozenset(allow)), resolve=names)
    network = Network()
    client._backend._network = network  # pyright: ignore[reportPrivateUsage]
    return client, network


# Where requests may go


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.9.10",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "0.0.0.0",
        "0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.1.1",
        "169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "100.64.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.2.3",
        "240.0.0.1",
        "255.255.255.255",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:93.184.216.34]",
        "[::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2002:5db8:d822::]",
        "[2001:0:5db8:d822::1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b::5db8:d822]",
        "[64:ff9b:1::a00:1]",
        "[fd00::1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[2001:db8::1]",
        "[3fff::1]",
        "[3fff:fff:ffff::1]",
        "[4000::1]",
    ],
)
async def test_only_public_addresses_are_reached(host: str):
    async with EgressClient() as client:
        with pytest.raises(EgressRefused, match=r"not a public one.*nothing was sent.*`allow_hosts`"):
            await client.request("GET", f"http://{host}/")


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "3ffe::1"])
async def test_public_addresses_are_reached(address: str):
    client, network = unplugged(Names([address]))
    with pytest.raises(EgressFailed, match="can't connect") as failed:
        await client.request("GET", "http://score.example/")
    assert network.connected == [address]
    assert not failed.value.sent


async def test_the_checked_address_is_the_one_that_is_connected_to():
    names = Names(["93.184.216.34"], ["127.0.0.1"])
    client, network = unplugged(names)
    with pytest.raises(EgressFailed):
        await client.request("GET", "http://rebind.example/")
    assert (network.connected, names.asked) == (["93.184.216.34"], ["rebind.example"])
    with pytest.raises(EgressRefused, match=r"rebind\.example resolves to 127\.0\.0\.1, a loopback address"):
        await client.request("GET", "http://rebind.example/")
    assert network.connected == ["93.184.216.34"]


async def test_one_private_address_among_public_ones_refuses_them_all():
    client, network = unplugged(Names(["93.184.216.34", "10.0.0.1"]))
    with pytest.raises(EgressRefused, match=r"10\.0\.0\.1, a private address"):
        await client.request("GET", "http://mixed.example/")
    assert network.connected == []


async def test_the_next_address_is_tried_when_one_does_not_answer():
    client, network = unplugged(Names(["2606:4700::1111", "93.184.216.34"]))
    with pytest.raises(EgressFailed):
        await client.request("GET", "http://both.example/")
    assert network.connected == ["2606:4700::1111", "93.184.216.34"]


@pytest.mark.parametrize("entry", ["score.local", "SCORE.local.", "score.local:80"])
async def test_an_allowed_name_may_lead_to_a_private_address(entry: str):
    client, network = unplugged(Names(["10.0.0.1"]), entry)
    with pytest.raises(EgressFailed):
        await client.request("GET", "http://score.local/")
    assert network.connected == ["10.0.0.1"]


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0"])
async def test_an_allowed_name_does_not_lead_to_a_metadata_or_link_local_address(address: str):
    client, network = unplugged(Names([address]), "score.example")
    with pytest.raises(EgressRefused):
        await client.request("GET", "http://score.example/")
    assert network.connected == []


async def test_allowing_an_address_allows_the_names_that_lead_there():
    client, network = unplugged(Names(["169.254.169.254"]), "169.254.169.254")
    with pytest.raises(EgressFailed):
        await client.request("GET", "http://score.example/")
    assert network.connected == ["169.254.169.254"]


async def test_an_allowed_port_is_no_other_port(endpoint: Endpoint):
    async with client_allowing("127.0.0.1:1") as client:
        with pytest.raises(EgressRefused, match=r"add '127\.0\.0\.1' to `allow_hosts`"):
            await client.request("GET", endpoint.url)
    assert endpoint.connections == 0


async def test_another_spelling_of_an_allowed_host_is_not_allowed_by_it(endpoint: Endpoint):
    async with client_allowing("localhost") as client:
        with pytest.raises(EgressRefused):
            await client.request("GET", endpoint.url)


async def test_ipv6_hosts_can_be_allowed_in_any_spelling():
    for entry in ("[::1]:80", "::1", "0:0:0:0:0:0:0:1", "[::1]"):
        client, network = unplugged(Names([]), entry)
        with pytest.raises(EgressFailed):
            await client.request("GET", "http://[::1]/")
        assert network.connected == ["::1"]


@pytest.mark.parametrize("entry", ["http://a.example", "a.example/x", "", "a.example:web", "u@a.example"])
def test_an_entry_of_allow_hosts_that_means_nothing_is_refused(entry: str):
    with pytest.raises(InvalidInput, match="allow_hosts"):
        client_allowing(entry)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://a.example/",
        "gopher://a.example/",
        "//a.example/",
        "a.example",
        "http:///x",
        "http://a.example:0/",
        "http://a.example:99999/",
        "http://user:hunter2@a.example/",
        "http://a.example\\@127.0.0.1/",
        "http://a\n.example/",
        "http://①②⑦.⓪.⓪.①/",
        "http://0177.0.0.1/",
        "",
    ],
)
async def test_urls_that_can_not_be_sent_to(url: str):
    async with EgressClient() as client:
        with pytest.raises(EgressRefused) as refused:
            await client.request("GET", url)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_host_without_an_address():
    async def nobody(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    async with EgressClient(resolve=nobody) as client:
        with pytest.raises(EgressFailed, match=r"can't find the host 'nowhere\.example': Name or service") as failed:
            await client.request("GET", "http://nowhere.example/")
    assert not failed.value.sent


async def test_proxies_of_the_environment_are_not_used(
    endpoint: Endpoint, client: EgressClient, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await client.request("GET", endpoint.url)).status == 200


# What comes back


async def test_a_request_and_its_answer(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(reply("gute Güte", 404, X_Note="yes"))
    answer = await client.request("POST", endpoint.url + "?q=1#f", headers={"X-Me": "ü"}, content=b"body")
    assert (answer.status, answer.headers["x-note"], answer.body.decode()) == (404, "yes", "gute Güte")
    (received,) = endpoint.received
    assert (received.method, received.target, received.body) == ("POST", "/score?q=1", b"body")
    assert received.headers["host"] == endpoint.host
    assert received.headers["user-agent"].startswith("loopwright/")
    assert received.headers["accept-encoding"] == "identity"
    assert "gute" not in repr(answer)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_says_where_it_pointed(
    endpoint: Endpoint, client: EgressClient, status: int
):
    endpoint.answers(reply(b"", status, Location="http://169.254.169.254/latest?token=abc"))
    with pytest.raises(EgressFailed, match=rf"redirects to http://169.254.169.254/latest \(HTTP {status}\)"):
        await client.request("POST", endpoint.url, content=b"x")
    assert len(endpoint.received) == 1


async def test_a_body_beyond_the_limit_never_gets_into_memory(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(fifty_megabytes)
    tracemalloc.start()
    try:
        with pytest.raises(EgressFailed, match="larger than 1,000,000 bytes"):
            await client.request("GET", endpoint.url)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert endpoint.sent < 30_000_000


async def test_a_body_is_not_even_begun_when_its_declared_length_is_too_much(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
    with pytest.raises(EgressFailed, match="larger than"):
        await client.request("GET", endpoint.url)


async def test_a_body_of_just_the_limit(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(reply(b"x" * 1000))
    assert len((await client.request("GET", endpoint.url, max_response_bytes=1000)).body) == 1000
    with pytest.raises(EgressFailed):
        await client.request("GET", endpoint.url, max_response_bytes=999)


async def test_a_compressed_body_is_not_unpacked(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(reply(b"\x1f\x8b", Content_Encoding="gzip"))
    with pytest.raises(EgressFailed, match="compressed"):
        await client.request("GET", endpoint.url)


@pytest.mark.parametrize("script", [hang, drip])
async def test_the_timeout_is_for_the_whole_answer(endpoint: Endpoint, client: EgressClient, script: object):
    endpoint.answers(script)  # pyright: ignore[reportArgumentType]
    started = time.monotonic()
    with pytest.raises(EgressFailed, match=r"no complete answer from http://127\.0\.0\.1:\d+/score within 0\.1 s"):
        await client.request("GET", endpoint.url, timeout_seconds=0.1)
    assert time.monotonic() - started < 2


async def test_cancelling_closes_the_connection_and_leaves_the_client_usable(endpoint: Endpoint, client: EgressClient):
    arrived = asyncio.Event()

    async def arrive_and_hang(connection: object) -> None:
        arrived.set()
        await asyncio.Event().wait()

    endpoint.answers(arrive_and_hang, reply("ok"))
    task = asyncio.create_task(client.request("GET", endpoint.url))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.request("GET", endpoint.url)).body == b"ok"


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"])
async def test_an_answer_that_is_not_http_or_breaks_off(endpoint: Endpoint, client: EgressClient, garbage: bytes):
    endpoint.answers(then_close(garbage))
    with pytest.raises(EgressFailed, match="broke") as failed:
        await client.request("GET", endpoint.url)
    assert failed.value.sent


# Connections


async def test_connections_are_used_again(endpoint: Endpoint, client: EgressClient):
    for _ in range(5):
        await client.request("POST", endpoint.url, content=b"x")
    assert (endpoint.connections, len(endpoint.received)) == (1, 5)


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(then_close(reply("one")), reply("two"))
    assert (await client.request("POST", endpoint.url, content=b"x")).body == b"one"
    await endpoint.closed.wait()
    assert (await client.request("POST", endpoint.url, content=b"x")).body == b"two"
    assert endpoint.connections == 2


async def test_a_request_that_was_sent_is_not_sent_again(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(reply("one"), disconnect, reply("three"))
    await client.request("POST", endpoint.url, content=b"x")
    with pytest.raises(EgressFailed, match="broke"):
        await client.request("POST", endpoint.url, content=b"x")
    assert len(endpoint.received) == 2


async def test_cookies_are_not_kept(endpoint: Endpoint, client: EgressClient):
    endpoint.answers(reply("", Set_Cookie="session=1"))
    await client.request("GET", endpoint.url)
    await client.request("GET", endpoint.url)
    assert "cookie" not in endpoint.received[1].headers


async def test_a_closed_client_can_be_used_again(endpoint: Endpoint, client: EgressClient):
    await client.request("GET", endpoint.url)
    await client.aclose()
    await client.request("GET", endpoint.url)
    assert endpoint.connections == 2


# TLS


def certificate_for(name: str, folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


async def test_tls_is_verified_against_the_name_and_not_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    certificate, key = certificate_for("score.example", tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr("loopwright.egress.ssl_context", ssl_context.__wrapped__)  # not the one of an earlier test
    policy = EgressPolicy(allow_hosts=frozenset({"score.example", "other.example"}))
    async with running_endpoint(server_side) as server, EgressClient(policy, resolve=Names(["127.0.0.1"])) as client:
        assert (await client.request("GET", f"https://score.example:{server.port}/")).status == 200
        with pytest.raises(EgressFailed, match="certificate verify failed") as failed:
            await client.request("GET", f"https://other.example:{server.port}/")
    assert not failed.value.sent
    assert len(server.received) == 1


# Headers and secrets


def test_references_in_headers_are_replaced():
    environ = {"TOKEN": "s3cret\n", "B_2": "b"}
    headers = {"Authorization": "Bearer ${TOKEN}", "X": "${B_2}-${B_2}", "Plain": "$TOKEN {x} ${}"}
    assert resolve_headers(headers, environ) == {
        "Authorization": "Bearer s3cret",
        "X": "b-b",
        "Plain": "$TOKEN {x} ${}",
    }


def test_all_missing_variables_are_named_at_once():
    with pytest.raises(InvalidInput) as refused:
        resolve_headers({"A": "${ONE}", "B": "${TWO} ${HERE}"}, {"HERE": "x"}, where="evaluator.headers")
    assert [problem.field for problem in refused.value.problems] == ["evaluator.headers.A", "evaluator.headers.B"]
    assert "ONE" in str(refused.value)
    assert "TWO" in str(refused.value)


async def test_a_value_that_can_not_be_sent_is_not_shown(client: EgressClient, endpoint: Endpoint):
    with pytest.raises(InvalidInput, match="control characters") as refused:
        await client.request("GET", endpoint.url, headers={"Authorization": "hunter2\r\nX-Injected: yes"})
    assert "hunter2" not in str(refused.value)
    assert endpoint.received == []


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Connection", "a b", "a:b", "ä", ""])
async def test_headers_that_can_not_be_set(client: EgressClient, endpoint: Endpoint, name: str):
    with pytest.raises(InvalidInput, match="can't be set"):
        await client.request("GET", endpoint.url, headers={name: "1"})


async def test_own_headers_go_before_the_usual_ones(client: EgressClient, endpoint: Endpoint):
    await client.request("GET", endpoint.url, headers={"user-agent": "mine", "ACCEPT": "text/html"})
    assert endpoint.received[0].headers["user-agent"] == "mine"
    assert endpoint.received[0].headers["accept"] == "text/html"


def test_a_shown_url_holds_no_secrets():
    assert shown_url("https://user:pw@a.example:8/p?key=secret#f") == "https://a.example:8/p"
    assert shown_url("//user:pw@a.example/\x1b[31m") == "//a.example/\\x1b[31m"


def test_hosts_as_allow_hosts_takes_them():
    assert host_and_port("http://127.0.0.1:8000/score") == "127.0.0.1:8000"
    assert host_and_port("https://Bücher.example/") == "xn--bcher-kva.example:443"
    assert host_and_port("http://[::1]/") == "[::1]:80"
    assert checked_url("http://a.example/x?y=1").host == "a.example"


# Secrets that come back


@pytest.mark.parametrize("secret", ['topsecret/abc"é\\x', "first-line\nsecond 🙂", "^a.b*[c]$(d)|e"])
def test_a_secret_is_found_in_the_usual_spellings(secret: str):
    as_json = json.dumps(secret)[1:-1]
    spellings = {
        secret,
        as_json,
        as_json.replace("/", "\\/"),
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        repr(secret.encode())[2:-1],
        quote(secret, safe=""),
    }
    with naming({"KEY": secret}):
        for spelling in spellings:
            assert without_secrets(f"you sent {spelling}!", ["KEY", "NOT_SET"]) == "you sent ${KEY}!"


def test_a_secret_that_holds_another_one_is_found_whole():
    with naming({"A": "12345678", "B": "1234567890", "SHORT": "sent"}):
        assert without_secrets("sent 1234567890 12345678", ["A", "B", "SHORT"]) == "sent ${B} ${A}"


def test_secrets_in_data():
    with naming({"KEY": "k-12345678"}):
        found = data_without_secrets({"k-12345678": ["k-12345678", 1, None]}, ["KEY"])
    assert found == {"${KEY}": ["${KEY}", 1, None]}
