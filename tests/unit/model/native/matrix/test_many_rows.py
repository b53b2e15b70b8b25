"""Steps of more rows than one task takes: their products end in other ways than those of few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("model_type", "head_dim", "kv_dtype", "dtype", "quantization"),
    [
        ("qwen3", 64, None, "bfloat16", "none"),
        ("qwen3", 64, None, "float32", "none"),
        ("qwen3", 96, torch.int8, "bfloat16", "int8"),
        ("qwen2", 32, None, "bfloat16", "int4"),
        ("mistral", 160, torch.float8_e4m3fn, "bfloat16", "none"),
    ],
)
def test_so_many_rows_that_heads_leave_their_product_rotated(
    model_type: str,
    head_dim: int,
    kv_dtype: torch.dtype | None,
    dtype: str,
    quantization: str,
    tmp_path: Path,
) -> None:
    """Steps of up to 400 tokens give the bits of steps of 37, of queries, keys and values."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": head_dim}
    if model_type == "qwen2":
        heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 6 * head_dim}
    checkpoint = save(random_model(model_type, seed=2, **heads), tmp_path)
    own = {"dtype": dtype, "quantization": quantization}
    loaded = load_model(checkpoint, attention_backend="native", **own)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (400, 201)]
    many, few = (
        PagedDriver(loaded.model, block_size=16, chunk=chunk, seed=1, kv_dtype=kv_dtype)
        for chunk in (400, 37)
    )
    expected = few.generate(prompts, 3)[1]
    for ours, theirs in zip(many.generate(prompts, 3)[1], expected, strict=True):
        assert torch.equal(ours, theirs)
