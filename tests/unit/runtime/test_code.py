"""The user's code under way."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from outlast.runtime.attempts.code import AsyncCode
from outlast.runtime.attempts.workflow_loop import NobodysLoop


async def test_code_that_raises_before_it_is_a_coroutine_ends_with_that():
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def decorated() -> Any:
        raise TypeError("of a decorator")

    class Owner(NobodysLoop):
        def code_ended(self, value: Any, error: BaseException | None) -> None:
            ended.set_result(error)

    code = AsyncCode(decorated, (), {}, contextvars.copy_context(), Owner())
    code.begin()
    assert str(await asyncio.wait_for(ended, 10)) == "of a decorator"
    code.close()
