"""Whether what a workflow declares to return can be what another takes: refused only if it certainly cannot.

An annotation may promise less than a value keeps, so this complains about plain contradictions and leaves the rest to
the value itself, which is decoded by the annotation when the member runs.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, is_typeddict

from outlast.codec.annotations import Unresolved

UNIONS = (Union, types.UnionType)
_JSON_KINDS: tuple[tuple[type, ...], ...] = ((str,), (bool,), (int, float), (list, tuple, set, frozenset), (dict,))
"""Types that JSON writes alike may stand for each other; of different groups they never can."""
TEXT, TRUTH, NUMBER, LIST, OBJECT = range(len(_JSON_KINDS))
_MAPPINGS = (dict, Mapping)


class Absent(NamedTuple):
    """Instead of what is declared of a part: `whole` certainly has no such part."""

    whole: Any
    key: object


def fits(given: Any, taken: Any) -> bool:
    """False if a value of the one type can certainly not be read as the other."""
    given, taken = plain(given), plain(taken)
    if given is taken or given == taken or says_nothing(given) or says_nothing(taken):
        return True
    if get_origin(given) in UNIONS:
        return any(fits(one, taken) for one in get_args(given))
    if get_origin(taken) in UNIONS:
        return any(fits(given, one) for one in get_args(taken))
    if given is type(None) or taken is type(None):
        return False
    return _alike(given, taken)


def is_object(kind: type) -> bool:
    """Whether JSON certainly writes it as an object."""
    if hasattr(kind, "__struct_config__"):
        return not cast("Any", kind).__struct_config__.array_like
    return is_typeddict(kind) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__")


def _alike(given: Any, taken: Any) -> bool:
    mine, its = kind_of(given), kind_of(taken)
    if mine is None or its is None or mine != its:
        # An enum, a date, …: only a plain kind of JSON on both sides can contradict.
        return mine is None or its is None
    inner, outer = get_args(given), get_args(taken)
    if its == OBJECT and is_mapping(given) and is_mapping(taken):
        return fits(inner[1], outer[1])
    if its == LIST and inner and outer:
        return _element_fits(inner, outer)
    return True


def is_mapping(annotation: Any) -> bool:
    """Whether it declares keys and values, as `dict[str, int]` does. Other types may have two arguments too."""
    return get_origin(annotation) in _MAPPINGS and len(get_args(annotation)) == 2


def _element_fits(inner: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    same_shape = len(inner) == len(outer)
    pairs = zip(inner, outer, strict=True) if same_shape else [(inner[0], outer[0])]
    return all(one is ... or other is ... or fits(one, other) for one, other in pairs)


def kind_of(annotation: Any) -> int | None:
    """The group of plain JSON that a type certainly belongs to, by its place in `_JSON_KINDS`."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return None
    if origin in (Sequence, Mapping):
        origin = cast("type", list if origin is Sequence else dict)
    if is_object(origin):
        origin = dict
    for number, group in enumerate(_JSON_KINDS):
        if origin in group:
            return number
    return None


def plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def says_nothing(annotation: Any) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, Unresolved | TypeVar | Absent)
