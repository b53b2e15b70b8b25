"""The receiving group's side of one hand-off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shared.connector.group.tasks import all_or_none, settle
from shared.connector.parts import BlockParts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.base import Connector, InboundTransfer, Receipt, Ticket
    from shared.identity import WorkerId
    from shared.kv.hand_off import HandOff, Pair, Stream
    from shared.kv.memory import KVMemory


@dataclass(frozen=True, slots=True)
class GroupReceipt:
    """The result of a hand-off: that of each of its transfers, by sending and receiving rank."""

    streams: Mapping[Pair, Receipt]

    @property
    def digest(self) -> int:
        """The one number that both groups must agree on."""
        return group_digest({pair: receipt.digest for pair, receipt in self.streams.items()})

    @property
    def num_blocks(self) -> int:
        """Parts of blocks, by all transfers."""
        return sum(receipt.num_blocks for receipt in self.streams.values())

    @property
    def num_bytes(self) -> int:
        """Bytes on the wire."""
        return sum(receipt.num_bytes for receipt in self.streams.values())


def group_digest(digests: Mapping[Pair, int]) -> int:
    """Return xxh3-64 over both ranks and the digest of each transfer, in order of the ranks."""
    table = np.array([(*pair, digests[pair]) for pair in sorted(digests)], "<u8")
    return int(xxhash.xxh3_64_intdigest(table.tobytes()))


def pair_parts(hand_off: HandOff, pair: Pair, stream: Stream) -> BlockParts:
    """Return what a pair's transfer moves."""
    sender, receiver = hand_off.sender.rank_layouts, hand_off.receiver.rank_layouts
    return BlockParts.of(stream, hand_off.layout, sender[pair[0]], receiver[pair[1]])


class GroupInbound:
    """A `SequenceInbound` into the blocks of a group of ranks.

    It is complete when all of its transfers are. When one fails, all are aborted, and nothing that
    any of them received may be used.
    """

    def __init__(self, transfers: Mapping[Pair, InboundTransfer]) -> None:
        self._transfers = transfers

    @classmethod
    async def open(
        cls,
        hand_off: HandOff,
        *,
        request_id: str,
        senders: Sequence[WorkerId],
        connectors: Sequence[Connector],
        tables: Sequence[Sequence[int]],
        moved: tuple[range, ...],
        num_tokens: int,
        memory: KVMemory | None = None,
    ) -> GroupInbound:
        """Open a transfer for each pair of ranks that has something to move.

        senders, connectors: by rank, of the other group and of this one. tables: by KV group, the
        sequence's blocks that move, which are the same on all ranks. moved: see `HandOff.moved`.
        memory: see `Connector.open`. If this is cancelled, or raises, no transfer is left open.

        Raises:
            TransferError: see `Connector.open`.
        """
        size = hand_off.receiver_units
        streams = {pair: hand_off.stream(pair, moved, num_tokens) for pair in hand_off.pairs}
        opened: dict[Pair, InboundTransfer] = {}

        async def start(pair: Pair, stream: Stream) -> InboundTransfer:
            opened[pair] = await connectors[pair[1]].open(
                request_id=request_id,
                sender=senders[pair[0]],
                blocks=[
                    tables[group][unit // size - moved[group].start // size]
                    for group, unit in stream.units
                ],
                parts=pair_parts(hand_off, pair, stream),
                memory=memory,
            )
            return opened[pair]

        async def give_up() -> None:
            await settle(*(transfer.abort() for transfer in opened.values()))

        starts = {pair: start(pair, stream) for pair, stream in streams.items() if stream.runs}
        return cls(await all_or_none(starts, give_up))

    @property
    def tickets(self) -> Mapping[Pair, Ticket]:
        """The tickets for the sending group."""
        return {pair: transfer.ticket for pair, transfer in self._transfers.items()}

    @property
    def num_blocks_received(self) -> int:
        """Parts of blocks that are complete and verified so far."""
        return sum(transfer.num_blocks_received for transfer in self._transfers.values())

    async def wait(self, timeout_s: float) -> GroupReceipt:
        """Wait until every transfer is complete; see `InboundTransfer.wait`.

        When it raises, all transfers have ended, and no byte will be written any more.

        Raises:
            TransferError: the first failure of a transfer.
        """
        waits = {pair: transfer.wait(timeout_s) for pair, transfer in self._transfers.items()}
        return GroupReceipt(await all_or_none(waits, self.abort))

    async def abort(self) -> None:
        """End all transfers. After the return no block is written to. Idempotent."""
        await settle(*(transfer.abort() for transfer in self._transfers.values()))
