"""The block copy: PyTorch in this process, Triton in an interpreter of its own; what it plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernels.block_copy import HeadRange, copy_blocks, gather_blocks, scatter_blocks
from kernels.block_copy.plan import plan_copy
from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.block_copy import CASES, check_copy

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize("case", CASES)
def test_torch_copies_token_by_token(case: str) -> None:
    check_copy(CASES[case], "torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each case."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.block_copy")


@pytest.mark.parametrize("case", CASES)
def test_triton_copies_token_by_token(case: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[case] is None, interpreted[case]


def test_what_was_gathered_is_scattered_back() -> None:
    cache = torch.randn(6, 2, 2, 3, 8, 4)
    staging, other = torch.empty(2, 2, 2, 3, 16, 4), torch.zeros_like(cache)
    blocks = torch.tensor([5, 0, 3, 1])
    gather_blocks(cache, blocks, staging)
    scatter_blocks(staging, other, blocks)
    assert torch.equal(other[blocks], cache[blocks])
    assert not other[[2, 4]].any()


def planned(
    *, source_size: int = 16, target_size: int = 16, num_heads: int = 8, all_heads: int = 8
) -> tuple[int, ...]:
    """Words of a run, and how many: 4 blocks of 16 tokens, 3 layers, heads of 64 words."""
    strides = [
        (2 * all_heads * size * 64, all_heads * size * 64, size * 64)
        for size in (source_size, target_size)
    ]
    plan = plan_copy(
        num_tokens=64,
        source_size=source_size,
        target_size=target_size,
        token_words=64,
        sizes=(3, 2, num_heads),
        source_strides=strides[0],
        target_strides=strides[1],
    )
    return plan.run, plan.num_chunks * plan.num_layers * plan.num_kinds * plan.num_heads


def test_runs_are_as_long_as_both_layouts_allow() -> None:
    block = 3 * 2 * 8 * 16 * 64
    assert planned() == (block, 4)
    assert planned(num_heads=2) == (2 * 16 * 64, 4 * 3 * 2)
    assert planned(target_size=32) == (16 * 64, 4 * 3 * 2 * 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": torch.zeros(4, 1, 2, 2, 8, 4, dtype=torch.bfloat16)}, "not two caches of one"),
        ({"target": torch.zeros(4, 2, 2, 2, 8, 4)}, "differ in layers or head size"),
        ({"target": torch.zeros(4, 1, 2, 1, 8, 4)}, "not within the 1 of the target"),
        ({"heads": HeadRange(1, 0, 2)}, "not within the 2 of the source"),
        ({"target": torch.zeros(4, 1, 2, 2, 4, 8).mT}, "not contiguous"),
        ({"source_blocks": torch.ones(2)}, "must be a list of numbers"),
        ({"implementation": "cuda"}, "no implementation 'cuda'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"source": torch.zeros(4, 1, 2, 2, 8, 4), "target": torch.zeros(4, 1, 2, 2, 8, 4)}
    copy_blocks(**arguments)
    with pytest.raises(ValueError, match=message):
        copy_blocks(**{**arguments, **changes})
