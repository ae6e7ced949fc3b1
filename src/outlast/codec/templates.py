"""The input of a member of a flow before its upstreams have given theirs: arguments with references in them.

A reference says whose output (or failure) belongs in its place, and which part of it. When the member's join is
settled, the references are replaced by JSON that was stored: no value is decoded, so that whoever advances a flow needs
none of the types that its workflows take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct

from outlast.codec.custom import to_builtins, to_plain
from outlast.codec.failures import decode_failure
from outlast.codec.pickled import is_pickled, refuse_lookalike
from outlast.codec.references import PathPart, Placeholder, Reference, reference_of
from outlast.codec.values import Values
from outlast.errors import CodecError, CodecHookFailed

MARK = "outlast:reference"
"""The key that marks a reference. If an author's own value has that key, the argument uses a longer one
(`Template.marks`)."""
OUTPUT, FAILURE, OUTPUTS = "output", "failure", "outputs"


class Template(Struct, frozen=True, gc=False, omit_defaults=True):
    """`arguments` by name, as JSON; those in `bound` have references in them, with a mark of their own in `marks`."""

    arguments: dict[str, msgspec.Raw]
    bound: tuple[str, ...]
    marks: dict[str, str] = {}


class Whole(Struct, frozen=True, gc=False, forbid_unknown_fields=True, rename={"reference": MARK}):
    """An argument that is a reference and nothing else, as most are."""

    reference: Reference


class Bound(Struct, frozen=True, gc=False):
    """An argument with placeholders in it, as JSON; `ordered` is the same for equal values in every process."""

    data: bytes
    ordered: bytes
    found: list[Placeholder]
    mark: str


class UpstreamFailure(Struct, frozen=True, kw_only=True):
    """What a member that runs on failure gets of an upstream that did not succeed (`x.failure`).

    `cause` is why it ended so, as its `info` says: "attempt_timeout" or "deadline" if it expired, and of one that was
    skipped, who did not succeed. `type` and `message` are those of what a failed one raised."""

    name: str
    status: str
    cause: str | None = None
    type: str = ""
    message: str = ""


class Given(Struct, frozen=True, gc=False):
    """What an upstream gave: how it ended, and its output or failure as it is stored, if it left one; if it did not
    succeed, for what cause."""

    status: str
    value: bytes | None
    cause: str | None = None


# ---- to bytes -----------------------------------------------------------------------------------------------------


def encode_bound(values: Values, value: object, what: str, name: str) -> Bound | None:
    """An argument that may have placeholders in it, at any depth; None if it has none."""
    if isinstance(value, Placeholder) and (whole := _whole(value)) is not None:
        return whole
    mark = MARK
    while True:
        found: list[Placeholder] = []
        try:
            data = msgspec.json.Encoder(enc_hook=_hook(mark, to_plain, found)).encode(value)
        except Exception as error:
            raise CodecError(f"{what}: {name} cannot be stored: {error}") from error
        if not found:
            return None
        values.refuse_unstorable(value, what, name)
        if data.count(f'"{mark}"'.encode()) == len(found):
            return Bound(data, values.in_order(value, data, _hook(mark, to_builtins, [])), found, mark)
        mark += "+"  # its author has written just that


def _whole(value: Placeholder) -> Bound | None:
    """An argument that is a placeholder and nothing else, as most are; None if its author has written the mark."""
    data = _encode(Whole(reference_of(value)))
    return Bound(data, data, [value], MARK) if data.count(_QUOTED) == 1 else None


_QUOTED = f'"{MARK}"'.encode()
_WHOLE = b"{" + _QUOTED + b":"
_encode = msgspec.json.Encoder().encode
_decode_whole = msgspec.json.Decoder(Whole).decode
_decode_template = msgspec.json.Decoder(Template).decode


def _hook(mark: str, otherwise: Callable[[Any], Any], found: list[Placeholder]) -> Callable[[Any], Any]:
    def hook(unknown: Any) -> Any:
        if isinstance(unknown, Placeholder):
            found.append(unknown)
            return {mark: reference_of(unknown)}
        return otherwise(unknown)

    return hook


def encode_template(values: Values, template: Template, what: str) -> bytes:
    return values.seal(msgspec.json.encode(template), what)


def decode_template(values: Values, data: bytes, what: str) -> Template:
    try:
        return _decode_template(values.unseal(data, what))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecHookFailed(f"{what} was sealed by another codec than this app's: {error}") from error


def placed(bound: Bound, flow_id: str) -> Bound:
    """The same with references that name members by their ids."""
    mark = bound.mark

    def put(reference: Reference) -> Any:
        ids = tuple([f"{flow_id}/{name}" for name in reference.upstreams])
        return {mark: Reference(reference.what, ids, reference.path)}

    data = bytes(_replaced(bound.data, mark, put))
    ordered = data if bound.ordered == bound.data else bytes(_replaced(bound.ordered, mark, put))
    return Bound(data, ordered, bound.found, mark)


# ---- composing ----------------------------------------------------------------------------------------------------


def needed_by(template: Template) -> tuple[str, ...]:
    """The upstreams that it takes something from, each once."""
    found: dict[str, None] = {}

    def note(reference: Reference) -> Any:
        found.update(dict.fromkeys(reference.upstreams))

    for name in template.bound:
        _replaced(template.arguments[name], template.marks.get(name, MARK), note)
    return tuple(found)


def compose(values: Values, template: Template, given: Mapping[str, Given], what: str) -> bytes:
    """The input, with what the upstreams gave in its places; `CodecError` or `LimitExceeded` if there can be none."""
    arguments = dict(template.arguments)
    for name in template.bound:
        arguments[name] = _filled(values, arguments[name], template.marks.get(name, MARK), given, what)
    return values.seal(msgspec.json.encode(arguments), what)


def _filled(values: Values, data: msgspec.Raw, mark: str, given: Mapping[str, Given], what: str) -> msgspec.Raw:
    """One argument. What was pickled is one by itself, or it cannot be: inside of others it is never read as a pickle,
    since a stranger may have written them."""
    pickles: list[str] = []

    def put(reference: Reference) -> Any:
        taken: Any = _taken(values, reference, given, what)
        wholes: list[Any] = taken if reference.what == OUTPUTS else [taken]
        for upstream, one in zip(reference.upstreams, wholes, strict=True):
            if isinstance(one, msgspec.Raw) and is_pickled(one):
                pickles.append(_name_of(upstream))
        return taken

    filled = _replaced(data, mark, put)
    if not pickles:
        refuse_lookalike(filled, f"{what}: an argument")
    elif not is_pickled(filled):
        raise CodecError(
            f"{what}: the output of {pickles[0]!r} was pickled, and can only be an argument by itself, not in a list "
            "or anything else with others: have its workflow return what JSON keeps"
        )
    return filled


def _replaced(data: bytes | msgspec.Raw, mark: str, put: Callable[[Reference], Any]) -> msgspec.Raw:
    """The same JSON with every reference replaced."""
    if mark == MARK and bytes(memoryview(data)[: len(_WHOLE)]) == _WHOLE and (whole := _only_reference_in(data)):
        filled = put(whole)
    else:
        filled = _put_into(msgspec.json.decode(data), mark, put)
    return filled if isinstance(filled, msgspec.Raw) else msgspec.Raw(_encode(filled))


def _only_reference_in(data: bytes | msgspec.Raw) -> Reference | None:
    """What `_put_into` would find, without a look at every part."""
    try:
        return _decode_whole(data).reference
    except msgspec.ValidationError:
        return None


def _put_into(value: Any, mark: str, put: Callable[[Reference], Any]) -> Any:
    """As deep as its author wrote it, which encoding has bounded."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if len(fields) == 1 and mark in fields:
            return put(msgspec.convert(fields[mark], Reference))
        return {name: _put_into(one, mark, put) for name, one in fields.items()}
    if isinstance(value, list):
        return [_put_into(one, mark, put) for one in cast("list[Any]", value)]
    return value


