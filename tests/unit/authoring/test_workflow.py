"""Workflows: what may be one, its options, its registration."""

from __future__ import annotations

import asyncio
import functools
import inspect
from types import FunctionType
from typing import Any, cast

import pytest

from outlast import App, DuplicateRegistration, InvalidInput, InvalidName, LimitExceeded, Retry, UnknownWorkflow
from outlast.authoring.workflow import AsyncWorkflow, SyncWorkflow
from outlast.machine import facts


async def checkout(order: str) -> int:
    """Buy it."""
    return len(order)


def import_file(path: str) -> int:
    return len(path)


@pytest.fixture
def app() -> App:
    return App("sqlite:///never-opened.db")


def test_decorator_with_and_without_parentheses(app: App):
    plain = app.workflow(checkout)
    called = app.workflow()(import_file)
    named = app.workflow(name="other", version="2", lane="slow", retry=Retry(), timeout="1m", requires={"gpu"})(
        checkout
    )
    assert (type(plain), plain.name, plain.version) == (AsyncWorkflow, "checkout", "1")
    assert (type(called), called.name) == (SyncWorkflow, "import_file")
    assert (named.name, named.version, named.definition_lane) == ("other", "2", "slow")
    assert {workflow.name for workflow in app.registry} == {"checkout", "import_file", "other"}


def test_workflow_looks_like_its_function(app: App):
    workflow = app.workflow(checkout)
    assert workflow.fn is checkout
    assert workflow.__doc__ == "Buy it."
    assert inspect.signature(workflow) == inspect.signature(checkout)
    assert repr(workflow) == "<workflow 'checkout', version '1'>"
    assert asyncio.run(workflow.fn("abc")) == 3


def test_attributes_of_the_function_do_not_replace_those_of_the_workflow(app: App):
    async def f() -> None: ...

    f.app, f.name, f.version = "mine", "mine", "mine"
    workflow = app.workflow(f)
    assert workflow.app is app
    assert (workflow.name, workflow.version) == ("f", "1")


class Shop:
    pass


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda app: app.workflow(Shop), "class Shop"),
        (lambda app: app.workflow(3), "must be a function"),
        (lambda app: app.workflow("name"), "must be a function"),
        (lambda app: app.workflow(lambda: 1), "lambda"),
        (lambda app: app.workflow(app.step(checkout)), "step already"),
        (lambda app: app.workflow(app.workflow(checkout)), "workflow already"),
        (lambda app: app.workflow(classmethod(cast("Any", checkout))), "write @staticmethod above"),
        (lambda app: app.workflow(name="a b"), "must not contain"),
        (lambda app: app.workflow(name="a|b"), "must not contain"),
        (lambda app: app.workflow(name=3), "string"),
        (lambda app: app.workflow(version=2), "string"),
        (lambda app: app.workflow(version=""), "empty"),
        (lambda app: app.workflow(lane="a,b"), "must not contain"),
        (lambda app: app.workflow(requires="gpu"), "collection of words"),
        (lambda app: app.workflow(requires=3), "collection of words"),
        (lambda app: app.workflow(requires={"a b"}), "must not contain"),
        (lambda app: app.workflow(retry=3), "must be a Retry"),
        (lambda app: app.workflow(timeout=0), "longer than nothing"),
        (lambda app: app.workflow(deadline="never"), "not a duration"),
        (lambda app: app.workflow(retention=-1), "negative"),
        (lambda app: app.workflow(max_crashes=0), "max_crashes must be a whole number from 1 to 1,000, not 0"),
        (lambda app: app.workflow(max_crashes=True), "max_crashes must be a whole number"),
        (lambda app: app.workflow(max_crashes_in_life=1_001), "max_crashes_in_life must be a whole number"),
        (lambda app: app.workflow(lanes="x"), "unknown option 'lanes'"),
    ],
)
def test_what_cannot_be_a_workflow_is_refused_where_it_stands(app: App, make: Any, why: str):
    with pytest.raises(InvalidInput, match=why):
        make(app)


def test_a_method_is_refused_and_told_what_to_do(app: App):
    with pytest.raises(InvalidInput, match=r"^Order\.run is a method, .* Write a function outside of the class"):

        class Order:
            @app.workflow
            async def run(self, sku: str) -> str:
                return sku

    with pytest.raises(InvalidInput, match=r"^Import\.begin is a method"):

        class Import:
            @classmethod
            @app.workflow
            def begin(cls, path: str) -> str:
                return path

    with pytest.raises(InvalidInput, match=r"^Export\.begin is a method"):

        class Export:
            @app.workflow(name="export")
            @classmethod
            def begin(cls, path: str) -> str:
                return path

    assert not list(app.registry)


