"""What a query of executions asks, for the stores that speak SQL: which named parts of `find.sql`, with which values.

It knows neither dialect: each store has these parts in its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.store.port import Query, cursor_number


def conditions_of(
    query: Query, statement: Callable[[str], str], any_of: Callable[[list[str]], Any]
) -> tuple[str, dict[str, Any]]:
    """The text of all conditions, and their values. `any_of` makes a value of several statuses."""
    parts: list[str] = []
    values: dict[str, Any] = {"namespace": query.namespace}

    def add(part: str, **more: Any) -> None:
        parts.append(statement(f"find:{part}"))
        values.update(more)

    if len(query.status) == 1:
        add("status_one", status=next(iter(query.status)))
    elif query.status:
        add("status_any", status=any_of(sorted(query.status)))
    if query.reason is not None:
        add("reason", reason=query.reason)
    if query.workflow is not None:
        add("workflow", workflow=query.workflow)
    if query.lane is not None:
        add("lane", lane=query.lane)
    if len(query.tags) > limits.TAGS_MAX:
        raise LimitExceeded("tags", actual=len(query.tags), limit=limits.TAGS_MAX, unit="tags")
    for number, (tag, value) in enumerate(query.tags.items()):
        parts.append(statement("find:tag").format(n=number))
        values |= {f"tag_{number}": tag, f"value_{number}": value}
    if query.id_prefix:
        add("id_prefix", id_prefix=query.id_prefix, id_prefix_end=_behind(query.id_prefix))
    if query.created_from is not None:
        add("created_from", created_from=query.created_from)
    if query.created_before is not None:
        add("created_before", created_before=query.created_before)
    if query.after is not None:
        created_at, colon, execution_id = query.after.partition(":")
        if not colon:
            raise InvalidInput(f"{query.after!r} is not a cursor of find")
        add("after", after_created_at=cursor_number(created_at, "find"), after_id=execution_id)
    return " ".join(parts), values


def _behind(prefix: str) -> str:
    """The next string that does not begin with the prefix: its last character, plus one."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return prefix * (limits.ID_MAX_CHARS + 1)  # no character is higher, and no id is as long
    code = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if code == 0xD800 else code)  # half characters are no text
