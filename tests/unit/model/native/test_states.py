"""Native mixers with states: what their bits depend on, beside the parity of the families."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.families.recurrent.qwen_delta import QWEN3_5
from shared.model.families.registry import FAMILIES
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.model.spec.mixers import AttentionSpec, QkNorm
from shared.model.spec.norms import NormKind
from tests.fakes.checkpoints.mtp import DELTA_SIZES
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shared.model.spec.decoder import DecoderSpec

#: By name: the case of a family, and other sizes of it. Heads are wider than what a task takes, by
#: no whole number of vectors.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "conv": ("lfm2-biased-plain", {"layer_types": ["conv", "full_attention", "conv"]}),
    "delta": ("qwen3_5", {"linear_key_head_dim": 20, "linear_value_head_dim": 76}),
    "mamba": (
        "granite4-experts",
        {"mamba_n_heads": 4, "mamba_d_head": 48, "mamba_d_state": 39},
    ),
    "mamba alone": ("mamba2", {}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 30, 65)]
NUM_TOKENS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states")
    for name, (case, sizes) in MODELS.items():
        model_type, settings = CASES[case]
        save(random_model(model_type, std=0.1, **{**settings, **sizes}), path / name)
    return path


def driver(
    folder: Path,
    *,
    backend: str = "native",
    block_size: int = 16,
    chunk: int = 256,
    **settings: Any,
) -> PagedDriver:
    model = load_model(folder, attention_backend=backend, **settings).model
    return PagedDriver(model, block_size=block_size, chunk=chunk, seed=chunk)


def check_equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", SETTINGS)
def test_bits_depend_on_no_batch_no_chunks_and_no_threads(
    name: str, weights: str, folder: Path
) -> None:
    settings = SETTINGS[weights]
    together = driver(folder / name, num_threads=1, **settings)
    assert not isinstance(together.model.spec.layers[-1].mixer, AttentionSpec)
    expected = together.generate(PROMPTS, NUM_TOKENS)[1]
    alone = [together.generate([prompt], NUM_TOKENS)[1][0] for prompt in PROMPTS]
    check_equal(alone, expected)
    for num_threads, block_size, chunk in ((1, 5, 37), (1, 16, 1), (3, 16, 256), (3, 8, 7)):
        other = driver(
            folder / name, block_size=block_size, chunk=chunk, num_threads=num_threads, **settings
        )
        # Token by token, one prompt less: each is a step.
        num = len(PROMPTS) - (chunk == 1)
        check_equal(other.generate(PROMPTS[:num], NUM_TOKENS)[1], expected[:num])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", SETTINGS)
def test_tokens_that_are_not_wanted_change_the_states(
    name: str, weights: str, folder: Path
) -> None:
    own = driver(folder / name, chunk=13, **SETTINGS[weights])
    expected = own.generate(PROMPTS, NUM_TOKENS)[1]
    check_equal(own.generate(PROMPTS, NUM_TOKENS, wants_last=True)[1], expected)
    every = own.score(PROMPTS[-1])
    for wanted in ([], [64], [0, 33, 64]):
        assert torch.equal(own.score(PROMPTS[-1], wanted=wanted), every[wanted])


@pytest.mark.parametrize("qk_norm", QkNorm)
def test_gates_of_heads_go_with_every_norm_and_with_clipping(
    qk_norm: QkNorm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No family has them so far: one of the user's own may."""

    def describe(raw: Mapping[str, Any]) -> DecoderSpec:
        spec = QWEN3_5.describe(raw)
        layers = [
            replace(each, mixer=replace(each.mixer, qk_norm=qk_norm, clip=0.4))
            if isinstance(each.mixer, AttentionSpec)
            else each
            for each in spec.layers
        ]
        # Only of this kind there is a norm of each head.
        return replace(spec, layers=tuple(layers), norm=replace(spec.norm, kind=NormKind.LAYER))

    monkeypatch.setitem(FAMILIES, QWEN3_5.architecture, replace(QWEN3_5, describe=describe))
    extra = DELTA_SIZES | {"layer_types": ["linear_attention", "full_attention"]}
    spec = CheckpointSpec(
        architecture="qwen3_5_text", num_layers=2, vocab_size=321, weight_std=0.2, extra=extra
    )
    write_random_checkpoint(tmp_path, spec)
    ours, theirs = (
        driver(tmp_path, backend=backend).score(PROMPTS[-1]) for backend in ("native", "torch")
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("name", MODELS)
def test_wide_heads_are_computed_like_pytorch_s(name: str, folder: Path) -> None:
    ours, theirs = (
        driver(folder / name, backend=backend).score(PROMPTS[-1]) for backend in ("native", "torch")
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_narrow_weights_change_the_logits_no_more_than_pytorch_s(name: str, folder: Path) -> None:
    exact = driver(folder / name, backend="torch").score(PROMPTS[-1])

    def error(weights: str, backend: str) -> float:
        near = driver(folder / name, backend=backend, **SETTINGS[weights]).score(PROMPTS[-1])
        return float((near - exact).square().mean().sqrt())

    assert error("bfloat16", "native") < error("bfloat16", "torch") < 0.1 * exact.std()
    assert error("int8", "native") < 1.2 * error("int8", "torch") < 0.2 * exact.std()


@pytest.mark.parametrize("name", MODELS)
def test_captured_rows_are_those_of_pytorch(name: str, folder: Path) -> None:
    captured = []
    for backend in ("native", "torch"):
        own = driver(folder / name, backend=backend)
        own.model.capture_layers(tuple(range(own.model.spec.num_layers + 1)))
        own.score(PROMPTS[-1])
        captured.append(own.model.captured())
    ours, theirs = captured
    assert ours.keys() == theirs.keys()
    for layer, rows in theirs.items():
        torch.testing.assert_close(ours[layer], rows, rtol=1e-3, atol=1e-3)
