"""`--quantization fp8` natively: the numbers that PyTorch's definition has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from shared.model.native.model import NativeCausalLM
from shared.model.native.packing.float8s import PackingFloat8s
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = random_prompt(60, vocab_size=321, seed=1)


@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_answers_are_those_of_pytorch(family: str, tmp_path: Path) -> None:
    checkpoint = save(random_model(family, seed=4, hidden_size=64), tmp_path)
    native, expected = (
        load_model(checkpoint, dtype="float32", quantization="fp8", attention_backend=backend)
        for backend in ("native", "torch")
    )
    assert isinstance(native.model, NativeCausalLM)
    assert isinstance(native.model._packing, PackingFloat8s)
    own, other = (
        PagedDriver(each.model, block_size=8, chunk=13).score(PROMPT) for each in (native, expected)
    )
    # A sum in another order takes few inputs to another code of 8 bits.
    same = torch.isclose(own, other, rtol=1e-4, atol=1e-4).all(dim=-1)
    assert same.float().mean() >= 0.5
    assert torch.cosine_similarity(own, other, dim=-1).min() > 0.98
    # Their weights are equal, so that one may go on with the other's KV.
    assert native.fingerprint == expected.fingerprint


def test_a_token_has_the_same_bits_in_any_company(tmp_path: Path) -> None:
    checkpoint = save(random_model("qwen2", seed=4, hidden_size=64), tmp_path)
    one, two = (
        PagedDriver(
            load_model(checkpoint, dtype="bfloat16", quantization="fp8", num_threads=number).model,
            block_size=8,
            chunk=8,
        )
        for number in (1, 2)
    )
    prompt = PROMPT * 3
    together = two.score(prompt)
    for rows in (1, 16, 17, 33, 169):
        assert torch.equal(one.score(prompt[:rows]), together[:rows])
