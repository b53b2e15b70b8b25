"""The compiled kernels on a device: what the interpreter checks, and what it cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.grouped_matmul import group_rows, grouped_matmul
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from kernels.paged_attention.workspace import Workspace
from tests.fakes.kernels.tensors import random
from tests.fakes.model.paged_driver import make_metadata
from tests.suites.kernels import (
    attention_kernels,
    block_copy,
    expert_kernels,
    latent_kernels,
    layer_kernels,
    quantized_cache,
    quantized_matmul,
    recurrence_kernels,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.model.attention.base import AttentionMetadata

LAYER_CHECKS = layer_kernels.checks("triton") | expert_kernels.checks("triton")
LATENT_CHECKS = latent_kernels.checks("triton")
RECURRENCE_CHECKS = recurrence_kernels.checks("triton")
NARROW_CHECKS = quantized_cache.checks("triton") | quantized_matmul.checks("triton")
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
#: Many parts each, so that many programs race to be the last.
SEQ_LENS = (3000, 17, 1025, 8000)


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    with torch.device("cuda"):
        yield


@pytest.mark.parametrize("case", attention_kernels.CASES)
def test_attention_is_as_defined(case: str) -> None:
    attention_kernels.check_attention(attention_kernels.CASES[case], "triton")


@pytest.mark.parametrize("name", LAYER_CHECKS)
def test_layers_compute_the_formula(name: str) -> None:
    LAYER_CHECKS[name]()


@pytest.mark.parametrize("name", LATENT_CHECKS)
def test_attention_over_latents_is_as_defined(name: str) -> None:
    LATENT_CHECKS[name]()


@pytest.mark.parametrize("name", RECURRENCE_CHECKS)
def test_recurrences_are_as_defined(name: str) -> None:
    RECURRENCE_CHECKS[name]()


@pytest.mark.parametrize("name", NARROW_CHECKS)
def test_8_and_4_bits_are_as_defined(name: str) -> None:
    NARROW_CHECKS[name]()


@pytest.mark.parametrize("case", block_copy.CASES)
def test_blocks_are_copied_token_by_token(case: str) -> None:
    block_copy.check_copy(block_copy.CASES[case], "triton")


def test_a_captured_product_is_replayed_with_other_groups() -> None:
    x, weight = random(6, 64, dtype=torch.bfloat16), random(5, 96, 64, dtype=torch.bfloat16, seed=1)
    group_of = torch.zeros(12, dtype=torch.int64)

    def multiply() -> torch.Tensor:
        return grouped_matmul(x, weight, group_rows(group_of, 5), implementation="triton")

    multiply()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply()
    for seed in range(3):
        group_of.copy_(torch.randint(5, (12,), generator=_seeded().manual_seed(seed), device="cpu"))
        graph.replay()
        exact = grouped_matmul(x.float(), weight.float(), group_rows(group_of, 5))
        assert (out.float() - exact).abs().max() < 0.1


def decode_batch(seq_lens: tuple[int, ...]) -> AttentionMetadata:
    """In blocks that would do for `SEQ_LENS`."""
    sizes = [-(-length // BLOCK_SIZE) for length in SEQ_LENS]
    order = iter(torch.randperm(sum(sizes), device="cpu", generator=_seeded()).tolist())
    tables = [[next(order) for _ in range(size)] for size in sizes]
    return make_metadata((1,) * len(SEQ_LENS), seq_lens, tables, BLOCK_SIZE)


def _seeded() -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(0)


def decode_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    num_blocks = sum(-(-length // BLOCK_SIZE) for length in SEQ_LENS)
    cache = random(num_blocks, 1, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype=torch.bfloat16)
    q = random(len(SEQ_LENS), NUM_HEADS, HEAD_DIM, dtype=torch.bfloat16, seed=1)
    return q, cache


PLAIN = Scores(scale=0.1)


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    batch: AttentionMetadata,
    workspace: Workspace,
    scores: Scores = PLAIN,
) -> torch.Tensor:
    return paged_attention(q, cache, 0, batch, scores, implementation="triton", workspace=workspace)


def test_whichever_program_is_last_merges_the_same() -> None:
    q, cache = decode_inputs()
    batch, workspace = decode_batch(SEQ_LENS), Workspace()
    first = attend(q, cache, batch, workspace)
    exact = paged_attention(q.float(), cache.float(), 0, batch, PLAIN, implementation="reference")
    assert (first.float() - exact).abs().max() < 1e-2
    for _ in range(300):
        assert torch.equal(attend(q, cache, batch, workspace), first)


@pytest.mark.parametrize("kind", ["plain", "capped-with-sinks"])
def test_a_captured_decode_is_replayed_with_other_lengths(kind: str) -> None:
    sinks = random(NUM_HEADS) + 3
    scores = PLAIN if kind == "plain" else Scores(scale=0.1, window=900, softcap=1.5, sinks=sinks)
    q, cache = decode_inputs()
    batch, workspace = decode_batch((1, 1, 1, 1)), Workspace()
    attend(q, cache, batch, workspace, scores)  # compiles, and takes the workspace
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, cache, batch, workspace, scores)
    for seq_lens in (SEQ_LENS, (5, 17, 700, 129)):
        batch.seq_lens.copy_(torch.tensor(seq_lens))
        graph.replay()
        exact = paged_attention(
            q.float(),
            cache.float(),
            0,
            decode_batch(seq_lens),
            scores,
            implementation="reference",
        )
        assert (out.float() - exact).abs().max() < 1e-2
