"""Stored codes in a bfloat16 model, with inputs that are not rounded to 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from tests.fakes.kernels.matrix_unit import has_matrix_unit
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_prompt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IN_ORDER = "gptq in order"
BY_ROW = "ct naive fp8"
#: Integers of 4, 6 and 8 bits, with zeros and in another order, numbers of a table, 8-bit floats
#: with scales of 16 columns, of blocks and of rows, and experts.
CASES = [
    ("qwen2", "ct int4 uneven"),
    ("phi3", IN_ORDER),
    ("mixtral", "awq"),
    ("qwen2", "ct int8 uneven"),
    ("qwen2", "ct int6 even"),
    ("phi3", "ct nvfp4"),
    ("qwen2", "ct naive fp8 blocks"),
    ("qwen2", BY_ROW),
    ("gpt_oss", "gpt_oss"),
]
#: One row, a tile, more than one, more than two, more than a task takes, and than two do.
NUM_ROWS = (1, 16, 17, 33, 170, 340)
PROMPT = random_prompt(max(NUM_ROWS), vocab_size=321, seed=7)


def driver_of(folder: Path, num_threads: int) -> PagedDriver:
    loaded = load_model(
        folder,
        dtype="bfloat16",
        attention_backend="native",
        num_threads=num_threads,
        cpu_int4_compute="float",
    )
    return PagedDriver(loaded.model, block_size=16, chunk=16)


@pytest.mark.parametrize(("family", "case"), CASES)
def test_a_weight_is_the_nearest_bfloat16_number(
    family: str, case: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    """With a matrix unit the bits are those of the dense model, if columns keep their order.

    A scale of a whole row multiplies sums: the weight is not rounded.
    """
    checkpoint, dense = stored(family, case)
    own, expected = (driver_of(path, 2).score(PROMPT) for path in (checkpoint, dense))
    if has_matrix_unit() and case not in (IN_ORDER, BY_ROW):
        assert torch.equal(own, expected)
    else:
        assert torch.cosine_similarity(own, expected, dim=-1).mean() > 0.99


@pytest.mark.parametrize(("family", "case"), [*CASES, ("mixtral", "ct fp8 tokens")])
def test_bits_depend_on_no_number_of_rows(
    family: str, case: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    checkpoint, _ = stored(family, case)
    together = driver_of(checkpoint, 2).score(PROMPT)
    alone = driver_of(checkpoint, 1)
    for rows in NUM_ROWS:
        assert torch.equal(alone.score(PROMPT[:rows]), together[:rows])
