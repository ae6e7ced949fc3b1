"""What user code raised comes back as its own type where that can be imported, else readable; always bounded."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import textwrap
import traceback
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import pydantic
import pydantic_core
import pytest

from outlast import limits
from outlast.codec.failures import (
    BINARY_MAX_BYTES,
    PLAIN_MAX_BYTES,
    Failure,
    decode_failure,
    encode_failure,
    failure_of,
    raised_again,
    settle_failure,
)
from outlast.errors import CodecError, ExecutionFailed, InvalidName, LimitExceeded
from tests.unit.codec import raising


def again(error: BaseException) -> Exception:
    data, settled = settle_failure(error, execution_id="order-42", what="step 'charge'")
    assert len(data) <= PLAIN_MAX_BYTES
    replayed = raised_again(decode_failure(data), execution_id="order-42", what="step 'charge'")
    assert type(replayed) is type(settled)
    assert str(replayed) == str(settled)
    return replayed


def thrown(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The same, with a traceback."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("boom"),
        raising.Plain(),
        raising.Plain("a", 1, [True, None], {"b": 1.5}),
        raising.Outer.Inner("nested"),
        raising.New("only", 3),
        raising.Slotted("slots"),
        raising.Frozen("frozen"),
        StopIteration(3),
        TimeoutError("late"),
        json.JSONDecodeError("bad", "{", 1),
        UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte"),
        raising.Plain(b"\x00\xff", "text", b""),
        InvalidName("id", "a/b", "no slash"),
        LimitExceeded("tags", actual=3, limit=2),
    ],
    ids=repr,
)
def test_original_type_message_and_arguments_come_back(error: Exception):
    found = again(thrown(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args


class Account(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=3)
    since: date = pydantic.Field(default=date(2026, 1, 2), ge=date(2026, 1, 1))
    colour: Literal["red {0}", "blue"] = "blue"
    key: bytes = b""
    owners: list[int] = []

    @pydantic.field_validator("key")
    @classmethod
    def check(cls, key: bytes) -> bytes:
        if key == b"custom":
            raise pydantic_core.PydanticCustomError("key_old", "{key} is of {year}", {"key": "{year}", "year": 1999})
        if key:
            raise ValueError("a {key} that nobody knows")
        return key


class Hidden(pydantic.BaseModel, hide_input_in_errors=True):
    pin: int


def refused(model: type[pydantic.BaseModel], **given: Any) -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as raised:
        model.model_validate(given)
    return raised.value


def test_what_pydantic_refused_comes_back_as_its_own_error():
    error = refused(Account, name="Adam", since="2025-01-01", colour="green", key="k", owners=[1, "x"], more=1)
    found = again(error)
    assert isinstance(found, pydantic.ValidationError)
    assert isinstance(found, ValueError)
    assert str(found) == str(error).replace("b'k', input_type=bytes", "'b\\'k\\'', input_type=str")
    assert found.title == "Account"
    assert [one["loc"] for one in found.errors()] == [one["loc"] for one in error.errors()]
    assert found.errors()[0] == error.errors()[0]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"name": "a", "key": "custom"},
        {"name": "\ud800bcd"},
        {"name": ["x" * 100_000]},
        {"name": "a", "owners": ["x"] * 1_000},
        {"name": "a", "owners": [cast("Any", object())]},
    ],
    ids=["missing", "custom", "surrogate", "long", "many", "odd"],
)
def test_what_pydantic_says_of_any_input_comes_back(given: dict[str, Any]):
    error = refused(Account, **given)
    error.add_note("of the form")
    found = again(thrown(error))
    assert isinstance(found, pydantic.ValidationError)
    assert found.errors()[0]["type"] == error.errors()[0]["type"]
    assert found.errors()[0]["msg"] == error.errors()[0]["msg"]
    assert found.__notes__ == ["of the form"]
    assert isinstance(found.__cause__, ExecutionFailed)


def test_an_input_that_pydantic_hides_is_not_stored():
    error = refused(Hidden, pin="open sesame")
    assert b"sesame" not in encode_failure(failure_of(error))
    assert str(again(error)) == str(error)


def test_what_pydantic_refused_is_read_as_it_was_before_it_was_kept():
    stored = Failure(type="pydantic_core._pydantic_core:ValidationError", message="1 validation error", args=[])
    found = raised_again(stored, execution_id="order-42", what="step 'charge'")
    assert type(found) is ExecutionFailed


def test_attributes_come_back():
    found = again(thrown(raising.Attributed(404, detail="gone")))
    assert isinstance(found, raising.Attributed)
    assert (found.code, found.detail, str(found)) == (404, "gone", "404: gone")


def test_builtin_state_comes_back():
    found = again(thrown(FileNotFoundError(errno.ENOENT, "No such file", "/nowhere")))
    assert isinstance(found, FileNotFoundError)
    assert (found.errno, found.strerror, found.filename) == (errno.ENOENT, "No such file", "/nowhere")
    assert str(found) == f"[Errno {errno.ENOENT}] No such file: '/nowhere'"
    stopped = again(StopIteration(3))
    assert isinstance(stopped, StopIteration)
    assert stopped.value == 3
    missing = again(ModuleNotFoundError("No module", name="nowhere", path="/lib"))
    assert isinstance(missing, ModuleNotFoundError)
    assert (missing.name, missing.path, vars(missing)) == ("nowhere", "/lib", {})


@pytest.mark.parametrize("name", [b"/nowhere", Path("/nowhere")], ids=type)
def test_a_file_name_of_any_kind_comes_back_as_text(name: Any):
    found = again(FileExistsError(errno.EEXIST, "File exists", name, None, "/there"))
    assert isinstance(found, FileExistsError)
    assert (found.filename, found.filename2) == ("/nowhere", "/there")


def test_long_bytes_lose_their_end_and_the_type_stays():
    found = again(UnicodeDecodeError("utf-8", b"\xff" * 1_000_000, 999_999, 1_000_000, "invalid start byte"))
    assert isinstance(found, UnicodeDecodeError)
    assert found.object == b"\xff" * BINARY_MAX_BYTES


def test_notes_come_back():
    error = ValueError("no")
    error.add_note("while charging")
    assert again(error).__notes__ == ["while charging"]


def test_constructor_is_not_run_again():
    error = raising.Picky(1, 2, 3)
    made = raising.Picky.made
    found = again(thrown(error))
    assert isinstance(found, raising.Picky)
    assert raising.Picky.made == made


def test_argument_that_json_does_not_keep_is_kept_as_text():
    found = again(thrown(raising.Priced(Decimal("3.50"))))
    assert isinstance(found, raising.Priced)
    assert found.args == ("3.50",)
    assert not hasattr(found, "price")


def test_remote_traceback_can_be_read():
    found = again(thrown(raising.Plain("no")))
    assert isinstance(found.__cause__, ExecutionFailed)
    shown = "".join(traceback.format_exception(found))
    assert "in thrown" in shown
    assert "step 'charge' of 'order-42' failed" in shown


def local_error() -> Exception:
    class Local(Exception):
        pass

    return Local("here")


@pytest.mark.parametrize("error", [local_error(), raising.NeedsMore(object()), raising.Unprintable("x")], ids=type)
def test_what_cannot_be_made_again_is_execution_failed(error: Exception):
    found = again(thrown(error))
    assert isinstance(found, ExecutionFailed)
    assert found.error_type.endswith(type(error).__qualname__)
    assert found.execution_id == "order-42"
    assert "in thrown" in found.traceback


def test_execution_failed_comes_back_as_itself():
    error = ExecutionFailed("a", "workflow 'b'", "m:T", "no", "Traceback …")
    found = again(error)
    assert isinstance(found, ExecutionFailed)
    assert (found.execution_id, found.error_type, found.traceback) == ("a", "m:T", "Traceback …")


def test_cause_comes_back():
    found = again(thrown(raising.Plain("outer"), cause=KeyError("inner")))
    assert isinstance(found.__cause__, KeyError)
    assert found.__cause__.args == ("inner",)
    assert isinstance(found.__cause__.__cause__, ExecutionFailed)


def test_causes_that_go_in_a_circle_end():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert str(again(one)) == "one"


def test_group_comes_back_with_its_members():
    inner = ExceptionGroup("inner", [KeyError("k"), raising.Attributed(1, detail="d")])
    found = again(thrown(ExceptionGroup("outer", [ValueError("v"), inner, local_error()])))
    assert type(found) is ExceptionGroup
    assert found.message == "outer"
    value, group, local = found.exceptions
    assert isinstance(value, ValueError)
    assert isinstance(group, ExceptionGroup)
    assert [type(member) for member in group.exceptions] == [KeyError, raising.Attributed]
    assert isinstance(local, ExecutionFailed)
    matched, _ = found.split(KeyError)
    assert matched is not None


def test_group_of_a_class_of_its_own_comes_back():
    found = again(raising.Group("mine", [ValueError("v")]))
    assert isinstance(found, raising.Group)
    assert len(found.exceptions) == 1


def test_group_with_a_signal_inside_is_execution_failed():
    assert isinstance(again(BaseExceptionGroup("mixed", [raising.Stop()])), ExecutionFailed)


@pytest.mark.parametrize(
    "type_name",
    [
        "tests.unit.codec.raising:NotAnError",
        "tests.unit.codec.raising:Stop",
        "tests.unit.codec.raising:Outer.method",
        "tests.unit.codec.raising:Outer",
        "tests.unit.codec.raising:missing",
        "builtins:SystemExit",
        "builtins:KeyboardInterrupt",
        "builtins:print",
        "builtins:eval",
        "no.such.module:Error",
        "..:x",
        "",
        ":",
        "x",
    ],
)
def test_only_exceptions_are_ever_made(type_name: str):
    made = raising.NotAnError.made
    found = raised_again(Failure(type=type_name, message="1+1", args=["1+1"]), execution_id="a", what="b")
    assert isinstance(found, ExecutionFailed)
    assert raising.NotAnError.made == made


def deep_cause(depth: int) -> Exception:
    error = ValueError("bottom" * 1_000)
    for number in range(depth):
        outer = ValueError(f"{number}" * 1_000)
        outer.__cause__ = error
        error = outer
    return error


def recursing(depth: int) -> None:
    if depth == 0:
        raise ValueError("deep")
    recursing(depth - 1) if depth % 2 else other(depth)


def other(depth: int) -> None:
    recursing(depth - 1)


def long_traceback() -> BaseException:
    try:
        recursing(500)
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 10_000_000),
        ValueError("\U0001f600" * 100_000),
        ValueError(*["x" * 3_000] * 100),
        raising.Plain({"k": "x" * 1_000_000}),
        deep_cause(50),
        ExceptionGroup("many", [ValueError("é" * 3_000) for _ in range(1_000)]),
        long_traceback(),
        raising.Plain("\ud800 half"),
        type("Long" * 20_000, (Exception,), {})("x"),
    ],
    ids=lambda error: type(error).__name__[:20],
)
def test_failure_is_bounded(error: Exception):
    found = again(thrown(error))
    assert len(str(found)) < limits.FAILURE_MAX_BYTES
    assert len(encode_failure(failure_of(found))) <= PLAIN_MAX_BYTES


def test_both_ends_of_a_long_traceback_are_kept():
    failure = failure_of(long_traceback())
    assert "in long_traceback" in failure.traceback
    assert failure.traceback.rstrip().endswith("ValueError: deep")


def test_unreadable_failure_is_a_typed_error():
    with pytest.raises(CodecError):
        decode_failure(b"not json")
    assert isinstance(raised_again(decode_failure(b"{}"), execution_id="a", what="b"), ExecutionFailed)


SCRIPT = """
    import sys
    from outlast.codec.failures import *

    class Mine(Exception):
        pass

    if __name__ == "__main__":
        if len(sys.argv) > 1:
            found = raised_again(decode_failure(sys.argv[1].encode()), execution_id="a", what="b")
            print(type(found) is Mine)
        else:
            print(encode_failure(failure_of(Mine("x"))).decode())
