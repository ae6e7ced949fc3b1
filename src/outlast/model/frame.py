"""One entry of a stream: bytes that an execution emitted, numbered from 1 in the order of their commits."""

from __future__ import annotations

from msgspec import Struct


class Frame(Struct, frozen=True):
    seq: int
    at: int
    value: bytes
