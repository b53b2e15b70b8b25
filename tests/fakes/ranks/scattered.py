"""Workers that hand over like groups of ranks, and compute as one: cheap, and of any size.

Beside the memory that its engine computes in, a worker has one for each rank, with the rank's
layout. Blocks that leave are copied into the ranks' memories first, and those that have arrived are
copied out of them, by indices of numpy: nothing here knows cuts and maps. Ranks from 1 on may be
remote: an endpoint, in a thread, serves their memory.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from shared.connector.group.inbound import GroupInbound
from shared.connector.group.outbound import GroupOutbound
from shared.connector.remote.serve import EndpointSettings, serve_endpoint
from shared.engine.engine import Engine
from shared.kv.group_rules import GroupKind
from shared.kv.hand_off import Holder
from shared.kv.memory import KVMemory
from shared.kv.split import KVSplit
from shared.worker import parts
from shared.worker.peers import incoming, outgoing
from tests.fakes.ranks.arenas import own_heads
from tests.suites.connector.harness import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shared.connector.base import Connector
    from shared.connector.group.base import Arrived
    from shared.connector.remote.address import EndpointAddress
    from shared.errors import RankError
    from shared.kv.layout import KVGroup, KVLayout
    from shared.worker.parts import WorkerParts


class Scattered:
    """The memories of a worker's ranks, and the one that its engine computes in."""

    def __init__(
        self, whole: KVMemory, layout: KVLayout, num_ranks: int, *, is_remote: bool
    ) -> None:
        self.split = KVSplit.of(layout, num_ranks)
        self._whole, self._layout = whole, layout
        layouts = Holder(layout, self.split).rank_layouts
        self.memories = tuple(KVMemory(each, whole.num_blocks) for each in layouts)
        #: Of ranks from 1 on.
        self.endpoints = [
            serve_endpoint(memory, EndpointSettings(rank=rank, token=TOKEN, host="127.0.0.1"))
            for rank, memory in enumerate(self.memories)
            if is_remote and rank
        ]
        #: By group, by rank: which bytes of a block the rank's are.
        self._own = [
            [self._bytes_of(group, rank) for rank in range(num_ranks)] for group in layout.groups
        ]

    def scatter(self, group: int, blocks: Sequence[int]) -> None:
        """Copy blocks into the ranks' memories."""
        for memory, own in zip(self.memories, self._own[group], strict=True):
            for block in blocks:
                memory.blocks[block, : len(own)] = self._whole.blocks[block, own]

    def gather(self, group: int, blocks: Sequence[int]) -> None:
        """Copy blocks out of the ranks' memories, which are wiped."""
        for memory, own in zip(self.memories, self._own[group], strict=True):
            for block in blocks:
                self._whole.blocks[block, own] = memory.blocks[block, : len(own)]
                memory.blocks[block] = 0x7F

    @property
    def places(self) -> tuple[KVMemory | EndpointAddress, ...]:
        if not self.endpoints:
            return self.memories
        return (self.memories[0], *(endpoint.address for endpoint in self.endpoints))

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.close()
        for memory in self.memories:
            memory.close()

    def _bytes_of(self, group: KVGroup, rank: int) -> NDArray[np.int64]:
        if group.kind is not GroupKind.STATE:
            layers, kinds, heads, *head = self._layout.block_shape(group)
            size = int(np.prod(head)) * self._layout.element_bytes
            places = np.arange(layers * kinds * heads * size).reshape(layers, kinds, heads, size)
            return places[:, :, own_heads(heads, self.split.size, rank)].reshape(-1)
        places = np.arange(group.num_layers * group.state_size * 4)
        places, start, found = places.reshape(group.num_layers, group.state_size, 4), 0, []
        for section in group.sections:
            for _ in range(section.num_rows):
                for heads, size in section.parts:
                    part = places[:, start : start + heads * size]
                    part = part.reshape(group.num_layers, heads, size * 4)
                    own = part[:, own_heads(heads, self.split.size, rank)]
                    found.append(own.reshape(group.num_layers, -1))
                    start += heads * size
        return np.concatenate(found, 1).reshape(-1)


