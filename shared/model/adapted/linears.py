"""Adapters of linears that PyTorch computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kernels.low_rank import LowRankPart, LowRankSlots, SlotWeights, add_low_rank
from shared.model.adapted.rows import StepRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from shared.model.adapted.base import AdapterWeights
    from shared.model.adapted.rows import AdapterRows


class Delta:
    """What the adapters of a step add to one linear's results."""

    def __init__(self, step: StepRows, in_size: int, out_size: int, *, implementation: str) -> None:
        """implementation: of the kernel, `torch` or `triton`."""
        self.slots = LowRankSlots(in_size, out_size)
        self._step = step
        self._implementation = implementation

    def add(self, out: Tensor, x: Tensor) -> None:
        """Add to the linear's results [num_rows, out_size], in place; x: [num_rows, in_size]."""
        if self._step.rows is not None:
            rows = self._step.rows.of(len(x))
            add_low_rank(out, x, self.slots, rows, implementation=self._implementation)


class TakesDelta(Protocol):
    """A linear that an adapter may change."""

    in_size: int
    out_sizes: tuple[int, ...]
    #: None: no slot changes it, and it is computed as if there were no adapters.
    delta: Delta | None


class AdaptedLinears:
    """The slots of a model whose linears PyTorch computes."""

    def __init__(
        self,
        linears: Mapping[str, TakesDelta],
        *,
        dtype: torch.dtype,
        device: torch.device,
        implementation: str,
    ) -> None:
        """Take linears, by path. implementation: see `Delta`."""
        self._linears = linears
        self._dtype, self._device = dtype, device
        self._implementation = implementation
        self._step = StepRows()

    @property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`."""
        return {path: (own.in_size, sum(own.out_sizes)) for path, own in self._linears.items()}

    def begin(self, rows: AdapterRows | None, wanted: Sequence[int] | None) -> None:
        """See `StepRows.begin`."""
        self._step.begin(rows, wanted)

    def prepare(self, weights: AdapterWeights) -> PlacedLinears:
        """See `AdaptableModel.prepare_adapter`."""
        found: dict[str, SlotWeights] = {}
        for path, parts in weights.items():
            self._linears[path]  # KeyError: it takes none
            if parts:
                found[path] = SlotWeights.of([self._moved(part) for part in parts])
        return PlacedLinears(self, found)

    def put(self, slot: int, weights: Mapping[str, SlotWeights]) -> None:
        """Replace what a slot holds; without weights it is empty."""
        for path, linear in self._linears.items():
            own = weights.get(path)
            if linear.delta is None and own is None:
                continue
            delta = linear.delta or self._new(linear)
            delta.slots.put(slot, own)
            linear.delta = delta if delta.slots.held else None

    def _new(self, linear: TakesDelta) -> Delta:
        return Delta(
            self._step,
            linear.in_size,
            sum(linear.out_sizes),
            implementation=self._implementation,
        )

    def _moved(self, part: LowRankPart) -> LowRankPart:
        a, b = (m.to(self._device, self._dtype).contiguous() for m in (part.a, part.b))
        return LowRankPart(part.first, a, b, part.scale)


class PlacedLinears:
    """See `PreparedAdapter`."""

    def __init__(self, owner: AdaptedLinears, weights: Mapping[str, SlotWeights]) -> None:
        """weights: by path of a linear."""
        self._owner = owner
        self._weights = weights

    @property
    def num_bytes(self) -> int:
        """See `PreparedAdapter.num_bytes`."""
        return sum(each.num_bytes for each in self._weights.values())

    def place(self, slot: int) -> None:
        """See `PreparedAdapter.place`."""
        self._owner.put(slot, self._weights)
