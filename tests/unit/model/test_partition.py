"""Placement: where an execution lives, for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.partition import partition_of, rendezvous, root_of

# Data was placed by these. If one changes, every store in the world loses its executions: never edit them.
GOLDEN = [
    ("default", "order-42", 12, 60),
    ("default", "order-43", 6, 38),
    ("shop", "order-42", 2, 50),
    ("shop", "cart-7/ship/label", 8, 24),
    ("prod", "nightly-2026-11-15", 15, 47),
    ("default", "日本", 1, 33),
    ("", "", 8, 24),
]


@pytest.mark.parametrize("namespace, id, of_16, of_64", GOLDEN)
def test_a_placement_never_changes(namespace: str, id: str, of_16: int, of_64: int):
    """Settlement 8: partition = hash(namespace, id up to the first `/`) mod P."""
    assert partition_of(namespace, id, 16) == of_16
    assert partition_of(namespace, id, 64) == of_64


@given(st.text(), st.text())
def test_with_one_partition_everything_is_in_it(namespace: str, id: str):
    assert partition_of(namespace, id, 1) == 0


text = st.text(st.characters(codec="utf-8"), max_size=20)


@given(text, text, st.integers(1, 4_096))
def test_a_partition_is_one_of_those_there_are(namespace: str, id: str, partitions: int):
    assert 0 <= partition_of(namespace, id, partitions) < partitions


@given(text, text.filter(lambda name: "/" not in name), st.lists(text, max_size=3))
def test_a_family_lives_together(namespace: str, root: str, names: list[str]):
    child = "/".join([root, *names])
    assert root_of(child) == root
    assert partition_of(namespace, child, 64) == partition_of(namespace, root, 64)


def test_the_border_between_namespace_and_id_matters():
    """("a", "bc") and ("ab", "c") are not one text."""
    here = [partition_of("a", f"b{n}", 1_000_003) for n in range(20)]
    there = [partition_of("ab", f"{n}", 1_000_003) for n in range(20)]
    assert not set(here) & set(there)
    assert partition_of("1:a", "b", 1_000_003) != partition_of("1", "a:b", 1_000_003)


def test_executions_spread_evenly():
    """64,000 ids over 64 partitions: about 1,000 each; chance alone stays within five deviations (158)."""
    counts = Counter(partition_of("default", f"order-{n}", 64) for n in range(64_000))
    assert len(counts) == 64
    assert max(counts.values()) < 1_160
    assert min(counts.values()) > 840


# ---- rendezvous ---------------------------------------------------------------------------------------------------

WORKERS = [f"worker-{n}" for n in range(8)]


def test_without_workers_nobody_repairs():
    assert rendezvous(0, []) is None


def test_everyone_agrees_whatever_the_order_they_see():
    assert [rendezvous(p, WORKERS) for p in range(64)] == [rendezvous(p, WORKERS[::-1]) for p in range(64)]


def test_every_worker_gets_a_share():
    shares = Counter(rendezvous(p, WORKERS) for p in range(512))
    assert set(shares) == set(WORKERS)
    assert max(shares.values()) < 2 * 512 / 8


@pytest.mark.parametrize("leaver", WORKERS)
def test_when_a_worker_leaves_only_its_own_partitions_move(leaver: str):
    """Rule 9: ownership is advisory, so few should move when workers change."""
    rest = [worker for worker in WORKERS if worker != leaver]
    for partition in range(256):
        owner = rendezvous(partition, WORKERS)
        assert rendezvous(partition, rest) == owner or owner == leaver
