"""Llama 2 and 3, and the tensor names that most families share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.sizes import decoder, read_sizes
from shared.model.spec import GatedSpec
from shared.model.weight_map import EMBEDDING, HEAD, LAYERS, NORM, Kind, Stored, WeightPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shared.model.spec import DecoderSpec, LayerSpec
    from shared.model.weight_map import WeightMap

_ARCHITECTURE = "LlamaForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. One key turns the biases of all four projections of attention on."""
    sizes = read_sizes(raw)
    if sizes.hidden_size % sizes.num_heads:
        raise ModelLoadError(
            f"hidden_size {sizes.hidden_size} is not a multiple of {sizes.num_heads} heads, "
            f"as {_ARCHITECTURE} requires"
        )
    bias = bool(raw.get("attention_bias", False))
    attention = sizes.attention(
        qkv_bias=bias,
        output_bias=bias,
    )
    feed_forward = GatedSpec(
        inner_size=sizes.intermediate_size, bias=bool(raw.get("mlp_bias", False))
    )
    return decoder(raw, _ARCHITECTURE, sizes, [attention] * sizes.num_layers, feed_forward)


def names(spec: DecoderSpec) -> WeightMap:
    """See `Family.names`."""
    rows = (spec.vocab_size, spec.hidden_size)
    found = {
        "model.embed_tokens.weight": Stored(EMBEDDING, rows),
        "model.norm.weight": Stored(NORM, (spec.hidden_size,)),
        "lm_head.weight": Stored(HEAD, rows),
    }
    for number, layer in enumerate(spec.layers):
        found |= layer_names(
            layer, spec.hidden_size, stored=f"model.layers.{number}.", module=f"{LAYERS}.{number}."
        )
    return found


def layer_names(
    layer: LayerSpec,
    hidden_size: int,
    *,
    stored: str,
    module: str = "",
    input_size: int | None = None,
) -> dict[str, Stored]:
    """Return the tensors of one layer, given the prefixes of their names and of the modules' paths.

    input_size: inputs of attention, by default `hidden_size`.
    """
    mixer, feed_forward = layer.mixer, layer.feed_forward
    inner, query, kv = feed_forward.inner_size, mixer.query_size, mixer.kv_size
    found = {
        "input_layernorm.weight": Stored(WeightPart(f"{module}attention_norm"), (hidden_size,)),
        "post_attention_layernorm.weight": Stored(WeightPart(f"{module}mlp_norm"), (hidden_size,)),
    }
    if mixer.qk_norm:
        for name in ("q_norm", "k_norm"):
            part = WeightPart(f"{module}attention.{name}")
            found[f"self_attn.{name}.weight"] = Stored(part, (mixer.head_dim,))
    linears = (
        ("attention.qkv", "self_attn.q_proj self_attn.k_proj self_attn.v_proj", mixer.qkv_bias),
        ("attention.output", "self_attn.o_proj", mixer.output_bias),
        ("mlp.gate_up", "mlp.gate_proj mlp.up_proj", feed_forward.bias),
        ("mlp.down", "mlp.down_proj", feed_forward.bias),
    )
    shapes = {
        "attention.qkv": ((query, kv, kv), input_size or hidden_size),
        "attention.output": ((hidden_size,), query),
        "mlp.gate_up": ((inner, inner), hidden_size),
        "mlp.down": ((hidden_size,), inner),
    }
    for linear, projections, bias in linears:
        sizes, width = shapes[linear]
        found |= dict(_projections(f"{module}{linear}", projections, sizes, width, bias))
    return {f"{stored}{name}": tensor for name, tensor in found.items()}


def _projections(
    module: str, projections: str, sizes: tuple[int, ...], width: int, bias: bool
) -> Iterator[tuple[str, Stored]]:
    for index, (name, size) in enumerate(zip(projections.split(), sizes, strict=True)):
        yield f"{name}.weight", Stored(WeightPart(module, index=index), (size, width))
        if bias:
            yield f"{name}.bias", Stored(WeightPart(module, Kind.BIAS, index), (size,))


LLAMA = Family(architecture=_ARCHITECTURE, model_type="llama", describe=describe, names=names)
