"""Make requirements.lock from pyproject.toml, or check that it fits: offline, with the standard library only.

The first line of the lock holds a digest of what it was resolved from. That pip and uv can install it with every
package pinned and hashed is shown by installing from it.

    python .ci/lock.py            resolve (needs uv); pins that still fit stay
    python .ci/lock.py --upgrade  resolve to the newest versions
    python .ci/lock.py --check    is the lock that of this pyproject.toml, and does it name no address?
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = "# Made by `make lock` from pyproject.toml, inputs sha256 "
OPTIONS = "--quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header"
ADDRESS = re.compile(r"://|\s@\s|^\s*-(?!-hash=)|\bfile:", re.MULTILINE)
"""An address, a direct reference or an option: a lock says what to install, the user's own settings say from where."""


def digest() -> str:
    """What the lock is resolved from, as one number."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    inputs = [
        project["project"]["requires-python"],
        sorted(project["project"]["dependencies"]),
        {name: sorted(group) for name, group in project["dependency-groups"].items()},
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def make(*, upgrade: bool) -> None:
    """Resolve, and write the digest on top."""
    groups = [f"--group={name}" for name in ("dev", "build")]
    extra = ["--upgrade"] if upgrade else []
    command = ["uv", "pip", "compile", *OPTIONS.split(), *groups, *extra, "--output-file", LOCK.name, "pyproject.toml"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    LOCK.write_text(f"{HEADER}{digest()}\n{LOCK.read_text(encoding='utf-8')}", encoding="utf-8")


def problems() -> list[str]:
    """What is wrong with the lock."""
    text = LOCK.read_text(encoding="utf-8")
    found: list[str] = []
    if not text.startswith(f"{HEADER}{digest()}\n"):
        found.append("requirements.lock was made from another pyproject.toml: run `make lock`")
    pins = text.partition("\n")[2]
    if match := ADDRESS.search(pins):
        line = 2 + pins.count("\n", 0, match.start())
        found.append(f"requirements.lock:{line} holds an address or an option; it may only hold pins and hashes")
    bare = [pin for pin in re.split(r"\n(?=\S)", pins.strip()) if "--hash=sha256:" not in pin]
    return [*found, *(f"requirements.lock: no hash for {pin.split()[0]}" for pin in bare)]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(problems()) or None)
    make(upgrade="--upgrade" in sys.argv)
