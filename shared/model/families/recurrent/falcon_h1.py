"""Falcon-H1: attention and Mamba-2 beside each other in every layer, and factors of all parts.

A stored layer is two here: attention alone, then Mamba-2, which reads the same rows, with the
feed-forward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.recurrent.mamba_hybrid import MAMBA_PARTS, read_mamba
from shared.model.families.sizes import check_size, decoder, read_activation, read_sizes
from shared.model.spec.decoder import LayerSpec
from shared.model.spec.mixers import GatedNorm, MambaFactors
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.feed_forwards import FeedForwardSpec
    from shared.model.spec.mixers import AttentionSpec, MambaSpec
    from shared.model.weight_map import Stored, WeightMap

_ARCHITECTURE = "FalconH1ForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    sizes = read_sizes(raw, num_kv_heads=8)
    attention, mamba = _attention(raw, sizes), _mamba(raw, sizes.hidden_size)
    gate_factor, down_factor = _factors(raw, "mlp_multipliers", 2)
    feed_forward = sizes.feed_forward(
        activation=read_activation(raw),
        bias=bool(raw.get("mlp_bias", False)),
        gate_multiplier=gate_factor,
    )
    num = sizes.num_layers
    check_size("num_layers", 2 * num)
    spec = decoder(
        raw,
        _ARCHITECTURE,
        replace(sizes, num_layers=2 * num),
        [attention, mamba] * num,
        [None, feed_forward] * num,
        embedding_multiplier=_factor(raw, "embedding_multiplier"),
        logit_multiplier=_factor(raw, "lm_head_multiplier"),
    )
    pair = _layers(raw, attention, mamba, feed_forward, down_factor)
    return replace(spec, layers=pair * num)


def _layers(
    raw: Mapping[str, Any],
    attention: AttentionSpec,
    mamba: MambaSpec,
    feed_forward: FeedForwardSpec,
    down_factor: float,
) -> tuple[LayerSpec, LayerSpec]:
    """Return what a stored layer is here."""
    # Values have the factor of what attention reads; queries and keys have it in their scores.
    read, returned = (_factor(raw, f"attention_{end}_multiplier") for end in ("in", "out"))
    first = LayerSpec(
        mixer=attention,
        feed_forward=None,
        norms=NormPlace.ALONE,
        residual_multiplier=read * returned,
    )
    second = LayerSpec(
        mixer=mamba,
        feed_forward=feed_forward,
        norms=NormPlace.BESIDE,
        residual_multiplier=_factor(raw, "ssm_out_multiplier"),
        feed_forward_multiplier=down_factor,
    )
    return first, second


def _attention(raw: Mapping[str, Any], sizes: Sizes) -> AttentionSpec:
    bias, read = bool(raw.get("attention_bias", False)), _factor(raw, "attention_in_multiplier")
    _check_no_bias(bias, read, "attention_bias with attention_in_multiplier")
    scale = sizes.head_dim**-0.5 * _factor(raw, "key_multiplier") * read**2
    return sizes.attention(qkv_bias=bias, output_bias=bias, score_scale=scale)


def _mamba(raw: Mapping[str, Any], hidden_size: int) -> MambaSpec:
    inner = raw.get("mamba_d_ssm", 1024)
    inner = int(raw.get("mamba_expand", 2)) * hidden_size if inner is None else int(inner)
    own = read_mamba(raw, hidden_size, inner_size=inner)
    if own.bias != bool(raw.get("projectors_bias", False)):
        raise ModelLoadError("mamba_proj_bias and projectors_bias differ")
    read = _factor(raw, "ssm_in_multiplier")
    _check_no_bias(own.bias, read, "mamba_proj_bias with ssm_in_multiplier")
    gate, x, b, c, step = (read * each for each in _factors(raw, "ssm_multipliers", 5))
    norm = GatedNorm.NONE
    if raw.get("mamba_rms_norm", False):
        is_first = bool(raw.get("mamba_norm_before_gate", True))
        norm = GatedNorm.BEFORE_GATE if is_first else GatedNorm.AFTER_GATE
    factors = MambaFactors(gate=gate, x=x, b=b, c=c, step=step)
    has_factors = {gate, x, b, c, step} != {1.0}
    return replace(own, norm=norm, factors=factors if has_factors else None)


def _check_no_bias(has_bias: bool, factor: float, what: str) -> None:
    """Raise ModelLoadError for a factor that a bias does not have."""
    if has_bias and factor != 1:
        raise ModelLoadError(f"{what} {factor} is not supported")


def _factor(raw: Mapping[str, Any], name: str) -> float:
    value = raw.get(name)
    return 1.0 if value is None else float(value)


def _factors(raw: Mapping[str, Any], name: str, num: int) -> list[float]:
    values = raw.get(name) or [1.0] * num
    if len(values) != num:
        raise ModelLoadError(f"{name} has {len(values)} entries, not {num}")
    return [float(each) for each in values]


_NAMING = Naming(
    norm="model.final_layernorm",
    layer="{}.",
    parts={
        **LLAMA_PARTS,
        **MAMBA_PARTS,
        "mlp_norm": "pre_ff_layernorm",
        "mlp.gate_up": "feed_forward.gate_proj feed_forward.up_proj",
        "mlp.down": "feed_forward.down_proj",
    },
)


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. Both layers that a stored one is have its number."""
    found: dict[str, Stored] = {}
    for name, stored in _NAMING.names(spec).items():
        layer = stored.part.layer
        own = name.partition(".")[2]
        found[name if layer is None else f"model.layers.{layer // 2}.{own}"] = stored
    return found


FALCON_H1 = Family(
    architecture=_ARCHITECTURE, model_type="falcon_h1", describe=describe, names=names
)
