"""Quantised checkpoints on Triton's kernels: `python -m tests.suites.triton_stored`, interpreted."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch

from shared.model.causal_lm import CausalLM
from shared.model.linear.fused import FusedLinear
from shared.model.linear.packed import PackedProduct
from shared.model.linear.rounded import CodedProduct, UnitsProduct
from shared.model.loader import load_model
from tests.fakes.interpreted import report
from tests.fakes.paged_driver import PagedDriver
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.models import FAMILIES, wants_of
from tests.fakes.transformers_models import random_model, random_prompt, save

#: Families and formats, and what their linears are multiplied by.
RUNS: dict[tuple[str, str], type] = {
    ("qwen2", "ct int4 uneven"): PackedProduct,
    ("qwen2", "ct mxfp4"): PackedProduct,
    ("phi3", "gptq in order"): PackedProduct,
    ("mixtral", "fp8 blocks"): CodedProduct,
    ("phi3", "ct w8a8"): CodedProduct,
    ("qwen2", "ct w4a8"): UnitsProduct,
    ("qwen2", "ct mxfp4 inputs"): UnitsProduct,
    ("phi3", "ct nvfp4 inputs"): UnitsProduct,
    ("qwen2", "ct w8a8 static uneven"): UnitsProduct,
}
PROMPTS = [random_prompt(num, vocab_size=321, seed=num) for num in (1, 19)]


def check_same_tokens(family: str, case: str, kind: type) -> None:
    """Token for token what PyTorch computes in float32, in chunks, decodes and company."""
    with tempfile.TemporaryDirectory() as folder:
        model_type, settings = FAMILIES[family]
        source = save(random_model(model_type, seed=3, **settings), Path(folder) / "plain")
        stored = Path(folder) / "stored"
        quantise_checkpoint(source, stored, ALL[case], wants_of(source))
        expected, ours = (
            load_model(stored, dtype="float32", attention_backend=backend).model
            for backend in ("torch", "triton")
        )
    assert isinstance(ours, CausalLM)
    linears = [each for each in ours.modules() if isinstance(each, FusedLinear)]
    assert {type(each.product) for each in linears if each.product is not None} == {kind}
    answers, logits = PagedDriver(expected, block_size=8, chunk=13).generate(PROMPTS, 3)
    tokens, own = PagedDriver(ours, block_size=8, chunk=13).generate(PROMPTS, 3)
    assert tokens == answers
    for mine, plain in zip(own, logits, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-3)


CHECKS = {
    f"{family}-{case}": partial(check_same_tokens, family, case, kind)
    for (family, case), kind in RUNS.items()
}

if __name__ == "__main__":
    report(CHECKS)
