"""Writes drafts in published formats: heads of random weights, and a target's first layers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from shared.errors import ConfigError
from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.files.checkpoint_files import SINGLE_NAME, find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import stored_tensors
from shared.model.families.naming import Naming
from shared.model.families.registry import stored_names
from shared.model.spec.decoder import LayerSpec
from shared.model.spec.feed_forwards import FeedForwardSpec
from shared.model.spec.mixers import AttentionSpec, LatentAttentionSpec
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.spec.decoder import DecoderSpec

#: By method: the architecture in its config.
METHODS = {
    "eagle": "LlamaForCausalLMEagle",
    "eagle3": "LlamaForCausalLMEagle3",
    "medusa": "MedusaModel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """Description of a head to write for a target."""

    method: str
    #: EAGLE: number of decoder layers; Medusa: residual blocks per head.
    num_layers: int = 1
    #: Medusa: number of heads.
    num_heads: int = 4
    #: EAGLE-3: number of tokens that the head knows; None: all.
    draft_vocab_size: int | None = None
    #: Whether EAGLE heads have an embedding instead of using the target's.
    has_embedding: bool = True
    #: Write PyTorch's format instead of safetensors.
    as_bin: bool = False
    seed: int = 0
    weight_std: float = 0.1


def write_random_head(out: Path, target_dir: Path, spec: HeadSpec) -> None:
    """Write config and weights into `out`; equal target config and spec give equal weights.

    Raises:
        ConfigError: an unknown method.
        ModelLoadError: the target's config cannot be read.
    """
    if spec.method not in METHODS:
        raise ConfigError(f"method {spec.method!r} is unknown; known: {sorted(METHODS)}")
    target = load_spec(target_dir)
    shapes = {"eagle": _eagle, "eagle3": _eagle3, "medusa": _medusa}[spec.method](target, spec)
    generator = torch.Generator().manual_seed(spec.seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        mean = 1.0 if "norm" in name else 0.0
        tensors[name] = torch.empty(shape).normal_(mean, spec.weight_std, generator=generator)
    if spec.method == "eagle3" and spec.draft_vocab_size is not None:
        tensors |= _vocabulary(target.vocab_size, spec.draft_vocab_size, generator)
    raw: dict[str, Any] = {**target.raw, "architectures": [METHODS[spec.method]]}
    raw.pop("layer_types", None)
    if _differs_from_llama(target):
        # Heads of all families have Llama's layers.
        plain = _head_layer(target)
        assert plain.feed_forward is not None
        raw |= {"model_type": "llama", "intermediate_size": plain.feed_forward.inner_size}
        if target.has_latents or target.has_states or len(target.ropes) > 1:
            own = plain.attention
            raw |= {"num_key_value_heads": own.num_kv_heads, "head_dim": own.head_dim}
            raw |= {"rope_parameters": None}
    if spec.method == "medusa":
        raw |= {"medusa_num_heads": spec.num_heads, "medusa_num_layers": spec.num_layers}
    else:
        raw |= {"num_hidden_layers": spec.num_layers}
    if spec.method == "eagle3":
        raw["draft_vocab_size"] = spec.draft_vocab_size or target.vocab_size
    write_tensors(out, raw, tensors, as_bin=spec.as_bin)


def write_sliced_checkpoint(out: Path, source: Path, num_layers: int) -> None:
    """Write the first layers of a checkpoint, with its embedding, last norm and output head.

    Raises:
        ModelLoadError: the source cannot be read.
    """
    spec = load_spec(source)
    beyond = {
        name
        for name, each in stored_names(spec).items()
        if each.part.layer is not None and each.part.layer >= num_layers
    }
    tensors = {
        name: tensor
        for _, name, tensor in stored_tensors(find_checkpoint_files(source).shards)
        if name not in beyond
    }
    raw = {**spec.raw, "num_hidden_layers": num_layers}
    if "layer_types" in raw:
        raw["layer_types"] = raw["layer_types"][:num_layers]
    write_tensors(out, raw, tensors)


def write_tensors(
    out: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor], *, as_bin: bool = False
) -> None:
    """Write a directory of config and weights."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(dict(raw), indent=2) + "\n", encoding="utf-8")
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if as_bin:
        torch.save(contiguous, out / "pytorch_model.bin")
    else:
        save_file(contiguous, out / SINGLE_NAME, metadata={"format": "pt"})