def test_a_function_in_a_class_is_no_method_if_it_has_no_self(app: App):
    class Shop:
        @staticmethod
        @app.workflow
        async def checkout(sku: str) -> str:
            return sku

        async def refund(self, sku: str) -> str:
            @app.workflow(name="nested")
            async def nested(self: str) -> str:
                return self

            return await nested(sku)

    async def plain(self: str) -> str:
        return self

    assert Shop.checkout is app.registry.newest("Shop.checkout")
    assert app.workflow(plain).name == "plain"
    assert app.workflow(Shop().refund, name="of-an-object").name == "of-an-object"


def test_generators_are_refused(app: App):
    async def numbers():
        yield 1

    def letters():
        yield "a"

    for generator in (numbers, letters):
        with pytest.raises(InvalidInput, match="generator"):
            app.workflow(generator)
    assert not list(app.registry)


def test_name_and_version_are_registered_once(app: App):
    app.workflow(checkout)
    with pytest.raises(DuplicateRegistration, match=r"test_workflow\.py:\d+ and at .*test_workflow\.py:\d+"):
        app.workflow(checkout)
    with pytest.raises(DuplicateRegistration):
        app.workflow(import_file, name="checkout")
    app.workflow(checkout, version="2")
    app.workflow(checkout, name="again")
    assert app.registry.newest("checkout").version == "2"
    assert App("other.db").workflow(checkout).name == "checkout"


@pytest.mark.parametrize("cell", ["<stdin>", "<ipython-input-3-0f1>", "/tmp/ipykernel_31/2718.py"])
def test_who_runs_a_cell_again_is_told_what_to_do_there(app: App, cell: str):
    def typed_in() -> Any:
        fn = FunctionType(checkout.__code__.replace(co_filename=cell), {}, "checkout")
        fn.__module__ = "__main__"
        return fn

    app.workflow(typed_in())
    with pytest.raises(DuplicateRegistration, match="make the app anew in the same cell"):
        app.workflow(typed_in())
    with pytest.raises(DuplicateRegistration, match="another name="):
        app.workflow(checkout)


def test_names_of_the_engines_own_workflows_are_reserved(app: App):
    for name in ("outlast.map", "outlast.mine"):
        with pytest.raises(InvalidName, match=r"'outlast\.' are reserved"):
            app.workflow(checkout, name=name)
    assert app.workflow(checkout, name="outlasting").name == "outlasting"
    with pytest.raises(UnknownWorkflow):
        app.registry.newest("outlast.map")


def test_unknown_workflow_is_named_with_the_known_ones(app: App):
    with pytest.raises(UnknownWorkflow, match="has none yet"):
        app.registry.newest("checkout")
    app.workflow(checkout)
    with pytest.raises(UnknownWorkflow, match="this app has checkout"):
        app.registry.newest("chekout")
    with pytest.raises(UnknownWorkflow, match="version '7'"):
        app.registry.get("checkout", "7")


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"id": ""}, InvalidName),
    ({"id": "a/b"}, InvalidName),
    ({"id": 3}, InvalidName),
    ({"id": None}, InvalidName),
    ({"id": "a\nb"}, InvalidName),
    ({"id": " a"}, InvalidName),
    ({"id": "x" * 256}, LimitExceeded),
    ({"lane": ""}, InvalidName),
    ({"lane": "a b"}, InvalidName),
    ({"lane": None}, InvalidName),
    ({"tags": "a=b"}, InvalidInput),
    ({"tags": ["a"]}, InvalidInput),
    ({"tags": {"a": 1}}, InvalidName),
    ({"tags": {1: "a"}}, InvalidName),
    ({"tags": {"": "a"}}, InvalidName),
    ({"tags": {"a": "x" * 256}}, LimitExceeded),
    ({"tags": {str(n): "x" for n in range(33)}}, LimitExceeded),
    ({"priority": "high"}, InvalidInput),
    ({"priority": 1.5}, InvalidInput),
    ({"priority": True}, InvalidInput),
    ({"priority": 10**7}, InvalidInput),
    ({"delay": -1}, InvalidInput),
    ({"delay": "soon"}, InvalidInput),
    ({"delay": float("nan")}, InvalidInput),
    ({"delay": "200y"}, InvalidInput),
    ({"delay": 10**12}, InvalidInput),
    ({"delay": None}, InvalidInput),
    ({"deadline": 0}, InvalidInput),
    ({"deadline": "x"}, InvalidInput),
    ({"if_exists": "maybe"}, InvalidInput),
    ({"if_exists": None}, InvalidInput),
    ({"if_exists": ["same"]}, InvalidInput),
    ({"requires": "gpu"}, InvalidInput),
    ({"requires": {"a,b"}}, InvalidName),
    ({"requires": [3]}, InvalidName),
    ({"requires": [str(n) for n in range(17)]}, LimitExceeded),
    ({"retention": -1}, InvalidInput),
    ({"idd": "a"}, InvalidInput),
    ({"sends": {}}, InvalidInput),
    ({"send": ["item"]}, InvalidInput),
    ({"send": {"": 1}}, InvalidName),
    ({"send": {str(n): n for n in range(101)}}, LimitExceeded),
    ({"detached": "yes"}, InvalidInput),
    ({"parent_close": "kill"}, InvalidInput),
]


