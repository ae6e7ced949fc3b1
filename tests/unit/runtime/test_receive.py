"""Receiving an event that cannot be kept just now: it stays for the next look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outlast.codec.values import Values
from outlast.errors import CodecHookFailed
from outlast.model.event import Event
from outlast.runtime.operations.receive import Receive


class Away:
    """Reads as ever, and cannot write: its key service does not answer."""

    def encode(self, data: bytes) -> bytes:
        raise ConnectionError("no answer")

    def decode(self, data: bytes) -> bytes:
        return data


async def test_an_event_of_another_type_is_put_back_if_its_failure_cannot_be_kept():
    event = Event(
        namespace="default", execution="it", name="go", dedup="a", value=b'"no number"', sent_at=0, change_id="a"
    )
    back = list[tuple[str, str]]()
    mail: Any = SimpleNamespace(
        values=Values(Away()),
        execution=SimpleNamespace(id="it"),
        early=lambda name, until: event,
        put_back=lambda name, dedup: back.append((name, dedup)),
    )
    with pytest.raises(CodecHookFailed):
        Receive("go", int, None).early(mail, cast("Any", "receive 'go'"))
    assert back == [("go", "a")]
