"""NVIDIA's ModelOpt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOAT8, FLOATS, Array, Factor, Layout, Packing
from shared.model.checkpoint.patterns import matches
from shared.model.matrix.rounding import Element, Rounding, ScaleRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALE, _FACTOR, _INPUT_SCALE = (
    ".weight",
    ".weight_scale",
    ".weight_scale_2",
    ".input_scale",
)
_PRE = ".pre_quant_scale"
_SUFFIXES = frozenset({_CODES, _SCALE, _FACTOR, _INPUT_SCALE, _PRE})
_MX_GROUP, _FOURS_GROUP = 32, 16
_FLOAT8 = Rounding(element=Element.E4M3, bits=8)
#: By algorithm: how inputs are rounded.
_INPUTS: Mapping[str, Rounding | None] = {
    "fp8": replace(_FLOAT8, is_static=True),
    "fp8_per_channel_per_token": _FLOAT8,
    "nvfp4": Rounding(element=Element.E2M1, bits=4, group=_FOURS_GROUP, scale=ScaleRule.E4M3_TIMES),
    "w4a16_nvfp4": None,
    "mxfp8": replace(_FLOAT8, group=_MX_GROUP, scale=ScaleRule.POWER_ABOVE),
}


@dataclass(frozen=True, slots=True)
class _Scheme:
    algorithm: str
    group: int

    @classmethod
    def read(cls, own: Settings, usual_group: int = _FOURS_GROUP) -> _Scheme:
        scheme = cls(own.choice("quant_algo", _INPUTS), own.integer("group_size", usual_group))
        if scheme.group < 1:
            raise ModelLoadError(f"{own.where}.group_size must be at least 1, not {scheme.group}")
        return scheme


@dataclass(frozen=True, slots=True)
class ModelOpt:
    """A `quantization_config` of ModelOpt."""

    #: None: each module has its own.
    usual: _Scheme | None
    others: Mapping[str, _Scheme]
    excluded: tuple[str, ...]
    name: str = "modelopt"
    suffixes: frozenset[str] = _SUFFIXES

    @property
    def rounds_inputs(self) -> bool:
        """See `StoredFormat.rounds_inputs`."""
        schemes = (*self.others.values(), *([] if self.usual is None else [self.usual]))
        return any(_INPUTS[scheme.algorithm] is not None for scheme in schemes)

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        if found.keys() <= {_CODES} and (not found or found[_CODES].dtype in FLOATS):
            return None
        if _PRE in found:
            raise ModelLoadError(f"{module}{_PRE}: factors of inputs are not supported")
        if any(matches(each, module.names, "quantization_config.ignore") for each in self.excluded):
            raise ModelLoadError(f"{module} is in quantization_config.ignore, but stored quantised")
        own = (self.others[name] for name in module.names if name in self.others)
        scheme = next(own, self.usual)
        if scheme is None:
            raise ModelLoadError(f"{module} is not in quantization_config.quantized_layers")
        return _layout(scheme)


def _layout(scheme: _Scheme) -> Layout:
    inputs = _INPUTS[scheme.algorithm]
    layout = Layout(
        element=Element.E4M3,
        bits=8,
        codes=Array(suffix=_CODES, dtypes=(FLOAT8[Element.E4M3],)),
        scales=Array(suffix=_SCALE, dtypes=FLOATS),
        row_range=None,
        inputs=inputs,
    )
    if inputs is not None and (inputs.is_static or inputs.scale is ScaleRule.E4M3_TIMES):
        layout = replace(layout, input_stored=_INPUT_SCALE)
    if scheme.algorithm == "fp8":
        return layout
    layout = replace(layout, row_range=1)
    if scheme.algorithm == "mxfp8":
        scales = Array(suffix=_SCALE, dtypes=("U8", "F8_E8M0"))
        return replace(layout, scales=scales, are_powers=True, group=_MX_GROUP)
    if scheme.algorithm == "fp8_per_channel_per_token":
        return layout
    return replace(
        layout,
        inputs=None if inputs is None else replace(inputs, group=scheme.group),
        element=Element.E2M1,
        bits=4,
        codes=Array(suffix=_CODES, dtypes=("U8",), packing=Packing(bits=4)),
        scales=Array(suffix=_SCALE, dtypes=(FLOAT8[Element.E4M3],)),
        factor=Factor(suffix=_FACTOR),
        group=scheme.group,
    )


def read_modelopt(raw: Mapping[str, Any]) -> ModelOpt:
    """Return what a config says; that of `hf_quant_config.json` has another key for exclusions.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    layers = own.objects("quantized_layers")
    others = {
        name: _Scheme.read(Settings(each, f"{own.where}.quantized_layers.{name}"))
        for name, each in layers.items()
    }
    is_mixed = str(raw.get("quant_algo")).lower() == "mixed_precision"
    usual = None if is_mixed else _Scheme.read(own, _group_of(own))
    excluded = (*own.names("exclude_modules"), *own.names("ignore"))
    own.close(ignored=_IGNORED)
    return ModelOpt(usual, others, excluded)


def _group_of(own: Settings) -> int:
    """The group of all weights, which config.json has under `config_groups` alone."""
    where = f"{own.where}.config_groups"
    groups = (
        Settings(each, where).object("weights") for each in own.objects("config_groups").values()
    )
    sizes = {
        each.integer("group_size") for each in groups if each is not None and "group_size" in each
    }
    if len(sizes) > 1:
        raise ModelLoadError(f"{where} has weights with groups of {min(sizes)} and {max(sizes)}")
    return sizes.pop() if sizes else _FOURS_GROUP


#: Keys that do not change what is computed here: how the file was made, and the KV cache.
_IGNORED = (
    "quant_algo",
    "group_size",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "config_groups",
    "producer",
    "has_zero_point",
    "pre_quant_scale",
)
