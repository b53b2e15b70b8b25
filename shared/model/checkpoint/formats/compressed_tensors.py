"""compressed-tensors, which llm-compressor writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import (
    FLOAT8,
    FLOATS,
    Array,
    Factor,
    Layout,
    Packing,
)
from shared.model.checkpoint.patterns import matches
from shared.model.matrix.rounding import Element, Rounding, ScaleRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_PACKED, _PLAIN, _SCALE = ".weight_packed", ".weight", ".weight_scale"
_ZERO, _ORDER, _SIZE = ".weight_zero_point", ".weight_g_idx", ".weight_shape"
_FACTOR, _INPUT_FACTOR = ".weight_global_scale", ".input_global_scale"
_INPUT_SCALE, _INPUT_ZERO = ".input_scale", ".input_zero_point"
_SUFFIXES = frozenset(
    {_PACKED, _PLAIN, _SCALE, _ZERO, _ORDER, _SIZE, _FACTOR}
    | {_INPUT_FACTOR, _INPUT_SCALE, _INPUT_ZERO}
)
_FLOATS = {4: Element.E2M1, 6: Element.E2M3, 8: Element.E4M3}
_MX_GROUP = 32
#: Formats with exponents of two for scales.
_MX = {"mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"}
_FORMATS = {
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    *_MX,
}
#: Keys that do not change what is computed.
_IGNORED = (
    "version",
    "quantization_status",
    "global_compression_ratio",
    "kv_cache_scheme",
    "moe_sparsity_config",
    "run_compressed",
)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What `weights` or `input_activations` say."""

    bits: int
    element: Element
    is_symmetric: bool
    strategy: str
    group: int | None
    block: tuple[int, int] | None
    is_dynamic: bool
    scale_dtype: str

    @classmethod
    def read(cls, raw: Any, where: str) -> _Numbers:
        own = Settings(raw, where)
        bits = own.integer("num_bits", 8)
        kind = own.choice("type", ("int", "float"), "int")
        if kind == "float" and bits not in _FLOATS:
            raise ModelLoadError(f"{where}.num_bits is {bits}: floats have 4, 6 or 8")
        if not 1 <= bits <= 8:
            raise ModelLoadError(f"{where}.num_bits must be from 1 to 8, not {bits}")
        group = own.integer("group_size") if "group_size" in own else None
        known = ("tensor", "channel", "group", "block", "token", "tensor_group")
        usual = "tensor" if group is None else "channel" if group == -1 else "group"
        numbers = cls(
            bits,
            Element.INT if kind == "int" else _FLOATS[bits],
            own.flag("symmetric", default=True),
            own.choice("strategy", known, usual),
            group if group != -1 else None,
            own.sizes("block_structure"),
            own.any("dynamic", default=False) is not False,
            str(own.any("scale_dtype", "")).removeprefix("torch."),
        )
        if numbers.strategy in ("group", "tensor_group") and not (group and group > 0):
            raise ModelLoadError(f"{where}.group_size must be at least 1, not {group}")
        if numbers.strategy == "block" and numbers.block is None:
            raise ModelLoadError(f"{where}.block_structure is missing")
        own.close(ignored=("actorder", "observer", "observer_kwargs", "zp_dtype"))
        return numbers


@dataclass(frozen=True, slots=True)
class _Group:
    """Some modules, and how their matrices are stored."""

    where: str
    targets: tuple[str, ...]
    weights: _Numbers | None
    inputs: _Numbers | None
    format: str

    @classmethod
    def read(cls, raw: Any, where: str, usual: str) -> _Group:
        own = Settings(raw, where)
        own.refuse("output_activations", "outputs of linears are not rounded here")
        weights, inputs = own.any("weights"), own.any("input_activations")
        group = cls(
            where,
            own.names("targets"),
            None if weights is None else _Numbers.read(weights, f"{where}.weights"),
            None if inputs is None else _Numbers.read(inputs, f"{where}.input_activations"),
            own.choice("format", _FORMATS, usual),
        )
        own.close()
        return group

    def rounding(self) -> Rounding | None:
        """How inputs are rounded."""
        own = self.inputs
        if own is None:
            return None
        where = f"{self.where}.input_activations"
        if not own.is_dynamic and own.strategy != "tensor":
            raise ModelLoadError(f"{where}.strategy {own.strategy!r} is not dynamic: not supported")
        if own.strategy in ("channel", "block"):
            raise ModelLoadError(f"{where}.strategy {own.strategy!r} is not supported")
        rounding = Rounding(
            element=own.element,
            bits=own.bits,
            group=own.group,
            is_static=not own.is_dynamic,
            is_symmetric=own.is_symmetric,
        )
        if own.strategy == "tensor_group":
            return replace(rounding, scale=ScaleRule.E4M3)
        is_mx = own.scale_dtype == "uint8" or (not own.scale_dtype and self.format in _MX)
        if is_mx and own.element is not Element.INT and own.group == _MX_GROUP:
            even = 3 if own.element is Element.E2M3 else 1
            return replace(rounding, scale=ScaleRule.POWER, even_bits=even)
        return rounding


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """A `quantization_config` of compressed-tensors."""

    groups: tuple[_Group, ...]
    ignored: tuple[str, ...]
    name: str = "compressed-tensors"
    suffixes: frozenset[str] = _SUFFIXES

    @property
    def rounds_inputs(self) -> bool:
        """See `StoredFormat.rounds_inputs`."""
        return any(group.inputs is not None for group in self.groups)

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        if found.keys() <= {_PLAIN} and (not found or found[_PLAIN].dtype in FLOATS):
            return None
        if any(matches(each, module.names, "quantization_config.ignore") for each in self.ignored):
            raise ModelLoadError(f"{module} is in quantization_config.ignore, but stored quantised")
        group = self._group_of(module)
        if group is None or group.weights is None:
            raise ModelLoadError(f"{module}: no group of quantization_config has weights for it")
        return _layout(group, group.weights, found)

    def _group_of(self, module: Module) -> _Group | None:
        by_name = (
            group
            for group in self.groups
            if any(matches(each, module.names, f"{group.where}.targets") for each in group.targets)
        )
        kind = "Embedding" if module.is_embedding else "Linear"
        by_class = (group for group in self.groups if kind in group.targets)
        return next(by_name, None) or next(by_class, None)


