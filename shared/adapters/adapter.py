"""An adapter in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.adapted.base import AdapterWeights


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """The matrices of an adapter, on the host, that was checked against its base."""

    #: Of everything that its results depend on: equal for two folders with the same content,
    #: whatever they are called. 32 bytes.
    digest: bytes
    #: What `AdaptableModel.set_adapter` takes.
    weights: AdapterWeights
    #: The largest of any of its matrices.
    max_rank: int
    #: Where it was read.
    folder: Path

    @property
    def num_bytes(self) -> int:
        """Memory of its matrices in bytes."""
        parts = (part for own in self.weights.values() for part in own)
        return sum(part.a.nbytes + part.b.nbytes for part in parts)
