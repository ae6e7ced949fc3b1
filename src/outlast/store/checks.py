"""What a store may be asked, checked the same way before every store does anything."""

from __future__ import annotations

from collections.abc import Sequence

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.machine.changes import Changes
from outlast.model.lease import ClaimRequest
from outlast.model.names import check_name, check_word


def check_limit(what: str, limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise InvalidInput(f"{what}: limit must be between 1 and {most:,}, not {limit}")


def check_batch(batch: Sequence[Changes]) -> None:
    _at_most("batch", len(batch), limits.BATCH_MAX_CHANGES, "changes")
    most = limits.CHANGES_MAX_WRITES
    for changes in batch:
        if len(changes.guards) + len(changes.writes) > most:
            size = len(changes.guards) + len(changes.writes)
            raise LimitExceeded("one change", actual=size, limit=most, unit="guards and writes")


def check_claim(request: ClaimRequest) -> None:
    check_lease(request.worker, request.lease_ttl_ms)
    check_limit("claim", request.limit, limits.CLAIM_MAX)
    if not request.lanes or not request.claim_id:
        raise InvalidInput("a claim needs lanes and a claim id")
    if not 1 <= request.leap <= limits.LEAP_MAX:
        raise InvalidInput(f"a claim's leap must be between 1 and {limits.LEAP_MAX:,}, not {request.leap}")
    _at_most("lanes", len(request.lanes), limits.LANES_MAX, "lanes")
    for lane in request.lanes:
        check_word("lane", lane)


def check_lease(worker: str, lease_ttl_ms: int) -> None:
    check_name("worker", worker)
    least, most = limits.LEASE_TTL_MIN_MS, limits.LEASE_TTL_MAX_MS
    if not least <= lease_ttl_ms <= most:
        raise InvalidInput(f"lease_ttl must be between {least} and {most:,} ms, not {lease_ttl_ms}")


def check_frames(frames: Sequence[bytes]) -> None:
    check_limit("append", len(frames), limits.BATCH_MAX_CHANGES)
    for frame in frames:
        _at_most("frame", len(frame), limits.FRAME_MAX_BYTES, "bytes")


def _at_most(what: str, actual: int, limit: int, unit: str) -> None:
    if actual > limit:
        raise LimitExceeded(what, actual=actual, limit=limit, unit=unit)
