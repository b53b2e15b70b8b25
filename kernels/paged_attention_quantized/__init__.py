"""Causal attention of a packed ragged batch over the paged KV cache in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.paged_attention.workspace import Workspace
from kernels.paged_attention_quantized import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write_quantized.cache import QuantizedCache
    from kernels.paged_attention.batch import RaggedBatch


def paged_attention_quantized(
    q: Tensor,
    cache: QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    implementation: str = "torch",
    workspace: Workspace | None = None,
) -> Tensor:
    """Each query sees the context up to itself; with a window W, itself and the W - 1 before it.

    q: [num_tokens, num_heads, head_dim], the last tokens of every sequence behind each other, whose
    keys and values the cache holds already. Whatever lies beyond a sequence's length, NaN included,
    has no influence. Products are computed in q's type with `triton`, in float32 with `torch`, sums
    in float32. Returns q's shape. The workspace saves allocations, and is needed to capture a
    graph. What the launches depend on is what `kernels.paged_attention` says of its own.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check(q, cache, batch, sliding_window)
    if implementation == "torch":
        return reference.paged_attention_quantized(q, cache, layer, batch, scale, sliding_window)
    if implementation == "triton":
        from kernels.paged_attention_quantized.launch import launch  # noqa: PLC0415

        memory = workspace or Workspace()
        return launch(q, cache, layer, batch, scale, sliding_window, memory)
    raise ValueError(f"paged_attention_quantized has no implementation {implementation!r}")


def _check(
    q: Tensor, cache: QuantizedCache, batch: RaggedBatch, sliding_window: int | None
) -> None:
    num_kv_heads, block_size, head_dim = cache.values.shape[3:]
    if q.ndim != 3 or q.shape[2] != head_dim or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q {tuple(q.shape)} does not fit {num_kv_heads} key/value heads of {head_dim}"
        )
    num_seqs, num_blocks = batch.block_tables.shape
    query_lens, seq_lens = batch.query_lens_list, batch.seq_lens_list
    if sum(query_lens) != len(q) or not len(query_lens) == len(seq_lens) == num_seqs:
        raise ValueError(
            f"{len(query_lens)} query lengths that sum to {sum(query_lens)}, {len(seq_lens)} "
            f"sequence lengths and {num_seqs} block tables do not describe {len(q)} tokens"
        )
    if max(seq_lens) > num_blocks * block_size:
        raise ValueError(f"{num_blocks} blocks do not hold {max(seq_lens)} tokens")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, not {sliding_window}")
