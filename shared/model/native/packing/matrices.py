"""Weights in the native kernels' order; each is packed as soon as it is complete."""

from __future__ import annotations

from ctypes import pointer
from typing import TYPE_CHECKING

import torch

from kernels.native.kinds import CodeKind, Kind
from shared.errors import InternalError
from shared.model.linear.scratch import Scratch
from shared.model.matrix.blocks import WORDS, BlockMatrix
from shared.model.native.records.blocks import blocks_record, words_record
from shared.model.native.records.codes import (
    SHARED_ROWS,
    code_kind,
    codes_record,
    has_pieces,
    kind_of_blocks,
    rounding_record,
)

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.fused import FusedLinear
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.matrix.quantized import QuantizedMatrix
    from shared.model.native.records.codes import CodesRecord
    from shared.model.native.threads import LibraryThreads

STORED = {torch.float32: Kind.FLOAT32, torch.bfloat16: Kind.BFLOAT16}


class PackedWeight:
    """A `Product` that only the native decoder computes."""

    def __init__(self, matrix: int) -> None:
        #: The library's handle.
        self.matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`. Always raises InternalError."""
        raise InternalError("a packed weight is computed by the native decoder")


class Matrices:
    """The packed matrices of one model: the `LinearMethod` that makes them."""

    keeps_parts = False
    keeps_head = True

    def __init__(self, threads: LibraryThreads, kind: Kind, *, rounds_inputs: bool = False) -> None:
        """Pack weights; `kind` is the format of linears.

        `rounds_inputs`: inputs of codes of 4 bits are rounded to 8 bits, where groups allow it.
        """
        self.threads = threads
        self.kind = kind
        #: The format of the output head.
        self.head_kind = Kind.FLOAT32 if kind is Kind.FLOAT_PARTS else kind
        self._rounds_inputs = rounds_inputs
        self._library = threads.library
        self._matrices: list[int] = []
        self._scratch = Scratch()
        #: Arrays that the kernels read directly.
        self._kept: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Memory of all packed weights in bytes."""
        kept = sum(tensor.nbytes for tensor in self._kept)
        return kept + sum(int(self._library.baton_matrix_bytes(m)) for m in self._matrices)

    def room(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """See `LinearMethod.room`."""
        return self._scratch.take(shape, dtype)

    def finish(self, linear: FusedLinear) -> PackedWeight:
        """See `LinearMethod.finish`."""
        made = PackedWeight(self._dense(linear))
        self._scratch.give_back(linear.weight)
        return made

    def _dense(self, linear: FusedLinear) -> int:
        """Pack a linear whose weight is complete."""
        return self._linear_matrix(linear, self.kind)

    def _linear_matrix(self, linear: FusedLinear, kind: Kind) -> int:
        """Pack the weight of a linear. Ranks round to 8 bits as one would that had all inputs."""
        weight, bias, paired = linear.weight, linear.bias, linear.is_gated
        if kind is not Kind.INT8 or linear.shared_by is None:
            return self._matrix(weight, bias, paired=paired, kind=kind)
        own = weight.detach().abs().amax(dim=1, keepdim=True).float()
        peaks = linear.shared_by.all_gather(own).amax(dim=1)
        made = self._matrix(weight, bias, paired=paired, kind=kind, peaks=peaks)
        self._library.baton_matrix_round_rows(made, pointer(SHARED_ROWS))
        return made

    def keeps(self, matrix: AnyMatrix) -> bool:
        """See `LinearMethod.keeps`. Without a type of codes, only if inputs are rounded."""
        if self.kind is Kind.INT8:
            return False
        if isinstance(matrix, BlockMatrix):
            return True
        return matrix.inputs is not None or code_kind(matrix) is not None

    def keep(self, matrix: AnyMatrix, linear: FusedLinear) -> PackedWeight:
        """See `LinearMethod.keep`."""
        return PackedWeight(self._stored(matrix, linear.bias, paired=linear.is_gated))

    def _stored(self, matrix: AnyMatrix, bias: Tensor | None, *, paired: bool = False) -> int:
        """Pack a matrix of `keeps`."""
        if isinstance(matrix, BlockMatrix):
            return self._blocks(matrix, bias, paired=paired)
        kind = code_kind(matrix)
        if kind is None:  # rounded inputs are float32 numbers
            weight = matrix.dense(torch.float32)
            made = self._matrix(weight, bias, paired=paired, kind=Kind.FLOAT32)
        else:
            made = self._codes(matrix, kind, bias, paired=paired)
        if matrix.inputs is not None:
            self._library.baton_matrix_round_rows(made, pointer(rounding_record(matrix.inputs)))
        return made

    def _codes(
        self, matrix: QuantizedMatrix, kind: CodeKind, bias: Tensor | None, *, paired: bool
    ) -> int:
        rounds_rows = (self._rounds_inputs or matrix.inputs is not None) and has_pieces(
            matrix, kind
        )
        codes = codes_record(matrix, kind, rounds_rows=rounds_rows)
        return self._of_codes(codes, bias, matrix.shape, paired=paired)

    def _of_codes(
        self, codes: CodesRecord, bias: Tensor | None, shape: tuple[int, int], *, paired: bool
    ) -> int:
        values = None if bias is None else bias.detach().float().contiguous()
        address = None if values is None else values.data_ptr()
        matrix_of = self._library.baton_matrix_of_codes
        made = matrix_of(self.threads.pool, pointer(codes.record), address, paired)
        return self._own(made, *shape)

    def _blocks(self, matrix: BlockMatrix, bias: Tensor | None, *, paired: bool) -> int:
        rounds_rows = self._rounds_inputs and has_pieces(matrix, kind_of_blocks(matrix))
        if matrix.kind == WORDS:
            codes = words_record(matrix, rounds_rows=rounds_rows)
            return self._of_codes(codes, bias, matrix.shape, paired=paired)
        blocks = blocks_record(matrix, rounds_rows=rounds_rows)
        values = None if bias is None else bias.detach().float().contiguous()
        address = None if values is None else values.data_ptr()
        matrix_of = self._library.baton_matrix_of_blocks
        made = matrix_of(self.threads.pool, pointer(blocks.record), address, paired)
        if not made:
            matrix.quantized()  # says so if a scale is not finite
        return self._own(made, *matrix.shape)

    def __del__(self) -> None:
        """Free the memory: the decoder that used the weights is gone."""
        for matrix in self._matrices:
            self._library.baton_matrix_delete(matrix)

    def _own_matrix(self, weight: Tensor) -> int:
        """Pack a weight in its own dtype."""
        return self._matrix(weight, None, kind=STORED[weight.dtype])

    def _linear(self, linear: FusedLinear) -> int:
        assert isinstance(linear.product, PackedWeight)  # the whole model was loaded
        return linear.product.matrix

    def _matrix(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        paired: bool = False,
        kind: Kind | None = None,
        peaks: Tensor | None = None,
    ) -> int:
        """Pack a weight in the format of linears, or in `kind`.

        peaks: of int8, float32 [columns]: the largest magnitudes of rows of which this has a part.
        """
        columns, inner = weight.shape
        weight = weight.detach().contiguous()
        values = None if bias is None else bias.detach().float().contiguous()
        matrix = self._library.baton_matrix_new(
            self.threads.pool,
            self.kind if kind is None else kind,
            weight.data_ptr(),
            STORED[weight.dtype],
            columns,
            inner,
            None if values is None else values.data_ptr(),
            paired,
            None if peaks is None else peaks.data_ptr(),
        )
        return self._own(matrix, columns, inner)

    def _own(self, matrix: int | None, columns: int, inner: int) -> int:
        """Keep what the library made; None: it had no memory."""
        if not matrix:
            raise MemoryError(f"no memory for a packed weight of {columns} x {inner}")
        self._matrices.append(matrix)
        return int(matrix)

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()