@pytest.mark.parametrize("options, error", BAD_OPTIONS, ids=lambda value: str(value)[:50])
def test_bad_options_are_refused_at_the_call(app: App, options: dict[str, Any], error: type[Exception]):
    workflow = app.workflow(checkout)
    with pytest.raises(error) as raised:
        workflow.options(**options)
    assert isinstance(raised.value, InvalidInput)


def test_the_bounds_of_crashes_are_those_of_the_start(app: App):
    usual = app.workflow(checkout).fact(("x",), {}, namespace="default")
    assert (usual.crash_cap, usual.life_crash_cap) == (5, 100)
    long = app.workflow(checkout, name="long", max_crashes=9, max_crashes_in_life=400)
    fact = long.fact(("x",), {}, namespace="default")
    assert (fact.crash_cap, fact.life_crash_cap) == (9, 400)


def test_options_add_up_and_leave_the_workflow_alone(app: App):
    workflow = app.workflow(checkout, lane="slow", requires={"gpu"}, deadline="1d")
    changed = workflow.options(id="a", tags={"k": "v"}).options(priority=3, requires=())
    fact = changed.fact(("x",), {}, namespace="default")
    assert (fact.id, fact.tags, fact.priority, fact.requires, fact.lane) == ("a", {"k": "v"}, 3, (), "slow")
    assert fact.deadline_ms == 86_400_000
    again = workflow.fact(("x",), {}, namespace="default")
    assert (again.tags, again.priority, again.requires) == ({}, 0, ("gpu",))
    assert again.id != "a"


def test_starts_with_other_options_have_nothing_in_common_that_differs(app: App):
    workflow = app.workflow(checkout, lane="slow", retention="1h")

    def start(**options: Any) -> facts.Start:
        return workflow.options(**options).fact(("x",), {}, namespace="default")

    assert (start(id="a").id, start(id="b").id) == ("a", "b")
    assert (start(id="a", retention="1s").retention_ms, start(id="a").retention_ms) == (1_000, 3_600_000)
    assert ([sent.name for sent in start(id="a", send={"go": 1}).sends], start(id="a").sends) == (["go"], ())
    assert (start(lane="fast").lane, start(tags={"k": "v"}).tags, start().lane, start().tags) == (
        *("fast", {"k": "v"}),
        *("slow", {}),
    )
    assert workflow.fact(("x",), {}, namespace="other").namespace == "other"
    assert workflow.fact(("x",), {}, namespace="default").namespace == "default"
    assert (workflow.lane, workflow.options(lane="fast").lane, workflow.options(id="a").lane) == (
        "slow",
        "fast",
        "slow",
    )


def test_what_is_sent_is_encoded_with_each_start(app: App):
    items = [1]
    workflow = app.workflow(checkout).options(send={"items": items})
    [before] = workflow.fact(("x",), {}, namespace="default").sends
    items.append(2)
    [after] = workflow.fact(("x",), {}, namespace="default").sends
    assert (before.value, after.value) == (b"[1]", b"[1,2]")


def test_partial_may_be_a_workflow(app: App):
    workflow = app.workflow(functools.partial(checkout, "abc"))
    assert workflow.name == "checkout"
    assert type(workflow) is AsyncWorkflow
