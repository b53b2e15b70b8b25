"""The memory of an engine's KV blocks: one arena of bytes, with views for its users."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from shared.kv.group_rules import GroupKind
from shared.kv.memory import KVMemory
from shared.kv.prefault import Prefault

if TYPE_CHECKING:
    from shared.kv.layout import KVLayout


class KVArena:
    """Equally long blocks of bytes. A `BlockPool` says which sequence owns which block.

    The layers of a group read and write blocks as keys and values (`groups`). A draft's pages and
    the hidden states of a hand-off are blocks too, read and written as bytes (`bytes`). All share
    the memory; a block has one use at a time.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        *,
        device: torch.device,
        num_scratch_blocks: int = 0,
    ) -> None:
        """Allocate. Scratch blocks follow the others; no sequence ever owns one."""
        num_blocks += num_scratch_blocks
        self.layout = layout
        dtype = getattr(torch, layout.dtype)
        #: None if the blocks are on an accelerator.
        self.memory: KVMemory | None = None
        self._prefault: Prefault | None = None
        if device.type == "cpu":
            self.memory = KVMemory(layout, num_blocks)
            self._prefault = Prefault(self.memory.buffer)
            flat = torch.frombuffer(self.memory.buffer, dtype=torch.uint8).view(dtype)
        else:
            num_elements = num_blocks * layout.block_bytes // dtype.itemsize
            flat = torch.zeros(num_elements, dtype=dtype, device=device)
        #: [num_blocks, elements of a block] in the KV dtype; row b is block b.
        self.blocks = flat.view(num_blocks, -1)
        #: By group: [num_blocks, *layout.block_shape(group)], the same memory; states in float32.
        self.groups = tuple(self._of_group(number) for number in range(layout.num_groups))

    @property
    def device(self) -> torch.device:
        """Device of the blocks."""
        return self.blocks.device

    @property
    def whole(self) -> torch.Tensor:
        """All bytes of all blocks, in the dimensions of a group that fills its blocks.

        With states, none may fill them: [num_blocks, 1, 1, 1, 1, elements] then.
        """
        if self.layout.has_states:
            return self.blocks[:, None, None, None, None]
        sizes = [group.shape[1:].numel() for group in self.groups]
        return self.groups[sizes.index(max(sizes))]

    def bytes(self) -> torch.Tensor:
        """Return all blocks as uint8 [num_blocks, block_bytes]."""
        return self.blocks.view(torch.uint8)

    def reach(self, num_blocks: int) -> None:
        """Prepare the memory of the next blocks, given that the first `num_blocks` are in use."""
        if self._prefault is not None:
            self._prefault.reach(num_blocks * self.layout.block_bytes)

    def close(self) -> None:
        """Free the memory. The engine must not step any more."""
        self.blocks = torch.empty(0)
        self.groups = ()
        if self._prefault is not None:
            self._prefault.close()
        if self.memory is not None:
            self.memory.close()

    def _of_group(self, number: int) -> torch.Tensor:
        group = self.layout.groups[number]
        shape = self.layout.block_shape(group)
        is_state = group.kind is GroupKind.STATE
        blocks = self.blocks.view(torch.float32) if is_state else self.blocks
        # A block may be longer than what this group keeps in it.
        used = math.prod(shape)
        seen: torch.Tensor = blocks[:, :used].unflatten(1, shape)
        return seen
