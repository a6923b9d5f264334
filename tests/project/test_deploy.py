"""What is deployed: settings that exist, rights that are small, files that programs can read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import AliasChoices

from loopwright.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))


def names() -> set[str]:
    """Every variable that is a setting."""
    found: set[str] = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [f"LOOPWRIGHT_{name.upper()}"]
        found |= {str(each) for each in choices if str(each).isupper()}
    return found


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/loopwright.service", "docs/deploy.md", "docs/serve.md"])
def test_variables_are_settings(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    used = set(re.findall(r"\b(?:LOOPWRIGHT|SUPABASE|DATABASE)_[A-Z_]+\b", text))
    assert used and used <= names()


def test_every_setting_is_in_the_docs() -> None:
    text = (ROOT / "docs/serve.md").read_text(encoding="utf-8")
    missing = {name for name in names() if f"`{name}`" not in text}
    assert missing <= {"LOOPWRIGHT_SUPABASE_URL"}  # the older name of SUPABASE_URL


def test_the_image_runs_as_nobody_in_particular() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 10001" in last
    assert not [line for line in last if line.startswith("COPY") and "--from=build" not in line]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"  # only what is named goes in: no `.env`, no data
    copied = {
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    }
    assert copied == {line[1:] for line in ignored if line.startswith("!")}


@pytest.mark.parametrize("service", ["server", "worker"])
def test_the_services_may_do_little(service: str) -> None:
    made: dict[str, Any] = COMPOSE["services"][service]
    assert made["read_only"] and made["cap_drop"] == ["ALL"] and "no-new-privileges:true" in made["security_opt"]
    assert set(made["environment"]) <= names()
    assert made["environment"]["DATABASE_URL"].startswith("postgresql://loopwright_app:")
    grace = Settings.model_fields["grace_seconds"].default
    assert int(made["stop_grace_period"].removesuffix("s")) >= grace + 10
    assert all(port.startswith("127.0.0.1:") for port in made.get("ports", []))


def test_the_unit_is_one(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze on this machine")
    unit = (ROOT / "deploy/loopwright.service").read_text(encoding="utf-8")
    here = tmp_path / "loopwright.service"
    here.write_text(unit.replace("/opt/loopwright/bin/loopwright", shutil.which("true") or "/bin/true"))
    done = subprocess.run([program, "verify", str(here)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_password_of_the_role_is_taken_by_the_migrations() -> None:
    """The role that the containers' Postgres makes is the one that the first migration would make."""
    made = COMPOSE["configs"]["app_role"]["content"].partition(" password ")[0]
    first = (ROOT / "loopwright/migrations/20261201000000_people.sql").read_text(encoding="utf-8")
    assert f"{made.strip()};" in first
