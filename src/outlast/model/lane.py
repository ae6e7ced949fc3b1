"""The gate of a lane, which a claim consults beside the execution itself."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.record import Key, Record


class Lane(Record, frozen=True, kw_only=True):
    """Kept only for lanes that somebody paused or resumed; a lane without a record is open."""

    KIND: ClassVar[str] = "lane"
    KEY: ClassVar[tuple[str, ...]] = ("partition", "namespace", "lane")
    FLAGS: ClassVar[tuple[str, ...]] = ("paused",)

    partition: int
    namespace: str
    lane: str
    paused: bool


def lane_key(partition: int, namespace: str, lane: str) -> Key:
    return Key(Lane.KIND, (partition, namespace, lane))
