"""The store that tests of this folder run on unless their file says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.sqlite_harness import SqliteHarness


@pytest.fixture
def harness(tmp_path: Path) -> SqliteHarness:
    return SqliteHarness(tmp_path)
