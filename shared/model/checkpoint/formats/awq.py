"""AWQ, in the order that AutoAWQ calls GEMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.gptq import AUTO_ROUND
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOATS, Array, Layout, Packing
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALES, _ZEROS = ".qweight", ".scales", ".qzeros"
BITS = 4
#: Where each of eight neighbours is in a word.
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
#: Keys that say how the file was made, or what other programs compute it with. Which modules are
#: left out shows in their tensors.
_IGNORED = (
    *AUTO_ROUND,
    "batch_size",
    "modules_to_not_convert",
    "modules_to_fuse",
    "do_fuse",
    "fuse_max_seq_len",
    "exllama_config",
    "backend",
    "desc_act",
    "true_sequential",
    "lm_head",
    "meta",
    "method",
    "sym",
    "damp_percent",
    "model_name_or_path",
    "model_file_base_name",
)


@dataclass(frozen=True, slots=True)
class Awq:
    """A `quantization_config` of AWQ."""

    group: int | None
    name: str = "awq"
    suffixes: frozenset[str] = frozenset({_CODES, _SCALES, _ZEROS})
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        return layout_of(self.group)


def layout_of(group: int | None) -> Layout:
    """Return how matrices in groups of so many columns are stored."""
    across = Packing(bits=BITS, is_along_rows=False, order=ORDER)
    return Layout(
        element=Element.INT,
        bits=BITS,
        codes=Array(suffix=_CODES, dtypes=("I32",), is_turned=True, packing=across),
        scales=Array(suffix=_SCALES, dtypes=FLOATS, is_turned=True),
        zeros=Array(suffix=_ZEROS, dtypes=("I32",), is_turned=True, packing=across),
        is_offset=True,
        group=group,
    )


def read_awq(raw: Mapping[str, Any]) -> Awq:
    """Return what a config says; `quant_config.json` has other keys for the same.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    bits = own.integer("bits", own.integer("w_bit", BITS))
    if bits != BITS:
        raise ModelLoadError(f"quantization_config.bits must be {BITS}, not {bits}")
    group = own.integer("group_size", own.integer("q_group_size", 128))
    if group != -1 and group < 1:
        raise ModelLoadError(
            f"quantization_config.group_size must be -1 or at least 1, not {group}"
        )
    has_zeros = own.flag("zero_point", default=True)
    if own.any("export") is not None and not has_zeros:
        raise ModelLoadError(
            "quantization_config.zero_point is false beside export: signed integers are not "
            "read; export them with Quark's own mode"
        )
    own.choice("pack_method", ("reorder",), "reorder")
    for key in ("version", "format", "checkpoint_format"):
        own.choice(key, ("gemm",), "gemm")
    own.choice("pack_dtype", ("int32",), "int32")
    own.choice("data_type", ("int",), "int")
    own.close(ignored=_IGNORED)
    return Awq(None if group == -1 else group)
