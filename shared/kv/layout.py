"""The shape of a KV block in memory and on the wire."""

from __future__ import annotations

from dataclasses import dataclass

#: Raised whenever the order of the dimensions inside a block changes.
LAYOUT_VERSION = 1

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
#: Of these, each token and head has a scale in float32: its elements are values times scale.
_SCALED = ("int8", "float8_e4m3fn")
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """One block is contiguous: [num_layers, 2 (key, value), num_kv_heads, block_size, head_dim].

    In 8 bits, the scales [block_size] of a head lie behind its values [block_size, head_dim], so
    that whatever moves, keeps or hashes a block has both. Workers may exchange blocks only if their
    layouts are equal.
    """

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str
    version: int = LAYOUT_VERSION

    @property
    def is_quantized(self) -> bool:
        """Whether there are scales."""
        return self.dtype in _SCALED

    @property
    def row_elements(self) -> int:
        """Elements that a token of a head takes, its scale counted in elements."""
        return self.head_dim + (_SCALE_BYTES if self.is_quantized else 0)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's slice of a block."""
        elements = 2 * self.num_kv_heads * self.block_size * self.row_elements
        return elements * _DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.num_layers * self.layer_bytes

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks needed for `num_tokens`, the last one possibly partial."""
        return -(-num_tokens // self.block_size)
