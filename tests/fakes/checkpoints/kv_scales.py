"""Checkpoints with scales of keys and values, and the library that says what they mean."""

from __future__ import annotations

import inspect
import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import transformers
    from torch import Tensor

_KINDS = {"int8": ("int", 127.0), "fp8": ("float", 448.0)}
#: Less than the peak of what was seen: some numbers are limited.
_SHARE = 0.8


def kv_config(kind: str, *, by_head: bool) -> dict[str, Any]:
    """The quantization_config of a model whose keys and values alone are quantised."""
    scheme = {
        "num_bits": 8,
        "type": _KINDS[kind][0],
        "strategy": "attn_head" if by_head else "tensor",
        "dynamic": False,
        "symmetric": True,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "config_groups": {},
        "kv_cache_scheme": scheme,
    }


def own_name(layer: int, letter: str) -> str:
    """The name in compressed-tensors' files."""
    return f"model.layers.{layer}.self_attn.{letter}_scale"


def write_kv_scales(
    source: Path,
    target: Path,
    kind: str,
    *,
    by_head: bool = False,
    config: dict[str, Any] | None = None,
    name: Callable[[int, str], str] = own_name,
) -> Path:
    """Copy a checkpoint, and add scales for what it keeps of some tokens.

    by_head: [heads, 1, 1] each; otherwise [1].
    """
    shutil.copytree(source, target, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tensors = load_file(target / "model.safetensors")
    for layer, pair in _kept(model).items():
        for letter, numbers in zip("kv", pair, strict=True):
            peaks = numbers.abs().amax(dim=(0, 2, 3))
            scale = _SHARE * (peaks if by_head else peaks.max()[None]) / _KINDS[kind][1]
            tensors[name(layer, letter)] = scale[:, None, None] if by_head else scale
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((target / "config.json").read_text())
    raw["quantization_config"] = config or kv_config(kind, by_head=by_head)
    (target / "config.json").write_text(json.dumps(raw))
    return target


def add_kv_scales(source: Path, target: Path) -> None:
    """Give a quantised checkpoint the scales for 8-bit floats of its dense one, one per layer."""
    path = target / "model.safetensors"
    scales = {
        name: tensor
        for name, tensor in load_file(source / "model.safetensors").items()
        if name.endswith(("k_scale", "v_scale"))
    }
    save_file(load_file(path) | scales, path, metadata={"format": "pt"})
    raw = json.loads((target / "config.json").read_text())
    own = raw["quantization_config"]
    if own["quant_method"] == "quark":
        spec = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "symmetric": True}
        own["kv_cache_quant_config"] = {
            f"*{letter}_proj": {"output_tensors": {**spec, "is_dynamic": False}} for letter in "kv"
        }
    else:
        own["kv_cache_scheme"] = kv_config("fp8", by_head=False)["kv_cache_scheme"]
    (target / "config.json").write_text(json.dumps(raw))


@torch.inference_mode()
def _kept(model: transformers.PreTrainedModel) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer that has some: keys and values [1, heads, tokens, size]."""
    tokens = torch.arange(64).unsqueeze(0) % model.config.vocab_size
    cache = DynamicCache(config=model.config)
    _forward(model, tokens, cache)
    return {
        number: (layer.keys, layer.values)
        for number, layer in enumerate(cache.layers)
        # Layers that read another one's have None.
        if getattr(layer, "keys", None) is not None
    }


class RoundingCache(DynamicCache):
    """Keeps what the format's own library makes of keys and values."""

    def __init__(self, stored: Path, config: transformers.PretrainedConfig) -> None:
        super().__init__(config=config)
        raw = json.loads((stored / "config.json").read_text())
        self._settings = QuantizationArgs(**raw["quantization_config"]["kv_cache_scheme"])
        self._tensors = load_file(stored / "model.safetensors")

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Round, then keep, and return what is kept so far."""
        rounded = []
        for letter, numbers in (("k", key_states), ("v", value_states)):
            scale = self._tensors[own_name(layer_idx, letter)]
            zeros = torch.zeros_like(scale)
            rounded.append(fake_quantize(numbers, scale, zeros, self._settings))
        both: tuple[Tensor, Tensor] = super().update(*rounded, layer_idx, *args, **kwargs)
        return both


@torch.inference_mode()
def rounded_logits(
    model: transformers.PreTrainedModel, stored: Path, prompt: list[int], answer: list[int]
) -> Tensor:
    """float32 [len(answer), vocab]: the logits that each token of an answer is chosen from.

    model: transformers' module of the checkpoint; stored: the same with scales by
    compressed-tensors' names.
    """
    ids = torch.tensor([[*prompt, *answer]])
    out = _forward(model, ids, RoundingCache(stored, model.config))
    return out[0, len(prompt) - 1 : -1]


def _forward(model: transformers.PreTrainedModel, ids: Tensor, cache: DynamicCache) -> Tensor:
    """Return logits; a cache's argument has had two names."""
    names = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    logits: Tensor = model(ids, use_cache=True, **{name: cache}).logits
    return logits
