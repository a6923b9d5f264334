"""The MCP server as the official inspector sees it, on stdio and over HTTP. Needs npx, and npm's registry once.

.venv/bin/python .ci/inspector.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
PROGRAM = (sys.executable, "-m", "loopwright")
TOOLS = {"run_loop", "check_run", "get_best", "cancel_run", "list_loops", "list_runs"}


def main() -> None:
    """Ask on both transports; the first answer that is wrong ends it."""
    npx = shutil.which("npx")
    if npx is None or tried(npx).returncode:
        print("skipped: the inspector can't be had here (no npx, or no way to npm's registry)")
        return
    with tempfile.TemporaryDirectory(prefix="lwi") as folder:
        root = Path(__file__).parent.parent
        own = {"LOOPWRIGHT_HOME": f"{folder}/h", "PYTHONPATH": str(root)}
        env = {**os.environ, **own}
        run = lambda *arguments: subprocess.run([*PROGRAM, *arguments], cwd=folder, env=env, check=True)  # noqa: E731
        run("init", "x")
        (Path(folder) / "x/loop.yaml").write_text(LOOP)
        run("loops", "push", "x/loop.yaml")
        options = [part for name, value in own.items() for part in ("-e", f"{name}={value}")]
        check([npx, "--yes", INSPECTOR, "--cli", *options, *PROGRAM, "mcp"])
        with subprocess.Popen([*PROGRAM, "serve", "--port", "0"], cwd=folder, env=env, stdout=-1, text=True) as server:
            try:
                assert server.stdout
                address = urlsplit(server.stdout.readline().split()[-1])
                token = parse_qs(address.query)["token"][0]
                url = f"http://{address.netloc}/mcp"
                check([npx, "--yes", INSPECTOR, "--cli", url, "--header", f"Authorization: Bearer {token}"])
            finally:
                server.terminate()
    print("the inspector finds nothing wrong")


def tried(npx: str) -> subprocess.CompletedProcess[bytes]:
    """Whether the inspector itself can be had."""
    return subprocess.run([npx, "--yes", INSPECTOR, "--cli", "--version"], capture_output=True, check=False)


LOOP = """\
name: inspected
goal: Find the code of 4 letters from A to F.
agent: {model: practice, settings: {practice_pace: 0}}
stop: {max_iterations: 2, budget_usd: "0.10"}
"""


def check(inspect: Sequence[str]) -> None:
    """List the tools, strictly; call two; read a journal."""
    tools = ask(inspect, "tools/list", "--strict")["tools"]
    assert {tool["name"] for tool in tools} == TOOLS, tools
    call = ("tools/call", "--tool-name")
    (loop,) = ask(inspect, *call, "list_loops")["structuredContent"]["loops"]
    arguments = ("--tool-arg", f"loop={loop['id']}", "--tool-arg", "wait_seconds=40")
    report = ask(inspect, *call, "run_loop", *arguments)["structuredContent"]
    assert report["stop_reason"] == "max_iterations", report
    uri = f"loopwright://runs/{report['run_id']}/journal"
    (journal,) = ask(inspect, "resources/read", "--uri", uri)["contents"]
    assert '"run_finished"' in journal["text"], journal


def ask(inspect: Sequence[str], method: str, *options: str) -> Any:
    """One question of the inspector's."""
    command = [*inspect, "--connect-timeout", "120000", "--method", method, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{method} {' '.join(options)} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
