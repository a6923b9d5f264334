"""The configurations of clients that the documentation shows name the command and the address that there are."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest

from loopwright.mcp_server.http import PATH
from loopwright.settings import Settings
from tests.docs.blocks import ROOT, blocks

SHOWN: list[dict[str, Any]] = [
    config
    for block in blocks()
    if block.language == "json"
    for data in (json.loads(block.text),)
    for servers in (data.get("mcpServers", data.get("servers")) if isinstance(data, dict) else None,)
    if servers
    for config in servers.values()
]


def test_each_names_what_there_is() -> None:
    scripts = tomllib.loads(Path(ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    commands = [each for each in SHOWN if "command" in each]
    assert len(commands) >= 3, "README.md and docs/mcp.md show how desktop clients start the server"
    for each in commands:
        assert PurePosixPath(each["command"]).name in scripts
        assert each["args"] == ["mcp"]
    addresses = [urlsplit(each["url"]) for each in SHOWN if "url" in each]
    assert addresses
    for at in addresses:
        assert (at.path, at.port) == (PATH, Settings.model_fields["port"].default)


@pytest.mark.parametrize("args", [["mcp"]])
def test_the_command_is_one(args: list[str]) -> None:
    command = [sys.executable, "-m", "loopwright", *args, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "standard input" in ended.stdout.lower() or "stdio" in ended.stdout.lower()) == (0, True)
