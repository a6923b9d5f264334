"""`make demo`: a real evaluator over HTTP, and `loopwright run` on it.

Without a key the practice model plays. With a provider's key in the environment a real one does, and `--model` says
which. Nothing is asked; the budget is a few cents, and is said before anything is spent.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
import yaml
from evaluator import PORT, make_app, new_code

LOOP_FILE = Path(__file__).with_name("loop.yaml")
MODELS = {
    "OPENAI_API_KEY": "openai:gpt-4o-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
    "GEMINI_API_KEY": "google:gemini-2.5-flash",
    "GOOGLE_API_KEY": "google:gemini-2.5-flash",
}
"""The model to play with, by the key that is there; the first one counts."""


def main() -> int:
    """Start the evaluator, run the loop on it, give back the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model such as openai:gpt-4o-mini, or practice")
    parser.add_argument("--code", help="the secret code; by default nobody knows it")
    options = parser.parse_args()
    key = next((name for name in MODELS if os.environ.get(name)), None)
    model = options.model or (MODELS[key] if key else "practice")
    with serving(options.code or new_code()) as url, tempfile.TemporaryDirectory() as folder:
        loop_file = Path(folder) / "loop.yaml"
        written = LOOP_FILE.read_text(encoding="utf-8").replace(f"http://127.0.0.1:{PORT}/score", url)
        loop_file.write_text(written, encoding="utf-8")
        introduce(model, url, budget=yaml.safe_load(written)["stop"]["budget_usd"], by_key=not options.model)
        return run([sys.executable, "-m", "loopwright", "run", str(loop_file), "--model", model])


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
    print(flush=True)


@contextmanager
def serving(code: str) -> Generator[str]:
    """Serve the evaluator on a free port as long as the block runs."""
    server = uvicorn.Server(uvicorn.Config(make_app(code), log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/score"
        finally:
            server.should_exit = True
            thread.join(timeout=5)


def run(command: list[str]) -> int:
    """Run a command that handles Ctrl-C by itself."""
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = process.wait()
    # To end below the target, or by Ctrl-C, is a way for a demo to end and no failure of `make`.
    return 0 if code in (0, 1, 130) else code


if __name__ == "__main__":
    sys.exit(main())
