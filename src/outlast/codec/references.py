"""References to what a member of a flow will leave, and what authors write them with."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

PathPart = str | int


class Reference(Struct, frozen=True, gc=False):
    """A place in a template: the `output` of one upstream, or the part of it at `path`; its `failure`; the `outputs` of
    several, as a list."""

    what: str
    upstreams: tuple[str, ...]
    path: tuple[PathPart, ...] = ()


class Placeholder:
    """What authors write a reference with. Not a type that anything else can encode."""

    __slots__ = ("_reference",)

    def __init__(self, reference: Reference) -> None:
        self._reference = reference  # no other name: a user's fields may have any

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} is not known yet")


def reference_of(placeholder: Placeholder) -> Reference:
    return placeholder._reference  # pyright: ignore[reportPrivateUsage]
