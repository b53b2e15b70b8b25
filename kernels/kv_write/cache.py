"""The paged cache in 8 bits.

Scales that were calibrated are static: one per layer, head and kind (keys or values), outside of
the blocks. Otherwise each token has its own. A scale per block would save 3 % of the memory at head
size 128. But a token larger than those before it would change that scale, and the whole block would
have to be rounded anew: stored numbers would depend on how a prompt was cut into steps, and a block
could not be sent before it is full. With static scales, or one per token, a slot is written once,
and its bits depend on one key or value alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.quantize_rows.limits import LARGEST


@dataclass(frozen=True, slots=True)
class QuantizedCache:
    """Keys and values as products of `values` and `scales`.

    Writing changes no static scales. All tokens of a head share one, and its memory.

    Raises:
        ValueError: types or shapes that do not fit together.
    """

    #: int8 or float8_e4m3fn [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]
    values: Tensor
    #: float32 [num_blocks, num_layers, 2, num_kv_heads, block_size]
    scales: Tensor
    is_static: bool = False

    def __post_init__(self) -> None:
        if self.values.dtype not in LARGEST or self.scales.dtype != torch.float32:
            raise ValueError(
                f"values of {self.values.dtype} and scales of {self.scales.dtype} must be of "
                f"{' or '.join(map(str, LARGEST))}, and of float32"
            )
        if self.values.ndim != 6 or self.scales.shape != self.values.shape[:-1]:
            raise ValueError(
                f"scales {tuple(self.scales.shape)} do not fit values {tuple(self.values.shape)}"
            )

    @property
    def device(self) -> torch.device:
        """Where the values and scales are."""
        return self.values.device

    @property
    def shape(self) -> torch.Size:
        """The shape of the values."""
        return self.values.shape

    @classmethod
    def over(cls, blocks: Tensor) -> QuantizedCache:
        """Return views of blocks in which the scales of a head lie behind its values.

        blocks: int8 or float8_e4m3fn, contiguous
        [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim + 4], the shape for code that
        moves blocks. Of the last two dimensions together, the first block_size * head_dim bytes are
        the values and the others the scales. block_size * head_dim must be a multiple of 4.
        """
        block_size, row = blocks.shape[4:]
        num_values = block_size * (row - 4)
        heads = blocks.flatten(-2)
        values = heads[..., :num_values].unflatten(-1, (block_size, row - 4))
        return cls(values, heads.view(torch.float32)[..., num_values // 4 :])

    @classmethod
    def with_scales(cls, blocks: Tensor, scales: Tensor) -> QuantizedCache:
        """Return a cache whose scales are given and static.

        blocks: int8 or float8_e4m3fn [num_blocks, num_layers, 2, num_kv_heads, block_size,
        head_dim]; scales: float32 [num_layers, 2, num_kv_heads], on their device.
        """
        num_blocks, block_size = blocks.shape[0], blocks.shape[4]
        # Kernels read the scales of a head's neighbouring tokens as neighbours.
        table = scales.unsqueeze(-1).expand(*scales.shape, block_size).contiguous()
        return cls(blocks, table.expand(num_blocks, *table.shape), is_static=True)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return views of one layer's values and scales."""
        return self.values[:, layer], self.scales[:, layer]

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: torch.dtype) -> QuantizedCache:
        """Return a cache with values of this shape and any content."""
        return cls(torch.empty(shape, dtype=dtype), torch.empty(shape[:-1], dtype=torch.float32))


#: What holds keys and values of one group of layers: in their own type, or in 8 bits.
PagedCache: TypeAlias = Tensor | QuantizedCache
