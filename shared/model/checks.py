"""Whether a model can be loaded as configured. Reads headers only, and imports no torch.

The loader runs these checks first; commands run them before they start a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.headers import check_headers
from shared.model.spec import NormPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from shared.model.spec import DecoderSpec, LayerSpec

DTYPES = ("float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "safetensors", "dummy")
QUANTIZATIONS = ("none", "int8", "fp8", "int4")
ATTENTION_BACKENDS = ("auto", "native", "torch", "triton")


def check_model(
    model_dir: Path,
    *,
    dtype: str = "auto",
    load_format: str = "auto",
    quantization: str = "none",
    attention_backend: str = "auto",
    device: str = "cpu",
) -> DecoderSpec:
    """Return the model's description, if it can be loaded with these settings.

    Raises:
        ConfigError: an unknown name, or settings that exclude each other.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    _check_known("load format", load_format, LOAD_FORMATS)
    _check_known("quantization", quantization, QUANTIZATIONS)
    _check_known("attention backend", attention_backend, ATTENTION_BACKENDS)
    spec = load_spec(model_dir)
    if load_format != "dummy":
        check_headers(model_dir, spec)
    name = dtype_name(spec, dtype)
    if requires_native(attention_backend, quantization, device):
        reason = why_not_native(spec, name, quantization, device)
        if reason is not None:
            raise ConfigError(f"the native kernels cannot run: {reason}")
    return spec


def dtype_name(spec: DecoderSpec, dtype: str) -> str:
    """Return the dtype that the setting `dtype` selects for the model.

    Raises:
        ConfigError: the name is unknown.
    """
    name = spec.dtype if dtype == "auto" else dtype
    _check_known("dtype", name, ("auto", *DTYPES))
    return name


def requires_native(attention_backend: str, quantization: str, device: str) -> bool:
    """Return whether only the native kernels can compute this."""
    on_cpu = device.startswith("cpu")
    wants_int8 = quantization == "int8" and on_cpu and attention_backend == "auto"
    return attention_backend == "native" or wants_int8


def why_not_native(spec: DecoderSpec, dtype: str, quantization: str, device: str) -> str | None:
    """Return why the native kernels cannot compute this on any machine; None if some can."""
    if not device.startswith("cpu"):
        return f"they are for the CPU, not for {device}"
    if quantization not in ("none", "int8"):
        return f"they know int8 weights, not {quantization}"
    if dtype not in ("float32", "bfloat16"):
        return f"they know float32 and bfloat16, not {dtype}"
    if quantization == "int8" and dtype != "bfloat16":
        return f"int8 weights go with --dtype bfloat16, not {dtype}"
    return _why_not_native_layers(spec)


def _why_not_native_layers(spec: DecoderSpec) -> str | None:
    for what, sizes in _ONE_SIZE.items():
        if len({sizes(layer) for layer in spec.layers}) > 1:
            return (
                f"they know layers of one size, and those of {spec.architecture} differ in {what}"
            )
    unknown = [what for what, differs in _BEYOND_NATIVE.items() if differs(spec)]
    return f"they do not know {', '.join(unknown)} of {spec.architecture}" if unknown else None


#: Sizes that all layers must have in common.
_ONE_SIZE: Mapping[str, Callable[[LayerSpec], object]] = {
    "heads": lambda own: (own.mixer.num_heads, own.mixer.num_kv_heads, own.mixer.head_dim),
}
#: What a decoder may have that the native kernels do not compute, and how it is seen.
_BEYOND_NATIVE: Mapping[str, Callable[[DecoderSpec], bool]] = {
    "norms of sums": lambda spec: any(n.norms is NormPlace.SUM for n in spec.layers),
    "the lack of a last norm": lambda spec: not spec.has_final_norm,
    "the projection of the embedding": lambda spec: spec.embedding_size is not None,
    "scores whose factor is not positive": lambda spec: any(
        not n.mixer.scale > 0 for n in spec.layers
    ),
}


def _check_known(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError(f"{what} {name!r} is unknown; known: {', '.join(known)}")
