"""The table of reconcilers in the docs is generated."""

from __future__ import annotations

from pathlib import Path

from outlast.reconcilers.page import table, with_table
from outlast.reconcilers.table import ROWS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "workers.md").read_text(encoding="utf-8")


def test_the_committed_table_is_the_generated_one():
    assert table() in PAGE, "run `make docs`"
    assert with_table(PAGE) == PAGE


def test_every_row_is_in_it():
    assert [line.split("`")[1] for line in table().splitlines()[2:]] == [row.name for row in ROWS]


def test_the_page_of_options_names_each_as_its_variables_do():
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert [row.name for row in ROWS if f"`{row.name.upper()}`" not in page] == []
