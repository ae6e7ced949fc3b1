"""What a store keeps: records of a few kinds, each with a key. Fields are plain (str, int, bytes, bool, None).

A kind says which fields are its key, which are times (a change may give them relative to its commit), and whether the
store numbers its records as they are inserted (`seq`, growing in commit order within a partition). Stores read these
declarations instead of knowing the nouns one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

Plain: TypeAlias = str | int | bytes | bool | None


class Now(Struct, frozen=True, gc=False, cache_hash=True):
    """A time relative to the commit that writes it: `Now(5_000)` is five seconds after, by the store's clock."""

    plus_ms: int = 0


NOW = Now()
"""The commit itself. One for all: most records have some."""

Time: TypeAlias = int | Now
"""Milliseconds since 1970 by the store's clock, or relative to the commit. Once stored, always absolute."""


class Key(Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """Names one record: its kind and the values of its key fields."""

    kind: str
    values: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.values))})"


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """The base of all kinds."""

    KIND: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    TIMES: ClassVar[tuple[str, ...]] = ()
    FLAGS: ClassVar[tuple[str, ...]] = ()
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {}
    SEQUENCED: ClassVar[bool] = False

    @property
    def key(self) -> Key:
        return Key(self.KIND, self._key_values(self))

    _key_values: ClassVar[Callable[[Record], tuple[str | int, ...]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        assert len(cls.KEY) > 1, "of one name, `attrgetter` gives no tuple"
        cls._key_values = attrgetter(*cls.KEY)

    @classmethod
    def decode(cls, values: dict[str, Any]) -> Record:
        """A record from what a store read: flags may come back as 0 and 1, words as plain strings."""
        for flag in cls.FLAGS:
            values[flag] = bool(values[flag])
        for name, words in cls.WORDS.items():
            if values[name] is not None:
                values[name] = words(values[name])
        return cls(**values)


def settled(time: Time | None) -> int | None:
    """A stored time as a number: what was read from a store is never relative."""
    assert not isinstance(time, Now), "a relative time was read as if it were stored"
    return time
