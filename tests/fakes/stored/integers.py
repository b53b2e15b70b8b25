"""GPTQ, AWQ and torchao, number by number as their libraries' packers do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.stored.base import Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

#: Bit positions, in steps of 4, of a word's eight neighbours.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Gptq:
    """GPTQ; without `sym` zeros differ by group; with `desc_act` groups are no ranges."""

    bits: int = 4
    group: int = 32
    version: int = 1
    sym: bool = True
    desc_act: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "sym": self.sym,
            "desc_act": self.desc_act,
            "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
        }

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        columns = weight.shape[1]
        group = columns if self.group == -1 else self.group
        groups = torch.arange(columns) // group
        if self.desc_act:
            groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
        codes, scales, zeros = quantise_columns(weight, groups, self.bits, is_even=self.sym)
        shift = 1 if self.version == 1 else 0
        stored_zeros = (zeros - shift) % 2**self.bits
        tensors = {
            ".qweight": pack(codes, self.bits).T,
            ".qzeros": pack(stored_zeros.T, self.bits),
            ".scales": scales.T.half(),
            ".g_idx": groups.int(),
        }
        return Written(tensors, (codes - zeros[:, groups]) * scales[:, groups])


@dataclass(frozen=True)
class Awq:
    """AWQ's GEMM."""

    group: int = 32

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group,
            "zero_point": True,
            "version": "gemm",
        }

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        groups = torch.arange(weight.shape[1]) // self.group
        codes, scales, zeros = quantise_columns(weight, groups, 4, is_even=False)
        tensors = {
            ".qweight": pack_awq(codes.T),
            ".qzeros": pack_awq(zeros.T),
            ".scales": scales.T.half(),
        }
        return Written(tensors, (codes - zeros[:, groups]) * scales[:, groups])


@dataclass(frozen=True)
class TorchAo:
    """torchao's integers of few bits, each in a byte."""

    bits: int = 4
    group: int = 32

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        packing = {"_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8"}
        kind = {
            "_type": "IntxWeightOnlyConfig",
            "_version": 2,
            "_data": {"intx_packing_format": packing},
        }
        return {
            "quant_method": "torchao",
            "quant_type": {"default": kind},
            "include_input_output_embeddings": False,
            "modules_to_not_convert": ["lm_head"],
        }

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        groups = torch.arange(weight.shape[1]) // self.group
        codes, scales, zeros = quantise_columns(weight, groups, self.bits, is_even=False)
        half = 2 ** (self.bits - 1)
        tensors = {
            "._weight_qdata": (codes - half).to(torch.int8),
            "._weight_scale": scales,
            "._weight_zero_point": (zeros - half).to(torch.int8),
        }
        return Written(tensors, (codes - zeros[:, groups]) * scales[:, groups])


def quantise_columns(
    weight: Tensor, groups: Tensor, bits: int, *, is_even: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [rows, columns] from 0 on, scales exact in float16 and zeros [rows, groups]."""
    scales, zeros, most = [], [], 2**bits - 1
    for number in range(int(groups.max()) + 1):
        own = weight[:, groups == number]
        if is_even:
            scales.append((own.abs().amax(1) * 2 / most).half().float())
            zeros.append(torch.full((len(weight),), 2 ** (bits - 1)))
        else:
            least, largest = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
            scales.append(((largest - least) / most).half().float())
            zeros.append((-least / scales[-1]).round().clamp(0, most).long())
    scale, zero = torch.stack(scales, 1), torch.stack(zeros, 1)
    codes = (weight / scale[:, groups]).round().long() + zero[:, groups]
    return codes.clamp(0, most), scale, zero


def pack(lines: Tensor, bits: int) -> Tensor:
    """int32 words of each line: number i has the bits from i * bits on."""
    return torch.tensor([_words(line, bits) for line in lines.tolist()], dtype=torch.int32)


def _words(numbers: Sequence[int], bits: int) -> list[int]:
    whole = sum(number << (bits * place) for place, number in enumerate(numbers))
    count = -(-len(numbers) * bits // 32)
    return [_signed((whole >> (32 * place)) & 0xFFFFFFFF) for place in range(count)]


def pack_awq(lines: Tensor) -> Tensor:
    """int32 words of each line: eight numbers in AWQ's order."""
    return torch.tensor(
        [
            [
                _signed(sum(line[at + own] << (4 * j) for j, own in enumerate(_AWQ_ORDER)))
                for at in range(0, len(line), 8)
            ]
            for line in lines.tolist()
        ],
        dtype=torch.int32,
    )


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
