"""Fills a model from sharded safetensors, one tensor at a time, straight into its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint_files import CheckpointFiles
    from shared.model.llama import CausalLM, DecoderLayer

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
#: Buffers that old checkpoints carry and that are computed instead.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".masked_bias")
_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_weights(model: CausalLM, files: CheckpointFiles) -> None:
    """Copy every tensor into the model. Needs memory for one tensor beside the model's own.

    Raises:
        ModelLoadError: a tensor is missing, unknown, doubled or of a wrong shape or dtype, or a
            file is missing or damaged.
    """
    targets = weight_targets(model)
    seen: set[str] = set()
    tied_head: Tensor | None = None
    for path, name, tensor in stored_tensors(files.shards):
        if name in seen:
            raise ModelLoadError(f"{path}: tensor {name!r} is in another shard already")
        if name in targets:
            copy_stored(targets[name], tensor, path, name)
            seen.add(name)
        elif name == _HEAD:  # the config says that it is tied
            tied_head = torch.empty_like(model.embedding)
            copy_stored(tied_head, tensor, path, name)
        elif not name.endswith(_IGNORED_SUFFIXES):
            raise ModelLoadError(f"{path}: tensor {name!r} is not part of {_describe(model)}")
    if tied_head is not None:
        _resolve_tie(model, tied_head, seen)
    missing = targets.keys() - seen
    if missing:
        name = min(missing)
        raise ModelLoadError(
            f"{files.expected_in(name)}: tensor {name!r} is missing "
            f"({len(missing)} of {len(targets)} are)"
        )


def weight_targets(model: CausalLM) -> dict[str, Tensor]:
    """Where each tensor of a checkpoint goes: views into the fused parameters."""
    targets: dict[str, Tensor] = {
        _EMBEDDING: model.embedding,
        "model.norm.weight": model.norm.weight,
    }
    if model.lm_head is not model.embedding:
        targets[_HEAD] = model.lm_head
    for number, layer in enumerate(model.decoder_layers):
        for name, tensor in layer_targets(layer):
            targets[f"model.layers.{number}.{name}"] = tensor
    return targets


def layer_targets(layer: DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    """The same of one layer, without the prefix of its number."""
    attention, mlp = layer.attention, layer.mlp
    yield "input_layernorm.weight", layer.attention_norm.weight
    yield "post_attention_layernorm.weight", layer.mlp_norm.weight
    if attention.q_norm is not None and attention.k_norm is not None:
        yield "self_attn.q_norm.weight", attention.q_norm.weight
        yield "self_attn.k_norm.weight", attention.k_norm.weight
    fused = (
        (attention.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        (attention.output, ("self_attn.o_proj",)),
        (mlp.gate_up, ("mlp.gate_proj", "mlp.up_proj")),
        (mlp.down, ("mlp.down_proj",)),
    )
    for module, names in fused:
        for index, name in enumerate(names):
            weight, bias = module.part(index)
            yield f"{name}.weight", weight
            if bias is not None:
                yield f"{name}.bias", bias


def _resolve_tie(model: CausalLM, head: Tensor, seen: set[str]) -> None:
    """What to do with a head that is stored although the config says tied; as transformers 5.

    If it differs from the embedding, both are used; without an embedding, it serves as both.
    """
    if _EMBEDDING not in seen:
        model.embedding.copy_(head)
        seen.add(_EMBEDDING)
    elif not torch.equal(head, model.embedding):
        model.lm_head = torch.nn.Parameter(head, requires_grad=False)


def stored_tensors(paths: Iterable[Path]) -> Iterator[tuple[Path, str, Tensor]]:
    """Every tensor of these safetensors files. Raises ModelLoadError: one is damaged."""
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 it is not a dict
                    yield path, name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error


def copy_stored(target: Tensor, stored: Tensor, path: Path, name: str) -> None:
    """Copy one tensor into its place. Raises ModelLoadError: its shape or dtype is wrong."""
    if target.shape != stored.shape:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has shape {list(stored.shape)}, "
            f"the config asks for {list(target.shape)}"
        )
    if stored.dtype not in _STORED_DTYPES:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has dtype {stored.dtype}; supported: "
            f"{', '.join(map(str, _STORED_DTYPES))}"
        )
    target.copy_(stored)


def _describe(model: CausalLM) -> str:
    return f"{model.config.architecture} with {model.config.num_layers} layers as configured"
