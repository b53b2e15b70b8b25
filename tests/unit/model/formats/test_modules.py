"""transformers' modules with quantised checkpoints answer as with the dense ones that they mean."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.checks import check_model
from shared.model.generic.model import TransformersCausalLM
from shared.model.loader import load_model
from tests.fakes.stored.answers import check_answers
from tests.fakes.stored.cases import WITH_INPUTS
from tests.unit.model.checkpoints import edit_json, edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    Stored = Callable[[str, str], tuple[Path, Path]]

IMPL = "transformers"
RUNS = [
    ("nemotron", "ct int4 uneven"),
    ("nemotron", "gptq 3 in order"),
    ("phi3", "ct w8a8"),
    ("hunyuan_v1_dense", "quark mxfp4"),
    ("hunyuan_v1_dense", "ct w8a8 static"),
    ("apertus", "ct w8a8 static"),
    ("nemotron", "ct fp8 tokens"),
    ("nemotron", "fp8 blocks"),
    ("phi3", "ct nvfp4"),
    ("phi3", "quark uint4"),
    ("phi3", "ct mxfp4 inputs"),
    ("mixtral", "awq"),
    ("mixtral", "gptq uneven"),
    ("deepseek_v3", "ct int4 rows"),
    ("gpt_oss", "gpt_oss"),
    ("mixtral", "fp8 blocks"),
    ("mixtral", "ct w8a8 static uneven"),
    ("qwen3_moe", "ct w8a8 static"),
    ("qwen3_moe", "ct fp8 tokens"),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(("family", "case"), RUNS)
def test_answers_equal_those_of_the_dense_model(family: str, case: str, stored: Stored) -> None:
    checkpoint, dense = stored(family, case)
    check_answers(checkpoint, dense, WITH_INPUTS.get(case), model_impl=IMPL)


def test_codes_stay_narrow_where_inputs_are_rounded(stored: Stored) -> None:
    checkpoint, dense = stored("nemotron", "ct w8a8")
    narrow, wide = (load_model(path, model_impl=IMPL) for path in (checkpoint, dense))
    assert isinstance(narrow.model, TransformersCausalLM)
    outer = 2 * 4 * wide.spec.vocab_size * wide.spec.hidden_size
    of_linears = (narrow.num_weight_bytes - outer) / (wide.num_weight_bytes - outer)
    assert 0.25 <= of_linears < 0.3
    assert narrow.fingerprint != wide.fingerprint


def test_codes_of_experts_stay_narrow(stored: Stored) -> None:
    narrow, wide = (load_model(path, model_impl=IMPL) for path in stored("qwen3_moe", "ct w8a8"))
    outer = 2 * 4 * wide.spec.vocab_size * wide.spec.hidden_size
    assert (narrow.num_weight_bytes - outer) / (wide.num_weight_bytes - outer) < 0.3


def test_inputs_of_experts_are_not_rounded_by_guess(stored: Stored, tmp_path: Path) -> None:
    """Two experts with equal weights, whose matrices are told apart by those alone."""
    checkpoint, _ = stored("mixtral", "ct w8a8 static uneven")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)

    def repeat(tensors: dict[str, Tensor]) -> None:
        one, other = (f"model.layers.0.block_sparse_moe.experts.{each}.w2." for each in (0, 1))
        for name in [each for each in tensors if each.startswith(one)]:
            if ".input_" not in name:
                tensors[name.replace(one, other)] = tensors[name].clone()

    edit_tensors(tmp_path / "model.safetensors", repeat)
    message = r"experts\.\d.w2.weight': the inputs .* are rounded, and transformers' Mixtral"
    with pytest.raises(ModelLoadError, match=message):
        load_model(tmp_path, model_impl=IMPL)


def test_weights_with_columns_for_rows_are_refused(stored: Stored) -> None:
    checkpoint, _ = stored("gpt2", "gptq uneven")
    with pytest.raises(ModelLoadError, match="GPT2LMHeadModel has weights with columns for rows"):
        load_model(checkpoint, model_impl=IMPL)


def test_rounded_inputs_exclude_what_does_not_round_them(stored: Stored) -> None:
    checkpoint, _ = stored("nemotron", "ct w8a8")
    with pytest.raises(ConfigError, match="--quantization int8 cannot be added"):
        check_model(checkpoint, quantization="int8")


def test_weights_may_be_narrowed_further(stored: Stored) -> None:
    checkpoint, dense = stored("nemotron", "ct int4 uneven")
    sizes = {
        load_model(path, model_impl=IMPL, quantization="int8").num_weight_bytes
        for path in (checkpoint, dense)
    }
    assert len(sizes) == 1


def drop_scales(tensors: dict[str, Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight_scale"]


def cut_scales(tensors: dict[str, Tensor]) -> None:
    name = "model.layers.1.mlp.up_proj.weight_scale"
    tensors[name] = tensors[name][:-1].clone()


def cut_rows(tensors: dict[str, Tensor]) -> None:
    for part in ("weight", "weight_scale"):
        name = f"model.layers.1.mlp.up_proj.{part}"
        tensors[name] = tensors[name][:-1].clone()


def rename(tensors: dict[str, Tensor]) -> None:
    for part in ("weight", "weight_scale"):
        own = tensors.pop(f"model.layers.1.mlp.up_proj.{part}")
        tensors[f"model.layers.1.mlp.other_proj.{part}"] = own


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_scales, r"up_proj.weight_scale' is missing beside"),
        (cut_scales, r"up_proj.weight_scale' has shape \[159, 1\], .* ask for \[160, 1\]"),
        (cut_rows, r"up_proj.weight' has shape \[159, 96\], the config asks for \[160, 96\]"),
        (rename, r"mlp.up_proj.weight' is missing"),
    ],
)
def test_damaged_files_are_refused_by_name(
    damage: Callable[[dict[str, Tensor]], None], message: str, stored: Stored, tmp_path: Path
) -> None:
    checkpoint, _ = stored("nemotron", "ct w8a8")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    edit_tensors(tmp_path / "model.safetensors", damage)
    with pytest.raises(ModelLoadError, match=message):
        load_model(tmp_path, model_impl=IMPL)


def test_the_config_is_read_as_for_families(stored: Stored, tmp_path: Path) -> None:
    """At start, before a weight is read."""
    checkpoint, _ = stored("nemotron", "awq")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    own = config["quantization_config"]
    edit_json(tmp_path / "config.json", quantization_config={**own, "version": "gemv"})
    with pytest.raises(ModelLoadError, match=r"quantization_config.version must be one of gemm"):
        check_model(tmp_path)
    edit_json(tmp_path / "config.json", quantization_config={"quant_method": "unheard"})
    with pytest.raises(ModelLoadError, match="quant_method 'unheard' is not supported"):
        check_model(tmp_path)
