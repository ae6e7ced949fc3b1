"""An id may live more than once: started, ended, purged, and started anew."""

from __future__ import annotations

import asyncio

import pytest

from outlast import App, ExecutionConflict, Status
from outlast.runtime.entropy import SeededEntropy
from tests.acceptance.conftest import Gate, Place, status_is


async def test_every_life_of_an_id_has_epochs_of_its_own(app: App):
    @app.workflow
    async def greet(name: str) -> str:
        return f"hello {name}"

    met: set[int] = set()
    async with app:
        for _ in range(5):
            handle = await greet.options(id="same").start("you")
            await handle.result()
            [attempt] = await app.opened().attempts("same")
            met.add(attempt.epoch)
            await asyncio.sleep(0.005)
            assert await app.purge("1ms") == 1
    assert len(met) == 5
    assert max(met) > 1_000_000, "drawn from a wide range, so that lives do not meet"


async def test_where_epochs_begin_is_drawn_from_the_apps_entropy(place: Place):
    async def epoch_of(seed: int, execution_id: str) -> int:
        app = place.app(entropy=SeededEntropy(seed))

        @app.workflow
        async def greet() -> None: ...

        async with app:
            await (await greet.options(id=execution_id).start()).result()
            [attempt] = await app.opened().attempts(execution_id)
            return attempt.epoch

    first, other = await epoch_of(7, "first"), await epoch_of(8, "other")
    assert first != other


async def test_attempts_count_what_has_begun_whatever_the_epoch(app: App, gate: Gate):
    @app.step
    async def wait() -> None:
        await gate()

    @app.workflow
    async def waiting() -> None:
        await wait()

    async with app.client():
        never_ran = await waiting.options(id="never").start()
        assert (await never_ran.info()).attempts == 0
        await never_ran.cancel()
        assert ((await never_ran.info()).status, (await never_ran.info()).attempts) == (Status.CANCELLED, 0)
        await waiting.options(id="it").start()
    async with app:
        handle = app.execution("it")
        await gate.reached()
        assert (await handle.info()).attempts == 1
        gate.open()
        await handle.result()
        assert (await handle.info()).attempts == 1


@pytest.mark.parametrize("ran_before", [True, False])
async def test_a_restart_that_is_cancelled_before_it_runs_had_no_attempts(app: App, ran_before: bool):
    @app.workflow
    async def greet() -> None: ...

    async with app:
        handle = await greet.options(id="it", delay=0 if ran_before else "1h").start()
        if ran_before:
            await handle.result()
        else:
            await handle.cancel()
        await greet.options(id="it", if_exists="restart", delay="1h").start()
        await handle.cancel()
        await status_is(handle, Status.CANCELLED)
        assert (await handle.info()).attempts == 0


async def test_a_restart_is_of_one_execution_and_a_child_with_an_id_stays_the_same(app: App):
    runs: list[str] = []

    @app.workflow
    async def child(name: str) -> int:
        runs.append(name)
        return len(runs)

    @app.workflow
    async def parent() -> list[int]:
        named = await child.options(id="named").start("named")
        anew = await child.options(id="anew", if_exists="restart").start("anew")
        return [await named.result(), await anew.result(), await child("unnamed")]

    async with app:
        first = await parent.options(id="it").start()
        before = await first.result(timeout=20)
        again = await parent.options(id="it", if_exists="restart").start()
        after = await again.result(timeout=20)
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert sorted(runs) == ["anew", "anew", "named", "unnamed", "unnamed"]


async def test_an_argument_that_is_left_to_its_default_was_left_out(app: App):
    @app.workflow
    async def report(days: int = 7) -> int:
        return days

    async with app:
        first = await report.options(id="it").start()
        assert await first.result(timeout=20) == 7
        with pytest.raises(ExecutionConflict, match=r'report \{\} .* as report \{"days":7\}'):
            await report.options(id="it").start(7)
