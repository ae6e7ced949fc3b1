"""What all tests share: how they are dealt out to processes, and that changes have the shapes that they declare."""

from __future__ import annotations

import os

import pytest

from outlast.store import checks

checks.SHAPES_CHECKED = "OUTLAST_MUTANT" not in os.environ  # a broken fence is to be noticed by what it lets pass


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of an `xdist_group` are for one process: xdist tells them by the end of their ids.

    xdist 3.8 writes it to a field that pytest has no more since 9.2, and deals them out to all without a word
    (its issue 1386)."""
    if not config.getoption("loadgroup", False):
        return
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and not item.nodeid.endswith(f"@{group.args[0]}"):
            item._id = item.id.parse(f"{item.nodeid}@{group.args[0]}")
