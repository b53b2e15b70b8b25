"""Fills a model from sharded safetensors, one tensor at a time, straight into its place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from shared.model.llama import CausalLM, DecoderLayer

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
#: Buffers that old checkpoints carry and that are computed instead.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".masked_bias")


def shard_paths(model_dir: Path) -> list[Path]:
    """The checkpoint's files in a fixed order.

    Raises:
        ModelLoadError: none are there, or one that the index names is missing.
    """
    index = model_dir / _INDEX
    if not index.exists():
        single = model_dir / _SINGLE
        if not single.exists():
            raise ModelLoadError(f"{model_dir} has neither {_SINGLE} nor {_INDEX}")
        return [single]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"{index} is not a safetensors index: {error!r}") from error
    for name in names:
        if not (model_dir / name).exists():
            raise ModelLoadError(f"{model_dir / name} is missing; {_INDEX} names it")
    return [model_dir / name for name in names]


def load_weights(model: CausalLM, model_dir: Path) -> None:
    """Copy every tensor into the model.

    Raises:
        ModelLoadError: a tensor is missing, unknown or of a wrong shape, or a file is damaged.
    """
    targets = weight_targets(model)
    missing = set(targets)
    stored_head: Tensor | None = None
    for path, name, tensor in _stored_tensors(shard_paths(model_dir)):
        if name in targets:
            _copy(targets[name], tensor, path, name)
            missing.discard(name)
        elif name == "lm_head.weight":
            stored_head = tensor
        elif not name.endswith(_IGNORED_SUFFIXES):
            raise ModelLoadError(f"{path} has a tensor {name!r} that the model does not have")
    if missing:
        raise ModelLoadError(
            f"{model_dir} lacks the tensor {min(missing)!r} ({len(missing)} in all)"
        )
    if stored_head is not None:
        _untie_if_different(model, stored_head)


def weight_targets(model: CausalLM) -> dict[str, Tensor]:
    """Where each tensor of a checkpoint goes: views into the fused parameters."""
    targets: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm.weight,
    }
    if model.lm_head is not model.embedding:
        targets["lm_head.weight"] = model.lm_head
    for number, layer in enumerate(model.decoder_layers):
        for name, tensor in _layer_targets(layer):
            targets[f"model.layers.{number}.{name}"] = tensor
    return targets


def _layer_targets(layer: DecoderLayer) -> Iterator[tuple[str, Tensor]]:
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


def _untie_if_different(model: CausalLM, stored: Tensor) -> None:
    """The config says tied, yet a head is stored: it counts if it differs, as in transformers 5."""
    head = stored.to(model.dtype)
    if not torch.equal(head, model.embedding):
        model.lm_head = torch.nn.Parameter(head, requires_grad=False)


def _stored_tensors(paths: list[Path]) -> Iterator[tuple[Path, str, Tensor]]:
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 it is not a dict
                    yield path, name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path} is damaged or truncated: {error}") from error


def _copy(target: Tensor, stored: Tensor, path: Path, name: str) -> None:
    if target.shape != stored.shape:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has shape {list(stored.shape)}, "
            f"the config asks for {list(target.shape)}"
        )
    if not stored.is_floating_point():
        raise ModelLoadError(f"{path}: tensor {name!r} has dtype {stored.dtype}, not a float")
    target.copy_(stored)
