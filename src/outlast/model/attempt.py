"""One try at running an execution. It spans suspensions: waiting is not an attempt of its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from outlast.model.record import Key, Record, Time


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


class Attempt(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "attempt"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "generation", "number")
    TIMES: ClassVar[tuple[str, ...]] = ("started_at", "ended_at")
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"outcome": Outcome}

    namespace: str
    execution: str
    generation: int
    number: int
    epoch: int
    worker: str
    started_at: Time
    ended_at: Time | None = None
    outcome: Outcome | None = None
    failure: bytes | None = None
    change_id: str


def attempt_key(namespace: str, execution: str, generation: int, number: int) -> Key:
    return Key(Attempt.KIND, (namespace, execution, generation, number))