class _ScatteredEngine(Engine):
    """An engine that says it has ranks, once it is made."""

    scattered: Scattered | None = None

    def __init__(self, *args: Any, num_ranks: int, is_remote: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.kv_memory is not None
        memory, layout = self.kv_memory, self.layout
        self.scattered = Scattered(memory, layout, num_ranks, is_remote=is_remote)
        self.lost: list[RankError] = []

    @property
    def rank_memories(self) -> tuple[KVMemory, ...]:
        return super().rank_memories if self.scattered is None else self.scattered.memories

    @property
    def rank_places(self) -> tuple[KVMemory | EndpointAddress, ...]:
        return super().rank_places if self.scattered is None else self.scattered.places

    def lose_rank(self, error: RankError) -> None:
        self.lost.append(error)

    @property
    def kv_split(self) -> KVSplit:
        return super().kv_split if self.scattered is None else self.scattered.split

    def close(self) -> None:
        if self.scattered is not None:
            self.scattered.close()
        super().close()


#: Of each worker of several ranks: by the connectors that a transfer uses.
_SCATTERED: dict[int, Scattered] = {}


class _Outbound(GroupOutbound):
    @classmethod
    async def connect(cls, *args: Any, **kwargs: Any) -> _Outbound:
        outbound = await super().connect(*args, **kwargs)
        assert isinstance(outbound, _Outbound)
        outbound._scattered = _SCATTERED.get(id(kwargs["connectors"]))
        return outbound

    async def push(
        self, group: int, first_block: int, blocks: Sequence[int], slices: range | None = None
    ) -> None:
        if self._scattered is not None:
            self._scattered.scatter(group, blocks)
        await super().push(group, first_block, blocks, slices)

    async def push_all(self, tables: Sequence[Sequence[int]]) -> None:
        if self._scattered is not None:
            for group, table in enumerate(tables):
                self._scattered.scatter(group, table)
        await super().push_all(tables)

    _scattered: Scattered | None


class _Inbound(GroupInbound):
    @classmethod
    async def open(cls, *args: Any, connectors: Sequence[Connector], **kwargs: Any) -> _Inbound:
        inbound = await super().open(*args, connectors=connectors, **kwargs)
        assert isinstance(inbound, _Inbound)
        inbound._scattered = _SCATTERED.get(id(connectors))
        inbound._tables = kwargs["tables"]
        return inbound

    async def wait(self, timeout_s: float) -> Arrived:  # type: ignore[override]
        arrived = await super().wait(timeout_s)
        if self._scattered is not None:
            for group, table in enumerate(self._tables):
                self._scattered.gather(group, table)
        return arrived

    _scattered: Scattered | None
    _tables: Sequence[Sequence[int]]


@contextmanager
def scattered_hand_offs() -> Iterator[None]:
    """Within it, transfers of workers that were opened by `scattered_engines` copy blocks."""
    with (
        patch.object(incoming, "GroupInbound", _Inbound),
        patch.object(outgoing, "GroupOutbound", _Outbound),
    ):
        yield
    _SCATTERED.clear()


@contextmanager
def scattered_engines(num_ranks: int, *, is_remote: bool = False) -> Iterator[None]:
    """Within it, workers are opened with so many ranks. Call `adopt` with each."""

    def make(*args: Any, **kwargs: Any) -> Engine:
        return _ScatteredEngine(*args, num_ranks=num_ranks, is_remote=is_remote, **kwargs)

    with patch.object(parts, "Engine", make) if num_ranks > 1 else _nothing():
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def adopt(worker: WorkerParts) -> None:
    """Let the worker's transfers copy blocks."""
    engine = worker.engine._engine
    if isinstance(engine, _ScatteredEngine):
        for connectors in worker.endpoints.connectors.values():
            _SCATTERED[id(connectors)] = engine.scattered
