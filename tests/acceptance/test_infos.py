"""What a program can read of an execution: why it failed, what it was started with, and all of it as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pydantic_core
import pytest

import outlast
from outlast import App, ErrorInfo, Info, InvalidInput, Retry
from outlast.app import store_for
from outlast.client.info import Plain
from outlast.client.views.execution_view import execution_view
from outlast.model.execution import Execution, execution_key
from tests.acceptance.conftest import Place, status_is


class CardDeclined(Exception):
    pass


def failing_on(app: App) -> Any:
    @app.workflow
    async def order(number: int, customer: str = "anna") -> None:
        raise CardDeclined(f"no funds for {number}")

    return order


TYPE = f"{__name__}:CardDeclined"


async def test_an_info_says_what_the_execution_failed_with(app: App):
    order = failing_on(app)
    async with app:
        handle = await order.options(id="order-7").start(7)
        with pytest.raises(CardDeclined):
            await handle.result(timeout=20)
        error = (await handle.info()).error
        [attempt] = await handle.attempts()
        [found] = await app.find(status="failed")
    assert error is not None
    assert (error.type, error.message, str(error)) == (TYPE, "no funds for 7", "CardDeclined: no funds for 7")
    assert 'raise CardDeclined(f"no funds for {number}")' in error.traceback
    assert attempt.error == error
    assert found.error == ErrorInfo(type=TYPE, message="no funds for 7"), "a list leaves tracebacks out"


async def test_what_waits_to_be_retried_says_what_its_last_attempt_failed_with(app: App):
    @app.workflow(retry=Retry(max_attempts=3, initial="1h"))
    async def order() -> None:
        raise CardDeclined("no funds")

    async with app:
        handle = await order.start()
        await status_is(handle, "blocked")
        assert str((await handle.info()).error) == "CardDeclined: no funds"
        [found] = await app.find()
        assert found.error is None, "a list does not read attempts"


async def test_what_succeeded_or_was_cancelled_has_no_error(app: App):
    @app.workflow(retry=Retry(max_attempts=2, initial=0))
    async def order(number: int) -> int:
        if outlast.current().attempt == 1:
            raise CardDeclined("once")
        return number

    @app.workflow
    async def waits() -> None:
        await outlast.receive("never")

    async with app:
        handle = await order.start(7)
        assert await handle.result(timeout=20) == 7
        assert (await handle.info()).error is None
        assert [attempt.error is not None for attempt in await handle.attempts()] == [True, False]
        waiting = await waits.start()
        await waiting.cancel()
        with pytest.raises(outlast.ExecutionCancelled):
            await waiting.result(timeout=20)
        assert (await waiting.info()).error is None


async def test_the_feed_of_ends_says_what_they_failed_with(app: App):
    order = failing_on(app)

    @app.workflow
    async def fine() -> int:
        return 1

    async with app:
        assert await fine() == 1
        with pytest.raises(CardDeclined):
            await order(7)
        errors: dict[str, ErrorInfo | None] = {}
        async for completion in app.completions():
            errors[completion.workflow] = completion.error
            if len(errors) == 2:
                break
    assert errors["fine"] is None
    assert str(errors["order"]) == "CardDeclined: no funds for 7"


async def test_an_info_has_the_arguments_that_were_given_by_name(app: App):
    order = failing_on(app)
    async with app.client():
        handle = await order.start(7)
        info = await handle.info()
        assert info.input() == {"number": 7}
        [found] = await app.find()
        with pytest.raises(InvalidInput, match=r"handle\.info\(\)"):
            found.input()


class Away:
    """A codec whose key service goes away."""

    def __init__(self) -> None:
        self.away = False

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        if self.away:
            raise ConnectionError("no keys")
        return data[::-1]


async def test_what_the_codec_cannot_read_does_not_hide_the_rest(place: Place):
    codec = Away()
    app = place.app(codec=codec)
    order = failing_on(app)
    async with app:
        handle = await order.start(7)
        with pytest.raises(CardDeclined):
            await handle.result(timeout=20)
        assert (await handle.info()).input() == {"number": 7}
        codec.away = True
        info = await handle.info()
        assert info.status == "failed"
        assert info.error is not None
        assert info.error.type == "outlast.errors:CodecHookFailed"
        assert "no keys" in info.error.message
        with pytest.raises(outlast.CodecError, match="no keys"):
            info.input()


async def test_a_view_has_what_was_resolved_and_who_took_it_on_every_store(place: Place):
    app, store = place.app(), store_for(place.url)

    @app.workflow
    async def order() -> bool:
        return await outlast.deferred("approval", bool)

    async with app:
        handle = await order.options(id="order-1").start()
        await handle.resolve("aproval", True)
        await handle.resolve("approval", True)
        assert await handle.result(timeout=20)
    await store.open()
    [e] = await store.load([execution_key("default", "order-1")])
    assert isinstance(e, Execution)
    view = await execution_view(store, e)
    await store.close()
    assert {one.name: one.taken for one in view.deferreds} == {"approval": True, "aproval": False}
    assert [row.outcome for row in view.timeline if row.code == "resolved"] == ["nobody waits for it"]
    assert json.loads(msgspec.json.encode(view))["result"] is True


# ---- in the hands of others ---------------------------------------------------------------------------------------


async def infos(folder: Path) -> Info:
    app = App(f"sqlite:///{folder}/infos.db")
    order = failing_on(app)
    async with app:
        handle = await order.options(tags={"customer": "7"}).start(7)
        with pytest.raises(CardDeclined):
            await handle.result(timeout=20)
        return await handle.info()


async def test_an_info_is_returned_by_a_web_application_as_it_is(tmp_path: Path):
    info = await infos(tmp_path)
    answer = json.loads(pydantic_core.to_json(info))  # what FastAPI makes of a handler without a response model
    assert answer["status"] == "failed"
    assert answer["error"]["message"] == "no funds for 7"
    assert answer["created_at"].endswith("Z")
    assert "_input" not in answer
    model = pydantic.TypeAdapter(Info)  # and of one that returns `Info`
    assert model.validate_python(info) is info
    assert json.loads(model.dump_json(info)) == answer
    schema = model.json_schema(mode="serialization")
    assert schema["properties"]["error"]["anyOf"][0]["$ref"].endswith("ErrorInfo")


async def test_an_info_as_a_dict_has_only_plain_values(tmp_path: Path):
    info = await infos(tmp_path)
    told = info.as_dict()
    assert list(told) == [field.name for field in fields(info)]
    assert told["tags"] == {"customer": "7"}
    assert told["error"]["type"] == TYPE
    assert told["created_at"] == info.created_at
    assert info == info.with_input(lambda: None)
    assert repr(info).startswith(f"Info(id='{info.id}', namespace='default', status=")


@pytest.mark.parametrize("kind", Plain.__subclasses__(), ids=lambda kind: kind.__name__)
def test_all_that_a_client_answers_is_a_dataclass_with_a_json_schema(kind: type[Any]):
    assert is_dataclass(kind)
    assert pydantic.TypeAdapter(kind).json_schema(mode="serialization")["title"] == kind.__name__


def test_an_error_without_a_message_is_its_type():
    assert str(ErrorInfo(type="builtins:KeyError", message="")) == "KeyError"