def _taken(values: Values, reference: Reference, given: Mapping[str, Given], what: str) -> Any:
    taken = [given.get(upstream) for upstream in reference.upstreams]
    match reference.what:
        case "outputs":
            return [_output(values, one, what) for one in taken]
        case "failure":
            return _failure(values, reference.upstreams[0], taken[0], what)
        case _:
            return _at(_output(values, taken[0], what), reference, what)


def _output(values: Values, given: Given | None, what: str) -> Any:
    """None of an upstream that did not succeed, or has not ended: a join may do without it."""
    if given is None or given.status != "succeeded":
        return None
    if given.value is None:
        raise CodecError(f"{what}: an output that it takes is gone: it was purged")
    return msgspec.Raw(values.unseal(given.value, what))


def _at(output: Any, reference: Reference, what: str) -> Any:
    if output is None or not reference.path:
        return output
    whole = f"{what}: the output of {_name_of(reference.upstreams[0])!r}"
    if is_pickled(output):
        raise CodecError(f"{whole} was pickled: no part of it can be taken")
    for part in reference.path:
        try:
            output = _part(output, part)
        except (KeyError, IndexError, TypeError, msgspec.DecodeError) as error:
            raise CodecError(f"{whole} has no {part!r}") from error
    refuse_lookalike(output, f"{whole} has a part that")
    return output


def _part(whole: msgspec.Raw, part: PathPart) -> msgspec.Raw:
    """Of an object or a list; anything else has no parts. Numbers that are keys are text in JSON."""
    kinds = dict[str, msgspec.Raw] | list[msgspec.Raw]
    parts: dict[str, msgspec.Raw] | list[msgspec.Raw] = msgspec.json.decode(whole, type=kinds)
    return parts[str(part)] if isinstance(parts, dict) else parts[cast("int", part)]


def _failure(values: Values, upstream: str, given: Given | None, what: str) -> UpstreamFailure | None:
    if given is None or given.status == "succeeded":
        return None
    name = _name_of(upstream)
    if given.value is None:
        return UpstreamFailure(name=name, status=given.status, cause=given.cause)
    failure = decode_failure(values.unseal(given.value, what))
    return UpstreamFailure(
        name=name, status=given.status, cause=given.cause, type=failure.type, message=failure.message
    )


def _name_of(upstream: str) -> str:
    return upstream.partition("/")[2]
