"""The arguments of a workflow: bound by its signature, stored by name, decoded by annotation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from outlast.codec.annotations import Hints, Unresolved
from outlast.codec.custom import anything_for_object
from outlast.codec.pickled import MARK
from outlast.codec.values import Values, is_simple
from outlast.errors import CodecError, InvalidArguments

_BY_NAME = dict[str, msgspec.Raw]
_LEFT_OUT: Any = object()
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """What a function takes and gives, read from its signature."""

    def __init__(self, fn: Callable[..., Any], what: str) -> None:
        self._what = what
        self._input = f"input of {what}"
        self._hints = Hints(fn)
        self.signature = inspect.signature(fn)
        self._annotations: dict[str, Any] = {}
        parameters = self.signature.parameters
        # Most functions take a few plain parameters, and are called with all of them in order: no need to bind.
        plain = all(parameter.kind in _PLAIN for parameter in parameters.values())
        self._plain = tuple(parameters) if plain else None
        self._fields: type[msgspec.Struct] | None = None
        self._unfit = False
        self._names = frozenset(parameters)
        self._in_order = list(parameters) == sorted(parameters)
        """Simple arguments are then written in the order that their digest asks for."""
        self._required = frozenset(
            name for name, one in parameters.items() if one.default is one.empty and one.kind not in _VARIADIC
        )

    @property
    def result(self) -> Any:
        """What the function declares to return."""
        return self._hints["return"]

    def annotation(self, name: str) -> Any:
        """What is stored for a parameter: of `*args` a tuple, of `**kwargs` a dict."""
        known = self._annotations.get(name)
        if known is None:
            known = self._annotation(name)
            if not self._hints.missing:
                self._annotations[name] = known
        return known

    def _annotation(self, name: str) -> Any:
        hint = self._hints[name]
        if isinstance(hint, Unresolved):
            return hint
        match self.signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                return tuple[hint, ...]
            case inspect.Parameter.VAR_KEYWORD:
                return dict[str, hint]
            case _:
                return hint

    def encode(self, values: Values, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, str]:
        """(bytes, digest); `InvalidArguments` if they do not fit the signature or its types."""
        given = self.bound(args, kwargs)
        data = self._at_once(values, given)
        if data is None:
            raw = {name: msgspec.Raw(self.encode_one(values, name, value)) for name, value in given.items()}
            data = msgspec.json.encode(raw)
            digest = values.digest(given, data)
        else:
            digest = values.digest_of(data) if self._in_order else values.digest(given, data)
        return values.seal(data, self._input), digest

    def _at_once(self, values: Values, given: dict[str, Any]) -> bytes | None:
        """The bytes of arguments that are all simple, as one by one; None if one of them is to be looked at."""
        known = self._annotations
        for name, value in given.items():
            if not is_simple(value, known.get(name) or self.annotation(name)):
                return None
        try:
            return values.plain(given, self._what)
        except CodecError:
            return None  # a text that cannot be written: which one is said when each is alone

    def encode_one(self, values: Values, name: str, value: Any) -> bytes:
        return self.encode_part(values, name, value, self.annotation(name))

    def encode_part(self, values: Values, path: str, value: Any, annotation: Any) -> bytes:
        try:
            return values.keep(value, annotation, self._what, path)[0]
        except CodecError as error:
            values.plain(value, self._what, path)
            values.refuse_unstorable(value, self._what, path)
            raise InvalidArguments(str(error)) from error  # it can be stored, but is not what the function takes

    def decode(self, values: Values, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the function with; `CodecError` if they are not those that it takes, of its types."""
        plain = values.unseal(data, self._input)
        shape = self._shape
        if shape is not None and MARK not in plain:
            try:
                return self._filled(structs.astuple(values.read_json(plain, shape, self._what))), {}
            except CodecError:
                pass  # which of them it is, and what is wrong with it, is said when each is read by itself
        return self._decode_each(values, plain)

    @property
    def _shape(self) -> type[msgspec.Struct] | None:
        """The parameters as the fields of a type, by which most inputs are read at once; None if it cannot be made."""
        if self._fields is None and self._plain is not None and not self._hints.missing and not self._unfit:
            fields = [self._field(name) for name in self._plain]
            try:
                self._fields = msgspec.defstruct("Input", fields, forbid_unknown_fields=True, gc=False)
            except Exception:  # a name or an annotation that no field can have
                self._unfit = True
        return self._fields

    def _field(self, name: str) -> Any:
        annotation = anything_for_object(self.annotation(name))
        return (name, annotation) if name in self._required else (name, annotation, _LEFT_OUT)

    def _filled(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(self._required) == len(found):
            return found
        parameters = self.signature.parameters.values()
        return tuple(
            [one.default if value is _LEFT_OUT else value for value, one in zip(found, parameters, strict=True)]
        )

    def _decode_each(self, values: Values, plain: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        raw: dict[str, msgspec.Raw] = values.read(plain, _BY_NAME, self._what, "input")
        unknown = raw.keys() - self._names
        if unknown:
            raise CodecError(f"{self._what} does not take {min(unknown)!r}, which this execution was started with")
        missing = [name for name in self.signature.parameters if name in self._required and name not in raw]
        if missing:
            raise CodecError(f"{self._what} requires {missing[0]!r}, which this execution was started without")
        bound = self.signature.bind_partial()
        for name, parameter in self.signature.parameters.items():
            if name in raw:
                bound.arguments[name] = values.read(raw[name], self.annotation(name), self._what, name)
            elif parameter.kind in _PLAIN:  # left out, what stands behind it could not be given by place
                bound.arguments[name] = parameter.default
        return bound.args, bound.kwargs

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The given values by the names of their parameters."""
        plain = self._plain
        if plain is not None and not kwargs and len(args) == len(plain):
            return {plain[0]: args[0]} if len(args) == 1 else dict(zip(plain, args, strict=True))
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArguments(f"{self._what}{self._shown()}: {error}") from error

    def _shown(self) -> str:
        """The signature for people: without the values of defaults."""
        names = [p.replace(default=inspect.Parameter.empty) for p in self.signature.parameters.values()]
        return str(inspect.Signature(names))
