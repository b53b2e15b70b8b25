"""Quantised KV write in Triton: one program stores the keys or the values of one token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels.quantize_rows.kernel import quantize_tile, round_tile
from kernels.quantize_rows.limits import LARGEST, LEAST

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import QuantizedCache


@triton.jit
def kv_write_quantized_kernel(
    k,
    v,
    values,  # of one layer
    scales,  # of one layer
    slot_mapping,
    num_kv_heads,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_cb,
    stride_ckv,
    stride_ch,
    stride_cs,
    stride_sb,
    stride_skv,
    stride_sh,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    IS_STATIC: tl.constexpr,  # the scales are there, and are not written
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,  # num_kv_heads to the next power of two
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    head = tl.arange(0, HEADS)
    dim = tl.arange(0, PADDED_DIM)
    exists = (head < num_kv_heads)[:, None] & (dim < HEAD_DIM)[None, :]
    if kind == 0:
        source = k + token * stride_kt + head[:, None] * stride_kh
    else:
        source = v + token * stride_vt + head[:, None] * stride_vh
    new = tl.load(source + dim[None, :], mask=exists, other=0.0).to(tl.float32)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    place = values + block * stride_cb + kind * stride_ckv + offset * stride_cs
    place = place + head[:, None] * stride_ch + dim[None, :]
    scale_place = scales + block * stride_sb + kind * stride_skv + offset + head * stride_sh
    if IS_STATIC:
        scale = tl.load(scale_place, mask=head < num_kv_heads, other=1.0)
        scaled = tl.div_rn(new, tl.zeros_like(new) + scale[:, None])
        rounded = round_tile(scaled, LEAST, LARGEST, IS_INTEGER)
    else:
        rounded, scale = quantize_tile(new, LARGEST, IS_INTEGER)
        tl.store(scale_place, scale, mask=head < num_kv_heads)
    tl.store(place, rounded.to(values.dtype.element_ty), mask=exists)


def write_constants(
    *, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, is_static: bool
) -> tuple[dict[str, float | bool], int]:
    """Return the kernel's constants and number of warps: 16 numbers a thread, up to 8 warps."""
    heads, padded = triton.next_power_of_2(num_kv_heads), triton.next_power_of_2(head_dim)
    constants = {
        "LEAST": LEAST[dtype],
        "LARGEST": LARGEST[dtype],
        "IS_INTEGER": dtype == torch.int8,
        "IS_STATIC": is_static,
        "BLOCK_SIZE": block_size,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded,
    }
    return constants, min(8, max(1, heads * padded // 512))


def launch(k: Tensor, v: Tensor, cache: QuantizedCache, layer: int, slot_mapping: Tensor) -> None:
    """See `kernels.kv_write.kv_write`. Last dimensions must be contiguous."""
    num_tokens, num_kv_heads, head_dim = k.shape
    values, scales = cache.layer(layer)
    constants, num_warps = write_constants(
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=values.shape[3],
        dtype=values.dtype,
        is_static=cache.is_static,
    )
    kv_write_quantized_kernel[(num_tokens, 2)](
        k,
        v,
        values,
        scales,
        slot_mapping,
        num_kv_heads,
        *k.stride()[:2],
        *v.stride()[:2],
        *values.stride()[:4],
        *scales.stride()[:3],
        **constants,
        num_warps=num_warps,
    )