def _eagle(target: DecoderSpec, spec: HeadSpec) -> dict[str, tuple[int, ...]]:
    size = target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (size, 2 * size), "fc.bias": (size,)}
    if spec.has_embedding:
        shapes["embed_tokens.weight"] = (target.vocab_size, size)
    for number in range(spec.num_layers):
        shapes |= _layer(target, f"layers.{number}", size)
        if number == 0:
            del shapes["layers.0.input_layernorm.weight"]
    return shapes


def _eagle3(target: DecoderSpec, spec: HeadSpec) -> dict[str, tuple[int, ...]]:
    size = target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, 3 * size),
        "norm.weight": (size,),
        "lm_head.weight": (spec.draft_vocab_size or target.vocab_size, size),
        "midlayer.hidden_norm.weight": (size,),
    }
    if spec.has_embedding:
        shapes["embed_tokens.weight"] = (target.vocab_size, size)
    return shapes | _layer(target, "midlayer", 2 * size)


def _medusa(target: DecoderSpec, spec: HeadSpec) -> dict[str, tuple[int, ...]]:
    size = target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(spec.num_heads):
        for block in range(spec.num_layers):
            shapes[f"medusa_head.{head}.{block}.linear.weight"] = (size, size)
            shapes[f"medusa_head.{head}.{block}.linear.bias"] = (size,)
        shapes[f"medusa_head.{head}.{spec.num_layers}.weight"] = (target.vocab_size, size)
    return shapes


def _layer(target: DecoderSpec, stored: str, input_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a target layer's tensors, without biases and norms of heads."""
    own = replace(target, layers=(_head_layer(target),), layer_inputs=None)
    names = Naming().layer_names(own, 0, stored=f"{stored}.", input_size=input_size)
    return {name: each.shape for name, each in names.items()}


def _vocabulary(vocab_size: int, num_known: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return `d2t`, the differences of the known tokens' ids, and `t2d`, which tokens are known."""
    known = torch.randperm(vocab_size, generator=generator)[:num_known].sort().values
    is_known = torch.zeros(vocab_size, dtype=torch.bool)
    is_known[known] = True
    return {"d2t": known - torch.arange(num_known), "t2d": is_known}


def _differs_from_llama(target: DecoderSpec) -> bool:
    is_before = target.layers[0].norms is NormPlace.BEFORE
    has_others = target.has_latents or target.has_states or target.has_chunks
    return not is_before or target.has_experts or has_others


def _head_layer(target: DecoderSpec) -> LayerSpec:
    """Return a head's layer: like the first one that attends, as far as Llama's layers can be."""
    first = next(iter(target.attentions.values()))
    if isinstance(first, LatentAttentionSpec):
        size = 2 * max(1, target.hidden_size // first.num_heads // 2)
        # One key and value per token: blocks of the target, from which pages of a head are cut,
        # have one short row.
        first = AttentionSpec(num_heads=first.num_heads, num_kv_heads=1, head_dim=size, rope=None)
    inner = next((own.feed_forward for own in target.layers if own.feed_forward), None)
    return LayerSpec(
        mixer=replace(
            first,
            qkv_bias=False,
            output_bias=False,
            qk_norm=None,
            has_gate=False,
            values_are_keys=False,
            has_value_norm=False,
        ),
        feed_forward=FeedForwardSpec(
            inner_size=target.hidden_size if inner is None else inner.inner_size
        ),
    )
