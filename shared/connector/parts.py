"""Transfers of parts of blocks: which bytes of each block move, on either side."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.kv.cut import Cut
    from shared.kv.hand_off import Stream
    from shared.kv.layout import KVLayout


@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """What each index of a transfer moves. Both ends make it from what they know of each other.

    Different indices may be parts of one block.
    """

    #: The whole model's, which both sides' blocks are parts of: the layout of the ticket.
    layout: KVLayout
    #: By index: which of the cuts.
    which: tuple[int, ...]
    #: Of the sender's blocks and of the receiver's; both of an entry have equally many bytes.
    sender_cuts: tuple[Cut, ...]
    receiver_cuts: tuple[Cut, ...]
    #: Bytes from one block to the next in their memories.
    sender_block_bytes: int
    receiver_block_bytes: int

    @classmethod
    def of(
        cls, stream: Stream, layout: KVLayout, sender: KVLayout, receiver: KVLayout
    ) -> BlockParts:
        """Return the parts of a stream between ranks whose blocks have these layouts."""
        return cls(
            layout=layout,
            which=stream.which,
            sender_cuts=stream.sender_cuts,
            receiver_cuts=stream.receiver_cuts,
            sender_block_bytes=sender.block_bytes,
            receiver_block_bytes=receiver.block_bytes,
        )

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """By index: number of bytes."""
        sizes = [cut.num_bytes for cut in self.sender_cuts]
        return tuple(sizes[number] for number in self.which)

    @functools.cached_property
    def fingerprint(self) -> int:
        """Digest of the bytes of each index on either side; never 0, which stands for blocks."""
        digest = xxhash.xxh3_64(np.asarray(self.which, "<u4").tobytes())
        for cut in (*self.sender_cuts, *self.receiver_cuts):
            digest.update(np.asarray((len(cut.ranges), 0, *sum(cut.ranges, ())), "<u8").tobytes())
        return digest.intdigest() or 1

    def sent(self, indices: slice) -> Sequence[Cut]:
        """Return the cuts of the sender's blocks."""
        return [self.sender_cuts[number] for number in self.which[indices]]

    def received(self, indices: slice) -> Sequence[Cut]:
        """Return the cuts of the receiver's blocks."""
        return [self.receiver_cuts[number] for number in self.which[indices]]

    def __post_init__(self) -> None:
        """Raise ValueError if the cuts of both sides do not go together, or leave their blocks."""
        for here, there in zip(self.sender_cuts, self.receiver_cuts, strict=True):
            fits = here.end <= self.sender_block_bytes and there.end <= self.receiver_block_bytes
            if here.num_bytes != there.num_bytes or not here.num_bytes or not fits:
                raise ValueError(f"{here} of a sender's block, {there} of a receiver's")

    def check_sender(self, block_bytes: int, num_indices: int) -> None:
        """Raise ValueError if the sender's blocks have another size, or are not so many."""
        if block_bytes != self.sender_block_bytes or len(self.which) != num_indices:
            raise ValueError(
                f"parts of {len(self.which)} blocks of {self.sender_block_bytes} bytes, "
                f"not {num_indices} of {block_bytes}"
            )

    def check_receiver(self, block_bytes: int) -> None:
        """Raise ValueError if the receiver's blocks have another size."""
        if block_bytes != self.receiver_block_bytes:
            raise ValueError(f"parts of blocks of {self.receiver_block_bytes}, not {block_bytes}")
