"""What one commit owes to another partition: written with its cause, delivered idempotently, then deleted."""

from __future__ import annotations

from typing import ClassVar

from outlast.model.record import Key, Record, Time

SENT_BY_OUTBOX = ">"
"""The change id of a word through the outbox: the partition of the debt, this mark, an id."""


class Delivery(Record, frozen=True, kw_only=True):
    """A fact for `target`, as bytes that `machine/facts.py` reads back. `source` is the execution that owes it."""

    KIND: ClassVar[str] = "outbox"
    KEY: ClassVar[tuple[str, ...]] = ("partition", "id")
    TIMES: ClassVar[tuple[str, ...]] = ("due_at", "created_at")

    partition: int
    id: str
    namespace: str
    target: str
    source: str = ""
    fact: bytes
    due_at: Time
    tries: int = 0
    error: str | None = None
    created_at: Time
    change_id: str


def delivery_key(partition: int, delivery_id: str) -> Key:
    return Key(Delivery.KIND, (partition, delivery_id))
