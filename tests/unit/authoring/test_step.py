"""Steps of any callable: their names, colours, options and bindings."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from outlast import App, InvalidInput, Retry
from outlast.authoring.step import AsyncStep, SyncStep

app = App("sqlite:///never-opened.db")


async def charge(order: str) -> int:
    """Take the money."""
    return len(order)


def parse(path: str) -> int:
    return len(path)


class Fetch:
    async def __call__(self, url: str) -> str:
        return url


class Billing:
    def __init__(self, name: str) -> None:
        self.name = name

    @app.step
    async def charge(self, order: str) -> str:
        return f"{self.name} {order}"

    @app.step(timeout="3s")
    def parse(self, path: str) -> str:
        return f"{self.name} {path}"

    @classmethod
    @app.step
    async def opened(cls, day: str) -> str:
        return f"{cls.__name__} {day}"

    @staticmethod
    @app.step
    def rounded(amount: float) -> int:
        return round(amount)

    fetch = app.step(Fetch())


@pytest.mark.parametrize(
    "fn, name, colour",
    [
        (charge, "charge", AsyncStep),
        (parse, "parse", SyncStep),
        (functools.partial(charge, "x"), "charge", AsyncStep),
        (functools.partial(functools.partial(parse), "x"), "parse", SyncStep),
        (Fetch(), "Fetch", AsyncStep),
        (Fetch().__call__, "Fetch.__call__", AsyncStep),
        (len, "len", SyncStep),
        ("".join, "str.join", SyncStep),
        (dict, "dict", SyncStep),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_any_callable_has_a_name_and_a_colour(fn: Any, name: str, colour: type):
    step = app.step(fn)
    assert step.name == name
    assert type(step) is colour
    assert step.fn is fn


def test_name_has_nothing_of_the_functions_around():
    @app.step
    async def inner() -> None: ...

    assert inner.name == "inner"
    assert Billing.charge.name == "Billing.charge"


def test_given_name_wins():
    assert app.step(lambda: 1, name="one").name == "one"
    assert app.step(charge).options(name="again").name == "again"


def counted(fn: Any) -> Any:
    @functools.wraps(fn)
    def counts(*args: Any) -> Any:
        return fn(*args)

    return counts


def awaited(fn: Any) -> Any:
    @functools.wraps(fn)
    async def awaits(*args: Any) -> Any:
        return await fn(*args)

    return awaits


@pytest.mark.parametrize("what", ["step", "transaction", "workflow"])
def test_a_def_that_wraps_an_async_def_is_refused_by_its_name(what: str):
    make = getattr(App("x.db"), what)
    with pytest.raises(
        InvalidInput, match=rf"a {what} .* def counted.<locals>.counts \(.*test_step.py:\d+\).* charge:"
    ):
        make(counted(charge))
    with pytest.raises(InvalidInput, match="def counted"):
        make(functools.partial(counted(charge), 3), name="partial")
    make(awaited(charge))
    make(counted(parse))


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: app.step(lambda: 1), "lambda"),
        (lambda: app.step("charge"), "must be a function"),  # type: ignore[arg-type]
        (lambda: app.step(classmethod(charge)), "write @staticmethod above"),  # type: ignore[arg-type]
        (lambda: app.step(staticmethod(charge)), "below @staticmethod"),
        (lambda: app.step(app.step(charge)), "step already"),
        (lambda: app.step(App("x.db").workflow(charge)), "workflow already"),
        (lambda: app.step(name="outlast:mine"), "reserved"),
        (lambda: app.step(name=""), "empty"),
        (lambda: app.step(charge, name=3), "string"),  # type: ignore[arg-type]
        (lambda: app.step(timeout="soon"), "not a duration"),
        (lambda: app.step(timeout=0), "longer than nothing"),
        (lambda: app.step(retry=3), "must be a Retry"),  # type: ignore[arg-type]
        (lambda: app.step(retries=3), "unknown option 'retries'"),  # type: ignore[call-arg]
        (lambda: app.step(charge).options(lane="x"), "unknown option 'lane'"),  # type: ignore[call-arg]
        (lambda: app.step(charge).options(timeout=-1), "negative"),
    ],
)
def test_what_cannot_be_a_step_is_refused_where_it_stands(make: Any, why: str):
    with pytest.raises(InvalidInput, match=why):
        make()


def test_generators_are_refused():
    async def numbers():
        yield 1

    def letters():
        yield "a"

    for generator in (numbers, letters):
        with pytest.raises(InvalidInput, match="generator"):
            app.step(generator)


def test_step_looks_like_its_function():
    step = app.step(charge)
    assert step.__name__ == "charge"  # type: ignore[attr-defined]
    assert step.__doc__ == "Take the money."
    assert step.__wrapped__ is charge  # type: ignore[attr-defined]
    assert inspect.signature(step) == inspect.signature(charge)
    assert repr(step) == "<step 'charge'>"


def test_attributes_of_the_function_do_not_replace_those_of_the_step():
    def f() -> int:
        return 1

    f.fn, f.name, f._options = "mine", "mine", "mine"
    step = app.step(f)
    assert step.fn is f
    assert step.name == "f"
    assert step() == 1


async def test_outside_of_a_workflow_a_step_is_a_plain_call():
    step = app.step(charge)
    assert await step("abc") == 3
    assert await step.aio("abc") == 3
    assert await app.step(parse).aio("ab") == 2
    assert app.step(parse)("ab") == 2
    assert await app.step(functools.partial(charge, "abcd"))() == 4
    assert await app.step(Fetch())("u") == "u"
    assert app.step(len)([1]) == 1


def test_blocking_face_of_an_async_step():
    assert app.step(charge).sync("abc") == 3


async def test_methods_are_bound_as_python_binds_them():
    one, two = Billing("one"), Billing("two")
    assert await one.charge("a") == "one a"
    assert await two.charge.aio("b") == "two b"
    assert one.parse("c") == "one c"
    assert one.parse.sync("c") == "one c"
    assert await two.parse.aio("d") == "two d"
    assert await Billing.charge(one, "e") == "one e"
    assert await Billing.opened("today") == "Billing today"  # type: ignore[call-arg]: pyright does not bind it
    assert Billing.rounded(1.6) == one.rounded(1.6) == 2
    assert await one.fetch("u") == "u"
    assert one.charge.fn.__self__ is one
    assert one.charge.name == two.charge.name == "Billing.charge"


async def test_options_leave_the_step_itself_alone():
    step = app.step(charge, timeout="3s")
    changed = step.options(timeout="5s", retry=Retry(max_attempts=2))
    assert step._definition.timeout_s == 3
    assert changed._definition.timeout_s == 5
    assert changed._definition.retry.max_attempts == 2
    assert await changed("abc") == 3


def test_result_type_may_be_defined_after_the_step():
    @app.step
    async def make() -> Later: ...

    class Later: ...

    # The function around has it by now, but only a module's names can still be looked up.
    assert make._definition.name == "make"
    assert later._definition.result is Below


@app.step
async def later() -> Below: ...


class Below: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(max_attempts=0),
        lambda: Retry(max_attempts="3"),  # type: ignore[arg-type]
        lambda: Retry(max_attempts=True),
        lambda: Retry(max_attempts=10**9),
        lambda: Retry(backoff="x"),  # type: ignore[arg-type]
        lambda: Retry(backoff=0.5),
        lambda: Retry(backoff=float("nan")),
        lambda: Retry(jitter=2),
        lambda: Retry(initial="soon"),
        lambda: Retry(max_delay=-1),
        lambda: Retry(fatal=ValueError),  # type: ignore[arg-type]
        lambda: Retry(fatal=(BaseException,)),  # type: ignore[arg-type]
        lambda: Retry(fatal=("ValueError",)),  # type: ignore[arg-type]
    ],
)
def test_bad_retry_is_refused_where_it_stands(make: Any):
    with pytest.raises(InvalidInput):
        make()


@pytest.mark.parametrize(
    "retry, longest_ms",
    [
        (Retry(initial="1s"), 60_000),
        (Retry(initial="1h"), 3_600_000),
        (Retry(initial="1h", max_delay="1m"), 60_000),
        (Retry(initial="1s", max_delay="2h"), 7_200_000),
    ],
)
def test_a_first_delay_is_cut_only_by_a_max_delay_that_was_given(retry: Retry, longest_ms: int) -> None:
    assert retry.policy().max_delay_ms == longest_ms
