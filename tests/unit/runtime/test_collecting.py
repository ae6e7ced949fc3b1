"""A process that runs executions collects garbage seldom, and leaves the collector as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from outlast import App
from outlast.runtime.collecting import FROZEN_BY_PYTHON, YOUNG, YOUNG_EACH, room_for, seldom_collecting


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
        assert gc.get_freeze_count() > FROZEN_BY_PYTHON
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() <= FROZEN_BY_PYTHON


def test_young_objects_have_the_room_that_executions_under_way_need():
    gc.set_threshold(700, 10, 10)
    with room_for(20):
        assert gc.get_threshold() == (20 * YOUNG_EACH, 10, 10)
        assert gc.get_freeze_count() <= FROZEN_BY_PYTHON
    with room_for(5_000):
        assert gc.get_threshold() == (YOUNG, 10, 10)
    with room_for(1):
        assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_of_several_that_are_open_the_most_demanding_counts_in_whatever_order_they_close():
    gc.set_threshold(700, 10, 10)
    first, second = room_for(50), room_for(20)
    first.__enter__()
    second.__enter__()
    assert gc.get_threshold() == (50 * YOUNG_EACH, 10, 10)
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (20 * YOUNG_EACH, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_who_sets_a_threshold_of_their_own_meanwhile_keeps_it():
    gc.set_threshold(700, 10, 10)
    with room_for(50):
        gc.set_threshold(900, 5, 5)
        with room_for(100):
            assert gc.get_threshold() == (900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)
    with room_for(50):
        assert gc.get_threshold() == (50 * YOUNG_EACH, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)


@pytest.mark.parametrize("seldom, young", [(True, 30 * YOUNG_EACH), (False, 700)])
async def test_an_open_app_asks_for_the_room_of_its_worker(tmp_path: Path, seldom: bool, young: int):
    gc.set_threshold(700, 10, 10)
    app = App(f"sqlite:///{tmp_path / 'outlast.db'}", collect_seldom=seldom)
    async with app.worker(concurrency=30):
        assert gc.get_threshold() == (young, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)
    async with app.client():
        assert gc.get_threshold() == (700, 10, 10)


def test_what_was_frozen_before_stays_so():
    gc.freeze()
    with seldom_collecting():
        pass
    assert gc.get_freeze_count() > FROZEN_BY_PYTHON


def test_what_was_frozen_before_outlast_was_imported_stays_so():
    code = (
        "import gc; gc.freeze(); before = gc.get_freeze_count()\n"
        "from outlast.runtime.collecting import seldom_collecting\n"
        "with seldom_collecting(): pass\n"
        "assert gc.get_freeze_count() >= before, 'it was let go'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 20, 5)])
def test_who_set_a_threshold_of_their_own_keeps_it(own: tuple[int, int, int]):
    gc.set_threshold(*own)
    with room_for(100), seldom_collecting():
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
