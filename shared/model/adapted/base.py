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


class AdaptableModel(Protocol):
    """A model with slots for adapters. A slot is a small number of the caller's choice."""

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """By path: the linears that take adapters, with their numbers of inputs and outputs."""
        ...

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """Put an adapter into a slot, in place of what was there; None empties it.

        The matrices are copied in the model's dtype, on its device. Rows of later steps that name
        the slot pass through it. No step that names it may be under way. A step of an empty slot is
        computed as without an adapter.

        Raises:
            KeyError: a path is not one of `adapter_linears`.
            MemoryError: there is no memory; the slot is empty then.
        """
        ...
