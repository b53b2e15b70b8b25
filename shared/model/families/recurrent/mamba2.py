"""Mamba-2 alone, and Nemotron-H: layers that are one mixer, one feed-forward, or experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import FURTHER, Family
from shared.model.families.experts.routers import read_deepseek_router
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.recurrent.mamba_hybrid import check_heads, read_step_limits
from shared.model.families.sizes import check_size, decoder, read_activation, read_sizes
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec
from shared.model.spec.mixers import MambaSpec
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.model.spec.decoder import DecoderSpec, LayerSpec
    from shared.model.weight_map import Stored, WeightMap

_MAMBA, _NEMOTRON = "Mamba2ForCausalLM", "NemotronHForCausalLM"
#: Configs name no longest sequence: states have none.
_MAX_POSITIONS = 2**20
#: By the letter of a pattern, or the name of a layer.
_KINDS = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
    "mamba": "mamba",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


#: Kinds that read the stream behind a mixer.
_FEED_FORWARDS = ("mlp", "moe")


def describe_mamba(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    own = {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": 1,
        "head_dim": 2,
        "max_position_embeddings": _MAX_POSITIONS,
    }
    sizes = read_sizes({**raw, **own})
    mamba = MambaSpec(
        num_heads=int(raw.get("num_heads", 128)),
        head_dim=int(raw.get("head_dim", 64)),
        num_groups=int(raw.get("n_groups", 8)),
        state_dim=int(raw.get("state_size", 128)),
        kernel_size=int(raw.get("conv_kernel", 4)),
        conv_bias=bool(raw.get("use_conv_bias", True)),
        bias=bool(raw.get("use_bias", False)),
        **read_step_limits(raw),
    )
    check_heads(mamba, int(raw.get("expand", 2)) * sizes.hidden_size)
    return decoder(
        raw,
        _MAMBA,
        sizes,
        [mamba] * sizes.num_layers,
        [None] * sizes.num_layers,
        norms=NormPlace.ALONE,
        norm=NormSpec(eps=float(raw.get("layer_norm_epsilon", 1e-5))),
    )


def describe_nemotron(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. A mixer and the feed-forward behind it are one layer here."""
    sizes = read_sizes({**raw, "num_hidden_layers": len(_kinds(raw))}, num_kv_heads=8, head_dim=128)
    bias = bool(raw.get("use_bias", False))
    mamba = MambaSpec(
        num_heads=int(raw.get("mamba_num_heads", 128)),
        head_dim=int(raw.get("mamba_head_dim", 64)),
        num_groups=int(raw.get("n_groups", raw.get("mamba_n_groups", 8))),
        state_dim=int(raw.get("ssm_state_size", 128)),
        kernel_size=int(raw.get("conv_kernel", raw.get("mamba_d_conv", 4))),
        conv_bias=bool(raw.get("use_conv_bias", True)),
        bias=bias,
        min_step=float(raw.get("time_step_min", 0.001)),
    )
    check_heads(mamba, mamba.inner_size)
    attention = sizes.attention(rope=None)
    pairs = list(_pairs(_kinds(raw)))
    made = {
        "mlp": _feed_forward(raw, sizes.intermediate_size),
        "moe": _experts(raw) if any(follower == "moe" for _, _, follower in pairs) else None,
    }
    spec = decoder(
        raw,
        _NEMOTRON,
        replace(sizes, num_layers=len(pairs)),
        [mamba if kind == "mamba" else attention for kind, _, _ in pairs],
        [None if follower is None else made[follower] for _, _, follower in pairs],
        norm=NormSpec(eps=float(raw.get("layer_norm_epsilon", 1e-5))),
    )
    return replace(spec, layers=tuple(map(_placed, spec.layers)))


def _feed_forward(raw: Mapping[str, Any], inner_size: int) -> FeedForwardSpec:
    return FeedForwardSpec(
        inner_size=inner_size,
        bias=bool(raw.get("mlp_bias", False)),
        activation=read_activation(raw, "mlp_hidden_act", default="relu2"),
        is_gated=False,
    )


