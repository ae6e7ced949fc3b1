"""Where ready work is, when nothing was left anywhere and one partition rang since: a claim need not ask the others.

It is a hint and no more. What nobody rang for is found by the next look at everything, which comes at least as often as
`OFTEN_S`. Nothing is known unless the last look at everything found nothing left, for the same kind of request.
"""

from __future__ import annotations

import time

from outlast.store.port import ClaimRequest

OFTEN_S = 1.0

_Asks = tuple[str, tuple[str, ...], frozenset[tuple[str, str]], frozenset[str], int | None]


class Near:
    def __init__(self) -> None:
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

    def only(self, request: ClaimRequest) -> int | None:
        """The one partition that can have work for this request; None if all must be asked. Whoever asks must look."""
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
