"""How the servers are: what they would lose, and what waits. Durability is theirs to give, so it is said plainly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outlast.errors import OutlastError, StoreUnavailable
from outlast.store.port import Check, Grade, Health, ReadyLane
from outlast.store.valkey.claim import Call
from outlast.store.valkey.commit import packed
from outlast.store.valkey.servers import Server, Servers

_log = logging.getLogger(__name__)


BRING_IT_BACK = (
    "bring it back, or let a replica take its place; meanwhile what lives on the other servers goes on, if the cluster "
    "has cluster-require-full-coverage no"
)


class Settings(Struct, frozen=True, kw_only=True):
    """What one server is set to; None where it does not tell."""

    where: str
    version: str
    appendonly: bool
    appendfsync: str | None
    eviction: str
    used_memory: int
    max_memory: int
    primary: bool
    replicas: int
    replicas_wanted: int
    """Of its own, before it takes a write (`min-replicas-to-write`)."""
    replicas_good: int
    """As it counts them for that."""
    writes_fail: bool


class Away(Struct, frozen=True):
    """A server that cannot be asked."""

    where: str
    why: str


async def settings(servers: Servers) -> list[Settings | Away]:
    """Of every server: one that is away keeps nobody from hearing of the others."""
    return list(await asyncio.gather(*(_settings_or_away(server) for server in await servers.primaries())))


async def _settings_or_away(server: Server) -> Settings | Away:
    try:
        return await _settings(server)
    except StoreUnavailable as error:
        return Away(str(server.address), str(error))


async def _settings(server: Server) -> Settings:
    text: bytes = await server.ask("INFO", "server", "persistence", "memory", "replication")
    pairs = (line.partition(":") for line in text.decode().splitlines() if ":" in line)
    told = {name: value for name, _, value in pairs}
    return Settings(
        where=str(server.address),
        version=f"{told.get('server_name', 'redis')} {told.get('valkey_version', told.get('redis_version', '?'))}",
        appendonly=told.get("aof_enabled") == "1",
        appendfsync=await _config(server, "appendfsync"),
        eviction=told.get("maxmemory_policy", "noeviction"),
        used_memory=int(told.get("used_memory", "0")),
        max_memory=int(told.get("maxmemory", "0")),
        primary=told.get("role", "master") == "master",
        replicas=int(told.get("connected_slaves", "0")),
        replicas_wanted=int(await _config(server, "min-replicas-to-write") or "0"),
        replicas_good=int(told.get("min_slaves_good_slaves", "0")),
        writes_fail=told.get("aof_last_write_status", "ok") != "ok",
    )


async def _config(server: Server, name: str) -> str | None:
    try:
        found: list[Any] = await server.ask("CONFIG", "GET", name)
    except OutlastError:  # a hosted server may not say
        return None
    return found[1].decode() if len(found) == 2 else None


def checks_of(found: Settings, min_replicas: int) -> list[Check]:
    return [
        _server(found, min_replicas),
        _durability(found),
        _eviction(found),
        _memory(found),
    ]


def _server(found: Settings, min_replicas: int) -> Check:
    """Whether it takes writes, and answers them."""
    text = f"{found.where}: {found.version}, {found.replicas} replicas"
    if not found.primary:
        text, advice = f"{found.where} is a replica: it can be read, not written", "name its primary in the URL"
    elif found.replicas < min_replicas:
        text = f"{text}, and min_replicas={min_replicas} of the URL: no write is ever answered"
        advice = "bring the replicas back, or ask for fewer"
    elif found.replicas_good < found.replicas_wanted:
        text = f"{text}, {found.replicas_good} of them good; min-replicas-to-write {found.replicas_wanted}: writes fail"
        advice = "bring the replicas back, or let the server want fewer"
    else:
        return Check(name="server", found=text)
    return Check(name="server", found=text, grade=Grade.WRONG, advice=advice)


def _durability(found: Settings) -> Check:
    name = "durability"
    if not found.appendonly:
        return Check(
            name=name,
            found=f"{found.where}: appendonly is off: a restart or a crash of the server loses acknowledged work",
            grade=Grade.WRONG,
            advice="set appendonly yes and appendfsync always (docs/valkey.md)",
        )
    if found.writes_fail:
        return Check(
            name=name,
            found=f"{found.where}: the last write of its append-only file failed",
            grade=Grade.WRONG,
            advice="look at the server's log and disk",
        )
    match found.appendfsync:
        case "always":
            return Check(name=name, found=f"{found.where}: appendfsync always: what was answered survives a power cut")
        case None:
            return Check(
                name=name,
                found=f"{found.where}: appendonly is on, appendfsync is not told",
                grade=Grade.WARNING,
                advice="ask whoever runs it: everysec may lose the last second, always loses nothing",
            )
        case other:
            lost = "the last second" if other == "everysec" else "up to half a minute"
            return Check(
                name=name,
                found=f"{found.where}: appendfsync {other}: a power cut may take {lost} of acknowledged work",
                grade=Grade.WARNING,
                advice="set appendfsync always, unless you chose that on purpose (docs/valkey.md)",
            )


def _eviction(found: Settings) -> Check:
    if found.eviction == "noeviction":
        return Check(name="eviction", found=f"{found.where}: noeviction: a full server refuses, and forgets nothing")
    return Check(
        name="eviction",
        found=f"{found.where}: {found.eviction}: a full server throws records away",
        grade=Grade.WRONG,
        advice="set maxmemory-policy noeviction",
    )


def _memory(found: Settings) -> Check:
    used = f"{found.where}: {found.used_memory / 1e6:,.1f} MB"
    if not found.max_memory:
        return Check(name="memory", found=f"{used}, no limit set")
    share = found.used_memory / found.max_memory
    grade = Grade.WRONG if share > 0.95 else Grade.WARNING if share > 0.8 else Grade.OK
    advice = None if grade is Grade.OK else "purge what has ended (outlast purge --older-than 30d), or give it more"
    return Check(name="memory", found=f"{used} of {found.max_memory / 1e6:,.1f} MB", grade=grade, advice=advice)


async def warn(servers: Servers, url: str) -> None:
    """At start-up, loudly: what can lose acknowledged work. A server that can't tell now keeps nobody from starting."""
    try:
        found = await settings(servers)
    except StoreUnavailable as error:
        _log.warning("%s: what its servers are set to is not known: %s", url, error)
        return
    for server in found:
        if isinstance(server, Away):
            _log.warning("%s: a server is away: %s", url, server.why)
            continue
        for check in (_durability(server), _eviction(server)):
            if check.grade is Grade.WRONG:
                _log.warning("%s: %s; %s", url, check.found, check.advice)


