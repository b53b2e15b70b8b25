"""Norm, rotation and KV write in Triton: one program takes some heads of one token.

The first programs of a token rotate its queries, the last rotate its keys and copy its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.rope_kv_write.norms import HeadNorms

#: Heads that one program computes.
_HEADS = 8


@triton.jit
def _rotated_halves(
    row,  # pointers to heads [HEADS, 1]
    exists,
    weight,
    cos,
    sin,
    eps,
    HEAD_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Return both halves of each rotated head in float32 [HEADS, PADDED_HALF]."""
    HALF: tl.constexpr = HEAD_DIM // 2
    dim = tl.arange(0, PADDED_HALF)
    inside = exists & (dim < HALF)[None, :]
    first = tl.load(row + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(row + HALF + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first + second * second, 1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first_weight = tl.load(weight + dim, mask=dim < HALF, other=0.0).to(tl.float32)
        second_weight = tl.load(weight + HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)
        first = first * factor * first_weight[None, :]
        second = second * factor * second_weight[None, :]
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def rope_kv_write_kernel(
    q,
    k,
    v,
    cos_sin,
    out,
    cache,  # of one layer
    slot_mapping,
    q_weight,
    k_weight,
    eps,
    num_heads,
    num_kv_heads,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_at,  # of the angles
    stride_ot,
    stride_oh,
    stride_cb,
    stride_ckv,
    stride_ch,
    stride_cs,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2
    dim = tl.arange(0, PADDED_HALF)
    inside = (dim < HALF)[None, :]
    angles = cos_sin + token * stride_at
    cos = tl.load(angles + dim, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(angles + HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
    num_query_groups = tl.cdiv(num_heads, HEADS)
    if group < num_query_groups:
        head = (group * HEADS + tl.arange(0, HEADS))[:, None]
        exists = head < num_heads
        row = q + token * stride_qt + head * stride_qh
        first, second = _rotated_halves(
            row, exists, q_weight, cos, sin, eps, HEAD_DIM, PADDED_HALF, HAS_NORM
        )
        place = out + token * stride_ot + head * stride_oh + dim[None, :]
        tl.store(place, first.to(out.dtype.element_ty), mask=exists & inside)
        tl.store(place + HALF, second.to(out.dtype.element_ty), mask=exists & inside)
    else:
        head = ((group - num_query_groups) * HEADS + tl.arange(0, HEADS))[:, None]
        exists = head < num_kv_heads
        value = v + token * stride_vt + head * stride_vh + dim[None, :]
        lower = tl.load(value, mask=exists & inside, other=0.0)
        upper = tl.load(value + HALF, mask=exists & inside, other=0.0)
        row = k + token * stride_kt + head * stride_kh
        first, second = _rotated_halves(
            row, exists, k_weight, cos, sin, eps, HEAD_DIM, PADDED_HALF, HAS_NORM
        )
        slot = tl.load(slot_mapping + token)
        place = cache + slot // BLOCK_SIZE * stride_cb + slot % BLOCK_SIZE * stride_cs
        place = place + head * stride_ch + dim[None, :]
        tl.store(place, first.to(cache.dtype.element_ty), mask=exists & inside)
        tl.store(place + HALF, second.to(cache.dtype.element_ty), mask=exists & inside)
        tl.store(place + stride_ckv, lower, mask=exists & inside)
        tl.store(place + stride_ckv + HALF, upper, mask=exists & inside)


def write_constants(
    *, head_dim: int, block_size: int, has_norm: bool
) -> tuple[dict[str, int | bool], int]:
    """Return the kernel's constants and number of warps: 16 bytes a thread in half precision."""
    padded_half = triton.next_power_of_2(head_dim // 2)
    constants = {
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "PADDED_HALF": padded_half,
        "HEADS": _HEADS,
        "HAS_NORM": has_norm,
    }
    return constants, max(1, _HEADS * padded_half // 256)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    norms: HeadNorms | None,
) -> Tensor:
    """See `kernels.rope_kv_write.rope_kv_write`.

    cache: one layer's [num_blocks, 2, num_kv_heads, block_size, head_dim]. The last dimension of
    every tensor must be contiguous.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = cache.shape[2:4]
    constants, num_warps = write_constants(
        head_dim=head_dim, block_size=block_size, has_norm=norms is not None
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    groups = triton.cdiv(num_heads, _HEADS) + triton.cdiv(num_kv_heads, _HEADS)
    rope_kv_write_kernel[(num_tokens, groups)](
        q,
        k,
        v,
        cos_sin,
        out,
        cache,
        slot_mapping,
        q if norms is None else norms.q_weight,
        k if norms is None else norms.k_weight,
        0.0 if norms is None else norms.eps,
        num_heads,
        num_kv_heads,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        cos_sin.stride(0),
        *out.stride()[:2],
        *cache.stride()[:4],
        **constants,
        num_warps=num_warps,
    )
    return out
