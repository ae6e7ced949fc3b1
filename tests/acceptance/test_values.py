"""What code sees of values and failures is the same live and replayed, through a store, with and without a codec."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import App, CodecError, ExecutionFailed, LimitExceeded, Retry
from outlast.runtime.attempts import mishaps
from outlast.testing import harness
from tests.unit.codec import raising
from tests.unit.codec.kinds import LINE, ORDER, ROUND_TRIPS, Line, Model, Order
from tests.unit.codec.test_values import same


class Again(Exception):
    """Raised by a workflow's first attempt, so that its second replays the journal."""


TWICE = Retry(max_attempts=2, initial="1ms")


class Masked:
    """A codec hook: no plain text is left."""

    def encode(self, data: bytes) -> bytes:
        return b"masked:" + base64.b85encode(bytes(byte ^ 0x55 for byte in data))

    def decode(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in base64.b85decode(data.removeprefix(b"masked:")))


@pytest.fixture(params=[None, Masked()], ids=["plain", "masked"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    return App(str(tmp_path / "values.db"), codec=request.param)


async def test_every_kind_of_value_is_the_same_live_and_replayed(app: App):
    seen: dict[int, list[Any]] = {number: [] for number in range(len(ROUND_TRIPS))}
    ran: list[int] = []

    def step_of(number: int) -> Any:
        value, annotation = ROUND_TRIPS[number]

        async def give() -> Any:
            ran.append(number)
            return value

        give.__annotations__["return"] = annotation
        return app.step(give, name=f"give {number}")

    steps = [step_of(number) for number in range(len(ROUND_TRIPS))]

    @app.workflow(retry=TWICE)
    async def collect() -> None:
        for number, step in enumerate(steps):
            seen[number].append(await step())
        if len(seen[0]) == 1:
            raise Again

    async with app:
        await collect()
    assert ran == list(range(len(ROUND_TRIPS)))
    for number, (value, _) in enumerate(ROUND_TRIPS):
        live, replayed = seen[number]
        assert same(live, value)
        assert same(replayed, live)
        assert type(replayed) is type(live)


async def test_input_and_output_are_typed(app: App):
    @app.workflow
    async def checkout(order: Order, *lines: Line, model: Model) -> tuple[Order, list[Line], Model]:
        assert isinstance(order, Order)
        assert all(isinstance(line, Line) for line in lines)
        return order, list(lines), model

    @app.workflow
    def checkout_def(order: Order) -> dict[Decimal, Order]:
        return {line.price: order for line in order.lines}

    async with app:
        model = Model(number=3, names={"a"})
        assert await checkout(ORDER, LINE, LINE, model=model) == (ORDER, [LINE, LINE], model)
        assert await checkout_def.aio(ORDER) == {line.price: ORDER for line in ORDER.lines}
        handle = await checkout_def.options(id="a").start(ORDER)
        assert await checkout_def.execution("a").result() == await handle.result()


async def test_same_start_is_the_same_execution_whatever_the_codec_writes(app: App):
    @app.workflow
    async def count(words: set[str], by_word: dict[str, int]) -> int:
        return len(words)

    async with app:
        start = count.options(id="a").start
        await start({"a", "b", "c"}, {"a": 1, "b": 2})
        await start({"c", "b", "a"}, {"b": 2, "a": 1})
        assert await app.count() == 1


def local_error() -> Exception:
    class Local(Exception):
        pass

    return Local("here")


ERRORS: dict[str, Callable[[], Exception]] = {
    "plain": lambda: ValueError("no"),
    "attributes": lambda: raising.Attributed(404, detail="gone"),
    "picky": lambda: raising.Picky(1, 2, 3),
    "nested": lambda: raising.Outer.Inner("nested"),
    "group": lambda: ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
    "long": lambda: raising.Plain("x" * 1_000_000),
    "surrogate": lambda: raising.Plain("\ud800"),
    "timeout": lambda: TimeoutError("mine"),
}
LOSING: dict[str, Callable[[], Exception]] = {
    "local": local_error,
    "decimal": lambda: raising.Priced(Decimal("3.50")),
    "response": lambda: raising.NeedsMore(object()),
}
"""Of these something is lost on the way: code must not see it live either."""


def told(error: Exception) -> tuple[Any, ...]:
    return type(error), str(error), error.args if not isinstance(error, ExceptionGroup) else len(error.exceptions)


def catching(app: App, error: Exception) -> tuple[Any, list[Any]]:
    seen: list[Any] = []

    @app.step
    async def fail() -> None:
        raise error

    @app.workflow(retry=TWICE)
    async def catch() -> None:
        try:
            await fail()
        except Exception as caught:
            seen.append(told(caught))
        if len(seen) == 1:
            raise Again

    return catch, seen


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
async def test_failure_of_a_step_is_the_same_live_and_replayed(app: App, make: Callable[[], Exception]):
    catch, seen = catching(app, error := make())
    async with app:
        await catch()
    live, replayed = seen
    assert live[0] is replayed[0] is type(error)


@pytest.mark.parametrize("make", [*ERRORS.values(), *LOSING.values()], ids=[*ERRORS, *LOSING])
async def test_nothing_of_a_failure_is_seen_live_that_a_replay_does_not_see(app: App, make: Callable[[], Exception]):
    catch, seen = catching(app, make())
    async with app:
        await catch()
    live, replayed = seen
    assert live == replayed


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
async def test_failure_of_a_workflow_comes_back_as_its_type(app: App, make: Callable[[], Exception]):
    error = make()

    @app.workflow
    async def fail() -> None:
        raise error

    async with app:
        with pytest.raises(type(error)) as raised:
            await fail()
    innermost: BaseException = raised.value
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    assert isinstance(innermost, ExecutionFailed)
    assert "raise error" in innermost.traceback


async def test_failure_that_cannot_be_imported_is_execution_failed(app: App):
    error = local_error()

    @app.workflow
    async def fail() -> None:
        raise error

    async with app:
        with pytest.raises(ExecutionFailed, match="Local: here") as raised:
            await fail()
    assert raised.value.error_type.endswith("local_error.<locals>.Local")


async def test_one_exception_object_may_be_raised_by_many_executions(app: App):
    sold_out = ValueError("sold out")

    @app.step
    async def reserve() -> None:
        raise sold_out

    @app.workflow
    async def in_a_step() -> None:
        await reserve()

    @app.workflow
    async def by_itself() -> None:
        raise sold_out

    async with app:
        for workflow in (in_a_step, by_itself, in_a_step):
            with pytest.raises(ValueError, match="sold out"):
                async with asyncio.timeout(20):
                    await workflow()


class Opaque:
    pass


@dataclasses.dataclass
class Parcel:
    weight: float


@pytest.mark.parametrize(
    "value, annotation, error, why",
    [
        (Opaque(), Any, CodecError, "value cannot be stored: Opaque"),
        (Parcel(float("nan")), Parcel, CodecError, r"value\.weight is nan"),
        (Parcel(1.0), Any, CodecError, "annotate it"),
        ("x", int, CodecError, "Expected `int`, got `str`"),
        ("x" * 5_000_000, str, LimitExceeded, "over the limit"),
    ],
    ids=["opaque", "nan", "unannotated", "wrong", "large"],
)
@pytest.mark.parametrize("place", ["step", "workflow"])
async def test_result_that_cannot_be_stored_fails_at_once(
    app: App, value: Any, annotation: Any, error: type[Exception], why: str, place: str
):
    ran: list[str] = []

    async def give() -> Any:
        ran.append("give")
        return value

    give.__annotations__["return"] = annotation
    if place == "step":
        step = app.step(give, retry=Retry(max_attempts=1))

        @app.workflow
        async def caller() -> None:
            await step()

        workflow: Any = caller
    else:
        workflow = app.workflow(give)
    async with app:
        with pytest.raises(error, match=why):
            async with asyncio.timeout(20):
                await workflow()
    assert ran == ["give"]


@dataclasses.dataclass
class Exiting:
    how: str

    def __post_init__(self) -> None:
        raise SystemExit if self.how == "system" else GeneratorExit


@pytest.mark.parametrize("how", ["system", "generator"])
@pytest.mark.parametrize("given", ["a step's result", "a child's result", "an event"])
async def test_a_type_that_exits_when_it_is_made_is_one_that_cannot_be_read(app: App, how: str, given: str):
    @app.step
    async def step() -> Exiting:
        return {"how": how}  # type: ignore[return-value]

    @app.workflow
    async def child() -> Exiting:
        return {"how": how}  # type: ignore[return-value]

    @app.workflow
    async def reads() -> None:
        if given == "an event":
            await outlast.receive("it", Exiting)
        elif given == "a child's result":
            await child()
        await step()

    async with app:
        handle = await reads.start()
        await handle.send("it", {"how": how})
        with pytest.raises(CodecError, match="Exit; it should be"):
            await handle.result(timeout=20)


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_codec_leaves_no_plain_text_in_the_store(tmp_path: Path):
    app = App(str(tmp_path / "values.db"), codec=Masked())
    secret = "the quick brown fox"

    @app.step
    async def echo(text: str) -> str:
        return text

    @app.step
    async def fail(text: str) -> None:
        raise ValueError(text)

    @app.workflow
    async def secrets(text: str) -> str:
        await echo(text)
        try:
            await fail(text)
        except ValueError:
            return text
        raise AssertionError

    @app.workflow
    async def failing(text: str) -> None:
        raise ValueError(text)

    async with app:
        assert await secrets(secret) == secret
        with pytest.raises(ValueError, match=secret):
            await failing(secret)
        journal = await (await secrets.start(secret)).journal()
        assert isinstance(journal, list)
        kept = await asyncio.to_thread(content, tmp_path)
    assert b"masked:" in kept
    assert secret.encode() not in kept
    assert secret.encode().hex().encode() not in kept


class Forgetful(Masked):
    """Has lost its key."""

    def decode(self, data: bytes) -> bytes:
        raise PermissionError("no key")


async def test_codec_that_cannot_decode_is_told(tmp_path: Path):
    def shop(codec: Any) -> Any:
        app = App(str(tmp_path / "values.db"), codec=codec)

        @app.workflow
        async def echo(text: str) -> str:
            return text

        return app, echo

    app, echo = shop(Masked())
    async with app:
        await echo.options(id="a")("x")
    app, echo = shop(Forgetful())
    async with app.client():
        with pytest.raises(CodecError, match="Forgetful: PermissionError: no key"):
            await echo.execution("a").result()


class Away(Masked):
    """Its key service does not answer for so many values that have a word in them."""

    def __init__(self) -> None:
        self.word, self.left = b"", 0

    def encode(self, data: bytes) -> bytes:
        if self.left and self.word in data:
            self.left -= 1
            raise ConnectionError("no answer")
        return super().encode(data)


@pytest.mark.parametrize("undos", [False, True])
async def test_a_result_waits_for_a_codec_that_is_away(tmp_path: Path, undos: bool, monkeypatch: pytest.MonkeyPatch):
    """Nothing is wrong with the work: it does not fail, and nothing is undone."""
    codec, did = Away(), list[str]()
    app = App(str(tmp_path / "values.db"), codec=codec)

    @app.step
    async def works() -> None:
        did.append("works")

    @app.step
    async def undo() -> None:
        did.append("undone")

    @app.workflow
    async def code() -> str:
        await works()
        if undos:
            await outlast.compensate(undo)
        return "the result"

    codec.word, codec.left = b"the result", 3
    monkeypatch.setattr(mishaps, "PUT_OFF_MS", 1)
    async with app:
        assert await code() == "the result"
    assert did == ["works"]
    assert codec.left == 0


async def tell(handle: Any, what: str) -> None:
    match what:
        case "send":
            await handle.send("word", "the word")
        case "resolve":
            await handle.resolve("word", "the word")
        case _:
            await handle.reject("word", ValueError("the word"))


ENCODES = ["call", "start", "with an event", "send", "resolve", "reject", "emit", "new page", "flow", "growth", "map"]


@pytest.mark.parametrize("what", ENCODES)
async def test_what_workflow_code_encodes_waits_for_a_codec_that_is_away(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    """No replay could repeat what the code would do with the error: it does not see it, whatever it catches."""
    codec, seen = Away(), list[str]()
    app = App(str(tmp_path / "values.db"), codec=codec)

    @app.workflow
    async def other(text: str = "") -> None:
        return

    async def encodes() -> None:
        match what:
            case "call":
                await other("the word")
            case "start":
                await other.start("the word")
            case "with an event":
                await other.options(send={"word": "the word"}).start()
            case "emit":
                outlast.emit("the word")
            case "new page":
                outlast.continue_as_new("the word")
            case "flow":
                flow = app.flow("f")
                flow.add("one", other, "the word")
                await flow.start()
            case "growth":
                growth = outlast.flow()
                growth.add("two", other, "the word")
                await growth.start()
            case _:
                await tell(app.execution("hears"), what)

    @app.workflow
    async def code(word: str = "") -> list[str]:
        if what == "map":
            return ["the", "word"]
        try:
            async with asyncio.TaskGroup() as group:
                if not word:
                    group.create_task(encodes())
        except* Exception as error:
            seen.append(repr(error))
        return []

    flow = app.flow("all", id="all")
    member = flow.add("code", code)
    if what == "map":
        flow.map(other, member.output, name="others")
    codec.word, codec.left = b'{"text":"word"}' if what == "map" else b"the word", 2
    monkeypatch.setattr(mishaps, "PUT_OFF_MS", 1)
    async with asyncio.timeout(30), app:
        await other.options(id="hears", delay="1d").start()
        handle = await flow.start()
        await handle.result()
        assert {info.failures for info in await app.find(status="succeeded")} == {0}
    assert (codec.left, seen) == (0, [])


@pytest.mark.parametrize("what", ["call", "send", "emit", "new page"])
async def test_what_def_code_encodes_waits_for_a_codec_that_is_away(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    codec, seen = Away(), list[str]()
    app = App(str(tmp_path / "values.db"), codec=codec)

    @app.workflow
    def other(text: str = "") -> str:
        return text

    @app.workflow
    def code(word: str = "") -> str:
        try:
            match what:
                case "call":
                    return other("the word")
                case "send":
                    other.sync.execution("hears").send("word", "the word")
                case "emit":
                    outlast.emit("the word")
                case _:
                    if not word:
                        outlast.continue_as_new("the word")
        except Exception as error:
            seen.append(repr(error))
        return "the word"

    codec.word, codec.left = b"the word", 2
    monkeypatch.setattr(mishaps, "PUT_OFF_MS", 1)
    async with asyncio.timeout(30), app:
        await other.options(id="hears", delay="1d").start()
        handle = await code.start()
        assert await handle.result() == "the word"
        assert (await handle.info()).failures == 0
    assert (codec.left, seen) == (0, [])


async def test_an_update_that_emits_waits_for_a_codec_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    codec = Away()
    app = App(str(tmp_path / "values.db"), codec=codec)

    @app.workflow
    async def shelf() -> str:
        @outlast.update("take")
        def take(name: str) -> str:
            outlast.emit(f"taken: {name}")
            return name

        return await outlast.receive("word", str)

    monkeypatch.setattr(mishaps, "PUT_OFF_MS", 1)
    async with asyncio.timeout(30), app:
        handle = await shelf.start()
        codec.word, codec.left = b"taken", 2
        assert await handle.update("take", "tea") == "tea"
        await handle.send("word", "done")
        assert await handle.result() == "done"
        assert [frame.value async for frame in handle.frames()] == ["taken: tea"]
    assert codec.left == 0


async def test_the_failure_of_an_update_waits_for_a_codec_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    codec = Away()
    app = App(str(tmp_path / "values.db"), codec=codec)

    @app.workflow
    async def shelf() -> str:
        @outlast.update("take")
        def take(name: str) -> None:
            raise LookupError(f"there is no {name}")

        return await outlast.receive("word", str)

    monkeypatch.setattr(mishaps, "PUT_OFF_MS", 1)
    async with asyncio.timeout(30), app:
        handle = await shelf.start()
        codec.word, codec.left = b"there is no tea", 3
        with pytest.raises(LookupError, match="there is no tea"):
            await handle.update("take", "tea")
        await handle.send("word", "done")
        assert await handle.result() == "done"
    assert codec.left == 0


class Unreadable(Masked):
    """Its key service does not answer for so many values that are read and have a word in them."""

    def __init__(self) -> None:
        self.word, self.left = b"", 0

    def decode(self, data: bytes) -> bytes:
        value = super().decode(data)
        if self.left and self.word in value:
            self.left -= 1
            raise ConnectionError("no answer")
        return value


async def test_code_does_not_go_on_without_an_update_that_the_codec_cannot_read():
    """It would go another way than the one that is recorded, and seem to be other code."""
    codec = Unreadable()
    app = App("sqlite:///values.db", codec=codec)

    @app.step
    async def brew(what: str) -> str:
        return what

    @app.workflow
    async def shelf() -> str:
        taken = list[str]()

        @outlast.update("take")
        def take(name: str) -> None:
            taken.append(name)

        await outlast.receive("word", str)
        cup = await brew("leaves") if taken else "water"
        await outlast.receive("end", str)
        return cup

    async with harness(app) as h:
        handle = await shelf.start()
        await handle.update("take", "tea")
        await handle.send("word", "go")
        await h.settle()
        codec.word, codec.left = b"tea", 1
        await handle.send("end", "now")
        assert await handle.result() == "leaves"
    assert codec.left == 0


async def test_neither_a_replay_nor_a_query_takes_an_unreadable_journal_for_changed_code():
    codec = Unreadable()
    app = App("sqlite:///values.db", codec=codec)

    @app.step
    async def brew(what: str) -> str:
        return what

    @app.workflow
    async def shelf() -> None:
        cup = await brew("tea")
        outlast.query("cup")(lambda: cup)
        await outlast.receive("end", str)

    async with harness(app) as h:
        handle = await shelf.start()
        await h.settle()
        codec.word, codec.left = b"tea", 1
        with pytest.raises(CodecError, match="result of step 'brew' could not be decoded by Unreadable"):
            await h.replay(handle)
        codec.left = 1
        with pytest.raises(CodecError, match="result of step 'brew' could not be decoded by Unreadable"):
            await handle.query("cup")
        assert await h.replay(handle) is None
        assert await handle.query("cup") == "tea"


async def test_the_end_of_a_member_does_not_wait_for_the_input_of_the_next(tmp_path: Path):
    codec, ran = Away(), list[str]()
    app = App(str(tmp_path / "values.db"), codec=codec)

    @app.workflow
    async def code(name: str, after: str = "") -> str:
        ran.append(name)
        return name

    flow = app.flow("f", id="f")
    flow.add("next", code, "next", flow.add("first", code, "first").output)
    async with app:
        fh = await flow.start()
        codec.word, codec.left = b"next", 2
        assert await fh.result("60s") == {"first": "first", "next": "next"}
    assert ran == ["first", "next"]


async def test_a_journal_is_shown_though_no_codec_has_sealed_the_engines_own_entries(tmp_path: Path):
    class Strict(Masked):
        def decode(self, data: bytes) -> bytes:
            assert data.startswith(b"masked:")
            return super().decode(data)

    app, tries = App(str(tmp_path / "values.db"), codec=Strict()), list[int]()

    @app.step(retry=Retry(max_attempts=2, initial="1ms"))
    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "done"

    @app.workflow
    async def child() -> None:
        raise ValueError("no child")

    @app.workflow
    async def parent() -> str:
        outlast.patched("newer")
        await outlast.compensate(flaky)
        await outlast.sleep("1ms")
        said = await flaky()
        try:
            await child()
        except ValueError:
            return await outlast.receive("go", str, timeout="1d")
        return said

    async with app:
        handle = await parent.start()
        await handle.send("go", "on")
        assert await handle.result("20s") == "on"
        fork = await handle.fork(from_step="child")
        await fork.send("go", "on")
        assert await fork.result("20s") == "on"
        for one in (handle, fork):
            values = {(entry.op, entry.outcome): entry.value for entry in await one.journal()}
            assert values["step", "succeeded"] == b'"done"'
            assert values["receive", "succeeded"] == b'"on"'
            assert values["sleep", "succeeded"] == b"null"
            assert values["patch", "succeeded"] == b'["newer"]'
