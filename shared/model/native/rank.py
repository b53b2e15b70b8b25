"""A rank's part of a decoder, computed by the native decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.native.kinds import Outcome
from shared.model.native.model import NativeCausalLM
from shared.model.sharding.adapters import cut_adapter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.adapted.base import AdapterWeights
    from shared.model.native.adapters import PackedAdapter
    from shared.model.native.packing import Packing
    from shared.model.sharding.model import ShardedCausalLM
    from shared.ranks.base import NativeCollective


class ShardedNativeLM(NativeCausalLM):
    """One rank's part. All ranks make the same calls, for the same tokens.

    Hidden states, embeddings and logits are whole on every rank, and the same. A call raises
    RankError as the collective does.
    """

    def __init__(
        self, model: ShardedCausalLM, packing: Packing, collective: NativeCollective
    ) -> None:
        """See `NativeCausalLM`; collective: that of `model`."""
        self.shards = model.shards
        self.collective = collective
        super().__init__(model, packing)

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`: those of the whole model."""
        return self.shards.whole_sizes(super().adapter_linears)

    def prepare_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """See `AdaptableModel.prepare_adapter`; weights: those of the whole model."""
        return super().prepare_adapter(cut_adapter(weights, self.shards))

    @property
    def _tokens(self) -> range:
        return self.shards.rows

    @property
    def _group(self) -> int | None:
        return self.collective.native

    def _check(self, outcome: int, what: str) -> None:
        if outcome == Outcome.GROUP_BROKEN:
            raise self.collective.error()
        super()._check(outcome, what)
