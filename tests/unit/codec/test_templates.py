"""Inputs with references in them: what they refuse, and how versions before this one stored them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from outlast.codec.references import Placeholder, Reference
from outlast.codec.templates import Given, Template, compose, decode_template, encode_bound, needed_by, placed
from outlast.codec.values import Values
from outlast.errors import CodecError, CodecHookFailed
from tests.unit.codec.test_models import LOGIN


def test_a_template_without_marks_of_its_own_is_read():
    stored = b"""{"arguments": {"x": {"outlast:reference": {"what": "output", "upstreams": ["f/a"], "path": []}},
                               "y": {"outlast:reference": "plain"}}, "bound": ["x"]}"""
    template = decode_template(Values(), stored, "input of f/b")
    assert needed_by(template) == ("f/a",)
    composed = compose(Values(), template, {"f/a": Given("succeeded", b"[1]")}, "input of f/b")
    assert msgspec.json.decode(composed) == {"x": [1], "y": {"outlast:reference": "plain"}}


@pytest.mark.parametrize("sealed", [b"\x01\xff", b'{"key": "k1", "sealed": "c2VhbGVk"}'])
def test_a_template_that_another_codec_sealed_is_left_to_those_that_have_it(sealed: bytes):
    with pytest.raises(CodecHookFailed, match="input of f/b was sealed by another codec"):
        decode_template(Values(), sealed, "input of f/b")


@pytest.mark.parametrize("allow_pickle", [False, True], ids=["strict", "lax"])
@pytest.mark.parametrize("beside, path", [(math.nan, "items[1] is nan"), (LOGIN, "items[1].password")], ids=["nan", ""])
def test_what_json_would_change_is_refused_beside_a_reference_too(beside: Any, path: str, allow_pickle: bool):
    upstream = Placeholder(Reference("output", ("a",)))
    with pytest.raises(CodecError) as raised:
        encode_bound(Values(allow_pickle=allow_pickle), [upstream, beside], "total", "items")
    assert str(raised.value).startswith(f"total: {path}")


@pytest.mark.parametrize("path", [(), ("a", 1), ("outlast:reference",)], ids=["whole", "part", "mark"])
def test_a_reference_alone_is_written_as_one_among_others(path: tuple[str | int, ...]):
    upstream = Placeholder(Reference("output", ("a",), path))
    alone = encode_bound(Values(), upstream, "total", "items")
    listed = encode_bound(Values(), [upstream], "total", "items")
    assert alone is not None
    assert listed is not None
    assert (b"[%b]" % alone.data, b"[%b]" % alone.ordered) == (listed.data, listed.ordered)
    assert (alone.mark, alone.found) == (listed.mark, [upstream])
    there, among = placed(alone, "f"), placed(listed, "f")
    assert (b"[%b]" % there.data, b"[%b]" % there.ordered) == (among.data, among.ordered)
    assert needed_by(Template({"items": msgspec.Raw(there.data)}, ("items",), {"items": there.mark})) == ("f/a",)


GIVEN = {
    "f/a": Given("succeeded", b'{"x":[1,{"y":"\xc3\xa9"}]}'),
    "f/b": Given("failed", None, "deadline"),
}


@pytest.mark.parametrize(
    "reference",
    [
        Reference("output", ("f/a",)),
        Reference("output", ("f/a",), ("x", 1, "y")),
        Reference("output", ("f/b",)),
        Reference("failure", ("f/a",)),
        Reference("failure", ("f/b",)),
        Reference("outputs", ("f/a", "f/b")),
    ],
    ids=str,
)
def test_a_reference_alone_is_filled_as_one_that_is_looked_for(reference: Reference):
    data = msgspec.json.encode({"outlast:reference": reference})
    ways = [msgspec.Raw(data), msgspec.Raw(data.replace(b"{", b"{ ", 1))]  # written otherwise, it is looked for
    templates = [Template({"item": way}, ("item",)) for way in ways]
    alone, found = [compose(Values(), template, GIVEN, "input of f/c") for template in templates]
    assert alone == found
    assert needed_by(templates[0]) == needed_by(templates[1]) == reference.upstreams


def test_more_than_a_reference_that_begins_like_one_is_looked_through():
    """Not written by any version of this, which would have taken another mark."""
    data = b'{"outlast:reference":{"what":"output","upstreams":["f/a"]},"more":1}'
    composed = compose(Values(), Template({"item": msgspec.Raw(data)}, ("item",)), {}, "input of f/c")
    assert msgspec.json.decode(composed) == {"item": msgspec.json.decode(data)}
