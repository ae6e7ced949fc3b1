"""The index of tags: one record per tag of an execution, so that find and filters need not read tag texts."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.record import Key, Record


class Tag(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "tag"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "tag")

    namespace: str
    execution: str
    tag: str
    value: str


def tag_key(namespace: str, execution: str, tag: str) -> Key:
    return Key(Tag.KIND, (namespace, execution, tag))
