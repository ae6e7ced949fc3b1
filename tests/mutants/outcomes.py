"""A pytest plugin of the mutants' runner: writes what became of each test, and which code was really imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

REPORT = "MUTANTS_REPORT"
"""The environment variable that names the file to write."""

_outcomes: dict[str, dict[str, str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        broke = report.failed and report.when != "call"
        crash = getattr(report.longrepr, "reprcrash", None)
        why = getattr(crash, "message", "").partition("\n")[0]
        if _outcomes.get(report.nodeid, {}).get("outcome") != "failed":
            _outcomes[report.nodeid] = {"outcome": "error" if broke else report.outcome, "why": why}


def pytest_sessionfinish() -> None:
    imported = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "outlast"}
    Path(os.environ[REPORT]).write_text(json.dumps({"imported": imported, "outcomes": _outcomes}))
