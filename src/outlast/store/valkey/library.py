"""The function library: `scripts/*.lua` behind the tables that `layout.py` declares, under a name of its own version.

Functions have names of their own in a server, so each version of the library brings its version in theirs: processes of
two versions can share a server while a fleet is renewed.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

from outlast.model.execution import Execution
from outlast.model.kinds import KINDS
from outlast.model.lease import EARLY_EVENTS
from outlast.store.valkey.indexes import lua_of
from outlast.store.valkey.keys import LETTERS, LISTED, OWNED
from outlast.store.valkey.layout import BESIDE, INDEXES, LAYOUTS, ORDER, TIME_DIGITS, Layout

SCRIPTS = ("records", "commit", "claim", "renew", "due", "find", "load", "append", "purge", "health", "migrate")
"""In the order in which they need each other; the indexes come behind the first, which they need."""


def _lua(value: object) -> str:
    """A value as Lua writes it."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            assert value.replace("_", "").isalnum(), value
            return f"'{value}'"
        case list():
            items: list[object] = value  # pyright: ignore[reportUnknownVariableType]
            return f"{{ {', '.join(_lua(item) for item in items)} }}"
        case dict():
            pairs: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            return f"{{ {', '.join(f'{name} = {_lua(item)}' for name, item in pairs.items())} }}"
        case _:
            raise AssertionError(value)


def _kind(layout: Layout) -> dict[str, object]:
    kind, at = layout.kind, layout.positions
    return {
        "name": kind.KIND,
        "size": len(layout.fields),
        "head": len(layout.head),
        "owned": kind.KIND in OWNED,
        "plain": not layout.blobs,
        "seq": at["seq"] if kind.SEQUENCED else None,
        "change_id": at.get("change_id"),
    }


_PARTS = [part for index in INDEXES for part in index.member]


def _tables() -> str:
    lines = [
        f"local KINDS = {_lua([_kind(layout) for layout in LAYOUTS.values()])}",
        f"local INBOX = {LAYOUTS[Execution.KIND].positions['inbox']}",
        "local WIDTHS = { "
        + ", ".join(
            f"[{width}] = '%0{width}.0f'" for width in sorted({p.up or p.down or 0 for p in _PARTS if p.up or p.down})
        )
        + " }",
        f"local CREATED = {TIME_DIGITS}",
        f"local EARLY, BESIDE = {EARLY_EVENTS}, {BESIDE}",
        f"local LETTERS, LISTED = {_lua(list(LETTERS))}, {LISTED}",
        f"local ORDER = {sum(part.up or part.down or 0 for part in ORDER)}",
    ]
    for name, layout in LAYOUTS.items():
        lines.append(f"local {name.upper()} = {_lua({'kind': layout.number, **layout.positions})}")
    return "\n".join(lines)


def _script(name: str) -> str:
    return files("outlast.store.valkey").joinpath("scripts", f"{name}.lua").read_text()


def _library() -> tuple[str, str]:
    first, *others = map(_script, SCRIPTS)
    body = "\n".join([_tables(), first, *map(lua_of, KINDS), *others])
    version = sha256(body.encode()).hexdigest()[:12]
    return f"outlast_{version}", f"#!lua name=outlast_{version}\nlocal NAME = 'outlast_{version}_'\n{body}"


LIBRARY, TEXT = _library()
"""The library's name, and its text."""


def function(name: str) -> str:
    return f"{LIBRARY}_{name}"
