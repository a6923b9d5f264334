"""Scores a Python module by the share of tests that pass: `python score.py TESTS < module`.

The last line on standard output is the answer: {"score": 0.75, "detail": "…"}.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path


def main(tests: Path) -> dict[str, object]:
    """Run the tests on the module that comes on standard input."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "solution.py").write_text(code_of(sys.stdin.read()), encoding="utf-8")
        (folder / "test_solution.py").write_text(tests.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        report = folder / "report.xml"
        command = [sys.executable, "-B", "-m", "pytest", "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        try:
            subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=30, check=False)
        except subprocess.TimeoutExpired:
            return {"score": 0.0, "detail": "The tests took longer than 30 s: the code may be in an endless loop."}
        if not report.exists():
            return {"score": 0.0, "detail": "The tests did not come to an end: the code may end the process."}
        return answer(ET.parse(report).getroot())  # noqa: S314 - pytest wrote it


def code_of(text: str) -> str:
    """The code, without the fence that models like to put around it."""
    fenced = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    return fenced[1] if fenced else text


def answer(report: ET.Element) -> dict[str, object]:
    """The share of passed tests, and what went wrong in the others."""
    cases = list(report.iter("testcase"))
    failed = {case.get("name", "?"): found for case in cases for found in (*case.iter("failure"), *case.iter("error"))}
    passed = len(cases) - len(failed)
    remarks = [f"{passed} of {len(cases)} tests pass."]
    remarks += [f"{name}: {why(found)}" for name, found in failed.items()]
    return {"score": passed / len(cases) if cases else 0.0, "detail": "\n".join(remarks)}


def why(found: ET.Element) -> str:
    """The line of pytest's report that says what went wrong."""
    lines = re.findall(r"^E +(.+)", found.text or "", re.MULTILINE) or (found.get("message") or "?").splitlines()
    return lines[-1 if found.tag == "error" else 0][:200]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
