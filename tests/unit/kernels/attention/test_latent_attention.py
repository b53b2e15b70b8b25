"""Attention over latent rows equals its definition, and attention with their keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.latent_attention import LatentWeights, paged
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from tests.fakes.kernels.interpreted import run_interpreted
from tests.fakes.model.paged_driver import make_metadata
from tests.suites.kernels.latent_kernels import (
    BLOCK_SIZE,
    HEADS,
    LATENT,
    LAYER,
    PLAIN,
    ROTATED,
    SCALE,
    VALUE,
    Made,
    attend,
    checks,
    make,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.latent_kernels")


@pytest.mark.parametrize("name", checks("triton"))
def test_triton_computes_the_definition(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


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
    actual = attend(Made(queries, weights, cache, batch))
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
            attend(Made(*changed))
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        attend(Made(queries, weights, cache, batch), "cuda")
