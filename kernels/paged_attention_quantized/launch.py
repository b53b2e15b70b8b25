"""Attention over a cache in 8 bits in Triton: one kernel for one new token, one for more.

Divided between them as `kernels.paged_attention.launch` does it, and for the same reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.paged_attention.prefill.launch import current_arch
from kernels.paged_attention.splits import plan_splits
from kernels.paged_attention_quantized.decode.kernel import (
    decode_constants,
    paged_decode_quantized_kernel,
)
from kernels.paged_attention_quantized.prefill.kernel import (
    paged_prefill_quantized_kernel,
    prefill_constants,
)

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write_quantized.cache import QuantizedCache
    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.workspace import Workspace

_LOG2_E = 1.4426950408889634
#: More than any sequence has.
_NO_WINDOW = 1 << 30


def launch(
    q: Tensor,
    cache: QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None,
    workspace: Workspace,
) -> Tensor:
    """See `kernels.paged_attention_quantized.paged_attention_quantized`.

    The last dimension of q and of the cache must be contiguous.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    own = cache.layer(layer)
    log2_scale = scale * _LOG2_E
    if min(batch.query_lens_list) == 1:
        _launch_decode(q, own, out, batch, log2_scale, sliding_window, workspace)
    if max(batch.query_lens_list) > 1:
        _launch_prefill(q, own, out, batch, log2_scale, sliding_window)
    return out


def _launch_decode(
    q: Tensor,
    layer: tuple[Tensor, Tensor],
    out: Tensor,
    batch: RaggedBatch,
    log2_scale: float,
    window: int | None,
    workspace: Workspace,
) -> None:
    values, scales = layer
    num_kv_heads, block_size, head_dim = values.shape[2:]
    num_seqs = len(batch.seq_lens)
    group = q.shape[1] // num_kv_heads
    plan = plan_splits(
        num_processors=workspace.count_processors(q.device),
        num_seqs=num_seqs,
        num_kv_heads=num_kv_heads,
    )
    constants, tiles = decode_constants(
        group=group, head_dim=head_dim, block_size=block_size, element_bytes=q.element_size()
    )
    num_partials = max(1, plan.max_partials * num_kv_heads)
    partials = workspace.take((num_partials, group * (head_dim + 1)), torch.float32, q.device)
    paged_decode_quantized_kernel[(num_kv_heads, plan.max_parts)](
        q,
        values,
        scales,
        out,
        partials,
        partials.view(-1)[num_partials * group * head_dim :],
        workspace.counters(num_partials, q.device),
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_seqs,
        plan.target_programs,
        log2_scale,
        _NO_WINDOW if window is None else window,
        *q.stride()[:2],
        *out.stride()[:2],
        *values.stride()[:4],
        *scales.stride()[:3],
        batch.block_tables.stride(0),
        **constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _launch_prefill(
    q: Tensor,
    layer: tuple[Tensor, Tensor],
    out: Tensor,
    batch: RaggedBatch,
    log2_scale: float,
    window: int | None,
) -> None:
    values, scales = layer
    num_kv_heads, block_size, head_dim = values.shape[2:]
    num_seqs = len(batch.seq_lens)
    group = q.shape[1] // num_kv_heads
    constants, tiles = prefill_constants(
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        element_bytes=q.element_size(),
        has_window=window is not None,
        arch=current_arch(q.device),
    )
    num_tiles = q.shape[0] // (tiles.rows // group) + num_seqs
    paged_prefill_quantized_kernel[(num_tiles, num_kv_heads)](
        q,
        values,
        scales,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_seqs,
        log2_scale,
        window or 0,
        *q.stride()[:2],
        *out.stride()[:2],
        *values.stride()[:4],
        *scales.stride()[:3],
        batch.block_tables.stride(0),
        **constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
