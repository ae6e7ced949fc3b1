"""What can be a workflow or a step, what it is called, and which colour it has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, cast

from outlast.codec.annotations import underlying
from outlast.errors import InvalidInput


def check_callable(what: str, fn: object) -> Callable[..., Any]:
    """`fn` itself if it can be called, once for each execution or call, with a result that can be recorded."""
    if isinstance(fn, staticmethod):
        raise InvalidInput(f"a {what} goes below @staticmethod: write that above the line that makes it a {what}")
    if isinstance(fn, classmethod):
        raise InvalidInput(
            f"a {what} is not made of a classmethod: write @staticmethod above the line that makes it a {what}, and "
            "give it the class as an argument (@classmethod there works too, but type checkers then ask for its cls)"
        )
    if not callable(fn):
        raise InvalidInput(f"a {what} must be a function, not {fn!r}")
    inner = underlying(fn)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidInput(f"{fn!r} is a generator, which a {what} cannot be: its parts would not be recorded")
    if inspect.isfunction(inner) and not is_async(inner) and is_async(inspect.unwrap(inner)):
        code = inner.__code__
        wrapper = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        raise InvalidInput(
            f"a {what} would be made of the def {wrapper}, which wraps the async def {inner.__qualname__}: write the "
            f"wrapper as an async def that awaits it (if the wrapper runs it to its end by itself, make the {what} of "
            "a def of your own that calls it)"
        )
    return fn


def refuse_method(fn: object) -> None:
    """A workflow has no object that it is called on: what is stored of a start are its arguments."""
    inner = cast("Any", fn).__func__ if isinstance(fn, classmethod) else fn
    name = getattr(inner, "__qualname__", "").rpartition("<locals>.")[2]
    if "." in name and callable(inner) and next(iter(inspect.signature(inner).parameters), None) in ("self", "cls"):
        raise InvalidInput(
            f"{name} is a method, which a workflow cannot be: an execution may go on in another process, where its "
            "object is not. Write a function outside of the class, and give it what it needs as arguments; its steps "
            "may be methods"
        )


def is_async(fn: Callable[..., Any]) -> bool:
    """Also for partials and objects with an `async def __call__`."""
    return inspect.iscoroutinefunction(underlying(fn))


def default_name(what: str, fn: Callable[..., Any]) -> str:
    """`charge`, `Billing.charge`: the name in the source, without the functions around it."""
    while isinstance(fn, functools.partial):
        fn = cast("Callable[..., Any]", fn.func)
    name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    if "<lambda>" in name.rpartition(".")[2]:
        raise InvalidInput(f"a lambda has no name that outlives an edit: give the {what} one, with name=…")
    return name.rpartition("<locals>.")[2]


def place_of(fn: Callable[..., Any]) -> str:
    """Where it is written, for messages."""
    code = _code_of(fn)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def is_typed_in(fn: Callable[..., Any]) -> bool:
    """Whether it is of an interpreter's prompt or a notebook's cell, which are in no file."""
    code = _code_of(fn)
    return code is not None and getattr(fn, "__module__", None) == "__main__" and not Path(code.co_filename).exists()


def _code_of(fn: Callable[..., Any]) -> CodeType | None:
    return getattr(inspect.unwrap(underlying(fn)), "__code__", None)
