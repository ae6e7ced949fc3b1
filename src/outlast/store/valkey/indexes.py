"""The indexes of `layout.py` as Lua, written out: it runs for every record that is written. Of each kind that has any:

    INDEXES[1] = {
      enter = function(call, is, found) … end,        -- a record that is new stands in each of them
      leave = function(call, was, found) … end,       -- one that is gone stands in none any more
      move = function(call, was, is, found) … end,    -- one that is another now may stand elsewhere
    }

The group that each side met last is remembered: most records of a call stand in the same. So is the member that was
made last: indexes whose members are made alike share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.model.kinds import KINDS
from outlast.store.valkey.layout import INDEXES, LAYOUTS, Index, Part


def lua_of(kind: str) -> str:
    """Empty if the kind has none."""
    at = LAYOUTS[kind].positions
    indexes = [index for index in INDEXES if index.kind == kind]
    if not indexes:
        return ""
    shapes = list(dict.fromkeys(index.member for index in indexes if index.member))
    members = {shape: f"member_{number}" for number, shape in enumerate(shapes)}
    lines = ["do"]
    for shape, name in members.items():
        parts = [_written(part, at) for part in shape]
        fields = _fields(shape, at)
        if tuple(part.field for part in shape[-2:]) == KINDS[kind].KEY:  # as it is named anyway
            parts[-2:] = ["key_of(found)"]
        lines += _remembering(name, "v, found", "", " .. ".join(parts), fields)
    for index in indexes:
        for side in ("is", "was"):
            group = [at[name] for name in index.group]
            made = " .. ".join([f"tag .. '{index.name}:'", *(f"text(v[{position}] or '')" for position in group)])
            lines += _remembering(f"{side}_{index.name}", "tag, v", "tag", made, group)
    each = [(index, f"{members[index.member]}(%s, found)" if index.member else "key_of(found)") for index in indexes]
    lines += [f"INDEXES[{LAYOUTS[kind].number}] = {{", "enter = function(call, is, found)", "  local tag = call.tag"]
    for index, member in each:
        lines += _entering(index, member, at)
    lines += ["end,", "leave = function(call, was, found)", "  local tag = call.tag"]
    for index, member in each:
        lines += _leaving(index, member, at)
    lines += ["end,", "move = function(call, was, is, found)", "  local tag = call.tag"]
    for index, member in each:
        lines += _moving(index, member, at)
    return "\n".join([*lines, "end }", "end"])


def _entering(index: Index, member: str, at: Mapping[str, int]) -> list[str]:
    score = "0" if index.score is None else f"tonumber(is[{at[index.score]}])"
    lines = [
        f"  if {_stands(index, 'is', at)} then",
        f"    local set = is_{index.name}(tag, is)",
        f"    enter(call, set, {score}, {_of(member, 'is')})",
    ]
    if index.registry:
        lines.append(f"    call.came[set] = '{index.name}'")
    return [*lines, "  end"]


def _leaving(index: Index, member: str, at: Mapping[str, int]) -> list[str]:
    lines = [
        f"  if {_stands(index, 'was', at)} then",
        f"    local set = was_{index.name}(tag, was)",
        f"    leave(call, set, {_of(member, 'was')})",
    ]
    if index.registry:
        lines.append(f"    call.went[set] = '{index.name}'")
    return [*lines, "  end"]


def _moving(index: Index, member: str, at: Mapping[str, int]) -> list[str]:
    fields = [at[name] for name in index.fields if name not in KINDS[index.kind].KEY]  # a record keeps its key
    differs = " or ".join(f"was[{position}] ~= is[{position}]" for position in fields)
    score = "0" if index.score is None else f"tonumber(is[{at[index.score]}])"
    registry = f"'{index.name}'" if index.registry else "nil"
    return [
        f"  if {differs or 'false'} then",
        "    local set, member, old_set, old_member",
        f"    if {_stands(index, 'is', at)} then set, member = is_{index.name}(tag, is), {_of(member, 'is')} end",
        f"    if {_stands(index, 'was', at)} then",
        f"      old_set, old_member = was_{index.name}(tag, was), {_of(member, 'was')}",
        "    end",
        f"    move(call, {registry}, old_set, old_member, set, member, {score})",
        "  end",
    ]


def _of(member: str, side: str) -> str:
    return member.replace("%s", side)


def _stands(index: Index, side: str, at: Mapping[str, int]) -> str:
    conditions = [f"{side}[{at[index.where]}]"] if index.where is not None else []
    conditions += [f"not {side}[{at[index.unless]}]"] if index.unless is not None else []
    return " and ".join(conditions) or "true"


def _fields(shape: Sequence[Part], at: Mapping[str, int]) -> list[int]:
    return [at[part.field] for part in shape]


def _written(part: Part, at: Mapping[str, int]) -> str:
    value = f"v[{at[part.field]}]"
    if part.up:
        return f"digits(tonumber({value} or 0), {part.up})"
    if part.down:
        return f"digits({part.top} - tonumber({value} or 0), {part.down})"
    return f"text({value} or '')"


def _remembering(name: str, arguments: str, given: str, made: str, fields: Sequence[int]) -> list[str]:
    """A function that makes a text of some values, unless they are those of the last time."""
    kept = [f"{given}_"] * bool(given) + [f"v{position}" for position in fields]
    values = [given] * bool(given) + [f"v[{position}]" for position in fields]
    differ = " or ".join(["not made", *(f"{value} ~= {one}" for value, one in zip(values, kept, strict=True))])
    return [
        f"local {name}",
        "do",
        f"  local {', '.join(['made', *kept])}",
        f"  {name} = function({arguments})",
        f"    if {differ} then {', '.join(['made', *kept])} = {', '.join([made, *values])} end",
        "    return made",
        "  end",
        "end",
    ]
