"""Sets of tasks have the same order in every replay, and asyncio stays as it is for everybody else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from outlast import App

LIVES = 5

REPLAYED = """
import asyncio, json, random, sys
import outlast
from outlast import App

life = int(sys.argv[1])
litter = [bytearray(random.randrange(600)) for _ in range(life * 5_000)]
random.shuffle(litter)
del litter[::2]  # no object lies where it lay in the life before

app = App("sqlite:///sets.db")
seen = asyncio.Event()

@app.step
async def same(number: int) -> int:
    return number

@app.step
async def show(life: int) -> None:
    seen.set()

async def branch(number: int) -> int:
    return await same(number)

async def cancelled(number: int, order: list[int]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        order.append(await same(number))

async def ordered(number: int, order: list[int]) -> None:
    order.append(number)

async def every_set() -> list[list[int]]:
    tasks = {asyncio.create_task(branch(n)): n for n in range(70)}
    own = set(tasks)
    orders = [[tasks[task] for task in own], [await task for task in own if tasks[task] % 3]]
    rest = {task for task in own if tasks[task] % 5}
    for task in list(rest)[::2]:
        rest.discard(task)
    orders.append([tasks[task] for task in rest | {rest.pop()} | set(list(own)[:9])])

    shields = {asyncio.shield(task): n for task, n in tasks.items()}
    done, pending = await asyncio.wait(set(shields), return_when=asyncio.FIRST_COMPLETED)
    orders += [[shields[one] for one in done], [shields[one] for one in pending | done]]

    in_list: list[int] = []
    for one in asyncio.as_completed([ordered(n, in_list) for n in range(20)]):
        await one
    mapped: list[int] = []
    for one in asyncio.as_completed(map(lambda n: ordered(n, mapped), range(20))):
        await one
    assert in_list == mapped == list(range(20)), "as_completed keeps the order given"

    in_group: list[int] = []
    try:
        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(cancelled(n, in_group))
            await same(-1)
            raise ValueError
    except* ValueError:
        pass
    return [*orders, in_group]

@app.workflow
async def sets(lives: int) -> list[int]:
    got: list[int] = []
    for _ in range(lives):
        orders = await every_set()
        if not got:
            print(json.dumps(orders), flush=True)
        got.append(await outlast.receive("life", int))
        await show(got[-1])
    return got

async def main():
    async with app:
        handle = await sets.options(id="it").start(int(sys.argv[2]))
        await handle.send("life", life)
        await seen.wait()
        if life == int(sys.argv[2]):
            print(json.dumps(await handle.result(timeout=30)))

asyncio.run(main())
"""


async def test_sets_of_tasks_and_futures_have_the_same_order_in_every_replay(tmp_path: Path):
    """In one process after the other, each with its own seed of hashes and its own layout of memory."""
    said: list[list[Any]] = []
    for life in range(1, LIVES + 1):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", REPLAYED, str(life), str(LIVES)),
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": str(life)},
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
        said.append([json.loads(line) for line in printed.splitlines()])
    assert said[-1].pop() == list(range(1, LIVES + 1))
    assert all(orders == said[0] for orders in said), "another order in another process"


UNTOUCHED = """
import asyncio, importlib, pkgutil

names = [found.name for found in pkgutil.iter_modules(asyncio.__path__, "asyncio.")]
unix = [name for name in names if "windows" not in name and "__main__" not in name]
modules = [asyncio, *map(importlib.import_module, unix)]
before = {module: dict(vars(module)) for module in modules}
code = {one: one.__code__ for module in modules for one in vars(module).values() if hasattr(one, "__code__")}

import outlast, outlast.testing
from outlast import App

App("sqlite:///untouched.db").workflow(print, name="says")

for module in modules:
    assert dict(vars(module)) == before[module], module
assert all(one.__code__ is its for one, its in code.items())
"""


async def test_importing_outlast_leaves_asyncio_as_it_is(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", UNTOUCHED, cwd=tmp_path)
    assert await process.wait() == 0


async def test_a_loop_of_the_programs_own_has_the_sets_of_asyncio(app: App):
    """Before, beside and after workflow code in the same process."""

    @app.step
    async def pause() -> None:
        await asyncio.sleep(0.01)

    @app.workflow
    async def works() -> str:
        tasks = [asyncio.create_task(pause()) for _ in range(3)]
        await asyncio.wait(tasks)
        return str(type(asyncio.current_task()))

    async with app:
        handle = await works.start()
        while not (await handle.info()).finished_at:
            await _uses_asyncio()
        await _uses_asyncio()
        assert await handle.result() != str(asyncio.Task)
    assert "set" not in vars(asyncio.taskgroups)


async def _uses_asyncio() -> None:
    task = asyncio.create_task(asyncio.sleep(0, "slept"))
    assert type(task) is asyncio.Task
    assert hash(task) == object.__hash__(task)
    assert type(asyncio.get_running_loop().create_future()) is asyncio.Future
    done, pending = await asyncio.wait({task, asyncio.create_task(asyncio.sleep(0))})
    assert (type(done), type(pending)) == (set, set)
    assert [await one for one in asyncio.as_completed([task, task])] == ["slept"]
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        assert type(vars(group)["_tasks"]) is set
