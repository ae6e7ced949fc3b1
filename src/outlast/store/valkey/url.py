"""Where a store is, read from its URL."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from outlast.errors import InvalidConfig
from outlast.model.duration import to_ms
from outlast.store.valkey.connection import Address, Login
from outlast.store.valkey.servers import Replicas

PARTITIONS = 16
PARTITIONS_MAX = 1_024
PORT = 6379
SCHEMES = ("valkey", "valkeys", "redis", "rediss")
TLS = ("valkeys", "rediss")
_PLACE = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\s:#\[\]]+))(?::(?P<port>.*))?")
OPTIONS = ("prefix", "partitions", "min_replicas", "replica_timeout", "answer_timeout")


class Place(Struct, frozen=True, kw_only=True):
    shown: str
    """The URL as people may see it: without its password."""
    addresses: tuple[Address, ...]
    login: Login
    cluster: bool
    prefix: str
    partitions: int
    partitions_given: bool
    replicas: Replicas


def parse_url(url: str) -> Place:
    scheme, colon, rest = url.partition("://")
    kind, _, how = scheme.partition("+")
    if not colon or kind not in SCHEMES or how not in ("", "unix", "cluster"):
        raise InvalidConfig(
            f"{scheme}:// is no URL of a Valkey store: valkey://host:6379/0, valkey+cluster://host1,host2"
        )
    rest, _, query = rest.partition("?")
    options = _options(query)
    userinfo, at, where = rest.rpartition("@")
    netloc, _, path = where.partition("/")
    user, _, password = userinfo.partition(":")
    if user and not password:
        # Not shown: who forgets the colon has written a password.
        raise InvalidConfig("a user comes with a password: valkey://user:password@host, or valkey://:password@host")
    database = 0 if how == "unix" else _number("database", path or "0", 0, 1_000_000)
    if how == "cluster" and database:
        raise InvalidConfig("a cluster has one database: leave the number out of the URL")
    addresses = (_socket(kind, netloc, path),) if how == "unix" else _addresses(netloc, how)
    prefix = options.get("prefix", "outlast")
    if not prefix or any(letter in "{}*?[]\\" or not letter.isprintable() for letter in prefix):
        raise InvalidConfig(f"prefix={prefix!r}: letters and digits, no braces and no wildcards")
    shown = f"{scheme}://{f'{user}@' if user else ''}{where}" + (f"?prefix={prefix}" if prefix != "outlast" else "")
    answer_timeout_ms = _duration_ms(options, "answer_timeout", "10s")
    return Place(
        shown=shown,
        addresses=addresses,
        login=Login(
            user=unquote(user) or None,
            password=unquote(password) if at and password else None,
            database=database,
            tls=kind in TLS,
            answer_timeout_s=answer_timeout_ms / 1_000,
        ),
        cluster=how == "cluster",
        prefix=prefix,
        partitions=_number("partitions", options.get("partitions", str(PARTITIONS)), 1, PARTITIONS_MAX),
        partitions_given="partitions" in options,
        replicas=_replicas(options, answer_timeout_ms),
    )


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise InvalidConfig(f"an option is given twice: {', '.join(name for name, _ in pairs)}")
    for name in options:
        if name not in OPTIONS:
            raise InvalidConfig(f"?{name}= is no option of a Valkey store: {', '.join(OPTIONS)}")
    return options


def _socket(kind: str, netloc: str, path: str) -> Address:
    if netloc or not path:
        raise InvalidConfig(
            f"{kind}+unix:///run/valkey/valkey.sock: the path of the socket begins behind the third slash"
        )
    if kind in TLS:
        raise InvalidConfig(f"there is no TLS on a Unix socket: write valkey+unix:///{path}")
    return Address(path=f"/{unquote(path)}")


def _addresses(netloc: str, how: str) -> tuple[Address, ...]:
    found: list[Address] = []
    for part in netloc.split(",") if netloc else ("localhost",):
        place = _PLACE.fullmatch(part)
        if place is None:
            raise InvalidConfig(f"{part!r} is no server: write host, host:{PORT} or [::1]:{PORT}")
        found.append(Address(place["v6"] or place["host"], _number("port", place["port"] or str(PORT), 1, 65_535)))
    if how != "cluster" and len(found) > 1:
        raise InvalidConfig("several servers are a cluster: valkey+cluster://host1,host2")
    return tuple(found)


def _replicas(options: dict[str, str], answer_timeout_ms: int) -> Replicas:
    number = _number("min_replicas", options.get("min_replicas", "0"), 0, 10)
    timeout_ms = _duration_ms(options, "replica_timeout", "1s")
    if number and timeout_ms >= answer_timeout_ms:
        raise InvalidConfig(
            f"replica_timeout ({timeout_ms:,} ms) must be shorter than answer_timeout ({answer_timeout_ms:,} ms): a "
            "server that waits for its replicas would be given up before it answers"
        )
    return Replicas(number, timeout_ms)


def _duration_ms(options: dict[str, str], name: str, default: str) -> int:
    return max(1, to_ms(options.get(name, default), what=name))


def _number(what: str, value: str, least: int, most: int) -> int:
    if not (value.isascii() and value.isdecimal() and least <= int(value) <= most):
        raise InvalidConfig(f"{what} must be a number from {least} to {most:,}, not {value!r}")
    return int(value)
