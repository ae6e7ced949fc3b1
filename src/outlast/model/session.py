"""A worker's liveness in a partition, on which its leases hang: renewing many leases touches one record."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.record import Key, Record, Time


class Session(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "session"
    KEY: ClassVar[tuple[str, ...]] = ("partition", "worker")
    TIMES: ClassVar[tuple[str, ...]] = ("expires_at", "started_at")

    partition: int
    worker: str
    expires_at: Time
    started_at: Time


def session_key(partition: int, worker: str) -> Key:
    return Key(Session.KIND, (partition, worker))
