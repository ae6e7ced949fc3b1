"""The signature of a workflow's code: a hash that changes when its shape does, pinned to each execution.

Of its name, its version, the schema of what it takes and gives, and the names of the steps and waits in its source, in
the order of the source. A comment, a constant, a log line or a docstring does not change it; adding, removing or
renaming a step does, and so does another field in its input. What a name stands for is looked up where the function
is defined: `await charge(order)` counts under the name of the step, whatever it is called here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from types import CodeType, ModuleType
from typing import Any, cast

import msgspec

from outlast.codec.annotations import Unresolved, name_of
from outlast.codec.arguments import Arguments

NAMED_WAITS = frozenset({"receive", "deferred", "patched", "flow", "update"})
"""Functions of `outlast` whose first argument is a name; of all others only `name=` is one."""
NO_OPERATIONS = frozenset({"query"})
"""Functions of `outlast` that leave nothing in a journal: a query may come and go."""

_PROSE = frozenset({"title", "description", "default", "examples"})
_MISSING = object()


def signature_of(fn: Callable[..., Any], arguments: Arguments, name: str, version: str) -> str:
    parts = [name, version, *_schemas(arguments), *operations_in(fn)]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


def patches_in(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the patches in the source, and in that of the plain functions of its module that it calls."""
    found: dict[str, None] = {}
    seen: set[int] = set()

    def walk(function: Any) -> None:
        if id(function) in seen or len(seen) > FOLLOWED_MAX:
            return
        seen.add(id(function))
        operations = operations_in(function)
        found.update(dict.fromkeys(one.removeprefix(_PATCH) for one in operations if one.startswith(_PATCH)))
        module = getattr(function, "__module__", None)
        code = getattr(inspect.unwrap(function), "__code__", None)
        for name in getattr(code, "co_names", ()):
            callee = _names_known_to(function).get(name)
            if inspect.isfunction(callee) and callee.__module__ == module:
                walk(callee)

    walk(fn)
    return tuple(found)


_PATCH = "wait patched "
FOLLOWED_MAX = 100


# ---- schema -------------------------------------------------------------------------------------------------------


def _schemas(arguments: Arguments) -> Iterator[str]:
    for name, parameter in arguments.signature.parameters.items():
        optional = "" if parameter.default is inspect.Parameter.empty else "?"
        yield f"{parameter.kind.name} {name}{optional}: {_schema(arguments.annotation(name))}"
    yield f"-> {_schema(arguments.result)}"


def _schema(annotation: Any) -> str:
    if isinstance(annotation, Unresolved):
        return annotation.text
    try:
        [schema], components = msgspec.json.schema_components([annotation], schema_hook=_custom_schema)
    except Exception:  # a type that only Python knows
        return name_of(annotation)
    return msgspec.json.encode(_without_prose([schema, components]), order="sorted").decode()


def _custom_schema(kind: Any) -> dict[str, Any]:
    model_schema = getattr(kind, "model_json_schema", None)
    return {"type": name_of(kind)} if model_schema is None else model_schema()


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        found = cast("dict[str, Any]", schema)
        # A property may itself be called "description": then its schema is a dict.
        return {
            key: _without_prose(value)
            for key, value in found.items()
            if key not in _PROSE or (isinstance(value, dict) and key != "default")
        }
    if isinstance(schema, list):
        return [_without_prose(part) for part in cast("list[Any]", schema)]
    return schema


# ---- operations ---------------------------------------------------------------------------------------------------


PARSES_MAX = 5
REMEMBERED = 1_024


def _parsed(source: str) -> ast.Module:
    """Python counts how deep it is in a tree for all threads together: if another one parses too, or garbage is
    collected in the middle, it may say SystemError of a good source. A start must not fail for that."""
    for _ in range(PARSES_MAX - 1):
        with suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


