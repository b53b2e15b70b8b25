"""LFM3: short convolutions, windows and full attention, with a gate for each head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import FULL, SLIDING, decoder, read_sizes, read_window
from shared.model.rope import PROPORTIONAL, read_rope
from shared.model.spec.mixers import QkNorm, ShortConvSpec
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import AttentionSpec

_ARCHITECTURE = "Lfm3ForCausalLM"
_CONV = "conv"
_HEAD_DIM, _KV_HEADS, _WINDOW = 128, 4, 256
#: Rotations where a config has none.
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": PROPORTIONAL, "partial_rotary_factor": 0.5, "rope_theta": 1_000_000.0},
}


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    if raw.get("rope_parameters") is None:
        raw = {**raw, "rope_parameters": _ROPES}
    sizes = read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=_KV_HEADS, layer_type=FULL)
    conv = ShortConvSpec(
        width=sizes.hidden_size,
        kernel_size=int(raw.get("conv_L_cache", 7)),
        bias=bool(raw.get("conv_bias", False)),
    )
    mixers = [
        conv if kind == _CONV else _attention(raw, sizes, kind)
        for kind in _kinds(raw, sizes.num_layers)
    ]
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        mixers,
        sizes.feed_forward(),
        norm=NormSpec(eps=float(raw.get("norm_eps", 1e-5))),
        norms=NormPlace.AROUND if raw.get("use_sandwich_norm", True) else NormPlace.BEFORE,
        is_tied=bool(raw.get("tie_word_embeddings", True)),
        num_positions=sizes.max_position_embeddings,
    )


def _attention(raw: Mapping[str, Any], sizes: Sizes, kind: str) -> AttentionSpec:
    bias = bool(raw.get("attention_bias", False))
    return sizes.attention(
        rope=read_rope(
            raw,
            head_dim=sizes.head_dim,
            max_positions=sizes.max_position_embeddings,
            layer_type=kind,
        ),
        window=read_window(raw, _WINDOW) if kind == SLIDING else None,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNorm.HEAD,
        has_head_gates=bool(raw.get("use_attention_gate", True)),
    )


def _kinds(raw: Mapping[str, Any], num_layers: int) -> list[str]:
    types = raw.get("layer_types")
    if types is None:
        quarter = (SLIDING, _CONV, FULL, _CONV)
        types = [quarter[number % 4] if number else _CONV for number in range(num_layers)]
    unknown = set(types) - {_CONV, SLIDING, FULL}
    if unknown:
        known = f"{_CONV}, {SLIDING}, {FULL}"
        raise ModelLoadError(f"layer_types has {min(unknown)!r}; supported: {known}")
    return [str(each) for each in types]


LFM3 = Family(
    architecture=_ARCHITECTURE,
    model_type="lfm3",
    describe=describe,
    names=Naming(
        norm="model.embedding_norm",
        parts={
            **LLAMA_PARTS,
            "attention_norm": "operator_norm",
            "attention_output_norm": "post_operator_norm",
            "attention.head_gate": "self_attn.gate_proj",
            "attention.inputs": "conv.in_proj",
            "attention.conv": "conv.conv",
            "attention.out": "conv.out_proj",
            "mlp_norm": "ffn_norm",
            "mlp_output_norm": "post_ffn_norm",
            "mlp.gate_up": "feed_forward.w1 feed_forward.w3",
            "mlp.down": "feed_forward.w2",
        },
    ).names,
)
