"""Layers run one after the other, as in a calibration, are those of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.headers.contents import read_contents
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from shared.model.quantize.layer_runner import LayerRunner
from tests.fakes.families.cases import CASES
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [random_prompt(n, vocab_size=321, seed=n) for n in (30, 1, 17)]
#: Windows and caps; layers that read another one's KV, with inputs of their own; experts; latent
#: attention; states; two mixers of the same rows; learned positions and a projected embedding.
FAMILIES = [
    "gemma2-caps",
    "gemma4-shared",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_5_moe",
    "falcon_h1",
    "falcon_h1-norm-first",
    "opt-350m",
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", FAMILIES)
def test_streams_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    model_type, settings = CASES[case]
    oracle = random_model(model_type, **settings)
    save(oracle, tmp_path)
    spec = load_spec(tmp_path)
    contents = read_contents(find_checkpoint_files(tmp_path).shards, spec)
    runner = LayerRunner(spec, contents, TEXTS)
    for layer in range(spec.num_layers):
        runner.advance(layer, contents, spec)
    model = load_model(tmp_path, attention_backend="torch").model
    assert isinstance(model, CausalLM)
    for text, stream in zip(TEXTS, runner.streams, strict=True):
        with torch.inference_mode():
            normed = model.norm.of_sum(stream, torch.zeros_like(stream))[0]
            expected = oracle(torch.tensor([text]), use_cache=False).logits[0]
        torch.testing.assert_close(model.compute_logits(normed), expected, rtol=1e-3, atol=1e-3)