def operations_in(fn: Callable[..., Any]) -> list[str]:
    """The steps, workflows and waits that the source calls: `step charge`, `wait receive plan`."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    try:
        calls = _calls_in(fn) if code is None else _calls_in_code(code)
    except (OSError, TypeError, SyntaxError):
        return ["<no source>"]
    names = _names_known_to(fn)
    found = (_operation(call, names, is_awaited=is_awaited) for call, is_awaited in calls)
    return [operation for operation in found if operation is not None]


@functools.lru_cache(maxsize=REMEMBERED)
def _calls_in_code(code: CodeType) -> tuple[tuple[ast.Call, bool], ...]:
    """Remembered: to find and parse a source takes milliseconds, and each start of an app, each definition of the same
    function asks anew. What is equal as code calls the same."""
    return _calls_in(code)


def _calls_in(source: Any) -> tuple[tuple[ast.Call, bool], ...]:
    """In the order in which they are made, and whether each is awaited."""
    tree = _parsed(textwrap.dedent(source_of(source)))
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    body = [node for statement in _body(tree) for node in ast.walk(statement)]
    calls = [node for node in body if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    return tuple((call, id(call) in awaited) for call in calls)


def source_of(source: Any) -> str:
    """As `inspect` finds it. Of code without looking for its module first, which goes through the files of all modules
    of the program, in the event loop of whoever starts something for the first time."""
    if isinstance(source, CodeType):
        linecache.checkcache(source.co_filename)
        lines = linecache.getlines(source.co_filename)
        if source.co_firstlineno <= len(lines):
            return "".join(inspect.getblock(lines[source.co_firstlineno - 1 :]))
    return inspect.getsource(source)


def _body(tree: ast.Module) -> list[ast.stmt]:
    """What the function does, without the decorators above it."""
    first = tree.body[0]
    return first.body if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else tree.body


def _names_known_to(fn: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(fn)
    try:
        return {**getattr(inner, "__globals__", {}), **inspect.getclosurevars(inner).nonlocals}
    except (TypeError, ValueError):
        return {**getattr(inner, "__globals__", {})}


def _operation(call: ast.Call, names: dict[str, Any], *, is_awaited: bool) -> str | None:
    callee = _looked_up(call.func, names)
    if _is_operation(callee):
        return f"{callee.OPERATION} {callee.name}"
    word = _last_word(call.func)
    if _is_ours(call.func, callee, names):
        if word in NO_OPERATIONS:
            return None
        given = _literal_name(call, word)
        return f"wait {word}{given}"
    if word == "step" and call.args:  # app.step(fx.get_rate, name="fx")
        return f"step{_literal_name(call, word) or ' ' + _last_word(call.args[0])}"
    if callee is _MISSING and is_awaited and _is_dotted(call.func):
        return f"await {ast.unparse(call.func)}"  # a local name, perhaps of a step
    return None


def _looked_up(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a dotted name stands for, without running any code of it."""
    if isinstance(node, ast.Name):
        return names.get(node.id, _MISSING)
    if isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, names)
        if owner is _MISSING:
            return _MISSING
        found = inspect.getattr_static(owner, node.attr, _MISSING)
        if node.attr in ("aio", "sync", "start", "bind") and _is_operation(owner):
            return owner  # another face of the same
        return found
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "options":
        return _looked_up(node.func.value, names)
    return _MISSING


def _is_operation(value: object) -> bool:
    return hasattr(type(value), "OPERATION")


def _is_ours(node: ast.expr, callee: Any, names: dict[str, Any]) -> bool:
    """Whether it is a function of `outlast` itself."""
    if isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, names)
        return isinstance(owner, ModuleType) and owner.__name__.partition(".")[0] == "outlast"
    module = getattr(callee, "__module__", None)
    return inspect.isfunction(callee) and isinstance(module, str) and module.partition(".")[0] == "outlast"


def _literal_name(call: ast.Call, word: str) -> str:
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "name"), None)
    if given is None and word in NAMED_WAITS and call.args:
        given = call.args[0]
    return f" {given.value}" if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def _is_dotted(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


def _last_word(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word
        case _:
            return ""
