"""Accounts for every key of a server: what the records ask for must be there, and nothing else."""

from __future__ import annotations

from typing import Any

from outlast.model.kinds import KINDS
from outlast.store.valkey.keys import LETTERS, LISTED, text
from outlast.store.valkey.layout import INDEXES, LAYOUTS, Index
from outlast.testing.valkey_server import ValkeyServer

Sets = dict[bytes, dict[bytes, float]]


def leaks(server: ValkeyServer, prefix: str = "outlast", *, alone: bool = True) -> list[str]:
    """A line for each key that is too many, too few, or not what its records say. `alone`: no other store is there."""
    keys: list[bytes] = server.ask("KEYS", "*")
    own = f"{{{prefix}}}:".encode()
    others = [key for key in keys if not key.startswith((own, own[:-2] + b":"))]
    found = [f"{key!r} is of no store here" for key in others] if alone else []
    keys = [key for key in keys if key.startswith((own, own[:-2] + b":"))]
    partitions = sorted({key[: key.index(b"}") + 2] for key in keys} - {own})
    found += [f"{key!r} belongs to nobody" for key in keys if key.startswith(own) and key != own + b"store"]
    for tag in partitions:
        found += _of_partition(server, tag, [key for key in keys if key.startswith(tag)])
    return found


def _of_partition(server: ValkeyServer, tag: bytes, keys: list[bytes]) -> list[str]:
    wanted: Sets = {}
    accounted = {tag + b"clock", tag + b"head", tag + b"seq"}
    owners: set[bytes] = set()
    for key in keys:
        what, _, owner = key[len(tag) :].partition(b":")
        if what == b"of":
            accounted.add(key)
            packed: list[bytes] = server.ask("HGETALL", key)
            records = dict(zip(packed[::2], packed[1::2], strict=True))
            if owner:
                wanted.setdefault(tag + b"owners:", {})[owner] = 0.0
            if LETTERS[0].encode() in records:
                owners.add(owner)
            for field, record in records.items():
                _expect(wanted, tag, owner, field, unpacked(record), listed=not owner or len(records) > LISTED)
    for key in keys:
        kind, _, owner = key[len(tag) :].partition(b":")
        if kind in (b"frames", b"appends") and owner in owners:
            accounted.add(key)
    there = set(keys) - accounted
    found = [f"{key!r} belongs to nobody" for key in there - set(wanted)]
    found += [f"{key!r} is missing: {members}" for key, members in wanted.items() if key not in there]
    for key in there & set(wanted):
        pairs: list[bytes] = server.ask("ZRANGE", key, 0, -1, "WITHSCORES")
        members = {m: float(score) for m, score in zip(pairs[::2], pairs[1::2], strict=True)}
        if members != wanted[key]:
            found.append(f"{key!r} holds {members}, should hold {wanted[key]}")
    return found


def _expect(wanted: Sets, tag: bytes, owner: bytes, field: bytes, values: list[Any], *, listed: bool) -> None:
    letter, rest = field[:1], field[1:]
    kind = list(KINDS)[LETTERS.index(letter.decode())]
    record = dict(zip(LAYOUTS[kind].fields, values, strict=True))
    if listed:
        number = f"{record['seq']:016}".encode() if KINDS[kind].SEQUENCED else b""
        wanted.setdefault(tag + b"keys:" + owner, {})[letter + number + rest] = 0.0
    for index in INDEXES:
        if index.kind != kind or (index.unless is not None and record[index.unless] is not None):
            continue
        if index.where is None or record[index.where] is not None:
            group = b"".join(_text(record[field]) for field in index.group)
            member = _member(index, record) if index.member else owner + rest
            set_name = tag + index.name.encode() + b":"
            wanted.setdefault(set_name + group, {})[member] = float(record[index.score]) if index.score else 0.0
            if index.registry:
                wanted.setdefault(tag + b"groups:" + index.name.encode(), {})[group] = 0.0


def _member(index: Index, record: dict[str, Any]) -> bytes:
    parts: list[bytes] = []
    for part in index.member:
        value = record[part.field]
        width = part.up or part.down
        if width is None:
            parts.append(_text(value))
        else:
            number = int(value or 0) if part.up else part.top - int(value or 0)
            parts.append(f"{max(0, min(number, 10**width - 1)):0{width}}".encode())
    return b"".join(parts)


def _text(value: bytes | None) -> bytes:
    return text((value or b"").decode()).encode()


def unpacked(record: bytes) -> list[Any]:
    """A packed record: null is False there, and texts may be any bytes."""
    values: list[Any] = []
    while record:
        value, record = _value(record)
        values.append(None if value is False else value)
    return values


def _value(data: bytes) -> tuple[Any, bytes]:
    mark, data = data[0], data[1:]
    if mark < 0x80:
        return mark, data
    if mark >= 0xE0:
        return mark - 256, data
    if mark == 0xC2:
        return False, data
    if 0xCC <= mark <= 0xD3:
        size = 1 << (mark & 3)
        return int.from_bytes(data[:size], signed=mark >= 0xD0), data[size:]
    if mark >> 5 == 5:
        size = mark & 31
    else:
        wide = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}[mark]
        size, data = int.from_bytes(data[:wide]), data[wide:]
    return data[:size], data[size:]
