"""What can be said to an execution, as facts: the same whether a client says it or another workflow's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from outlast.codec.failures import encode_failure, failure_of
from outlast.codec.values import Values
from outlast.errors import DeferredRejected, InvalidInput
from outlast.machine import facts
from outlast.model.deferred import Resolution
from outlast.model.event import UPDATE
from outlast.model.names import INTERRUPT, check_shown_text, check_user_name
from outlast.runtime.attempts.asked import question

EventOf: TypeAlias = Callable[[str], facts.EventSent]
ResolutionOf: TypeAlias = Callable[[str], facts.DeferredResolved]
CancelOf: TypeAlias = Callable[[str], facts.CancelRequested]
"""Under a change id."""


def event_sent(values: Values, name: str, value: Any, key: str | None) -> EventOf:
    data = values.encode(value, f"event {check_user_name('event', name)!r}")
    return lambda change_id: facts.EventSent(change_id=change_id, name=name, value=data, dedup=key)


def updated(values: Values, name: str, value: Any, key: str | None) -> EventOf:
    data = question(values, check_user_name("update", name), value)
    return lambda change_id: facts.EventSent(change_id=change_id, name=UPDATE, value=data, dedup=key)


def resolved(values: Values, name: str, value: Any) -> ResolutionOf:
    data = values.encode(value, f"deferred {name!r}")
    return _resolution(check_user_name("deferred", name), Resolution.RESOLVED, data)


def rejected(values: Values, name: str, why: str | Exception) -> ResolutionOf:
    if not isinstance(cast("object", why), str | Exception):
        raise InvalidInput(f"a deferred is rejected with a text or an exception, not {why!r}")
    error = why if isinstance(why, Exception) else DeferredRejected(why)
    data = values.seal(encode_failure(failure_of(error)))
    return _resolution(check_user_name("deferred", name), Resolution.REJECTED, data)


def interrupted(values: Values) -> ResolutionOf:
    return _resolution(INTERRUPT, Resolution.RESOLVED, values.encode(None, "interrupt"))


def cancelled(reason: str) -> CancelOf:
    """Checked here and not by the fact: what was stored before must still be read."""
    check_shown_text("cancel reason", facts.CancelRequested(change_id="", reason=reason).reason)
    return lambda change_id: facts.CancelRequested(change_id=change_id, reason=reason)


def _resolution(name: str, resolution: Resolution, data: bytes) -> ResolutionOf:
    return lambda change_id: facts.DeferredResolved(change_id=change_id, name=name, value=data, resolution=resolution)
