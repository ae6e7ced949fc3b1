"""Written in the same commit as a terminal status, once per generation; it drives parents, flows and subscribers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from outlast.model.record import Key, Record, Time
from outlast.model.status import Status


class Completion(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "completion"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "generation")
    TIMES: ClassVar[tuple[str, ...]] = ("finished_at",)
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"status": Status}
    SEQUENCED: ClassVar[bool] = True

    namespace: str
    execution: str
    generation: int
    status: Status
    cause: str | None
    workflow: str
    tags: str
    finished_at: Time
    seq: int = 0
    change_id: str

    @property
    def tag_map(self) -> dict[str, str]:
        return msgspec.json.decode(self.tags, type=dict[str, str])


def completion_key(namespace: str, execution: str, generation: int) -> Key:
    return Key(Completion.KIND, (namespace, execution, generation))
