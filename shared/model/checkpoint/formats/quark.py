"""AMD Quark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.awq import ORDER
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOAT8, FLOATS, Array, Factor, Layout, Packing
from shared.model.checkpoint.patterns import matches
from shared.model.matrix.rounding import Element, Rounding, ScaleRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALE, _ZERO = ".weight", ".weight_scale", ".weight_zero_point"
_FACTOR = ".weight_scale_2"
_INPUT_SCALE, _INPUT_ZERO = ".input_scale", ".input_zero_point"
_INPUT_FACTOR = ".input_scale_2"
_SUFFIXES = frozenset({_CODES, _SCALE, _ZERO, _FACTOR, _INPUT_SCALE, _INPUT_ZERO, _INPUT_FACTOR})
#: By dtype: the numbers, and their bits.
_TYPES = {
    "int8": (Element.INT, 8),
    "uint8": (Element.INT, 8),
    "int4": (Element.INT, 4),
    "uint4": (Element.INT, 4),
    "fp8_e4m3": (Element.E4M3, 8),
    "fp8_e5m2": (Element.E5M2, 8),
    "fp6_e3m2": (Element.E3M2, 6),
    "fp6_e2m3": (Element.E2M3, 6),
    "fp4": (Element.E2M1, 4),
}
_MANTISSA = {
    Element.E2M1: 1,
    Element.E2M3: 3,
    Element.E3M2: 2,
    Element.E4M3: 3,
    Element.E5M2: 2,
}
_SCHEMES = ("per_tensor", "per_channel", "per_group", "per_block")
#: By scheme: the dimension along which scales differ, of weights [rows, columns], and of inputs
#: [sequences, tokens, columns].
_WEIGHT_AXES = {"per_channel": (0, -2), "per_group": (1, -1)}
_INPUT_AXES = {"per_channel": (1, -2), "per_group": (2, -1)}
#: Of a group: keys that say how it was calibrated, or that outputs for the KV cache are rounded.
_CALIBRATION = (
    "observer_cls",
    "round_method",
    "scale_type",
    "is_scale_quant",
    "mx_element_dtype",
    "qat_spec",
    "enable_buffer_reuse",
    "max_input_numel",
)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What a spec of weights or inputs says."""

    where: str
    element: Element
    bits: int
    #: Integers from 0 on.
    is_unsigned: bool
    is_dynamic: bool
    is_symmetric: bool
    scheme: str
    group: int | None
    block: tuple[int, int] | None
    are_powers: bool
    even: bool

    @classmethod
    def read(cls, raw: Any, where: str, axes: Mapping[str, tuple[int, int]]) -> _Numbers:
        own = Settings(raw, where)
        kind = own.choice("dtype", _TYPES)
        element, bits = _TYPES[kind]
        scheme = own.choice("qscheme", _SCHEMES, "per_tensor")
        group = own.integer("group_size", -1)
        block = own.sizes("block_size")
        axis, known = own.any("ch_axis"), axes.get(scheme)
        if axis is not None and known is not None and axis not in known:
            raise ModelLoadError(f"{where}.ch_axis must be {known[0]} or {known[1]}, not {axis}")
        if scheme == "per_group" and group < 1:
            raise ModelLoadError(f"{where}.group_size must be at least 1, not {group}")
        if scheme == "per_block" and block is None:
            raise ModelLoadError(f"{where}.block_size is missing")
        numbers = cls(
            where,
            element,
            bits,
            kind.startswith("uint"),
            own.flag("is_dynamic", default=False),
            own.flag("symmetric", default=True),
            scheme,
            group if scheme == "per_group" else None,
            block,
            own.choice("scale_format", ("float32", "e8m0"), "float32") == "e8m0",
            own.choice("scale_calculation_mode", ("even", "floor"), "even") == "even",
        )
        own.choice("zero_point_type", ("int32",), "int32")
        own.close(ignored=_CALIBRATION)
        return numbers

    @property
    def ranges(self) -> tuple[int | None, int | None]:
        """Rows and columns that share a scale; None: all."""
        if self.scheme == "per_tensor":
            return None, None
        return self.block if self.block is not None else (1, self.group)

    def rounding(self, *, has_factor: bool) -> Rounding:
        """How inputs of this kind are rounded. has_factor: their scales are in 8 bits."""
        if self.is_unsigned or self.scheme == "per_block":
            raise ModelLoadError(f"{self.where}: inputs of this kind are not supported")
        if not self.is_dynamic and self.scheme != "per_tensor":
            raise ModelLoadError(
                f"{self.where}.qscheme {self.scheme!r} is not dynamic: not supported"
            )
        rounding = Rounding(
            element=self.element,
            bits=self.bits,
            group=self.group,
            is_static=not self.is_dynamic,
            is_symmetric=self.is_symmetric,
        )
        if has_factor:
            return replace(rounding, scale=ScaleRule.E4M3_TIMES)
        if not self.are_powers:
            return rounding
        even = _MANTISSA[self.element] if self.even else None
        return replace(rounding, scale=ScaleRule.POWER, even_bits=even)


