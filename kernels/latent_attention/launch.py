"""Launches the kernel for sequences with one new token: tiles, grid and memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from kernels.kv_write.cache import QuantizedCache
from kernels.latent_attention import paged
from kernels.latent_attention.kernel import latent_decode_kernel
from kernels.paged_attention.splits import MIN_CHUNK, plan_splits

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.latent_attention.queries import LatentQueries, LatentWeights
    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.shape import LayerCache
    from kernels.paged_attention.workspace import Workspace

#: Sequences that a program reads together when it searches its own.
_SCAN = 128


class Tiles(NamedTuple):
    """How much one program computes at a time."""

    heads: int
    keys: int
    num_warps: int
    num_stages: int


def choose_tiles(*, element_bytes: int) -> Tiles:
    """Return tiles that fit sm_80's and sm_90's memory and registers (see `compile_gate`)."""
    if element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return Tiles(16, 16, 8, 1)
    return Tiles(16, 32, 8, 2)


def decode_constants(
    *, latent_dim: int, rope_dim: int, block_size: int, tiles: Tiles, is_quantized: bool
) -> dict[str, int | bool]:
    """Return the kernel's constants."""
    return {
        "HEADS": tiles.heads,
        "LATENT_DIM": latent_dim,
        "PADDED_LATENT": max(16, triton.next_power_of_2(latent_dim)),
        "ROPE_DIM": rope_dim,
        "PADDED_ROPE": max(16, triton.next_power_of_2(rope_dim)),
        "BLOCK_SIZE": block_size,
        "KEYS": tiles.keys,
        "MIN_CHUNK": MIN_CHUNK,
        "SCAN": _SCAN,
        "QUANTIZED": is_quantized,
    }


def launch(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    workspace: Workspace,
) -> Tensor:
    """See `kernels.latent_attention.latent_attention`."""
    one = [row for row, num in enumerate(batch.query_lens_list) if num == 1]
    if len(one) == len(batch.query_lens_list):
        return _decode(queries, weights, kv_cache, layer, batch, scale, workspace)
    out = queries.plain.new_empty((len(queries.plain), *weights.up_values.shape[:2]))
    more = [row for row, num in enumerate(batch.query_lens_list) if num != 1]
    for attend, rows in ((_decode, one), (paged.latent_attention, more)):
        if rows:
            places, own, part = paged.take_part(queries, batch, rows)
            out[places] = attend(own, weights, kv_cache, layer, part, scale, workspace)
    return out


def _decode(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    workspace: Workspace,
) -> Tensor:
    """Attend with one new token of each sequence."""
    latents = torch.einsum("thd,hdc->thc", queries.plain, weights.up_keys)
    cache = (
        kv_cache.layer(layer)
        if isinstance(kv_cache, QuantizedCache)
        else (kv_cache[:, layer], None)
    )
    mixed = _attend(latents, queries.rotated, cache, batch, scale, workspace)
    return torch.einsum("thc,hdc->thd", mixed, weights.up_values)


def _attend(
    latents: Tensor,
    rotated: Tensor,
    cache: LayerCache,
    batch: RaggedBatch,
    scale: float,
    workspace: Workspace,
) -> Tensor:
    """Return the mixed rows [num_tokens, num_heads, latent_dim]; cache: of one layer."""
    values, scales = cache
    num_tokens, num_heads, latent_dim = latents.shape
    out = torch.empty_like(latents, memory_format=torch.contiguous_format)
    tiles = choose_tiles(element_bytes=latents.element_size())
    num_tiles = triton.cdiv(num_heads, tiles.heads)
    plan = plan_splits(
        num_processors=workspace.count_processors(latents.device),
        num_seqs=num_tokens,
        num_kv_heads=num_tiles,
    )
    num_partials, numbers = max(1, plan.max_partials * num_tiles), tiles.heads * latent_dim
    partials = workspace.take((num_partials, numbers + tiles.heads), torch.float32, latents.device)
    latent_decode_kernel[(num_tiles, plan.max_parts)](
        latents,
        rotated,
        *cache,
        out,
        partials,
        partials.view(-1)[num_partials * numbers :],
        workspace.counters(num_partials, latents.device),
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        num_heads,
        num_tokens,
        plan.target_programs,
        scale * math.log2(math.e),
        *(stride for part in (latents, rotated, out) for stride in part.stride()[:2]),
        *(values.stride(0), values.stride(3), None if scales is None else scales.stride(0)),
        batch.block_tables.stride(0),
        **decode_constants(
            latent_dim=latent_dim,
            rope_dim=rotated.shape[2],
            block_size=values.shape[3],
            tiles=tiles,
            is_quantized=scales is not None,
        ),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
