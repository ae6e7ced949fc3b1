"""Walks over values, for people: where in a value is the part that cannot be stored, or would come back changed?

Only on the way to an error, or for values that Python does not call equal: the usual value is never walked.
"""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, cast

import msgspec

from outlast.codec.custom import can_write, is_model, through_json

DEPTH_MAX = 200
SHOWN_CHARS = 60

_SCALARS = (str, int, float, bytes, bytearray, date, datetime, time, timedelta, uuid.UUID, Enum, type(None))


class Change(NamedTuple):
    """At `path`, `before` was given and `after` would come back. `advice` is for the few that ask for one."""

    path: str
    before: str
    after: str
    advice: str = ""

    def told(self) -> str:
        text = f"{self.path} would not come back as it is: {self.before} as {self.after}"
        return f"{text}; {self.advice}" if self.advice else text


def parts_of(value: object) -> list[tuple[str, object]]:
    """What a value is made of, each part with its way there: `[3]`, `['key']`, `.name`."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in cast("Mapping[object, object]", value).items()]
    names = _field_names(value)
    if names:
        return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(cast("list[object]", value))]
    return []


def _keys_of(value: object) -> list[object]:
    return list(cast("Mapping[object, object]", value)) if isinstance(value, Mapping) else []


def culprit_in(value: object, path: str, can_encode: Callable[[object], bool]) -> tuple[str, object]:
    """The innermost part that cannot be encoded, and where it is; of a cyclic value, the first that closes a circle."""
    above: list[int] = []
    while len(above) < DEPTH_MAX and id(value) not in above:
        above.append(id(value))
        for key in _keys_of(value):
            if not can_encode({key: None}):
                return f"key {_shown(key)} of {path}", key
        if is_model(value):
            can_encode = _as_far_as_models_tell
        for step, part in parts_of(value):
            if not (can_write(value, step[1:]) if is_model(value) else can_encode(part)):
                path, value = path + step, part
                break
        else:
            return path, value
    return path, value


def _as_far_as_models_tell(part: object) -> bool:
    """Inside of a Pydantic model: only it knows how its parts are written, but for the models among them."""
    return not is_model(part) or can_write(part)


def unstorable_in(value: object, path: str, *, depth: int = 0) -> str | None:
    """What JSON would write as something else without complaint: NaN, infinity, keys that it makes one, a secret."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value}, which JSON does not have: use None, a string, or Decimal({str(value)!r})"
    if depth > DEPTH_MAX:
        return None
    keys = _keys_of(value)
    if keys and len({next(iter(msgspec.to_builtins({key: None}, str_keys=True))) for key in keys}) < len(keys):
        return f"{path} has keys that are the same in JSON, such as 1 and '1'"
    for step, part in parts_of(value):
        if isinstance(part, str | int | None):
            continue
        found = unstorable_in(part, path + step, depth=depth + 1)
        if found is not None:
            return found
    change = _left_out_of_model(value, path) if is_model(value) else _left_out_of_attrs(value, path)
    return change.told() if change is not None and change.advice else None


def _left_out_of_model(model: object, path: str) -> Change | None:
    """A secret, or a private attribute: no reader could know them. Else the reader has its own say."""
    try:
        return change_in(model, through_json(model), path)
    except Exception:  # nothing that its own class reads, but another may
        return None


def _left_out_of_attrs(value: object, path: str) -> Change | None:
    """A private field: msgspec does not write those of attrs classes. One that has its default comes back by itself."""
    for field in getattr(type(value), "__attrs_attrs__", ()):
        name, default = field.name, field.default
        if not name.startswith("_") or not hasattr(value, name):
            continue
        if hasattr(default, "factory"):
            default = default.factory(value) if default.takes_self else default.factory()
        before = getattr(value, name)
        if not equal(before, default):
            after = "nothing" if default is sys.modules["attr"].NOTHING else _shown(default)
            return Change(f"{path}.{name}", _shown(before), after, _PRIVATE_FIELD)
    return None


def change_in(before: object, after: object, path: str, *, depth: int = 0) -> Change | None:
    """Where what would come back differs from what was given; None if it is the same for all that code can tell."""
    if equal(before, after) or depth > DEPTH_MAX:
        return None
    if type(before) is type(after) and isinstance(before, _SCALARS):
        return _change(before, after, path)
    match before, after:
        case Decimal(), Decimal() if str(before) == str(after):  # NaN is not equal to itself
            return None
        case Mapping(), Mapping():
            return _change_in_mapping(cast("Any", before), cast("Any", after), path, depth)
        case dict(), _ if _field_names(after):
            return _change_to_object(cast("Any", before), after, path)
        case list() | tuple(), list() | tuple():
            return _change_in_sequence(cast("Any", before), cast("Any", after), path, depth)
        case list() | tuple(), AbstractSet():
            return None  # plain JSON for a set
        case str(), _ if type(before) is str and not isinstance(after, _PLAIN):
            return None  # plain JSON for a date, an id, a path
        case AbstractSet(), AbstractSet():
            return _change_in_set(cast("Any", before), cast("Any", after), path, depth)
        case _ if type(before) is type(after):
            return _change_in_fields(before, after, path, depth)
        case _:
            return _change(before, after, path)


