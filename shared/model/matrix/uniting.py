"""Stored matrices of several types as one, without a loss."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

import torch

from shared.model.matrix.blocks import join_blocks, quantized
from shared.model.matrix.quantized import QuantizedMatrix, concatenate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.matrix.blocks import AnyMatrix

_BITS = 8


def join(parts: Sequence[AnyMatrix], *, alike: bool) -> AnyMatrix | None:
    """Return one matrix with the rows of all.

    None: they are of several types, and must be `alike` or cannot be united.
    """
    blocks = join_blocks(parts)
    if blocks is not None:
        return blocks
    own = [quantized(part) for part in parts]
    whole = concatenate(own)
    return unite(own) if whole is None and not alike else whole


def unite(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix | None:
    """Return one matrix with the rows of all: codes of 8 bits, in the largest group that cuts none.

    None: some codes are no integers and stand for none, or have zeros beside others' offsets, or
    groups are uneven.
    """
    parts = [_spelled_out(part) for part in parts]
    columns = parts[0].shape[1]
    group = gcd(*(min(part.group, columns) for part in parts))
    if columns % group or not all(_is_plain(part) for part in parts):
        return None
    has_offsets = any(part.offsets is not None for part in parts)
    return concatenate([_in_groups(part.by_rows(), group, has_offsets) for part in parts])


def _spelled_out(part: QuantizedMatrix) -> QuantizedMatrix:
    """Integers of 8 bits in place of codes that stand for such."""
    table = part.table
    if table is None or (table != table.to(torch.int8)).any():
        return part
    codes = table.to(torch.int8).index_select(0, part.codes.flatten().int())
    return replace(part, codes=codes.view(part.shape), bits=_BITS, table=None)


def _is_plain(part: QuantizedMatrix) -> bool:
    others = (part.inputs, part.table, part.column_groups)
    return part.codes.dtype == torch.int8 and all(other is None for other in others)


def _in_groups(part: QuantizedMatrix, group: int, has_offsets: bool) -> QuantizedMatrix:
    columns = part.shape[1]

    def spread(numbers: Tensor | None) -> Tensor | None:
        if numbers is None:
            return None
        times = min(part.group, columns) // group
        return numbers.repeat_interleave(times, dim=1)[:, : columns // group].contiguous()

    scales, offsets = spread(part.scales), spread(part.offsets)
    assert scales is not None
    if has_offsets and offsets is None and part.zeros is None:
        offsets = torch.zeros_like(scales)
    zeros = spread(part.zeros)
    return replace(part, bits=_BITS, group=group, scales=scales, zeros=zeros, offsets=offsets)
