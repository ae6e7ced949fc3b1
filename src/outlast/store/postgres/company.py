"""Whether anybody else listens on this database, as far as one listener has heard. It knows no connection.

Who begins to listen asks who is there, and everybody who listens answers; so of any two, each knows the other: who came
first hears the question, who came later the answer. Somebody who asked, heard the question come back and a while later
no answer is alone, and need not ring. Who is not alone any more tells the others to look at everything: what it wrote
until then was not rung. Who says nothing for long is asked again, and then forgotten.
"""

from __future__ import annotations

import math

ASKS, ANSWERS = "who is there?", "here"
"""What listeners say to each other, among the channels of a ring: no channel is named so."""
WORDS = frozenset({ASKS, ANSWERS})
ANSWERED_S = 0.25
"""So long behind the question somebody may still answer. Who answers later is heard then, and polls until then."""
SILENT_MAX = 3
"""Who was silent at so many looks has gone."""


class Company:
    def __init__(self) -> None:
        self._silent: dict[str, int] = {}
        """By listener: the looks since something of it was heard."""
        self._alone_from_s = math.inf

    def leaves(self) -> None:
        """What is said now is not heard here: nothing is known."""
        self._silent.clear()
        self._alone_from_s = math.inf

    def asked(self, now_s: float) -> None:
        """The own question came back: it is heard on this bell, by everybody who listens."""
        self._alone_from_s = min(self._alone_from_s, now_s + ANSWERED_S)

    def hears(self, sender: str, words: set[str]) -> None:
        """Who only rings need not listen."""
        if sender in self._silent or not WORDS.isdisjoint(words):
            self._silent[sender] = 0

    def is_alone(self, now_s: float) -> bool:
        return not self._silent and now_s >= self._alone_from_s

    def looks(self) -> bool:
        """Once in a while: whether somebody was silent since the last look, and is to be asked."""
        self._silent = {sender: looks + 1 for sender, looks in self._silent.items() if looks < SILENT_MAX}
        return any(looks > 1 for looks in self._silent.values())
