"""A stored format by its name, as a value of `--quantization`: it says what the checkpoint is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.checkpoint.files.json_file import read_json
from shared.model.checkpoint.formats.registry import READERS, find_method, with_own_file
from shared.model.checkpoint.wrapper import unwrap

if TYPE_CHECKING:
    from pathlib import Path

GGUF = "gguf"
#: Further names of vLLM's, most of them a kernel's, by those of checkpoints.
_KERNELS = {
    "awq": ("auto_awq", "awq_marlin"),
    "gptq": ("auto_gptq", "gptq_v2", "gptq_marlin"),
    "auto-round": ("inc",),
    "mxfp4": ("gpt_oss_mxfp4",),
    "modelopt": ("modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"),
}
_FORMATS = {other: name for name, others in _KERNELS.items() for other in others}
STORED = (*READERS, GGUF, *_FORMATS)


def narrowing(model_dir: Path, quantization: str) -> str:
    """Return how weights are to be narrowed: `none` if it names the format that they have.

    `fp8` narrows a checkpoint that is not stored so.

    Raises:
        ConfigError: the checkpoint has another format, or none.
        ModelLoadError: its config cannot be read.
    """
    if quantization not in STORED:
        return quantization
    wanted = _FORMATS.get(quantization, quantization)
    own = _format_of(model_dir)
    if own == wanted:
        return "none"
    if quantization == "fp8":
        return quantization
    has = "is not quantised" if own is None else f"is stored as {own}"
    raise ConfigError(f"--quantization {quantization}: {model_dir} {has}; leave it out")


def _format_of(model_dir: Path) -> str | None:
    if any(model_dir.glob(f"*.{GGUF}")):
        return GGUF
    raw = with_own_file(read_json(model_dir / "config.json"), model_dir)
    method = find_method(unwrap(raw)) if isinstance(raw, dict) else None
    return None if method is None else _FORMATS.get(method, method)
