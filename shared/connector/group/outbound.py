"""The sending group's side of one hand-off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.connector.group.inbound import group_digest, pair_parts
from shared.connector.group.tasks import all_or_none, settle
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.base import Connector, OutboundTransfer, Ticket
    from shared.kv.hand_off import HandOff, Pair, Run, Stream


@dataclass(frozen=True, slots=True)
class _Lane:
    """One pair's transfer, and by KV group the runs of its units."""

    transfer: OutboundTransfer
    stream: Stream
    runs: Mapping[int, Sequence[Run]]


class GroupOutbound:
    """A `SequenceOutbound` out of the blocks of a group of ranks.

    Source blocks stay pinned until `finish` or `abort`: until all receivers have confirmed.
    """

    def __init__(
        self, lanes: Mapping[Pair, _Lane], hand_off: HandOff, moved: Sequence[range]
    ) -> None:
        self._lanes = lanes
        self._units_per_block = hand_off.sender_units
        self._moved = moved
        self.final_slices = hand_off.final_slices
        self.num_slices = hand_off.num_slices
        self.num_blocks = sum(lane.stream.num_units for lane in lanes.values())
        self.num_bytes = sum(lane.stream.num_bytes for lane in lanes.values())

    @classmethod
    async def connect(
        cls,
        hand_off: HandOff,
        *,
        tickets: Mapping[Pair, Ticket],
        connectors: Sequence[Connector],
        moved: tuple[range, ...],
        num_tokens: int,
        timeout_s: float,
    ) -> GroupOutbound:
        """Start to send into the tickets, which are those of all pairs with something to move.

        connectors: by rank.

        Raises:
            TransferError: a receiver that cannot be reached or refuses, or tickets of other pairs;
                then no transfer is left open.
        """
        streams = {pair: hand_off.stream(pair, moved, num_tokens) for pair in hand_off.pairs}
        streams = {pair: stream for pair, stream in streams.items() if stream.runs}
        wanted = {pair: ticket.num_blocks for pair, ticket in tickets.items()}
        ours = {pair: stream.num_units for pair, stream in streams.items()}
        if wanted != ours:
            raise TransferError(
                TransferFailure.OUT_OF_RANGE,
                f"tickets for ranks with so many parts {wanted}, not {ours}",
            )
        opened: dict[Pair, OutboundTransfer] = {}

        async def start(pair: Pair) -> None:
            parts = pair_parts(hand_off, pair, streams[pair])
            connector = connectors[pair[0]]
            opened[pair] = await connector.connect(tickets[pair], timeout_s, parts)

        async def give_up() -> None:
            await settle(*(transfer.abort() for transfer in opened.values()))

        await all_or_none({pair: start(pair) for pair in streams}, give_up)
        lanes = {
            pair: _Lane(opened[pair], stream, _by_group(stream)) for pair, stream in streams.items()
        }
        return cls(lanes, hand_off, moved)

    async def push(
        self, group: int, first_block: int, blocks: Sequence[int], slices: range | None = None
    ) -> None:
        """See `SequenceOutbound.push`."""
        units = range(
            first_block * self._units_per_block,
            (first_block + len(blocks)) * self._units_per_block,
        )

        async def push_to(lane: _Lane) -> None:
            for run in lane.runs.get(group, ()):
                some = range(max(units.start, run.units.start), min(units.stop, run.units.stop))
                if some and (slices is None or run.slice in slices):
                    each = [blocks[unit // self._units_per_block - first_block] for unit in some]
                    index = run.index + some.start - run.units.start
                    await lane.transfer.push(index, each)

        await asyncio.gather(*map(push_to, self._lanes.values()))

    async def push_all(self, tables: Sequence[Sequence[int]]) -> None:
        """See `SequenceOutbound.push_all`."""
        size = self._units_per_block
        pushes = []
        for lane in self._lanes.values():
            each = [
                tables[group][unit // size - self._moved[group].start // size]
                for group, unit in lane.stream.units
            ]
            pushes.append(lane.transfer.push(0, each))
        await asyncio.gather(*pushes)

    async def finish(self, timeout_s: float) -> int:
        """See `SequenceOutbound.finish`. After the first failure all transfers have ended."""
        ends = {pair: lane.transfer.finish(timeout_s) for pair, lane in self._lanes.items()}
        return group_digest(await all_or_none(ends, self.abort))

    async def abort(self) -> None:
        """Stop sending. After the return no source block is read. Idempotent."""
        await settle(*(lane.transfer.abort() for lane in self._lanes.values()))


def _by_group(stream: Stream) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for run in stream.runs:
        found.setdefault(run.group, []).append(run)
    return found
