"""What a name may be, checked once where it enters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.errors import InvalidInput, InvalidName, LimitExceeded
from outlast.model.names import check_id, check_name, check_user_name, check_word

CHECKS: list[Callable[[object], str]] = [
    lambda name: check_name("name", name),
    check_id,
    lambda name: check_word("lane", name),
    lambda name: check_user_name("event", name),
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["a", "order-42", "Ünïcode", "日本", "a.b:c_d@e", "x" * 255])
def test_a_usable_name_is_given_back_as_it_is(check: Callable[[object], str], name: str):
    assert check(name) is name


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name, why",
    [
        ("", "empty"),
        (None, "string"),
        (42, "string"),
        (b"a", "string"),
        ("a\nb", "printable"),
        ("a\tb", "printable"),
        ("a\0", "printable"),
        ("\x7f", "printable"),
        ("\ud800", "printable"),
        ("a\u200bb", "printable"),
        (" a", "space"),
        ("a ", "space"),
    ],
)
def test_an_unusable_name_is_refused_with_the_reason(check: Callable[[object], str], name: object, why: str):
    with pytest.raises(InvalidName, match=why) as caught:
        check(name)
    assert caught.value.name is name
    assert isinstance(caught.value, InvalidInput)


@pytest.mark.parametrize("check", CHECKS)
def test_a_name_has_a_limit(check: Callable[[object], str]):
    with pytest.raises(LimitExceeded) as caught:
        check("x" * 256)
    assert (caught.value.actual, caught.value.limit) == (256, 255)


def test_a_limit_can_be_narrower():
    assert check_name("tag", "x" * 64, max_chars=64) == "x" * 64
    with pytest.raises(LimitExceeded, match="tag: 65 characters is over the limit of 64"):
        check_name("tag", "x" * 65, max_chars=64)


@pytest.mark.parametrize("id", ["a/b", "/", "a/"])
def test_a_callers_id_has_no_slash(id: str):
    with pytest.raises(InvalidName, match="children under their parent"):
        check_id(id)


@pytest.mark.parametrize("word", ["a,b", "a|b", "a b"])
def test_a_word_has_no_separator_of_routes(word: str):
    with pytest.raises(InvalidName, match="must not contain"):
        check_word("lane", word)
    assert check_name("name", word) == word


def test_the_engines_own_names_are_reserved():
    with pytest.raises(InvalidName, match="reserved"):
        check_user_name("event", "outlast:cancel")
    assert check_user_name("event", "outlasting") == "outlasting"
