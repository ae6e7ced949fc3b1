"""Exceptions of every awkward kind."""

from __future__ import annotations

from decimal import Decimal
from typing import Any


class Plain(Exception):
    pass


class Attributed(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Picky(Exception):
    """A constructor that must not run again: it has an effect."""

    made = 0

    def __init__(self, one: int, two: int, three: int) -> None:
        type(self).made += 1
        super().__init__(one)


class New(Exception):
    def __new__(cls, only: str, more: int):
        return super().__new__(cls, only)

    def __init__(self, only: str, more: int) -> None:
        super().__init__(only)


class Priced(Exception):
    def __init__(self, price: Decimal) -> None:
        super().__init__(price)
        self.price = price


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class NeedsMore(Exception):
    def __init__(self, response: object) -> None:
        super().__init__("bad response")
        self.response = response

    def __str__(self) -> str:
        return f"status {self.response.status}"  # type: ignore[attr-defined]


class Slotted(Exception):
    __slots__ = ("code",)


class Frozen(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class Outer:
    class Inner(Exception):
        pass

    def method(self) -> None: ...


class Group(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Group:
        return Group(self.message, excs)


class Stop(BaseException):
    pass


class NotAnError:
    made = 0

    def __init__(self, *args: object) -> None:
        type(self).made += 1
