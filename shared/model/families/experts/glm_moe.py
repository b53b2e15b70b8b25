"""GLM-4.5 and dots.llm1: the experts of DeepSeek-V3 behind ordinary attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.dense.qwen2 import layer_windows
from shared.model.families.experts.routers import read_deepseek_experts
from shared.model.families.further import behind_layers
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import AttentionSpec

_GLM, _DOTS = "Glm4MoeForCausalLM", "Dots1ForCausalLM"


def describe_glm(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Half of each head is rotated."""
    sizes = read_sizes(raw, rope=RopeDefaults(rotated_share=0.5))
    attention = sizes.attention(
        qkv_bias=bool(raw.get("attention_bias", False)),
        qk_norm=QkNorm.HEAD if raw.get("use_qk_norm", False) else None,
    )
    return _decoder(raw, _GLM, sizes, [attention] * sizes.num_layers, first=1, eps=1e-5)


def describe_dots(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw)
    bias = bool(raw.get("attention_bias", False))
    full = sizes.attention(qkv_bias=bias, output_bias=bias, qk_norm=QkNorm.HEAD)
    windowed = {"use_sliding_window": "layer_types" in raw, **raw}
    mixers = [replace(full, window=each) for each in layer_windows(windowed, sizes.num_layers)]
    return _decoder(raw, _DOTS, sizes, mixers, first=0, eps=1e-6)


def _decoder(
    raw: Mapping[str, Any],
    architecture: str,
    sizes: Sizes,
    mixers: Sequence[AttentionSpec],
    *,
    first: int,
    eps: float,
) -> DecoderSpec:
    """first: the first layer with experts, where a config does not say it."""
    dense = sizes.feed_forward(activation=read_activation(raw))
    experts = read_deepseek_experts(raw)
    num_dense = int(raw.get("first_k_dense_replace", first))
    return decoder(
        raw,
        architecture,
        sizes,
        mixers,
        [dense if number < num_dense else experts for number in range(sizes.num_layers)],
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", eps))),
    )


GLM4_MOE = Family(
    architecture=_GLM,
    model_type="glm4_moe",
    describe=describe_glm,
    names=Naming().names,
    further_layers=Naming().layer,
    further=behind_layers(Naming()).names,
)
DOTS1 = Family(architecture=_DOTS, model_type="dots1", describe=describe_dots, names=Naming().names)
