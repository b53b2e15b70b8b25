"""From a checkpoint's directory to a model that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import torch

from shared.errors import ConfigError
from shared.model.attention.registry import default_backend, get_backend
from shared.model.config import load_config
from shared.model.fingerprint import fingerprint_checkpoint, fingerprint_dummy
from shared.model.headers import check_headers
from shared.model.llama import CausalLM
from shared.model.native.choice import suits_this_cpu, why_not_native
from shared.model.native.model import NativeCausalLM
from shared.model.native.threads import plan_threads
from shared.model.quantized_weights import check_quantization, quantize_weights
from shared.model.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shared.model.config import ModelConfig
    from shared.model.native.threads import ThreadPlan

log = structlog.get_logger(__name__)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LOAD_FORMATS = ("auto", "safetensors", "dummy")
QUANTIZATIONS = ("none", "int8", "fp8", "int4")
#: Standard deviation of dummy weights, as transformers initialises.
_DUMMY_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with its weights."""

    model: CausalLM | NativeCausalLM
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
    attention_backend: str = "auto",
    quantization: str = "none",
    num_threads: int | None = None,
    beside: LoadedModel | None = None,
) -> LoadedModel:
    """Load a checkpoint, or make its weights from a seed with `load_format="dummy"`.

    `auto` is the checkpoint's own dtype, safetensors as the format, and as the backend the native
    kernels where they run on a CPU, Triton's on a GPU, otherwise torch. `num_threads` compute, by
    default one per core. `quantization` narrows the weights while they are loaded: on a CPU
    int8 computes with the native kernels, what else there is with PyTorch or Triton. Models that
    never compute at the same time share threads, if one is loaded `beside` the other.

    Raises:
        ConfigError: an unknown dtype, load format, backend or quantization, or native kernels that
            are asked for and cannot be had; says why.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    _check_known("load format", load_format, LOAD_FORMATS)
    _check_known("quantization", quantization, QUANTIZATIONS)
    config = _checked_config(model_dir, load_format)
    name = config.dtype if dtype == "auto" else dtype
    _check_known("dtype", name, ("auto", *DTYPES))
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    place = torch.device(device)
    native = _wants_native(attention_backend, quantization, name, place)
    narrows = quantization != "none" and not native
    with torch.device("cpu") if narrows else place:
        backend = get_backend(_python_backend(attention_backend, place))
        model = CausalLM(config=config, backend=backend, dtype=DTYPES[name]).eval()
    weights = name if quantization == "none" else quantization
    source = seed if load_format == "dummy" else model_dir
    fingerprint = _fill(model, source, f"{name}/{weights}")
    if narrows:
        quantize_weights(model, quantization, place, implementation=backend.name)
    threads = plan_threads(num_threads)
    loaded = _packed(model, weights, threads, beside) if native else model
    return _describe(loaded, config, fingerprint)


def _describe(
    model: CausalLM | NativeCausalLM, config: ModelConfig, fingerprint: str
) -> LoadedModel:
    return LoadedModel(
        model=model,
        config=config,
        dtype=model.dtype,
        fingerprint=fingerprint,
        num_weight_bytes=model.num_weight_bytes,
    )


def _packed(
    model: CausalLM, weights: str, threads: ThreadPlan, beside: LoadedModel | None
) -> NativeCausalLM:
    other = None if beside is None or isinstance(beside.model, CausalLM) else beside.model
    return NativeCausalLM(model, weights=weights, threads=threads, beside=other)


def _fill(model: CausalLM, made_from: Path | int, dtypes: str) -> str:
    """Give the model its weights, from a checkpoint or a seed; returns the fingerprint."""
    raw = model.config.raw
    if isinstance(made_from, int):
        _fill_with_noise(model, made_from)
        return fingerprint_dummy(raw, dtypes, made_from)
    load_weights(model, made_from)
    return fingerprint_checkpoint(made_from, raw, dtypes)


def _checked_config(model_dir: Path, load_format: str) -> ModelConfig:
    config = load_config(model_dir)
    if load_format != "dummy":
        check_headers(model_dir, config)
    return config


def _check_known(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError(f"{what} {name!r} is unknown; known: {', '.join(known)}")


def _python_backend(name: str, device: torch.device) -> str:
    """What computes in Python; native kernels take their weights from such a model, too."""
    return default_backend(device) if name in ("auto", "native") else name


def _wants_native(backend: str, quantization: str, dtype: str, device: torch.device) -> bool:
    """Whether the native kernels compute.

    Raises:
        ConfigError: they are asked for and cannot be had.
    """
    check_quantization(quantization, device)
    if backend not in ("auto", "native"):
        return False
    if quantization not in ("none", "int8"):
        if backend == "native":
            raise ConfigError(f"the native kernels know int8 weights, not {quantization}")
        if device.type == "cpu":
            log.warning("slow_quantization", quantization=quantization, faster_here="int8")
        return False
    required = backend == "native" or (quantization == "int8" and device.type == "cpu")
    if not required and not suits_this_cpu():
        return False
    reason = why_not_native(dtype, quantization, device)
    if reason is None:
        return True
    if required:
        raise ConfigError(f"the native kernels cannot run: {reason}")
    if device.type == "cpu":
        log.warning("native_kernels_unavailable", reason=reason, using="torch")
    return False


def _fill_with_noise(model: CausalLM, seed: int) -> None:
    """Drawn on the host in float32, so that a seed means the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            noise = torch.empty(parameter.shape).normal_(0.0, _DUMMY_STD, generator=generator)
            parameter.copy_(noise)
