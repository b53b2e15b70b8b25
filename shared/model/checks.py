"""Whether a model can be loaded as configured. Reads headers only, and imports no torch.

The loader runs these checks first; commands run them before they start a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError, ModelLoadError
from shared.model.checkpoint.config import has_family, load_spec, read_config
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.pickled import SUFFIXES as PICKLED
from shared.model.checkpoint.format_name import STORED, narrowing
from shared.model.checkpoint.headers.checks import check_headers
from shared.model.families.registry import ARCHITECTURES
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.mixers import LatentAttentionSpec
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from shared.model.spec.decoder import DecoderSpec

DTYPES = ("float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "safetensors", "dummy")
QUANTIZATIONS = ("none", "int8", "fp8", "int4")
#: What the native kernels multiply codes of 4 bits with: the inputs as they are, or in 8 bits.
INT4_COMPUTES = ("auto", "float", "int8")
ATTENTION_BACKENDS = ("auto", "native", "torch", "triton")
MODEL_IMPLS = ("auto", "native", "torch", "transformers")


def check_model(
    model_dir: Path,
    *,
    dtype: str = "auto",
    load_format: str = "auto",
    quantization: str = "none",
    attention_backend: str = "auto",
    device: str = "cpu",
    model_impl: str = "auto",
    trust_remote_code: bool = False,
    cpu_int4_compute: str = "auto",
) -> DecoderSpec:
    """Return the model's description, if it can be loaded with these settings.

    Without a family of Baton it is what transformers' config says, before the module is made.

    Raises:
        ConfigError: an unknown name, or settings that exclude each other.
        ModelLoadError: the checkpoint cannot be used; names the file, and the tensor if any.
    """
    _check_known("load format", load_format, LOAD_FORMATS)
    _check_known("quantization", quantization, dict.fromkeys((*QUANTIZATIONS, *STORED)))
    quantization = narrowing(model_dir, quantization)
    _check_known("attention backend", attention_backend, ATTENTION_BACKENDS)
    _check_known("cpu int4 compute", cpu_int4_compute, INT4_COMPUTES)
    attention_backend = backend_of(model_impl, attention_backend)
    if load_format == "safetensors":
        _check_safe(model_dir)
    if uses_transformers(model_dir, model_impl):
        spec = _check_module(model_dir, trust_remote_code=trust_remote_code)
        _check_narrowing(spec, quantization)
        dtype_name(spec, dtype)
        return spec
    try:
        spec = load_spec(model_dir)
    except ModelLoadError as error:
        if has_family(read_config(model_dir)):
            raise
        other = _why_no_module(model_dir, trust_remote_code=trust_remote_code)
        raise ModelLoadError(f"{error}; {other}") from error
    if load_format != "dummy":
        check_headers(model_dir, spec)
    _check_narrowing(spec, quantization)
    name = dtype_name(spec, dtype)
    if requires_native(attention_backend, quantization, device):
        reason = why_not_native(spec, name, quantization, device)
        if reason is not None:
            raise ConfigError(f"the native kernels cannot run: {reason}")
    return spec


def _check_safe(model_dir: Path) -> None:
    for path in find_checkpoint_files(model_dir).shards:
        if path.suffix in PICKLED:
            raise ModelLoadError(f"{path} is PyTorch's own; --load-format auto reads it, too")


def _check_narrowing(spec: DecoderSpec, quantization: str) -> None:
    if spec.rounds_inputs and quantization != "none":
        raise ConfigError(
            f"the checkpoint is quantised, inputs of linears too: --quantization {quantization} "
            "cannot be added"
        )


def _check_module(model_dir: Path, *, trust_remote_code: bool) -> DecoderSpec:
    try:
        return _describe_module(model_dir, trust_remote_code=trust_remote_code)
    except ModelLoadError as error:
        own = ", ".join(sorted(ARCHITECTURES))
        raise ModelLoadError(
            f"{error}; --model-impl transformers cannot run it, and it is none of Baton's "
            f"families: {own}"
        ) from error


def _describe_module(model_dir: Path, *, trust_remote_code: bool) -> DecoderSpec:
    # transformers takes seconds to import, and families do not need it.
    from shared.model.generic.description import describe  # noqa: PLC0415

    return describe(model_dir, trust_remote_code=trust_remote_code)


def _why_no_module(model_dir: Path, *, trust_remote_code: bool) -> str:
    """Say whether transformers' module of a model without a family could compute it."""
    try:
        _describe_module(model_dir, trust_remote_code=trust_remote_code)
    except ModelLoadError as error:
        return f"nor can --model-impl transformers run it: {error}"
    return "--model-impl transformers can run it, with transformers' module"


