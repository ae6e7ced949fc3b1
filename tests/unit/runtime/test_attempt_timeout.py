"""An attempt's own timeout that the store refuses for now is asked for again, less and less often."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from outlast.machine.changes import Code, Refusal
from outlast.runtime.attempts.attempt_timeout import AGAIN_S, SLACK_S, set_alarm
from outlast.runtime.holder import Reply


class Asked:
    """An attempt that is over its time, and a holder that answers so many times "not due"."""

    def __init__(self, *answers: Reply) -> None:
        self.answers = list(answers)
        self.pauses: list[float] = []
        self.later: list[Callable[[], object]] = []
        self.errands: list[Coroutine[Any, Any, None]] = []
        self.lost: list[str] = []
        self.over = False
        self.execution = SimpleNamespace(namespace="default", id="it", epoch=3, attempt_deadline_at=1_500)
        self.lease = SimpleNamespace(new_id=lambda: "change")
        self.parts = SimpleNamespace(
            holder=SimpleNamespace(now=1_000, tell=self.tell),
            entropy=SimpleNamespace(random=lambda: 0.5),
            timing=SimpleNamespace(call_later=self.call_later),
        )

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self.pauses.append(delay_s)
        self.later.append(callback)

    async def tell(self, seen: Any, fact: Any) -> Reply:
        assert (seen, fact.epoch) == (self.execution, 3)
        return self.answers.pop(0)

    def errand(self, coro: Coroutine[Any, Any, None]) -> None:
        self.errands.append(coro)

    def lose(self, why: str) -> None:
        self.lost.append(why)
        self.over = True

    async def until_quiet(self) -> None:
        set_alarm(self)  # type: ignore[arg-type]
        while self.later:
            self.later.pop(0)()
            while self.errands:
                await self.errands.pop(0)


NOT_YET = Reply(False, 1_000, refusal=Refusal(Code.NOT_DUE, "its time has not come"))


async def test_a_timeout_that_is_not_due_is_asked_for_again_with_longer_and_longer_pauses():
    asked = Asked(*[NOT_YET] * 6, Reply(True, 1_000))
    await asked.until_quiet()
    assert asked.pauses == [0.5 + SLACK_S, *AGAIN_S, AGAIN_S[-1], AGAIN_S[-1]]
    assert list(AGAIN_S) == sorted(set(AGAIN_S)), "each longer than the one before"
    assert asked.lost == ["the attempt timed out"]


async def test_a_timeout_that_is_refused_for_good_ends_the_attempt_here():
    asked = Asked(NOT_YET, Reply(False, 1_000, refusal=Refusal(Code.NOT_HOLDER, "is another's")))
    await asked.until_quiet()
    assert asked.lost == ["the attempt ran out of time, and is not ours any more"]


async def test_what_has_ended_meanwhile_is_not_asked_about():
    asked = Asked()
    asked.over = True
    await asked.until_quiet()
    assert asked.lost == []
