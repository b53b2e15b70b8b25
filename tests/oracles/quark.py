"""Checkpoints of AMD Quark, written by its own quantiser and exporter, read by its importer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from quark.torch import (
    LLMTemplate,
    ModelQuantizer,
    export_safetensors,
    import_model_from_safetensors,
)
from quark.torch.export.nn.modules.qparamslinear import QParamsLinear
from quark.torch.quantization.config import config as specs
from quark.version import __version__ as version

from tests.oracles.base import (
    DENSE,
    INPUTS,
    KEPT,
    LOGITS,
    OUTPUTS,
    PROMPT,
    ROUNDED,
    About,
    keep_files,
    write_oracle,
)
from tests.oracles.models import PROMPT_IDS, calibration, small_llama, some_inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DOWN = "model.layers.0.mlp.down_proj"


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    config: Callable[[], Any]
    dtype: torch.dtype = torch.bfloat16
    export: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def _scheme(name: str, **settings: Any) -> Callable[[], Any]:
    """A scheme that Quark's templates know."""
    return lambda: LLMTemplate.get("llama").get_config(scheme=name, **settings)


def _layers(weight: Any, inputs: Any = None, **settings: Any) -> Callable[[], Any]:
    """Specs of weights and inputs."""
    own = specs.QLayerConfig(
        weight=weight.to_quantization_spec(),
        input_tensors=None if inputs is None else inputs.to_quantization_spec(),
    )
    settings = {"exclude": ["lm_head"], **settings}
    return lambda: specs.QConfig(global_quant_config=own, **settings)


_INT8 = {"scale_type": "float", "round_method": "half_even"}
_FP8 = {"observer_method": "min_max"}
_ORDER = {"pack_method": "order"}
#: All linears but one whose columns are many.
_BUT_DOWN = ["lm_head", "*self_attn*", "*gate_proj", "*up_proj"]

