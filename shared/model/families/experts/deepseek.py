"""DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash: latent attention, and experts beside shared ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.experts.routers import (
    read_deepseek_experts,
    read_router,
    with_shared_experts,
)
from shared.model.families.further import behind_layers
from shared.model.families.latent import LATENT_PARTS, read_latent
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import decoder, read_activation
from shared.model.spec.feed_forwards import GroupScore
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.feed_forwards import ExpertsSpec

_V2, _V3, _LITE = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"
_GREEDY, _LIMITED = "greedy", "group_limited_greedy"
#: What configs need not say.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    _V2: {"q_lora_rank": 1536, "first_k_dense_replace": 0, "n_shared_experts": 2},
    _V3: {
        "q_lora_rank": 1536,
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
    },
    _LITE: {
        "q_lora_rank": 768,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.8,
        "rms_norm_eps": 1e-5,
    },
}
#: Of all of them.
_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def describe_v2(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Experts are chosen by softmaxes, in groups by their best ones."""
    own = {**_LATENT, **_DEFAULTS[_V2], **raw}
    if own.get("norm_topk_prob"):
        raise ModelLoadError("norm_topk_prob is not supported: weights of experts are not divided")
    _check_only(own, "scoring_func", "softmax")
    method = own.get("topk_method") or _GREEDY
    if method not in (_GREEDY, _LIMITED):
        raise ModelLoadError(
            f"topk_method {method!r} is not supported; supported: {_GREEDY}, {_LIMITED}"
        )
    groups: dict[str, Any] = {}
    if method == _LIMITED:
        groups = {
            "num_groups": int(own["n_group"]),
            "num_chosen_groups": int(own["topk_group"]),
            "group_score": GroupScore.BEST,
        }
    router = read_router(
        own, is_normalised=False, scale=float(own.get("routed_scaling_factor", 1.0)), **groups
    )
    bias = bool(own.get("mlp_bias", False))
    return _decoder(raw, own, _V2, with_shared_experts(own, router, bias=bias), bias=bias)


def describe_v3(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Experts are chosen by biased sigmoids, in groups by their best two."""
    own = {**_LATENT, **_DEFAULTS[_V3], **raw}
    _check_only(own, "scoring_func", "sigmoid")
    return _decoder(raw, own, _V3, read_deepseek_experts(own))


def describe_lite(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. DeepSeek-V3 in other sizes."""
    own = {**_LATENT, "qk_nope_head_dim": 192, "v_head_dim": 256, **_DEFAULTS[_LITE], **raw}
    return _decoder(raw, own, _LITE, read_deepseek_experts(own), kinds=raw.get("mlp_layer_types"))


def _decoder(
    raw: Mapping[str, Any],
    own: Mapping[str, Any],
    architecture: str,
    experts: ExpertsSpec,
    *,
    bias: bool = False,
    kinds: Sequence[str] | None = None,
) -> DecoderSpec:
    """own: the config with what it need not say; bias: of dense layers; kinds: by layer.

    Raises:
        ModelLoadError: see `read_latent`; or a layer is of another kind.
    """
    _check_only(own, "moe_layer_freq", 1)
    sizes, mixer = read_latent(own, is_interleaved=bool(own.get("rope_interleave", True)))
    num_dense = int(own["first_k_dense_replace"] or 0)
    if kinds is None:
        kinds = ["dense" if n < num_dense else "sparse" for n in range(sizes.num_layers)]
    if len(kinds) != sizes.num_layers or set(kinds) - {"dense", "sparse"}:
        raise ModelLoadError(
            f"mlp_layer_types has {sorted(set(kinds))} for {len(kinds)} of {sizes.num_layers} "
            "layers; supported: dense, sparse"
        )
    dense = sizes.feed_forward(bias=bias, activation=read_activation(own))
    return decoder(
        raw,
        architecture,
        sizes,
        [mixer] * sizes.num_layers,
        [dense if kind == "dense" else experts for kind in kinds],
        norm=NormSpec(eps=float(own.get("rms_norm_eps", 1e-6))),
    )


def _check_only(own: Mapping[str, Any], key: str, value: object) -> None:
    """Raise ModelLoadError if a config has another value."""
    if own.get(key, value) != value:
        raise ModelLoadError(f"{key} must be {value!r}, not {own[key]!r}")


_NAMING = Naming(parts={**LLAMA_PARTS, **EXPERT_PARTS, **LATENT_PARTS})


def _family(architecture: str, model_type: str, describe: Any) -> Family:
    return Family(
        architecture=architecture,
        model_type=model_type,
        describe=describe,
        names=_NAMING.names,
        further_layers=_NAMING.layer,
        further=behind_layers(_NAMING).names,
    )


DEEPSEEK_V2 = _family(_V2, "deepseek_v2", describe_v2)
DEEPSEEK_V3 = _family(_V3, "deepseek_v3", describe_v3)
GLM4_MOE_LITE = _family(_LITE, "glm4_moe_lite", describe_lite)
