"""From a checkpoint's directory to a model that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shared.errors import ConfigError
from shared.model.attention.registry import get_backend
from shared.model.config import load_config
from shared.model.fingerprint import fingerprint_checkpoint, fingerprint_dummy
from shared.model.llama import CausalLM
from shared.model.weights import load_weights

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.config import ModelConfig

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LOAD_FORMATS = ("auto", "safetensors", "dummy")
#: Standard deviation of dummy weights, as transformers initialises.
_DUMMY_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with its weights."""

    model: CausalLM
    config: ModelConfig
    dtype: torch.dtype
    #: Equal on two hosts exactly if they compute the same.
    fingerprint: str
    num_weight_bytes: int


def load_model(
    model_dir: Path,
    *,
    dtype: str = "auto",
    load_format: str = "auto",
    seed: int = 0,
    device: str | torch.device = "cpu",
    attention_backend: str = "torch",
) -> LoadedModel:
    """Load a checkpoint, or make its weights from a seed with `load_format="dummy"`.

    `auto` is the checkpoint's own dtype, and safetensors as the format.

    Raises:
        ConfigError: an unknown dtype, load format or attention backend.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    if load_format not in LOAD_FORMATS:
        raise ConfigError(f"load format {load_format!r} is unknown; known: {LOAD_FORMATS}")
    config = load_config(model_dir)
    name = config.dtype if dtype == "auto" else dtype
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown; known: auto, {', '.join(DTYPES)}")
    backend = get_backend(attention_backend)
    with torch.device(device):
        model = CausalLM(config=config, backend=backend, dtype=DTYPES[name]).eval()
    if load_format == "dummy":
        _fill_with_noise(model, seed)
        fingerprint = fingerprint_dummy(config.raw, name, seed)
    else:
        load_weights(model, model_dir)
        fingerprint = fingerprint_checkpoint(model_dir, config.raw, name)
    return LoadedModel(
        model=model,
        config=config,
        dtype=DTYPES[name],
        fingerprint=fingerprint,
        num_weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
    )


def _fill_with_noise(model: CausalLM, seed: int) -> None:
    """Drawn on the host in float32, so that a seed means the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            noise = torch.empty(parameter.shape).normal_(0.0, _DUMMY_STD, generator=generator)
            parameter.copy_(noise)
