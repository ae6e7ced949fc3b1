"""An app whose code waits for words from outside: copied into the folder of the tests of `send`, `resolve`, ….

It needs no keys of its own: who has the command line signs tokens with those of the environment.
"""

import outlast
from outlast import App

app = App()


@app.workflow
async def plans() -> list[str]:
    return [await outlast.receive("plan", str), await outlast.receive("plan", str)]


@app.workflow
async def approved() -> str:
    try:
        return "yes" if await outlast.deferred("approval", bool) else "no"
    except outlast.DeferredRejected as rejected:
        return f"rejected: {rejected}"


@app.workflow
async def counter() -> int:
    total = 0

    @outlast.query("total")
    def shown() -> int:
        return total

    @outlast.update("add")
    def add(amount: int) -> int:
        nonlocal total
        total += amount
        return total

    @add.validator
    def positive(amount: int) -> None:
        if amount <= 0:
            raise ValueError("only more")

    await outlast.receive("stop")
    return total
