"""What an app's codec sealed: a command that is not told the app cannot read it, and writes nothing beside it.

Whether values are sealed is told by the execution's own input, which is an object in JSON otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.model.payload import Payload, Role, payload_key
from outlast.store.port import Store

SEALED = (
    "the values of this execution are sealed by its app's codec, which this command does not have: do it in Python, "
    "with the handle of an app that has the codec"
)


class PlainOnly:
    """The codec of a command that is not told the app: what is sealed it leaves to processes that have the codec."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        if not _is_plain(data, Any):
            raise ValueError(SEALED)
        return data


async def are_sealed(store: Store, namespace: str, execution_id: str, generation: int) -> bool:
    """Of an execution whose journal is of that generation."""
    known = ((generation, Role.INPUT), (1, Role.TEMPLATE))
    found = await store.load([payload_key(namespace, execution_id, *one) for one in known])
    return any(isinstance(one, Payload) and not _is_plain(one.value, dict[str, msgspec.Raw]) for one in found)


def _is_plain(data: bytes, annotation: Any) -> bool:
    try:
        msgspec.json.decode(data, type=annotation)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
