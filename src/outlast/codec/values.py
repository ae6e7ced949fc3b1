"""Typed JSON: builtins, dataclasses, Structs, attrs, Pydantic, datetime, Decimal, UUID, bytes, enums, sets, paths.

A value is decoded by its annotation, live and replayed alike, so that what code sees does not depend on whether it
crashed. And it must come back equal: what JSON or the annotation would change on the way is refused where it is given,
with the path of the culprit, never stored as something else. So:

- NaN and infinity are refused (JSON has none; `Decimal("NaN")` is fine), as are cyclic structures and half surrogates;
- whole numbers may be of any size that Python prints, keys of a dict whatever its annotation reads back;
- without an annotation only plain JSON comes back equal: anything else asks for one. A tuple is then a list;
- plain JSON may be given where a richer type is declared, such as a dict for a dataclass: code sees the declared type.

A hook may turn the bytes into others, to encrypt or compress them. With `allow_pickle` what cannot be kept so
is pickled (`pickled.py` says at what price).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol, cast

import msgspec

from outlast import limits
from outlast.codec.annotations import Unresolved, name_of
from outlast.codec.custom import anything_for_object, from_plain, to_builtins, to_plain
from outlast.codec.pickled import MARK, is_pickled, pickled, refuse_lookalike, unpickled
from outlast.codec.references import Placeholder
from outlast.codec.shapes import Change, change_in, culprit_in, equal, unstorable_in
from outlast.errors import CodecError, CodecHookFailed, InvalidInput, LimitExceeded


class CodecHook(Protocol):
    """Bytes to bytes, both ways: `App(codec=Encrypted(key))`. Called for inputs, results, failures and events."""

    def encode(self, data: bytes, /) -> bytes: ...

    def decode(self, data: bytes, /) -> bytes: ...


_RAISED = (Exception, SystemExit, GeneratorExit)
"""Whatever a user's own type or hook raises: an exit, too, is the trouble of that value and not of its reader."""
_LARGE = 2**63
"""Smaller numbers come back as they are, whoever reads them."""


def is_simple(value: object, annotation: Any) -> bool:
    """Whether it is what was declared, and comes back as it is once it is written."""
    kind = type(value)
    return kind is annotation and (kind is str or kind is bool or (type(value) is int and abs(value) < _LARGE))


