"""Standard Webhooks: how messages are signed, those that come in and those that go out, and what is refused."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from .core.errors import NotSignedIn

WINDOW_SECONDS = 300
"""How old, or how far ahead, a message's time may be."""

PREFIX = "whsec_"


def new_secret() -> str:
    """A secret to sign with."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes | None:
    """The key in a secret, or `None` if it is no secret of Standard Webhooks."""
    if not secret.startswith(PREFIX):
        return None
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def signature(key: bytes, message_id: str, at: int, body: bytes) -> str:
    """The signature of a message; `at` is in seconds since 1970."""
    digest = hmac.new(key, b".".join((message_id.encode(), str(at).encode(), body)), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def verified(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a message that is signed with this secret and not old.

    Raises:
        NotSignedIn: it isn't.
    """
    message_id, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "")
    if not (0 < len(message_id) <= 200 and message_id.isascii() and message_id.isprintable() and given):
        raise NotSignedIn("the message is not signed; send webhook-id, webhook-timestamp and webhook-signature")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise NotSignedIn("webhook-timestamp is no time in seconds since 1970")
    if (key := key_of(secret)) is None:
        raise NotSignedIn("the webhook has no secret that signatures can be made with; make it again")
    wanted = signature(key, message_id, int(stamp), body).encode()
    if not any(hmac.compare_digest(each.encode(), wanted) for each in given.split()[:10]):
        raise NotSignedIn("the signature is not that of this message with this webhook's secret")
    if abs(now - int(stamp)) > WINDOW_SECONDS:
        raise NotSignedIn(f"the message was signed more than {WINDOW_SECONDS // 60} minutes ago, or in the future")
    return message_id
