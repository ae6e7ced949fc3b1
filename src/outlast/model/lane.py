"""Gates that a claim consults besides the execution itself: its lane, and the permits of its quota in a partition."""

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


class Quota(Record, frozen=True, kw_only=True):
    """Permits that claims in this partition may still take; a lease gives its permit back when it ends."""

    KIND: ClassVar[str] = "quota"
    KEY: ClassVar[tuple[str, ...]] = ("partition", "namespace", "name")

    partition: int
    namespace: str
    name: str
    free: int


def lane_key(partition: int, namespace: str, lane: str) -> Key:
    return Key(Lane.KIND, (partition, namespace, lane))


def quota_key(partition: int, namespace: str, name: str) -> Key:
    return Key(Quota.KIND, (partition, namespace, name))
