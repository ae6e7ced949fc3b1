"""`Retry(max_attempts=5, initial="200ms", backoff=2.0, max_delay="30s", fatal=(CardDeclined,))`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from outlast.errors import InvalidInput
from outlast.model.duration import Duration, to_ms
from outlast.model.retry import RetryPolicy

MAX_DELAY_MS = 60_000


def _is_number(value: object, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


@dataclass(frozen=True)
class Retry:
    """When to try again, and which errors make it pointless.

    At most `max_attempts` tries; between them `initial`, growing by `backoff` up to `max_delay` (a minute, or `initial`
    if that is longer), of which the part `jitter` is random. Errors of the types in `fatal` are not retried,
    nor groups that have one.
    """

    max_attempts: int = 3
    initial: Duration = "1s"
    backoff: float = 2.0
    max_delay: Duration | None = None
    jitter: float = 0.25
    fatal: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        """Complains here, not at the first failure."""
        if not _is_number(self.max_attempts, int):
            raise InvalidInput(f"max_attempts must be a whole number, not {self.max_attempts!r}")
        for name in ("backoff", "jitter"):
            if not _is_number(getattr(self, name), int | float):
                raise InvalidInput(f"{name} must be a number, not {getattr(self, name)!r}")
        if not isinstance(cast("object", self.fatal), tuple) or not all(map(_is_error, self.fatal)):
            raise InvalidInput(f"fatal must be a tuple of exception types, such as (CardDeclined,), not {self.fatal!r}")
        self.policy()

    def policy(self) -> RetryPolicy:
        initial_ms = to_ms(self.initial, what="initial")
        if self.max_delay is None:
            max_delay_ms = max(initial_ms, MAX_DELAY_MS)  # nobody who says "1h" means a minute
        else:
            max_delay_ms = to_ms(self.max_delay, what="max_delay")
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_ms=initial_ms,
            backoff=self.backoff,
            max_delay_ms=max_delay_ms,
            jitter=self.jitter,
        )


ONCE = Retry(max_attempts=1)


def check_retry(retry: object) -> Retry:
    """None means once."""
    if retry is None:
        return ONCE
    if not isinstance(retry, Retry):
        raise InvalidInput(f"retry must be a Retry, such as Retry(max_attempts=3), not {retry!r}")
    return retry
