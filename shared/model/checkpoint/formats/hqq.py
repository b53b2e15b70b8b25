"""HQQ: codes in planes of a whole matrix, with zeros that are floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.settings import Settings
from shared.model.checkpoint.matrices.layout import FLOATS, Array, Layout, Planes
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.formats.base import Module

_CODES, _SCALES, _ZEROS, _SHAPE = ".W_q", ".scale", ".zero", ".shape"
#: What each matrix says of itself, too.
_BITS, _GROUP, _AXIS = ".nbits", ".group_size", ".axis"
#: Codes under other names, and scales and zeros in few bits, which old versions made.
_OFF = (".view_as_float", ".quant_scale", ".quant_zero")
#: How it was made, and how its library would compute with it.
_IGNORED = (
    ".channel_wise",
    ".compute_dtype",
    ".encoded_state_dict",
    ".offload_meta",
    ".optimize",
    ".packing",
    ".round_zero",
    ".stores_quant_config",
    ".unpack_view_dtype",
)
#: By bits of a code: those of its place. Five and six have a byte.
_PLACES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 8, 6: 8, 8: 8}
_WHERE = "quantization_config.quant_config"
_WEIGHTS = "weight_quant_params"


@dataclass(frozen=True, slots=True)
class Scheme:
    """Bits and groups of some modules."""

    bits: int
    #: Numbers that share a scale: of a row, or one of each of so many parts of the rows.
    group: int
    axis: int

    @classmethod
    def read(cls, raw: Any, where: str) -> Scheme:
        """Return what an object says.

        Raises:
            ModelLoadError: a key is unknown or wrong; names it.
        """
        own = Settings(raw, where)
        weights = own.object(_WEIGHTS)
        for key in ("scale_quant_params", "zero_quant_params"):
            own.refuse(key, "scales and zeros in few bits are not read")
        own.close(ignored=("offload_meta",))
        if weights is None:
            raise ModelLoadError(f"{where}.{_WEIGHTS} is missing")
        bits, group = weights.integer("nbits"), weights.integer("group_size")
        axis = weights.integer("axis")
        if bits not in _PLACES:
            known = ", ".join(map(str, _PLACES))
            raise ModelLoadError(f"{weights.where}.nbits must be one of {known}, not {bits}")
        if group < 1:
            raise ModelLoadError(f"{weights.where}.group_size must be at least 1, not {group}")
        if axis not in (0, 1):
            raise ModelLoadError(f"{weights.where}.axis must be 0 or 1, not {axis}")
        weights.refuse("view_as_float", "codes in the dtype of the model are not read")
        weights.close(ignored=("channel_wise", "optimize", "round_zero"))
        return cls(bits, group, axis)


@dataclass(frozen=True, slots=True)
class Hqq:
    """A `quantization_config` of HQQ."""

    #: None: only modules of `others` are quantised.
    usual: Scheme | None
    #: By tag: the name of a module without `model`, `layers` and numbers.
    others: Mapping[str, Scheme]
    name: str = "hqq"
    suffixes: frozenset[str] = frozenset(
        {_CODES, _SCALES, _ZEROS, _SHAPE, _BITS, _GROUP, _AXIS, *_OFF, *_IGNORED}
    )
    rounds_inputs: bool = False

    def layout(self, module: Module, found: Mapping[str, TensorHeader]) -> Layout | None:
        """See `StoredFormat.layout`."""
        if _CODES not in found:
            return None
        scheme = self._scheme_of(module)
        if scheme is None:
            raise ModelLoadError(f"{module}: {_WHERE} leaves it out, but it is stored quantised")
        return _layout(scheme, found)

    def _scheme_of(self, module: Module) -> Scheme | None:
        found = (self.others.get(_tag(name)) for name in module.names)
        return next((each for each in found if each is not None), self.usual)


def _layout(scheme: Scheme, found: Mapping[str, TensorHeader]) -> Layout:
    is_along_rows = scheme.axis == 1
    place = _PLACES[scheme.bits]
    planes = Planes(bits=place, group=scheme.group, is_along_rows=is_along_rows)
    stated = {
        _BITS: scheme.bits,
        _GROUP: scheme.group,
        _AXIS: scheme.axis,
        **dict.fromkeys(_OFF, 0),
    }
    repeats = 1 if is_along_rows else scheme.group
    scales, zeros = (
        Array(suffix=suffix, dtypes=FLOATS, is_flat=True, repeats=repeats)
        for suffix in (_SCALES, _ZEROS)
    )
    return Layout(
        element=Element.INT,
        bits=scheme.bits,
        codes=Array(suffix=_CODES, dtypes=("I32",) if place == 3 else ("U8",), planes=planes),
        scales=scales,
        zeros=zeros,
        has_float_zeros=True,
        group=scheme.group if is_along_rows else 1,
        has_whole_groups=True,
        size=_SHAPE,
        constants={suffix: value for suffix, value in stated.items() if suffix in found},
    )


def _tag(name: str) -> str:
    parts = name.split(".")
    return ".".join(
        part for part in parts if part not in ("model", "layers") and not part.isnumeric()
    )


def read_hqq(raw: Mapping[str, Any]) -> Hqq:
    """Return what a config says. Which modules are left out shows in their tensors.

    Raises:
        ModelLoadError: a key is unknown or wrong; names it.
    """
    own = Settings(raw, "quantization_config")
    own.any("quant_method")
    schemes = own.objects("quant_config")
    own.close(ignored=("skip_modules",))
    if not schemes:
        raise ModelLoadError(f"{_WHERE} is missing")
    if _WEIGHTS in schemes:
        return Hqq(Scheme.read(schemes, _WHERE), {})
    others = {tag: Scheme.read(each, f"{_WHERE}.{tag}") for tag, each in schemes.items()}
    return Hqq(None, others)
