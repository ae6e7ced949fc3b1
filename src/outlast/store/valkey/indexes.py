"""The indexes of `layout.py` as Lua: functions, written out, for they run for every record that is written.

Of each kind that has any:

    INDEXES[1] = {
      { name = 'status', registry = false,                 -- whether its groups are listed
        differs = function(was, is) … end,                  -- whether a record's place may be another one
        was = place(), is = place() },                      -- (tag, values, record): set, member, score, or nil
      … }

What was made last is remembered, by each side of its own: most records of a call stand in the same group, and indexes
whose members are made alike share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.store.valkey.layout import INDEXES, LAYOUTS, Index, Part


def lua_of(kind: str) -> str:
    at = LAYOUTS[kind].positions
    indexes = [index for index in INDEXES if index.kind == kind]
    shapes = list(dict.fromkeys(index.member for index in indexes if index.member))
    lines = ["do"]
    for number, shape in enumerate(shapes):
        lines += _member(f"member_{number}", shape, at)
    lines.append(f"INDEXES[{LAYOUTS[kind].number}] = {{")
    for index in indexes:
        member = f"member_{shapes.index(index.member)}(v)" if index.member else "key_of(found)"
        lines += _index(index, member, at)
    return "\n".join([*lines, "}", "end"])


def _index(index: Index, member: str, at: Mapping[str, int]) -> list[str]:
    differs = " or ".join(f"was[{at[name]}] ~= is[{at[name]}]" for name in index.fields)
    return [
        "(function()",
        "  local function place()",
        *_place(index, member, at),
        "  end",
        f"  return {{ name = '{index.name}', registry = {'true' if index.registry else 'false'},",
        f"    differs = function(was, is) return {differs} end, was = place(), is = place() }}",
        "end)(),",
    ]


def _place(index: Index, member: str, at: Mapping[str, int]) -> list[str]:
    group = [at[name] for name in index.group]
    made = " .. ".join([f"tag .. '{index.name}:'", *(f"text(v[{position}] or '')" for position in group)])
    score = "0" if index.score is None else f"tonumber(v[{at[index.score]}])"
    lines = [
        f"    local tag_, set{_names('set', group)}",
        "    return function(tag, v, found)",
    ]
    if index.where is not None:
        lines.append(f"      if not v[{at[index.where]}] then return nil end")
    if index.unless is not None:
        lines.append(f"      if v[{at[index.unless]}] then return nil end")
    return [
        *lines,
        f"      if tag ~= tag_{_differ('set', group)} then",
        f"        tag_, set{_names('set', group)} = tag, {made}{_values(group)}",
        "      end",
        f"      return set, {member}, {score}",
        "    end",
    ]


def _member(name: str, shape: Sequence[Part], at: Mapping[str, int]) -> list[str]:
    fields = [at[part.field] for part in shape]
    made = " .. ".join(_written(part, f"v[{at[part.field]}]") for part in shape)
    return [
        f"local {name}",
        "do",
        f"  local made{_names('made', fields)}",
        f"  {name} = function(v)",
        f"    if not made{_differ('made', fields)} then",
        f"      made{_names('made', fields)} = {made}{_values(fields)}",
        "    end",
        "    return made",
        "  end",
        "end",
    ]


def _written(part: Part, value: str) -> str:
    if part.up:
        return f"digits(tonumber({value} or 0), {part.up})"
    if part.down:
        return f"digits({part.top} - tonumber({value} or 0), {part.down})"
    return f"text({value} or '')"


# What is remembered: a text, and the values that it was made of.


def _names(text: str, fields: Sequence[int]) -> str:
    return "".join(f", {text}_{position}" for position in fields)


def _values(fields: Sequence[int]) -> str:
    return "".join(f", v[{position}]" for position in fields)


def _differ(text: str, fields: Sequence[int]) -> str:
    return "".join(f" or v[{position}] ~= {text}_{position}" for position in fields)
