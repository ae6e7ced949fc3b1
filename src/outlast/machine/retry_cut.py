"""Which journal entries a retry runs again, and in which order they leave the journal.

The failure that escaped, what the code gave up because of it, and what a cancel cut short run again, and so does the
start of a called child or a flow that was cancelled with it; what still waits waits anew; all else replays as it was.
An entry that is deleted runs again, so the choice is the machine's, and it is pure.

There may be more of them than one change holds. Then they leave in parts, ahead of the failure or the retry itself, and
whoever does it may die in between. So the order matters: first what was given up (a start before the note that tells of
it), last what made the code give up (the failures, latest first; the cancel). What is left in between replays to the
same end, and the rest is found again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from outlast import limits
from outlast.machine.replay import is_named_timer, waits_for
from outlast.model.journal import CANCEL, CANCELLED, START, SUCCEEDED, WAIT, JournalEntry
from outlast.model.operation import BESIDE_CALLS

EntryKey = tuple[str, str, int]
"""(scope, name, occurrence): with the execution and its generation, the journal's key."""

PART_MAX = limits.CHANGES_MAX_WRITES - 50
"""So many entries leave the journal in one change: the rest of it needs some writes, too."""


def escaped(journal: Iterable[JournalEntry], keys: Container[EntryKey]) -> list[JournalEntry]:
    """The entries of these keys, as they may leave."""
    return in_order(entry for entry in journal if _key(entry) in keys)


def at_places(journal: Iterable[JournalEntry], places: Container[int]) -> list[JournalEntry]:
    """The entries at these positions, as they may leave."""
    return in_order(entry for entry in journal if entry.position in places)


def cut_short(journal: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Of a journal in the order of its positions: the cancel, and what it cut short. What was recorded while the code
    unwound stays."""
    begun = next((place for place, entry in enumerate(journal) if entry.op == CANCEL), len(journal))
    return in_order(entry for entry in journal[begun:] if entry.op == CANCEL or entry.outcome == CANCELLED)


def still_waiting(journal: Sequence[JournalEntry]) -> list[JournalEntry]:
    """How long what has no outcome may wait. Not of a named timer: its first wake time wins."""
    outcomes = {_key(entry) for entry in journal}
    began = ((waits_for(entry), entry) for entry in journal if entry.op == WAIT)
    return in_order(entry for key, entry in began if key not in outcomes and not is_named_timer(key))


def parts(entries: Sequence[JournalEntry]) -> tuple[list[tuple[EntryKey, ...]], tuple[EntryKey, ...]]:
    """What leaves ahead, part by part, and what leaves with the failure or the retry: all that fits, if it does."""
    keys = [_key(entry) for entry in entries]
    last = max(0, len(keys) - PART_MAX)
    ahead = [tuple(keys[begin : min(begin + PART_MAX, last)]) for begin in range(0, last, PART_MAX)]
    return ahead, tuple(keys[last:])


def places_of(entries: Iterable[JournalEntry]) -> bytes:
    """Positions as one bit each, so that those of the longest journal fit into a failure."""
    bits = bytearray()
    for entry in entries:
        byte, bit = divmod(entry.position, 8)
        bits.extend(bytes(max(0, byte + 1 - len(bits))))
        bits[byte] |= 1 << bit
    return bytes(bits)


def places_in(bits: bytes) -> frozenset[int]:
    return frozenset(8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1)


def in_order(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    return sorted(entries, key=lambda entry: (_rank(entry), -entry.position))


def _rank(entry: JournalEntry) -> int:
    if entry.op == START and entry.outcome == SUCCEEDED:
        return 0
    if entry.outcome == CANCELLED:
        return 1
    return 2 if entry.op in BESIDE_CALLS else 3


def _key(entry: JournalEntry) -> EntryKey:
    return (entry.scope, entry.name, entry.occurrence)
