"""The interface of models whose linears take adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernels.low_rank import LowRankPart

#: An adapter's matrices by the path of the linear in the model, as in `layers.3.attention.qkv`. The
#: parts of a linear are ascending and do not overlap; their tensors may have any float dtype, and
#: are on the host.
AdapterWeights: TypeAlias = "Mapping[str, Sequence[LowRankPart]]"


class PreparedAdapter(Protocol):
    """An adapter as its model computes with it: in the model's dtype, on its device."""

    @property
    def num_bytes(self) -> int:
        """Memory of its matrices in bytes."""
        ...

    def place(self, slot: int) -> None:
        """Put it into a slot of its model, in place of what was there. Copies nothing.

        One adapter may be in several slots. Rows of later steps that name the slot pass through it.
        No step that names the slot may be under way; others may.
        """
        ...


class AdaptableModel(Protocol):
    """A model with slots for adapters. A slot is a small number of the caller's choice."""

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """By path: the linears that take adapters, with their numbers of inputs and outputs."""
        ...

    def prepare_adapter(self, weights: AdapterWeights) -> PreparedAdapter:
        """Return an adapter of this model. The matrices are copied; any thread may call it.

        Raises:
            KeyError: a path is not one of `adapter_linears`.
            MemoryError: there is no memory.
        """
        ...

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """Prepare an adapter and place it in a slot, or with None empty the slot.

        A step of an empty slot is computed as without an adapter. For the caller's duties see
        `PreparedAdapter.place`, for errors `prepare_adapter`; with an error the slot is empty.
        """
        ...
