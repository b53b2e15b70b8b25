"""A tensor of a GGUF file whose numbers are codes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.errors import ModelLoadError
from shared.gguf.codes import FORMS, read_codes
from shared.model.matrix.blocks import BlockMatrix, BlockRows
from shared.model.matrix.quantized import QuantizedMatrix

if TYPE_CHECKING:
    from shared.gguf.header import StoredTensor
    from shared.gguf.tensors import Part
    from shared.model.checkpoint.files.file_map import FileMap
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.weight_map import Stored


@dataclass(frozen=True, slots=True)
class GgufMatrix:
    """See `OpenMatrix`. Its codes are read by `read` only."""

    part: Part
    data: FileMap

    @property
    def shape(self) -> tuple[int, ...]:
        """See `OpenMatrix.shape`."""
        return self.part.shape

    def read(self, name: str, wanted: Stored) -> AnyMatrix:
        """See `OpenMatrix.read`."""
        if self.shape != wanted.shape:
            raise ModelLoadError(
                f"{self.part.stored.path}: tensor {name!r} has shape {list(self.shape)}, "
                f"the config asks for {list(wanted.shape)}"
            )
        return self.matrix()

    def matrix(self) -> AnyMatrix:
        """Return all rows, those of experts one behind the other."""
        part = self.part
        own = self._rows(part.stored)
        if part.between is not None:
            own = own.in_turn(self._rows(part.between))
        if part.paired_heads is not None:
            order = halves_apart(torch.arange(own.shape[0]), part.paired_heads, part.name)
            own = own.take(order)
        return own

    def dense(self) -> torch.Tensor:
        """Return the tensor in float32."""
        part = self.part
        rows, columns = part.shape[-2:]
        if part.is_transposed:
            rows, columns = columns, rows
        values = self.matrix().dense(torch.float32).view(*part.shape[:-2], rows, columns)
        return values.mT if part.is_transposed else values

    def _rows(self, stored: StoredTensor) -> BlockMatrix:
        own, form, columns = stored.type, FORMS[stored.type.name], stored.shape[-1]
        raw = torch.from_numpy(self.data.view(*self.part.range_of(stored)))
        data = raw.view(-1, columns // own.block_values * own.block_bytes)
        return BlockMatrix(
            parts=(BlockRows(data, partial(_take_apart, stored)),),
            kind=own.name,
            columns=columns,
            unit=own.block_values,
            bits=form.bits,
            group=form.group,
            has_table=form.is_float or form.table is not None,
        )


def _take_apart(stored: StoredTensor, rows: BlockRows) -> QuantizedMatrix:
    """Return the matrix of some rows of a tensor. Raises ModelLoadError: a scale is not finite."""
    form, own = FORMS[stored.type.name], stored.type
    # Of a part of the columns it has other rows.
    columns = rows.data.shape[1] // own.block_bytes * own.block_values
    found = read_codes(rows.all().numpy(), stored.type)
    groups = -1, columns // form.group
    for numbers in (found.scales, found.offsets):
        if numbers is not None and not np.isfinite(numbers).all():
            raise ModelLoadError(
                f"{stored.path}: tensor {stored.name!r} has a scale that is not finite"
            )
    codes = torch.from_numpy(found.codes).view(-1, columns)
    if form.table is None:
        codes = codes.view(torch.float8_e4m3fn if form.is_float else torch.int8)
    offsets = found.offsets
    return QuantizedMatrix(
        codes=codes,
        bits=form.bits,
        scales=torch.from_numpy(found.scales).view(groups),
        offsets=None if offsets is None else torch.from_numpy(offsets).view(groups),
        group=form.group,
        table=None if form.table is None else torch.tensor(form.table, dtype=torch.float32),
    )


def is_coded(part: Part) -> bool:
    """Return whether a tensor is a matrix, or several, whose numbers are codes."""
    stored, between = part.stored, part.between
    return (
        stored.type.name in FORMS
        and len(part.stored_shape) > 1
        and not part.offset
        and (between is None or between.type == stored.type)
    )


def halves_apart(tensor: torch.Tensor, num_heads: int, name: str) -> torch.Tensor:
    """Return rows as Hugging Face rotates them: number j of a head with number j + head_dim / 2.

    Raises:
        ModelLoadError: rows are not so many heads.
    """
    if num_heads < 1 or tensor.shape[0] % (2 * num_heads):
        raise ModelLoadError(f"tensor {name!r}: {tensor.shape[0]} rows are not {num_heads} heads")
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
