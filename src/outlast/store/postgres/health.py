"""How the database is: its version, durability, privileges, indexes, old transactions, dead rows, and the doorbell."""

from __future__ import annotations

import re

from outlast.store.port import Check, Grade, Health, ReadyLane
from outlast.store.postgres.connection import Session
from outlast.store.postgres.functions import FUNCTIONS
from outlast.store.postgres.migrate import SCHEMA, migrations
from outlast.store.postgres.statements import statement

VERSION_MIN = 15
OLD_WARNING_S, OLD_WRONG_S = 60.0, 3_600.0
CONNECTIONS_WARNING = 0.8
SKEW_MIN_READY = 10_000
SKEW_FACTOR = 8
_INDEX = re.compile(r"^CREATE\sINDEX\s(\w+)", re.MULTILINE)

INDEXES = tuple(_INDEX.findall("\n".join(migrations().values())))


async def health(session: Session, *, partitions: int, heard: bool | None, deep: bool) -> Health:
    """`heard` is whether the doorbell rings; None if there is none."""
    ready = [ReadyLane(*row) for row in await session.rows(statement("health_ready"))]
    server = (await session.rows(statement("health:server")))[0]
    checks = [
        Check(name="schema", found=f"{SCHEMA}, the one that this version of Outlast needs; {partitions} partitions"),
        _version(server),
        _durability(server),
        _connections(server),
        await _privileges(session),
        await _indexes(session),
        await _oldest(session),
        await _feed(session),
        await _bloat(session),
        _doorbell(heard),
    ]
    if deep:
        checks.append(await _skew(session, partitions))
    return Health(checks, ready)


def _version(server: dict[str, object]) -> Check:
    major = int(str(server["version"])) // 10_000
    found = f"PostgreSQL {server['version_text']}, {int(str(server['size'])) / 1e6:,.1f} MB, {server['encoding']}"
    if major < VERSION_MIN:
        return Check(name="server", found=found, grade=Grade.WARNING, advice=f"use PostgreSQL {VERSION_MIN} or newer")
    return Check(name="server", found=found)


def _durability(server: dict[str, object]) -> Check:
    if server["standby"]:
        return Check(
            name="durability",
            found="this is a standby: it can be read, not written",
            grade=Grade.WRONG,
            advice="connect to the primary (target_session_attrs=read-write in the URL finds it)",
        )
    if server["read_only"]:
        return Check(
            name="durability",
            found="transactions are read-only here: nothing can be written",
            grade=Grade.WRONG,
            advice="see why default_transaction_read_only is on, for this role or database (a full disk?)",
        )
    if server["fsync"] == "on" and server["synchronous_commit"] != "off":
        return Check(name="durability", found="fsync and synchronous_commit: what was answered survives a power cut")
    return Check(
        name="durability",
        found=f"fsync={server['fsync']}, synchronous_commit={server['synchronous_commit']}: a crash may take commits",
        grade=Grade.WARNING,
        advice="turn both on, unless you chose that on purpose",
    )


def _connections(server: dict[str, object]) -> Check:
    used, most = int(str(server["connections"])), int(str(server["connections_max"]))
    found = f"{used} of {most}"
    if used < most * CONNECTIONS_WARNING:
        return Check(name="connections", found=found)
    advice = "raise max_connections, lower ?pool_size=, or put pgbouncer in between (?pgbouncer=on)"
    return Check(name="connections", found=found, grade=Grade.WARNING, advice=advice)


async def _privileges(session: Session) -> Check:
    rows = await session.rows(statement("health:privileges"), {"functions": [*FUNCTIONS, "settled"]})
    lacking = [str(row["name"]) for row in rows]
    if not lacking:
        return Check(name="privileges", found="this role may read and write every table of the schema")
    return Check(
        name="privileges",
        found=f"this role may not use {', '.join(lacking)}",
        grade=Grade.WRONG,
        advice="grant what migrations/roles.sql grants (docs/postgres.md)",
    )


async def _indexes(session: Session) -> Check:
    gone = [str(row["name"]) for row in await session.rows(statement("health:indexes"), {"names": list(INDEXES)})]
    if not gone:
        return Check(name="indexes", found=f"all {len(INDEXES)} are there and valid")
    return Check(
        name="indexes",
        found=f"missing or invalid: {', '.join(gone)}",
        grade=Grade.WRONG,
        advice="make them again as in migrations/0001_initial.sql (with CONCURRENTLY while work goes on)",
    )


async def _oldest(session: Session) -> Check:
    oldest = (await session.rows(statement("health:oldest")))[0]
    seconds = float(oldest["seconds"])
    grade = Grade.WRONG if seconds > OLD_WRONG_S else Grade.WARNING if seconds > OLD_WARNING_S else Grade.OK
    if grade is Grade.OK:
        unseen = f", but for {oldest['hidden']} connections that it takes pg_read_all_stats to see"
        return Check(name="oldest transaction", found=f"{seconds:.1f} s{unseen if oldest['hidden'] else ''}")
    return Check(
        name="oldest transaction",
        found=f"open for {seconds:,.0f} s ({oldest['who']})",
        grade=grade,
        advice="while it is open the feed of completions stands still and dead rows stay: end it",
    )


async def _feed(session: Session) -> Check:
    if not (await session.rows(statement("health:feed")))[0]["ahead"]:
        return Check(name="feed", found="completions are of this server's transactions")
    return Check(
        name="feed",
        found="completions are of another server's transactions (a restored dump?): the feed does not show them",
        grade=Grade.WRONG,
        advice="number them anew, as docs/postgres.md says under 'The feed of completions'; its readers begin anew",
    )


async def _bloat(session: Session) -> Check:
    rows = await session.rows(statement("health:bloat"))
    if not rows:
        return Check(name="dead rows", found="few")
    worst = rows[0]
    return Check(
        name="dead rows",
        found=f"outlast.{worst['name']} has {worst['dead']:,} dead rows beside {worst['live']:,} live ones",
        grade=Grade.WARNING,
        advice="is autovacuum on? VACUUM (ANALYZE) it once, and look for an old transaction",
    )


def _doorbell(heard: bool | None) -> Check:
    if heard:
        return Check(name="doorbell", found="LISTEN and NOTIFY: waiting workers are woken in milliseconds")
    if heard is None:
        return Check(name="doorbell", found="off: workers poll, so work may wait for an interval before it is seen")
    return Check(
        name="doorbell",
        found="what NOTIFY says does not come back: workers poll, so work may wait for an interval before it is seen",
        grade=Grade.WARNING,
        advice="a pool of transactions in between does that: pass it by, or say so (?pgbouncer=on, or ?doorbell=off)",
    )


async def _skew(session: Session, partitions: int) -> Check:
    ready, fullest = (await session.rows(statement("health:skew")))[0]
    total = (await session.rows(statement("health:ready_total")))[0]["n"]
    found = f"{total:,} ready in {ready} of {partitions} partitions, {fullest:,} in the fullest"
    if total > SKEW_MIN_READY and fullest * partitions > SKEW_FACTOR * total:
        advice = "one family of executions (ids under one root) holds much of the work: start some of it detached"
        return Check(name="skew", found=found, grade=Grade.WARNING, advice=advice)
    return Check(name="skew", found=found)
