"""What a Pydantic model would not write, or not read back, is refused as any other value would be: never lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from threading import Lock
from typing import Any

import pydantic
import pytest

from outlast.codec.values import Values
from outlast.errors import CodecError

STRICT, LAX = Values(), Values(allow_pickle=True)


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Key(pydantic.BaseModel):
    key: pydantic.SecretBytes | None = None


@dataclass
class Holder:
    login: Login


class Written(pydantic.BaseModel):
    """A model that writes its secret, because its author says so."""

    password: pydantic.SecretStr

    @pydantic.field_serializer("password", when_used="json")
    def write(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


class Counter(pydantic.BaseModel):
    number: int
    _seen: int = pydantic.PrivateAttr(default=0)
    _lock: Any = pydantic.PrivateAttr(default_factory=Lock)

    def look(self) -> Counter:
        self._seen += 1
        return self


class Open(pydantic.BaseModel, extra="allow"):
    number: int


class Version:
    """Of its own equality, and no fields that anybody knows."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return "<version>"


class Package(pydantic.BaseModel, arbitrary_types_allowed=True):
    version: Version

    @pydantic.field_serializer("version")
    def write(self, version: Version) -> str:
        return version.text.removesuffix("rc")

    @pydantic.field_validator("version", mode="before")
    @classmethod
    def read(cls, given: Any) -> Any:
        return Version(given) if isinstance(given, str) else given


LOGIN = Login(user="ada", password=pydantic.SecretStr("hush"))

LOST: list[tuple[Any, Any, str, str]] = [
    (LOGIN, Login, "value.password", "a secret is not stored"),
    (Key(key=pydantic.SecretBytes(b"hush")), Key, "value.key", "a secret is not stored"),
    (Holder(LOGIN), Holder, "value.login.password", "SecretStr as asterisks"),
    ({"a": [LOGIN]}, dict[str, list[Login]], "value['a'][0].password", "field_serializer"),
    (Counter(number=1).look(), Counter, "value._seen", "1 as 0; a private attribute is not stored"),
    (Open(number=1, when=date(2026, 1, 2)), Open, "value.when", "datetime.date(2026, 1, 2) as"),  # type: ignore[call-arg]
    (Package(version=Version("1rc")), Package, "value.version", "another that is not equal to it"),
]


@pytest.mark.parametrize("value, annotation, path, why", LOST, ids=lambda one: one if isinstance(one, str) else "")
def test_what_a_model_would_lose_is_refused_with_its_path(value: Any, annotation: Any, path: str, why: str):
    with pytest.raises(CodecError) as raised:
        STRICT.settle(value, annotation, "it")
    assert str(raised.value).startswith(f"it: {path} would not come back as it is")
    assert why in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("value", [LOGIN, Holder(LOGIN), {"a": LOGIN}, Counter(number=1).look()], ids=range(4))
def test_what_no_reader_could_know_is_refused_before_there_is_one(value: Any):
    with pytest.raises(CodecError, match="is not stored"):
        STRICT.encode(value, "event")


@pytest.mark.parametrize(
    "value, annotation", [(LOGIN, Login), (Holder(LOGIN), Holder)], ids=["model", "in a dataclass"]
)
def test_a_secret_is_pickled_if_that_is_allowed(value: Any, annotation: Any):
    data, settled = LAX.settle(value, annotation, "it")
    assert settled == LAX.decode(data, annotation, "it") == value


@pytest.mark.parametrize(
    "value",
    [
        Written(password=pydantic.SecretStr("hush")),
        Key(),
        Open(number=1, more=[1, 2]),  # type: ignore[call-arg]
        Package(version=Version("1")),
    ],
    ids=["a secret that is written", "no secret", "more than its fields", "a class of its own equality"],
)
def test_what_a_model_writes_comes_back(value: Any):
    data, settled = STRICT.settle(value, type(value), "it")
    assert settled == value
    assert STRICT.decode(STRICT.encode(value, "it"), type(value), "it") == value
    assert STRICT.decode(data, type(value), "it") == value


class Seal(pydantic.BaseModel):
    mark: bytes


class Letter(pydantic.BaseModel):
    to: pydantic.HttpUrl
    mark: bytes = b""
    seal: Seal | None = None
    seals: list[Seal] = []
    more: Any = None


class Sealed(pydantic.BaseModel, ser_json_bytes="base64", val_json_bytes="base64"):
    mark: bytes


TO = pydantic.HttpUrl("https://example.org")
BAD = Seal(mark=b"\xff")


@pytest.mark.parametrize(
    "value, path",
    [
        (Letter(to=TO, mark=b"\xff"), "value.mark"),
        ({"a": [Letter(to=TO, seal=BAD)]}, "value['a'][0].seal.mark"),
        (Letter(to=TO, seals=[Seal(mark=b""), BAD]), "value.seals[1].mark"),
    ],
    ids=["mark", "in another", "in a list"],
)
def test_bytes_that_a_model_cannot_write_are_named_and_not_their_neighbours(value: Any, path: str):
    with pytest.raises(CodecError) as raised:
        STRICT.encode(value, "it")
    assert str(raised.value).startswith(f"it: {path} cannot be stored: ")
    assert "set ser_json_bytes and val_json_bytes to 'base64' in its model" in str(raised.value)
    assert STRICT.settle(Sealed(mark=b"\xff"), Sealed, "it")[1] == Sealed(mark=b"\xff")


class Chain(pydantic.BaseModel):
    next: Chain | None = None


def test_what_a_model_cannot_write_is_named():
    chain = Chain(next=Chain())
    chain.next.next = chain  # type: ignore[union-attr]
    with pytest.raises(CodecError, match=r"^it: value\[0\].next.next cannot be stored: Chain .*Circular"):
        STRICT.encode([chain], "it")
    with pytest.raises(CodecError, match=r"^it: value.more cannot be stored: list .*<class 'object'>"):
        STRICT.encode(Letter(to=TO, more=[object()]), "it")


def test_which_fields_were_given_is_not_kept():
    """As docs/values.md says."""
    assert STRICT.settle(Key(), Key, "it")[1].model_fields_set == {"key"}


def test_what_nobody_can_compare_does_not_count():
    _, settled = STRICT.settle(Counter(number=1), Counter, "it")
    assert settled.number == 1


def test_a_dict_may_be_given_for_a_model_that_takes_more():
    assert STRICT.settle({"number": 1, "more": 2}, Open, "it")[1] == Open(number=1, more=2)  # type: ignore[call-arg]
