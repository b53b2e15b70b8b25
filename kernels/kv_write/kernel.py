"""KV write in Triton: one program copies one token's keys and values of one head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def kv_write_kernel(
    k,
    v,
    cache,  # of one layer
    slot_mapping,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_cb,
    stride_ckv,
    stride_ch,
    stride_cs,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    dim = tl.arange(0, PADDED_DIM)
    inside = dim < HEAD_DIM
    place = cache + slot // BLOCK_SIZE * stride_cb + slot % BLOCK_SIZE * stride_cs
    place += head * stride_ch
    new_k = tl.load(k + token * stride_kt + head * stride_kh + dim, mask=inside)
    new_v = tl.load(v + token * stride_vt + head * stride_vh + dim, mask=inside)
    tl.store(place + dim, new_k, mask=inside)
    tl.store(place + stride_ckv + dim, new_v, mask=inside)


def launch(k: Tensor, v: Tensor, kv_cache: Tensor, layer: int, slot_mapping: Tensor) -> None:
    """See `kernels.kv_write.kv_write`. The last dimension of every tensor must be contiguous."""
    num_tokens, num_kv_heads, head_dim = k.shape
    cache = kv_cache[:, layer]  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    kv_write_kernel[(num_tokens, num_kv_heads)](
        k,
        v,
        cache,
        slot_mapping,
        *k.stride()[:2],
        *v.stride()[:2],
        *cache.stride()[:4],
        BLOCK_SIZE=cache.shape[3],
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        num_warps=1,
    )
