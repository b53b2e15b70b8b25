"""Scales of keys and values: whose they are, by every writer's names, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from structlog.testing import capture_logs

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.kv_scheme import KVScheme, find_kv_scheme
from shared.model.loader import load_model
from tests.fakes.checkpoints.kv_scales import kv_config, own_name, write_kv_scales
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.cases import ALL
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.kv_scales import KVScales

HEADS = 2
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FP8 = {"quant_method": "fp8"}
FLOAT = {"dynamic": False, "num_bits": 8, "type": "float"}
QUARK = ALL["quark mxfp4"].config
OUTPUTS = {"output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}}
PROJECTIONS = ["*k_proj", "*v_proj"]


def ct(**changes: Any) -> dict[str, Any]:
    """A config of compressed-tensors with a changed scheme."""
    own = kv_config("fp8", by_head=False)
    return {**own, "kv_cache_scheme": {**own["kv_cache_scheme"], **changes}}


def quark(**changes: Any) -> dict[str, Any]:
    """A config of Quark with changed outputs of projections."""
    outputs = {"output_tensors": {**OUTPUTS["output_tensors"], **changes}}
    return {**QUARK, "kv_cache_quant_config": dict.fromkeys(PROJECTIONS, outputs)}


@pytest.mark.parametrize(
    ("own", "dtype", "by_head"),
    [
        (ct(), "float8_e4m3fn", False),
        (ct(type="int"), "int8", False),
        (ct(strategy="attn_head"), "float8_e4m3fn", True),
        (ct(dynamic=True), None, False),
        ({**ct(), "kv_cache_scheme": None}, None, False),
        ({**MODELOPT, "kv_cache_quant_algo": "FP8"}, "float8_e4m3fn", False),
        ({**MODELOPT, "kv_cache_scheme": FLOAT}, "float8_e4m3fn", False),
        ({**MODELOPT, "kv_cache_quant_algo": None}, None, False),
        ({**FP8, "kv_cache_scheme": "static"}, "float8_e4m3fn", False),
        ({**FP8, "kv_cache_scheme": FLOAT}, "float8_e4m3fn", False),
        (FP8, None, False),
        (quark(), "float8_e4m3fn", False),
        (quark(dtype="int8"), "int8", False),
        (quark(is_dynamic=True), None, False),
        (
            {
                **QUARK,
                "layer_quant_config": dict.fromkeys(PROJECTIONS, OUTPUTS),
                "export": {"kv_cache_group": PROJECTIONS},
            },
            "float8_e4m3fn",
            False,
        ),
        (QUARK, None, False),
        (ALL["awq"].config, None, False),
    ],
)
def test_a_config_says_what_keys_and_values_are(
    own: dict[str, Any], dtype: str | None, by_head: bool
) -> None:
    scheme = find_kv_scheme({"quantization_config": own})
    if dtype is None:
        assert scheme is None
    else:
        assert scheme == KVScheme(
            where=scheme.where if scheme else "", dtype=dtype, by_head=by_head
        )


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        (ct(num_bits=4), "kv_cache_scheme.num_bits is 4, not 8"),
        (ct(strategy="channel"), "strategy is 'channel', not 'tensor' or 'attn_head'"),
        (ct(symmetric=False), "kv_cache_scheme.symmetric is false"),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo is nvfp4, not fp8"),
        (quark(dtype="fp8_e5m2"), "has outputs of fp8_e5m2, not of fp8_e4m3 or int8"),
        (quark(qscheme="per_channel"), "with scales per_channel, not per_tensor"),
        (quark(symmetric=False), "outputs that are not symmetric"),
    ],
)
def test_what_cannot_be_kept_so_is_named(own: dict[str, Any], problem: str) -> None:
    scheme = find_kv_scheme({"quantization_config": own})
    assert scheme is not None
    assert problem in scheme.problem


def test_an_unknown_key_of_a_scheme_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"kv_cache_scheme\.window is unknown"):
        find_kv_scheme({"quantization_config": ct(window=4)})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_model("qwen2", seed=3), tmp_path_factory.mktemp("plain"))


def scales_of(checkpoint: Path, **settings: str) -> KVScales:
    loaded = load_model(checkpoint, **{"attention_backend": "torch", **settings})
    assert loaded.kv_scales is not None
    return loaded.kv_scales.check(loaded.spec)


NAMES: Mapping[str, tuple[Callable[[int, str], str], dict[str, Any]]] = {
    "modelopt": (
        lambda layer, letter: f"model.layers.{layer}.self_attn.{letter}_proj.{letter}_scale",
        {**MODELOPT, "kv_cache_quant_algo": "FP8"},
    ),
    "vllm": (
        lambda layer, letter: f"model.layers.{layer}.self_attn.attn.{letter}_scale",
        {**FP8, "kv_cache_scheme": "static"},
    ),
    "quark": (
        lambda layer, letter: f"model.layers.{layer}.self_attn.{letter}_proj.output_scale",
        quark(),
    ),
}


@pytest.mark.parametrize("writer", NAMES)
def test_every_writer_has_names_of_its_own(writer: str, plain: Path, tmp_path: Path) -> None:
    name, config = NAMES[writer]
    other = write_kv_scales(plain, tmp_path / "other", "fp8", name=name, config=config)
    expected = scales_of(write_kv_scales(plain, tmp_path / "own", "fp8"))
    found = scales_of(other)
    assert found.digest == expected.digest
    assert scales_of(other, model_impl="transformers").digest == expected.digest
    assert {tuple(rows.shape) for rows in found.by_layer.values()} == {(2, HEADS)}
    assert len(found.by_layer) == 2


def test_one_scale_may_be_that_of_both(plain: Path, tmp_path: Path) -> None:
    write_kv_scales(plain, tmp_path, "fp8", config={**FP8, "kv_cache_scheme": "static"})

    def join(tensors: dict[str, Tensor]) -> None:
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.kv_scale"] = torch.tensor(0.25 + layer)
            for letter in "kv":
                del tensors[own_name(layer, letter)]

    edit_tensors(tmp_path / "model.safetensors", join)
    for layer, rows in scales_of(tmp_path).by_layer.items():
        assert rows.eq(0.25 + layer).all()


def test_scales_by_head_are_in_the_order_of_heads(plain: Path, tmp_path: Path) -> None:
    write_kv_scales(plain, tmp_path, "int8", by_head=True)

    def number(tensors: dict[str, Tensor]) -> None:
        tensors[own_name(1, "v")] = torch.tensor([[[0.5]], [[2.0]]])

    edit_tensors(tmp_path / "model.safetensors", number)
    found = scales_of(tmp_path)
    assert found.dtype == "int8"
    assert found.by_layer[1][1].tolist() == [0.5, 2.0]


def change(value: Tensor, name: str = "") -> Callable[[dict[str, Tensor]], None]:
    """Replace a scale, or add one."""
    return lambda tensors: tensors.update({name or own_name(1, "v"): value})


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda tensors: tensors.pop(own_name(1, "k")), r"layers.1.self_attn.k_scale' is missing"),
        (lambda tensors: tensors.pop(own_name(0, "v")), r"layers.0.self_attn.v_scale' is missing"),
        (change(torch.zeros(1)), r"layers.1.self_attn.v_scale' must be positive and finite"),
        (change(torch.tensor([-1.0])), "must be positive and finite"),
        (change(torch.tensor([torch.inf])), "must be positive and finite"),
        (change(torch.tensor([torch.nan])), "must be positive and finite"),
        (change(torch.ones(3)), r"has shape \[3\], .*kv_cache_scheme asks for one number"),
        (change(torch.ones(HEADS)), r"has shape \[2\], .*kv_cache_scheme asks for one number"),
        (
            change(torch.ones(1), "model.layers.1.self_attn.v_proj.v_scale"),
            "differs from 'model.layers.1.self_attn",
        ),
    ],
)
def test_what_is_wrong_is_named(
    edit: Callable[[dict[str, Tensor]], None], says: str, plain: Path, tmp_path: Path
) -> None:
    write_kv_scales(plain, tmp_path, "fp8")
    edit_tensors(tmp_path / "model.safetensors", edit)
    with pytest.raises(ModelLoadError, match=f"model.safetensors: tensor 'model.*{says}"):
        scales_of(tmp_path)


def test_other_scales_are_counted_and_not_read(plain: Path, tmp_path: Path) -> None:
    """Of queries and weights; and all, if the config does not say what they are for."""
    write_kv_scales(plain, tmp_path, "fp8")
    others = ("q_scale", "prob_scale", "q_proj.output_scale")
    more = {f"model.layers.0.self_attn.{name}": torch.ones(1) for name in others}
    edit_tensors(tmp_path / "model.safetensors", lambda tensors: tensors.update(more))
    raw = json.loads((tmp_path / "config.json").read_text())
    for config, num in ((raw["quantization_config"], 3), (FP8, 7)):
        text = json.dumps({**raw, "quantization_config": config})
        (tmp_path / "config.json").write_text(text)
        with capture_logs() as logs:
            loaded = load_model(tmp_path, attention_backend="torch")
        assert [each["num"] for each in logs if each["event"] == "kv_scales_not_read"] == [num]
        assert (loaded.kv_scales is None) == (num == 7)
