"""Parts that are made when they are first asked for."""

from __future__ import annotations

import threading
import time
from typing import Any

from outlast import App
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.current import attempt_var
from outlast.runtime.attempts.late_parts import LatePart

PARTS = ("asked", "giving_up", "hearing", "patches", "performing", "stream", "suspending", "unwinding", "waits")


def made(attempt: LiveAttempt) -> set[str]:
    return {name for name in PARTS if getattr(attempt, f"_{name}") is not None}


class Slow:
    def __init__(self, owner: Any) -> None:
        time.sleep(0.01)  # long enough for others to ask, too


class Owner:
    part = LatePart(Slow)

    def __init__(self) -> None:
        self._part: Slow | None = None


def test_a_part_is_made_once_however_many_ask():
    owner, found, all_here = Owner(), list[Slow](), threading.Barrier(8)

    def ask() -> None:
        all_here.wait()
        found.append(owner.part)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(map(id, found)) == {id(owner.part)}


def test_nothing_is_made_before_somebody_asks():
    assert Owner()._part is None


async def test_an_attempt_has_only_the_parts_that_its_code_uses(tmp_path: Any):
    app = App(f"sqlite:///{tmp_path}/it.db")
    attempts = list[LiveAttempt]()

    def note() -> None:
        attempt = attempt_var.get()
        assert attempt is not None
        attempts.append(attempt)

    @app.step
    async def twice(number: int) -> int:
        return 2 * number

    @app.workflow
    async def plain() -> int:
        note()
        return 1

    @app.workflow
    async def steps() -> int:
        note()
        return await twice(1) + await twice(2)

    async with app:
        assert (await plain(), await steps()) == (1, 6)
    assert [made(attempt) for attempt in attempts] == [set(), {"performing"}]


async def test_nothing_of_the_code_is_kept_while_its_end_is_written(tmp_path: Any):
    app = App(f"sqlite:///{tmp_path}/it.db")
    attempts = list[LiveAttempt]()

    @app.workflow
    async def plain() -> None:
        attempt = attempt_var.get()
        assert attempt is not None
        attempts.append(attempt)

    async with app:
        await plain()
    assert not hasattr(attempts[0], "_code")


def test_who_is_interrupted_while_a_part_is_made_has_the_part_that_was_made_meanwhile():
    """As by a collection of garbage that ends a generator of the code's, which asks for the same part, or another."""

    class Interrupted:
        _one = _other = None

        one: LatePart[Any] = LatePart(lambda attempt: make(attempt))
        other: LatePart[Any] = LatePart(lambda attempt: make(attempt))

    def make(whole: Any) -> object:
        if not asked:
            asked.append("here")
            asked.append(whole.one)
            asked.append(whole.other)
        return object()

    asked: list[Any] = []
    found: list[Any] = []
    whole = Interrupted()
    asks = threading.Thread(target=lambda: found.append(whole.one), daemon=True)
    asks.start()
    asks.join(5)
    assert found, "it waits for itself"
    assert found == [whole.one] == [asked[1]]
    assert asked[2] is whole.other
