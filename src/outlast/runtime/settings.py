"""What `run_worker` and `app.worker` take, checked when it is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, cast

from outlast import limits
from outlast.errors import InvalidInput
from outlast.model.duration import Duration, to_ms
from outlast.model.names import check_word


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


class WorkerKeywords(TypedDict, total=False):
    """What `run_worker` and `app.worker` take, as it is written."""

    lanes: Iterable[str] | None
    concurrency: int
    capabilities: Iterable[str]
    reconcilers: bool
    drain: Duration
    poll: Duration


class WorkerSettings:
    """What `run_worker` and `app.worker` take."""

    def __init__(
        self,
        *,
        lanes: Iterable[str] | None = None,
        concurrency: int = 100,
        capabilities: Iterable[str] = (),
        reconcilers: bool = True,
        drain: Duration = "30s",
        poll: Duration = "1s",
        **unknown: object,
    ) -> None:
        if unknown:
            known = ", ".join(sorted(WorkerKeywords.__annotations__))
            raise InvalidInput(f"unknown setting {min(unknown)!r} of a worker; known: {known}")
        if not _is_whole(concurrency) or not 1 <= concurrency <= 10_000:
            raise InvalidInput(f"concurrency must be a whole number between 1 and 10,000, not {concurrency!r}")
        if isinstance(lanes, str) or isinstance(capabilities, str):
            raise InvalidInput('lanes and capabilities are collections of words, such as ["default"]')
        if not isinstance(cast("object", reconcilers), bool):
            raise InvalidInput(f"reconcilers must be True or False, not {reconcilers!r}")
        self.lanes = None if lanes is None else tuple(check_word("lane", lane) for lane in lanes)
        if self.lanes == ():
            raise InvalidInput("lanes names no lane: leave it out for those of the app's workflows")
        self.concurrency = concurrency
        self.capabilities = frozenset(check_word("capability", word) for word in capabilities)
        self.reconcilers = reconcilers
        self.drain_ms = to_ms(drain, what="drain")
        self.poll_ms = to_ms(poll, what="poll")
        if self.poll_ms < limits.POLL_MIN_MS:
            raise InvalidInput(f"poll must be at least {limits.POLL_MIN_MS} ms, not {poll!r}")
