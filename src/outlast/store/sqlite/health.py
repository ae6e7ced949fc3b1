"""How the file is: its size, its WAL, its room, its settings, its time, and whether its pages are as they should be."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

from outlast.store.port import Check, Grade, Health, ReadyLane
from outlast.store.sqlite.connection import Transaction
from outlast.store.sqlite.migrate import SCHEMA
from outlast.store.sqlite.statements import statement

MB = 1_000_000
WAL_LARGE_BYTES = 256 * MB
ROOM_LOW_BYTES = 1_000 * MB
ROOM_GONE_BYTES = 100 * MB
STANDS_STILL_MS, STANDS_STILL_LONG_MS = 1_000, 60_000
QUICK_CHECK_MAX_BYTES = 512 * MB
"""Checking every page of a larger file takes long: only if asked for."""


def health(tx: Transaction, file: Path, synchronous: str, stands_still_ms: int, *, deep: bool) -> Health:
    """`stands_still_ms`: so long it takes until the machine's clock shows the store's time again."""
    ready = [ReadyLane(*row) for row in tx.rows(statement("health_ready"))]
    checks = [
        Check(name="schema", found=f"{SCHEMA}, the one that this version of Outlast needs"),
        _synchronous(synchronous),
        _journal_mode(str(tx.rows("PRAGMA journal_mode")[0][0])),
        _size(tx, file),
        _wal(file),
        _room(file),
        _time(stands_still_ms),
        _integrity(tx, file, deep=deep),
    ]
    return Health(checks, ready)


def _synchronous(mode: str) -> Check:
    if mode == "FULL":
        return Check(name="durability", found="synchronous=FULL: what was answered survives a power cut")
    return Check(
        name="durability",
        found=f"synchronous={mode}: a power cut may take the last commits",
        grade=Grade.WARNING,
        advice="leave ?synchronous=NORMAL out of the URL, unless you chose that on purpose",
    )


def _journal_mode(mode: str) -> Check:
    if mode == "wal":
        return Check(name="journal mode", found="wal: readers and writers do not wait for each other")
    return Check(
        name="journal mode",
        found=f"{mode}, not wal: readers and writers wait for each other",
        grade=Grade.WARNING,
        advice="the next worker that opens it sets it right; did another program change it?",
    )


def _size(tx: Transaction, file: Path) -> Check:
    page, free = tx.rows("PRAGMA page_size")[0][0], tx.rows("PRAGMA freelist_count")[0][0]
    return Check(name="file", found=f"{_bytes(_size_of(file))}, of which {_bytes(page * free)} are free for reuse")


def _wal(file: Path) -> Check:
    size = _size_of(file.with_name(f"{file.name}-wal"))
    if size <= WAL_LARGE_BYTES:
        return Check(name="WAL", found=_bytes(size))
    return Check(
        name="WAL",
        found=f"{_bytes(size)}: it cannot be folded into the file",
        grade=Grade.WARNING,
        advice="a long read (a shell, a backup) keeps it: end that, and it shrinks by itself",
    )


def _room(file: Path) -> Check:
    free = shutil.disk_usage(file.parent).free
    grade = Grade.WRONG if free < ROOM_GONE_BYTES else Grade.WARNING if free < ROOM_LOW_BYTES else Grade.OK
    advice = "free some room on the disk, or purge what has ended (outlast purge --older-than 30d)"
    return Check(name="disk", found=f"{_bytes(free)} free", grade=grade, advice=None if grade is Grade.OK else advice)


def _time(stands_still_ms: int) -> Check:
    """A store's time never goes back. So if the machine's clock did, nothing that takes time happens meanwhile."""
    if stands_still_ms < STANDS_STILL_MS:
        return Check(name="time", found="goes on")
    left = timedelta(seconds=-(-stands_still_ms // 1_000))
    return Check(
        name="time",
        found=f"stands still for another {left}: this machine's clock was turned back, or was ahead before",
        grade=Grade.WRONG if stands_still_ms >= STANDS_STILL_LONG_MS else Grade.WARNING,
        advice="until then no timer, timeout or backoff ends, and nothing of a dead worker is taken over: wait, or set "
        "the clock right if it is wrong now",
    )


def _integrity(tx: Transaction, file: Path, *, deep: bool) -> Check:
    if not deep and _size_of(file) > QUICK_CHECK_MAX_BYTES:
        return Check(name="integrity", found="not looked at: a file of this size takes long (--deep does it)")
    complaints = [str(row[0]) for row in tx.rows(f"PRAGMA {'integrity_check' if deep else 'quick_check'}(5)")]
    if complaints == ["ok"]:
        return Check(name="integrity", found="ok" if deep else "ok (quick check)")
    return Check(
        name="integrity",
        found="; ".join(complaints),
        grade=Grade.WRONG,
        advice="stop the workers, keep a copy of the file, and restore it from a backup",
    )


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1_000
    return f"{size:,.1f} TB"
