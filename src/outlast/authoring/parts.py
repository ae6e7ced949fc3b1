"""The parts of values: where JSON has them, and what is declared of them.

Code says `page.title`; JSON may have that as "Title", or as the second of a list. Where nothing is declared nothing is
known: any part may be there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import (
    Any,
    Final,
    NotRequired,
    Required,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from outlast.authoring.fitting import LIST, OBJECT, UNIONS, Absent, is_mapping, kind_of, plain, says_nothing

T = TypeVar("T")
Key = str | int
_QUALIFIERS = (Required, NotRequired, Final)


def part_of(annotation: Any, path: Iterable[Key]) -> Any:
    """What is declared of the part of a value that is found by these keys, places and fields: `Any` if nothing is,
    `Absent` if there certainly is no such part."""
    return _followed(annotation, path)[1]


def stored_path(annotation: Any, path: Iterable[Key]) -> tuple[Key, ...]:
    """The same way in JSON."""
    return _followed(annotation, path)[0]


def places_in(value: Any, annotation: Any, kind: type[T]) -> Iterator[tuple[str, T, Any]]:
    """The values of a kind in a value: where each is, for people, and what is declared to be there."""
    ways: list[tuple[str, Any, Any]] = [("", value, annotation)]
    while ways:
        where, one, declared = ways.pop()
        if isinstance(one, kind):
            yield where, one, declared
        else:
            ways += [(where + step, part, hint) for step, part, hint in _inside(one, declared)]


def plain_in(value: Any, annotation: Any, kind: type, where: str) -> list[tuple[str, Any, Any]]:
    """The largest parts of a value that have none of a kind in them, if something is declared to be there."""
    return [found for found in _without(value, annotation, kind, where) or () if not says_nothing(plain(found[2]))]


def _without(value: Any, annotation: Any, kind: type, where: str) -> list[tuple[str, Any, Any]] | None:
    """None if it is plain as a whole."""
    if isinstance(value, kind):
        return []
    found: list[tuple[str, Any, Any]] = []
    whole, known = True, _is_own(value, annotation)
    for step, part, hint in _inside(value, annotation):
        declared = hint if known else Any  # else its place may read it as something else
        inner = _without(part, declared, kind, where + step)
        whole = whole and inner is None
        found += [(where + step, part, declared)] if inner is None else inner
    return None if whole else found


def _inside(value: Any, annotation: Any) -> Iterator[tuple[str, Any, Any]]:
    """What it is made of: the way there, for people, and what is declared of it."""
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[Any, Any]", value).items():
            yield f"[{key!r}]", part, part_of(annotation, (key,))
    elif isinstance(value, list | tuple | set | frozenset):
        for place, part in enumerate(cast("list[Any]", value)):
            yield f"[{place}]", part, part_of(annotation, (place,))
    else:
        # Of an object its own class declares the fields.
        for name, hint in _fields(_class_of(value)).items():
            part = getattr(value, name, msgspec.UNSET)
            if part is not msgspec.UNSET:
                yield f".{name}", part, hint


def _is_own(value: Any, annotation: Any) -> bool:
    """Whether the class of an object is what is declared; of lists and dicts the annotation itself tells."""
    if not _fields(_class_of(value)):
        return True
    annotation = plain(annotation)
    some = get_args(annotation) if get_origin(annotation) in UNIONS else (annotation,)
    return any(_class_of(value) is (get_origin(plain(one)) or plain(one)) for one in some)


def _class_of(value: object) -> type:
    return type(value)


def _followed(annotation: Any, path: Iterable[Key]) -> tuple[tuple[Key, ...], Any]:
    stored: list[Key] = []
    for key in path:
        place, annotation = _part(plain(annotation), key)
        stored.append(place)
    return tuple(stored), annotation


def _part(annotation: Any, key: Key) -> tuple[Key, Any]:
    """The key that JSON has for it, and what is declared there."""
    if isinstance(annotation, Absent):
        return key, annotation
    arguments, origin = get_args(annotation), get_origin(annotation) or annotation
    if origin in UNIONS:
        some = [one for one in arguments if one is not type(None)]
        return _part(plain(some[0]), key) if len(some) == 1 else (key, Any)
    if isinstance(origin, type) and (names := _stored_names(origin)):
        return _field(annotation, names, key)
    kind = kind_of(annotation)
    if kind == LIST:
        return key, _element(annotation, key)
    if kind == OBJECT:
        return key, arguments[1] if is_mapping(annotation) else _fields(origin).get(cast("str", key), Any)
    has_no_parts = kind is not None or annotation is type(None)
    return key, Absent(annotation, key) if has_no_parts else Any


def _element(annotation: Any, place: Key) -> Any:
    arguments = get_args(annotation)
    if not isinstance(place, int):
        return Absent(annotation, place)
    if get_origin(annotation) is not tuple or ... in arguments:
        return arguments[0] if arguments else Any
    return arguments[place] if -len(arguments) <= place < len(arguments) else Absent(annotation, place)


def _field(annotation: Any, names: dict[str, Key], key: Key) -> tuple[Key, Any]:
    """By the name that code has for it, or by that of JSON."""
    kind: Any = get_origin(annotation) or annotation
    by_stored = {stored: name for name, stored in names.items()}
    name = key if isinstance(key, str) and key in names else by_stored.get(key)
    if name is None:
        is_tag = hasattr(kind, "__struct_config__") and key == kind.__struct_config__.tag_field
        is_place = isinstance(key, int) and isinstance(next(iter(by_stored)), int)
        return key, Any if is_tag or is_place else Absent(annotation, key)
    hint = _fields(kind).get(name, Any)
    if isinstance(hint, TypeVar):
        parameters: tuple[Any, ...] = getattr(kind, "__parameters__", ())
        hint = dict(zip(parameters, get_args(annotation), strict=False)).get(hint, Any)
    return names[name], hint


@lru_cache(maxsize=1_000)
def _stored_names(kind: type) -> dict[str, Key]:
    """The fields of a class that is stored by them, with the keys or places that JSON has for them."""
    known = cast("Any", kind)
    if hasattr(kind, "__struct_config__"):
        config = known.__struct_config__
        if config.array_like:
            return {name: place for place, name in enumerate(known.__struct_fields__, start=config.tag is not None)}
        return dict(zip(known.__struct_fields__, known.__struct_encode_fields__, strict=True))
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: field.name for field in known.__attrs_attrs__}
    if dataclasses.is_dataclass(kind):
        return {field.name: field.name for field in dataclasses.fields(kind)}
    if issubclass(kind, tuple) and hasattr(known, "_fields"):
        return {name: place for place, name in enumerate(known._fields)}
    return {}


@lru_cache(maxsize=1_000)
def _fields(kind: type) -> dict[str, Any]:
    """What a class declares of its fields, if it is one that is stored by its fields."""
    names = _stored_names(kind)
    if not names and not is_typeddict(kind):
        return {}
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # it names what cannot be found here
        return {}
    return {name: _bare(hint) for name, hint in hints.items() if name in names or not names}


def _bare(hint: Any) -> Any:
    while get_origin(hint) in _QUALIFIERS:
        [hint] = get_args(hint)
    return hint
