"""Background tasks with an owner: none is lost, and every failure is reported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Tasks:
    """The tasks of one connector. All have ended when `close` has returned."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, work: Coroutine[object, object, None], *, on_exit: Callable[[str], None]
    ) -> asyncio.Task[None]:
        """Run `work`; `on_exit` is called with the reason of its end, in any case."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                task.get_loop().call_exception_handler(
                    {"message": "a transfer task failed", "exception": error, "task": task}
                )
            on_exit("closed" if error is None else repr(error))

        task.add_done_callback(ended)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