CASES = {
    "fp8": _Case("FP8, inputs by stored scale", _scheme("fp8")),
    "fp8-float32": _Case("FP8, inputs by stored scale, float32", _scheme("fp8"), torch.float32),
    "fp8-kv": _Case("FP8 with scales of a KV cache", _scheme("fp8", kv_cache_scheme="fp8")),
    "fp8-tokens": _Case("FP8 by row, inputs by token", _scheme("ptpc_fp8")),
    "fp8-dynamic": _Case(
        "FP8, inputs with one scale",
        _layers(
            specs.FP8E4M3PerTensorSpec(**_FP8, is_dynamic=False),
            specs.FP8E4M3PerTensorSpec(**_FP8, is_dynamic=True),
        ),
    ),
    "fp8-custom": _Case(
        "FP8, inputs by stored scale", _scheme("fp8"), export={"custom_mode": "fp8"}
    ),
    "int8": _Case("INT8, inputs by stored scale", _scheme("int8")),
    "int8-tokens": _Case(
        "INT8 by row, inputs by token",
        _layers(
            specs.Int8PerChannelSpec(ch_axis=0, symmetric=True, is_dynamic=False, **_INT8),
            specs.Int8PerChannelSpec(ch_axis=1, symmetric=True, is_dynamic=True, **_INT8),
        ),
    ),
    "int8-uneven": _Case(
        "INT8 by row with zeros, inputs by stored scale and zero",
        _layers(
            specs.Int8PerChannelSpec(ch_axis=0, symmetric=False, is_dynamic=False, **_INT8),
            specs.Int8PerTensorSpec(
                observer_method="min_max", symmetric=False, is_dynamic=False, **_INT8
            ),
        ),
    ),
    "int8-groups": _Case(
        "INT8 by group",
        _layers(
            specs.Int8PerGroupSpec(
                ch_axis=1, group_size=32, symmetric=True, is_dynamic=False, **_INT8
            )
        ),
    ),
    "uint8": _Case(
        "UINT8 by row with zeros",
        _layers(specs.Uint8PerChannelSpec(ch_axis=0, symmetric=False, is_dynamic=False, **_INT8)),
    ),
    "int4": _Case("INT4 in groups of 32", _scheme("int4_wo_32"), sizes={"inner": 96}),
    "int4-order": _Case("INT4 in groups of 32, in order", _scheme("int4_wo_32"), export=_ORDER),
    "int4-rows": _Case("INT4 by row", _scheme("int4_wo_per_channel")),
    "int4-inputs": _Case(
        "INT4 in groups of 64, inputs too, one linear",
        _scheme("int4_wa_64", exclude_layers=_BUT_DOWN),
    ),
    "uint4": _Case("UINT4 in groups of 32", _scheme("uint4_wo_32")),
    "uint4-order": _Case("UINT4 in groups of 32, in order", _scheme("uint4_wo_32"), export=_ORDER),
    "uint4-128": _Case(
        "UINT4 in groups of 128, one linear",
        _scheme("uint4_wo_128", exclude_layers=_BUT_DOWN),
        sizes={"inner": 128},
    ),
    "uint4-linears": _Case(
        "UINT4 in groups of 32 for linears",
        lambda: specs.QConfig(
            global_quant_config=specs.QLayerConfig(),
            layer_type_quant_config={
                torch.nn.Linear: specs.QLayerConfig(
                    weight=specs.Uint4PerGroupSpec(ch_axis=1, group_size=32).to_quantization_spec()
                )
            },
            exclude=["lm_head"],
        ),
    ),
    "uint4-rows": _Case("UINT4 by row", _scheme("uint4_wo_per_channel")),
    "mix": _Case(
        "INT4, INT8 and FP8 by layer, one layer left out",
        _scheme(
            "int4_wo_32",
            layer_config={"*down_proj": "uint4_wo_32", "*k_proj": "fp8", "*v_proj": "int8"},
            exclude_layers=["lm_head", "*up_proj"],
        ),
    ),
    "mxfp4": _Case("MXFP4, inputs too", _scheme("mxfp4"), sizes={"inner": 96}),
    "mxfp4-weights": _Case("MXFP4", _scheme("mxfp4_weight_only")),
    "mxfp4-fp8": _Case("MXFP4, inputs in FP8 by stored scale", _scheme("mxfp4_fp8")),
    "mxfp4-mxfp6": _Case("MXFP4, inputs in MXFP6 E2M3", _scheme("mxfp4_mxfp6_e2m3")),
    "mxfp6-e3m2": _Case("MXFP6 E3M2, inputs too", _scheme("mxfp6_e3m2")),
    "mxfp6-e2m3": _Case("MXFP6 E2M3, inputs too", _scheme("mxfp6_e2m3")),
    "nvfp4": _Case("NVFP4, inputs too", _scheme("nvfp4")),
}


def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what Quark makes of it."""
    case = CASES[name]
    model: Any = small_llama(case.dtype, **case.sizes)
    made = ModelQuantizer(case.config()).quantize_model(model, calibration())
    export_safetensors(ModelQuantizer.freeze(made), folder, **case.export)
    keep_files(folder)
    _record_oracle(folder, case)


@torch.inference_mode()
def _record_oracle(folder: Path, case: _Case) -> None:
    read: Any = import_model_from_safetensors(None, str(folder), device="cpu").float()
    oracle: dict[str, torch.Tensor] = {}
    for name in KEPT:
        linear = read.get_submodule(name)
        if isinstance(linear, QParamsLinear):
            oracle[name + DENSE] = linear._get_qweight(linear.weight).float()
    down = read.get_submodule(_DOWN)
    if down.input_quantizer is not None:
        inputs = some_inputs(down.in_features)
        rows = [row.view(1, 1, -1) for row in inputs]
        oracle[_DOWN + INPUTS] = inputs
        oracle[_DOWN + ROUNDED] = torch.cat([down._get_qinput(row)[0] for row in rows])
        oracle[_DOWN + OUTPUTS] = torch.cat([down(row)[0] for row in rows])
    else:
        prompt = torch.tensor(PROMPT_IDS)
        oracle[PROMPT] = prompt
        oracle[LOGITS] = read(prompt[None]).logits[0]
    reader = f"{QParamsLinear.__module__}.{QParamsLinear.__name__}"
    about = About(library=f"AMD Quark {version}", reader=reader, what=case.what)
    write_oracle(folder, about, oracle)
