"""Bad input gives a typed error at the call, and nothing is written: the store is dumped after each."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from outlast import (
    App,
    CodecError,
    DuplicateRegistration,
    ExecutionNotFound,
    InvalidArguments,
    InvalidConfig,
    InvalidInput,
    InvalidName,
    LimitExceeded,
    UnknownWorkflow,
    WrongPlace,
)
from tests.unit.authoring.test_workflow import BAD_OPTIONS


@dataclasses.dataclass
class Line:
    price: float


@dataclasses.dataclass
class Order:
    id: str
    lines: list[Line] = dataclasses.field(default_factory=list)


class Shop:
    """An app with a workflow of each colour."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.app = app = App(str(path))

        @app.step
        async def nested() -> str:
            return await checkout.aio(Order("inner"))

        @app.step
        def nested_def() -> str:
            return checkout.sync(Order("inner"))

        @app.workflow
        async def checkout(order: Order, count: int = 1) -> str:
            return order.id * count

        @app.workflow
        def import_file(path: str) -> int:
            return len(path)

        @app.workflow
        async def calls_in_a_step() -> str:
            return await nested()

        @app.workflow
        def calls_in_a_def_step() -> str:
            return nested_def()

        @app.workflow
        async def calls_a_workflow() -> str:
            return await checkout("no order")  # type: ignore[arg-type]

        @app.workflow
        async def starts_a_workflow() -> str:
            handle = await checkout.start()  # type: ignore[call-arg]
            return handle.id

        @app.workflow
        def calls_a_def_workflow() -> int:
            return import_file(3)  # type: ignore[arg-type]

        self.checkout, self.import_file = checkout, import_file
        self.in_a_step, self.in_a_def_step = calls_in_a_step, calls_in_a_def_step
        self.with_a_wrong_child = [calls_a_workflow, starts_a_workflow, calls_a_def_workflow]

    def written(self) -> dict[str, int]:
        """How many rows of each table there are, without those of the engine itself."""
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            own = {"outlast_meta", "outlast_clock", "outlast_session"}
            counts = {
                name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()
                for name in names
                if name.startswith("outlast_") and name not in own
            }
        finally:
            connection.close()
        return {name: int(row[0]) for name, row in counts.items() if row is not None and row[0]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


@pytest.fixture
async def opened(shop: Shop) -> AsyncIterator[Shop]:
    """Open as a client. Whatever the test did, nothing is in the store."""
    async with shop.app.client():
        yield shop
        assert shop.written() == {}


async def test_nothing_written_is_noticed(shop: Shop):
    async with shop.app.client():
        assert shop.written() == {}
        await shop.checkout.start(Order("a"))
        assert shop.written() == {"outlast_execution": 1, "outlast_payload": 1}


# ---- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((), {}),
        ((Order("a"), 1, 2), {}),
        ((Order("a"),), {"cuont": 1}),
        ((Order("a"), 1), {"count": 1}),
        (("a",), {}),
        ((Line(1.0),), {}),
        ((None,), {}),
        ((Order("a"), "1"), {}),
        ((Order("a"), 1.5), {}),
        ((Order("a"), True), {}),
        ((Order("a"), None), {}),
        ((Order(3),), {}),  # type: ignore[arg-type]
        ((Order("a", [3]),), {}),  # type: ignore[list-item]
    ],
    ids=str,
)
async def test_wrong_arguments(opened: Shop, args: Any, kwargs: Any):
    with pytest.raises(InvalidArguments, match="checkout"):
        await opened.checkout.start(*args, **kwargs)
    with pytest.raises(InvalidArguments):
        await opened.checkout(*args, **kwargs)
    with pytest.raises(InvalidArguments):
        await opened.app.start_many([opened.checkout.bind(Order("fine")), opened.checkout.bind(*args, **kwargs)])


cyclic = Order("a")
cyclic.lines.append(cyclic)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "order, path",
    [
        (Order("a", [Line(1.0), Line(float("nan"))]), r"order\.lines\[1\]\.price"),
        (Order("a", [Line(float("-inf"))]), r"order\.lines\[0\]\.price"),
        (Order("a", [Line(object())]), r"order\.lines\[0\]\.price"),  # type: ignore[arg-type]
        (Order("\udc00"), r"order\.id"),
        (cyclic, r"order\.lines\[0\]"),
        (Order(lambda: 1), r"order\.id"),  # type: ignore[arg-type]
    ],
    ids=range(6),
)
async def test_unencodable_values(opened: Shop, order: Order, path: str):
    with pytest.raises(CodecError, match=f"checkout: {path}"):
        await opened.checkout.start(order)


async def test_payload_over_the_limit(opened: Shop):
    with pytest.raises(LimitExceeded):
        await opened.checkout.start(Order("x" * 5_000_000))


class Broken:
    def encode(self, data: bytes) -> bytes:
        raise OSError("no key")

    def decode(self, data: bytes) -> bytes:
        return data


