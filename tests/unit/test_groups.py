"""Tests that share what is expensive are for one process: in `make test-slow`, which deals them out by groups."""

from __future__ import annotations

import pytest


@pytest.mark.slow
@pytest.mark.xdist_group("one of its own")
def test_the_id_of_a_test_says_its_group_where_tests_are_dealt_out_by_it(request: pytest.FixtureRequest):
    is_dealt_out = request.config.getoption("loadgroup", False)
    assert request.node.nodeid.endswith("@one of its own") == is_dealt_out
