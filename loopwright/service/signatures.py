"""Standard Webhooks: how messages from elsewhere are signed, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from ..core.errors import NotSignedIn

WINDOW_SECONDS = 300
"""How old, or how far ahead, a message's time may be."""

PREFIX = "whsec_"


def new_secret() -> str:
    """A secret to sign with."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, message_id: str, at: int, body: bytes) -> str:
    """The signature of a message; `at` is in seconds since 1970."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
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
    wanted = signature(secret, message_id, int(stamp), body).encode()
    if not any(hmac.compare_digest(each.encode(), wanted) for each in given.split()[:10]):
        raise NotSignedIn("the signature is not that of this message with this webhook's secret")
    if abs(now - int(stamp)) > WINDOW_SECONDS:
        raise NotSignedIn(f"the message was signed more than {WINDOW_SECONDS // 60} minutes ago, or in the future")
    return message_id
