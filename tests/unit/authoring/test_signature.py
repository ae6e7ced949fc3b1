"""The signature changes with the shape of a workflow, and with nothing else."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outlast.authoring.signature import operations_in, source_of

SHOP = """
    from __future__ import annotations
    import dataclasses, asyncio, logging, typing
    import outlast
    from outlast import App
    import msgspec, pydantic

    app = App("never-opened.db")
    log = logging.getLogger()
    LIMIT = 3

    @dataclasses.dataclass
    class Order:
        '''What is bought.'''
        id: str
        count: int = 1

    class Parcel(pydantic.BaseModel):
        weight: int

    class Rates:
        @app.step
        async def fetch(self, currency: str) -> float: ...

    rates = Rates()

    @app.workflow(name="checkout")
    async def checkout(order: Order, note: str = "none") -> Parcel:
        '''Buy it.'''
        payment = await charge(order)
        if payment > LIMIT:
            await rates.fetch("EUR")
        a, b = await asyncio.gather(pack(order), ship.aio(order))
        await outlast.sleep("1h", name="cooling")  # a while
        plan = await outlast.receive("plan", str)
        rate = await app.step(len, name="fx").aio("EUR")
        await other.options(id="x").start(3)
        return Parcel(weight=1)

    @app.step
    async def charge(order: Order) -> int: ...

    @app.step(name="packing")
    async def pack(order: Order) -> int: ...

    @app.step
    def ship(order: Order) -> int: ...

    @app.workflow
    async def other(number: int) -> None: ...
"""

numbers = itertools.count()


def loaded(tmp_path: Path, source: str) -> ModuleType:
    path = tmp_path / f"shop_{next(numbers)}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location("shop_of_test_signature", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def signature(tmp_path: Path, before: str = "", after: str = "") -> str:
    assert before in SHOP
    return loaded(tmp_path, SHOP.replace(before, after, 1) if before else SHOP).checkout.signature


def test_operations_are_those_of_the_source_in_its_order(tmp_path: Path):
    assert operations_in(loaded(tmp_path, SHOP).checkout.fn) == [
        "step charge",
        "step Rates.fetch",
        "step packing",
        "step ship",
        "wait sleep cooling",
        "wait receive plan",
        "step fx",
        "workflow other",
    ]


@pytest.mark.parametrize(
    "before, after",
    [
        ("# a while", "# a little while"),
        ("'''Buy it.'''", "'''Sell it.'''"),
        ("'''What is bought.'''", "'''What is sold.'''"),
        ('"1h"', '"2h"'),
        ("LIMIT = 3", "LIMIT = 4"),
        ('"none"', '"some"'),
        ("count: int = 1", "count: int = 2"),
        ("payment = await charge(order)", "log.info('charging'); payment = await charge(order); print(len([payment]))"),
        ("payment = await charge(order)", "payment = await charge(dataclasses.replace(order))"),
        ("if payment > LIMIT:", "if payment <= LIMIT * 2:"),
        ("rates.fetch", "rates . fetch"),
        ("await charge(order)", "(await charge(\n            order,\n        ))"),
        ("async def charge(order: Order) -> int: ...", "async def charge(order: Order) -> int:\n        return 3"),
    ],
)
def test_comments_constants_and_plain_calls_do_not_change_it(tmp_path: Path, before: str, after: str):
    assert signature(tmp_path, before, after) == signature(tmp_path)


@pytest.mark.parametrize(
    "before, after",
    [
        ('name="checkout"', 'name="checkin"'),
        ('name="checkout"', 'name="checkout", version="2"'),
        ("payment = await charge(order)", "payment = 3"),
        ("payment = await charge(order)", "payment = await charge(order); await charge(order)"),
        ("payment = await charge(order)", "payment = await pack(order)"),
        ('@app.step(name="packing")', '@app.step(name="pack")'),
        ("pack(order), ship.aio(order)", "ship.aio(order), pack(order)"),
        ('name="cooling"', 'name="waiting"'),
        ('receive("plan"', 'receive("plans"'),
        ('name="fx"', 'name="forex"'),
        ("count: int = 1", "count: str = ''"),
        ("count: int = 1", "count: int = 1\n        gift: bool = False"),
        ("weight: int", "weight: str"),
        ('note: str = "none"', "note: str"),
        ('note: str = "none"', "note: int = 3"),
        ('note: str = "none"', 'remark: str = "none"'),
        (") -> Parcel:", ") -> int:"),
    ],
)
def test_shape_changes_it(tmp_path: Path, before: str, after: str):
    assert signature(tmp_path, before, after) != signature(tmp_path)


def test_default_without_a_stable_text_does_not_change_it(tmp_path: Path):
    assert signature(tmp_path, '"none"', "object()") == signature(tmp_path, '"none"', "object()")


def test_code_without_a_source_has_a_signature():
    assert operations_in(len) == ["<no source>"]


def test_a_parser_that_python_itself_confused_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    """CPython 3.11: "AST constructor recursion depth mismatch", of a good source."""
    really, confused = ast.parse, iter([True, True, False])

    def parse(source: str) -> ast.Module:
        if next(confused):
            raise SystemError("AST constructor recursion depth mismatch (before=195, after=249)")
        return really(source)

    expected = operations_in(parse)
    monkeypatch.setattr(ast, "parse", parse)
    assert operations_in(parse) == expected != ["<no source>"]


def test_a_source_is_found_as_inspect_finds_it_without_a_look_at_all_modules(monkeypatch: pytest.MonkeyPatch):
    def decorated(fn: Any) -> Any:
        return fn

    @decorated
    async def inner(x: int) -> int:
        # a comment
        return x

    given = [inner, decorated, signature, Path.exists, textwrap.dedent, lambda x: x]
    expected = [inspect.getsource(fn.__code__) for fn in given]
    monkeypatch.setattr(inspect, "getmodule", lambda *_: pytest.fail("it looked"))
    assert [source_of(fn.__code__) for fn in given] == expected
