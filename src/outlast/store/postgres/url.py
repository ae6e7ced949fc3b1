"""`postgresql://user:password@host:5432/database?option=value`: what is the server's, and what is ours."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from msgspec import Struct

from outlast.errors import InvalidConfig

SCHEMES = ("postgresql", "postgres")
PARTITIONS_DEFAULT = 64
PARTITIONS_MAX = 4_096
OURS = ("partitions", "pool_size", "patience", "doorbell", "pgbouncer")


class Address(Struct, frozen=True, kw_only=True):
    """Where the database is, and how it is used."""

    dsn: str
    shown: str
    """For people: without the password."""
    partitions: int | None
    """Only for a database that has no schema yet."""
    pool_size: int
    patience_s: float
    doorbell: bool
    pgbouncer: bool
    named: bool
    """Whether the URL says what the server is to call these connections (`application_name`)."""


def parse_url(url: str) -> Address:
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        shown = f"{parts.scheme}://{_without_password(parts)}{parts.path}"
    except ValueError as error:
        raise InvalidConfig(f"this is not a URL ({error}): write postgresql://user@host:5432/database") from error
    if parts.scheme not in SCHEMES:
        raise InvalidConfig(f"{shown!r} is not a PostgreSQL URL: write postgresql://user@host:5432/database")
    options = dict(pairs)
    if len(options) < len(pairs):
        raise InvalidConfig(f"{shown!r} gives an option twice")
    ours = {name: options.pop(name) for name in OURS if name in options}
    pgbouncer = _flag(ours, "pgbouncer", default=False)
    if pgbouncer and ours.get("doorbell") == "on":
        raise InvalidConfig("behind a pool of transactions nobody hears NOTIFY: pgbouncer=on or doorbell=on, not both")
    return Address(
        dsn=f"{parts.scheme}://{parts.netloc}{parts.path}{f'?{given}' if (given := _encoded(options)) else ''}",
        shown=shown,
        partitions=None if "partitions" not in ours else _number(ours, "partitions", 0, PARTITIONS_MAX),
        pool_size=_number(ours, "pool_size", 5, 1_000),
        patience_s=float(_number(ours, "patience", 30, 3_600, least=0)),
        # LISTEN needs a connection of its own, which a pool of transactions does not give.
        doorbell=_flag(ours, "doorbell", default=not pgbouncer),
        pgbouncer=pgbouncer,
        named="application_name" in options,
    )


def _encoded(options: dict[str, str]) -> str:
    return urlencode(options, quote_via=quote)


def _without_password(parts: SplitResult) -> str:
    user, at, place = parts.netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{place}"


def _number(options: dict[str, str], name: str, default: int, most: int, *, least: int = 1) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise InvalidConfig(f"{name} must be between {least} and {most:,}, not {text!r}")
    return int(text)


def _flag(options: dict[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text not in ("on", "off"):
        raise InvalidConfig(f"{name} must be on or off, not {text!r}")
    return text == "on"
