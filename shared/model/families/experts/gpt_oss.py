"""gpt-oss: sinks, windows in every other layer, biases everywhere, clamped gates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import SLIDING, decoder, read_layer_types, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import Activation, ExpertsSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

_ARCHITECTURE = "GptOssForCausalLM"
_HEAD_DIM, _KV_HEADS, _WINDOW, _THETA, _EPS = 64, 8, 128, 150_000.0, 1e-5
#: What the clamped activation computes with.
_CLAMP = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    rope = RopeDefaults(theta=_THETA)
    sizes = read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=_KV_HEADS, rope=rope)
    for name, value in _CLAMP.items():
        if float(raw.get(name, value)) != value:
            raise ModelLoadError(f"{name} must be {value}, not {raw[name]}")
    bias = bool(raw.get("attention_bias", True))
    full = sizes.attention(qkv_bias=bias, output_bias=bias, has_sinks=True)
    window = raw.get("sliding_window", _WINDOW)
    sliding = replace(full, window=None if window is None else int(window))
    types = read_layer_types(raw, sizes.num_layers, full_every=2)
    experts = ExpertsSpec(
        router=read_router(raw, has_bias=True),
        expert=sizes.feed_forward(bias=True, activation=Activation.CLAMPED),
    )
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [sliding if each == SLIDING else full for each in types],
        experts,
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", _EPS))),
    )


_NAMING = Naming(
    parts={
        **LLAMA_PARTS,
        **EXPERT_PARTS,
        "mlp.router": "mlp.router",
        "mlp.experts.gate_up": "mlp.experts.gate_up_proj",
        "mlp.experts.down": "mlp.experts.down_proj",
    },
    are_experts_transposed=True,
    are_experts_interleaved=True,
)


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. Tensors of experts end in `_proj` and `_proj_bias`."""
    found = _NAMING.names(spec)
    return {_name(name) if ".experts." in name else name: each for name, each in found.items()}


def _name(name: str) -> str:
    return name.removesuffix(".weight").replace(".bias", "_bias")


_APART = replace(
    _NAMING,
    parts={
        **_NAMING.parts,
        "mlp.experts.gate_up": EXPERT_PARTS["mlp.experts.gate_up"],
        "mlp.experts.down": EXPERT_PARTS["mlp.experts.down"],
    },
)
GPT_OSS = Family(
    architecture=_ARCHITECTURE,
    model_type="gpt_oss",
    describe=describe,
    names=names,
    names_apart=_APART.names,
)
