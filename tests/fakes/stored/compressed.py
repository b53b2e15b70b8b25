"""Matrices that compressed-tensors itself writes and reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, fake_quantize
from compressed_tensors.quantization.utils import (
    calculate_qparams,
    compute_dynamic_scales_and_zp,
    generate_gparam,
)

from tests.fakes.stored.base import Written

if TYPE_CHECKING:
    from torch import Tensor

#: By name: what `weights` and `input_activations` of a group say.
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
TOKENS8 = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FLOAT8 = {"num_bits": 8, "type": "float"}
FP4 = {"num_bits": 4, "type": "float"}
MX = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
NV = {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}

_FOURS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")


@dataclass(frozen=True)
class Compressed:
    """A format of compressed-tensors."""

    format: str
    weights: dict[str, Any]
    inputs: dict[str, Any] | None = None
    ignore: list[str] = field(default_factory=lambda: ["lm_head"])
    scale_dtype: torch.dtype = torch.bfloat16

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        scheme = self.scheme.model_dump(mode="json")
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": scheme},
            "ignore": self.ignore,
            "kv_cache_scheme": None,
        }

    @property
    def scheme(self) -> QuantizationScheme:
        """The library's record."""
        return QuantizationScheme(
            targets=["Linear"],
            weights=self.weights,
            input_activations=self.inputs,
            format=self.format,
        )

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        scheme = self.scheme
        state: dict[str, Tensor] = {"weight": weight}
        factor = None
        if scheme.weights.strategy == "tensor_group":
            factor = generate_gparam(weight.min(), weight.max())
            state["weight_global_scale"] = factor
        least, most = _ranges(weight, self.weights)
        scale, zero = calculate_qparams(least, most, scheme.weights, global_scale=factor)
        if scale.dtype == torch.float32 and factor is None:
            scale = scale.to(self.scale_dtype)
        state |= {"weight_scale": scale.float() if factor is not None else scale}
        state["weight_zero_point"] = zero
        compressor = BaseCompressor.get_value_from_registry(self.format)
        stored = compressor.compress(dict(state), scheme)
        tensors = {f".{name}": part for name, part in (stored | self._stored_inputs()).items()}
        return Written(tensors, self._read(stored))

    def _read(self, stored: dict[str, Tensor]) -> Tensor:
        """What the library makes of its tensors in float32."""
        scheme = self.scheme
        again = {name: part.clone() for name, part in stored.items()}
        if self.format in _FOURS:
            codes = again["weight_packed"]
            values = unpack_fp4_from_uint8(codes, len(codes), 2 * codes.shape[1], torch.float32)
            scale = again["weight_scale"]
            is_power = scale.dtype == torch.uint8
            scale = decompress_mx_scale(scale).float() if is_power else scale.float()
            factor = again.get("weight_global_scale")
            return dequantize(values, scale, args=scheme.weights, global_scale=factor)
        if again["weight_scale"].dtype.is_floating_point:
            again["weight_scale"] = again["weight_scale"].float()
        compressor = BaseCompressor.get_value_from_registry(self.format)
        dense: Tensor = compressor.decompress(again, scheme)["weight"]
        return dense.float().contiguous()

    def round_inputs(self, x: Tensor) -> Tensor:
        """What the library rounds float32 inputs [..., columns] to."""
        args, stored = self.scheme.input_activations, self._stored_inputs()
        factor = stored.get("input_global_scale")
        if args.dynamic:
            scale, zero = compute_dynamic_scales_and_zp(x, args, None, global_scale=factor)
        else:
            scale, zero = stored["input_scale"], stored.get("input_zero_point")
        return fake_quantize(x, scale, zero, args, global_scale=factor)

    def _stored_inputs(self) -> dict[str, Tensor]:
        args = self.scheme.input_activations
        if args is None or args.dynamic is True:
            return {}
        if args.dynamic == "local":
            return {"input_global_scale": torch.tensor([448.0 * 6 / 5])}
        stored = {"input_scale": torch.tensor([0.03])}
        if not args.symmetric:
            stored["input_zero_point"] = torch.tensor([7], dtype=torch.int8)
        return stored


def _ranges(weight: Tensor, own: dict[str, Any]) -> tuple[Tensor, Tensor]:
    strategy = own["strategy"]
    if strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if strategy == "block":
        rows, columns = own["block_structure"]
        pads = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
        blocks = torch.nn.functional.pad(weight, pads).unflatten(0, (-1, rows))
        blocks = blocks.unflatten(2, (-1, columns))
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    groups = weight.unflatten(1, (-1, own["group_size"]))
    return groups.amin(2), groups.amax(2)
