"""An attempt's own timeout that the store refuses for now is asked for again, less and less often."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from outlast.machine.changes import Code, Refusal
from outlast.runtime.attempts.attempt_timeout import AGAIN_S, SLACK_S, set_alarm
from outlast.runtime.engine import Told


class Asked:
    """An attempt that is over its time, and an engine that answers so many times "not due"."""

    def __init__(self, *answers: Told) -> None:
        self.answers = list(answers)
        self.pauses: list[float] = []
        self.later: list[Callable[[], object]] = []
        self.errands: list[Coroutine[Any, Any, None]] = []
        self.lost: list[str] = []
        self.over = False
        self.execution = SimpleNamespace(namespace="default", id="it", epoch=3, attempt_deadline_at=1_500)
        self.lease = SimpleNamespace(new_id=lambda: "change")
        engine = SimpleNamespace(
            group=SimpleNamespace(now=1_000),
            entropy=SimpleNamespace(random=lambda: 0.5),
            timing=SimpleNamespace(call_later=self.call_later),
            tell=self.tell,
        )
        self.parts = SimpleNamespace(engine=engine)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self.pauses.append(delay_s)
        self.later.append(callback)

    async def tell(self, namespace: str, execution_id: str, fact: Any, *, seen: Any) -> Told:
        assert (namespace, execution_id, fact.epoch, seen) == ("default", "it", 3, self.execution)
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


NOT_YET = Told(None, refusal=Refusal(Code.NOT_DUE, "its time has not come"))


async def test_a_timeout_that_is_not_due_is_asked_for_again_with_longer_and_longer_pauses():
    asked = Asked(*[NOT_YET] * 6, Told(None))
    await asked.until_quiet()
    assert asked.pauses == [0.5 + SLACK_S, *AGAIN_S, AGAIN_S[-1], AGAIN_S[-1]]
    assert list(AGAIN_S) == sorted(set(AGAIN_S)), "each longer than the one before"
    assert asked.lost == ["the attempt timed out"]


async def test_a_timeout_that_is_refused_for_good_ends_the_attempt_here():
    asked = Asked(NOT_YET, Told(None, refusal=Refusal(Code.NOT_HOLDER, "is another's")))
    await asked.until_quiet()
    assert asked.lost == ["the attempt ran out of time, and is not ours any more"]


async def test_what_has_ended_meanwhile_is_not_asked_about():
    asked = Asked()
    asked.over = True
    await asked.until_quiet()
    assert asked.lost == []
