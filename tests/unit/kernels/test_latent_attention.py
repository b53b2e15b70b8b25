"""Attention over latent rows equals its definition, and attention with their keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.kv_write.cache import QuantizedCache
from kernels.latent_attention import LatentQueries, LatentWeights, latent_attention, paged
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from tests.fakes.paged_driver import make_metadata, poisoned_cache
from tests.fakes.tensors import random

if TYPE_CHECKING:
    from shared.model.attention.base import AttentionMetadata

HEADS, PLAIN, ROTATED, LATENT, VALUE = 6, 18, 6, 20, 14
BLOCK_SIZE, NUM_LAYERS, LAYER, SCALE = 8, 3, 1, 0.2
#: New tokens and context length of each sequence: decode, prompts, later chunks, and all of them.
BATCHES = {
    "decode": ((1, 1, 1), (1, 9, 70)),
    "decode-equal-lengths": ((1, 1), (33, 33)),
    "prompts": ((37, 1, 8), (37, 1, 8)),
    "chunks": ((21, 64), (100, 65)),
    "mixed": ((1, 60, 1, 3), (50, 60, 7, 83)),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(
    query_lens: tuple[int, ...],
    seq_lens: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    value_dim: int = VALUE,
) -> tuple[LatentQueries, LatentWeights, torch.Tensor | QuantizedCache, AttentionMetadata]:
    """A batch over blocks in reverse, and a cache of NaN but for the rows of the sequences."""
    sizes = [-(-length // BLOCK_SIZE) for length in seq_lens]
    blocks = iter(range(sum(sizes), 0, -1))
    tables = [[next(blocks) for _ in range(size)] for size in sizes]
    row = LATENT + ROTATED
    held = poisoned_cache(
        1 + sum(sizes), NUM_LAYERS, 1, BLOCK_SIZE, row, kv_dtype or dtype, num_kinds=1
    )
    cache = held if kv_dtype is None else QuantizedCache.over(held)
    for table, length in zip(tables, seq_lens, strict=True):
        slots = [table[n // BLOCK_SIZE] * BLOCK_SIZE + n % BLOCK_SIZE for n in range(length)]
        rows = random(length, 1, row, seed=table[0]).to(dtype)
        kv_write(rows, None, cache, LAYER, torch.tensor(slots))
    num = sum(query_lens)
    queries = LatentQueries(
        random(num, HEADS, PLAIN, seed=1).to(dtype), random(num, HEADS, ROTATED, seed=2).to(dtype)
    )
    weights = LatentWeights(
        random(HEADS, PLAIN, LATENT, seed=3).to(dtype),
        random(HEADS, value_dim, LATENT, seed=4).to(dtype),
    )
    return queries, weights, cache, make_metadata(query_lens, seq_lens, tables, BLOCK_SIZE)


def attend(made: Any, implementation: str = "torch") -> torch.Tensor:
    queries, weights, cache, batch = made
    return latent_attention(
        queries, weights, cache, LAYER, batch, scale=SCALE, implementation=implementation
    )


@pytest.mark.parametrize("value_dim", [VALUE, 30])
@pytest.mark.parametrize("kv_dtype", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("is_absorbed", [True, False, None])
@pytest.mark.parametrize("name", BATCHES)
def test_both_ways_compute_the_definition(
    name: str,
    is_absorbed: bool | None,
    kv_dtype: torch.dtype | None,
    value_dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None: each sequence in the way that the rule chooses. Few heads fit in one call."""
    made = make(*BATCHES[name], kv_dtype=kv_dtype, value_dim=value_dim)
    monkeypatch.setattr(paged, "_EXPANDED_BYTES", 50_000)
    if is_absorbed is not None:
        monkeypatch.setattr(paged, "is_absorbed", lambda *_: is_absorbed)
    torch.testing.assert_close(attend(made), attend(made, "reference"), rtol=1e-4, atol=1e-4)


def test_it_is_attention_with_the_keys_and_values_of_the_rows() -> None:
    queries, weights, cache, batch = make((5, 1), (19, 30))
    assert isinstance(cache, torch.Tensor)
    rows = cache.nan_to_num()[:, :, 0, 0]
    shape = (*rows.shape[:2], 2, HEADS, BLOCK_SIZE, PLAIN + ROTATED)
    made = torch.zeros(shape)
    made[:, :, 0, ..., :PLAIN] = torch.einsum("nlbc,hdc->nlhbd", rows[..., :LATENT], weights[0])
    made[:, :, 0, ..., PLAIN:] = rows[:, :, None, :, LATENT:]
    made[:, :, 1, ..., :VALUE] = torch.einsum("nlbc,hdc->nlhbd", rows[..., :LATENT], weights[1])
    expected = paged_attention(torch.cat(queries, dim=-1), made, LAYER, batch, Scores(scale=SCALE))[
        ..., :VALUE
    ]
    actual = attend((queries, weights, cache, batch))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BATCHES)
def test_bfloat16_is_near(name: str) -> None:
    near = attend(make(*BATCHES[name], dtype=torch.bfloat16))
    exact = attend(make(*BATCHES[name]), "reference")
    assert near.dtype == torch.bfloat16
    assert torch.cosine_similarity(near.float(), exact, dim=-1).min() > 0.99


def test_the_rule_takes_the_fewer_products() -> None:
    """DeepSeek-V3's sizes."""
    weights = LatentWeights(torch.empty(1, 128, 512), torch.empty(1, 128, 512))
    for length in (200, 1000, 30_000):
        edge = [num for num in range(1, length + 1) if paged.is_absorbed(weights, num, length)]
        assert edge == list(range(1, len(edge) + 1))
        assert paged.is_absorbed(weights, 1, length)
        absorbed, expanded = (
            [
                num * (128 + 128) * 512 + num * length * 2 * 512
                for num in (len(edge), len(edge) + 1)
            ],
            [length * 256 * 512 + num * length * 256 for num in (len(edge), len(edge) + 1)],
        )
        assert absorbed[0] <= expanded[0]
        assert absorbed[1] > expanded[1]


def test_what_does_not_fit_is_refused() -> None:
    queries, weights, cache, batch = make((2,), (9,))
    assert isinstance(cache, torch.Tensor)
    for changed, message in (
        ((queries, weights, cache.expand(-1, -1, 2, -1, -1, -1), batch), "is not one of latents"),
        ((queries._replace(rotated=queries.plain), weights, cache, batch), "do not fit 2 tokens"),
        ((queries, weights._replace(up_values=weights[1][1:]), cache, batch), "do not fit queries"),
        ((queries, weights, cache, make_metadata((1,), (9,), ((1, 2),), 8)), "2 queries for seq"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(changed)
    with pytest.raises(ValueError, match="no implementation 'triton'"):
        attend((queries, weights, cache, batch), "triton")
