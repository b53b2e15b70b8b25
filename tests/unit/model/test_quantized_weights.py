"""Weights of 8 and 4 bits in a model that PyTorch computes; test_triton_model.py has Triton's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from kernels.weight_only_matmul.packing import pack_int4
from kernels.weight_only_matmul.weight import unpack
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from shared.text.tokenizer import Tokenizer
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

PYDOC = Path(__file__).parents[3] / "models" / "pydoc" / "checkpoint"
TEXT = """What does os.path.join do? os.path.join joins two or more pathname components,
inserting '/' as needed. If any component is an absolute path, all previous path components will
be discarded."""
#: Most root-mean-square error of logits, as a share of their standard deviation, and most
#: cross-entropy that is added to a trained model's.
BOUNDS = {"int8": (0.04, 0.02), "fp8": (0.12, 0.05), "int4": (0.3, 0.2)}


def load(checkpoint: Path, quantization: str, dtype: str = "float32") -> CausalLM:
    model = load_model(
        checkpoint, dtype=dtype, attention_backend="torch", quantization=quantization
    ).model
    assert isinstance(model, CausalLM)
    return model


@pytest.mark.parametrize("quantization", BOUNDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_hardly_change_what_a_trained_model_says(quantization: str, dtype: str) -> None:
    prompt = Tokenizer.load(PYDOC).encode(TEXT, add_special_tokens=False)
    exact, logits = (
        PagedDriver(load(PYDOC, name, kind), block_size=16, chunk=64).score(prompt).float()
        for name, kind in (("none", "float32"), (quantization, dtype))
    )
    largest_error, most_added = BOUNDS[quantization]
    error = (logits - exact).square().mean().sqrt() / exact.std()
    assert error < largest_error
    targets = torch.tensor(prompt[1:])
    added = cross_entropy(logits[:-1], targets) - cross_entropy(exact[:-1], targets)
    assert abs(float(added)) < most_added


@pytest.mark.parametrize(("quantization", "share"), [("int8", 0.5), ("fp8", 0.5), ("int4", 0.257)])
def test_they_take_less_memory(quantization: str, share: float, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    checkpoint = save(random_model("llama", **sizes, **heads), tmp_path)
    whole, narrow = (load(checkpoint, name, "bfloat16") for name in ("none", quantization))
    outer = whole.embedding.nbytes + (
        0 if whole.lm_head is whole.embedding else whole.lm_head.nbytes
    )
    of_projections = (narrow.num_weight_bytes - outer) / (whole.num_weight_bytes - outer)
    assert share <= of_projections < share + 0.02


@pytest.mark.parametrize("quantization", BOUNDS)
def test_a_token_is_computed_alike_in_steps_of_any_size(quantization: str, tmp_path: Path) -> None:
    """70 tokens at once, or one by one: other ways to multiply, the same function."""
    checkpoint = save(random_model("qwen2", seed=4), tmp_path)
    model = load(checkpoint, quantization)
    prompt = random_prompt(70, vocab_size=321, seed=1)
    (once,), (one_by_one,) = (
        PagedDriver(model, block_size=16, chunk=chunk).generate([prompt], 3)[1] for chunk in (70, 1)
    )
    # A number that falls to the other side of a rounding is a step of 8 bits away.
    assert (once - one_by_one).abs().max() < 0.05 * once.std()


def test_biases_are_added(tmp_path: Path) -> None:
    checkpoint = save(random_model("qwen2", seed=4), tmp_path)
    projection = load(checkpoint, "int4").decoder_layers[0].attention.qkv
    whole = load(checkpoint, "none").decoder_layers[0].attention.qkv
    x = torch.randn(3, whole.weight.shape[1], generator=torch.Generator().manual_seed(0))
    assert whole.bias is not None
    expected = x @ unpack(pack_int4(whole.weight)).T + whole.bias
    torch.testing.assert_close(torch.cat(projection(x), dim=-1), expected)


def test_the_fingerprint_tells_them_apart(tmp_path: Path) -> None:
    checkpoint = save(random_model("llama"), tmp_path)
    names = {
        load_model(checkpoint, attention_backend="torch", quantization=name).fingerprint
        for name in ("none", *BOUNDS)
    }
    assert len(names) == 1 + len(BOUNDS)
