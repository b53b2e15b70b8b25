"""8-bit floats: those of DeepSeek and Qwen, with scales of blocks or of matrices, and FBGEMM's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOAT8, FLOATS, Array, Layout
from shared.model.matrix.rounding import Element, Rounding, ScaleRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES = ".weight"
#: Both are factors; the name of the second one is historical.
_SCALES = (".weight_scale", ".weight_scale_inv")
_INPUT_SCALES = (".input_scale", ".activation_scale")
_BOUND = ".input_scale_ub"
_SUFFIXES = frozenset({_CODES, *_SCALES, *_INPUT_SCALES, _BOUND})
_POWERS = ("U8", "F8_E8M0")
#: Keys that say which modules are left out, which shows in their tensors, or how the file was made.
_IGNORED = ("modules_to_not_convert", "ignored_layers", "dequantize", "kv_cache_scheme", "export")


@dataclass(frozen=True, slots=True)
class Fp8:
    """A `quantization_config` of 8-bit floats."""

    name: str
    inputs: Rounding
    row_range: int | None
    group: int | None
    suffixes: frozenset[str] = _SUFFIXES
    rounds_inputs: bool = True

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        if found.keys() <= {_CODES} and (not found or found[_CODES].dtype in FLOATS):
            return None
        scale = next((each for each in _SCALES if each in found), _SCALES[self.group is not None])
        layout = Layout(
            element=Element.E4M3,
            bits=8,
            codes=Array(suffix=_CODES, dtypes=(FLOAT8[Element.E4M3],)),
            scales=Array(suffix=scale, dtypes=FLOATS),
            row_range=self.row_range,
            group=self.group,
            inputs=self.inputs,
        )
        if scale in found and found[scale].dtype in _POWERS:
            layout = replace(layout, scales=Array(suffix=scale, dtypes=_POWERS), are_powers=True)
        if self.inputs.is_static:
            own = next((each for each in _INPUT_SCALES if each in found), _INPUT_SCALES[0])
            layout = replace(layout, input_stored=own)
        return layout


def read_fp8(raw: Mapping[str, Any]) -> Fp8:
    """Return what a config of DeepSeek's or Qwen's says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    own.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    block = own.sizes("weight_block_size")
    is_static = own.choice("activation_scheme", ("dynamic", "static"), "dynamic") == "static"
    powers = own.choice("scale_fmt", ("ue8m0", "float"), "float") == "ue8m0"
    if block is not None and is_static:
        raise ModelLoadError("quantization_config.activation_scheme 'static' has no blocks")
    own.refuse("expert_dtype", "experts of another type are not supported")
    if raw.get("export") is not None and raw.get("activation_scheme") is None:
        # Quark's way to say that inputs are not rounded; from all others it means the default.
        raise ModelLoadError("quantization_config.activation_scheme is null beside export")
    own.close(ignored=_IGNORED)
    rows, columns = block or (None, None)
    rounding = Rounding(
        element=Element.E4M3,
        bits=8,
        group=columns,
        is_static=is_static,
        scale=ScaleRule.POWER_ABOVE if powers else ScaleRule.FLOAT,
    )
    return Fp8("fp8", rounding, rows, columns)


def read_fbgemm(raw: Mapping[str, Any]) -> Fp8:
    """Return what a config of FBGEMM's says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    rounding = Rounding(element=Element.E4M3, bits=8, bound=own.number("activation_scale_ub"))
    own.close(ignored=("modules_to_not_convert",))
    return Fp8("fbgemm_fp8", rounding, 1, None)