_PLAIN = (str, int, float, list, dict, type(None))


def _change_in_mapping(before: Mapping[Any, Any], after: Mapping[Any, Any], path: str, depth: int) -> Change | None:
    for key, part in before.items():
        if key not in after:
            found = next((other for other in after if other not in before), None)
            what = f"key {_shown(key)}"
            return Change(path, what, "nothing" if found is None else f"key {_shown(found)}")
        change = change_in(part, after[key], f"{path}[{key!r}]", depth=depth + 1)
        if change is not None:
            return change
    return None


def _change_to_object(before: dict[Any, Any], after: object, path: str) -> Change | None:
    """A dict was given for a declared type: each of its keys must be a field of it."""
    fields = set(_field_names(after)) | {encoded for _, encoded in _encoded_names(after)}
    for key, part in before.items():
        if key not in fields:
            return Change(f"{path}[{key!r}]", _shown(part), f"nothing, as {type(after).__qualname__} has no such field")
    return None


def _change_in_sequence(before: Sequence[Any], after: Sequence[Any], path: str, depth: int) -> Change | None:
    named = hasattr(before, "_fields") and type(before) is not type(after)
    if named or len(before) != len(after):
        return _change(before, after, path)
    for index, (part, other) in enumerate(zip(before, after, strict=True)):
        change = change_in(part, other, f"{path}[{index}]", depth=depth + 1)
        if change is not None:
            return change
    return None


def _change_in_set(before: AbstractSet[Any], after: AbstractSet[Any], path: str, depth: int) -> Change | None:
    """A part that is equal to none may still be the same as one."""
    new = after - before
    for part in before - after:
        if _has_equality(part) and all(change_in(part, other, path, depth=depth + 1) for other in new):
            return Change(path, _shown(part), "nothing that is equal")
    return None


def _change_in_fields(before: object, after: object, path: str, depth: int) -> Change | None:
    """Two objects of one type that are not equal are the same if their fields are, as far as they have any."""
    names = _field_names(before)
    private: Mapping[str, object] = getattr(before, "__pydantic_private__", None) or {}
    if not names and not private:
        return _change_in_whole(before, after, path)
    for name in (*names, *private):
        if not hasattr(before, name):
            continue
        if not hasattr(after, name):
            return Change(f"{path}.{name}", _shown(getattr(before, name)), "nothing")
        change = change_in(getattr(before, name), getattr(after, name), f"{path}.{name}", depth=depth + 1)
        if change is not None:
            return change._replace(advice=_PRIVATE) if name in private else change
    return None


def _change_in_whole(before: object, after: object, path: str) -> Change | None:
    """Without fields to look at, only its own equality tells, if it has one."""
    if not _has_equality(before) or not _surely_differ(before, after):
        return None
    if hasattr(before, "get_secret_value"):
        return Change(path, f"a {type(before).__qualname__}", "asterisks", _SECRET)
    shown, back = _shown(before), _shown(after)
    return Change(path, shown, back if back != shown else "another that is not equal to it")


_SECRET = "a secret is not stored: pass a name to find it by, or let the model write it (field_serializer)"
_PRIVATE_FIELD = "a private field of an attrs class is not stored: give it a name without _"
_PRIVATE = "a private attribute is not stored: make it a field"


def _has_equality(value: object) -> bool:
    """Whether more than one object can be equal to it."""
    return type(value).__eq__ is not object.__eq__


def _change(before: object, after: object, path: str) -> Change:
    if isinstance(before, float) and not math.isfinite(before):
        return Change(path, str(before), "null, as JSON does not have it")
    if type(before) is type(after):
        return Change(path, _shown(before), _shown(after))
    return Change(path, f"{type(before).__qualname__} {_shown(before)}", f"{type(after).__qualname__} {_shown(after)}")


def equal(before: object, after: object) -> bool:
    try:
        return bool(before == after)
    except Exception:  # a type with an equality of its own kind
        return False


def _surely_differ(before: object, after: object) -> bool:
    try:
        return not before == after  # noqa: SIM201 (its inequality may be another thing)
    except Exception:  # an array, say: nobody can tell
        return False


def _field_names(value: object) -> Sequence[str]:
    kind = cast("Any", type(value))
    if hasattr(kind, "__struct_fields__"):
        return kind.__struct_fields__
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    if hasattr(kind, "__dataclass_fields__"):
        return list(kind.__dataclass_fields__)
    if hasattr(kind, "__pydantic_fields__"):
        return [*kind.__pydantic_fields__, *(getattr(value, "__pydantic_extra__", None) or ())]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return kind._fields
    return ()


def _encoded_names(value: object) -> list[tuple[str, str]]:
    """Fields with the names that JSON has for them."""
    kind = cast("Any", type(value))
    if hasattr(kind, "__struct_encode_fields__"):
        return list(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    if hasattr(kind, "__pydantic_fields__"):
        fields: dict[str, Any] = kind.__pydantic_fields__
        return [(name, field.alias) for name, field in fields.items() if field.alias]
    return []


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
