"""Whether what a workflow declares to return can be what another takes: refused only if it certainly cannot.

An annotation may promise less than a value keeps, so this complains about plain contradictions and leaves the rest to
the value itself, which is decoded by the annotation when the member runs.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from outlast.codec.annotations import Unresolved

T = TypeVar("T")
_UNIONS = (Union, types.UnionType)
_JSON_KINDS: tuple[tuple[type, ...], ...] = ((str,), (bool,), (int, float), (list, tuple, set, frozenset), (dict,))
"""Types that JSON writes alike may stand for each other; of different groups they never can."""
_LIST, _OBJECT = 3, 4


def fits(given: Any, taken: Any) -> bool:
    """False if a value of the one type can certainly not be read as the other."""
    given, taken = _plain(given), _plain(taken)
    if given is taken or given == taken or _says_nothing(given) or _says_nothing(taken):
        return True
    if get_origin(given) in _UNIONS:
        return any(fits(one, taken) for one in get_args(given))
    if get_origin(taken) in _UNIONS:
        return any(fits(given, one) for one in get_args(taken))
    if given is type(None) or taken is type(None):
        return False
    return _alike(given, taken)


def part_of(annotation: Any, path: Iterable[object]) -> Any:
    """What is declared of the part of a value that is found by these keys, places and fields; `Any` if nothing is."""
    for key in path:
        annotation = _part(_plain(annotation), key)
    return annotation


def places_in(value: Any, annotation: Any, kind: type[T]) -> Iterator[tuple[str, T, Any]]:
    """The values of a kind in a value: where each is, for people, and what is declared to be there."""
    ways: list[tuple[str, Any, Any]] = [("", value, annotation)]
    while ways:
        where, one, declared = ways.pop()
        if isinstance(one, kind):
            yield where, one, declared
        elif isinstance(one, Mapping):
            entries = cast("Mapping[Any, Any]", one).items()
            ways += [(f"{where}[{key!r}]", part, part_of(declared, (key,))) for key, part in entries]
        elif isinstance(one, list | tuple):
            parts = enumerate(cast("list[Any]", one))
            ways += [(f"{where}[{place}]", part, part_of(declared, (place,))) for place, part in parts]
        else:
            # Of an object its own class declares the fields.
            ways += [
                (f"{where}.{name}", getattr(one, name), hint)
                for name, hint in _fields(type(one)).items()
                if hasattr(one, name)
            ]


def _part(annotation: Any, key: object) -> Any:
    arguments = get_args(annotation)
    if get_origin(annotation) in _UNIONS:
        some = [one for one in arguments if one is not type(None)]
        return part_of(some[0], (key,)) if len(some) == 1 else Any
    kind = _kind(annotation)
    if isinstance(key, str) and isinstance(annotation, type):
        return _fields(annotation).get(key, Any)
    if kind == _OBJECT and len(arguments) == 2:
        return arguments[1]
    if kind != _LIST or not arguments or not isinstance(key, int):
        return Any
    if get_origin(annotation) is not tuple or ... in arguments:
        return arguments[0]
    return arguments[key] if -len(arguments) <= key < len(arguments) else Any


@lru_cache(maxsize=1_000)
def _fields(kind: type) -> dict[str, Any]:
    """What a class declares of its fields, if it is one that is stored by its fields."""
    if not _is_object(kind):
        return {}
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception:  # it names what cannot be found here
        return {}


def _is_object(kind: type) -> bool:
    """Whether JSON certainly writes it as an object."""
    if hasattr(kind, "__struct_config__"):
        return not cast("Any", kind).__struct_config__.array_like
    return is_typeddict(kind) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__")


def _alike(given: Any, taken: Any) -> bool:
    mine, its = _kind(given), _kind(taken)
    if mine is None or its is None or mine != its:
        # An enum, a date, …: only a plain kind of JSON on both sides can contradict.
        return mine is None or its is None
    inner, outer = get_args(given), get_args(taken)
    if its == _OBJECT and len(inner) == len(outer) == 2:
        return fits(inner[1], outer[1])
    if its == _LIST and inner and outer:
        return _element_fits(inner, outer)
    return True


def _element_fits(inner: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    same_shape = len(inner) == len(outer)
    pairs = zip(inner, outer, strict=True) if same_shape else [(inner[0], outer[0])]
    return all(one is ... or other is ... or fits(one, other) for one, other in pairs)


def _kind(annotation: Any) -> int | None:
    """The group of plain JSON that a type certainly belongs to, by its place in `_JSON_KINDS`."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return None
    if origin in (Sequence, Mapping):
        origin = cast("type", list if origin is Sequence else dict)
    if _is_object(origin):
        origin = dict
    for number, group in enumerate(_JSON_KINDS):
        if origin in group:
            return number
    return None


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _says_nothing(annotation: Any) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, Unresolved)
