"""The shape of a KV block in memory and on the wire."""

from __future__ import annotations

from dataclasses import dataclass

#: Raised whenever the order of the dimensions inside a block changes.
LAYOUT_VERSION = 1

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """One block is contiguous: [num_layers, 2 (key, value), num_kv_heads, block_size, head_dim].

    Workers may exchange blocks only if their layouts are equal.
    """

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str
    version: int = LAYOUT_VERSION

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's slice of a block."""
        elements = 2 * self.num_kv_heads * self.block_size * self.head_dim
        return elements * _DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.num_layers * self.layer_bytes

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks needed for `num_tokens`, the last one possibly partial."""
        return -(-num_tokens // self.block_size)
