"""What the native decoder promises beyond the answers, which test_llama.py compares."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from kernels.kv_write.cache import QuantizedCache
from kernels.native.kinds import Activation as NativeActivation
from kernels.native.kinds import HeadNorm
from kernels.native.library import load_library
from shared.errors import ConfigError
from shared.model.checkpoint.config import load_spec
from shared.model.checks import why_not_native
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from shared.model.native.model import NativeCausalLM
from shared.model.spec.decoder import DecoderSpec, LayerSpec
from shared.model.spec.feed_forwards import Activation, FeedForwardSpec
from shared.model.spec.mixers import (
    AttentionSpec,
    DeltaSpec,
    LatentAttentionSpec,
    MambaSpec,
    QkNorm,
    ShortConvSpec,
)
from shared.model.spec.norms import NormPlace
from shared.text.tokenizer import Tokenizer
from tests.fakes.engine.kv_groups import all_tokens_kept
from tests.fakes.model.paged_driver import PagedDriver, make_metadata, poisoned_cache
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from enum import IntEnum, StrEnum

PYDOC = Path(__file__).parents[4] / "models" / "pydoc" / "checkpoint"
QUESTION = """What does os.path.join do? os.path.join joins two or more pathname components,
inserting '/' as needed. If any component is an absolute path, all previous path components will
be discarded."""
#: Most root-mean-square error of logits, as a share of their standard deviation, and most change of
#: the cross-entropy. bfloat16 gives 0.0109 on a CPU without AVX-512's instruction for it.
BOUNDS = {
    ("none", "float32"): (1e-6, 0.02),
    ("none", "bfloat16"): (0.012, 0.02),
    ("int8", "bfloat16"): (0.04, 0.02),
    ("int4", "bfloat16"): (0.2, 0.06),
}
BLOCK_SIZE = 16
PROMPT_LENGTHS = (1, 7, 30, 64, 65, 150)


def generate(
    checkpoint: Path,
    *,
    block_size: int = 16,
    chunk: int = 256,
    alone: bool = False,
    kv_dtype: torch.dtype | None = None,
    **options: str,
) -> list[torch.Tensor]:
    """The logits behind every generated token of every prompt."""
    loaded = load_model(checkpoint, attention_backend="native", **options)
    driver = PagedDriver(
        loaded.model,
        block_size=block_size,
        chunk=chunk,
        seed=chunk,
        kv_dtype=kv_dtype,
    )
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in PROMPT_LENGTHS]
    if alone:
        return [driver.generate([prompt], 6)[1][0] for prompt in prompts]
    return driver.generate(prompts, 6)[1]


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"), ("bfloat16", "int4")],
)
def test_results_have_the_same_bits_in_any_batch_and_any_chunks(
    dtype: str, quantization: str, window: int | None, tmp_path: Path
) -> None:
    settings = {"num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": window}
    checkpoint = save(random_model("mistral", seed=2, **settings), tmp_path)
    options = {"dtype": dtype, "quantization": quantization}
    together = generate(checkpoint, **options)
    for variant in (
        generate(checkpoint, alone=True, **options),
        generate(checkpoint, chunk=1, **options),
        generate(checkpoint, chunk=37, block_size=5, **options),
    ):
        for ours, theirs in zip(together, variant, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 21])
def test_with_kv_in_8_bits_too(
    kv_dtype: torch.dtype, dtype: str, window: int | None, tmp_path: Path
) -> None:
    settings = {"num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": window}
    if (kv_dtype, dtype) == (torch.int8, "bfloat16"):
        settings["head_dim"] = 64  # a line of the matrix unit: sums of integers
    checkpoint = save(random_model("mistral", seed=2, **settings), tmp_path)
    together = generate(checkpoint, dtype=dtype, kv_dtype=kv_dtype)
    for variant in (
        generate(checkpoint, dtype=dtype, kv_dtype=kv_dtype, alone=True),
        generate(checkpoint, dtype=dtype, kv_dtype=kv_dtype, chunk=37, block_size=5),
    ):
        for ours, theirs in zip(together, variant, strict=True):
            assert torch.equal(ours, theirs)
    for ours, exact in zip(together, generate(checkpoint, dtype=dtype), strict=True):
        assert not torch.equal(ours, exact)


@pytest.mark.parametrize("kv_dtype", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_in_front_of_a_window_has_influence(
    kv_dtype: torch.dtype | None, dtype: str, tmp_path: Path
) -> None:
    checkpoint = save(random_model("mistral", seed=2, sliding_window=21), tmp_path)
    for chunk, block_size in ((256, 16), (37, 5)):
        own = {"dtype": dtype, "kv_dtype": kv_dtype, "chunk": chunk, "block_size": block_size}
        given_back = generate(checkpoint, **own)
        with all_tokens_kept():
            kept = generate(checkpoint, **own)
        for ours, theirs in zip(kept, given_back, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_8_bits_are_those_of_the_definition(kv_dtype: torch.dtype, tmp_path: Path) -> None:
    """What PyTorch stores for the same prompt, but for numbers that fall beside a rounding."""
    checkpoint = save(random_model("qwen3", seed=1, num_hidden_layers=1), tmp_path)
    stored = []
    for backend in ("native", "torch"):
        model = load_model(checkpoint, dtype="float32", attention_backend=backend).model
        spec = model.spec
        cache = poisoned_cache(
            3, 1, spec.attention.num_kv_heads, BLOCK_SIZE, spec.attention.head_dim, kv_dtype
        )
        metadata = make_metadata((30,), (30,), ((2, 1),), BLOCK_SIZE)
        model.forward(torch.arange(30), torch.arange(30), (cache,), metadata)
        assert isinstance(cache, QuantizedCache)
        assert int(cache.scales.isnan().sum()) == 2 * spec.attention.num_kv_heads * (BLOCK_SIZE + 2)
        stored.append((cache.values.view(torch.uint8).int(), cache.scales))
    (ours, our_scales), (defined, scales) = stored
    torch.testing.assert_close(our_scales, scales, rtol=1e-5, atol=0, equal_nan=True)
    assert (ours != defined).float().mean() < 0.01
    # One step: neighbours in float8's order, too, but for zeros of both signs.
    steps = (ours - defined).abs()
    assert ((steps <= 1) | (steps == 255) | (steps == 128)).all()


@pytest.mark.parametrize("num_threads", [2, 5])
def test_results_have_the_same_bits_on_any_number_of_threads(
    num_threads: int, tmp_path: Path
) -> None:
    checkpoint = save(random_model("qwen3", seed=1), tmp_path)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in PROMPT_LENGTHS]
    answers = []
    for threads in (1, num_threads):
        loaded = load_model(checkpoint, attention_backend="native", num_threads=threads)
        driver = PagedDriver(loaded.model, block_size=16, chunk=64)
        answers.append(driver.generate(prompts, 12)[1])
    for one, many in zip(*answers, strict=True):
        assert torch.equal(one, many)


def test_narrow_weights_hardly_change_what_a_trained_model_says() -> None:
    prompt = Tokenizer.load(PYDOC).encode(QUESTION, add_special_tokens=False)
    scores = {}
    for quantization, dtype in BOUNDS:
        loaded = load_model(PYDOC, dtype=dtype, quantization=quantization)
        driver = PagedDriver(loaded.model, block_size=16, chunk=64)
        scores[quantization, dtype] = driver.score(prompt)
    exact = scores["none", "float32"]
    surprise = cross_entropy(exact[:-1], torch.tensor(prompt[1:]))
    for key, logits in scores.items():
        error = (logits - exact).square().mean().sqrt() / exact.std()
        more = cross_entropy(logits[:-1], torch.tensor(prompt[1:])) - surprise
        most_error, most_change = BOUNDS[key]
        assert error < most_error, key
        assert abs(float(more)) < most_change, key


@pytest.mark.parametrize(
    ("kv_dtype", "limit", "most_change"),
    [(torch.int8, 0.01, 0.02), (torch.float8_e4m3fn, 0.04, 0.05)],
)
def test_kv_in_8_bits_hardly_changes_what_a_trained_model_says(
    kv_dtype: torch.dtype, limit: float, most_change: float
) -> None:
    prompt = Tokenizer.load(PYDOC).encode(QUESTION, add_special_tokens=False)
    model = load_model(PYDOC, dtype="float32").model
    exact, logits = (
        PagedDriver(model, block_size=16, chunk=64, kv_dtype=kind).score(prompt)
        for kind in (None, kv_dtype)
    )
    error = (logits - exact).square().mean().sqrt() / exact.std()
    assert error < limit
    targets = torch.tensor(prompt[1:])
    more = cross_entropy(logits[:-1], targets) - cross_entropy(exact[:-1], targets)
    assert abs(float(more)) < most_change


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_8_bits_take_half_the_memory_of_bfloat16(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 480, "intermediate_size": 1024, "max_position_embeddings": 64}
    checkpoint = save(random_model("llama", **sizes), tmp_path)
    loaded = [
        load_model(checkpoint, dtype="bfloat16", quantization=quantization)
        for quantization in ("none", name)
    ]
    assert all(isinstance(each.model, NativeCausalLM) for each in loaded)
    bfloat16, own = (each.num_weight_bytes for each in loaded)
    # The head of a model in 8-bit floats stays as it was.
    assert 0.5 * bfloat16 < own < (0.55 if name == "int8" else 0.65) * bfloat16


def test_the_fingerprint_says_how_the_weights_are_kept(tmp_path: Path) -> None:
    checkpoint = save(random_model("llama"), tmp_path)
    names = {
        load_model(checkpoint, dtype="bfloat16", quantization=quantization).fingerprint
        for quantization in ("none", "int8")
    }
    assert len(names) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float16", "attention_backend": "native"}, "not float16"),
        ({"dtype": "float32", "quantization": "int8"}, "go with --dtype bfloat16"),
        ({"quantization": "int3"}, "int3"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    options: dict[str, str], reason: str, tmp_path: Path
) -> None:
    checkpoint = save(random_model("llama"), tmp_path)
    with pytest.raises(ConfigError, match=reason):
        load_model(checkpoint, **options)


#: What the native decoder computes of a description; `test_llama.py` and `test_families.py`
#: compare each of them, `test_layers.py` the sinks and layers that read another one's KV.
COMPUTED = {
    LayerSpec: {
        "mixer",
        "feed_forward",
        "residual_multiplier",
        "feed_forward_multiplier",
        "has_scale",
    },
    AttentionSpec: {
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "rope",
        "window",
        "is_chunked",
        "qkv_bias",
        "output_bias",
        "qk_norm",
        "has_qk_norm_weights",
        "softcap",
        "temperature",
        "has_sinks",
        "clip",
        "has_gate",
        "kv_source",
        "values_are_keys",
        "has_value_norm",
        "has_head_gates",
    },
    ShortConvSpec: {"width", "kernel_size", "bias"},
    DeltaSpec: {"num_key_heads", "num_heads", "key_dim", "value_dim", "kernel_size"},
    MambaSpec: {
        "num_heads",
        "head_dim",
        "num_groups",
        "state_dim",
        "kernel_size",
        "conv_bias",
        "bias",
        "min_step",
        "max_step",
        "norm",
        "factors",
    },
    LatentAttentionSpec: {
        "num_heads",
        "q_rank",
        "plain_dim",
        "rope_dim",
        "value_dim",
        "rope",
        "scale",
        "norm_eps",
        "bias",
    },
    FeedForwardSpec: {"inner_size", "bias", "activation", "is_gated", "gate_multiplier"},
    DecoderSpec: {
        "architecture",
        "vocab_size",
        "hidden_size",
        "layers",
        "norm",
        "is_tied",
        "embedding_multiplier",
        "multiplies_given",
        "layer_inputs",
        "learned_positions",
        # Without one logits are never asked for; see `RequestValidator`.
        "has_head",
        "has_head_bias",
        "logit_multiplier",
        "logit_softcap",
        "keeps_all_kv",
        "rounds_inputs",
        # A rank's part; see `unit/model/sharding`.
        "own_rows",
        "own_layers",
        "whole_groups",
        "max_position_embeddings",
        "num_positions",
        "dtype",
        "eos_token_ids",
        "raw",
    },
}


#: What it does not compute, with a value that must be refused.
REFUSED: dict[type, dict[str, Any]] = {
    LayerSpec: {"norms": NormPlace.SUM},
    AttentionSpec: {"score_scale": 0.0},
    LatentAttentionSpec: {"kv_rank": 21},
    ShortConvSpec: {},
    DeltaSpec: {},
    MambaSpec: {},
    FeedForwardSpec: {},
    DecoderSpec: {
        "has_final_norm": False,
        "embedding_size": 48,
    },
}


@pytest.mark.parametrize("record", COMPUTED)
def test_no_field_of_a_description_is_passed_over(record: type) -> None:
    """A new field is computed, or refused by `why_not_native`, before it is added here."""
    assert {field.name for field in fields(record)} == COMPUTED[record] | REFUSED[record].keys()


@pytest.mark.parametrize(("kinds", "known"), [(Activation, NativeActivation), (QkNorm, HeadNorm)])
def test_every_kind_has_a_number(kinds: type[StrEnum], known: type[IntEnum]) -> None:
    assert [kind.name for kind in kinds] == [kind.name for kind in known]


@pytest.mark.parametrize(
    ("record", "field"), [(record, field) for record, own in REFUSED.items() for field in own]
)
def test_what_the_native_decoder_does_not_compute_is_refused(
    record: type, field: str, tmp_path: Path
) -> None:
    spec = load_spec(save(random_model("llama"), tmp_path))
    changes = {field: REFUSED[record][field]}
    layer = spec.layers[0]
    if record is LayerSpec:
        layer = replace(layer, **changes)
    elif record is AttentionSpec:
        layer = replace(layer, mixer=replace(layer.mixer, **changes))
    elif record is LatentAttentionSpec:
        sizes = {"num_heads": 6, "q_rank": None, "plain_dim": 18, "rope_dim": 6, "value_dim": 14}
        mixer = LatentAttentionSpec(**sizes, rope=layer.mixer.rope, scale=1.0, **changes)
        layer = replace(layer, mixer=mixer)
    elif record is FeedForwardSpec:
        layer = replace(layer, feed_forward=replace(layer.feed_forward, **changes))
    else:
        spec = replace(spec, **changes)
    spec = replace(spec, layers=(layer,) * spec.num_layers)
    reason = why_not_native(spec, "float32", "none", "cpu")
    assert reason is not None
    assert "of LlamaForCausalLM" in reason


def test_without_a_compiler_torch_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save(random_model("llama"), tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    load_library.cache_clear()
    try:
        assert isinstance(load_model(checkpoint).model, CausalLM)
        with pytest.raises(ConfigError, match="install g"):
            load_model(checkpoint, attention_backend="native")
    finally:
        load_library.cache_clear()
