"""bitsandbytes: NF4 and FP4 in blocks of a whole matrix, and int8 by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOATS, Array, Layout, Nested, Packing
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _ROWS, _ORDER = ".weight", ".SCB", ".weight_format"
_SCALES, _TABLE = ".weight.absmax", ".weight.quant_map"
_NESTED, _NESTED_TABLE = ".weight.nested_absmax", ".weight.nested_quant_map"
_STATE = ".weight.quant_state.bitsandbytes__"
_STATES = tuple(f"{_STATE}{kind}" for kind in ("nf4", "fp4"))
#: Numbers with a scale, of which two are in a byte, the first one in its higher half; and scales
#: with a scale.
_BLOCK, _NESTED_BLOCK = 64, 256
_HIGH_FIRST = (1, 0)
#: By which the library multiplies: 1 / 127.
_INT8_FACTOR = 7.874015718698502e-3
#: What other programs compute it with. What is stored shows in the tensors.
_IGNORED = (
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "load_in_4bit",
    "load_in_8bit",
)


@dataclass(frozen=True, slots=True)
class BitsAndBytes:
    """A `quantization_config` of bitsandbytes."""

    name: str = "bitsandbytes"
    suffixes: frozenset[str] = frozenset(
        {_CODES, _ROWS, _ORDER, _SCALES, _TABLE, _NESTED, _NESTED_TABLE, *_STATES}
    )
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        if _ROWS in found:
            return _int8(found)
        states = [each for each in _STATES if each in found]
        if states:
            return _fours(states[0], found)
        if found.keys() <= {_CODES}:
            return None
        raise ModelLoadError(f"{module}: {_STATES[0]!r} is missing beside {sorted(found)[0]!r}")


def _int8(found: Mapping[str, TensorHeader]) -> Layout:
    return Layout(
        element=Element.INT,
        bits=8,
        codes=Array(suffix=_CODES, dtypes=("I8",)),
        scales=Array(suffix=_ROWS, dtypes=FLOATS),
        scale_factor=_INT8_FACTOR,
        constants={_ORDER: 0} if _ORDER in found else {},
    )


def _fours(state: str, found: Mapping[str, TensorHeader]) -> Layout:
    nested = Nested(table=_NESTED_TABLE, scales=_NESTED, group=_NESTED_BLOCK)
    is_nested = _NESTED in found
    return Layout(
        element=Element.INT,
        bits=4,
        codes=Array(
            suffix=_CODES,
            dtypes=("U8",),
            packing=Packing(bits=4, order=_HIGH_FIRST),
            is_flat=True,
        ),
        scales=Array(suffix=_SCALES, dtypes=("U8",) if is_nested else FLOATS, is_flat=True),
        nested=nested if is_nested else None,
        table=_TABLE,
        state=state,
        group=_BLOCK,
    )


def read_bitsandbytes(raw: Mapping[str, Any]) -> BitsAndBytes:
    """Return what a config says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    own.choice("bnb_4bit_quant_storage", ("uint8",), "uint8")
    own.close(ignored=_IGNORED)
    return BitsAndBytes()
