"""The interfaces of adapters and of a model with slots for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.adapted.base import AdapterWeights


class Adapter(Protocol):
    """An adapter's tensors in host memory. Never changed, and independent of its files."""

    @property
    def digest(self) -> bytes:
        """Digest of its content: see `AdapterRef.digest`."""
        ...

    @property
    def max_rank(self) -> int:
        """The largest rank of its matrices."""
        ...

    @property
    def weights(self) -> AdapterWeights:
        """What `AdapterModel.set_adapter` takes."""
        ...


class ReadAdapter(Protocol):
    """Reads adapters of one model."""

    def __call__(self, folder: Path) -> Adapter:
        """Return the adapter of a folder, checked. May be called in any thread.

        Raises:
            InvalidRequestError: it is none, or none of the model's.
        """
        ...


@runtime_checkable
class AdapterModel(Protocol):
    """A model with slots for adapters: see `AdaptableModel`."""

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """Put an adapter's weights into a slot, copied; None empties it.

        No step in flight uses the slot.
        """
        ...
