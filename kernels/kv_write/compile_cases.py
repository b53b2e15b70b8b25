"""The KV write as it is launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate import GateCase
from kernels.kv_write.kernel import kv_write_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRIDES = tuple(f"stride_{name}" for name in ("kt", "kh", "vt", "vh", "cb", "ckv", "ch", "cs"))


def cases() -> Iterator[GateCase]:
    """An even and an odd head size, in half and full precision."""
    for dtype, head_dim in product(("bf16", "fp32"), (80, 128)):
        yield GateCase(
            name=f"kv_write {dtype} dim {head_dim}",
            kernel=kv_write_kernel,
            types={
                **dict.fromkeys(("k", "v", "cache"), f"*{dtype}"),
                "slot_mapping": "*i64",
                **dict.fromkeys(_STRIDES, "i32"),
            },
            constants={
                "BLOCK_SIZE": 16,
                "HEAD_DIM": head_dim,
                "PADDED_DIM": 1 << (head_dim - 1).bit_length(),
            },
            aligned=frozenset(("k", "v", "cache", "slot_mapping", *_STRIDES)),
            num_warps=1,
        )
