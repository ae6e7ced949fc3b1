"""Whether anybody else listens on this database, as far as one listener has heard. It knows no connection.

Who begins to listen asks who is there, and is answered; so of any two, each hears of somebody: who came first hears the
question, who came later an answer. Somebody who asked, heard the question come back and a while later no answer is
alone, and need not ring. Who is not alone any more tells the others to look at everything: what it wrote until then was
not rung. Who hears of nobody asks again and again: a question may be lost, and who does not hear its own one any more
(it listens at what was the primary, say) does not know who is there.

All hear all that is said, in the same order, and need to know of only one who is there. So one answer is enough,
however many listen: each waits for a while of its own, and keeps silent if somebody else has answered meanwhile. Who
was silent for long is forgotten.
"""

from __future__ import annotations

import math

ASKS, ANSWERS = "who is there?", "here"
"""What listeners say to each other, among the channels of a ring: no channel is named so."""
WORDS = frozenset({ASKS, ANSWERS})
ANSWERED_S = 0.25
"""So long behind the question somebody may still answer. Who answers later is heard then, and polls until then."""
ANSWERS_WITHIN_S = 0.1
SILENT_MAX = 3
"""Who was silent at so many looks has gone. A question that did not come back for so long is not heard."""
_FEW_AT_FIRST = 8
"""The more, the fewer of many answer before they hear who was first."""


class Company:
    def __init__(self) -> None:
        self._silent: dict[str, int] = {}
        """By listener: the looks since something of it was heard."""
        self._owed: set[str] = set()
        """Who has asked, and heard no answer since."""
        self._alone_from_s = math.inf
        self._unheard = 0
        """The looks since the own question came back."""

    def leaves(self) -> None:
        """What is said now is not heard here: nothing is known."""
        self._silent.clear()
        self._owed.clear()
        self._alone_from_s = math.inf

    def asked(self, now_s: float) -> None:
        """The own question came back: it is heard on this bell, by everybody who listens."""
        self._unheard = 0
        self._alone_from_s = min(self._alone_from_s, now_s + ANSWERED_S)

    def hears(self, sender: str, words: set[str]) -> None:
        """Who only rings need not listen."""
        if sender in self._silent or not WORDS.isdisjoint(words):
            self._silent[sender] = 0
        if ASKS in words:
            self._owed.add(sender)
        if ANSWERS in words:
            self._owed &= {sender}  # who asks is not answered by itself

    @property
    def owes(self) -> bool:
        """Whether somebody has asked whom nobody has answered yet."""
        return bool(self._owed)

    def answers(self) -> None:
        self._owed.clear()

    def answers_in_s(self, chance: float) -> float:
        """When to answer, unless somebody else does before; `chance` is between 0 and 1."""
        return ANSWERS_WITHIN_S * chance ** (1 / _FEW_AT_FIRST) if len(self._silent) > 1 else 0.0

    def is_alone(self, now_s: float) -> bool:
        return not self._silent and now_s >= self._alone_from_s and self._unheard < SILENT_MAX

    def looks(self) -> bool:
        """Once in a while: whether to ask, because nobody is known, or all were silent since the last look."""
        self._unheard += 1
        self._silent = {sender: looks + 1 for sender, looks in self._silent.items() if looks < SILENT_MAX}
        return all(looks > 1 for looks in self._silent.values())
