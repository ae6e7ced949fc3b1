"""How a child ended, as its parent keeps it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from outlast.model.status import Status


class ChildEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`value` is its output or its failure; None if it has neither (cancelled, expired, or never started). `reason` is
    what was said with the cancel that ended it; it is read from the child itself, and not known of one that is purged.
    """

    status: Status
    cause: str | None = None
    value: bytes | None = None
    reason: str = ""

    def encode(self) -> bytes:
        return _encoder.encode(self)

    @staticmethod
    def decode(data: bytes) -> ChildEnd:
        return _decoder.decode(data)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ChildEnd] = msgspec.msgpack.Decoder(ChildEnd)
