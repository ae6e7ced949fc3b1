"""Inputs with references in them, as they were stored by versions before this one."""

from __future__ import annotations

import msgspec
import pytest

from outlast.codec.templates import Given, compose, decode_template, needed_by
from outlast.codec.values import Values
from outlast.errors import CodecHookFailed


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
