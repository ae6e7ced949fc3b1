"""The app that the tests of the command line serve: copied into their folder, imported by real worker processes."""

import asyncio

from outlast.app import App

app = App()


@app.step
async def double(number: int) -> int:
    return number * 2


@app.step
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.workflow
async def twice(number: int) -> int:
    return await double(await double(number))


@app.workflow
async def broken(number: int) -> int:
    raise ValueError(f"{number} is not a number that I like")


@app.workflow
async def slow(seconds: float) -> str:
    await nap(seconds)
    return "rested"


@app.workflow(lane="gpu", requires={"cuda"})
async def render(number: int) -> int:
    return number
