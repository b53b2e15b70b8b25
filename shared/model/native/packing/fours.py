"""`--quantization int4` natively: linears are rounded to codes of 4 bits while they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.native.kinds import CodeKind, Kind
from shared.model.matrix.nearest import GROUP, round_to_codes
from shared.model.native.packing.packing import Packing
from shared.model.native.records.codes import code_kind

if TYPE_CHECKING:
    from shared.model.linear.fused import FusedLinear
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.native.threads import LibraryThreads


class PackingFours(Packing):
    """Keeps stored codes of 4 bits as they are, and rounds other weights to such.

    If inputs are rounded to 8 bits, too, the output head takes 8 bits, as do linears that codes
    cannot fill words of; otherwise both stay dense.
    """

    def __init__(self, threads: LibraryThreads, kind: Kind, *, rounds_inputs: bool) -> None:
        """See `Packing`."""
        super().__init__(threads, kind, rounds_inputs=rounds_inputs)
        if rounds_inputs:
            self.head_kind = Kind.INT8

    @property
    def description(self) -> str:
        """What makes its numbers others than those of another method for int4."""
        return f"{GROUP}/{self.head_kind.name}"

    def keeps(self, matrix: AnyMatrix) -> bool:
        """See `LinearMethod.keeps`."""
        return code_kind(matrix) is CodeKind.FOURS and super().keeps(matrix)

    def _dense(self, linear: FusedLinear) -> int:
        matrix, paired = round_to_codes(linear.weight), linear.is_gated
        if self.keeps(matrix):
            return self._stored(matrix, linear.bias, paired=paired)
        return self._linear_matrix(linear, self.head_kind)
