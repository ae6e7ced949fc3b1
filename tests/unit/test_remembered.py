"""What is remembered of a thing is of that thing, and there is an end to it."""

from __future__ import annotations

import pytest

from outlast.store.remembered import Remembered


def test_it_is_made_once_for_each():
    asked: list[list[int]] = []

    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    remembered = Remembered(total, most=10)
    one, equal, other = [1, 2], [1, 2], [4]
    assert [remembered(one), remembered(one), remembered(equal), remembered(other)] == [3, 3, 3, 4]
    assert [id(numbers) for numbers in asked] == [id(one), id(equal), id(other)]


def test_what_nobody_else_holds_is_not_taken_for_what_comes_in_its_place():
    remembered = Remembered(tuple[int, ...], most=1_000)
    assert [remembered([number]) for number in range(500)] == [(number,) for number in range(500)]


def test_it_forgets_when_it_has_too_many():
    made = 0

    def count(_: object) -> int:
        nonlocal made
        made += 1
        return made

    remembered = Remembered(count, most=3)
    things = [object() for _ in range(4)]
    assert [remembered(thing) for thing in things] == [1, 2, 3, 4]
    assert [remembered(thing) for thing in (things[3], things[0])] == [4, 5]


def test_what_cannot_be_made_is_refused_for_its_own_reason():
    with pytest.raises(ZeroDivisionError) as refused:
        Remembered(lambda thing: 1 // 0, most=3)((1, 2))
    assert refused.value.__context__ is None