@dataclass(frozen=True, slots=True)
class _Group:
    weights: _Numbers | None
    inputs: _Numbers | None
    #: Scales of weights, and of inputs, are in 8 bits, with a factor of the whole matrix.
    has_factor: bool = False
    has_input_factor: bool = False

    @classmethod
    def read(cls, raw: Any, where: str) -> _Group:
        own = Settings(raw, where)
        weights, has_factor = _stages(own, "weight", _WEIGHT_AXES)
        inputs, has_input_factor = _stages(own, "input_tensors", _INPUT_AXES)
        own.close(ignored=("output_tensors", "bias", "target_device"))
        return cls(weights, inputs, has_factor, has_input_factor)

    def rounding(self) -> Rounding | None:
        """How inputs are rounded; None: they are not."""
        if self.inputs is None:
            return None
        return self.inputs.rounding(has_factor=self.has_input_factor)


def _stages(
    group: Settings, key: str, axes: Mapping[str, tuple[int, int]]
) -> tuple[_Numbers | None, bool]:
    """A spec, and whether a second one rounds its scales."""
    raw, where = group.any(key), f"{group.where}.{key}"
    first, *others = raw if isinstance(raw, list) and raw else [raw]
    if first is None:
        return None, False
    numbers = _Numbers.read(first, where, axes)
    if not others:
        return numbers, False
    second = Settings(others[0], f"{where}[1]")
    if len(others) > 1 or not second.flag("is_scale_quant", default=False):
        raise ModelLoadError(f"{where} rounds numbers twice: not supported")
    second.choice("dtype", ("fp8_e4m3",))
    second.choice("qscheme", ("per_tensor",), "per_tensor")
    return numbers, True


