"""The sending side of `nixl`: writes into the receiver's blocks, with frames by ZeroMQ."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from shared.connector.nixl.lane import Lane, LaneError, LaneMemory
from shared.connector.nixl.pump import settle
from shared.connector.nixl.session import PIECE_NAME
from shared.connector.protocol.frame import NO_TRANSFER, Frame, Kind
from shared.connector.zeromq.wire import FrameWire
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.connector.nixl.pump import Pump
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.link import Link, PieceParts
    from shared.connector.protocol.tasks import Tasks


@dataclass(slots=True)
class _Route:
    """One transfer: the target of its blocks, and its writes."""

    num_blocks: int
    places: list[int] = field(default_factory=list)
    #: Set when all addresses are known, or the transfer is over.
    known: asyncio.Event = field(default_factory=asyncio.Event)
    writes: set[asyncio.Task[None]] = field(default_factory=set)
    stopped: bool = False


class NixlWire(FrameWire):
    """A `Wire` whose pieces are announced by their frame and written by NIXL."""

    carries_bytes: ClassVar[bool] = False

    def __init__(
        self,
        link: Link,
        *,
        memory: LaneMemory,
        pump: Pump,
        tasks: Tasks,
        limits: TransferLimits,
    ) -> None:
        super().__init__(link)
        self._memory = memory
        self._pump = pump
        self._tasks = tasks
        self._limits = limits
        self._routes: dict[bytes, _Route] = {}
        self._lane: Lane | None = None
        self._aimed = asyncio.Event()  # or closed
        self._hung_up = False

    def send(self, frame: Frame) -> None:
        """See `Wire.send`."""
        if frame.kind is Kind.OPEN:
            self._routes[frame.transfer_id] = _Route(frame.num_blocks)
        elif frame.kind is Kind.ABORT and not self._is_writing(frame.transfer_id):
            # Blocks without any write need no release.
            self._routes.pop(frame.transfer_id, None)
        elif frame.kind is Kind.DONE:
            # The receiver expects our writes until it gets this frame.
            route = self._routes.get(frame.transfer_id)
            if route is not None:
                self._tasks.spawn(self._finish(frame, route), on_exit=lambda _: None)
            return
        super().send(frame)

    def send_piece(
        self,
        frame: Frame,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """See `Wire.send_piece`."""
        route = self._routes[frame.transfer_id]
        # Before its bytes: the receiver has to poll for them.
        super().send(frame)
        writing = self._write(route, frame, list(blocks), parts)
        task = self._tasks.spawn(writing, on_exit=lambda _: None)
        route.writes.add(task)
        task.add_done_callback(route.writes.discard)

    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`."""
        route = self._routes.get(transfer_id)
        if route is None:
            return
        self._stop(route)
        if route.writes:
            await asyncio.wait(route.writes, timeout=self._limits.release_timeout_s)
        if route.writes:
            self._link.lose(TransferFailure.PEER_LOST, "takes no writes any more")
            await asyncio.wait(route.writes)
        self._routes.pop(transfer_id, None)

    def hang_up(self) -> None:
        """See `Wire.hang_up`. Running writes fail as soon as our end is closed."""
        super().hang_up()
        self._hung_up = True
        self._aimed.set()
        for route in self._routes.values():
            self._stop(route)
        if self._lane is not None:
            self._pump.post(self._lane.close)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.DOOR:
            self._tasks.spawn(self._aim(frame), on_exit=lambda _: self._aimed.set())
        elif frame.kind is Kind.PLACES:
            self._learn(frame)
        else:
            if frame.kind is Kind.REFUSE and frame.transfer_id != NO_TRANSFER:
                self._confirm(frame.transfer_id)
            super()._on_frame(frame)

    def _learn(self, frame: Frame) -> None:
        route = self._routes.get(frame.transfer_id)
        if route is None:
            return  # the transfer has ended, and was reported
        places = frame.sources.tolist()
        fits = frame.first_index + len(places) <= route.num_blocks
        if frame.first_index != len(route.places) or not places or not fits:
            raise TransferError(TransferFailure.CORRUPT, "places that do not fit the ticket")
        route.places += places
        if len(route.places) == route.num_blocks:
            route.known.set()

    async def _aim(self, door: Frame) -> None:
        def make() -> Lane:
            lane = self._pump.adopt(Lane(self._memory, lambda _: None))
            try:
                lane.aim(door.body, door.length, door.num_blocks, door.first_index)
            except LaneError:
                lane.close()
                raise
            return lane

        try:
            self._lane = await self._pump.run(make)
        except LaneError as error:
            self._link.lose(TransferFailure.PEER_LOST, str(error))
            return
        if self._hung_up:
            self._pump.post(self._lane.close)

    async def _write(
        self, route: _Route, frame: Frame, blocks: list[int], parts: PieceParts | None
    ) -> None:
        await self._aimed.wait()
        await route.known.wait()
        lane = self._lane
        if route.stopped or lane is None:
            return
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        places = route.places[frame.first_index : frame.first_index + len(blocks)]
        name = PIECE_NAME.pack(frame.transfer_id, frame.first_index)

        def on_end(error: str) -> None:
            self._pump.tell(partial(settle, ended, error, None))

        try:
            await self._pump.run(partial(lane.write, blocks, places, name, on_end, parts))
            error = await ended
        except LaneError as refusal:
            error = str(refusal)
        if error:
            self._link.lose(TransferFailure.PEER_LOST, error)

    async def _finish(self, done: Frame, route: _Route) -> None:
        if route.writes:
            await asyncio.wait(route.writes)
        if not route.stopped:
            super().send(done)

    def _is_writing(self, transfer_id: bytes) -> bool:
        route = self._routes.get(transfer_id)
        return route is not None and bool(route.writes)

    def _stop(self, route: _Route) -> None:
        route.stopped = True
        route.known.set()

    def _confirm(self, transfer_id: bytes) -> None:
        """Stop a transfer's writes, and confirm to the receiver that they have stopped."""
        route = self._routes.get(transfer_id)
        if route is not None:
            self._stop(route)
        self._tasks.spawn(self._say_stopped(transfer_id, route), on_exit=lambda _: None)

    async def _say_stopped(self, transfer_id: bytes, route: _Route | None) -> None:
        if route is not None and route.writes:
            await asyncio.wait(route.writes)
        super().send(Frame(kind=Kind.STOPPED, transfer_id=transfer_id))
