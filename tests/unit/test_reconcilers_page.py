"""The table of reconcilers in the docs is generated."""

from __future__ import annotations

from pathlib import Path

from outlast.reconcilers.page import table, with_table
from outlast.reconcilers.table import ROWS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")


def test_the_committed_table_is_the_generated_one():
    assert table() in PAGE, "run `make docs`"
    assert with_table(PAGE) == PAGE


def test_every_row_is_in_it():
    assert [line.split("`")[1] for line in table().splitlines()[2:]] == [row.name for row in ROWS]
