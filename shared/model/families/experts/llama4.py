"""Llama 4: attention in chunks, layers that rotate nothing, experts that read scaled rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.experts.routers import read_router
from shared.model.families.naming import LLAMA_PARTS, Naming
from shared.model.families.sizes import (
    CHUNKED,
    FULL,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
)
from shared.model.rope import RopeDefaults
from shared.model.spec.feed_forwards import ExpertsSpec, FeedForwardSpec, RouterScores
from shared.model.spec.mixers import QkNorm, TemperatureSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.families.sizes import Sizes
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import AttentionSpec
    from shared.model.weight_map import WeightMap

_ARCHITECTURE = "Llama4ForCausalLM"
_HEAD_DIM, _KV_HEADS, _THETA, _EPS = 128, 8, 500_000.0, 1e-5
_CHUNK, _INTERVAL, _STEP, _SCALE, _DENSE = 8192, 4, 8192, 0.1, 16384


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    rope = RopeDefaults(theta=_THETA, is_interleaved=True)
    sizes = read_sizes(raw, head_dim=_HEAD_DIM, num_kv_heads=_KV_HEADS, rope=rope)
    num, activation = sizes.num_layers, read_activation(raw)
    one = sizes.feed_forward(activation=activation)
    experts = ExpertsSpec(
        router=read_router(raw, scores=RouterScores.SIGMOID, is_normalised=False),
        expert=one,
        shared=one,
        scales_input=True,
    )
    dense = FeedForwardSpec(
        inner_size=int(raw.get("intermediate_size_mlp", _DENSE)), activation=activation
    )
    step = int(raw.get("interleave_moe_layer_step", 1))
    sparse = raw.get("moe_layers")
    if sparse is None:
        sparse = range(step - 1, num, step)
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        _mixers(raw, sizes),
        [experts if number in sparse else dense for number in range(num)],
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", _EPS))),
    )


def _mixers(raw: Mapping[str, Any], sizes: Sizes) -> list[AttentionSpec]:
    """By layer: those that rotate attend to their chunks, unless `layer_types` says otherwise.

    transformers normalises heads behind the rotation, which changes no length of theirs.
    """
    every = int(raw.get("no_rope_layer_interval", _INTERVAL))
    num = sizes.num_layers
    rotates = raw.get("no_rope_layers") or [int((n + 1) % every != 0) for n in range(num)]
    if len(rotates) != num:
        raise ModelLoadError(f"no_rope_layers has {len(rotates)} entries for {num} layers")
    if sizes.rope.rope_type not in ("default", "linear", "llama3"):
        raise ModelLoadError(f"rope_type {sizes.rope.rope_type!r} is not supported")
    types = [CHUNKED if rotate else FULL for rotate in rotates]
    if raw.get("layer_types") is not None:
        types = list(read_layer_types(raw, num, local=CHUNKED))
    chunk = raw.get("attention_chunk_size", _CHUNK)
    if chunk is not None and int(chunk) < 1:
        raise ModelLoadError(f"attention_chunk_size must be at least 1, not {chunk}")
    temperature = None
    if raw.get("attn_temperature_tuning", True):
        scale = float(raw.get("attn_scale", _SCALE))
        temperature = TemperatureSpec(step=int(raw.get("floor_scale", _STEP)), scale=scale)
    bias = bool(raw.get("attention_bias", False))
    plain = sizes.attention(qkv_bias=bias, output_bias=bias, has_qk_norm_weights=False)
    norm = QkNorm.HEAD if raw.get("use_qk_norm", True) else None
    found = []
    for rotate, kind in zip(rotates, types, strict=True):
        own = replace(plain, qk_norm=norm)
        if not rotate:
            own = replace(plain, rope=None, temperature=temperature)
        if kind == CHUNKED and chunk is not None:
            own = replace(own, window=int(chunk), is_chunked=True)
        found.append(own)
    return found


_NAMING = Naming(
    parts={
        **LLAMA_PARTS,
        "mlp.gate_up": "feed_forward.gate_proj feed_forward.up_proj",
        "mlp.down": "feed_forward.down_proj",
        "mlp.router": "feed_forward.router",
        "mlp.experts.gate_up": "feed_forward.experts.gate_up_proj",
        "mlp.experts.down": "feed_forward.experts.down_proj",
        "mlp.shared.gate_up": (
            "feed_forward.shared_expert.gate_proj feed_forward.shared_expert.up_proj"
        ),
        "mlp.shared.down": "feed_forward.shared_expert.down_proj",
    },
    are_experts_transposed=True,
)


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`. Tensors of experts have no `.weight`."""
    return {
        name.removesuffix(".weight") if ".experts." in name else name: stored
        for name, stored in _NAMING.names(spec).items()
    }


_APART = replace(
    _NAMING,
    parts={
        **_NAMING.parts,
        "mlp.experts.gate_up": (
            "feed_forward.experts.{}.gate_proj feed_forward.experts.{}.up_proj"
        ),
        "mlp.experts.down": "feed_forward.experts.{}.down_proj",
    },
)
LLAMA4 = Family(
    architecture=_ARCHITECTURE,
    model_type="llama4_text",
    describe=describe,
    names=names,
    names_apart=_APART.names,
)
