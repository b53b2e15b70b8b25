"""Adapters in PEFT's format for a random checkpoint, and the checkpoint with one merged into it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
_PREFIX = "base_model.model."


def write_lora(
    base: Path,
    folder: Path,
    *,
    seed: int,
    rank: int = 4,
    alpha: float = 6,
    targets: Sequence[str] = ALL,
    std: float = 0.1,
) -> Path:
    """Write a random adapter of the checkpoint `base`, float32."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in _weights(base).items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in targets:
            a = torch.randn(rank, weight.shape[1], generator=generator) * std
            b = torch.randn(weight.shape[0], rank, generator=generator) * std
            tensors[f"{_PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{_PREFIX}{module}.lora_B.weight"] = b
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merge(base: Path, adapter: Path, out: Path) -> Path:
    """Write the checkpoint in which an adapter's products are part of the weights, float32."""
    shutil.copytree(base, out)
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    parts = load_file(adapter / "adapter_model.safetensors")
    for file in out.glob("*.safetensors"):
        weights = load_file(file)
        for name in weights:
            module = _PREFIX + name.removesuffix(".weight")
            if f"{module}.lora_A.weight" in parts:
                delta = parts[f"{module}.lora_B.weight"] @ parts[f"{module}.lora_A.weight"]
                weights[name] = weights[name] + scale * delta
        save_file(weights, file, metadata={"format": "pt"})
    return out


def _weights(base: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(base.glob("*.safetensors")):
        found |= load_file(file)
    return found