async def test_codec_hook_that_fails(tmp_path: Path):
    shop = Shop(tmp_path / "shop.db")
    shop.app.values = type(shop.app.values)(Broken())
    async with shop.app.client():
        with pytest.raises(CodecError, match="Broken: OSError: no key"):
            await shop.checkout.start(Order("a"))
        assert shop.written() == {}


# ---- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, error", BAD_OPTIONS, ids=lambda value: str(value)[:50])
async def test_bad_options(opened: Shop, options: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        await opened.checkout.options(**options).start(Order("a"))


async def test_bad_handles(opened: Shop):
    for bad in ("", 3, None, "a\nb"):
        with pytest.raises(InvalidName):
            opened.checkout.execution(bad)  # type: ignore[arg-type]
    with pytest.raises(ExecutionNotFound):
        await opened.checkout.execution("never-started").info()
    with pytest.raises(ExecutionNotFound):
        await opened.checkout.execution("never-started").cancel()
    with pytest.raises(ExecutionNotFound):
        await opened.checkout.execution("never-started").result(timeout="3s")


async def test_reasons_that_not_every_store_can_keep(opened: Shop):
    for bad in ("a\0b", "\x1b[31mred", "\x85"):
        with pytest.raises(InvalidInput, match=r"cancel reason .* control characters"):
            await opened.checkout.execution("never-started").cancel(reason=bad)
        with pytest.raises(InvalidInput, match=r"cancel reason .* control characters"):
            await opened.app.flow_handle("never-started").cancel(policy="flow_only", reason=bad)
    with pytest.raises(ExecutionNotFound):
        await opened.checkout.execution("never-started").cancel(reason="one line\n\tand another: \N{BELL}")


async def test_bad_questions(opened: Shop):
    with pytest.raises(InvalidInput, match="known: "):
        await opened.app.find(status="finished")
    anything: Any = opened.app
    for limit in (0, -1, "10", True, 1.5):
        with pytest.raises(InvalidInput, match="limit must be a whole number"):
            await anything.find(limit=limit)
    for after in (3, b"1:a", "x", (await opened.app.find())):
        with pytest.raises(InvalidInput, match="cursor"):
            await anything.find(after=after)
    for moment in ("2h", 17, dt.datetime(2026, 11, 15, tzinfo=dt.UTC).replace(tzinfo=None)):
        with pytest.raises(InvalidInput, match="aware datetime"):
            await anything.find(created_from=moment)
        with pytest.raises(InvalidInput, match="aware datetime"):
            await anything.count(created_before=moment)
    for status in (3, [3], [["ready"]]):
        with pytest.raises(InvalidInput, match="known: "):
            await anything.count(status=status)
    for bad in (opened.checkout, 5, b"checkout", "\udc00"):
        for what in ("workflow", "lane", "reason"):
            with pytest.raises(InvalidInput, match=what):
                await anything.find(**{what: bad})
            with pytest.raises(InvalidInput, match=what):
                await anything.count(**{what: bad})
    for tags in (5, [("a", "b")], "a"):
        with pytest.raises(InvalidInput, match="tags must be a mapping"):
            await anything.count(tags=tags)
        with pytest.raises(InvalidInput, match="tags must be a mapping"):
            anything.completions(tags=tags)
    for namespace in (5, ""):
        with pytest.raises(InvalidName, match="namespace"):
            anything.completions(namespace=namespace)
    for after in (3, b"1:a", ("a",)):
        with pytest.raises(InvalidInput, match="cursor of a completion"):
            anything.completions(after=after)
    with pytest.raises(InvalidInput):
        await opened.app.purge("soon")
    with pytest.raises(InvalidInput):
        await opened.checkout.execution("a").result(timeout="soon")


# ---- registration -------------------------------------------------------------------------------------------------


async def test_unknown_workflow(opened: Shop):
    with pytest.raises(UnknownWorkflow, match=r"this app has .*checkout"):
        opened.app.registry.newest("chekout")


async def test_duplicate_registration(opened: Shop):
    with pytest.raises(DuplicateRegistration):
        opened.app.workflow(opened.checkout.fn, name="checkout")


async def test_workflow_of_another_app(opened: Shop, tmp_path: Path):
    other = Shop(tmp_path / "other.db")
    with pytest.raises(InvalidInput, match="another app"):
        await opened.app.start_many([opened.checkout.bind(Order("a")), other.checkout.bind(Order("b"))])
    with pytest.raises(WrongPlace, match="not open"):
        await other.checkout.start(Order("b"))


async def test_workflow_of_another_app_as_a_child(shop: Shop, tmp_path: Path):
    other = Shop(tmp_path / "other.db")

    @shop.app.workflow
    async def calls(how: str) -> None:
        if how == "call":
            await other.checkout(Order("b"))
        if how == "start":
            await other.checkout.options(id="held").start(Order("b"))
        if how == "flow":
            flow = other.app.flow("nightly", id="n-1")
            flow.add("one", other.checkout, Order("b"))
            await flow.start()

    async with shop.app:
        for how in ("call", "start", "flow"):
            handle = await calls.start(how)
            with pytest.raises(InvalidInput, match="another app"):
                await handle.result(timeout=20)
            assert await handle.journal() == []


@pytest.mark.parametrize("several", [3, None, Order("a")], ids=str)
async def test_what_is_not_several(opened: Shop, several: Any):
    with pytest.raises(InvalidInput, match="a list of them"):
        await opened.app.start_many(several)


async def test_one_alone_is_not_several(opened: Shop):
    with pytest.raises(InvalidInput, match="a list of them"):
        await opened.app.start_many(opened.checkout.bind(Order("a")))  # type: ignore[arg-type]


@pytest.mark.parametrize("unbound", [3, None, "checkout", Order("a")], ids=str)
async def test_what_is_not_bound(opened: Shop, unbound: Any):
    with pytest.raises(InvalidInput, match="bind"):
        await opened.app.start_many([opened.checkout.bind(Order("a")), unbound])


async def test_workflow_that_was_not_bound(opened: Shop):
    with pytest.raises(InvalidInput, match="bind"):
        await opened.app.start_many([opened.checkout])  # type: ignore[list-item]


# ---- places -------------------------------------------------------------------------------------------------------


async def test_blocking_face_on_a_loop_thread(opened: Shop):
    blocking = [
        lambda: opened.checkout.sync.start(Order("a")),
        lambda: opened.checkout.sync(Order("a")),
        lambda: opened.checkout.sync.execution("a"),
        lambda: opened.import_file("a"),
        lambda: opened.checkout.options(id="a").sync.start(Order("a")),
    ]
    for call in blocking:
        with pytest.raises(WrongPlace, match="event loop"):
            call()


async def test_app_that_is_not_open(shop: Shop):
    for call in (
        lambda: shop.checkout.start(Order("a")),
        lambda: shop.checkout(Order("a")),
        lambda: shop.import_file.aio("a"),
        lambda: shop.app.start_many([shop.checkout.bind(Order("a"))]),
        lambda: shop.app.find(),
        lambda: shop.app.count(),
        lambda: shop.app.purge("1d"),
    ):
        with pytest.raises(WrongPlace, match="not open"):
            await call()
    with pytest.raises(WrongPlace, match="not open"):
        shop.app.execution("a")
    assert not shop.path.exists()


async def test_app_that_is_closed_again(shop: Shop):
    async with shop.app.client():
        pass
    with pytest.raises(WrongPlace, match="not open"):
        await shop.checkout.start(Order("a"))
    assert shop.written() == {}


async def test_app_opened_twice(opened: Shop):
    with pytest.raises(WrongPlace, match="open already"):
        async with opened.app:
            pass
    with pytest.raises(WrongPlace, match="open already"):
        async with opened.app.client():
            pass
    assert await opened.app.count() == 0  # the first is open still


async def test_app_opened_twice_at_once(shop: Shop):
    async def use() -> int:
        async with shop.app.client():
            await asyncio.sleep(0.05)
            return await shop.app.count()

    outcomes = await asyncio.gather(use(), use(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)] == [WrongPlace]
    assert 0 in outcomes


async def only_the_caller_is_written(shop: Shop, caller: Any, why: str, error: type[Exception] = WrongPlace) -> None:
    async with shop.app:
        with pytest.raises(error, match=why):
            await caller.aio()
        assert await shop.app.count() == 1
        assert await shop.app.count(workflow="checkout") == 0
        assert await shop.app.count(workflow="import_file") == 0


async def test_workflow_called_inside_a_step(shop: Shop):
    await only_the_caller_is_written(shop, shop.in_a_step, "inside step 'nested'")


async def test_workflow_called_inside_a_def_step(shop: Shop):
    await only_the_caller_is_written(shop, shop.in_a_def_step, "inside step 'nested_def'")


@pytest.mark.parametrize("which", range(3))
async def test_a_child_with_wrong_arguments_is_not_started(shop: Shop, which: int):
    why = ["checkout: order", "missing a required argument", "import_file: path"][which]
    await only_the_caller_is_written(shop, shop.with_a_wrong_child[which], why, InvalidArguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: App("mysql://here"),
        lambda: App("x.db", namespace=""),
        lambda: App("x.db", lease_ttl="soon"),
        lambda: App("x.db", lease_ttl=0),
        lambda: App("x.db", lease_tll="3s"),
        lambda: App("x.db", codec=object()),  # type: ignore[arg-type]
    ],
)
def test_bad_configuration(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def use() -> None:
        async with make().client():
            pass

    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidConfig, InvalidInput)):
        asyncio.run(use())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"lanes": "default"},
        {"lanes": ["a b"]},
        {"concurrency": 0},
        {"concurrency": "many"},
        {"capabilities": "gpu"},
        {"drain": "soon"},
        {"lanes": []},
        {"poll": 0},
        {"poll": "5ms"},
        {"reconcilers": "no"},
        {"reconcilers": None},
        {"lane": ["x"]},
    ],
    ids=str,
)
async def test_bad_worker_settings(shop: Shop, settings: dict[str, Any]):
    with pytest.raises(InvalidInput):
        async with shop.app.worker(**settings):
            pass
    assert not shop.path.exists()
    async with shop.app.client():
        assert await shop.app.count() == 0