class Values:
    """`values.decode(values.encode(order, "order"), Order, "order")`."""

    def __init__(self, hook: CodecHook | None = None, *, allow_pickle: bool = False) -> None:
        for name in () if hook is None else ("encode", "decode"):
            if not callable(getattr(hook, name, None)):
                raise CodecError(f"a codec turns bytes into bytes, both ways: {hook!r} has no method {name}")
        self._hook = hook
        self._allow_pickle = allow_pickle
        self._encoder = msgspec.json.Encoder(enc_hook=to_plain)
        self._canonical = msgspec.json.Encoder(enc_hook=to_builtins, order="deterministic")
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._undeclared = msgspec.json.Decoder(Any)
        self._readable: set[Any] = set()
        """Annotations by which something can be read, as far as that was asked."""

    def encode(self, value: object, what: object) -> bytes:
        """The bytes of a value whose reader is not known yet; `CodecError` names the path of what cannot be stored."""
        try:
            data = self.plain(value, what)
            self.refuse_unstorable(value, what)
        except CodecError as error:
            data = self._pickled(value, Any, error)
        return self.seal(data, what)

    def decode(self, data: bytes, annotation: Any, what: object) -> Any:
        """The value of stored bytes, by its annotation."""
        plain = data if self._hook is None else self.unseal(data, what)
        return self._unpickled(plain, what) if plain.startswith(MARK) else self.read_json(plain, annotation, what)

    def settle(self, value: object, annotation: Any, what: object) -> tuple[bytes, Any]:
        """The bytes of a value, and the value as a replay would see it, which is equal."""
        try:  # most values come back as they are: `keep` would find that in six calls
            data = self._encoder.encode(value)
            settled = self._decoders[annotation].decode(data)
            comes_back = (value == settled) is True and not data.startswith(MARK)
        except _RAISED:  # said by `keep`, with its reason and its place
            data, settled, comes_back = b"", None, False
        if not comes_back:
            data, settled = self.keep(value, annotation, what)
        return self.seal(data, what), settled

    def keep(self, value: object, annotation: Any, what: object, path: str = "value") -> tuple[bytes, Any]:
        """As `settle`, before the hook. `path` is what to call the value."""
        try:
            data = self.plain(value, what, path)
            try:
                return data, self.check(value, data, annotation, what, path)
            except CodecError:
                self.refuse_unstorable(value, what, path)  # the truer reason: NaN is written as null
                raise
        except CodecError as error:
            data = self._pickled(value, annotation, error)
            return data, self.read(data, annotation, what, path)

    def check(self, value: object, data: bytes, annotation: Any, what: object, path: str = "value") -> Any:
        """The value as a replay would see it; `CodecError` if that is not equal. `path` is what to call the value."""
        if is_simple(value, annotation):
            return value
        settled = self.read_json(data, annotation, what, path)  # `plain` has refused what looks like a pickle
        if not equal(value, settled) and (change := change_in(value, settled, path)) is not None:
            raise CodecError(f"{what}: {_explained(change, annotation)}")
        return settled

    def refuse_unstorable(self, value: object, what: object, path: str = "value") -> None:
        """What JSON would write as something else without complaint."""
        found = unstorable_in(value, path)
        if found is not None:
            raise CodecError(f"{what}: {found}")

    def plain(self, value: object, what: object, path: str = "value") -> bytes:
        """JSON, before the hook."""
        try:
            data = self._encoder.encode(value)
        except _RAISED as error:
            raise CodecError(f"{what}: {self._why_not(value, path, error)}") from error
        if data.startswith(MARK):
            refuse_lookalike(data, f"{what}: {path}")
        return data

    def read(self, data: bytes | msgspec.Raw, annotation: Any, what: object, path: str = "value") -> Any:
        """The value of JSON, by its annotation."""
        if is_pickled(data):
            return self._unpickled(data, what, path)
        return self.read_json(data, annotation, what, path)

    def read_json(self, data: bytes | msgspec.Raw, annotation: Any, what: object, path: str = "value") -> Any:
        """… of which is known that it was not pickled."""
        try:
            decoder = self._decoders[annotation]
        except (KeyError, TypeError):
            try:
                decoder = self._decoder(annotation)
            except Exception as error:
                raise CodecError(f"{what}: {path} {_unreadable(annotation, error)}") from error
        try:
            return decoder.decode(data)
        except _RAISED as error:  # also whatever a user's own validation raises
            raise CodecError(
                f"{what}: {_located(str(error) or type(error).__name__, path)}; it should be {name_of(annotation)}"
            ) from error

    def refuse_unreadable(self, annotation: Any, what: object) -> None:
        """Asked before anything is taken to be read: an annotation by which no value ever could be."""
        with suppress(TypeError):  # one that cannot be hashed is asked about each time
            if annotation in self._readable:
                return
        try:
            decoder = self._decoder(annotation)
        except _RAISED as error:
            raise InvalidInput(f"{what}: {annotation!r} is no type that a value can be read as ({error})") from error
        try:
            decoder.decode(b"null")
        except NotImplementedError as error:
            if not self._allow_pickle:  # what was pickled is read without it
                raise InvalidInput(f"{what}: {error}") from error
        except _RAISED:
            pass  # it reads other values
        with suppress(TypeError):
            self._readable.add(annotation)

    def _pickled(self, value: object, annotation: Any, error: CodecError) -> bytes:
        """The pickle of what cannot be kept otherwise, if that is allowed; else the error."""
        if not self._allow_pickle or self._misfits(value, annotation):
            raise error
        try:
            return pickled(value)
        except _RAISED as trouble:
            raise CodecError(f"{error}; nor can it be pickled: {trouble}") from trouble

    def _misfits(self, value: object, annotation: Any) -> bool:
        """Whether it can be stored well enough, and is only not what was declared."""
        if not self._can_encode(value) or unstorable_in(value, "") is not None:
            return False
        try:
            self._decoder(annotation).decode(self._encoder.encode(value))
        except _RAISED:
            return True
        return False

    def _unpickled(self, data: bytes | msgspec.Raw, what: object, path: str = "value") -> Any:
        if not self._allow_pickle:
            raise CodecError(f"{what}: {path} was pickled, and is read only with App(allow_pickle=True)")
        try:
            return unpickled(data)
        except _RAISED as error:  # whatever it runs
            raise CodecError(f"{what}: {path} could not be unpickled: {type(error).__qualname__}: {error}") from error

    def digest(self, value: object, data: bytes) -> str:
        """The same for equal values in every process, whatever the order of their dicts and sets."""
        try:
            ordered = self._canonical.encode(value)
        except _RAISED:
            ordered = self.in_order(value, data)
        return self.digest_of(ordered)

    def digest_of(self, ordered: bytes) -> str:
        """… of what is written in order already."""
        return sha256(ordered).hexdigest()

    def in_order(self, value: object, data: bytes, hook: Callable[[Any], Any] = to_builtins) -> bytes:
        """JSON that is the same whatever the order of dicts and sets; the `data` as it is if there is none."""
        ordered = self._canonical if hook is to_builtins else msgspec.json.Encoder(enc_hook=hook, order="deterministic")
        try:
            return ordered.encode(value)
        except _RAISED:
            try:  # keys other than strings
                plain = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=hook)
                return ordered.encode(plain)
            except _RAISED:
                return data

    def seal(self, data: bytes, what: object = "value") -> bytes:
        """The bytes to store, within the limit."""
        sealed = data if self._hook is None else self._hooked(self._hook.encode, data, f"{what} could not be encoded")
        if len(sealed) > limits.PAYLOAD_MAX_BYTES:
            raise LimitExceeded(str(what), actual=len(sealed), limit=limits.PAYLOAD_MAX_BYTES, unit="bytes")
        return sealed

    def unseal(self, data: bytes, what: object = "value") -> bytes:
        return data if self._hook is None else self._hooked(self._hook.decode, data, f"{what} could not be decoded")

    def _hooked(self, turn: Any, data: bytes, trouble: str) -> bytes:
        try:
            turned = turn(data)
        except _RAISED as error:
            hook = type(self._hook).__qualname__
            raise CodecHookFailed(f"{trouble} by {hook}: {type(error).__qualname__}: {error}") from error
        if not isinstance(turned, bytes):
            raise CodecError(f"{trouble}: {type(self._hook).__qualname__} gave {type(turned).__qualname__}, not bytes")
        return turned

    def _decoder(self, annotation: Any) -> msgspec.json.Decoder[Any]:
        if isinstance(annotation, Unresolved):
            return self._undeclared
        decoder = msgspec.json.Decoder(anything_for_object(annotation), dec_hook=from_plain)
        with suppress(TypeError):  # an annotation that cannot be hashed is rare enough not to be kept
            self._decoders[annotation] = decoder
        return decoder

    def _why_not(self, value: object, path: str, error: BaseException) -> str:
        path, culprit = culprit_in(value, path, self._can_encode)
        kind = type(culprit).__qualname__
        if inspect.iscoroutine(culprit):
            culprit.close()  # it will never be awaited, and need not warn of that
            return f"{path} is a coroutine: was an await forgotten?"
        if isinstance(culprit, Placeholder):
            return f"{path} is {culprit!r}, which can only be an argument of a member of its flow"
        if isinstance(error, RecursionError):
            return f"{path} contains itself, or is nested too deeply, and cannot be stored"
        if isinstance(error, UnicodeEncodeError):
            return f"{path} has half of a surrogate pair, which is no text, and cannot be stored"
        if isinstance(culprit, bytes):  # as text, unless its model says otherwise
            return f"{path} cannot be stored: {error}; set ser_json_bytes and val_json_bytes to 'base64' in its model"
        advice = "" if self._allow_pickle else "; only App(allow_pickle=True) would store it"
        return f"{path} cannot be stored: {kind} ({error}){advice}"

    def _can_encode(self, value: object) -> bool:
        try:
            self._encoder.encode(value)
        except _RAISED:
            return False
        return True


_WHERE = re.compile(r"^(?P<trouble>.*) - at `\$(?P<where>.*)`$", re.DOTALL)


def _located(message: str, path: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.price`" as "order.price: Expected `int`, got `str`"."""
    match = _WHERE.match(message)
    return f"{path}{match['where']}: {match['trouble']}" if match else f"{path}: {message}"


def _unreadable(annotation: Any, error: Exception) -> str:
    why = f"cannot be read as {name_of(annotation)}: {error}"
    if not str(error).startswith("Type unions"):
        return why
    return f"{why}: JSON does not say which of them it was. Declare one class, or msgspec Structs with a tag"


def _explained(change: Change, annotation: Any) -> str:
    why = change.told()
    if change.advice:
        return why
    if isinstance(annotation, Unresolved):
        return (
            f"{why}; its annotation {annotation.text!r} cannot be resolved here ({annotation.why}): "
            "import the type where the function is defined, not under TYPE_CHECKING"
        )
    if cast("object", annotation) is Any:
        return f"{why}; annotate it with its type"
    return f"{why}; it is annotated as {name_of(annotation)}"
