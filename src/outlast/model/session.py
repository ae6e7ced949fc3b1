"""A worker's liveness in a partition, on which its leases hang: renewing many leases touches one record.

In partition 0 a worker also says what it offers, so that anybody can tell why something is not claimed. Nothing is
decided by that: claims know what they serve.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from outlast.model.record import Key, Record, Time

OFFERS_PARTITION = 0


class Offer(Struct, frozen=True, kw_only=True):
    """What a worker can run: (workflow, version) pairs of a namespace, in which lanes, with which capabilities."""

    namespace: str
    lanes: tuple[str, ...]
    serves: tuple[tuple[str, str], ...]
    capabilities: tuple[str, ...] = ()


class Session(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "session"
    KEY: ClassVar[tuple[str, ...]] = ("partition", "worker")
    TIMES: ClassVar[tuple[str, ...]] = ("expires_at", "started_at")

    partition: int
    worker: str
    expires_at: Time
    started_at: Time
    offers: str = ""

    @property
    def offer(self) -> Offer | None:
        """None if the worker has not said it."""
        return msgspec.json.decode(self.offers, type=Offer) if self.offers else None


def encode_offer(offer: Offer) -> str:
    return msgspec.json.encode(offer).decode()


def session_key(partition: int, worker: str) -> Key:
    return Key(Session.KIND, (partition, worker))
