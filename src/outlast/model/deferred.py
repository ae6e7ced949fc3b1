"""A named value, resolved at most once, from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from outlast.model.record import Key, Record, Time


class Resolution(StrEnum):
    RESOLVED = "resolved"
    REJECTED = "rejected"


class Deferred(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "deferred"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "generation", "name")
    TIMES: ClassVar[tuple[str, ...]] = ("resolved_at",)
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"resolution": Resolution}

    namespace: str
    execution: str
    generation: int
    name: str
    resolution: Resolution
    value: bytes | None
    resolved_at: Time
    change_id: str


def deferred_key(namespace: str, execution: str, generation: int, name: str) -> Key:
    return Key(Deferred.KIND, (namespace, execution, generation, name))
