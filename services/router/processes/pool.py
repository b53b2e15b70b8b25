"""What the processes of a router share of one model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from baton.v1 import common_pb2
from services.router.processes.entrance import SharedEntrance
from services.router.processes.process import SharedLock
from services.router.processes.work import SharedWork
from shared.request.adapter_ref import adapter_from_wire, adapter_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.processes.process import RouterProcess
    from services.router.routing.book import Book
    from services.router.routing.room import WorkerRoom
    from services.router.workers.endpoints import EndpointPool
    from shared.request.adapter_ref import AdapterRef

#: Time between two looks at the workers' room: it also grows while no request ends.
LOOK_S = 0.05


class SharedPool:
    """Places, books and orders of one model in this process. `run` runs beside it."""

    def __init__(
        self,
        process: RouterProcess,
        model: str,
        endpoints: EndpointPool,
        room: WorkerRoom,
        book: Book,
    ) -> None:
        self._process = process
        self._model = model
        self._work = SharedWork(process.link, endpoints.everyone, clock=lambda: book.clock())
        self.entrance = SharedEntrance(
            process.link,
            model,
            left=room.left,
            is_asleep=lambda: endpoints.is_asleep,
            on_booked=self._work.tell_soon,
        )
        process.share_entrance(model, self.entrance, self._work)
        #: Held while the workers of the model are changed.
        self.lock = SharedLock(process.link, f"fleet of {model}")

    async def run(self) -> None:
        """Keep the other processes and the hub up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work.run())
            tasks.create_task(self._look())

    def everywhere(self, abort_answers: Callable[[], None]) -> Callable[[], None]:
        """Return what does this here and in the other processes."""
        name = f"abort answers of {self._model}"
        self._process.on_order(name, lambda _: abort_answers())

        def abort() -> None:
            abort_answers()
            self._process.order(name, None)

        return abort

    def tell_adapter(self, name: str, adapter: AdapterRef | None) -> None:
        """Tell the other processes what a name stands for since now; None: nothing."""
        data = None if adapter is None else adapter_to_wire(adapter).SerializeToString()
        self._process.order(self._adapter_order, [name, data])

    def on_adapter(self, note: Callable[[str, AdapterRef | None], None]) -> None:
        """Have `note` take what other processes tell."""

        def take(body: Any) -> None:
            name, data = body
            note(name, data and adapter_from_wire(common_pb2.Adapter.FromString(data)))

        self._process.on_order(self._adapter_order, take)

    @property
    def _adapter_order(self) -> str:
        return f"adapter of {self._model}"

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.entrance.say_room()
