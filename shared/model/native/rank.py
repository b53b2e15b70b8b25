"""A rank's part of a decoder, or of a stage, computed by the native decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kernels.native.kinds import Outcome
from shared.model.native.model import NativeCausalLM
from shared.model.sharding.adapters import cut_adapter
from shared.ranks.base import NativeCollective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.adapted.base import AdapterWeights
    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.native.adapters import PackedAdapter
    from shared.model.native.packing.packing import Packing
    from shared.model.sharding.model import ShardedCausalLM
    from shared.model.sharding.stage import StageCausalLM


class ShardedNativeLM(NativeCausalLM):
    """One rank's part. All ranks make the same calls, for the same tokens.

    Hidden states, embeddings and logits are whole on every rank, and the same. A call raises
    RankError as the collective does.
    """

    def __init__(self, model: ShardedCausalLM, packing: Packing) -> None:
        """See `NativeCausalLM`. With several ranks the model's collective is native."""
        self.shards = model.shards
        own = model.collective
        self.collective = own if isinstance(own, NativeCollective) else None
        assert self.collective is not None or own.size == 1  # see `load_model`
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
        return None if self.collective is None else self.collective.native

    def _check(self, outcome: int, what: str) -> None:
        if outcome == Outcome.GROUP_BROKEN and self.collective is not None:
            raise self.collective.error()
        super()._check(outcome, what)


class NativeStageLM(ShardedNativeLM):
    """One rank's part of a stage; see `StageCausalLM`. The stream is float32 with every model."""

    def __init__(self, model: StageCausalLM, packing: Packing) -> None:
        """See `NativeCausalLM`."""
        self._pipe = model.pipe
        self._linears = model.whole_linears
        super().__init__(model, packing)

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`: those of the whole model, of all stages."""
        return self._linears.sizes

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> Tensor:
        """See `NativeCausalLM.forward`. Sends the stream to the next stage, if there is one.

        Raises:
            RankError: a stage beside this one was lost, or a rank of this one.
        """
        if self.spec.ends:
            return super().forward(token_ids, positions, kv_caches, metadata, given)
        every = replace(metadata, wanted=None)
        stream = super().forward(token_ids, positions, kv_caches, every, given)
        self._pipe.send(stream)
        return stream

    def _stream(self, num_tokens: int) -> Tensor | None:
        if self.spec.begins:
            return None
        received = torch.empty(num_tokens, self.spec.hidden_size, dtype=torch.float32)
        self._pipe.receive(received)
        return received
