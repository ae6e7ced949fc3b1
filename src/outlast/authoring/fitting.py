"""Whether what a workflow declares to return can be what another takes: refused only if it certainly cannot.

An annotation may promise less than a value keeps, so this complains about plain contradictions and leaves the rest to
the value itself, which is decoded by the annotation when the member runs.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, cast, get_args, get_origin

from outlast.codec.annotations import Unresolved

_UNIONS = (Union, types.UnionType)
_JSON_KINDS: tuple[tuple[type, ...], ...] = ((str,), (bool,), (int, float), (list, tuple, set, frozenset), (dict,))
"""Types that JSON writes alike may stand for each other; of different groups they never can."""


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


def _alike(given: Any, taken: Any) -> bool:
    mine, its = _kind(given), _kind(taken)
    if mine is None or its is None or mine != its:
        # A dataclass, an enum, a date, …: only a plain kind of JSON on both sides can contradict.
        return mine is None or its is None
    inner, outer = get_args(given), get_args(taken)
    if its == _JSON_KINDS.index((dict,)) and len(inner) == len(outer) == 2:
        return fits(inner[1], outer[1])
    if its == _JSON_KINDS.index((list, tuple, set, frozenset)) and inner and outer:
        return _element_fits(inner, outer)
    return True


def _element_fits(inner: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    same_shape = len(inner) == len(outer)
    pairs = zip(inner, outer, strict=True) if same_shape else [(inner[0], outer[0])]
    return all(one is ... or other is ... or fits(one, other) for one, other in pairs)


def _kind(annotation: Any) -> int | None:
    """The group of plain JSON that a type certainly belongs to."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return None
    if origin in (Sequence, Mapping):
        origin = cast("type", list if origin is Sequence else dict)
    for number, group in enumerate(_JSON_KINDS):
        if origin in group:
            return number
    return None


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _says_nothing(annotation: Any) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, Unresolved)
