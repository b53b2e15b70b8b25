"""torchao as transformers saves it: codes in bytes, with scales, and zeros of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOATS, Array, Layout
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALES, _ZEROS = "._weight_qdata", "._weight_scale", "._weight_zero_point"
_ELEMENTS = {"I8": Element.INT, "F8_E4M3": Element.E4M3}
_WHERE = "quantization_config.quant_type"
#: Of a config's class: the version that stores its tensors so. What else it says shows in them.
_VERSIONS = {"Int8WeightOnlyConfig": 2, "IntxWeightOnlyConfig": 2, "Float8WeightOnlyConfig": 2}
_IGNORED = ("modules_to_not_convert", "untie_embedding_weights")


@dataclass(frozen=True, slots=True)
class TorchAo:
    """A `quantization_config` of torchao."""

    name: str = "torchao"
    suffixes: frozenset[str] = frozenset({_CODES, _SCALES, _ZEROS})
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`. Ranges and groups are those of the scales' shape."""
        missing = [each for each in (_CODES, _SCALES) if each not in found]
        if missing:
            raise ModelLoadError(f"{module}: {missing[0]!r} is missing beside {sorted(found)[0]!r}")
        codes, scales = found[_CODES], found[_SCALES]
        if codes.dtype not in _ELEMENTS:
            raise ModelLoadError(
                f"{codes.path}: tensor {str(module) + _CODES!r} has dtype {codes.dtype}, "
                f"its format has {' or '.join(_ELEMENTS)}"
            )
        return Layout(
            element=_ELEMENTS[codes.dtype],
            bits=8,
            codes=Array(suffix=_CODES, dtypes=(codes.dtype,)),
            scales=Array(suffix=_SCALES, dtypes=FLOATS),
            zeros=Array(suffix=_ZEROS, dtypes=("I8",)) if _ZEROS in found else None,
            row_range=_size_of_part(codes, scales, 0),
            group=_size_of_part(codes, scales, 1),
        )


def _size_of_part(codes: TensorHeader, scales: TensorHeader, dim: int) -> int | None:
    """How many rows, or columns, share a scale; None: all. A wrong shape is refused later on."""
    if len(codes.shape) != 2 or len(scales.shape) != 2 or scales.shape[dim] <= 1:
        return None
    return max(1, codes.shape[dim] // scales.shape[dim])


def read_torchao(raw: Mapping[str, Any]) -> TorchAo:
    """Return what a config says.

    Raises:
        ModelLoadError: a key is unknown or wrong, or its class is stored in another way; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    own.refuse("include_input_output_embeddings", "embeddings in few bits are not read")
    kinds = own.objects("quant_type")
    own.close(ignored=_IGNORED)
    if kinds.keys() != {"default"}:
        raise ModelLoadError(
            f"{_WHERE} must have one key, default: settings by module are not read"
        )
    default = Settings(kinds["default"], f"{_WHERE}.default")
    kind, version = str(default.any("_type")), default.any("_version")
    if kind not in _VERSIONS:
        raise ModelLoadError(
            f"{_WHERE}: {kind} is not read: it rounds inputs, or stores codes and scales in the "
            f"order of a GPU's kernels; supported: {', '.join(_VERSIONS)}"
        )
    if version != _VERSIONS[kind]:
        raise ModelLoadError(
            f"{_WHERE}: {kind} of version {version} is not read; supported: {_VERSIONS[kind]}"
        )
    _check_packing(default)
    return TorchAo()


def _check_packing(default: Settings) -> None:
    own = default.object("_data")
    packing = None if own is None else own.object("intx_packing_format")
    if packing is not None:
        packing.choice("_data", ("unpacked_to_int8",))