def read_compressed_tensors(raw: Mapping[str, Any]) -> CompressedTensors:
    """Return what a config says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(dict(raw), "quantization_config")
    own.any("quant_method")
    sparsity = own.any("sparsity_config") or {}
    if sparsity and sparsity.get("format", "dense") != "dense":
        raise ModelLoadError(
            "quantization_config.sparsity_config is set: sparse weights are not read"
        )
    own.refuse("transform_config", "transforms of weights are not supported")
    usual = own.choice("format", {*_FORMATS, "mixed-precision", "dense"})
    groups = []
    for name, group in own.objects("config_groups").items():
        where = f"quantization_config.config_groups.{name}"
        if isinstance(group, list):
            raise ModelLoadError(f"{where} is the name of a preset: write the group out")
        groups.append(_Group.read(group, where, usual))
    # Of a model whose keys and values alone are quantised there are none.
    if not groups and raw.get("kv_cache_scheme") is None:
        raise ModelLoadError("quantization_config.config_groups is empty")
    made = CompressedTensors(tuple(groups), own.names("ignore"))
    own.close(ignored=_IGNORED)
    for each in groups:
        each.rounding()
    return made


def _layout(group: _Group, own: _Numbers, found: Mapping[str, TensorHeader]) -> Layout:
    is_int = own.element is Element.INT
    rows, columns = _ranges(group, own)
    is_packed = _PACKED in found
    rounding = group.rounding()
    layout = Layout(
        element=own.element,
        bits=own.bits,
        codes=Array(suffix=_PLAIN, dtypes=("I8",) if is_int else (FLOAT8[Element.E4M3],)),
        scales=Array(suffix=_SCALE, dtypes=FLOATS),
        row_range=rows,
        group=columns,
        has_whole_groups=own.strategy in ("group", "tensor_group"),
        inputs=rounding,
    )
    if rounding is not None and rounding.is_static:
        zero = None if rounding.is_symmetric else _INPUT_ZERO
        layout = replace(layout, input_stored=_INPUT_SCALE, input_zero=zero)
    if rounding is not None and rounding.scale is ScaleRule.E4M3:
        layout = replace(layout, input_stored=_INPUT_FACTOR)
    if is_int:
        return _of_integers(layout, own, found)
    if is_packed:
        codes = Array(suffix=_PACKED, dtypes=("U8",), packing=Packing(bits=own.bits))
        layout = replace(layout, codes=codes)
    if group.format == "nvfp4-pack-quantized":
        scales = Array(suffix=_SCALE, dtypes=(FLOAT8[Element.E4M3],))
        factor = Factor(suffix=_FACTOR, divides=True)
        return replace(layout, scales=scales, factor=factor)
    if group.format in _MX:
        return replace(layout, scales=Array(suffix=_SCALE, dtypes=("U8",)), are_powers=True)
    return layout


def _of_integers(layout: Layout, own: _Numbers, found: Mapping[str, TensorHeader]) -> Layout:
    if _PACKED not in found:
        zeros = None if own.is_symmetric else Array(suffix=_ZERO, dtypes=("I8",))
        return replace(layout, zeros=zeros)
    packing = Packing(bits=own.bits, is_along_rows=False)
    return replace(
        layout,
        codes=Array(suffix=_PACKED, dtypes=("I32",), packing=Packing(bits=own.bits)),
        zeros=None if own.is_symmetric else Array(suffix=_ZERO, dtypes=("I32",), packing=packing),
        is_offset=True,
        column_groups=_ORDER if _ORDER in found else None,
        size=_SIZE if _SIZE in found else None,
    )


def _ranges(group: _Group, own: _Numbers) -> tuple[int | None, int | None]:
    """Rows and columns that share a scale; None: all."""
    if own.strategy == "tensor":
        return None, None
    if own.strategy == "channel":
        return 1, None
    if own.block is not None:
        return own.block
    if own.strategy in ("group", "tensor_group"):
        return 1, own.group
    raise ModelLoadError(f"{group.where}.weights.strategy {own.strategy!r} is not supported")
