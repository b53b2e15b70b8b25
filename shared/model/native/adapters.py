"""Adapters as the native decoder reads them."""

from __future__ import annotations

from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.native.structures import AdaptedMatrix, AdapterRows, DeltaPart
from shared.model.adapted.paths import takes_adapter
from shared.model.linear.fused import FusedLinear
from shared.model.native.packing.matrices import PackedWeight

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from kernels.low_rank import LowRankPart, RowSegments
    from kernels.native.kinds import Kind
    from shared.model.adapted.base import AdapterWeights
    from shared.model.decoder.causal_lm import CausalLM


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A packed linear that takes adapters."""

    matrix: int
    in_size: int
    out_size: int
    is_gated: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of inputs and outputs."""
        return self.in_size, self.out_size


def linears_taking_adapters(model: CausalLM) -> dict[str, PackedLinear]:
    """Return the packed linears of a model that take adapters, by path."""
    return {
        path: PackedLinear(
            module.product.matrix, module.in_size, sum(module.out_sizes), module.is_gated
        )
        for path, module in model.named_modules()
        if isinstance(module, FusedLinear)
        and takes_adapter(path)
        and isinstance(module.product, PackedWeight)
    }


class PackedAdapter:
    """See `PreparedAdapter`: an adapter in the library's order, in memory of its own."""

    def __init__(
        self,
        library: ctypes.CDLL,
        linears: Mapping[str, PackedLinear],
        weights: AdapterWeights,
        slots: dict[int, PackedAdapter],
        *,
        dtype: torch.dtype,
        element: Kind,
    ) -> None:
        """Pack the matrices in the model's dtype; slots: those of the model.

        Raises:
            KeyError: a path is not one of the linears.
            MemoryError: there is no memory.
        """
        self._library = library
        self._slots = slots
        #: What the records refer to while they are read.
        kept: list[object] = []
        records = [
            _record(linears[path], parts, dtype, kept) for path, parts in weights.items() if parts
        ]
        array = (AdaptedMatrix * len(records))(*records)
        self.handle: int | None = library.baton_adapter_new(element, array, len(records))
        if not self.handle:
            raise MemoryError("no memory for an adapter")

    def place(self, slot: int) -> None:
        """See `PreparedAdapter.place`."""
        self._slots[slot] = self

    @property
    def num_bytes(self) -> int:
        """Its memory in bytes."""
        return int(self._library.baton_adapter_bytes(self.handle))

    def __del__(self) -> None:
        """Free the memory: no step uses it any more."""
        if getattr(self, "handle", None):
            self._library.baton_adapter_delete(self.handle)


def adapter_rows(rows: RowSegments, held: Mapping[int, PackedAdapter]) -> ctypes.Array[AdapterRows]:
    """Return the library's records of the segments whose slots hold an adapter."""
    records = [
        AdapterRows(first=start, end=end, adapter=held[slot].handle)
        for start, end, slot in rows.segments
        if slot in held
    ]
    return (AdapterRows * len(records))(*records)


def _record(
    linear: PackedLinear, parts: Sequence[LowRankPart], dtype: torch.dtype, kept: list[object]
) -> AdaptedMatrix:
    array = (DeltaPart * len(parts))(*(_part(part, dtype, kept) for part in parts))
    kept.append(array)
    return AdaptedMatrix(
        matrix=linear.matrix,
        columns=linear.out_size,
        paired=linear.is_gated,
        num_parts=len(parts),
        parts=cast(array, POINTER(DeltaPart)),
    )


def _part(part: LowRankPart, dtype: torch.dtype, kept: list[object]) -> DeltaPart:
    return DeltaPart(
        first_column=part.first,
        columns=len(part.b),
        rank=part.rank,
        scale=part.scale,
        a=_address(part.a, dtype, kept),
        b=_address(part.b, dtype, kept),
    )


def _address(matrix: Tensor, dtype: torch.dtype, kept: list[object]) -> int:
    own = matrix.to("cpu", dtype).contiguous()
    kept.append(own)
    return own.data_ptr()
