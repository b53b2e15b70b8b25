"""Key/value heads that are one task, or several: no row's bits depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

#: Of no span, of a part of one, of more than one.
PROMPT_LENGTHS = (1, 40, 65, 100, 200, 300)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, Path]:
    """Models of six key/value heads, which are tasks of four and of two, by window."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 64}
    return {
        window: save(
            random_model("mistral", seed=2, sliding_window=window, **heads),
            tmp_path_factory.mktemp("heads"),
        )
        for window in (None, 70)
    }


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("kv_dtype", [None, torch.int8, torch.float8_e4m3fn])
def test_bits_do_not_depend_on_the_heads_of_a_task(
    checkpoints: dict[int | None, Path], kv_dtype: torch.dtype | None, window: int | None
) -> None:
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in PROMPT_LENGTHS]

    def generate(
        threads: int, block_size: int = 16, chunk: int = 512, *, alone: bool = False
    ) -> list[torch.Tensor]:
        model = load_model(
            checkpoints[window], dtype="bfloat16", attention_backend="native", num_threads=threads
        ).model
        driver = PagedDriver(
            model, block_size=block_size, chunk=chunk, seed=chunk, kv_dtype=kv_dtype
        )
        if alone:
            return [driver.generate([prompt], 5)[1][0] for prompt in prompts]
        return driver.generate(prompts, 5)[1]

    together = generate(1)
    for variant in (
        generate(2),
        generate(2, alone=True),
        generate(1, block_size=24),
        generate(2, block_size=128, chunk=37),
    ):
        for ours, theirs in zip(together, variant, strict=True):
            assert torch.equal(ours, theirs)
