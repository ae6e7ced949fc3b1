"""Where ready work is, as far as that is known without a look at everything. It is a hint and no more.

When nothing was left anywhere and one partition rang since, a claim need not ask the others. What nobody rang for is
found by the next look at everything, which comes at least as often as `OFTEN_S`. Nothing is known unless the last look
at everything found nothing left, for the same kind of request.

When much was left, and nobody rang since, a claim goes on where the last one stopped, in the order that was found, for
`FRESH_S`: a worker that drains a backlog would ask all partitions for each claim. Who rings is looked at first, so what
is more urgent is overtaken only by claims that were under way; this is done only where all bells are heard.
"""

from __future__ import annotations

import time

from msgspec import Struct

from outlast.model.lease import ClaimRequest

OFTEN_S = 1.0
FRESH_S = 0.05

_Asks = tuple[str, tuple[str, ...], frozenset[tuple[str, str]], frozenset[str], int | None]


class Line(Struct):
    """What a look found in a partition, and how much of it a claim has asked for."""

    order: bytes
    partition: int
    count: int
    share: int = 0
    asked_before: bool = False
    suspects: int | None = None


class Near:
    def __init__(self) -> None:
        self.bells = 0
        """So many are heard."""
        self._left: list[Line] = []
        """What the last look at everything found, less what was taken since."""
        self._left_for: _Asks | None = None
        self._rung: set[int] = set()
        self._anywhere = True
        """Somebody rang without saying where, or rings may have been missed."""
        self._empty_for: _Asks | None = None
        self._looked_s = 0.0
        self._claim_id = ""

    def heard(self, partition: int | None) -> None:
        """A bell rang: that of a partition, or one for all of them."""
        if partition is None:
            self._anywhere = True
        else:
            self._rung.add(partition)

    def recalled(self, request: ClaimRequest, partitions: int) -> list[Line]:
        """Where there is work for this request; nothing if that is not known well enough. Whoever asks takes it, and
        says what is `left`."""
        lines, self._left = self._left, []
        fresh = time.monotonic() - self._looked_s < FRESH_S
        rung = self._anywhere or self._rung or self.bells < partitions
        if not lines or rung or not fresh or self._left_for != _asks(request) or request.claim_id == self._claim_id:
            return []
        self._claim_id = request.claim_id
        return [Line(line.order, line.partition, line.count) for line in lines]

    def left(self, lines: list[Line]) -> None:
        """A claim had all that it asked for, and these have more."""
        self._left = lines

    def only(self, request: ClaimRequest) -> int | None:
        """The one partition that can have work for this request; None if all must be asked. Whoever asks must look."""
        self._left_for = _asks(request)
        rung, anywhere = self._rung, self._anywhere
        repeated, self._claim_id = request.claim_id == self._claim_id, request.claim_id
        self._rung, self._anywhere = set(), False
        recent = time.monotonic() - self._looked_s < OFTEN_S
        if anywhere or repeated or not recent or self._empty_for != _asks(request) or len(rung) != 1:
            self._empty_for = None
            return None
        return next(iter(rung))

    def looked(self, request: ClaimRequest, *, nothing_left: bool) -> None:
        """All partitions were asked, since `only` was."""
        self._empty_for = _asks(request) if nothing_left else None
        self._looked_s = time.monotonic()

    def left_some(self) -> None:
        """There may be more where this claim looked."""
        self._empty_for = None


def _asks(request: ClaimRequest) -> _Asks:
    return (request.namespace, request.lanes, request.serves, request.capabilities, request.suspects)
