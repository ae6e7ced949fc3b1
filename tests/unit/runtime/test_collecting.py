"""A worker process collects garbage seldom, and leaves the collector as it was."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from outlast.runtime.collecting import YOUNG, seldom_collecting


@pytest.fixture(autouse=True)
def as_it_was() -> Generator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_young_objects_are_looked_at_seldom_until_it_ends():
    gc.set_threshold(700, 10, 10)
    with seldom_collecting():
        assert gc.get_threshold() == (YOUNG, 10, 10)
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


def test_what_was_frozen_before_stays_so():
    gc.freeze()
    with seldom_collecting():
        pass
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 20, 5)])
def test_who_set_a_threshold_of_their_own_keeps_it(own: tuple[int, int, int]):
    gc.set_threshold(*own)
    with seldom_collecting():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_circles_are_still_collected():
    class Circle:
        alive = 0

        def __init__(self) -> None:
            Circle.alive += 1
            self.itself = self

        def __del__(self) -> None:
            Circle.alive -= 1

    with seldom_collecting():
        for _ in range(3 * YOUNG):
            Circle()
        assert Circle.alive <= YOUNG
