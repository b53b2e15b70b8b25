"""A quantization_config is read in full, or refused with the key that is not understood."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import ModelLoadError
from shared.gguf.architectures import ARCHITECTURES
from shared.model.checkpoint.files.tensor_files import TensorHeader
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import READERS, find_format
from tests.fakes.stored.cases import ALL

if TYPE_CHECKING:
    from shared.model.checkpoint.matrices.layout import Layout

PAGE = Path(__file__).parents[4] / "docs" / "checkpoints.md"
CT = ALL["ct w8a8"].config
WEIGHTS = CT["config_groups"]["group_0"]["weights"]
INPUTS = CT["config_groups"]["group_0"]["input_activations"]
GPTQ, AWQ, QUARK = ALL["gptq 4"].config, ALL["awq"].config, ALL["quark mxfp4"].config
MX = QUARK["global_quant_config"]


def group(**changes: Any) -> dict[str, Any]:
    """A config of compressed-tensors with a changed group."""
    own = {**CT["config_groups"]["group_0"], **changes}
    return {**CT, "config_groups": {"group_0": own}}


def quark(**changes: Any) -> dict[str, Any]:
    """A config of Quark with other inputs."""
    own = {**MX, "input_tensors": {**MX["input_tensors"], **changes}}
    return {**QUARK, "global_quant_config": own}


def nvfp4_groups(*sizes: int) -> dict[str, Any]:
    """A config of ModelOpt with groups of these sizes."""
    groups = {str(size): {"weights": {"group_size": size}} for size in sizes}
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": groups}


def stages(second: dict[str, Any]) -> dict[str, Any]:
    """A config of Quark whose weights have a second stage."""
    return {**QUARK, "global_quant_config": {**MX, "weight": [MX["weight"], second]}}


def torchao(kind: str, version: int = 2, **data: Any) -> dict[str, Any]:
    """A config of torchao's."""
    own = {"_type": kind, "_version": version, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": own}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "unheard"}, "'unheard' is not supported: it is unknown; supported: comp"),
        ({"quant_method": "bitnet", "bits": 2}, "'bitnet' is not supported: its linears have"),
        (torchao("Int4WeightOnlyConfig"), "Int4WeightOnlyConfig is not read: it rounds inputs, or"),
        (torchao("Int8DynamicActivationInt8WeightConfig"), "is not read: it rounds inputs, or"),
        (torchao("Int8WeightOnlyConfig", 1), "Int8WeightOnlyConfig of version 1 is not read"),
        (
            torchao("IntxWeightOnlyConfig", intx_packing_format={"_data": "OPAQUE_ATEN_AUTO"}),
            "intx_packing_format._data must be one of unpacked_to_int8",
        ),
        (
            {**torchao("Float8WeightOnlyConfig"), "include_input_output_embeddings": True},
            "include_input_output_embeddings is set",
        ),
        ({"quant_method": "torchao", "quant_type": "int8"}, "quant_type must be an object"),
        (
            {"quant_method": "torchao", "quant_type": {"layers.0": {}}},
            "settings by module are not read",
        ),
        ({"quant_method": "bitsandbytes", "own": 1}, "quantization_config.own is unknown"),
        ({"bits": 4}, "quant_method 'missing' is not supported"),
        ({**CT, "sparsity": 1}, "quantization_config.sparsity is unknown"),
        ({**CT, "transform_config": {"u": 1}}, "transform_config is set"),
        ({**CT, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is set"),
        ({**CT, "format": "marlin-24"}, "format must be one of dense, float-"),
        ({**CT, "config_groups": {}}, "config_groups is empty"),
        ({**CT, "config_groups": {"W8A8": ["Linear"]}}, "W8A8 is the name of a preset"),
        (group(output_activations=INPUTS), "group_0.output_activations is set"),
        (group(weights={**WEIGHTS, "num_bits": 9}), "num_bits must be from 1 to 8, not 9"),
        (group(weights={**WEIGHTS, "num_bits": "8"}), "num_bits must be an integer, not '8'"),
        (group(weights={**WEIGHTS, "strategy": "row"}), "weights.strategy must be one of block"),
        (group(weights={**WEIGHTS, "strategy": "group"}), "group_size must be at least 1"),
        (group(weights={**WEIGHTS, "strategy": "block"}), "block_structure is missing"),
        (group(weights={**WEIGHTS, "type": "float", "num_bits": 5}), "floats have 4, 6 or 8"),
        (group(weights={**WEIGHTS, "rank": 4}), "group_0.weights.rank is unknown"),
        (group(input_activations={**INPUTS, "dynamic": False}), "'token' is not dynamic"),
        (group(targets="Linear"), "targets must be a list of names"),
        ({**GPTQ, "bits": 5}, "quantization_config.bits must be one of 2, 3, 4, 8, not 5"),
        ({**GPTQ, "format": "gptq_p"}, "format must be one of gptq, gptq_v2, not 'gptq_p'"),
        ({**GPTQ, "quant_method": "auto-round"}, "packing_format must be one of auto_awq, auto_"),
        (
            {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_gptq", "act_bits": 8},
            "act_bits is 8: rounded inputs are not read",
        ),
        ({**GPTQ, "group_size": 0}, "group_size must be -1 or at least 1, not 0"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format must be one of gptq, gptq_v2"),
        ({**GPTQ, "dynamic": {"+:(": {}}}, "'[(]' is no expression"),
        ({**GPTQ, "rotation": "hadamard"}, "quantization_config.rotation is unknown"),
        ({**AWQ, "version": "gemv"}, "version must be one of gemm, not 'gemv'"),
        ({**AWQ, "bits": 3}, "bits must be 4, not 3"),
        ({**AWQ, "zero_point": False, "export": {"min_kv_scale": 0}}, "zero_point is false beside"),
        ({**AWQ, "pack_method": "order"}, "pack_method must be one of reorder, not 'order'"),
        (
            {"quant_method": "fp8", "export": {"min_kv_scale": 0}},
            "activation_scheme is null beside",
        ),
        ({"quant_method": "fp8", "weight_block_size": 128}, "must be two positive integers"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype is set"),
        ({"quant_method": "mxfp4", "dtype": "fp6"}, "quantization_config.dtype is unknown"),
        (quark(dtype="int3"), "input_tensors.dtype must be one of fp4"),
        (quark(is_dynamic=False), "qscheme 'per_group' is not dynamic"),
        (quark(ch_axis=1), "input_tensors.ch_axis must be 2 or -1, not 1"),
        (quark(qscheme="per_channel", ch_axis=0), "input_tensors.ch_axis must be 1 or -2, not 0"),
        (quark(scale_format="e5m3"), "scale_format must be one of e8m0, float32, not 'e5m3'"),
        (stages({"dtype": "int4"}), "global_quant_config.weight rounds numbers twice"),
        (stages({"dtype": "fp8_e5m3", "is_scale_quant": True}), r"\[1\].dtype must be one of fp8_"),
        ({**QUARK, "layer_type_quant_config": {"Conv2d": MX}}, "config.Conv2d is unknown"),
        ({**QUARK, "algo_config": [{"name": "rotation", "r4": True}]}, "rotation is not supported"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo must be one of fp8"),
        (nvfp4_groups(16, 32), "config_groups has weights with groups of 16 and 32"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        find_format({"quantization_config": config})


def layout_of(config: dict[str, Any], module: str, suffix: str, dtype: str) -> Layout | None:
    """How a module's matrix is stored, of which one tensor is there."""
    own = find_format({"quantization_config": config})
    assert own is not None
    header = TensorHeader(Path("model.safetensors"), (4, 4), dtype)
    return own.layout(Module((module,)), {suffix: header})


NUMBERS4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
AUTO_ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 128,
    "iters": 200,
    "extra_config": {"layers.0.down": {"bits": 8}},
}
OTHER_DOWN = {**MX, "weight": {"dtype": "int8"}}
MIXED = {
    **CT,
    "format": "mixed-precision",
    "config_groups": {
        "all": {"targets": ["Linear"], "weights": WEIGHTS, "format": "int-quantized"},
        "downs": {"targets": ["re:.*down$"], "weights": NUMBERS4, "format": "pack-quantized"},
    },
}


@pytest.mark.parametrize(
    ("config", "module", "suffix", "dtype", "bits"),
    [
        (MIXED, "layers.0.up", ".weight", "I8", 8),
        (MIXED, "layers.0.down", ".weight_packed", "I32", 4),
        (MIXED, "layers.0.up", ".weight", "BF16", None),
        ({**GPTQ, "dynamic": {"+:.*down": {"bits": 8}}}, "layers.0.up", ".qweight", "I32", 4),
        ({**GPTQ, "dynamic": {"+:.*down": {"bits": 8}}}, "layers.0.down", ".qweight", "I32", 8),
        (AUTO_ROUND, "layers.0.up", ".qweight", "I32", 4),
        (AUTO_ROUND, "layers.0.down", ".qweight", "I32", 8),
        ({**AUTO_ROUND, "extra_config": {".*down.*": {"bits": 2}}}, "0.down", ".qweight", "I32", 2),
        ({**QUARK, "layer_quant_config": {"*down": OTHER_DOWN}}, "0.down", ".weight", "I8", 8),
        ({**QUARK, "layer_quant_config": {"down": OTHER_DOWN}}, "0.up", ".weight", "U8", 4),
        ({**QUARK, "layer_type_quant_config": {"Linear": OTHER_DOWN}}, "0.up", ".weight", "I8", 8),
    ],
)
def test_modules_may_have_settings_of_their_own(
    config: dict[str, Any], module: str, suffix: str, dtype: str, bits: int | None
) -> None:
    layout = layout_of(config, module, suffix, dtype)
    assert (None if layout is None else layout.bits) == bits


@pytest.mark.parametrize(
    ("config", "module", "suffix", "message"),
    [
        (CT, "lm_head", ".weight", "lm_head is in quantization_config.ignore, but stored"),
        (group(targets=["re:.*up"]), "layers.0.down", ".weight", "no group of quantization_config"),
        ({**GPTQ, "dynamic": {"-:.*down": {}}}, "layers.0.down", ".qweight", "leaves it out, but"),
        (
            {**AUTO_ROUND, "extra_config": {"layers.0.down": {"bits": 16}}},
            "layers.0.down",
            ".qweight",
            "quantization_config.extra_config leaves it out, but",
        ),
        (
            {**AUTO_ROUND, "packing_format": "auto_round:auto_awq"},
            "layers.0.down",
            ".qweight",
            "AWQ's packing has 4 bits, not 8",
        ),
        (QUARK, "lm_head", ".weight", "lm_head is in quantization_config.exclude, but stored"),
    ],
)
def test_a_config_that_the_tensors_contradict_is_refused(
    config: dict[str, Any], module: str, suffix: str, message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        layout_of(config, module, suffix, "I8")


def test_the_page_of_checkpoints_names_every_method() -> None:
    methods, _, rest = PAGE.read_text().partition("\n## ")
    files = rest.partition("## GGUF files")[2].partition("\n## ")[0]
    assert names_in_tables(methods) == sorted(READERS)
    assert names_in_tables(files) == sorted({each.name for each in ARCHITECTURES})


def names_in_tables(text: str) -> list[str]:
    """What stands in the first column, below its head."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return sorted(name.strip("`") for row in rows[1:] for name in row.split("|")[1].split())
