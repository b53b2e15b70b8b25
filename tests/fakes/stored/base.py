"""What writers of formats have in common."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Written:
    """A matrix as it is stored."""

    #: By what their names have behind that of the linear.
    tensors: Mapping[str, Tensor]
    #: What the tensors mean, float32 [rows, columns].
    dense: Tensor


class Writer(Protocol):
    """A format with its settings."""

    @property
    def config(self) -> dict[str, Any]:
        """The `quantization_config`."""
        ...

    def write(self, weight: Tensor) -> Written:
        """Quantise a weight float32 [rows, columns]."""
        ...


class RoundingWriter(Writer, Protocol):
    """A format that rounds the inputs of linears, too."""

    def round_inputs(self, x: Tensor) -> Tensor:
        """Return what float32 inputs [..., columns] of a linear are rounded to."""
        ...


def quantise_checkpoint(
    source: Path,
    target: Path,
    writer: Writer,
    wants: Callable[[str], bool],
    *,
    is_turned: bool = False,
) -> dict[str, Tensor]:
    """Write a checkpoint whose matrices are quantised if `wants` their names.

    is_turned: the source has them as [columns, rows]. Returns the tensors of the dense model that
    it means.
    """
    stored: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not wants(name):
            stored[name] = dense[name] = tensor
            continue
        written = writer.write(tensor.T if is_turned else tensor)
        base = name.removesuffix(".weight")
        stored |= {
            base + suffix: part.contiguous().clone() for suffix, part in written.tensors.items()
        }
        dense[name] = written.dense.T.contiguous() if is_turned else written.dense
    target.mkdir(parents=True, exist_ok=True)
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = writer.config
    (target / "config.json").write_text(json.dumps(config))
    return dense


def random_weight(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Float32 numbers around zero, whose rows differ in size."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.linspace(0.2, 3.0, rows).unsqueeze(1)
    return torch.randn(rows, columns, generator=generator) * sizes
