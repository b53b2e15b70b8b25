"""Gemma 4: layers that share keys and values, and rows of a token for each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import (
    FULL,
    SLIDING,
    check_size,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
    read_window,
)
from shared.model.rope import PROPORTIONAL, read_rope
from shared.model.spec.decoder import LayerInputsSpec
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.mixers import AttentionSpec, QkNorm
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.families.sizes import FeedForward, Sizes
    from shared.model.rope import RopeConfig
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.feed_forwards import Activation
    from shared.model.weight_map import WeightMap

_ARCHITECTURE = "Gemma4ForCausalLM"
_HEAD_DIM, _FULL_HEAD_DIM, _KV_HEADS, _WINDOW = 256, 512, 4, 512
_INPUT_SIZE, _NUM_INPUT_ROWS = 256, 262_144
#: Rotations where a config has none.
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": PROPORTIONAL, "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    if raw.get("use_bidirectional_attention") == "all":
        raise ModelLoadError("use_bidirectional_attention is 'all': that is no decoder")
    if raw.get("rope_parameters") is None:
        raw = {**raw, "rope_parameters": _ROPES}
    sizes = read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=_KV_HEADS, layer_type=SLIDING)
    mixers = _mixers(raw, sizes)
    cap = raw.get("final_logit_softcapping")
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        mixers,
        [_feed_forward(raw, sizes, mixer) for mixer in mixers],
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-6))),
        norms=NormPlace.AROUND,
        has_scale=True,
        embedding_multiplier=float(sizes.hidden_size**0.5),
        layer_inputs=_layer_inputs(raw, sizes),
        logit_softcap=None if cap is None else float(cap),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
        num_positions=sizes.max_position_embeddings,
    )


def _mixers(raw: Mapping[str, Any], sizes: Sizes) -> list[AttentionSpec]:
    """By layer: the last ones read what the last one of their type in front of them keeps."""
    num = sizes.num_layers
    types = [*read_layer_types(raw, num, full_every=6)[:-1], FULL]
    num_shared = int(raw.get("num_kv_shared_layers") or 0)
    first_shared = num - num_shared
    if not 0 < first_shared <= num:
        raise ModelLoadError(f"num_kv_shared_layers is {num_shared} of {num} layers")
    window, found = read_window(raw, _WINDOW), []
    for number, kind in enumerate(types):
        own = _attention(raw, sizes, number, kind)
        if kind == SLIDING:
            own = replace(own, window=window)
        if number >= first_shared:
            if kind not in types[:first_shared]:
                raise ModelLoadError(
                    f"num_kv_shared_layers is {num_shared}: layer {number} has no layer of type "
                    f"{kind} in front whose keys and values it could read"
                )
            own = replace(own, kv_source=_last(types[:first_shared], kind))
        found.append(own)
    return found


def _last(types: Sequence[str], kind: str) -> int:
    return len(types) - 1 - types[::-1].index(kind)


def _attention(raw: Mapping[str, Any], sizes: Sizes, number: int, kind: str) -> AttentionSpec:
    """The attention of a layer with keys and values of its own, over all tokens."""
    bias = bool(raw.get("attention_bias", False))
    head_dim, num_kv_heads = _heads(raw, sizes, number, kind)
    check_size("head_dim", head_dim)
    check_size("num_kv_heads", num_kv_heads)
    if head_dim % 2 or sizes.num_heads % num_kv_heads:
        raise ModelLoadError(
            f"layer {number} has {sizes.num_heads} heads of {head_dim}, and {num_kv_heads} for keys"
        )
    return sizes.attention(
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        rope=_rope(raw, sizes, head_dim, kind),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNorm.HEAD,
        score_scale=1.0,
        values_are_keys=bool(raw.get("attention_k_eq_v")) and kind == FULL,
        has_value_norm=True,
    )


def _heads(raw: Mapping[str, Any], sizes: Sizes, number: int, kind: str) -> tuple[int, int]:
    """Return a layer's head size and its number of heads for keys.

    Configs of the hub say it for all layers without a window, those of transformers 5 by layer.
    """
    own = (raw.get("per_layer_config") or {}).get(str(number), {})
    if raw.get("per_layer_config") is None and kind == FULL:
        own = {"head_dim": raw.get("global_head_dim", _FULL_HEAD_DIM)}
        if raw.get("attention_k_eq_v") and raw.get("num_global_key_value_heads") is not None:
            own["num_key_value_heads"] = raw["num_global_key_value_heads"]
    unknown = own.keys() - {"head_dim", "num_key_value_heads"}
    if unknown:
        raise ModelLoadError(f"per_layer_config of layer {number} has {min(unknown)!r}")
    head_dim, num_kv_heads = own.get("head_dim"), own.get("num_key_value_heads")
    return (
        sizes.head_dim if head_dim is None else int(head_dim),
        sizes.num_kv_heads if num_kv_heads is None else int(num_kv_heads),
    )


def _rope(raw: Mapping[str, Any], sizes: Sizes, head_dim: int, kind: str) -> RopeConfig:
    max_positions = sizes.max_position_embeddings
    return read_rope(raw, head_dim=head_dim, max_positions=max_positions, layer_type=kind)


def _feed_forward(raw: Mapping[str, Any], sizes: Sizes, mixer: AttentionSpec) -> FeedForward:
    is_wide = bool(raw.get("use_double_wide_mlp")) and mixer.kv_source is not None
    own = sizes.feed_forward(activation=_activation(raw))
    if is_wide:
        own = replace(own, inner_size=own.inner_size * 2)
    if not raw.get("enable_moe_block"):
        return own
    inner = int(raw["moe_intermediate_size"])
    check_size("intermediate_size", inner)
    return ExpertsSpec(
        router=read_router(
            raw, chosen="top_k_experts", has_input_scale=True, has_expert_scale=True
        ),
        expert=replace(own, inner_size=inner),
        shared=own,
        is_apart=True,
    )


def _activation(raw: Mapping[str, Any]) -> Activation:
    return read_activation(raw, "hidden_activation", default="gelu_pytorch_tanh")


def _layer_inputs(raw: Mapping[str, Any], sizes: Sizes) -> LayerInputsSpec | None:
    size = int(raw.get("hidden_size_per_layer_input", _INPUT_SIZE) or 0)
    if size == 0:
        return None
    num_rows = int(raw.get("vocab_size_per_layer_input", _NUM_INPUT_ROWS))
    check_size("hidden_size", size)
    check_size("vocab_size", num_rows)
    if num_rows < sizes.vocab_size:
        raise ModelLoadError(
            f"vocab_size_per_layer_input is {num_rows}, but vocab_size is {sizes.vocab_size}"
        )
    return LayerInputsSpec(size=size, num_rows=num_rows, activation=_activation(raw))


_NAMING = Naming(
    parts={
        **LLAMA_PARTS,
        "attention_output_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
        "mlp.shared.gate_up": LLAMA_PARTS["mlp.gate_up"],
        "mlp.shared.down": LLAMA_PARTS["mlp.down"],
        "mlp.shared_norm": "post_feedforward_layernorm_1",
        "mlp.input_norm": "pre_feedforward_layernorm_2",
        "mlp.output_norm": "post_feedforward_layernorm_2",
        "mlp.router": "router.proj",
        "mlp.router_scale": "router.scale",
        "mlp.expert_scale": "router.per_expert_scale",
        "mlp.experts.gate_up": "experts.gate_up_proj",
        "mlp.experts.down": "experts.down_proj",
        "input_gate.gate": "per_layer_input_gate",
        "input_gate.up": "per_layer_projection",
        "input_gate.norm": "post_per_layer_input_norm",
        "scale": "layer_scalar",
    },
    inputs=(
        "model.embed_tokens_per_layer",
        "model.per_layer_model_projection",
        "model.per_layer_projection_norm",
    ),
)


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. Tensors of experts have no `.weight`."""
    return {
        name.removesuffix(".weight") if ".experts." in name else name: stored
        for name, stored in _NAMING.names(spec).items()
    }


GEMMA4 = Family(
    architecture=_ARCHITECTURE, model_type="gemma4_text", describe=describe, names=names
)
