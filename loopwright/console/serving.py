"""`loopwright serve`, `loopwright worker` and `loopwright mcp`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from .. import logs
from ..core.errors import InvalidInput, Problem
from ..settings import Settings
from .outcome import ERROR, REACHED, say
from .service import guarded, settings_with

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

SHUTDOWN_SECONDS = 5
"""How long answers may take to finish when the server leaves; runs have their own grace."""


_log = logging.getLogger(__name__)

APP = "loopwright.app:create_app"
"""Named and not imported: the composition root stands above the command line."""


def serve(host: str | None, port: int | None) -> int:
    """Serve the API and execute runs until a signal comes.

    The server answers as soon as the database is up. The pages come up behind it, then what executes runs: that takes
    as long again, and runs that are started meanwhile wait for it.
    """

    async def run() -> int:
        from ..service.runtime import engine_behind, open_runtime

        settings = _settings(host=host, port=port)
        settings.check()
        with _listen(settings) as listening:
            importing = asyncio.create_task(asyncio.to_thread(_import_app))  # while the database comes up
            async with open_runtime(settings, engine=False) as runtime:
                runtime.awaits_engine = True
                create_app = await importing
                app = create_app(settings, runtime=runtime)
                server = _server(app)
                serving = asyncio.create_task(server.serve(sockets=[listening]))
                await _announce(server, serving, settings, listening.getsockname()[1])
                await app.state.pages.load()
                async with engine_behind(runtime) as working:
                    await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
                    server.should_exit = True
                    await serving
                working.result()
        return REACHED if server.started else ERROR

    return guarded(run)


def _settings(**options: object) -> Settings:
    """The settings, with the log set up as they say.

    Raises:
        InvalidInput: a variable holds what it can't.
    """
    logs.set_up("json" if os.environ.get("LOOPWRIGHT_LOG") == "json" else "text")  # for what is refused below
    settings = settings_with(**options)
    logs.set_up(settings.log)
    logs.hide(each.get_secret_value() for each in (settings.service_key, settings.secret_key) if each)
    return settings


def _tell(text: str) -> None:
    """Say how the process stands."""
    if logs.as_json():
        _log.info(text)
    else:
        say(text)


def _import_app() -> Callable[..., FastAPI]:
    from uvicorn.importer import import_from_string

    return import_from_string(APP)


def _server(app: FastAPI) -> uvicorn.Server:
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,  # `logs` has done it
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

        token = local_token(settings)
        logs.hide([token])
        if logs.as_json():  # a log is kept and sent on, so it holds no token
            _log.info("Loopwright is at %s; sign in with the token in %s", address, settings.data_folder / "token")
            return
        print(f"Loopwright is at {address}/login?token={token}", flush=True)
        print("The address signs you in; keep it to yourself. Ctrl-C stops; runs go on at the next start.", flush=True)
    elif logs.as_json():
        _log.info("Loopwright is at %s", address)
    else:
        print(f"Loopwright is at {address}", flush=True)


MCP_GRACE_SECONDS = 1.0
"""How long requests in flight may take to finish when a desktop client goes: it ends its servers two seconds later."""


def serve_mcp() -> int:
    """Serve a desktop client until it goes, and execute the runs that it starts."""

    async def run() -> int:
        from ..service.runtime import engine_behind, open_runtime

        leave = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, leave.set)
        # Named and not imported: the server stands beside the command line.
        importing = asyncio.create_task(asyncio.to_thread(import_module, "loopwright.mcp_server.stdio"))
        async with open_runtime(_settings(grace_seconds=MCP_GRACE_SECONDS), engine=False) as runtime:
            stdio = await importing
            async with engine_behind(runtime) as working:
                await stdio.serve_stdio(runtime, leave, working)
        if leave.is_set():  # a thread waits for the client's next line, and nothing but the client would wake it
            sys.stderr.flush()
            os._exit(REACHED)
        return REACHED

    return guarded(run)


def work() -> int:
    """Execute runs until a signal comes."""

    async def run() -> int:
        from ..service.runtime import open_runtime

        leave = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, leave.set)
        async with open_runtime(_settings()) as runtime:
            _tell(f"worker {runtime.engine.executor if runtime.engine else ''} is at work; Ctrl-C hands its runs over")
            await leave.wait()
        return REACHED

    return guarded(run)
