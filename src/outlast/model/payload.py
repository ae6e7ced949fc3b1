"""The wide values of an execution, kept off its hot row: its input, its progress, and its output or failure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from outlast.model.record import Key, Record


class Role(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    FAILURE = "failure"
    PROGRESS = "progress"
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


def payload_key(namespace: str, execution: str, generation: int, role: Role) -> Key:
    return Key(Payload.KIND, (namespace, execution, generation, role))
