"""Causal attention over a paged cache of latent rows, from which each head makes keys and values.

A token's row is [c, p]. Head h has the key [up_keys[h] @ c, p] and the value up_values[h] @ c
(DeepSeek-V2, 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.latent_attention import paged, reference
from kernels.latent_attention.queries import LatentQueries, LatentWeights
from kernels.paged_attention.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import QuantizedCache
    from kernels.paged_attention.batch import RaggedBatch

__all__ = ["LatentQueries", "LatentWeights", "latent_attention"]


def latent_attention(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    *,
    scale: float,
    implementation: str = "torch",
    workspace: Workspace | None = None,
) -> Tensor:
    """Each query sees the context up to itself; returns [num_tokens, num_heads, value_dim].

    queries: of the last tokens of every sequence, behind each other; kv_cache:
    [num_blocks, num_layers, 1, 1, block_size, latent_dim + rope_dim] in the queries' type, or
    quantised, which holds their rows already; scale: factor of the scores. What lies beyond a
    sequence's length, NaN included, has no influence. `reference` makes all keys and values in
    float32. `torch` does so, in the queries' type, for sequences with many new tokens. For the
    others it moves `up_keys` to the queries and `up_values` to the results: products of rows alone
    are left. `triton` does that in one launch for all sequences with one new token, and as `torch`
    for the others; if each sequence has one, the launch depends on no length, as with
    `paged_attention`.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check(queries, weights, kv_cache, batch)
    if implementation == "torch":
        memory = workspace or Workspace()
        return paged.latent_attention(queries, weights, kv_cache, layer, batch, scale, memory)
    if implementation == "triton":
        from kernels.latent_attention.launch import launch  # noqa: PLC0415 Triton is optional

        return launch(queries, weights, kv_cache, layer, batch, scale, workspace or Workspace())
    if implementation == "reference":
        return reference.latent_attention(queries, weights, kv_cache, layer, batch, scale)
    raise ValueError(f"latent_attention has no implementation {implementation!r}")


def _check(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    batch: RaggedBatch,
) -> None:
    num_tokens, num_heads, plain_dim = queries.plain.shape
    kinds, num_kv_heads, _, row = kv_cache.shape[2:]
    if (kinds, num_kv_heads) != (1, 1):
        raise ValueError(
            f"a cache of {kinds} x {num_kv_heads} rows per token is not one of latents"
        )
    if queries.rotated.shape != (num_tokens, num_heads, row - weights.latent_dim):
        raise ValueError(
            f"rotated queries {tuple(queries.rotated.shape)} do not fit {num_tokens} tokens of "
            f"{num_heads} heads, and rows of {row} with {weights.latent_dim} that are not rotated"
        )
    if weights.up_keys.shape[:2] != (num_heads, plain_dim) or len(weights.up_values) != num_heads:
        raise ValueError(
            f"up_keys {tuple(weights.up_keys.shape)} and up_values "
            f"{tuple(weights.up_values.shape)} do not fit queries {tuple(queries.plain.shape)}"
        )
    if sum(batch.query_lens_list) != num_tokens:
        raise ValueError(f"{num_tokens} queries for sequences of {list(batch.query_lens_list)}")