"""


@pytest.mark.parametrize("way", ["script", "module"])
def test_exception_of_a_program_comes_back_in_it_and_in_who_imports_it(tmp_path: Path, way: str):
    (tmp_path / "shop.py").write_text(textwrap.dedent(SCRIPT))

    def run(*args: str) -> str:
        command = [sys.executable, *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    program = ["shop.py"] if way == "script" else ["-m", "shop"]
    data = run(*program)
    assert json.loads(data)["type"] == "shop:Mine"
    assert run(*program, data) == "True"
    code = (
        "import shop; found = shop.raised_again(shop.decode_failure(__import__('sys').argv[1].encode()),"
        " execution_id='a', what='b'); print(type(found) is shop.Mine)"
    )
    assert run("-c", code, data) == "True"


def test_failure_with_any_of_its_parts_missing_can_be_read():
    whole: dict[str, Any] = {"type": "builtins:ValueError", "message": "no"}
    assert str(raised_again(decode_failure(json.dumps(whole).encode()), execution_id="a", what="b")) == "no"


def test_what_a_retry_runs_again_is_kept_however_long_the_failure_is():
    """Without it the retry would replay the same failure for ever."""
    places = b"\xff" * (limits.JOURNAL_MAX_ENTRIES // 8)
    long = ExceptionGroup("m" * 9_000, [ValueError("\0" * 9_000) for _ in range(50)])
    failure = msgspec.structs.replace(failure_of(thrown(long)), again=places)
    data = encode_failure(failure)
    assert len(data) < limits.FAILURE_MAX_BYTES
    assert decode_failure(data).again == places
    largest = Failure(type="\0" * 500, message="\0" * 9_000, traceback="\0" * 20_000, again=places)
    assert decode_failure(encode_failure(largest)).again == places
