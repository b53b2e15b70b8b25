"""The memory of an engine's KV blocks: one arena of bytes, with views for its users."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.quantize_rows.limits import LARGEST
from shared.kv.group_rules import GroupKind
from shared.kv.memory import KVMemory
from shared.kv.prefault import Prefault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.kv_write.cache import PagedCache
    from shared.kv.layout import KVGroup, KVLayout


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
        scales: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Allocate. Scratch blocks follow the others; no sequence ever owns one.

        scales: by group with keys and values, float32 [num_layers, 2, num_kv_heads], if the layout
        has those of the checkpoint.
        """
        num_blocks += num_scratch_blocks
        self.layout = layout
        dtype = getattr(torch, layout.dtype)
        #: None if the blocks are on an accelerator.
        self.memory: KVMemory | None = None
        self._prefault: Prefault | None = None
        if device.type == "cpu":
            self.memory = KVMemory(layout, num_blocks)
            self._prefault = Prefault(self.memory.mapping)
            flat = torch.frombuffer(self.memory.buffer, dtype=torch.uint8).view(dtype)
        else:
            num_elements = num_blocks * layout.block_bytes // dtype.itemsize
            flat = torch.zeros(num_elements, dtype=dtype, device=device)
        #: [num_blocks, elements of a block] in the KV dtype; row b is block b.
        self.blocks = flat.view(num_blocks, -1)
        #: By group: [num_blocks, *layout.block_shape(group)], the same memory; states in float32.
        self._views = tuple(self._of_group(group) for group in layout.groups)
        #: The same as the layers of a group read and write it.
        self.groups: tuple[PagedCache, ...] = tuple(
            _as_used(view, scales[number] if scales and number < len(scales) else None)
            for number, view in enumerate(self._views)
        )

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
        sizes = [view.shape[1:].numel() for view in self._views]
        return self._views[sizes.index(max(sizes))]

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
        self._views = ()
        self.groups = ()
        if self._prefault is not None:
            self._prefault.close()
        if self.memory is not None:
            self.memory.close()

    def _of_group(self, group: KVGroup) -> torch.Tensor:
        shape = self.layout.block_shape(group)
        is_state = group.kind is GroupKind.STATE
        blocks = self.blocks.view(torch.float32) if is_state else self.blocks
        # A block may be longer than what this group keeps in it.
        used = math.prod(shape)
        seen: torch.Tensor = blocks[:, :used].unflatten(1, shape)
        return seen


def _as_used(view: torch.Tensor, scales: torch.Tensor | None) -> PagedCache:
    if view.dtype not in LARGEST:
        return view
    if scales is None:
        return QuantizedCache.over(view)
    return QuantizedCache.with_scales(view, scales.to(view.device))
