"""All formats. A new one needs a file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.json_file import read_json
from shared.model.checkpoint.formats.auto_round import read_auto_round
from shared.model.checkpoint.formats.awq import read_awq
from shared.model.checkpoint.formats.bitsandbytes import read_bitsandbytes
from shared.model.checkpoint.formats.compressed_tensors import read_compressed_tensors
from shared.model.checkpoint.formats.fp8 import read_fbgemm, read_fp8
from shared.model.checkpoint.formats.gptq import read_gptq
from shared.model.checkpoint.formats.hqq import read_hqq
from shared.model.checkpoint.formats.modelopt import read_modelopt
from shared.model.checkpoint.formats.mxfp4 import read_mxfp4
from shared.model.checkpoint.formats.quark import read_quark
from shared.model.checkpoint.formats.torchao import read_torchao

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shared.model.checkpoint.formats.base import StoredFormat

#: By `quant_method`: what reads the config.
READERS: Mapping[str, Callable[[Mapping[str, Any]], StoredFormat]] = {
    "compressed-tensors": read_compressed_tensors,
    "gptq": read_gptq,
    "gptq_v2": read_gptq,
    "auto-round": read_auto_round,
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm,
    "hqq": read_hqq,
    "mxfp4": read_mxfp4,
    "quark": read_quark,
    "modelopt": read_modelopt,
    "torchao": read_torchao,
}
#: Others that are known by name, and why they are not read.
_UNREAD = {
    "bitnet": "its linears have norms and inputs of their own",
}
_KEY = "quantization_config"
#: The same in files of the first versions of compressed-tensors.
_FIRST_KEY, _FIRST_METHOD = "compression_config", "compressed-tensors"
#: Files that have the config instead of config.json, and the method of those that do not name it.
_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}


def find_format(raw: Mapping[str, Any]) -> StoredFormat | None:
    """Return the format that a config of a model names; None: its weights are not quantised.

    Raises:
        ModelLoadError: it is unknown, or a key is unknown or wrong.
    """
    method = find_method(raw)
    if method is None:
        return None
    if method not in READERS:
        why = _UNREAD.get(method, "it is unknown")
        raise ModelLoadError(
            f"{_KEY}.quant_method {method!r} is not supported: {why}; supported: "
            f"{', '.join(READERS)}. Save it dequantised, or load the unquantized checkpoint with "
            "--quantization int8, fp8 or int4"
        )
    return READERS[method](raw[_KEY])


def find_method(raw: Mapping[str, Any]) -> str | None:
    """Return the name of the format, which may be unknown; None: weights are not quantised.

    Raises:
        ModelLoadError: the format's settings are no object.
    """
    own = raw.get(_KEY)
    if not own:
        return None
    if not isinstance(own, dict):
        raise ModelLoadError(f"{_KEY} is a {type(own).__name__}, not an object")
    return str(own.get("quant_method") or "missing").lower()


def with_own_file(raw: Any, model_dir: Path) -> Any:
    """Return a model's config, with the quantization_config of a file beside it if it has none.

    One under another key is put there, too. What is null is not there.

    Raises:
        ModelLoadError: such a file is damaged.
    """
    if not isinstance(raw, dict):
        return raw
    if any(isinstance(each, dict) and each.get(_KEY) for each in (raw, raw.get("text_config"))):
        return raw
    if isinstance(first := raw.get(_FIRST_KEY), dict):
        return {**raw, _KEY: {"quant_method": _FIRST_METHOD, **first}}
    for name, method in _FILES.items():
        path = model_dir / name
        if not path.exists():
            continue
        own = read_json(path)
        own = own.get("quantization", own) if isinstance(own, dict) else own
        if not isinstance(own, dict):
            raise ModelLoadError(
                f"{path} holds {type(own).__name__} for a {_KEY}, which is an object"
            )
        return {**raw, _KEY: {"quant_method": method, **own}}
    return raw
