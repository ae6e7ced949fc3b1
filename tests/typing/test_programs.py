"""The types that a user's editor sees, checked by pyright as a user would run it, once for all programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
EXPECTATION = re.compile(r"# (?P<kind>reveals|error): (?P<what>.*?)\s*$")
REVEALED = re.compile(r'^Type of ".*" is "(?P<type>.*)"$', re.DOTALL)

Finding = tuple[str, int, str, str]
"""(file, line, "reveals" or "error", what)"""


def expected() -> set[Finding]:
    found: set[Finding] = set()
    for path in sorted(PROGRAMS.glob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = EXPECTATION.search(line)
            if match and "`#" not in line:
                found.add((path.name, number, match["kind"], match["what"]))
    return found


def reported() -> set[Finding]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(PROGRAMS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(answer.stdout)
    assert report["summary"]["filesAnalyzed"], answer.stderr
    found: set[Finding] = set()
    for finding in report["generalDiagnostics"]:
        line = finding["range"]["start"]["line"] + 1
        name = Path(finding["file"]).name
        if finding["severity"] == "information":
            match = REVEALED.match(finding["message"])
            assert match, finding["message"]
            found.add((name, line, "reveals", match["type"]))
        else:
            found.add((name, line, "error", finding.get("rule", finding["message"])))
    return found


@pytest.mark.slow
def test_pyright_sees_the_types_that_the_programs_say():
    wanted, found = expected(), reported()
    assert len(wanted) > 70
    missing = [f"{file}:{line}: expected, not found: {kind} {what}" for file, line, kind, what in wanted - found]
    surplus = [f"{file}:{line}: found, not expected: {kind} {what}" for file, line, kind, what in found - wanted]
    assert not missing + surplus, "\n".join(sorted(missing + surplus))
