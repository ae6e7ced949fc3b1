"""Signed tokens: who has one may resolve one deferred, once, without any other right.

    ol1.KEY_ID.CLAIMS.SIGNATURE

The claims name the execution, its generation, the deferred and the expiry; the signature is HMAC-SHA256 over all that
stands before it. A token is authenticated before anything is looked up, and every token that is not authentic gets the
same answer. Keys have ids, so that they can be rotated: the first one signs, the others are accepted for a grace.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime

import msgspec
from msgspec import Struct

from outlast.errors import InvalidConfig, InvalidName, InvalidToken, TokenExpired
from outlast.model.names import check_word

_PREFIX = "ol1"
_MAX_CHARS = 4_096
KEY_MIN_BYTES = 16
_NOBODY = b"\0" * 32
"""Unknown keys are checked against this one: they take as long as known ones."""


class Claims(Struct, frozen=True, array_like=True):
    namespace: str
    execution: str
    generation: int
    name: str
    expires_at: int


class Key(Struct, frozen=True):
    """`until` is when the grace of a rotated key ends; None: it does not."""

    id: str
    secret: bytes
    until: int | None = None

    def __repr__(self) -> str:
        return f"<key {self.id!r}>"


class Tokens:
    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = {key.id: key for key in keys}
        self._signing = keys[0] if keys else None

    def sign(self, claims: Claims) -> str:
        key = self._signing
        if key is None:
            raise InvalidConfig(
                "tokens need a key: set OUTLAST_TOKEN_KEYS (or App(token_keys=…)) to the output of `outlast tokens key`"
            )
        signed = f"{_PREFIX}.{key.id}.{_text(msgspec.json.encode(claims))}"
        return f"{signed}.{_text(_signature(key.secret, signed))}"

    def authenticate(self, token: object, *, now: int) -> Claims:
        """What an authentic token claims; `InvalidToken` says nothing else of any other."""
        signed, _, signature = str(token)[:_MAX_CHARS].rpartition(".")
        prefix, _, rest = signed.partition(".")
        key_id, _, claims = rest.rpartition(".")
        key = self._keys.get(key_id)
        if key is not None and key.until is not None and key.until <= now:
            key = None
        secret = _NOBODY if key is None else key.secret
        right = hmac.compare_digest(_text(_signature(secret, signed)).encode(), signature.encode(errors="replace"))
        if not right or key is None or prefix != _PREFIX:
            raise InvalidToken
        try:
            found = msgspec.json.decode(_bytes(claims), type=Claims)
        except (ValueError, msgspec.MsgspecError):
            raise InvalidToken from None
        if found.expires_at <= now:
            raise TokenExpired
        return found


def for_replay(keys: tuple[Key, ...]) -> Tokens:
    """Where code is only replayed, nobody needs the secret: without one, tokens are signed that open nothing."""
    return Tokens(keys or (Key("replay", secrets.token_bytes(KEY_MIN_BYTES)),))


def _signature(secret: bytes, signed: str) -> bytes:
    return hmac.new(secret, signed.encode(errors="replace"), hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def parse_keys(value: object) -> tuple[Key, ...]:
    """`new:SECRET,old:SECRET@2026-12-01T00:00:00Z`: the first signs; an old one is accepted until its time."""
    keys = tuple(_key(one.strip()) for one in str(value).split(",") if one.strip())
    if len({key.id for key in keys}) < len(keys):
        raise InvalidConfig("token_keys: every key needs an id of its own")
    if keys and keys[0].until is not None:
        raise InvalidConfig("token_keys: the first key signs, so its time must not be limited")
    return keys


def _key(text: str) -> Key:
    name, colon, rest = text.partition(":")
    secret, at, until = rest.partition("@")
    if not colon or not name or "." in name:
        raise InvalidConfig("token_keys must look like ID:SECRET,OLD_ID:SECRET@2026-12-01T00:00:00Z; an id has no dot")
    try:
        data = _bytes(secret)
    except ValueError:
        raise InvalidConfig(f"token_keys: the secret of {name!r} is not base64url; make one with `outlast tokens key`")
    if len(data) < KEY_MIN_BYTES:
        raise InvalidConfig(f"token_keys: the secret of {name!r} is shorter than {KEY_MIN_BYTES} bytes")
    return Key(check_word("key id", name), data, _moment(name, until) if at else None)


def _moment(name: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise InvalidConfig(f"token_keys: {name!r} must end at a time such as 2026-12-01T00:00:00Z, not {text!r}")
    return round(moment.timestamp() * 1_000)


def new_key(key_id: str, secret: bytes) -> str:
    """A key as `token_keys` takes it."""
    for separator in (":", "."):
        if separator in key_id:
            raise InvalidName("key id", key_id, f"must not contain {separator!r}")
    return f"{check_word('key id', key_id)}:{_text(secret)}"
