"""Movement of a sequence's blocks, as its two ends use it: between single ranks or groups of them.

Blocks are named by their place in the tables of the sequence, whatever transfers carry them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Arrived(Protocol):
    """What has arrived, once it is complete and verified."""

    @property
    def digest(self) -> int:
        """The number that both ends must agree on."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks, or parts of blocks, of all transfers."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes on the wire."""
        ...


class SequenceInbound(Protocol):
    """The receiving end. Owned by the request that opened it. An `InboundTransfer` is one."""

    @property
    def num_blocks_received(self) -> int:
        """Blocks, or parts of them, that are complete and verified so far."""
        ...

    async def wait(self, timeout_s: float) -> Arrived:
        """Wait until everything is complete; see `InboundTransfer.wait`.

        Raises:
            TransferError: nothing that arrived may be used, and no byte will be written any more.
        """
        ...

    async def abort(self) -> None:
        """End it. After the return no block is written to. Idempotent."""
        ...


class SequenceOutbound(Protocol):
    """The sending end. Source blocks stay pinned until `finish` or `abort`."""

    @property
    def num_blocks(self) -> int:
        """See `Arrived.num_blocks`: of everything that is to be sent."""
        ...

    @property
    def num_bytes(self) -> int:
        """See `Arrived.num_bytes`."""
        ...

    @property
    def num_slices(self) -> int:
        """Number of slices in which the layers of each group move: see `HandOff`."""
        ...

    def final_slices(self, group: int, num_layers: int) -> int:
        """Return how many leading slices have none but the first `num_layers` layers of a group."""
        ...

    async def push(
        self, group: int, first_block: int, blocks: Sequence[int], slices: range | None = None
    ) -> None:
        """Send `blocks`, which are first_block, … of a KV group's table, as far as they move: all
        slices of them, or some.

        Each slice of a block comes once, in any order; see `OutboundTransfer.push`.

        Raises:
            TransferError: it failed. Call `abort`.
        """
        ...

    async def push_all(self, tables: Sequence[Sequence[int]]) -> None:
        """Send everything at once, in as few pieces as possible.

        tables: by KV group, the blocks that move.

        Raises:
            TransferError: it failed. Call `abort`.
        """
        ...

    async def finish(self, timeout_s: float) -> int:
        """Wait until everything was verified by its receivers; return the digest.

        Raises:
            TransferError: it failed.
        """
        ...

    async def abort(self) -> None:
        """Stop sending. After the return no source block is read. Idempotent."""
        ...
