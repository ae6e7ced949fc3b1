"""What a function declares: the types of its parameters and of its result.

Annotations may be strings (`from __future__ import annotations`), may name a class that is defined further down in the
module or in the function around, or one that is imported under `TYPE_CHECKING` only. What can be resolved is, as soon
as it can be; the rest is `Unresolved`, which stores plain JSON and says why when it is given more than that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast, get_type_hints


class Unresolved:
    """An annotation that names what cannot be found."""

    def __init__(self, text: str, why: str) -> None:
        self.text = text
        self.why = why

    def __repr__(self) -> str:
        return self.text


class Hints:
    """`Hints(fn)["order"]`; `Any` for what is not annotated. The result is `"return"`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = underlying(fn)
        self._locals: dict[str, Any] = {}
        self._look()
        if self.missing:
            self._locals = _locals_around(self._fn)
            self._look()

    def __getitem__(self, name: str) -> Any:
        if self.missing:  # what was missing may be defined by now
            self._look()
        return self._found.get(name, Any)

    def _look(self) -> None:
        self._found = self._resolve()
        self.missing = any(isinstance(found, Unresolved) for found in self._found.values())

    def _resolve(self) -> dict[str, Any]:
        fn = self._fn
        if isinstance(fn, type):
            return {"return": fn}
        annotations: dict[str, Any] = getattr(fn, "__annotations__", None) or {}
        try:
            return get_type_hints(fn, localns=self._locals or None, include_extras=True) if annotations else {}
        except Exception:
            return {name: self._one(name, annotation) for name, annotation in annotations.items()}

    def _one(self, name: str, annotation: Any) -> Any:
        alone = SimpleNamespace(__annotations__={name: annotation})
        known = getattr(inspect.unwrap(self._fn), "__globals__", {})
        try:
            return get_type_hints(alone, globalns=known, localns=self._locals, include_extras=True)[name]
        except Exception as error:
            return Unresolved(annotation if isinstance(annotation, str) else repr(annotation), str(error))


def underlying(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a partial, or the `__call__` of an object: what carries the annotations."""
    while isinstance(fn, functools.partial):
        fn = cast("Callable[..., Any]", fn.func)
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    return cast("Any", fn).__call__


def name_of(annotation: Any) -> str:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def _locals_around(fn: Callable[..., Any]) -> dict[str, Any]:
    """The variables of the function that defines this one, if it runs: its classes are found there."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    frame = inspect.currentframe()
    while frame is not None and code not in frame.f_code.co_consts:
        frame = frame.f_back
    return {} if frame is None or frame.f_locals is frame.f_globals else dict(frame.f_locals)
