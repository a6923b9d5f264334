"""`loopwright serve` and `loopwright worker`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING

from ..core.errors import InvalidInput, Problem
from ..settings import Settings
from .outcome import ERROR, REACHED, say
from .service import guarded, settings_with

if TYPE_CHECKING:
    import uvicorn

SHUTDOWN_SECONDS = 5
"""How long answers may take to finish when the server leaves; runs have their own grace."""


def serve(host: str | None, port: int | None) -> int:
    """Serve the API and execute runs until a signal comes."""

    async def run() -> int:
        settings = settings_with(host=host, port=port)
        settings.check()
        # The application reads its settings from the environment when uvicorn makes it.
        os.environ["LOOPWRIGHT_HOST"], os.environ["LOOPWRIGHT_PORT"] = settings.host, str(settings.port)
        with _listen(settings) as listening:
            server = _server(settings)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await _announce(server, serving, settings, listening.getsockname()[1])
            await serving
        return REACHED if server.started else ERROR

    return guarded(run)


def _server(settings: Settings) -> uvicorn.Server:
    import uvicorn

    # Named and not imported: the composition root stands above the command line.
    config = uvicorn.Config(
        "loopwright.app:create_app",
        factory=True,
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
        forwarded_allow_ips="127.0.0.1",
    )
    return uvicorn.Server(config)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        listening.close()
        message = f"can't listen on {settings.host}:{settings.port}: {error.strerror or error}; take another --port"
        raise InvalidInput(Problem(field="--port", message=message)) from None
    listening.set_inheritable(True)
    return listening


async def _announce(server: uvicorn.Server, serving: asyncio.Task[None], settings: Settings, port: int) -> None:
    """Say where the server is, as soon as it answers."""
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn tells in no other way
        await asyncio.sleep(0.02)
    if not server.started:
        return
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{port}"
    if settings.mode == "local":
        from ..service.runtime import local_token

        print(f"Loopwright is at {address}/login?token={local_token(settings)}", flush=True)
        print("The address signs you in; keep it to yourself. Ctrl-C stops; runs go on at the next start.", flush=True)
    else:
        print(f"Loopwright is at {address}", flush=True)


def work() -> int:
    """Execute runs until a signal comes."""

    async def run() -> int:
        from ..service.runtime import open_runtime

        leave = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, leave.set)
        async with open_runtime(settings_with()) as runtime:
            say(f"worker {runtime.engine.executor if runtime.engine else ''} is at work; Ctrl-C hands its runs over")
            await leave.wait()
        return REACHED

    return guarded(run)
