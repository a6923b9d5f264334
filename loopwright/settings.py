"""Settings of the service, from environment variables and an optional `.env` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .core.errors import InvalidInput, Problem
from .core.hosts import is_loopback

Names = Annotated[frozenset[str], NoDecode]
"""A list in one variable, separated by commas."""


class Settings(BaseSettings):
    """What can be set. Each field is the variable LOOPWRIGHT_<FIELD>, but for the DATABASE_ and SUPABASE_ ones."""

    model_config = SettingsConfigDict(
        env_prefix="LOOPWRIGHT_",
        env_file=".env",
        extra="ignore",
        populate_by_name=True,
        frozen=True,
    )

    home: Path = Path("~/.loopwright")
    """The data folder: the embedded database, its key, the local token. Keep its path short."""
    database_url: Annotated[str | None, Field(validation_alias=AliasChoices("DATABASE_URL", "database_url"))] = None
    """A Postgres to use instead of the embedded one."""
    database_url_direct: Annotated[
        str | None, Field(validation_alias=AliasChoices("DATABASE_URL_DIRECT", "database_url_direct"))
    ] = None
    """The same database past its transaction pooler: for migrations, LISTEN and the engine."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """The port to listen on."""
    allowed_hosts: Names = frozenset()
    """Host names that requests may be addressed to, beside the loopback ones; separated by commas."""
    egress_allow: Names = frozenset()
    """Hosts (`host` or `host:port`) that tools, evaluators and models may reach though they aren't public."""
    secret_key: SecretStr | None = None
    """32 bytes in base64 that seal stored secrets; without it `secret.key` in the data folder, made at first need."""
    service_key: SecretStr | None = None
    """What another service sends as Bearer token to act for a user whom it names; 32 characters at least."""
    supabase_url: Annotated[
        str | None, Field(validation_alias=AliasChoices("SUPABASE_URL", "LOOPWRIGHT_SUPABASE_URL", "supabase_url"))
    ] = None
    """A Supabase project's address: its users may sign in. Sets `jwks_url` and `jwt_issuer`."""
    supabase_publishable_key: Annotated[
        str | None, Field(validation_alias=AliasChoices("SUPABASE_PUBLISHABLE_KEY", "supabase_publishable_key"))
    ] = None
    """The project's publishable key: with it people sign in on a page of the dashboard."""
    sign_in_with: Names = frozenset()
    """OAuth providers that the sign-in page offers, such as `github,google`; switch them on in the project, too."""
    public_url: str | None = None
    """The address that people open, such as `https://loops.example.com`: links in mails lead there."""
    jwks_url: str | None = None
    """Where the public keys lie that sign users' tokens."""
    jwt_issuer: str | None = None
    """The `iss` that tokens must have."""
    jwt_audience: str = "authenticated"
    """The `aud` that tokens must have."""
    runs_per_process: Annotated[int, Field(ge=1)] = 1000
    """How many runs one process executes at once."""
    runs_per_user: Annotated[int, Field(ge=1)] = 100
    """How many of them may be one user's."""
    grace_seconds: Annotated[float, Field(ge=0)] = 20.0
    """How long requests in flight may take to finish when a process leaves; then its runs are handed over."""
    engine_days: Annotated[float, Field(ge=0.01)] = 7.0
    """For how many days the engine keeps its own records of what is over. Runs are kept for good."""
    log: Literal["text", "json"] = "text"
    """The form of the log on standard error; `json` is an object a line."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1_000_000
    """The largest request body that is read."""

    @field_validator("allowed_hosts", "egress_allow", "sign_in_with", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("supabase_url", "public_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith(("https://", "http://")) and urlsplit(value).hostname):
            raise ValueError("must be an address such as https://example.com")
        return value.rstrip("/") if value else None

    @field_validator("service_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < 32:
            raise ValueError("must have 32 characters at least, so that nobody guesses it")
        return value

    @property
    def data_folder(self) -> Path:
        """The data folder, with `~` resolved."""
        return self.home.expanduser()

    @property
    def jwks(self) -> str | None:
        """Where the keys of tokens lie, or `None` where no tokens are taken."""
        base = self.supabase_url
        return self.jwks_url or (f"{base}/auth/v1/.well-known/jwks.json" if base else None)

    @property
    def issuer(self) -> str | None:
        """The issuer of tokens."""
        base = self.supabase_url
        return self.jwt_issuer or (f"{base}/auth/v1" if base else None)

    @property
    def signs_in(self) -> bool:
        """Whether people sign in on a page of the dashboard, through Supabase."""
        return bool(self.supabase_url and self.supabase_publishable_key)

    @property
    def mode(self) -> Literal["local", "shared"]:
        """`local`: one owner, who signs in with the local token. `shared`: users sign in by tokens."""
        return "shared" if self.jwks or self.service_key else "local"

    def check(self) -> None:
        """Refuse what can't work together.

        Raises:
            InvalidInput: names the setting and the way out.
        """
        if self.supabase_publishable_key and not self.supabase_url:
            message = "set it to the address of the project that SUPABASE_PUBLISHABLE_KEY is of"
            raise InvalidInput(Problem(field="SUPABASE_URL", message=message))
        if self.supabase_url and not self.database_url:
            message = (
                "SUPABASE_URL lets the users of that project sign in, and they lie in its database: set DATABASE_URL "
                "to it too, or unset SUPABASE_URL to work alone with the embedded one"
            )
            raise InvalidInput(Problem(field="DATABASE_URL", message=message))
        if self.signs_in and not self.public_url and not is_loopback(self.host):
            message = "set it to the address that people open, such as https://loops.example.com: they come back there"
            raise InvalidInput(Problem(field="LOOPWRIGHT_PUBLIC_URL", message=message))
        if self.jwks and not self.issuer:
            raise InvalidInput(Problem(field="LOOPWRIGHT_JWT_ISSUER", message="set it to the issuer of the tokens"))
        if self.mode == "local" and not is_loopback(self.host):
            message = (
                f"{self.host} can be reached from elsewhere, and the local token is no sign-in for a network; listen "
                "on 127.0.0.1, or set SUPABASE_URL (or LOOPWRIGHT_JWKS_URL) so that users sign in"
            )
            raise InvalidInput(Problem(field="LOOPWRIGHT_HOST", message=message))
