"""Attention over latent rows as its definition: one sequence at a time, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.quantize_rows.reference import dequantize_rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.latent_attention.queries import LatentQueries, LatentWeights
    from kernels.paged_attention.batch import RaggedBatch


def latent_attention(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
) -> Tensor:
    """See `kernels.latent_attention.latent_attention`."""
    parts = []
    start = 0
    for table, num_new, length in zip(
        batch.block_tables, batch.query_lens_list, batch.seq_lens_list, strict=True
    ):
        tokens = slice(start, start + num_new)
        start += num_new
        rows = read_rows(kv_cache, layer, table, length).float()
        latents, rotated = rows[:, : weights.latent_dim], rows[:, weights.latent_dim :]
        keys = torch.einsum("kc,hdc->hkd", latents, weights.up_keys.float())
        values = torch.einsum("kc,hdc->hkd", latents, weights.up_values.float())
        scores = torch.einsum("qhd,hkd->hqk", queries.plain[tokens].float(), keys)
        scores += torch.einsum("qhd,kd->hqk", queries.rotated[tokens].float(), rotated)
        positions = torch.arange(length, device=rows.device)
        hidden = positions > positions[length - num_new :, None]
        probabilities = (scores * scale).masked_fill(hidden, float("-inf")).softmax(dim=-1)
        parts.append(torch.einsum("hqk,hkd->qhd", probabilities, values))
    return torch.cat(parts).to(queries.plain.dtype)


def read_rows(kv_cache: Tensor | QuantizedCache, layer: int, table: Tensor, length: int) -> Tensor:
    """Return the first rows of a sequence in one layer: [length, row], a copy.

    They are float32 if the cache is quantised.
    """
    blocks = table[: -(-length // kv_cache.shape[4])].long()
    if isinstance(kv_cache, QuantizedCache):
        stored, scales = kv_cache.layer(layer)
        values = stored.view(torch.uint8)[blocks].view(stored.dtype)  # float8 has no index
        return dequantize_rows(values, scales[blocks])[:, 0, 0].flatten(0, 1)[:length]
    return kv_cache[blocks, layer, 0, 0].flatten(0, 1)[:length]
