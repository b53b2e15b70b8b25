"""What AMD Quark exports, plainly; `tests/oracles` has what the library itself wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.stored.base import Written
from tests.fakes.stored.floats import MOST, STATIC_SCALE
from tests.fakes.stored.grids import E2M1, E2M3, E3M2, E4M3, Grid
from tests.fakes.stored.integers import pack, pack_awq, quantise_columns

if TYPE_CHECKING:
    from torch import Tensor

_GRIDS = {"fp4": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2, "fp8_e4m3": E4M3}
_MX_GROUP = 32


def _config(weight: Any, inputs: dict[str, Any] | None, **export: Any) -> dict[str, Any]:
    own = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    return {
        "quant_method": "quark",
        "global_quant_config": own,
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head"],
        "quant_mode": "eager_mode",
        "version": "0.13",
        "export": {"weight_format": "real_quantized", "kv_cache_group": [], **export},
    }


@dataclass(frozen=True)
class QuarkFloat8:
    """A scale for the matrix, and a stored one for inputs."""

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        own = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
        return _config(own, own)

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        scale = weight.abs().max() / MOST
        codes = (weight / scale).to(torch.float8_e4m3fn)
        tensors = {".weight": codes, ".weight_scale": scale, ".input_scale": STATIC_SCALE}
        return Written(tensors, codes.float() * scale)

    def round_inputs(self, x: Tensor) -> Tensor:
        """See `RoundingWriter.round_inputs`."""
        return E4M3.decode(E4M3.encode(x / STATIC_SCALE)) * STATIC_SCALE


@dataclass(frozen=True)
class QuarkInt8:
    """A scale for each row, and zeros that are stored though they are 0."""

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return _config({"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0}, None)

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        scales = weight.abs().amax(1) / 127.5
        codes = (weight / scales[:, None]).round().clamp(-128, 127)
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        tensors = {".weight": codes.char(), ".weight_scale": scales, ".weight_zero_point": zeros}
        return Written(tensors, codes * scales[:, None])


@dataclass(frozen=True)
class QuarkInt8Inputs:
    """A scale for the matrix, and a stored one for inputs, both with zeros that are 0."""

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        own = {"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
        return _config(own, own)

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        scale = weight.abs().max() / 127.5
        codes = (weight / scale).round().clamp(-128, 127)
        zero = torch.zeros((), dtype=torch.int32)
        tensors = {
            ".weight": codes.char(),
            ".weight_scale": scale,
            ".weight_zero_point": zero,
            ".input_scale": STATIC_SCALE,
            ".input_zero_point": zero.clone(),
        }
        return Written(tensors, codes * scale)

    def round_inputs(self, x: Tensor) -> Tensor:
        """See `RoundingWriter.round_inputs`."""
        return (x / STATIC_SCALE).round().clamp(-128, 127) * STATIC_SCALE


@dataclass(frozen=True)
class QuarkInt4:
    """Groups of columns; int4 is signed, uint4 has zeros."""

    dtype: str = "int4"
    pack_method: str = "reorder"
    group: int = 32

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        own = {
            "dtype": self.dtype,
            "qscheme": "per_group",
            "ch_axis": 1,
            "group_size": self.group,
            "symmetric": self.dtype == "int4",
        }
        return _config(own, None, pack_method=self.pack_method)

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        groups = torch.arange(weight.shape[1]) // self.group
        is_even = self.dtype == "int4"
        codes, scales, zeros = quantise_columns(weight, groups, 4, is_even=is_even)
        dense = (codes - zeros[:, groups]) * scales[:, groups]
        packed = pack_awq if self.pack_method == "reorder" else lambda lines: pack(lines, 4)
        if is_even:
            codes = (codes - 8) % 16
        tensors = {".weight": packed(codes.T), ".weight_scale": scales.T}
        if not is_even:
            tensors[".weight_zero_point"] = packed(zeros.T)
        return Written(tensors, dense)


@dataclass(frozen=True)
class QuarkMx:
    """Small floats with a power of two for 32 columns, of weights and of inputs."""

    dtype: str = "fp4"
    inputs: str = "fp4"

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        own = {
            "qscheme": "per_group",
            "group_size": _MX_GROUP,
            "ch_axis": -1,
            "scale_format": "e8m0",
            "scale_calculation_mode": "even",
            "is_dynamic": False,
        }
        inputs = {**own, "dtype": self.inputs, "is_dynamic": True}
        return _config({**own, "dtype": self.dtype}, inputs)

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        grid = _GRIDS[self.dtype]
        codes, exponents = _encode(weight, grid)
        dense = (grid.decode(codes) * torch.exp2(exponents.float())[..., None]).flatten(1)
        lines = codes.flatten(1)
        if grid is E4M3:
            stored = lines.to(torch.uint8).view(torch.float8_e4m3fn)
        else:
            num_bytes = lines.shape[1] * grid.bits // 8
            words = pack(lines, grid.bits).view(torch.uint8)
            stored = words[:, :num_bytes]
        scales = (exponents + 127).to(torch.uint8)
        return Written({".weight": stored, ".weight_scale": scales}, dense)

    def round_inputs(self, x: Tensor) -> Tensor:
        """See `RoundingWriter.round_inputs`."""
        grid = _GRIDS[self.inputs]
        codes, exponents = _encode(x, grid)
        return (grid.decode(codes) * torch.exp2(exponents.float())[..., None]).flatten(-2)


def _encode(x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Codes [..., groups, 32] and exponents [..., groups]."""
    groups = x.unflatten(-1, (-1, _MX_GROUP))
    exponents = grid.powers(groups.abs().amax(-1))
    return grid.encode(groups / torch.exp2(exponents.float())[..., None]), exponents


@dataclass(frozen=True)
class ModelOptFp4:
    """NVFP4 of NVIDIA's ModelOpt, and of Quark: scales in 8 bits, and a factor of the matrix."""

    method: str = "modelopt"

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        if self.method == "modelopt":
            ignore = {"ignore": ["lm_head"], "producer": {"name": "modelopt"}}
            return {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", **ignore}
        fours = {"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "ch_axis": -1}
        scales = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_scale_quant": True}
        return _config([fours, scales], None)

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        factor = weight.abs().max() / (MOST * 6)
        groups = weight.unflatten(1, (-1, 16))
        scales = (groups.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
        wide = scales.float() * factor
        codes = E2M1.encode(groups / wide.clamp(min=1e-12)[..., None])
        dense = (E2M1.decode(codes) * wide[..., None]).flatten(1)
        packed = pack(codes.flatten(1), 4).view(torch.uint8)
        tensors = {".weight": packed, ".weight_scale": scales, ".weight_scale_2": factor}
        return Written(tensors, dense)


@dataclass(frozen=True)
class ModelOptFp8:
    """FP8 of ModelOpt: a scale for the matrix, and a stored one for inputs."""

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        return QuarkFloat8().write(weight)

    def round_inputs(self, x: Tensor) -> Tensor:
        """See `RoundingWriter.round_inputs`."""
        return QuarkFloat8().round_inputs(x)
