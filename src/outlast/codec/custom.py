"""Types that msgspec leaves to hooks: Pydantic models (without importing Pydantic) and paths."""

from __future__ import annotations

from pathlib import PurePath
from types import GenericAlias
from typing import Any, cast

import msgspec

from outlast.codec.annotations import name_of
from outlast.codec.references import Placeholder


def to_plain(value: Any) -> Any:
    """What to write for a value of a type that msgspec does not know."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Placeholder):
        raise TypeError(f"{value!r} is not known yet")
    if is_model(value):
        return msgspec.Raw(_written(value))
    raise TypeError("no kind of value that Outlast stores")


def to_builtins(value: Any) -> Any:
    """The same in builtin types, whose sets and dicts can still be put in order."""
    if is_model(value) and not isinstance(value, Placeholder):
        return value.model_dump(by_alias=False, round_trip=True)
    return to_plain(value)


def from_plain(annotation: Any, value: Any) -> Any:
    """A value of a type that msgspec does not know, from what was written for it."""
    if annotation is object:
        return value
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{type(value).__qualname__}`")
        return annotation(value)
    if isinstance(annotation, type) and is_model(cast("object", annotation)):
        # As JSON: a strict model takes a string for a date from there only.
        return cast("Any", annotation).model_validate_json(msgspec.json.encode(value), by_name=True, by_alias=True)
    raise NotImplementedError(f"{name_of(annotation)} is no kind of value that Outlast reads")


def through_json(model: Any) -> Any:
    """A model as its own class reads what it writes."""
    return from_plain(type(model), msgspec.json.decode(_written(model)))


def can_write(model: Any, field: str | None = None) -> bool:
    """Whether a model can be written, or that field of it."""
    try:
        _written(model, None if field is None else {field})
    except Exception:
        return False
    return True


def _written(model: Any, fields: set[str] | None = None) -> bytes:
    return model.model_dump_json(by_alias=False, round_trip=True, include=fields).encode()


def anything_for_object(annotation: Any) -> Any:
    """`dict[str, object]` as `dict[str, Any]`, which msgspec reads by itself, without asking for every value."""
    if annotation is object:
        return Any
    if type(annotation) is GenericAlias and annotation.__args__:
        origin: Any = annotation.__origin__
        return origin[tuple(anything_for_object(one) for one in annotation.__args__)]
    return annotation


def is_model(kind: object) -> bool:
    """A model, or its class."""
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")