@dataclass(frozen=True, slots=True)
class Quark:
    """A `quantization_config` of Quark."""

    usual: _Group
    #: By pattern for names of modules.
    others: tuple[tuple[str, _Group], ...]
    excluded: tuple[str, ...]
    is_awq_order: bool
    name: str = "quark"
    suffixes: frozenset[str] = _SUFFIXES

    @property
    def rounds_inputs(self) -> bool:
        """See `StoredFormat.rounds_inputs`."""
        groups = (self.usual, *(group for _, group in self.others))
        return any(group.inputs is not None for group in groups)

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        if found.keys() <= {_CODES} and (not found or found[_CODES].dtype in FLOATS):
            return None
        if any(
            matches(each, module.names, "quantization_config.exclude") for each in self.excluded
        ):
            raise ModelLoadError(
                f"{module} is in quantization_config.exclude, but stored quantised"
            )
        group = self._group_of(module)
        if group.weights is None:
            raise ModelLoadError(f"{module}: quantization_config has no weight for it")
        layout = self._layout(group.weights, found)
        if group.has_factor:
            scales = Array(suffix=_SCALE, dtypes=(FLOAT8[Element.E4M3],))
            layout = replace(layout, scales=scales, factor=Factor(suffix=_FACTOR))
        rounding = group.rounding()
        if rounding is None:
            return layout
        zero = _INPUT_ZERO if _INPUT_ZERO in found and not rounding.is_symmetric else None
        stored = _INPUT_SCALE if rounding.is_static else None
        if group.has_input_factor:
            stored = _INPUT_FACTOR
        return replace(layout, inputs=rounding, input_stored=stored, input_zero=zero)

    def _group_of(self, module: Module) -> _Group:
        for pattern, group in self.others:
            if matches(pattern, module.names, "quantization_config.layer_quant_config"):
                return group
            if "*" not in pattern and any(pattern in name for name in module.names):
                return group
        return self.usual

    def _layout(self, own: _Numbers, found: Mapping[str, TensorHeader]) -> Layout:
        rows, columns = own.ranges
        layout = Layout(
            element=own.element,
            bits=own.bits,
            codes=Array(suffix=_CODES, dtypes=_dtypes(own)),
            scales=Array(suffix=_SCALE, dtypes=FLOATS),
            row_range=rows,
            group=columns,
            is_offset=own.is_unsigned,
        )
        if own.are_powers:
            scales = Array(suffix=_SCALE, dtypes=("U8", "F8_E8M0"))
            layout = replace(layout, scales=scales, are_powers=True)
        if own.element is not Element.INT:
            packing = Packing(bits=own.bits) if own.bits < 8 else None
            return replace(layout, codes=replace(layout.codes, packing=packing))
        is_turned = own.group is not None
        layout = replace(
            layout,
            codes=replace(layout.codes, is_turned=is_turned),
            scales=replace(layout.scales, is_turned=is_turned),
        )
        if own.is_unsigned or _ZERO in found:
            zeros = Array(suffix=_ZERO, dtypes=("I8", "U8", "I32"), is_turned=is_turned)
            layout = replace(layout, zeros=zeros)
        return layout if own.bits == 8 else self._of_fours(layout)

    def _of_fours(self, layout: Layout) -> Layout:
        """Eight numbers in a word, along rows of what is stored; zeros across them."""
        order = ORDER if self.is_awq_order else None
        across = Packing(bits=4, is_along_rows=False, order=order)
        packing = replace(across, is_along_rows=not layout.codes.is_turned)
        codes = replace(layout.codes, dtypes=("I32",), packing=packing)
        if layout.zeros is None:
            return replace(layout, codes=codes)
        return replace(
            layout, codes=codes, zeros=replace(layout.zeros, dtypes=("I32",), packing=across)
        )


def read_quark(raw: Mapping[str, Any]) -> Quark:
    """Return what a config says.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    where = "quantization_config"
    own = Settings(raw, where)
    own.any("quant_method")
    _check_algorithms(own.any("algo_config", []))
    usual = _Group.read(own.any("global_quant_config", {}), f"{where}.global_quant_config")
    key = "layer_type_quant_config"
    types = own.object(key)
    if types is not None and "Linear" in types:
        usual = _Group.read(types.any("Linear"), f"{where}.{key}.Linear")
    if types is not None:
        types.close()
    key = "layer_quant_config"
    others = own.objects(key).items()
    groups = tuple((name, _Group.read(each, f"{where}.{key}.{name}")) for name, each in others)
    export = own.object("export") or Settings({}, f"{where}.export")
    export.choice("weight_format", ("real_quantized",), "real_quantized")
    is_awq_order = export.choice("pack_method", ("reorder", "order"), "reorder") == "reorder"
    export.close(ignored=("kv_cache_group", "min_kv_scale", "weight_merge_groups"))
    made = Quark(usual, groups, own.names("exclude"), is_awq_order)
    own.close(ignored=_IGNORED)
    for group in (usual, *(group for _, group in groups)):
        group.rounding()
    return made


def _check_algorithms(raw: Any) -> None:
    """Refuse what is computed beside the products of matrices."""
    for own in raw if isinstance(raw, list) else [raw]:
        name = own.get("name") if isinstance(own, dict) else own
        is_rotation = name in ("rotation", "quarot")
        if name == "svdquant" or (is_rotation and any(own.get(key) for key in _ONLINE)):
            raise ModelLoadError(f"quantization_config.algo_config: {name} is not supported")


#: Rotations of inputs at the time of a product.
_ONLINE = ("online_r1_rotation", "r3", "r4")
#: Keys that do not change what is computed here: how the file was made, and the KV cache.
_IGNORED = (
    "version",
    "quant_mode",
    "kv_cache_quant_config",
    "kv_cache_post_rope",
    "softmax_quant_spec",
)


def _dtypes(own: _Numbers) -> tuple[str, ...]:
    if own.element is Element.INT:
        return ("U8",) if own.is_unsigned else ("I8",)
    return (FLOAT8[own.element],) if own.bits == 8 else ("U8",)
