"""`make demo`: a server, a real evaluator over HTTP, and a run that is started over the API and streamed from it.

Without a key the practice model plays. With a provider's key in the environment a real one does, and `--model` says
which. Nothing is asked; the budget is a few cents, and is said before anything is spent. The server has a data folder
of its own and stops in the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml
from evaluator import PORT, make_app, new_code

from loopwright.console.ending import Ending
from loopwright.console.screens import Screen, screen_for
from loopwright.core.events import EVENT, RunEvent

LOOP_FILE = Path(__file__).with_name("loop.yaml")
HOME = Path(".loopwright") / "demo"
"""The server's data folder, under the current one; kept, so that a second start is quicker."""
MODELS = {
    "OPENAI_API_KEY": "openai:gpt-4o-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
    "GEMINI_API_KEY": "google:gemini-2.5-flash",
    "GOOGLE_API_KEY": "google:gemini-2.5-flash",
}
"""The model to play with, by the key that is there; the first one counts."""


def main() -> int:
    """Start the evaluator and the server, run the loop on both, give back the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model such as openai:gpt-4o-mini, or practice")
    parser.add_argument("--code", help="the secret code; by default nobody knows it")
    options = parser.parse_args()
    key = next((name for name in MODELS if os.environ.get(name)), None)
    model = options.model or (MODELS[key] if key else "practice")
    spec = yaml.safe_load(LOOP_FILE.read_text(encoding="utf-8"))
    with evaluator(options.code or new_code()) as url:
        spec["evaluator"]["url"] = url
        introduce(model, url, budget=spec["stop"]["budget_usd"], by_key=not options.model)
        return play(spec, model)


def introduce(model: str, url: str, *, budget: float, by_key: bool) -> None:
    """Say what is about to happen, and what it can cost."""
    print(f"loop file  {os.path.relpath(LOOP_FILE)}")
    print(f"evaluator  {url}, a server of its own that knows the secret code")
    if model == "practice":
        print("agent      the practice model: a deterministic search, not an LLM. Nothing is paid: its tokens are")
        print(f"           estimated and counted at the list prices of openai:gpt-4o, under a budget of ${budget:.2f}.")
    else:
        why = ", for its key is in the environment (MODEL=practice plays without)" if by_key else ""
        print(f"agent      {model}{why}")
        print(f"budget     real money, never more than ${budget:.2f}")
    first = "" if HOME.exists() else "; the first start makes a database, which takes some seconds"
    print(f"server     starting in {HOME}{first}", flush=True)


def play(spec: dict[str, Any], model: str) -> int:
    """Start a server, store the loop on it, run it and show the run as it goes on; gives back the exit code."""
    with server() as (address, link):
        if not address:
            return 3  # it has said why
        print(f"dashboard  {link}\n", flush=True)
        token = link.partition("token=")[2]
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=60) as api:
            loop = store(api, spec)
            started = asked(api.post(f"/api/loops/{loop['id']}/runs", json={"model": model}))
            code = watch(api, started["run_id"], started["events_url"])
    program = Path(sys.executable).with_name("loopwright")
    command = os.path.relpath(program) if program.exists() else f"{sys.executable} -m loopwright"
    print(f"\nThe server has stopped. To look at the run in a browser:\n\n  LOOPWRIGHT_HOME={HOME} {command} serve")
    return code


def store(api: httpx.Client, spec: dict[str, Any]) -> dict[str, Any]:
    """The loop as the server has it: stored by the first demo, brought up to date by each later one."""
    body = {key: value for key, value in spec.items() if key not in ("name", "agent")}
    for loop in asked(api.get("/api/loops"))["items"]:
        if loop["name"] == spec["name"]:
            changed = api.patch(f"/api/loops/{loop['id']}", json={"spec": body}, headers={"if-match": "*"})
            return asked(changed)
    agent = asked(api.post("/api/agents", json={"name": spec["name"], "spec": spec["agent"]}))
    return asked(api.post("/api/loops", json={"name": spec["name"], "agent_id": agent["id"], "spec": body}))


def watch(api: httpx.Client, run_id: str, events_url: str) -> int:
    """Show a run from its events to its end. Ctrl-C cancels it."""
    screen, ending = screen_for(json=False, environ=os.environ), Ending(run_id)
    cancel_on_signal(api, run_id, screen)
    screen.open()
    try:
        with api.stream("GET", events_url, timeout=httpx.Timeout(60, read=None)) as stream:
            for event in events(stream.iter_lines()):
                screen.show(event)
                ending.add(event)
    finally:
        screen.close()
    if ending.result is None:
        print("The stream broke off before the run was over.", file=sys.stderr)
        return 3
    screen.end(ending.result, journal=None, output=None, run_id=None)
    # To end below the target, or by Ctrl-C, is a way for a demo to end and no failure of `make`.
    return 3 if ending.result.stop_reason == "error" else 0


def events(lines: Iterator[str]) -> Iterator[RunEvent]:
    """The events of a stream of server-sent events."""
    for line in lines:
        if line.startswith("data: "):
            yield EVENT.validate_json(line.removeprefix("data: "))


def cancel_on_signal(api: httpx.Client, run_id: str, screen: Screen) -> None:
    """Let the first Ctrl-C cancel the run, and the second one end this process."""

    def cancel() -> None:
        with suppress(httpx.HTTPError):  # then the server is gone, and the stream says so
            api.post(f"/api/runs/{run_id}/cancel")

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.stopping()
        threading.Thread(target=cancel).start()  # the main thread reads the stream

    signal.signal(signal.SIGINT, stop)


def asked(response: httpx.Response) -> Any:
    """The answer to a request.

    Raises:
        RuntimeError: it was refused, and why.
    """
    if response.is_error:
        raise RuntimeError(f"{response.request.method} {response.request.url}: {response.text}")
    return response.json()


@contextmanager
def server() -> Generator[tuple[str, str]]:
    """`loopwright serve` on a free port; gives its address, and the link that signs in. Both are empty if it fails."""
    HOME.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOOPWRIGHT_", "DATABASE_URL"))}
    with subprocess.Popen(
        [sys.executable, "-m", "loopwright", "serve", "--port", "0"],
        cwd=HOME,  # away from a `.env` that is meant for another server
        env=environment | {"LOOPWRIGHT_HOME": str(HOME.resolve())},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run
    ) as process:
        assert process.stdout is not None
        try:
            link = next((word for word in process.stdout.readline().split() if word.startswith("http")), "")
            yield link.partition("/login")[0], link
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)


@contextmanager
def evaluator(code: str) -> Generator[str]:
    """Serve the evaluator as long as the block runs, on its own port if that is free."""
    config = uvicorn.Config(make_app(code), log_level="warning")
    with listening() as sock:
        serving = uvicorn.Server(config)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not serving.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/score"
        finally:
            serving.should_exit = True
            thread.join(timeout=5)


def listening() -> socket.socket:
    """A socket on the evaluator's port, or on any if that one is taken."""
    try:
        return socket.create_server(("127.0.0.1", PORT))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


if __name__ == "__main__":
    sys.exit(main())