async def reached(servers: Servers, partitions: int) -> list[Check]:
    """Every server as it is, or that it is away, and what is not reached without it. Fails if all are."""
    everywhere, checks = await settings(servers), list[Check]()
    gone = [found for found in everywhere if isinstance(found, Away)]
    if len(gone) == len(everywhere):
        raise StoreUnavailable(gone[0].why)
    for found in everywhere:
        if isinstance(found, Settings):
            checks += checks_of(found, servers.replicas.number)
            continue
        lost = [str(partition) for partition in range(partitions) if servers.shard(partition) == found.where]
        missing = f"; partitions {', '.join(lost)} are there, and not in what follows" if lost else ""
        checks.append(Check(name="server", found=f"{found.why}{missing}", grade=Grade.WRONG, advice=BRING_IT_BACK))
    return checks


async def health(servers: Servers, call: Call, partitions: int, unheard: Mapping[str, OutlastError]) -> Health:
    """`unheard` are the servers whose doorbells do not ring, and why."""
    checks = [*await reached(servers, partitions), *_doorbell(unheard)]
    answers = await call("health", dict.fromkeys(range(partitions), packed(())))
    lanes: dict[tuple[str, str], tuple[int, int]] = {}
    sizes: list[int] = []
    for size, rows in answers.values():
        sizes.append(size)
        for namespace, lane, depth, oldest in rows:
            key = (namespace.decode(), lane.decode())
            known = lanes.get(key, (0, int(oldest)))
            lanes[key] = (known[0] + depth, min(known[1], int(oldest)))
    checks.append(_skew(sizes, partitions))
    return Health(checks, [ReadyLane(*key, *lanes[key]) for key in sorted(lanes)])


def _doorbell(unheard: Mapping[str, OutlastError]) -> list[Check]:
    if not unheard:
        return [Check(name="doorbell", found="sharded pub/sub: waiting workers are woken in milliseconds")]
    return [
        Check(
            name="doorbell",
            found=f"{why}; workers poll, so work may wait for an interval before it is seen",
            grade=Grade.WARNING,
            advice="let the user ring and listen: ACL SETUSER … &* +spublish +ssubscribe (docs/valkey.md)",
        )
        for why in unheard.values()
    ]


def _skew(sizes: list[int], partitions: int) -> Check:
    """How evenly executions are spread."""
    number = str(partitions) if len(sizes) == partitions else f"{len(sizes)} of {partitions} answer"
    found = f"{number}, with {min(sizes):,} to {max(sizes):,} executions each"
    mean = sum(sizes) / len(sizes)
    if mean < 1_000 or max(sizes) < 4 * mean:
        return Check(name="partitions", found=found)
    return Check(
        name="partitions",
        found=found,
        grade=Grade.WARNING,
        advice="one family of executions is much larger than the others: give its members ids of their own",
    )
