"""Named secrets: sealed with AES-256-GCM under a key outside the database, and never given back."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound, Problem
from ..core.records import SecretName
from ..logs import hide
from ..store import activity
from ..store import secrets as store
from ..store.database import Database
from ..store.secrets import Sealed

KEY_BYTES = 32


@dataclass(frozen=True)
class Vault:
    """Seals and opens values. What is sealed is bound to its owner and name: moved to another row, it won't open."""

    key: bytes

    def __repr__(self) -> str:
        return f"Vault({self.key_id})"

    @property
    def key_id(self) -> str:
        """Tells keys apart without showing anything of them."""
        return hashlib.sha256(b"loopwright key id" + self.key).hexdigest()[:16]

    def seal(self, owner_id: str, name: str, value: str) -> Sealed:
        """Seal a value."""
        nonce = os.urandom(12)
        sealed = AESGCM(self.key).encrypt(nonce, value.encode(), _place(owner_id, name))
        return Sealed(name=name, nonce=nonce, sealed=sealed, key_id=self.key_id)

    def open(self, owner_id: str, secret: Sealed) -> str:
        """Open a sealed value.

        Raises:
            InvalidInput: it was sealed under another key, or is not what was sealed for this owner and name.
        """
        field = f"secrets.{secret.name}"
        if secret.key_id != self.key_id:
            message = "was sealed under another key; set LOOPWRIGHT_SECRET_KEY to that key, or store the secret again"
            raise InvalidInput(Problem(field=field, message=message))
        try:
            return AESGCM(self.key).decrypt(secret.nonce, secret.sealed, _place(owner_id, secret.name)).decode()
        except InvalidTag:
            message = "is not what was stored for this owner and name; store the secret again"
            raise InvalidInput(Problem(field=field, message=message)) from None


def _place(owner_id: str, name: str) -> bytes:
    return f"loopwright secret\n{owner_id}\n{name}".encode()


def open_vault(key: str | None, folder: Path) -> Vault:
    """The vault with a key from the settings, or from a file in the data folder that is made at first need.

    Raises:
        InvalidInput: the key is none, or its file can be read by others.
    """
    return Vault(_decoded(key, "LOOPWRIGHT_SECRET_KEY") if key else private_bytes(folder / "secret.key"))


def private_bytes(path: Path) -> bytes:
    """The bytes of a file that only its owner can read, made with 32 random ones if it isn't there.

    Raises:
        InvalidInput: others can read it, or it doesn't hold 32 bytes in base64.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Linked into place whole, so that of two processes at once one makes it and both read the same.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        if not path.exists():
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        if path.stat().st_mode & 0o077:
            message = f"{path} can be read by others; run `chmod 600 {path}`"
            raise InvalidInput(Problem(field="LOOPWRIGHT_HOME", message=message))
        return _decoded(path.read_text(encoding="ascii"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} can't be used: {error}; set LOOPWRIGHT_HOME to another folder"
        raise InvalidInput(Problem(field="LOOPWRIGHT_HOME", message=message)) from None


def _decoded(text: str, field: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        message = "must be 32 bytes in base64; make one with `openssl rand -base64 32`"
        raise InvalidInput(Problem(field=field, message=message))
    return key


# --- use cases ---


async def list_secrets(database: Database, caller: Caller) -> Sequence[SecretName]:
    """The names of the caller's secrets."""
    async with database.as_user(caller.user_id) as connection:
        return await store.list_secrets(connection)


async def put_secret(database: Database, vault: Vault, caller: Caller, name: str, value: str) -> bool:
    """Store a secret of the caller's, in place of one of the same name; true if there was none."""
    sealed = vault.seal(caller.user_id, name, value)
    async with database.as_user(caller.user_id) as connection:
        new = await store.put_secret(connection, sealed)
        await activity.note(connection, caller.door, "secret_stored", f"secret:{name}", replaced=not new)
        return new


async def delete_secret(database: Database, caller: Caller, name: str) -> None:
    """Delete a secret of the caller's.

    Raises:
        NotFound: there is none of this name.
    """
    async with database.as_user(caller.user_id) as connection:
        if not await store.delete_secret(connection, name):
            raise NotFound
        await activity.note(connection, caller.door, "secret_deleted", f"secret:{name}")


async def values_of(database: Database, vault: Vault, owner_id: str) -> dict[str, str]:
    """All of an owner's secrets, opened: for a run that is about to begin, and nobody else.

    Raises:
        InvalidInput: one of them can't be opened.
    """
    async with database.service_session() as connection:
        sealed = await store.sealed_of(connection, owner_id)
    opened = {secret.name: vault.open(owner_id, secret) for secret in sealed}
    hide(opened.values())  # wherever they may turn up in the log
    return opened
