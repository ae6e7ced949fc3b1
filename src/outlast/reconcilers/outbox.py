"""Deliver what a commit owes to another execution. Done twice is done once: the fact itself is idempotent."""

from __future__ import annotations

import logging

import msgspec

from outlast.errors import OutlastError
from outlast.model.outbox import Delivery
from outlast.runtime.engine import Engine

_log = logging.getLogger(__name__)

FIRST_DELAY_MS = 1_000
MAX_DELAY_MS = 5 * 60 * 1_000


async def deliver(engine: Engine, delivery: Delivery) -> bool:
    """Delivered, or refused by a target that has ended or is gone: nothing is owed any more.

    What can't be read is struck off, or it would be owed for ever; what fails is owed until later. Both are errors.
    """
    try:
        await engine.deliver(delivery)
    except msgspec.DecodeError as error:
        _log.error("outbox %s for %s cannot be read (%s): struck off", delivery.id, delivery.target, error)
        await engine.strike(delivery)
        raise
    except OutlastError as error:
        delay_ms = min(FIRST_DELAY_MS * 2 ** min(delivery.tries, 20), MAX_DELAY_MS)
        await engine.postpone(delivery, error=str(error), delay_ms=delay_ms)
        raise
    return True
