"""Times, durations and values as people read them."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any, cast

import msgspec

from outlast import limits
from outlast.codec.failures import Failure

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def duration(ms: int) -> str:
    """Two units at most: `850ms`, `3.2s`, `4m10s`, `2d3h`."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 10_000:
        return f"{ms / 1_000:.1f}s".replace(".0s", "s")
    for (unit, size), (smaller, small) in pairwise(_UNITS):
        if ms >= size:
            rest = ms % size // small
            return f"{ms // size}{unit}{f'{rest}{smaller}' if rest else ''}"
    return f"{ms // 1_000}s"


def age(ms: int) -> str:
    """One unit: for a column."""
    for unit, size in _UNITS:
        if ms >= size:
            return f"{ms // size}{unit}"
    return "now"


def local(ms: int) -> datetime:
    return datetime.fromtimestamp(min(ms, limits.MOMENT_MAX_MS) / 1_000).astimezone()


def to_ms(at: datetime) -> int:
    """The milliseconds of the epoch that a view's time stands for."""
    return round(at.timestamp() * 1_000)


def moment(ms: int, *, now: int) -> str:
    """A time of day; with its date unless that is today."""
    at, today = local(ms), local(now)
    return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def relative(ms: int, *, now: int) -> str:
    """`in 5m` or `3s ago`, from now."""
    return f"in {duration(ms - now)}" if ms > now else f"{duration(now - ms)} ago"


def plain(data: bytes | None) -> Any:
    """The JSON in stored bytes; if an app's codec sealed them, only how many there are."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {"sealed_bytes": len(data)}


def shown(data: bytes | None) -> str:
    """Stored bytes on one line; nothing if there are none."""
    return "" if data is None else line_of(plain(data))


def line_of(value: Any) -> str:
    """A value from `plain` on one line."""
    if isinstance(value, dict) and cast("dict[str, Any]", value).keys() == {"sealed_bytes"}:
        return f"{value['sealed_bytes']:,} bytes, sealed by the app's codec"
    return msgspec.json.encode(value).decode()


def failure(data: bytes | None) -> Failure | None:
    """A stored failure; None if there is none, or it is sealed."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Failure)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def failure_line(data: bytes | None) -> str:
    """`ValueError: no such card`."""
    found = failure(data)
    return shown(data) if found is None else error_line(found.type, found.message)


def error_line(type: str, message: str | None) -> str:
    name = type.rpartition(":")[2]
    return f"{name}: {message}" if message else name


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`many` is the noun's plural, if it is not with an s."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"
