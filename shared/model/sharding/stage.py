"""A stage of a pipeline: some layers of a decoder, which rows enter and leave by a pipe."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from shared.model.linear.base import DENSE
from shared.model.sharding.model import ShardedCausalLM, whole_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from shared.model.attention.base import AttentionBackend
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.linear.base import LinearMethod
    from shared.model.sharding.shards import Shards
    from shared.model.spec.decoder import DecoderSpec
    from shared.ranks.base import Collective, Pipe


class WholeLinears:
    """The linears of a whole decoder that take adapters, looked up when they are asked for."""

    def __init__(self, spec: DecoderSpec, backend_name: str, dtype: torch.dtype) -> None:
        self._whole = spec, backend_name, dtype

    @cached_property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """Numbers of inputs and outputs, by path."""
        return whole_model(*self._whole).adapter_linears


class StageCausalLM(ShardedCausalLM):
    """One rank's part of a stage. All stages call `forward` for the same tokens.

    Between two stages the residual stream moves, of all tokens: [num_tokens, hidden]. The last
    stage returns hidden states, and only it computes logits; what others return means nothing.
    """

    def __init__(
        self,
        *,
        shards: Shards,
        collective: Collective,
        pipe: Pipe,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        """Build the modules of a rank; see `CausalLM`."""
        super().__init__(
            shards=shards, collective=collective, backend=backend, dtype=dtype, method=method
        )
        self.pipe = pipe
        #: Those of all stages.
        self.whole_linears = WholeLinears(shards.whole, backend.name, dtype)

    @property
    def is_recordable(self) -> bool:
        """See `CausalModel.is_recordable`: no graph waits for another rank."""
        return False

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`: those of the whole model, of all stages."""
        return self.whole_linears.sizes

    def enter(
        self, token_ids: Tensor, positions: Tensor, given: GivenEmbeds | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `CausalLM.enter`: what this stage's first layer reads."""
        if self.spec.begins:
            return super().enter(token_ids, positions, given)
        shape = len(token_ids), self.spec.hidden_size
        x = self.embedding.new_empty(shape)
        self.pipe.receive(x)
        return x, None

    def leave(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `CausalLM.leave`; sends the stream to the next stage, if there is one."""
        if self.spec.ends:
            return super().leave(x, residual)
        stream = residual + x
        self.pipe.send(stream)
        return stream