def _experts(raw: Mapping[str, Any]) -> ExpertsSpec:
    latent = raw.get("moe_latent_size")
    if latent is not None:
        check_size("hidden_size", int(latent))
    expert = replace(_feed_forward(raw, int(raw["moe_intermediate_size"])), bias=False)
    shared = int(raw["moe_shared_expert_intermediate_size"])
    return ExpertsSpec(
        router=read_deepseek_router(raw),
        expert=expert,
        shared=_feed_forward(raw, shared),
        latent_size=None if latent is None else int(latent),
        has_latent_bias=bool(raw.get("mlp_bias", False)),
    )


def _placed(layer: LayerSpec) -> LayerSpec:
    return layer if layer.feed_forward is not None else replace(layer, norms=NormPlace.ALONE)


def _kinds(raw: Mapping[str, Any]) -> list[str]:
    """What each stored layer is.

    Raises:
        ModelLoadError: one is something else.
    """
    stored: Sequence[str] = (
        raw.get("layers_block_type") or raw.get("layer_types") or raw["hybrid_override_pattern"]
    )
    unknown = set(stored) - set(_KINDS)
    if unknown:
        known = "mamba, attention, mlp, moe"
        raise ModelLoadError(f"layers_block_type has {min(unknown)!r}; supported: {known}")
    return [_KINDS[each] for each in stored]


def _pairs(kinds: Sequence[str]) -> Iterator[tuple[str, int, str | None]]:
    """Yield each mixer's kind, its stored number, and what follows it: "mlp", "moe" or None.

    Raises:
        ModelLoadError: a feed-forward follows no mixer.
    """
    for number, kind in enumerate(kinds):
        if kind not in _FEED_FORWARDS:
            following = kinds[number + 1 : number + 2]
            yield kind, number, next((each for each in following if each in _FEED_FORWARDS), None)
        elif not number or kinds[number - 1] in _FEED_FORWARDS:
            raise ModelLoadError(f"layer {number} is a feed-forward that follows no mixer")


_MIXER = {
    "attention.inputs": "mixer.in_proj",
    "attention.conv": "mixer.conv1d",
    "attention.decay": "mixer.A_log mixer.dt_bias",
    "attention.skip": "mixer.D",
    "attention.norm": "mixer.norm",
    "attention.out": "mixer.out_proj",
    "attention_norm": "norm",
}
MAMBA2 = Family(
    architecture=_MAMBA,
    model_type="mamba2",
    describe=describe_mamba,
    names=Naming(
        embedding="backbone.embeddings",
        norm="backbone.norm_f",
        layer="backbone.layers.{}.",
        parts={**LLAMA_PARTS, **_MIXER},
    ).names,
    prefixes={"backbone.embedding.": "backbone.embeddings."},
)
_NEMOTRON_NAMES = Naming(
    embedding="model.embeddings",
    norm="model.norm_f",
    layer="{}.",
    parts={
        **LLAMA_PARTS,
        **_MIXER,
        "attention.qkv": "mixer.q_proj mixer.k_proj mixer.v_proj",
        "attention.output": "mixer.o_proj",
        "mlp_norm": "next.norm",
        "mlp.up": "next.mixer.up_proj",
        "mlp.down": "next.mixer.down_proj",
        "mlp.router": "next.mixer.gate",
        "mlp.choice_bias": "next.mixer.gate.e_score_correction_bias",
        "mlp.latent_down": "next.mixer.fc1_latent_proj",
        "mlp.latent_up": "next.mixer.fc2_latent_proj",
        "mlp.experts.up": "next.mixer.experts.{}.up_proj",
        "mlp.experts.down": "next.mixer.experts.{}.down_proj",
        "mlp.shared.up": "next.mixer.shared_experts.up_proj",
        "mlp.shared.down": "next.mixer.shared_experts.down_proj",
    },
)


def nemotron_names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. A feed-forward's tensors have the number behind its mixer's."""
    numbers = [number for _, number, _ in _pairs(_kinds(spec.raw))]
    found: dict[str, Stored] = {}
    for name, stored in _NEMOTRON_NAMES.names(spec).items():
        layer = stored.part.layer
        if layer is None:
            found[name] = stored
            continue
        own = name.partition(".")[2]
        number = numbers[layer] + own.startswith("next.")
        found[f"model.layers.{number}.{own.removeprefix('next.')}"] = stored
    return found


NEMOTRON_H = Family(
    architecture=_NEMOTRON,
    model_type="nemotron_h",
    describe=describe_nemotron,
    names=nemotron_names,
    prefixes={"backbone.": "model."},
    unread={"mtp.": FURTHER},
)
