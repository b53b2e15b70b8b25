"""MXFP4 of gpt-oss: the experts of a layer in one tensor, everything else in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import Array, Layout, Packing
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALES = "_blocks", "_scales"
_GROUP, _PIECE = 32, 16


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """A `quantization_config` of gpt-oss."""

    name: str = "mxfp4"
    suffixes: frozenset[str] = frozenset({_CODES, _SCALES})
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        packing = Packing(bits=4)
        return Layout(
            element=Element.E2M1,
            bits=4,
            codes=Array(suffix=_CODES, dtypes=("U8",), packing=packing, piece=_PIECE),
            scales=Array(suffix=_SCALES, dtypes=("U8",)),
            are_powers=True,
            group=_GROUP,
            dense_suffix="",
            is_of_experts=True,
        )


def read_mxfp4(raw: Mapping[str, Any]) -> Mxfp4:
    """Return what a config says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    own.close(ignored=("modules_to_not_convert", "dequantize"))
    return Mxfp4()
