"""The wide values of an execution, kept off its hot row: its input, how far it is, and its output or failure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec
from msgspec import Struct

from outlast.model.record import Key, Record


class Role(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    FAILURE = "failure"
    PROGRESS = "progress"
    STANDSTILL = "standstill"
    """Where the code stands if nothing durable can make it go on."""
    TEMPLATE = "template"
    """The input of a member before its upstreams gave theirs."""


class Payload(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "payload"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "generation", "role")
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"role": Role}

    namespace: str
    execution: str
    generation: int
    role: Role
    value: bytes
    change_id: str


class Standstill(Struct, frozen=True):
    """The code stands at these `lines`. True as long as the lease has this epoch and the journal so many entries."""

    epoch: int
    entries: int
    lines: tuple[str, ...]

    @staticmethod
    def decode(data: bytes) -> Standstill:
        return msgspec.json.decode(data, type=Standstill)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def payload_key(namespace: str, execution: str, generation: int, role: Role) -> Key:
    return Key(Payload.KIND, (namespace, execution, generation, role))