def uses_transformers(model_dir: Path, model_impl: str) -> bool:
    """Return whether transformers' module computes the model: if asked for, or without a family."""
    if model_impl != "auto":
        return model_impl == "transformers"
    try:
        return not has_family(read_config(model_dir))
    except ModelLoadError:
        return False  # the next reader says what is wrong


def backend_of(model_impl: str, attention_backend: str) -> str:
    """Return the attention backend that both settings select.

    Raises:
        ConfigError: `model_impl` is unknown, or they exclude each other.
    """
    _check_known("model impl", model_impl, MODEL_IMPLS)
    if model_impl == "transformers" and attention_backend == "native":
        raise ConfigError("--model-impl transformers and --attention-backend native: choose one")
    if model_impl not in ("native", "torch"):
        return attention_backend
    if attention_backend not in ("auto", model_impl):
        raise ConfigError(
            f"--model-impl {model_impl} and --attention-backend {attention_backend}: choose one"
        )
    return model_impl


def dtype_name(spec: DecoderSpec, dtype: str) -> str:
    """Return the dtype that the setting `dtype` selects for the model.

    Raises:
        ConfigError: the name is unknown.
        ModelLoadError: that of the checkpoint is.
    """
    if dtype == "auto" and spec.dtype not in DTYPES:
        raise ModelLoadError(
            f"config.json: torch_dtype {spec.dtype[:80]!r} is not supported; choose --dtype "
            f"{', '.join(DTYPES)}"
        )
    name = spec.dtype if dtype == "auto" else dtype
    _check_known("dtype", name, ("auto", *DTYPES))
    return name


def rounds_inputs_of_int4(compute: str, dtype: str) -> bool:
    """Return whether inputs take 8 bits where a CPU multiplies codes of 4 bits.

    `auto`: in bfloat16. A model in float32 is asked for its exact results.
    """
    return compute == "int8" or (compute == "auto" and dtype == "bfloat16")


def requires_native(attention_backend: str, quantization: str, device: str) -> bool:
    """Return whether only the native kernels can compute this."""
    on_cpu = device.startswith("cpu")
    wants_int8 = quantization == "int8" and on_cpu and attention_backend == "auto"
    return attention_backend == "native" or wants_int8


def why_not_native(spec: DecoderSpec, dtype: str, quantization: str, device: str) -> str | None:
    """Return why the native kernels cannot compute this on any machine; None if some can."""
    if not device.startswith("cpu"):
        return f"they are for the CPU, not for {device}"
    if dtype not in ("float32", "bfloat16"):
        return f"they know float32 and bfloat16, not {dtype}"
    if quantization == "int8" and dtype != "bfloat16":
        return f"int8 weights go with --dtype bfloat16, not {dtype}"
    return _why_not_native_layers(spec)


def _why_not_native_layers(spec: DecoderSpec) -> str | None:
    unknown = [what for what, differs in _BEYOND_NATIVE.items() if differs(spec)]
    return f"they do not know {', '.join(unknown)} of {spec.architecture}" if unknown else None


#: What a decoder may have that the native kernels do not compute, and how it is seen.
_BEYOND_NATIVE: Mapping[str, Callable[[DecoderSpec], bool]] = {
    "latent rows of an odd size": lambda spec: any(
        isinstance(own, LatentAttentionSpec) and bool(own.kv_rank % 2)
        for own in spec.attentions.values()
    ),
    "norms of sums": lambda spec: any(n.norms is NormPlace.SUM for n in spec.layers),
    "the lack of a last norm": lambda spec: not spec.has_final_norm,
    "the projection of the embedding": lambda spec: spec.embedding_size is not None,
    "biases of experts that read scaled rows": lambda spec: any(
        isinstance(own.feed_forward, ExpertsSpec)
        and own.feed_forward.scales_input
        and own.feed_forward.expert.bias
        for own in spec.layers
    ),
    "scaled rows of a router that reads what experts read": lambda spec: any(
        isinstance(own.feed_forward, ExpertsSpec)
        and own.feed_forward.router.has_input_scale
        and not own.feed_forward.is_apart
        for own in spec.layers
    ),
    "experts that read projected rows": lambda spec: any(
        isinstance(own.feed_forward, ExpertsSpec) and own.feed_forward.latent_size is not None
        for own in spec.layers
    ),
    "scores whose factor is not positive": lambda spec: any(
        not mixer.scale > 0 for mixer in spec.attentions.values()
    ),
}


def _check_known(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError(f"{what} {name!r} is unknown; known: {', '.join(known)}")
