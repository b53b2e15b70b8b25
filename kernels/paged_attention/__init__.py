"""Causal attention of a packed ragged batch over the paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.paged_attention import gathered, reference
from kernels.paged_attention.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def paged_attention(
    q: Tensor,
    kv_cache: Tensor,
    layer: int,
    *,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    query_lens_list: Sequence[int],
    seq_lens_list: Sequence[int],
    scale: float,
    sliding_window: int | None = None,
    implementation: str = "torch",
    workspace: Workspace | None = None,
) -> Tensor:
    """Each query sees the context up to itself; with a window W, itself and the W - 1 before it.

    q: [num_tokens, num_heads, head_dim], the last tokens of every sequence behind each other;
    kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], which holds their
    keys and values already; query_start_loc: int32 [num_seqs + 1]; seq_lens: int32 [num_seqs];
    block_tables: int32 [num_seqs, max_blocks]. The lists are the same numbers on the host.
    Whatever lies beyond a sequence's length, NaN included, has no influence. Returns q's shape.
    The workspace saves the torch implementation allocations when it is passed again and again.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check(q, kv_cache, block_tables, query_lens_list, seq_lens_list, sliding_window)
    if implementation == "triton":
        from kernels.paged_attention.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(
            q,
            kv_cache[:, layer],
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_tables=block_tables,
            max_query_len=max(query_lens_list),
            scale=scale,
            sliding_window=sliding_window,
        )
    if implementation == "torch":
        return gathered.paged_attention(
            q,
            kv_cache,
            layer,
            block_tables=block_tables,
            query_lens=query_lens_list,
            seq_lens=seq_lens_list,
            scale=scale,
            sliding_window=sliding_window,
            workspace=workspace or Workspace(),
        )
    if implementation == "reference":
        return reference.paged_attention(
            q,
            kv_cache,
            layer,
            block_tables=block_tables,
            query_lens=query_lens_list,
            seq_lens=seq_lens_list,
            scale=scale,
            sliding_window=sliding_window,
        )
    raise ValueError(f"paged_attention has no implementation {implementation!r}")


def _check(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    sliding_window: int | None,
) -> None:
    num_kv_heads, block_size, head_dim = kv_cache.shape[3:]
    if q.ndim != 3 or q.shape[2] != head_dim or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q {tuple(q.shape)} does not fit {num_kv_heads} key/value heads of {head_dim}"
        )
    if sum(query_lens) != q.shape[0] or not len(query_lens) == len(seq_lens) == len(block_tables):
        raise ValueError(
            f"{len(query_lens)} query lengths that sum to {sum(query_lens)}, {len(seq_lens)} "
            f"sequence lengths and {len(block_tables)} block tables do not describe "
            f"{q.shape[0]} tokens"
        )
    if max(seq_lens) > block_tables.shape[1] * block_size:
        raise ValueError(f"{block_tables.shape[1]} blocks do not hold {max(seq_lens)} tokens")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, not {sliding_window}")
