"""Pydantic's `ValidationError`, which is made in Rust and has no constructor: kept line by line, and made of them.

Each line is what `error.errors()` says of one trouble. Its input is kept where it is short and plain JSON keeps it,
else as its text; of a model that hides inputs in its errors, none is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

KIND = "pydantic_core._pydantic_core:ValidationError"
LINES_MAX = 20
TEXT_MAX_CHARS = 500
SHOWN_CHARS = 200
PART_MAX_BYTES = 500


class Line(Struct, frozen=True, omit_defaults=True):
    """One trouble; `type` is Pydantic's word for it, and `place` the way to the value that has it."""

    type: str
    place: tuple[str | int, ...]
    message: str
    input: Any = None
    context: dict[str, Any] = {}


class Validation(Struct, frozen=True, omit_defaults=True):
    title: str
    lines: tuple[Line, ...]
    hides_input: bool = False


def validation_of(error: Any, is_kept: Callable[[object], bool], text: Callable[[object, int], str]) -> Validation:
    """`is_kept` says whether JSON keeps a value, `text` is what to keep otherwise."""

    def kept(value: object) -> Any:
        return (
            value if is_kept(value) and len(msgspec.json.encode(value)) <= PART_MAX_BYTES else text(value, SHOWN_CHARS)
        )

    hides_input = "input_value=" not in str(error)
    lines = [
        Line(
            type=text(one["type"], TEXT_MAX_CHARS),
            place=tuple(part if isinstance(part, int) else text(part, TEXT_MAX_CHARS) for part in one["loc"]),
            message=text(one["msg"], TEXT_MAX_CHARS),
            input=None if hides_input else kept(one["input"]),
            context={text(name, TEXT_MAX_CHARS): kept(value) for name, value in one.get("ctx", {}).items()},
        )
        for one in error.errors(include_url=False)[:LINES_MAX]
    ]
    return Validation(text(error.title, TEXT_MAX_CHARS), tuple(lines), hides_input)


def made_again(kind: Any, validation: Validation) -> Exception:
    lines = [_line(kind, line) for line in validation.lines]
    return kind.from_exception_data(validation.title, lines, hide_input=validation.hides_input)


def _line(kind: Any, line: Line) -> dict[str, Any]:
    """The first that says the same: Pydantic's own words if it still has them, else those that were kept."""
    custom = cast("Any", sys.modules["pydantic_core"]).PydanticCustomError
    rest = {"loc": line.place, "input": line.input}
    own = {"type": line.type, "ctx": line.context, **rest}
    kept = {"type": custom(line.type, line.message, line.context), **rest}
    for found in (own, kept):
        try:
            [said] = kind.from_exception_data("", [found]).errors(include_url=False)
        except Exception:  # a type, or a context, that this version of Pydantic does not have
            continue
        if said["msg"] == line.message:
            return found
    return {"type": custom(line.type, line.message), **rest}
