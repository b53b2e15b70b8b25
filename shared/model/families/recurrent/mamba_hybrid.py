"""Granite 4 and Bamba: Mamba-2, and attention in some layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import EXPERT_PARTS, LLAMA_PARTS, Naming
from shared.model.families.sizes import FULL, decoder, read_activation, read_kinds, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec
from shared.model.spec.mixers import MambaSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import FeedForward
    from shared.model.spec.decoder import DecoderSpec

_GRANITE, _BAMBA = "GraniteMoeHybridForCausalLM", "BambaForCausalLM"
_MAMBA = "mamba"


def describe_granite(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw)
    bias = bool(raw.get("attention_bias", False))
    is_rotated = raw.get("position_embedding_type") == "rope"
    attention = sizes.attention(
        qkv_bias=bias,
        output_bias=bias,
        rope=sizes.rope if is_rotated else None,
        score_scale=float(raw.get("attention_multiplier", 1.0)),
    )
    mamba = read_mamba(raw, sizes.hidden_size)
    kinds = read_kinds(raw, sizes.num_layers, recurrent=_MAMBA)
    return decoder(
        raw,
        _GRANITE,
        sizes,
        [mamba if is_mamba else attention for is_mamba in kinds],
        _granite_feed_forward(raw),
        residual_multiplier=float(raw.get("residual_multiplier", 1.0)),
        embedding_multiplier=float(raw.get("embedding_multiplier", 1.0)),
        multiplies_given=True,
        logit_multiplier=1 / float(raw.get("logits_scaling", 1.0)),
    )


def _granite_feed_forward(raw: Mapping[str, Any]) -> FeedForward:
    activation = read_activation(raw)
    shared = FeedForwardSpec(
        inner_size=int(raw.get("shared_intermediate_size", 1024)), activation=activation
    )
    if not raw.get("num_local_experts", 8):
        return shared
    inner = FeedForwardSpec(inner_size=int(raw["intermediate_size"]), activation=activation)
    return ExpertsSpec(router=read_router(raw), expert=inner, shared=shared)


def describe_bamba(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=8, rope=RopeDefaults(rotated_share=0.5))
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(qkv_bias=bias, output_bias=bias)
    mamba = read_mamba(raw, sizes.hidden_size)
    types = raw.get("layer_types")
    if types is None:
        attends = raw.get("attn_layer_indices") or ()
        types = [FULL if number in attends else _MAMBA for number in range(sizes.num_layers)]
    kinds = read_kinds({**raw, "layer_types": types}, sizes.num_layers, recurrent=_MAMBA)
    return decoder(
        raw,
        _BAMBA,
        sizes,
        [mamba if is_mamba else attention for is_mamba in kinds],
        sizes.feed_forward(activation=read_activation(raw), bias=bool(raw.get("mlp_bias", False))),
    )


def read_step_limits(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the least and the largest step of a `MambaSpec`."""
    low, high = raw.get("time_step_limit") or (0.0, float("inf"))
    return {"min_step": as_float(low), "max_step": as_float(high)}


def read_mamba(
    raw: Mapping[str, Any], hidden_size: int, *, inner_size: int | None = None
) -> MambaSpec:
    """Mamba-2 as most configs spell it.

    inner_size: elements of all heads, if they do not follow from the hidden size.

    Raises:
        ModelLoadError: its sizes do not fit together.
    """
    heads = int(raw.get("mamba_n_heads", 128))
    inner = inner_size or int(raw.get("mamba_expand", 2)) * hidden_size
    head_dim = raw.get("mamba_d_head", "auto")
    found = MambaSpec(
        num_heads=heads,
        head_dim=inner // heads if head_dim == "auto" else int(head_dim),
        num_groups=int(raw.get("mamba_n_groups", 1)),
        state_dim=int(raw.get("mamba_d_state", 256)),
        kernel_size=int(raw.get("mamba_d_conv", 4)),
        conv_bias=bool(raw.get("mamba_conv_bias", True)),
        bias=bool(raw.get("mamba_proj_bias", False)),
        **read_step_limits(raw),
    )
    check_heads(found, inner)
    return found


def check_heads(own: MambaSpec, inner_size: int) -> None:
    """Raise ModelLoadError unless heads and groups make up `inner_size` elements."""
    if own.inner_size != inner_size or own.num_heads % own.num_groups:
        raise ModelLoadError(
            f"{own.num_heads} heads of {own.head_dim} in {own.num_groups} groups do not make up "
            f"{inner_size}"
        )


def as_float(value: Any) -> float:
    """Return a number that is written as such, or as transformers writes infinity in JSON."""
    return float(value["__float__"] if isinstance(value, dict) else value)


MAMBA_PARTS = {
    "attention.inputs": "mamba.in_proj",
    "attention.conv": "mamba.conv1d",
    "attention.decay": "mamba.A_log mamba.dt_bias",
    "attention.skip": "mamba.D",
    "attention.norm": "mamba.norm",
    "attention.out": "mamba.out_proj",
}
GRANITE_HYBRID = Family(
    architecture=_GRANITE,
    model_type="granitemoehybrid",
    describe=describe_granite,
    names=Naming(
        parts={
            **LLAMA_PARTS,
            **EXPERT_PARTS,
            **MAMBA_PARTS,
            "mlp.gate_up": "shared_mlp.input_linear",
            "mlp.down": "shared_mlp.output_linear",
            "mlp.router": "block_sparse_moe.router.layer",
            "mlp.experts.gate_up": "block_sparse_moe.input_linear",
            "mlp.experts.down": "block_sparse_moe.output_linear",
            "mlp.shared.gate_up": "shared_mlp.input_linear",
            "mlp.shared.down": "shared_mlp.output_linear",
        }
    ).names,
)
BAMBA = Family(
    architecture=_BAMBA,
    model_type="bamba",
    describe=describe_bamba,
    names=Naming(
        norm="model.final_layernorm",
        parts={
            **LLAMA_PARTS,
            **MAMBA_PARTS,
            "mlp_norm": "pre_ff_layernorm",
            "mlp.gate_up": "feed_forward.gate_proj feed_forward.up_proj",
            "mlp.down": "feed_forward.down_proj",
        },
    ).names,
)
