"""Latent attention: weights, formats and refusals, beside the parity of the families."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError, ModelLoadError
from shared.model.attention.registry import get_backend
from shared.model.decoder.causal_lm import CausalLM
from shared.model.drafts.eagle import load_eagle
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.loader import load_model
from shared.model.native.model import NativeCausalLM
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.latent import LATENT
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_prompt
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from pathlib import Path

FURTHER = f"model.layers.{LATENT.num_layers}.eh_proj.weight"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latent")
    write_random_checkpoint(path, LATENT)
    return path


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without experts: of those, rounding chooses others."""
    path = tmp_path_factory.mktemp("dense")
    extra = {**LATENT.extra, "first_k_dense_replace": LATENT.num_layers}
    write_random_checkpoint(path, replace(LATENT, extra=extra))
    return path


def load(folder: Path, backend: str = "torch", **settings: str) -> CausalLM | NativeCausalLM:
    model = load_model(folder, attention_backend=backend, num_threads=2, **settings).model
    assert isinstance(model, CausalLM | NativeCausalLM)
    return model


def driver(
    model: CausalLM | NativeCausalLM, chunk: int = 13, kv_dtype: torch.dtype | None = None
) -> PagedDriver:
    return PagedDriver(model, block_size=8, chunk=chunk, kv_dtype=kv_dtype)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_a_prompt_is_computed_alike_in_steps_of_any_size(chunk: int, folder: Path) -> None:
    """One by one it is absorbed, at once expanded: two ways to multiply, the same function."""
    prompt = random_prompt(50, vocab_size=321, seed=1)
    model = load(folder)
    _, (logits,) = driver(model, chunk).generate([prompt], 1)
    torch.testing.assert_close(logits[0], driver(model).score(prompt)[-1], rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"dtype": "bfloat16"}, 0.999),
        ({"dtype": "bfloat16", "backend": "native"}, 0.999),
        ({"dtype": "bfloat16", "backend": "native", "quantization": "int8"}, 0.99),
        ({"dtype": "bfloat16", "backend": "native", "quantization": "int4"}, 0.8),
        ({"quantization": "int8"}, 0.995),
        ({"quantization": "fp8"}, 0.97),
        ({"quantization": "int4"}, 0.8),
    ],
)
def test_narrow_weights_are_near(settings: dict[str, str], least: float, dense: Path) -> None:
    prompt = random_prompt(40, vocab_size=321, seed=2)
    exact, model = load(dense), load(dense, **settings)
    near = driver(model).score(prompt)
    similarity = torch.cosine_similarity(driver(exact).score(prompt), near, dim=-1)
    assert similarity.mean() > least
    if "quantization" in settings and "backend" not in settings:
        assert model.num_weight_bytes < exact.num_weight_bytes


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_rows_in_8_bits_are_near(kv_dtype: torch.dtype, folder: Path) -> None:
    prompt = random_prompt(40, vocab_size=321, seed=2)
    model, native = load(folder), load(folder, "native")
    exact, near = (driver(model, kv_dtype=each).score(prompt) for each in (None, kv_dtype))
    assert not torch.equal(exact, near)
    assert torch.cosine_similarity(exact, near, dim=-1).mean() > 0.97
    other = driver(native, kv_dtype=kv_dtype).score(prompt)
    assert torch.cosine_similarity(other, near, dim=-1).mean() > 0.999


@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
@pytest.mark.parametrize(
    "settings", [{}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "quantization": "int8"}]
)
def test_native_bits_depend_on_no_batch_and_no_chunks(
    settings: dict[str, str], kv_dtype: torch.dtype | None, folder: Path
) -> None:
    model = load(folder, "native", **settings)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 30, 65)]
    expected = driver(model, 256, kv_dtype).generate(prompts, 6)[1]
    alone = [driver(model, 7, kv_dtype).generate([prompt], 6)[1][0] for prompt in prompts]
    one_by_one = driver(model, 1, kv_dtype).generate(prompts, 6)[1]
    for one, other, third in zip(expected, alone, one_by_one, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_more_heads_than_a_task_has_rows(tmp_path: Path) -> None:
    """130 share a row."""
    write_random_checkpoint(tmp_path, replace(LATENT, num_heads=130, num_kv_heads=130))
    prompt = random_prompt(40, vocab_size=321, seed=2)
    ours, theirs = (driver(load(tmp_path, each)).score(prompt) for each in ("native", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


def with_further_layer(folder: Path, path: Path, **config: int) -> Path:
    shutil.copytree(folder, path, dirs_exist_ok=True)
    tensors = load_file(path / "model.safetensors")
    save_file(
        {**tensors, FURTHER: torch.ones(96, 192)},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    edit_json(path / "config.json", **config)
    return path


def test_layers_that_predict_more_tokens_are_not_read(folder: Path, tmp_path: Path) -> None:
    path = with_further_layer(folder, tmp_path, num_nextn_predict_layers=1)
    prompt = random_prompt(9, vocab_size=321, seed=1)
    answers = [driver(load(each)).generate([prompt], 8)[0] for each in (folder, path)]
    assert answers[0] == answers[1]
    # It has names for them that it fits to published models only.
    load_model(path, model_impl="transformers")


@pytest.mark.parametrize(
    "config",
    [{}, {"num_nextn_predict_layers": 0}, {"num_nextn_predict_layers": 1, "num_hidden_layers": 2}],
)
def test_layers_that_the_config_does_not_name_are_refused(
    config: dict[str, int], folder: Path, tmp_path: Path
) -> None:
    path = with_further_layer(folder, tmp_path, **config)
    with pytest.raises(ModelLoadError, match=r"eh_proj.weight' is not part of"):
        load(path)


def test_the_native_kernels_refuse_odd_rows(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, replace(LATENT, extra={**LATENT.extra, "kv_lora_rank": 21}))
    assert isinstance(load_model(tmp_path).model, CausalLM)
    int8 = {"quantization": "int8", "dtype": "bfloat16"}
    for settings in ({"attention_backend": "native"}, int8):
        with pytest.raises(ConfigError, match="do not know latent rows of an odd size"):
            load_model(tmp_path, **settings)


def test_a_head_with_latent_attention_is_refused(folder: Path, tmp_path: Path) -> None:
    write_random_head(tmp_path, folder, HeadSpec(method="eagle"))
    own = {"model_type": "deepseek_v3", "first_k_dense_replace": 9}
    edit_json(tmp_path / "config.json", **own)
    assert json.loads((tmp_path / "config.json").read_text())["kv_lora_rank"] == 20
    with pytest.raises(ModelLoadError, match="has latent attention, which no head of ours has"):
        load_eagle(tmp_path, load(folder), get_backend("torch"))
