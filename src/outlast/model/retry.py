"""When a failed attempt is tried again. The arithmetic is in `machine/backoff.py`."""

from __future__ import annotations

import msgspec

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """At most `max_attempts` tries; between them `initial_ms`, growing by `backoff`, up to `max_delay_ms`.

    `jitter` is the part of each delay that is random: 0.25 means between 75 % and 100 % of it.
    """

    max_attempts: int = 1
    initial_ms: int = 1_000
    backoff: float = 2.0
    max_delay_ms: int = 60_000
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InvalidInput(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.max_attempts > limits.ATTEMPTS_MAX:
            raise LimitExceeded("max_attempts", actual=self.max_attempts, limit=limits.ATTEMPTS_MAX)
        if self.initial_ms < 0 or self.max_delay_ms < 0:
            raise InvalidInput("retry delays must not be negative")
        for what, delay_ms in (("initial", self.initial_ms), ("max_delay", self.max_delay_ms)):
            if delay_ms > limits.DURATION_MAX_MS:
                raise LimitExceeded(what, actual=delay_ms, limit=limits.DURATION_MAX_MS, unit="ms")
        if not 1.0 <= self.backoff <= 1_000.0:
            raise InvalidInput(f"backoff must be between 1 and 1000, not {self.backoff}")
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput(f"jitter must be between 0 and 1, not {self.jitter}")

    def encode(self) -> str:
        return _encoder.encode(self).decode()

    @staticmethod
    def parse(text: str) -> RetryPolicy:
        return _decoder.decode(text)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RetryPolicy)
NO_RETRY = RetryPolicy()
