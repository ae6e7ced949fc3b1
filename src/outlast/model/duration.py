"""Durations as people write them: "200ms", "1h30m", a timedelta, or seconds; always milliseconds inside."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from functools import lru_cache
from typing import TypeAlias

from outlast import limits
from outlast.errors import InvalidDuration

Duration: TypeAlias = str | timedelta | int | float

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MILLISECOND = timedelta(milliseconds=1)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")


def to_ms(duration: object, *, what: str = "duration") -> int:
    """The duration in milliseconds; `InvalidDuration` if it is not one, is negative, or is over a century.

    >>> to_ms("1h30m"), to_ms(2.5), to_ms(timedelta(seconds=1))
    (5400000, 2500, 1000)
    """
    if isinstance(duration, bool):
        raise InvalidDuration(f"{what}: {duration!r} is not a duration")
    if isinstance(duration, str):
        ms = _parse(duration, what)
    elif isinstance(duration, timedelta):
        # Whole numbers: seconds as a float lose milliseconds after decades.
        ms, rest = divmod(duration, _MILLISECOND)
        ms += bool(rest)
    elif isinstance(duration, int | float):
        ms = duration * 1_000
    else:
        raise InvalidDuration(f'{what}: {duration!r} is not a duration; write "200ms", "1h30m", a timedelta or seconds')
    if ms != ms or ms < 0:  # NaN alone is not itself; math.isnan would refuse an int too large for a float
        raise InvalidDuration(f"{what}: {duration!r} is negative or not a number")
    if ms > limits.DURATION_MAX_MS:
        raise InvalidDuration(f"{what}: {duration!r} is over a hundred years")
    # Up, so that a short one is not none; but 1.1 * 3_600_000 is 3960000.0000000005, which is no millisecond more.
    return math.ceil(round(ms, 6))


def _parse(text: str, what: str) -> float:
    ms = _read(text)
    if ms is None:
        raise InvalidDuration(f'{what}: {text!r} is not a duration; write "200ms", "30s", "1h30m" or "7d"')
    return ms


@lru_cache(maxsize=1_000)
def _read(text: str) -> float | None:
    """The same few in every program, and again with every replay."""
    if not _WHOLE.fullmatch(text):
        return None
    return sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
