"""Causal attention of a packed ragged batch over the paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.kv_write.cache import QuantizedCache
from kernels.paged_attention import gathered, reference
from kernels.paged_attention.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.scores import Scores


#: Keys and values.
_NUM_KINDS = 2


def paged_attention(
    q: Tensor,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scores: Scores,
    *,
    implementation: str = "torch",
    workspace: Workspace | None = None,
) -> Tensor:
    """Each query sees the context up to itself, or what is in the window or chunk of `scores`.

    q: [num_tokens, num_heads, head_dim], the last tokens of every sequence behind each other;
    kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim] in q's type, or
    quantised, which holds their keys and values already. Where it has one kind instead of two, each
    row is a key and a value, and there is no `triton`; `torch` computes chunks in its place. What
    lies beyond a sequence's length, or in front of its window, NaN included, has no influence: a
    block table may name any block there. Returns q's shape and type. Sums are in float32; products
    over a quantised cache are in q's type with `triton`, in float32 with `torch`.

    Passing the same workspace to every call saves allocations, and capturing a graph needs one.
    With `triton` the launches depend on the numbers of tokens and sequences, and on whether any
    sequence has one new token and any has more, but on no length: a captured graph can be replayed
    with other lengths. A sequence of length 0 pads the batch and gets zeros.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check(q, kv_cache, batch, scores)
    memory = workspace or Workspace()
    if scores.is_chunked and implementation == "triton":
        implementation = "torch"
    if implementation == "triton" and kv_cache.shape[2] == _NUM_KINDS:
        from kernels.paged_attention.launch import launch  # noqa: PLC0415 Triton is optional

        return launch(q, kv_cache, layer, batch, scores, memory)
    if implementation == "torch" and not isinstance(kv_cache, QuantizedCache):
        return gathered.paged_attention(q, kv_cache, layer, batch, scores, memory)
    if implementation in {"torch", "reference"}:
        return reference.paged_attention(q, kv_cache, layer, batch, scores)
    raise ValueError(
        f"paged_attention has no implementation {implementation!r} for {kv_cache.shape[2]} kinds"
    )


def _check(
    q: Tensor,
    kv_cache: Tensor | QuantizedCache,
    batch: RaggedBatch,
    scores: Scores,
) -> None:
    num_kv_heads, block_size, head_dim = kv_cache.shape[3:]
    query_lens, seq_lens = batch.query_lens_list, batch.seq_lens_list
    num_tables, max_blocks = batch.block_tables.shape
    if q.ndim != 3 or q.shape[2] != head_dim or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q {tuple(q.shape)} does not fit {num_kv_heads} key/value heads of {head_dim}"
        )
    if sum(query_lens) != q.shape[0] or not len(query_lens) == len(seq_lens) == num_tables:
        raise ValueError(
            f"{len(query_lens)} query lengths that sum to {sum(query_lens)}, {len(seq_lens)} "
            f"sequence lengths and {num_tables} block tables do not describe {q.shape[0]} tokens"
        )
    if max(seq_lens) > max_blocks * block_size:
        raise ValueError(f"{max_blocks} blocks do not hold {max(seq_lens)} tokens")
    if scores.scale <= 0:
        raise ValueError(f"scale must be positive, not {scores.scale}")
    if scores.window is not None and scores.window < 1:
        raise ValueError(f"window must be at least 1, not {scores.window}")
    if scores.softcap is not None and scores.softcap <= 0:
        raise ValueError(f"softcap must be positive, not {scores.softcap}")
    if scores.sinks is not None and scores.sinks.shape != q.shape[1:2]:
        raise ValueError(f"{tuple(scores.sinks.shape)} sinks do not fit {q.shape[1]} heads")
